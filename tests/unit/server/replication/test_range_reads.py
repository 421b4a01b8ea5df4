"""What reads of slices remember of a log: each batch once for all who share it, and no batch that
is no longer there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.protocol.key_hash import HASH_MAX, key_hash
from kraftpy.protocol.key_index import KeyRanges
from kraftpy.protocol.record_batch import RECORD_BATCH_OVERHEAD
from kraftpy.protocol.records import build_batch, iter_records, split_batches
from kraftpy.server.replication.opening import BatchOpener
from kraftpy.server.replication.range_reads import RangeRead, RangeReads
from kraftpy.storage.log import Log
from kraftpy.storage.segment import FileSlice
from tests.unit.storage.support import TOPIC_ID, Store, append

HALF = HASH_MAX // 2
LOW: KeyRanges = ((0, HALF),)
HIGH: KeyRanges = ((HALF + 1, HASH_MAX),)
RECORDS = 20


class Shared:
    """A partition, read as members of a group read it."""

    def __init__(self, log: Log) -> None:
        self.reads = RangeReads(BrokerConfig(), cast("BatchOpener", None))
        self.partition: Any = SimpleNamespace(
            topic_id=TOPIC_ID, index=0, log=log, config=TopicConfig()
        )

    def read(self, ranges: KeyRanges, offset: int = 0) -> set[tuple[int, bytes]]:
        """The offsets and values that come."""
        read = RangeRead(ranges, offset, 1 << 20)
        going = self.reads.go_on(
            read, self.partition, 1 << 60, min_one=True, until_s=perf_counter() + 60
        )
        asyncio.run(going)
        assert read.offset == self.partition.log.log_end_offset
        data = b"".join(
            piece.read() if isinstance(piece, FileSlice) else bytes(piece) for piece in read.records
        )
        return {
            (record.offset, cast("bytes", record.value))
            for position, header in split_batches(data)
            for record in iter_records(data[position : position + header.batch_length + 12])
        }


def add(log: Log, value: bytes) -> None:
    append(log, bytearray(build_batch([(5, b"%d" % n, value, []) for n in range(RECORDS)])))


def expected(values: list[bytes], ranges: KeyRanges) -> set[tuple[int, bytes]]:
    ((low, high),) = ranges
    return {
        (RECORDS * number + n, value)
        for number, value in enumerate(values)
        for n in range(RECORDS)
        if low <= key_hash(b"%d" % n, 0) <= high
    }


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Store(tmp_path / "data", TopicConfig()).log()


def test_who_reads_second_reads_one_header(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"%d" % number for number in range(6)]
    for value in values:
        add(log, value)
    shared, sizes = Shared(log), list[int]()
    read_part = FileSlice.read_part

    def counted(piece: FileSlice, at: int, size: int) -> bytes:
        sizes.append(size)
        return read_part(piece, at, size)

    monkeypatch.setattr(FileSlice, "read_part", counted)
    assert shared.read(LOW) == expected(values, LOW)
    assert sizes.count(RECORD_BATCH_OVERHEAD) == 6
    sizes.clear()
    assert shared.read(HIGH) == expected(values, HIGH)
    assert sizes == [RECORD_BATCH_OVERHEAD]


def test_a_log_that_was_cut_and_grew_again_is_read_as_it_is(log: Log) -> None:
    """What is there now is as long, and at the same offsets and places."""
    for value in (b"a", b"b", b"c"):
        add(log, value)
    shared = Shared(log)
    assert shared.read(LOW) == expected([b"a", b"b", b"c"], LOW)
    log.truncate_to(RECORDS)
    add(log, b"x")
    add(log, b"y")
    assert shared.read(HIGH) == expected([b"a", b"x", b"y"], HIGH)
    assert shared.read(LOW) == expected([b"a", b"x", b"y"], LOW)


def test_two_slices_of_one_member(log: Log) -> None:
    add(log, b"v")
    bounds = [0, HASH_MAX // 8, HASH_MAX // 4, HASH_MAX // 2]
    pair: KeyRanges = ((bounds[0], bounds[1]), (bounds[2] + 1, bounds[3]))
    both = expected([b"v"], pair[:1]) | expected([b"v"], pair[1:])
    assert 0 < len(both) < 0.75 * RECORDS
    assert Shared(log).read(pair) == both
