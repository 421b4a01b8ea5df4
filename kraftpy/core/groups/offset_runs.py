"""Offset records kept, read and written many at a time: commits and loading a log are little else.

The records of a commit differ in nothing but partition, offset, leader epoch and time where they
are of one group and topic, and so have one layout. Rule: what doesn't fit that is left to
`decode_record`, which also says what is wrong with it, and `encode_record`; nothing is guessed
here, and what is written is what they would give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat, takewhile
from struct import Struct
from typing import overload

from kraftpy.core.groups.records import (
    NO_TIMESTAMP,
    PLAIN_OFFSET_VALUE,
    CommittedOffset,
    CoordinatorRecord,
    OffsetRecord,
    decode_key_prefix,
    offset_key_prefix,
)
from kraftpy.frozen import NamedTuple
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
_TAIL_BYTES = Struct(">" + _TAIL).size
# Offset deltas that are kept together: a client chooses how many partitions it commits.
_DELTAS_MAX = 1000
# Attributes and timestamp delta, both 0.
_RECORD_START = b"\0\0"


class OffsetRun(NamedTuple):
    """Offsets without metadata and expiry times, of one group and topic; columns of one length."""

    group_id: str
    topic: str
    partitions: Sequence[int]
    offsets: Sequence[int]
    leader_epochs: Sequence[int]
    commit_timestamps_ms: Sequence[int]


class OffsetRuns(Sequence[OffsetRecord]):
    """The records of some runs, one run after the other; each is made when it is looked at."""

    __slots__ = ("runs",)

    def __init__(self, runs: Sequence[OffsetRun]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return sum(len(run.partitions) for run in self.runs)

    @overload
    def __getitem__(self, index: int) -> OffsetRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OffsetRecord]: ...
    def __getitem__(self, index: int | slice) -> OffsetRecord | Sequence[OffsetRecord]:
        return list(self)[index]

    def __iter__(self) -> Iterator[OffsetRecord]:
        for group_id, topic, *columns in self.runs:
            for partition, offset, epoch, time_ms in zip(*columns, strict=True):
                committed = CommittedOffset(offset, epoch, "", time_ms, NO_TIMESTAMP)
                yield OffsetRecord(group_id, topic, partition, committed)


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

    None if any of them is something else than an offset without metadata and expiry time. Raises
    struct.error for a number that its field can't hold.
    """
    runs = records.runs if isinstance(records, OffsetRuns) else _runs_of(records)
    if runs is None:
        return None
    parts: list[bytes] = []
    for run in runs:
        _write_run(run, parts)
    return build_batch_of_data(b"".join(parts), len(parts), timestamp_ms)


def _runs_of(records: Sequence[CoordinatorRecord]) -> list[OffsetRun] | None:
    runs: list[OffsetRun] = []
    columns: tuple[list[int], ...] = ()
    last_group_id = last_topic = None
    for record in records:
        if not isinstance(record, OffsetRecord):
            return None
        group_id, topic, partition, committed = record
        if committed is None or committed.metadata or committed.expire_timestamp_ms != NO_TIMESTAMP:
            return None
        if topic is not last_topic or group_id is not last_group_id:
            last_group_id, last_topic = group_id, topic
            columns = [], [], [], []
            runs.append(OffsetRun(group_id, topic, *columns))
        offset, epoch, _, time_ms, _ = committed
        for column, value in zip(columns, (partition, offset, epoch, time_ms), strict=True):
            column.append(value)
    return runs


def _write_run(run: OffsetRun, parts: list[bytes]) -> None:
    """Adds a run's records to those before it in their batch, one part each."""
    group_id, topic, *columns = run
    count = len(run.partitions)
    done = 0
    while done < count:
        deltas = _deltas(len(parts), min(count - done, _DELTAS_MAX))
        pack, head, key = _start(group_id, topic, len(deltas[0]))
        if len(deltas) < count:
            part = slice(done, done + len(deltas))
            partitions, offsets, epochs, times_ms = (each[part] for each in columns)
        else:
            partitions, offsets, epochs, times_ms = columns
        parts += map(
            pack,
            repeat(head),
            deltas,
            repeat(key),
            partitions,
            repeat(_VALUE_START),
            offsets,
            epochs,
            repeat(_NO_METADATA),
            times_ms,
            repeat(_NO_HEADERS),
        )
        done += len(deltas)


@lru_cache(maxsize=1024)
def _start(
    group_id: str, topic: str, delta_bytes: int
) -> tuple[Callable[..., bytes], bytes, bytes]:
    """What writes a record, what stands before its offset delta, and its key but the partition."""
    prefix = offset_key_prefix(group_id, topic)
    key = encode_varint(len(prefix) + _INT32_BYTES) + prefix
    size_bytes = len(_RECORD_START) + delta_bytes + len(key) + _TAIL_BYTES
    head = encode_varint(size_bytes) + _RECORD_START
    return Struct(f">{len(head)}s{delta_bytes}s{len(key)}s{_TAIL}").pack, head, key


@lru_cache(maxsize=256)
def _deltas(first: int, most: int) -> list[bytes]:
    """Offset deltas from `first` on as varints, as many as are of one size, up to `most`."""
    size = len(encode_varint(first))
    deltas = map(encode_varint, range(first, first + most))
    return list(takewhile(lambda delta: len(delta) == size, deltas))
