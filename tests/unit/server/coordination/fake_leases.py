"""As much of a broker as the leases of share groups know: a log in a file, and who keeps state."""

from __future__ import annotations

import asyncio
import tempfile
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.leases import Acknowledgement, Demand, StateBatch
from kraftpy.core.leases.state import StateAnswer
from kraftpy.core.producers import CompletedTransaction
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.records import build_batch, read_batch_header
from kraftpy.server.coordination.leases import Leases
from kraftpy.server.coordination.led_table import LedTable
from kraftpy.server.replication.waiters import FetchWaiters
from kraftpy.storage.readable_log import ReadResult
from kraftpy.storage.segment import FileSlice

TOPIC_ID = bytes(range(16))
GROUP = "g"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class FakeLog:
    """Batches in one file; `batches` are their (first, last, position)."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the log
        weakref.finalize(self, self._file.close)
        self._open = SimpleNamespace(fd=self._file.fileno(), path="log")
        self.batches: list[tuple[int, int, int]] = []
        self.size = 0
        self.log_start_offset = self.log_end_offset = 0
        self.aborted: list[CompletedTransaction] = []
        self.start_watchers: dict[Callable[[], None], None] = {}
        self.reads = 0

    @property
    def has_aborted(self) -> bool:
        return bool(self.aborted)

    def append(self, batch: bytes | bytearray) -> None:
        data = bytearray(batch)
        header = read_batch_header(data)
        data[:8] = self.log_end_offset.to_bytes(8, "big")
        last = self.log_end_offset + header.last_offset_delta
        self.batches.append((self.log_end_offset, last, self.size))
        self._file.seek(self.size)
        self._file.write(data)
        self._file.flush()
        self.size += len(data)
        self.log_end_offset = last + 1

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int, min_one: bool = True
    ) -> ReadResult:
        self.reads += 1
        found = [each for each in self.batches if each[1] >= offset and each[1] < upper_offset]
        if not found:
            return ReadResult([], 0, offset, self.log_start_offset)
        ends = [each[2] for each in self.batches[1:]] + [self.size]
        start, end = found[0][2], ends[self.batches.index(found[-1])]
        piece: Any = FileSlice(self._open, start, end - start)  # type: ignore[arg-type]
        return ReadResult([piece], piece.size, found[-1][1] + 1, self.log_start_offset)

    def aborted_transactions(self, start: int, end: int) -> list[CompletedTransaction]:
        return self.aborted


class FakePartition:
    """A partition that is led here in `leader_epoch`, with all its log committed."""

    def __init__(self, index: int = 0) -> None:
        self.topic_id, self.index = TOPIC_ID, index
        self.log = FakeLog()
        self.leadership: object | None = object()
        self.leader_epoch = 3
        self.closed = False
        self.stable_offset: int | None = None
        self.numbers = SimpleNamespace(reads=0)
        self.fetches: FetchWaiters[Any] = FetchWaiters()

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.stable_offset is None else self.stable_offset

    def check_settled(self) -> None:
        pass

    def append(self, count: int, **options: Any) -> None:
        """One batch of so many records."""
        self.log.append(build_batch([(1, None, b"v", [])] * count, **options))
        self.fetches.wake(self)

    def end(self) -> None:
        """Somebody else leads it."""
        self.leadership, self.leader_epoch = None, self.leader_epoch + 1
        self.fetches.wake(self)


class FakePersister:
    """Keeps what is written; `says` are the answers to the next writes, None for one that hangs."""

    def __init__(self) -> None:
        self.says: list[E | asyncio.Future[E]] = []
        self.writes: list[Any] = []
        self.reads: list[Any] = []
        self.state = StateAnswer(E.NONE, 0, -1, ())

    async def read(self, *key: Any, leader_epoch: int) -> StateAnswer:
        self.reads.append((key, leader_epoch))
        await asyncio.sleep(0)
        return self.state

    async def write(self, *key: Any, **write: Any) -> E:
        self.writes.append(SimpleNamespace(**write))
        await asyncio.sleep(0)
        said = self.says.pop(0) if self.says else E.NONE
        return await said if isinstance(said, asyncio.Future) else said

    @property
    def batches(self) -> list[StateBatch]:
        """Of all writes."""
        return [each for write in self.writes for each in write.batches]


class FakeBroker:
    """A broker whose clock stands; `configs` are those of all groups."""

    def __init__(self, **settings: str) -> None:
        self.config = BrokerConfig.from_properties(
            {
                "node.id": "1",
                "log.dirs": "/tmp/unused",
                **{f"group.share.{key.replace('_', '.')}": settings[key] for key in settings},
            }
        )
        self.loop = asyncio.get_running_loop()
        self.ahead_ms = 0
        self.share_persister: Any = FakePersister()
        self.opener: Any = None
        self.configs: dict[str, str] = {"share.auto.offset.reset": "earliest"}
        self.metadata: Any = SimpleNamespace(config=lambda kind, name: self.configs)
        self.leases = Leases(self)

    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return int(self.loop.time() * 1000) + self.ahead_ms


class Group:
    """A group's table of a partition, and its members."""

    def __init__(self, broker: FakeBroker, *counts: int) -> None:
        self.broker = broker
        self.partition = FakePartition()
        for count in counts:
            self.partition.append(count)

    @property
    def table(self) -> LedTable:
        led: Any = self.partition
        return self.broker.leases.table(GROUP, led)

    async def opened(self) -> LedTable:
        table = self.table
        await until(lambda: table.is_open)
        return table

    def begin(self, member: str = "ann", connection: str = "1") -> Any:
        session = self.broker.leases.begin(GROUP, member, [(TOPIC_ID, 0)], connection)
        session.leased_from[self.table] = None
        return session

    def deal(self, member: str = "ann", most: int = 500) -> list[tuple[int, int, int]]:
        dealt = self.table.deal(member, Demand(most, 0, False), 1 << 20, min_one=True)
        return [tuple(each) for each in dealt.acquired]  # type: ignore[misc]

    def say(self, first: int, last: int, kind: int, member: str = "ann") -> Any:
        return self.table.acknowledge(member, [Acknowledgement(first, last, [kind])])


async def until(condition: Any) -> None:
    """Returns when it holds; the loop turns meanwhile."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)
