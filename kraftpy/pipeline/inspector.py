"""What is wrong with a partition's log, told from the headers of its batches in their order.

Rules:

* A gap is legal where the cleaner works (`cleanup.policy` has `compact`): it removes records and
  whole batches. Elsewhere offsets that no batch has are lost records. Control batches and aborted
  records have offsets, so they are no gap; they are counted.
* What is told is the least that explains the log. Batches are where they belong if they are in the
  longest subsequence with rising offsets. Of the others, one whose offsets are missing is out of
  `order`; one that fits into what is missing where it stands has a wrong `offset`; the rest are
  `duplicate`. So is a batch whose producer's sequence numbers are there already (KIP-98).
* Leader epochs don't fall (KIP-101): those of the longest subsequence that doesn't fall are right.
* A batch whose checksum is wrong (`crc`), and what is no batch (`unreadable`), has the offsets that
  are missing where it stands, and no others.
* Batches are looked at `WINDOW` at a time once something isn't as expected. Disorder over a longer
  distance is found too, and told less briefly.
* Timestamps are the producers' own, so nothing is wrong with any.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final, Literal, TypeAlias

from kraftpy.pipeline.stored import Stored
from kraftpy.protocol.records import BatchHeader

FindingKind: TypeAlias = Literal[
    "gap", "duplicate", "order", "offset", "epoch", "crc", "unreadable"
]

FINDINGS_MAX: Final = 1000
"""The most findings of a partition that are told one by one."""

WINDOW: Final = 4096
_CALM: Final = 64
_GAPS_MAX: Final = 65_536
_PRODUCERS_MAX: Final = 100_000
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
    """Takes what stands in the log from `next_offset` to `end` (exclusive), in its order."""

    next_offset: int
    end: int
    compacted: bool
    counts: Counts = field(default_factory=Counts)
    findings: list[Finding] = field(default_factory=list)
    _epoch: int = -1
    _held: list[Stored] = field(default_factory=list)
    _calm: int = 0
    _gaps: list[tuple[int, int]] = field(default_factory=list)
    _damaged: list[Stored] = field(default_factory=list)
    _checksums: dict[int, int] = field(default_factory=dict)
    _producers: dict[int, _Producer] = field(default_factory=dict)
    _open: dict[int, int] = field(default_factory=dict)

    def take(self, one: Stored) -> None:
        """The next batch, or what stands in the place of one."""
        self.counts.batches += 1
        if self.counts.batches == 1 and one.first < self.next_offset < one.end:
            one = one._replace(first=self.next_offset)  # the log begins in the middle of it
        waiting = self._held or self._damaged
        if not waiting and one.first == self.next_offset and self._as_expected(one):
            self._accept(one)
            return
        before = self._held[-1].end if self._held else self.next_offset
        self._calm = self._calm + 1 if one.first == before and self._as_expected(one) else 0
        self._held.append(one)
        calm = self._calm == _CALM and _in_order(self._held)
        if self._calm == _CALM:
            self._calm = 0
        if calm or len(self._held) >= WINDOW:
            *held, last = self._held
            self._settle(held)
            # Whether the last one is where it belongs, the next ones tell.
            self._held = [] if calm else [last]
            if calm:
                self._accept(last)

    def finish(self) -> None:
        """Call it behind the last batch."""
        self._settle(self._held)
        self._held = []
        self._come_to(self.end)
        self._close_gaps(len(self._gaps))
        self.counts.open = sum(self._open.values())
        self.findings.sort(key=lambda each: (each.first, each.kind))

    def _as_expected(self, one: Stored) -> bool:
        if one.header is None or one.damage is not None or one.end > self.end:
            return False
        epoch = one.header.partition_leader_epoch
        return epoch in (self._epoch, -1)

    # Batches that aren't all as expected

    def _settle(self, held: Sequence[Stored]) -> None:
        """Tells what is where it belongs from what isn't."""
        sound = [
            number
            for number, one in enumerate(held)
            if one.damage is None and self.next_offset <= one.first < self.end
        ]
        right = set(_rising(sound, lambda number: held[number].first))
        odd = self._odd_epochs([held[number] for number in sorted(right)])
        strays: list[tuple[Stored, int]] = []
        for number, one in enumerate(held):
            if one.damage is not None:
                self._damaged.append(one)
            elif number in right:
                self._come_to(one.first)
                self._accept(one)
                if one.first in odd:
                    epoch = odd[one.first]
                    self._find("epoch", one.first, one.end - 1, f"its leader epoch is {epoch}")
            else:
                strays.append((one, self.next_offset))
        filled: dict[int, int] = {}
        for one, place in strays:
            if self._stray(one, filled.get(place, place)):
                filled[place] = filled.get(place, place) + one.end - one.first

    def _odd_epochs(self, right: Sequence[Stored]) -> dict[int, int]:
        """The leader epochs that don't fit the others, by first offset."""
        epochs = [
            (one.first, one.header.partition_leader_epoch)
            for one in right
            if one.header is not None and one.header.partition_leader_epoch >= 0
        ]
        fits = [epoch >= self._epoch for _, epoch in epochs]
        rest = iter(_not_falling([epoch for _, epoch in epochs if epoch >= self._epoch]))
        fits = [each and next(rest) for each in fits]
        self._epoch = max(
            [self._epoch, *(epoch for (_, epoch), each in zip(epochs, fits, strict=True) if each)]
        )
        return dict(each for each, fit in zip(epochs, fits, strict=True) if not fit)

    def _stray(self, one: Stored, place: int) -> bool:
        """A batch that isn't where its offset belongs. Whether it belongs where it is, `place`."""
        first, end = one.first, one.end
        behind = f"stands behind offset {place - 1}"
        if self._fill_gap(first, end):
            self._count(one)
            self._find("order", first, end - 1, behind if first < place else f"{behind} already")
            return False
        again = one.header is not None and self._checksums.get(first) == one.header.crc
        if not again and self._fill_gap(place, place + end - first):
            self._count(one)
            text = f"the batch says that it begins at offset {first}"
            self._find("offset", place, place + end - first - 1, text)
            return True
        self._find("duplicate", first, end - 1, f"{behind}, and is in the log besides")
        return False

    def _count(self, one: Stored) -> None:
        if one.header is not None and not one.header.is_control:
            self.counts.records += one.header.records_count

    def _come_to(self, offset: int) -> None:
        """The next batch begins here, or nothing comes before it."""
        if self._damaged:
            damaged, self._damaged = self._damaged, []
            self._tell_damage(damaged, offset)
        elif offset > self.next_offset:
            self._gap(self.next_offset, offset)
        self.next_offset = max(self.next_offset, offset)

    def _tell_damage(self, damaged: Sequence[Stored], offset: int) -> None:
        """What can't be believed, between `next_offset` and `offset`."""
        at = self.next_offset
        for number, one in enumerate(damaged):
            kind: FindingKind = "unreadable" if one.header is None else "crc"
            rest = damaged[number + 1 :]
            following = next((other.first for other in rest if at < other.first < offset), offset)
            if at <= one.first < following:
                if one.first > at:
                    self._gap(at, one.first)
                at = one.first
            last = following - 1
            if self.compacted and at < one.end <= following:
                last = one.end - 1
                self._gap(one.end, following)
            if at > last:  # nothing is missing here
                if not number:
                    first = one.first if one.first >= 0 else max(at - 1, 0)
                    self._find(kind, first, first, f"{one.damage}, and it has no place in the log")
                continue
            self._find(kind, at, last, one.damage or "")
            at = following

    def _gap(self, first: int, end: int) -> None:
        if first < end:
            self._gaps.append((first, end))
        if len(self._gaps) > _GAPS_MAX:
            self._close_gaps(_GAPS_MAX // 2)

    def _fill_gap(self, first: int, end: int) -> bool:
        """Whether these offsets were missing; they aren't any more."""
        number = bisect_right(self._gaps, (first, self.end)) - 1
        if number < 0:
            return False
        low, high = self._gaps[number]
        if not low <= first < end <= high:
            return False
        rest = [(low, first), (end, high)]
        self._gaps[number : number + 1] = [one for one in rest if one[0] < one[1]]
        return True

    def _close_gaps(self, count: int) -> None:
        """Nothing will fill the oldest ones any more."""
        for first, end in self._gaps[:count]:
            if self.compacted:
                self.counts.compacted += end - first
            else:
                self._find("gap", first, end - 1, "no batch has these offsets: records are lost")
        del self._gaps[:count]

    # -- batches where they belong

    def _accept(self, one: Stored) -> None:
        header = one.header
        assert header is not None
        if one.first < self.next_offset:
            text = f"offsets up to {self.next_offset - 1} are in the log already"
            self._find("duplicate", one.first, min(one.end, self.next_offset) - 1, text)
        self.next_offset = max(self.next_offset, one.end)
        self._checksums[one.first] = header.crc
        if len(self._checksums) > 4 * WINDOW:
            for old in list(self._checksums)[: 2 * WINDOW]:
                del self._checksums[old]
        if self._epoch < 0:
            self._epoch = header.partition_leader_epoch
        if not self._sequence(header):
            return
        if header.is_control:
            self._end_transaction(one, header)
            return
        self._count(one)
        removed = header.last_offset_delta + 1 - header.records_count
        if removed < 0:
            text = f"says that it has {header.records_count} records, more than it has offsets"
            self._find("unreadable", one.first, one.end - 1, text)
        elif self.compacted:
            self.counts.compacted += removed
        elif removed:
            self._find("gap", one.first, one.end - 1, f"the batch lacks {removed} of its records")
        if header.is_transactional:
            before = self._open.get(header.producer_id, 0)
            self._open[header.producer_id] = before + header.records_count

    def _sequence(self, header: BatchHeader) -> bool:
        """Whether the producer's numbers say that the batch is new."""
        if header.producer_id < 0 or header.base_sequence < 0 or header.is_control:
            return True
        # A cleaned batch keeps the sequence of its last offset, whatever was removed.
        known = self._producers.pop(header.producer_id, None)
        if known is not None and header.producer_epoch == known.epoch:
            ahead = (header.base_sequence - known.last_sequence - 1) % _SEQUENCES
            if ahead >= _SEQUENCES // 2:
                self._producers[header.producer_id] = known
                text = f"producer {header.producer_id} has written sequence {header.base_sequence}"
                first, last = header.base_offset, header.last_offset
                self._find("duplicate", first, last, f"{text} before")
                return False
        if known is not None and header.producer_epoch < known.epoch:
            self._find(
                "order",
                header.base_offset,
                header.last_offset,
                f"epoch {header.producer_epoch} of producer {header.producer_id} writes after"
                f" {known.epoch}",
            )
        # The one that wrote last is last: those that are forgotten have been silent for longest.
        self._producers[header.producer_id] = _Producer(header.producer_epoch, header.last_sequence)
        if len(self._producers) > _PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]
        return True

    def _end_transaction(self, one: Stored, header: BatchHeader) -> None:
        self.counts.control += header.records_count
        ended = self._open.pop(header.producer_id, 0)
        if one.marker is not None and not one.marker.committed:
            self.counts.aborted += ended

    def _find(self, kind: FindingKind, first: int, last: int, text: str) -> None:
        self.counts.findings += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, first, last, text))


def _in_order(held: Sequence[Stored]) -> bool:
    end = -1
    for one in held:
        if one.damage is not None or one.first < end:
            return False
        end = one.end
    return True


def _rising(numbers: Sequence[int], key: Callable[[int], int]) -> list[int]:
    """The longest of their subsequences whose keys rise; of equally long ones the earliest."""
    # By patience sorting from the end: what is found last, and kept, is what stands first.
    keys: list[int] = []
    piles: list[int] = []
    behind: dict[int, int | None] = {}
    for number in reversed(numbers):
        pile = bisect_left(keys, -key(number))
        behind[number] = piles[pile - 1] if pile else None
        keys[pile : pile + 1] = [-key(number)]
        piles[pile : pile + 1] = [number]
    found: list[int] = []
    at = piles[-1] if piles else None
    while at is not None:
        found.append(at)
        at = behind[at]
    return found


def _not_falling(values: Sequence[int]) -> list[bool]:
    """Those in the longest subsequence that doesn't fall; of several, that of the fewest values."""
    if all(one <= other for one, other in pairwise(values)):
        return [True] * len(values)
    runs = [(value, len(list(each))) for value, each in groupby(values)]
    # For each run the best row that ends with it: its length, changes (negative), the run before.
    rows: list[tuple[int, int, int]] = []
    for value, count in runs:
        best = (count, 0, -1)
        for before, (length, changes, _) in enumerate(rows):
            if runs[before][0] <= value:
                change = runs[before][0] != value
                best = max(best, (length + count, changes - change, before))
        rows.append(best)
    kept = set()
    at = rows.index(max(rows))
    while at >= 0:
        kept.add(at)
        at = rows[at][2]
    return [number in kept for number, (_, count) in enumerate(runs) for _ in range(count)]
