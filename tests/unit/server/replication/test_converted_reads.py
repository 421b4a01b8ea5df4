"""What reads of consumers from before Kafka 0.11 hold, and how long they hold up the loop."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import pytest

from kraftpy.core.config import TopicConfig
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.legacy import iter_messages
from kraftpy.protocol.records import EndTxnMarker, build_batch, build_end_txn_marker
from kraftpy.server.replication import converted_reads
from kraftpy.server.replication.converted_reads import ConvertedRead, ConvertedReads
from kraftpy.storage.readable_log import ReadResult


class Slice:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_part(self, at: int, size: int) -> bytes:
        return self._data[at : at + size]


class Numbers:
    downconverted_records = 0


class Log:
    """All that there is at a read, as one slice."""

    def __init__(self, batches: list[bytes], ends: list[int]) -> None:
        self._batches, self._ends = batches, ends

    def read(self, offset: int, max_bytes: int, *, upper_offset: int) -> ReadResult:
        ends = [end for end in self._ends if offset < end <= upper_offset]
        batches = zip(self._batches, self._ends, strict=True)
        data = b"".join(batch for batch, end in batches if end in ends)
        found: Any = [Slice(data)] if data else []
        return ReadResult(found, len(data), max([offset, *ends]), 0)


class Partition:
    def __init__(self, batches: list[bytes], ends: list[int]) -> None:
        self.log = Log(batches, ends)
        self.high_watermark = ends[-1]
        self.numbers = Numbers()
        self.config = TopicConfig()


def filled(batches: int, records: int, value: bytes = b"v") -> Any:
    content = [(5, b"k", value, [])] * records
    return Partition(
        [build_batch(content, base_offset=n * records) for n in range(batches)],
        [(n + 1) * records for n in range(batches)],
    )


def offsets(read: ConvertedRead) -> list[int]:
    return [record.offset for messages in read.messages for record in iter_messages(messages)]


NOBODY: Any = None


async def test_301_what_isnt_sent_yet_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted_reads, "HELD_MAX_BYTES", 3000)
    reads, partition = ConvertedReads(NOBODY), filled(10, 10, b"v" * 65)

    async def taken(*, min_one: bool) -> ConvertedRead:
        read = ConvertedRead(1, 0, 1 << 20)
        await reads.go_on(read, partition, min_one=min_one)
        assert read.full
        return read

    first = await taken(min_one=True)
    assert first.size_bytes == 3000
    assert (await taken(min_one=False)).size_bytes == 0
    one = await taken(min_one=True)
    assert one.size_bytes == 1000
    reads.release(first.size_bytes + one.size_bytes)
    assert (await taken(min_one=True)).size_bytes == 3000


async def test_301_the_loop_is_others_every_few_milliseconds() -> None:
    reads, partition = ConvertedReads(NOBODY), filled(200, 200)
    done = asyncio.gather(
        *(reads.go_on(ConvertedRead(0, 0, 64 << 20), partition, min_one=True) for _ in range(2))
    )
    turns, longest_s, before_s = 0, 0.0, perf_counter()
    while not done.done():
        await asyncio.sleep(0)
        now_s = perf_counter()
        turns, longest_s, before_s = turns + 1, max(longest_s, now_s - before_s), now_s
    await done
    assert turns > 40  # two thousandths of a second each, and a batch at most behind that
    assert longest_s < 0.5


async def test_301_any_number_of_markers_is_passed() -> None:
    markers = [
        build_end_txn_marker(
            EndTxnMarker(True, 1), producer_id=1, producer_epoch=0, timestamp_ms=1, base_offset=n
        )
        for n in range(300)
    ]
    behind = build_batch([(1, None, b"v", [])], base_offset=300)
    partition: Any = Partition([*markers, behind], list(range(1, 302)))
    read = ConvertedRead(1, 0, 10)
    reads = ConvertedReads(NOBODY)
    partition.high_watermark = 300
    await reads.go_on(read, partition, min_one=True)
    assert (read.offset, read.full, offsets(read)) == (300, False, [])
    partition.high_watermark = 301
    await reads.go_on(read, partition, min_one=True)
    assert offsets(read) == [300]


async def test_301_a_damaged_batch_is_never_given_a_new_checksum() -> None:
    partition = filled(2, 3)
    damaged = bytearray(partition.log._batches[1])
    damaged[-1] ^= 1
    partition.log._batches[1] = bytes(damaged)
    reads, read = ConvertedReads(NOBODY), ConvertedRead(1, 0, 1 << 20)
    await reads.go_on(read, partition, min_one=True)
    assert (offsets(read), read.full) == ([0, 1, 2], True)
    with pytest.raises(KafkaError) as caught:
        await reads.go_on(ConvertedRead(1, 3, 1 << 20), partition, min_one=True)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
