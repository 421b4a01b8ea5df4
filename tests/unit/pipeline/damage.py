"""Logs as files, damaged in ways that an audit has to name."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import build_batch, read_batch_header, stamp_batch

Told = list[tuple[str, int, int]]

FAR = 1 << 41


def batch(first: int, last: int, *, sequence: int = -1, **more: object) -> bytes:
    rows = [(1_700_000_000_000 + n, b"k", b"v", []) for n in range(first, last + 1)]
    producer = 7 if sequence >= 0 else -1
    more = {"producer_id": producer, "producer_epoch": 0, "leader_epoch": 3, **more}
    return build_batch(rows, base_offset=first, base_sequence=sequence, **more)  # type: ignore[arg-type]


def flipped(data: bytes, at: int = -1) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def with_length(data: bytes, length: int) -> bytes:
    return data[:8] + struct.pack(">i", length) + data[12:]


def stamped(data: bytes, offset: int, epoch: int) -> bytes:
    """The same batch somewhere else; its checksum stays right."""
    changed = bytearray(data)
    stamp_batch(changed, 0, offset, epoch)
    return bytes(changed)


@dataclass
class Damage:
    """The batches of a log, in order and without gaps, and what an audit has to say of them.

    Each method damages the batch of a number that no other one touches, nor those beside it.
    """

    batches: list[bytes]
    told: Told = field(default_factory=list)

    def __post_init__(self) -> None:
        self._at = list(range(len(self.batches)))
        headers = [read_batch_header(one) for one in self.batches]
        self._offsets = [(one.base_offset, one.last_offset) for one in headers]

    def _tell(self, kind: str, number: int) -> None:
        self.told.append((kind, *self._offsets[number]))

    def gap(self, number: int) -> None:
        self.batches[number] = b""
        self._tell("gap", number)

    def duplicate(self, number: int) -> None:
        self.batches[number] *= 2
        self._tell("duplicate", number)

    def order(self, number: int) -> None:
        one, other = self.batches[number : number + 2]
        self.batches[number], self.batches[number + 1] = b"", other + one
        self._tell("order", number)

    def crc(self, number: int) -> None:
        self.batches[number] = flipped(self.batches[number])
        self._tell("crc", number)

    def magic(self, number: int) -> None:
        data = self.batches[number]
        self.batches[number] = data[:16] + b"\x09" + data[17:]
        self._tell("unreadable", number)

    def length(self, number: int, length: int) -> None:
        self.batches[number] = with_length(self.batches[number], length)
        self._tell("crc" if length >= 49 else "unreadable", number)

    def epoch(self, number: int, epoch: int) -> None:
        first, _ = self._offsets[number]
        self.batches[number] = stamped(self.batches[number], first, epoch)
        self._tell("epoch", number)

    def offset(self, number: int) -> None:
        self.batches[number] = stamped(self.batches[number], FAR, 3)
        self._tell("offset", number)

    def file(self) -> bytes:
        return b"".join(self.batches)


@dataclass
class File:
    """Answers fetches from the bytes of a log, as a broker does that has no index."""

    data: bytes
    whole_batches: bool
    """Whether answers end with a batch, as ours do, or anywhere, as Apache Kafka's."""

    def fetch(self, offset: int, size: int) -> bytes | None:
        """None if damage is in the way of what has to be found."""
        at = end = None
        position = 0
        try:
            while position < len(self.data) and end is None:
                header = read_batch_header(self.data, position)
                after = position + header.size_bytes
                if after > len(self.data):
                    return None
                if at is None and header.last_offset >= offset:
                    at = position
                    if not self.whole_batches or at + size >= len(self.data):
                        return self.data[at : max(at + size, after)]
                if at is not None and after > at + size:
                    end = position if position > at else after
                position = after
        except DecodeError:
            return None
        return None if at is None else self.data[at:end]
