"""Members of one group, each with partitions of its own: old ones, on ZooKeeper, and new ones.

A member notes each record that it processes, and commits when it has processed some. It ends as a
process that is killed does: what it has processed since its last commit isn't committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import TopicPartition
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer

COMMIT_EVERY = 7
_POLL_MS = 100


class Processed:
    """The offsets of each partition in the order in which they were processed."""

    def __init__(self, partitions: int) -> None:
        self.offsets: dict[int, list[int]] = {number: [] for number in range(partitions)}

    def reached(self, offset: int) -> bool:
        """Whether each partition was processed up to there."""
        return all(offset - 1 in offsets for offsets in self.offsets.values())

    def skipped(self) -> list[str]:
        """Where somebody went on behind a record that nobody had processed."""
        found = []
        for number, offsets in self.offsets.items():
            furthest = -1
            for offset in offsets:
                if offset > furthest + 1:
                    found.append(f"partition {number}: {offset} came after {furthest}")
                furthest = max(furthest, offset)
        return found

    def repeated(self, partition: int) -> int:
        """How many records were processed again."""
        offsets = self.offsets[partition]
        return len(offsets) - len(set(offsets))


class _Member:
    """A thread that reads its partitions until `kill`."""

    def __init__(
        self, group: str, topic: str, partitions: Sequence[int], processed: Processed
    ) -> None:
        self.partitions = partitions
        self.failure: BaseException | None = None
        self._group = group
        self._topic = topic
        self._processed = processed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Ends it without a commit; raises what it failed with."""
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # `kill` raises it
            self.failure = error

    def _run(self) -> None:
        raise NotImplementedError

    def _process(self, partition: int, offset: int) -> bool:
        """Notes a record; whether it is time to commit the partition."""
        self._processed.offsets[partition].append(offset)
        return (offset + 1) % COMMIT_EVERY == 0


class OldMember(_Member):
    """As consumers were before Kafka 0.9: members, owners and offsets are in ZooKeeper."""

    def __init__(
        self,
        zookeeper: str,
        bootstrap: str,
        group: str,
        topic: str,
        partitions: Sequence[int],
        processed: Processed,
    ) -> None:
        retry = {"max_tries": -1, "max_delay": 0.1}
        self._zookeeper = KazooClient(
            zookeeper, timeout=10, connection_retry=retry, command_retry=retry
        )
        self._bootstrap = bootstrap
        super().__init__(group, topic, partitions, processed)

    def _run(self) -> None:
        self._zookeeper.start(30)
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "none of theirs"}
        consumer = StockConsumer({**settings, "enable.auto.commit": False})
        try:
            self._register()
            starts = [TopicPartition(self._topic, p, self._offset(p)) for p in self.partitions]
            consumer.assign(starts)
            while not self._stop.is_set():
                record = consumer.poll(_POLL_MS / 1000)
                if record is None:
                    continue
                assert record.error() is None, record.error()
                if self._process(record.partition(), record.offset()):
                    self._commit(record.partition(), record.offset() + 1)
        finally:
            consumer.close()
            self._zookeeper.stop()
            self._zookeeper.close()

    def _register(self) -> None:
        root = f"/consumers/{self._group}"
        name = f"host-{min(self.partitions)}"
        self._hold(f"{root}/ids/{name}", b"{}")
        for number in self.partitions:
            self._hold(f"{root}/owners/{self._topic}/{number}", name.encode())

    def _hold(self, path: str, content: bytes) -> None:
        """Also where the one before had it, and its session isn't over, as ZooKeeper was killed."""
        with contextlib.suppress(NoNodeError):
            self._zookeeper.delete(path)
        self._zookeeper.create(path, content, ephemeral=True, makepath=True)

    def _node(self, partition: int) -> str:
        return f"/consumers/{self._group}/offsets/{self._topic}/{partition}"

    def _offset(self, partition: int) -> int:
        if self._zookeeper.exists(self._node(partition)) is None:
            return 0
        return int(self._zookeeper.get(self._node(partition))[0])

    def _commit(self, partition: int, offset: int) -> None:
        self._zookeeper.retry(self._write, self._node(partition), b"%d" % offset)

    def _write(self, node: str, value: bytes) -> None:
        if self._zookeeper.exists(node) is None:
            self._zookeeper.create(node, value, makepath=True)
        else:
            self._zookeeper.set(node, value)


class NewMember(_Member):
    """A consumer of `kraftpy.client` with partitions of its own and offsets at the brokers."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        partitions: Sequence[int],
        processed: Processed,
    ) -> None:
        self._bootstrap = bootstrap
        super().__init__(group, topic, partitions, processed)

    def _run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        async with (
            Cluster(self._bootstrap) as cluster,
            Consumer(
                cluster,
                group_id=self._group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            ) as consumer,
        ):
            consumer.assign([(self._topic, number) for number in self.partitions])
            while not self._stop.is_set():
                for record in await consumer.poll(_POLL_MS):
                    if self._process(record.partition, record.offset):
                        name = (self._topic, record.partition)
                        await consumer.commit({name: record.offset + 1})


def kill_all(members: Iterable[_Member]) -> None:
    for member in members:
        member.kill()
