"""What is wrong with a partition's log, told from the headers of its batches in their order.

Rules:

* A gap is legal where the cleaner works (`cleanup.policy` has `compact`): it removes records and
  whole batches.  Elsewhere offsets that no batch has are lost records.  Control batches and aborted
  records have offsets, so they are no gap; they are counted.
* A batch behind its place fills the gap that it left: that is one finding, `order`.  One whose
  offsets are there already, or whose producer's sequence numbers are (KIP-98), is a `duplicate`.
* A batch whose checksum is wrong is believed in nothing but its base offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    check_batch,
    read_batch_header,
    read_end_txn_marker,
)

FindingKind: TypeAlias = Literal["gap", "duplicate", "order", "crc", "unreadable"]

FINDINGS_MAX: Final = 1000
"""The most findings of a partition that are told one by one."""

_SEQUENCES: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Finding:
    """Offsets `first` to `last`, both inclusive, and what is wrong with them."""

    kind: str
    first: int
    last: int
    text: str


@dataclass(slots=True)
class Counts:
    """What a partition's log consists of; all but `batches` count records or offsets."""

    batches: int = 0
    records: int = 0
    control: int = 0
    aborted: int = 0
    open: int = 0
    compacted: int = 0
    findings: int = 0


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_sequence: int


@dataclass
class Inspector:
    """Takes the batches of one partition from `next_offset` on, as a fetch gives them."""

    next_offset: int
    compacted: bool
    counts: Counts = field(default_factory=Counts)
    findings: list[Finding] = field(default_factory=list)
    _gaps: list[tuple[int, int]] = field(default_factory=list)
    _producers: dict[int, _Producer] = field(default_factory=dict)
    _open: dict[int, int] = field(default_factory=dict)
    _damaged: tuple[int, str] | None = None

    def look(self, data: Buffer, wanted: int, end: int) -> int:
        """Takes an answer to a fetch from offset `wanted`; returns the offset to go on from.

        What lies at `end` or behind it isn't looked at.  A batch that is cut off is left for later.
        """
        position, size, begun = 0, len(data), False
        while size - position >= RECORD_BATCH_OVERHEAD and self.next_offset < end:
            try:
                header = read_batch_header(data, position)
            except DecodeError as error:
                self._find("unreadable", self.next_offset, end - 1, f"and what follows: {error}")
                return end
            if position + header.size_bytes > size:
                break
            if header.base_offset >= end:
                self._come_to(end)
                break
            # An answer begins with the batch that has the wanted offset, or with one before it.
            begun = begun or header.last_offset >= wanted
            if begun:
                self._take(data, position, header)
            position += header.size_bytes
        return max(self.next_offset, wanted)

    def finish(self) -> None:
        """Call it behind the last batch."""
        if self._damaged is not None:
            self._come_to(self.next_offset)
        for first, end in self._gaps:
            if self.compacted:
                self.counts.compacted += end - first
            else:
                self._find("gap", first, end - 1, "no batch has these offsets: records are lost")
        self._gaps.clear()
        self.counts.open = sum(self._open.values())
        self.findings.sort(key=lambda each: (each.first, each.kind))

    def _take(self, data: Buffer, position: int, header: BatchHeader) -> None:
        first, end = header.base_offset, header.last_offset + 1
        if self._damaged is not None and first == self._damaged[0]:
            return  # the same one, in the next answer
        self.counts.batches += 1
        if self.counts.batches == 1 and first < self.next_offset < end:
            first = self.next_offset  # the log begins in the middle of its first batch
        if first >= self.next_offset or self._damaged is not None:
            self._come_to(first)
        try:
            check_batch(data, position)
        except DecodeError as error:
            self._damaged = (first, str(error))
            whole = header.last_offset_delta + 1 == header.records_count
            self.next_offset = max(self.next_offset, end if whole else first + 1)
            return
        if first < self.next_offset:
            self._late(first, end)
            return
        self.next_offset = end
        if not self._sequence(header):
            return
        if header.is_control:
            self._end_transaction(data, position, header)
            return
        self.counts.records += header.records_count
        removed = header.last_offset_delta + 1 - header.records_count
        if self.compacted:
            self.counts.compacted += removed
        elif removed:
            self._find("gap", first, end - 1, f"the batch lacks {removed} of its records")
        if header.is_transactional:
            before = self._open.get(header.producer_id, 0)
            self._open[header.producer_id] = before + header.records_count

    def _come_to(self, offset: int) -> None:
        """The next batch begins here, or nothing comes before it.

        Where a damaged one ends only the next one tells: the damaged header may say anything.
        """
        if self._damaged is not None:
            first, text = self._damaged
            self._damaged = None
            self._find("crc", first, max(first, offset - 1), text)
        elif offset > self.next_offset:
            self._gaps.append((self.next_offset, offset))
        self.next_offset = offset

    def _late(self, first: int, end: int) -> None:
        """A batch whose offsets are behind where the log has come to."""
        for number, (low, high) in enumerate(self._gaps):
            if low <= first and end <= high:
                rest = [(low, first), (end, high)]
                self._gaps[number : number + 1] = [one for one in rest if one[0] < one[1]]
                self._find("order", first, end - 1, f"stands behind offset {self.next_offset - 1}")
                return
        self._find("duplicate", first, end - 1, "these offsets are in the log already")

    def _sequence(self, header: BatchHeader) -> bool:
        """Whether the producer's numbers say that the batch is new."""
        if header.producer_id < 0 or header.base_sequence < 0 or header.is_control:
            return True
        # A cleaned batch keeps the sequence of its last offset, whatever was removed.
        count = header.last_offset_delta + 1
        last = (header.base_sequence + count - 1) % _SEQUENCES
        known = self._producers.get(header.producer_id)
        if known is not None and header.producer_epoch == known.epoch:
            ahead = (header.base_sequence - known.last_sequence - 1) % _SEQUENCES
            if ahead >= _SEQUENCES // 2:
                self._find(
                    "duplicate",
                    header.base_offset,
                    header.last_offset,
                    f"producer {header.producer_id} has written its sequence"
                    f" {header.base_sequence} before",
                )
                return False
        if known is not None and header.producer_epoch < known.epoch:
            self._find(
                "order",
                header.base_offset,
                header.last_offset,
                f"epoch {header.producer_epoch} of producer {header.producer_id} writes after"
                f" {known.epoch}",
            )
        self._producers[header.producer_id] = _Producer(header.producer_epoch, last)
        return True

    def _end_transaction(self, data: Buffer, position: int, header: BatchHeader) -> None:
        self.counts.control += header.records_count
        marker = read_end_txn_marker(data, position)
        ended = self._open.pop(header.producer_id, 0)
        if marker is not None and not marker.committed:
            self.counts.aborted += ended

    def _find(self, kind: FindingKind, first: int, last: int, text: str) -> None:
        self.counts.findings += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, first, last, text))
