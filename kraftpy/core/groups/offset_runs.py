"""Offset records read and written many at a time: loading a log is little else.

The records of a commit differ in nothing but partition, offset, leader epoch and time where they
are of one group and topic, and so have one layout. Rule: what doesn't fit that is left to
`decode_record`, which also says what is wrong with it, and `encode_record`; nothing is guessed
here, and what is written is what they would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from kraftpy.core.groups.records import (
    NO_TIMESTAMP,
    PLAIN_OFFSET_VALUE,
    CoordinatorRecord,
    OffsetRecord,
    decode_key_prefix,
    offset_key_prefix,
)
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import (
    build_batch_of_data,
    encode_varint,
    read_varint,
    read_varlong,
)

_INT32_BYTES = 4
_KEY_VERSIONS = (b"\0\0", b"\0\1")
# The length of a value without metadata as a varint, and the value's version.
_VALUE_START = bytes([2 * PLAIN_OFFSET_VALUE.size]) + b"\0\3"
_NO_METADATA = b"\0\0"
_NO_HEADERS = 0
# From the key's last field on: partition; value; headers.
_TAIL = f"i{len(_VALUE_START)}sqi{len(_NO_METADATA)}sqB"
_RECORD_TAIL = Struct(">" + _TAIL)
# Attributes and timestamp delta, both 0.
_RECORD_START = b"\0\0"


class OffsetRun(NamedTuple):
    """Offsets without metadata and expiry times, of one group and topic; columns of one length."""

    group_id: str
    topic: str
    partitions: list[int]
    offsets: list[int]
    leader_epochs: list[int]
    commit_timestamps_ms: list[int]


def read_offset_runs(data: bytes, count: int) -> list[OffsetRun] | None:
    """The `count` records that `data`, the uncompressed end of a batch, consists of.

    None if any of them is something else than an offset without metadata and expiry time.
    """
    runs = []
    position = 0
    try:
        while count:
            run, position = _read_run(data, position, count)
            if run is None:
                return None
            runs.append(run)
            count -= len(run.partitions)
    except (DecodeError, IndexError):
        return None
    return runs if position == len(data) else None


def _read_run(data: bytes, position: int, most: int) -> tuple[OffsetRun | None, int]:
    """As many records as have the first one's layout, group and topic, and where they end."""
    length, start = read_varint(data, position)
    end = start + length
    _, delta_start = read_varlong(data, start + 1)
    _, delta_end = read_varint(data, delta_start)
    key_length, key_start = read_varint(data, delta_end)
    key_end = key_start + key_length
    value_end = key_end + 1 + PLAIN_OFFSET_VALUE.size
    if (
        value_end + 1 != end
        or end > len(data)
        or key_length < _INT32_BYTES
        or data[key_start : key_start + 2] not in _KEY_VERSIONS
        or data[key_end : key_end + len(_VALUE_START)] != _VALUE_START
    ):
        return None, position
    prefix_end = key_end - _INT32_BYTES
    layout = _layout(delta_start - position, delta_end - delta_start, prefix_end - delta_end)
    size = end - position
    count = min(most, (len(data) - position) // size)
    head, prefix = data[position:delta_start], data[delta_end:prefix_end]
    partitions: list[int] = []
    offsets: list[int] = []
    epochs: list[int] = []
    times_ms: list[int] = []
    for (
        record_head,
        record_prefix,
        partition,
        value_start,
        offset,
        epoch,
        metadata,
        time_ms,
        headers,
    ) in layout.iter_unpack(memoryview(data)[position : position + count * size]):
        if (
            record_prefix != prefix
            or record_head != head
            or value_start != _VALUE_START
            or metadata != _NO_METADATA
            or headers != _NO_HEADERS
            or partition < 0
        ):
            break
        partitions.append(partition)
        offsets.append(offset)
        epochs.append(epoch)
        times_ms.append(time_ms)
    if not partitions:
        return None, position
    group_id, topic = decode_key_prefix(data[key_start:prefix_end])
    run = OffsetRun(group_id, topic, partitions, offsets, epochs, times_ms)
    return run, position + len(partitions) * size


@lru_cache(maxsize=1024)
def _layout(head_bytes: int, delta_bytes: int, prefix_bytes: int) -> Struct:
    """A record: up to its offset delta, from there to the key's partition, and the rest."""
    return Struct(f">{head_bytes}s{delta_bytes}x{prefix_bytes}s{_TAIL}")


def build_offset_batch(records: Sequence[CoordinatorRecord], timestamp_ms: int) -> bytes | None:
    """The batch of these records, at least one, all with one timestamp.

    None if any of them is something else than an offset without metadata and expiry time.
    """
    parts: list[bytes] = []
    last_group_id = last_topic = None
    delta_bytes = 0
    head = key = b""
    pack = _RECORD_TAIL.pack
    for number, record in enumerate(records):
        if not isinstance(record, OffsetRecord):
            return None
        group_id, topic, partition, committed = record
        if committed is None:
            return None
        offset, epoch, metadata, time_ms, expire_ms = committed
        if metadata or expire_ms != NO_TIMESTAMP:
            return None
        delta = encode_varint(number)
        if topic is not last_topic or group_id is not last_group_id or len(delta) != delta_bytes:
            last_group_id, last_topic, delta_bytes = group_id, topic, len(delta)
            prefix = offset_key_prefix(group_id, topic)
            key = encode_varint(len(prefix) + _INT32_BYTES) + prefix
            size_bytes = len(_RECORD_START) + delta_bytes + len(key) + _RECORD_TAIL.size
            head = encode_varint(size_bytes) + _RECORD_START
        tail = pack(partition, _VALUE_START, offset, epoch, _NO_METADATA, time_ms, _NO_HEADERS)
        parts += (head, delta, key, tail)
    return build_batch_of_data(b"".join(parts), len(records), timestamp_ms)
