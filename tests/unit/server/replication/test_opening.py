"""How many batches of logs are in memory for the process that opens them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.config import BrokerConfig, TopicConfig
from kraftpy.protocol.key_hash import HASH_MAX
from kraftpy.protocol.key_index import KeyIndex, KeyRanges, key_index
from kraftpy.protocol.record_batch import RECORD_BATCH_OVERHEAD, read_batch_header
from kraftpy.protocol.records import build_batch
from kraftpy.server.replication.converted_reads import ConvertedRead, ConvertedReads
from kraftpy.server.replication.opening import READ_MAX, BatchOpener
from kraftpy.server.replication.range_reads import RangeRead, RangeReads
from kraftpy.server.replication.timestamp_search import finish_search
from kraftpy.storage.log import Log
from tests.unit.storage.support import TOPIC_ID, Store, append
from tests.waiting import until

RECORDS = 12_000
ALL = 1 << 60
HALF: KeyRanges = ((0, HASH_MAX // 2),)

Read = Callable[[], Awaitable[Any]]


class SlowOpener(BatchOpener):
    """Opens nothing before it is told to, but indexes at once."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.opens = asyncio.Event()
        self.batches = 0

    async def _wait(self) -> None:
        self.batches += 1
        await self.opens.wait()
        self.batches -= 1

    async def key_index(self, batch: bytes, *_: int) -> tuple[KeyIndex, bytes]:
        return key_index(read_batch_header(batch), batch[RECORD_BATCH_OVERHEAD:]), b""

    async def cut(self, batch: bytes, *_: Any) -> bytes:
        await self._wait()
        return batch

    async def downconvert(self, batch: bytes, *_: int) -> tuple[bytes, int]:
        await self._wait()
        return b"x", 1

    async def find_timestamp(self, batch: bytes, *_: int) -> tuple[int, int] | None:
        await self._wait()
        return 5, 0


def slices(opener: SlowOpener, partition: Any) -> Read:
    reads = RangeReads(BrokerConfig(), opener)

    def read() -> Awaitable[None]:
        until_s = perf_counter() + 60
        found = RangeRead(HALF, 0, 1 << 20)
        return reads.go_on(found, partition, ALL, min_one=True, until_s=until_s)

    return read


def old_fetches(opener: SlowOpener, partition: Any) -> Read:
    reads = ConvertedReads(opener)
    return lambda: reads.go_on(ConvertedRead(1, 0, 1 << 20), partition, min_one=True)


def searches(opener: SlowOpener, partition: Any) -> Read:
    return lambda: finish_search(partition.log.search_timestamp(5), partition, opener)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Store(tmp_path / "data", TopicConfig()).log()
    append(log, bytearray(build_batch([(5, b"%d" % n, b"", []) for n in range(RECORDS)])))
    return log


@pytest.mark.parametrize("kind", [slices, old_fetches, searches])
async def test_few_of_the_batches_that_readers_wait_for_are_in_memory(
    log: Log, kind: Callable[[SlowOpener, Any], Read]
) -> None:
    """Those of readers that have left are there until they're done."""
    opener = SlowOpener()
    partition = SimpleNamespace(
        topic_id=TOPIC_ID,
        index=0,
        log=log,
        config=TopicConfig(),
        high_watermark=RECORDS,
        numbers=SimpleNamespace(downconverted_records=0),
    )
    read = kind(opener, partition)
    left = [asyncio.ensure_future(read()) for _ in range(READ_MAX + 3)]
    await until(lambda: opener.batches >= READ_MAX)
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    readers = [asyncio.ensure_future(read()) for _ in range(3 * READ_MAX)]
    for _ in range(100):  # turns of the loop
        await asyncio.sleep(0)
    assert opener.batches == READ_MAX
    opener.opens.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*readers)
    assert not opener.batches
