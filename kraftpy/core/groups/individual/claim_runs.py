"""Records of claims read many at a time: loading their log is little else.

Rules: a record that is anything else than a claim as it's written here, and is no transaction's, is
left to `decode_record`, with its whole batch; nothing is guessed. Claims of different slices say
nothing of each other, so those of each slice are kept together, in the log's order.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from kraftpy.core.groups.individual.coverage import ClaimRow
from kraftpy.core.groups.individual.plan import Key
from kraftpy.core.groups.individual.records import (
    CLAIM_VALUE,
    ClaimRecord,
    ClaimState,
    decode_key_prefix,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import BatchHeader, read_varint, read_varlong

# The slice and the first offset.
_KEY_END = Struct(">qqq")
_VALUE_BYTES = CLAIM_VALUE.size + 1
# The value's length as a varint, and its version.
_VALUE_START = bytes([2 * _VALUE_BYTES]) + b"\0\0"
_TAIL = f"qqq{len(_VALUE_START)}s16sqiqBB"
_TAIL_BYTES = Struct(">" + _TAIL).size
_NO_TAGS = _NO_HEADERS = 0
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class ClaimRun(NamedTuple):
    """Claims of one slice, in the log's order."""

    key: Key
    low: int
    high: int
    rows: list[ClaimRow]

    def records(self) -> list[ClaimRecord]:
        """The same, one by one."""
        start = *self.key, self.low, self.high
        return [
            ClaimRecord(*start, first, ClaimState(topic_id, last, epoch, time_ms))
            for first, last, epoch, topic_id, time_ms in self.rows
        ]


class ClaimRuns:
    """Collects the claims of batches until they are taken."""

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, int, int], list[ClaimRow]] = {}
        self._topic_ids: dict[bytes, bytes] = {}

    def take(self) -> list[ClaimRun]:
        """What was collected since the last time."""
        slices, self._rows, self._topic_ids = self._rows, {}, {}
        return [
            ClaimRun(decode_key_prefix(_key_of(prefix)), low, high, rows)
            for (prefix, low, high), rows in slices.items()
        ]

    def read(self, header: BatchHeader, data: bytes) -> bool:
        """Takes in the records that `data`, the uncompressed end of this batch, consists of.

        False if any of them is something else than a claim, or another topic's than those before;
        then none is taken in.
        """
        found: list[tuple[tuple[bytes, int, int], ClaimRow]] = []
        position, offset_delta = 0, -1
        try:
            while len(found) < header.records_count:
                taken = _read_alike(header, data, position, offset_delta, found)
                if taken is None:
                    return False
                position, offset_delta = taken
        except (DecodeError, IndexError):
            return False
        if position != len(data) or offset_delta > header.last_offset_delta:
            return False
        topic_ids = self._topic_ids
        for (prefix, _, _), (_, _, _, topic_id, _) in found:
            if topic_ids.setdefault(prefix, topic_id) != topic_id:
                return False
        slices = self._rows
        for key, row in found:
            rows = slices.get(key)
            if rows is None:
                slices[key] = [row]
            else:
                rows.append(row)
        return True


def _read_alike(
    header: BatchHeader,
    data: bytes,
    position: int,
    offset_delta: int,
    found: list[tuple[tuple[bytes, int, int], ClaimRow]],
) -> tuple[int, int] | None:
    """Takes as many records as have the first one's layout; None if none does.

    `offset_delta` is that of the record before. Returned are where they end, and the last one's.
    """
    length, start = read_varint(data, position)
    end = start + length
    time_delta_ms, delta_start = read_varlong(data, start + 1)
    _, delta_end = read_varint(data, delta_start)
    prefix_end = end - _TAIL_BYTES
    if end > len(data) or prefix_end <= delta_end:
        return None
    if not _INT64_MIN <= header.base_timestamp + time_delta_ms <= _INT64_MAX:
        return None
    layout = _layout(delta_start - position, delta_end - delta_start, prefix_end - delta_end)
    size = end - position
    count = min(header.records_count - len(found), (len(data) - position) // size)
    head = data[position:delta_start]
    before = len(found)
    prefix = b""
    for (
        its_head,
        delta,
        its_prefix,
        low,
        high,
        first,
        value_start,
        topic_id,
        last,
        epoch,
        time_ms,
        tags,
        headers,
    ) in layout.iter_unpack(memoryview(data)[position : position + count * size]):
        before_delta, offset_delta = offset_delta, _offset_delta(delta)
        if (
            offset_delta <= before_delta
            or its_head != head
            or not 0 <= low <= high
            or not 0 <= first <= last
            or value_start != _VALUE_START
            or tags != _NO_TAGS
            or headers != _NO_HEADERS
        ):
            offset_delta = before_delta
            break
        if its_prefix != prefix:
            if not _is_prefix(its_prefix):
                offset_delta = before_delta
                break
            prefix = its_prefix
        found.append(((prefix, low, high), (first, last, epoch, topic_id, time_ms)))
    if len(found) == before:
        return None
    return position + (len(found) - before) * size, offset_delta


@lru_cache(maxsize=4096)
def _offset_delta(data: bytes) -> int:
    """What a varint says; -1 if it has another length, which would move what follows."""
    try:
        delta, end = read_varint(data, 0)
    except (DecodeError, IndexError):
        return -1
    return delta if end == len(data) else -1


@lru_cache(maxsize=1024)
def _layout(head_bytes: int, delta_bytes: int, prefix_bytes: int) -> Struct:
    """A record: up to its offset delta, that, from there to the key's slice, and the rest."""
    return Struct(f">{head_bytes}s{delta_bytes}s{prefix_bytes}s{_TAIL}")


@lru_cache(maxsize=1024)
def _is_prefix(prefix: bytes) -> bool:
    """Whether this is a key's length, and the key but its slice and first offset."""
    try:
        length, start = read_varint(prefix, 0)
        if length != len(prefix) - start + _KEY_END.size:
            return False
        decode_key_prefix(prefix[start:])
    except (DecodeError, IndexError):
        return False
    return True


def _key_of(prefix: bytes) -> bytes:
    return prefix[read_varint(prefix, 0)[1] :]
