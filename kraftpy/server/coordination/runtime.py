"""What every coordinator of this broker runs on: one machine per partition of its internal topic.

A coordinator is a machine in `core` and a subclass of `CoordinatorRuntime` that names its
operations through `write` and `read`. Kafka has one runtime, too (coordinator-common's
CoordinatorRuntime).

* A request becomes a call of its key's machine; what comes back is carried out by the partition
  (`partition`).
* A partition is loaded before it takes requests: COORDINATOR_LOAD_IN_PROGRESS until then
  (`loading`). Another leader epoch, of any of its logs, loads it again; of one that is beside the
  others, only that one is read again (`log_beside`).
* A coordinator may read along what it follows, so that it needn't when it leads (`warm`).
* One that has stopped takes on nothing more, though partitions are led here for a while yet.
* All partitions have one clock: the wall clock, and when it is set their deadlines move along.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from kraftpy.core.coordination import Effects, partition_for
from kraftpy.metrics.instruments import LOAD_BUCKETS, Histogram
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.internal_topic import InternalTopic, TopicHost
from kraftpy.server.coordination.loading import Loading, LoadProgress, Task
from kraftpy.server.coordination.log_beside import LogBeside
from kraftpy.server.coordination.partition import (
    CoordinatorLog,
    CoordinatorPartition,
    M,
    PartitionLog,
)
from kraftpy.server.coordination.turns import Turns
from kraftpy.server.coordination.warm import Warm
from kraftpy.server.network.prompt_future import PromptFuture

log = logging.getLogger(__name__)

READ_ALONG_INTERVAL_S = 1.0
_CLOCK_STEP_MS = 1_000
_SWEPT_TOGETHER = 200

T = TypeVar("T")
K = TypeVar("K")

# Gets the machine, the token by which to reply, and the time.
Operation = Callable[[M, asyncio.Future[T], int], Effects[Any]]


async def answer_of(found: T | asyncio.Future[T]) -> T:
    """What an operation has given, as soon as it's there."""
    return await found if isinstance(found, asyncio.Future) else found


class Host(TopicHost, Protocol):
    """What coordinators need of their broker."""

    @property
    def node_id(self) -> int: ...
    @property
    def replicas(self) -> PartitionLog: ...
    @property
    def avoided(self) -> frozenset[int]:
        """Brokers that clients aren't sent to."""

    def now_ms(self) -> int: ...


class CoordinatorRuntime(Generic[M]):
    """`name` is of the coordinator, for log lines; `topic` is made when somebody first needs it.

    `logs` are the partitioned logs, of most coordinators `topic` alone; a partition's machine is
    kept in the partitions of its number. `new_machine` makes one for this leader epoch (of the
    first log), by which other brokers may tell an old coordinator from a new one.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        topic: InternalTopic,
        logs: Sequence[CoordinatorLog[M]],
        new_machine: Callable[[int], M],
    ) -> None:
        self.logs = logs
        self.new_machine = new_machine
        self.loads = Histogram(LOAD_BUCKETS)
        self.clock_set_s = -math.inf
        """When the clock was last seen to have been set, in the loop's time."""
        self._host = host
        self._loop = host.loop
        self._name = name
        self._topic = topic
        self._partitions: dict[int, CoordinatorPartition[M]] = {}
        self._loading: dict[int, Loading[M]] = {}
        self._beside: dict[int, list[LogBeside[M]]] = {}
        self.timer_turns = Turns(host.loop)
        self._load_turns = Turns(host.loop)
        self._warm: dict[int, Warm[M]] = {}
        self._warm_turns = Turns(host.loop)
        self._upkeep: list[asyncio.Task[None]] = []
        self._stopped = False
        self._clock_offset_ms = host.now_ms() - host.loop.time() * 1000

    # -- what a coordinator may have of its own

    gathers = False
    """Whether the writes of a turn of the loop go into the log together."""

    @property
    def reads_along(self) -> bool:
        """Whether what this broker follows is read as well; of machines without a leader epoch."""
        return False

    @property
    def write_timeout_ms(self) -> int:
        """How long requests wait for a write."""
        raise NotImplementedError

    def contents(self, machine: M) -> str:
        """How much a machine has, in words."""
        raise NotImplementedError

    def prepare(self, machine: M) -> Awaitable[None] | None:
        """What has to be waited for before a machine whose logs have been read takes requests."""
        return None

    def after_load(self, machine: M) -> Iterable[Task[M]]:
        """What a machine is to do as soon as it takes requests."""
        return ()

    def tell_loaded(self, loading: Loading[M], machine: M) -> None:
        """A machine has been loaded and is about to take requests."""

    def tell_unloaded(self, partition: CoordinatorPartition[M], machine: M) -> None:
        """A machine is about to be closed: its partition is led here no more, or loaded anew."""

    def released(self, partition: CoordinatorPartition[M]) -> None:
        """A partition is led here no more, or is about to be loaded anew, whatever its state."""

    def send(self, message: Any) -> None:
        """Sends what a machine has for another broker; the answer comes as a request."""
        raise NotImplementedError

    # -- life

    def start(self) -> None:
        """Takes on the partitions that this broker leads."""
        self.refresh()
        if self.reads_along:
            self.every(lambda: READ_ALONG_INTERVAL_S, self._read_along)

    async def _read_along(self) -> None:
        for warm in self._warm.values():
            warm.read_along()

    async def stop(self) -> None:
        """Answers every parked request with NOT_COORDINATOR and stops."""
        self._stopped = True
        await self._topic.stop()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        for partition in list(self._partitions.values()):
            self._unload(partition)
        self._follow_replicas()

    def every(self, interval_s: Callable[[], float], work: Callable[[], Awaitable[None]]) -> None:
        """Has this done again and again as long as the coordinator lives."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_s())
                await work()

        self._upkeep.append(self._loop.create_task(repeat()))

    # -- following the metadata

    def refresh(self) -> None:
        """Loads and drops partitions so as to coordinate exactly those that this broker leads."""
        led = self._led()
        for index, partition in list(self._partitions.items()):
            # Another leader may have been there between two epochs of this one.
            if led.get(index) != partition.leader_epochs:
                self._unload(partition)
        for index in led.keys() - self._partitions.keys():
            self._load(index, led[index])
        for number, each in enumerate(self.logs):
            if each.beside:
                self._follow(number, each.topic)
        self._follow_replicas()

    def _follow_replicas(self) -> None:
        """Reads along exactly those partitions that this broker follows, if it reads any."""
        first, wanted = self.logs[0], set[int]()
        if self.reads_along and not self._stopped:
            wanted.update(self._host.replicas.followed(first.topic))
        for index in self._warm.keys() - wanted:
            self._warm.pop(index).close()
        for index in wanted - self._warm.keys():
            self._warm[index] = Warm(
                self._host.replicas,
                first,
                index,
                self._warm_turns,
                self.new_machine,
                self._host.now_ms,
            )

    def _follow(self, number: int, topic: str) -> None:
        epochs = self._host.replicas.led_epochs(topic)
        exists = topic in self._host.metadata.topics
        for index, logs in self._beside.items():
            for each in logs:
                if each.number == number:
                    each.follow(epochs.get(index, -1), exists=exists)

    def _led(self) -> dict[int, tuple[int, ...]]:
        """By index the epochs of each log; -1 for one whose lead has yet to follow the first's."""
        logs = [each for each in self.logs if not each.beside]
        epochs, *others = (self._host.replicas.led_epochs(each.topic) for each in logs)
        return {
            index: (epoch, *(other.get(index, -1) for other in others))
            for index, epoch in epochs.items()
        }

    def leads_changed(self, topic: str) -> None:
        """Partitions of this topic may have come or have another leader."""
        if any(topic == each.topic for each in self.logs):
            self.refresh()

    def topic_changed(self, name: str) -> None:
        """A topic came, went or got partitions."""

    def metadata_replaced(self) -> None:
        """Any topic may have come, gone or got partitions, and anything another configuration."""

    def topic_deleted(self, name: str) -> None:
        """A topic is gone; with it what was kept in it."""
        for each in self.logs:
            if name == each.topic and each.beside:
                self.refresh()
            elif name == each.topic:
                for partition in list(self._partitions.values()):
                    self._unload(partition)

    # -- finding the coordinator

    async def coordinator_of(self, key: str, load_deadline_s: float) -> int:
        """The node id of the key's coordinator; makes the internal topic if there is none yet.

        If it is this broker, its partition is ready to take requests, unless that takes until
        `load_deadline_s` (of the loop's time). Raises KafkaError: COORDINATOR_NOT_AVAILABLE.
        """
        index = await self.index_of(key)
        name = self._topic.name
        leader = self._host.metadata.topics[name].partitions[index].leader
        if leader < 0 or leader in self._host.avoided:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{name}-{index} has no leader; is a broker down, or cut off?",
            )
        partition = self._partitions.get(index)
        if leader == self._host.node_id and partition is not None:
            wait_s = max(0.0, load_deadline_s - self._loop.time())
            await asyncio.wait([partition.loaded], timeout=wait_s)
        return leader

    async def index_of(self, key: str) -> int:
        """The partition of the internal topic that keeps the key; makes the topic if need be.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE.
        """
        await self._topic.ensure()
        topic = self._host.metadata.topics.get(self._topic.name)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition_for(key, len(topic.partitions))

    # -- operations

    def write(
        self,
        key: str,
        operation: Operation[M, T],
        abandon: Operation[M, T] | None = None,
        *,
        at_once: bool = False,
    ) -> T | asyncio.Future[T]:
        """Carries out what may change the key; gives the reply, or a future of it.

        `abandon` is carried out when the client goes away before; `at_once`: with what is gathered
        before the turn of the loop is over, if that is all that there is to wait for. Raises
        KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        partition, machine = self._route(key)
        future: asyncio.Future[T] = PromptFuture(loop=self._loop)
        now_ms = self.now_ms()
        partition.carry_out(operation(machine, future, now_ms), now_ms, at_once=at_once)
        if future.done():
            return future.result()
        if abandon is not None:
            future.add_done_callback(partial(self._ended, partition, machine, abandon))
        return future

    def _ended(
        self,
        partition: CoordinatorPartition[M],
        machine: M,
        abandon: Operation[M, T],
        future: asyncio.Future[T],
    ) -> None:
        if future.cancelled() and partition.machine is machine:
            now_ms = self.now_ms()
            partition.carry_out(abandon(machine, future, now_ms), now_ms)

    def read(self, key: str, operation: Callable[[M, int], T]) -> T:
        """What the key's machine says now. Raises KafkaError as `write` does."""
        return operation(self._route(key)[1], self.now_ms())

    def check_served(self, key: str) -> None:
        """Raises KafkaError as `write` does."""
        self._route(key)

    def all_machines(self) -> Iterator[M]:
        """The machines of all partitions that are led here and can be served.

        Partitions may come and go in between. Raises KafkaError: COORDINATOR_LOAD_IN_PROGRESS.
        """
        for partition in list(self._partitions.values()):
            if partition.machine is not None:
                yield partition.machine
            elif not partition.failed:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def on_all(self, task: Task[M]) -> None:
        """Has every machine do this, those that are being loaded as soon as they have been."""
        for partition in list(self._partitions.values()):
            if partition.machine is not None:
                now_ms = self.now_ms()
                partition.carry_out(task(partition.machine, now_ms), now_ms)
            elif not partition.failed:
                self._loading[partition.index].postponed[task] = None

    def _route(self, key: str) -> tuple[CoordinatorPartition[M], M]:
        """The key's partition; raises KafkaError if it isn't (or isn't yet) served here."""
        topic = self._host.metadata.topics.get(self._topic.name)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        partition = self._partitions.get(partition_for(key, len(topic.partitions)))
        if partition is None or partition.failed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if partition.machine is None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return partition, partition.machine

    async def expire_all(
        self,
        what: str,
        keys: Callable[[M], Iterable[str]],
        expire: Callable[[M, list[str], int], tuple[int, Effects[Any]]],
        interval_s: float,
    ) -> None:
        """Has every machine forget what is too old, some keys at a time.

        `expire` tells how many it was of these keys. Nothing happens within `interval_s` after the
        clock was set: one that was set wrong must not delete what nobody can bring back.
        """
        self.now_ms()
        if self._loop.time() - self.clock_set_s >= interval_s:
            await self.sweep(f"{what} expired", keys, expire)

    async def sweep(
        self,
        what: str,
        keys: Callable[[M], Iterable[K]],
        work: Callable[[M, list[K], int], tuple[int, Effects[Any]]],
    ) -> None:
        """Has every machine do something with its keys, some at a time.

        `work` tells with how many of these, and `what` what has become of them.
        """
        for partition in list(self._partitions.values()):
            machine = partition.machine
            if machine is None:
                continue
            done = 0
            left = iter(keys(machine))
            while some := list(islice(left, _SWEPT_TOGETHER)):
                now_ms = self.now_ms()
                count, effects = work(machine, some, now_ms)
                done += count
                partition.carry_out(effects, now_ms)
                await asyncio.sleep(0)
                if partition.machine is not machine:
                    break
            else:
                if done:
                    log.info("%s: %d %s", partition, done, what)

    # -- time

    def now_ms(self) -> int:
        """The wall clock; when it was set, running deadlines move along with it."""
        now_ms = self._host.now_ms()
        step_ms = now_ms - self._loop.time() * 1000 - self._clock_offset_ms
        if abs(step_ms) > _CLOCK_STEP_MS:
            log.warning("the clock was set by %d ms; %s deadlines follow it", step_ms, self._name)
            self._clock_offset_ms += step_ms
            self.clock_set_s = self._loop.time()
            for partition in self._partitions.values():
                if partition.machine is not None:
                    partition.machine.shift_deadlines(round(step_ms))
        return now_ms

    # -- loading and unloading

    def _load(self, index: int, leader_epochs: Sequence[int]) -> None:
        if self._stopped:
            return
        partition = CoordinatorPartition(self._host, self, index, leader_epochs)
        self._partitions[index] = partition
        self._beside[index] = [
            LogBeside(self._host, self, partition, number, self._load_turns)
            for number, each in enumerate(self.logs)
            if each.beside
        ]
        loading = self._loading[index] = Loading(
            self._host, self, partition, self._load_turns, self._warm.pop(index, None)
        )
        partition.loaded.add_done_callback(lambda _: self._load_ended(loading))
        loading.start()

    def _load_ended(self, loading: Loading[M]) -> None:
        if loading.partition.machine is not None:
            self.loads.observe(self._loop.time() - loading.started_s)
            for each in self._beside[loading.partition.index]:
                each.begin()
        else:
            loading.abandon()
        if self._loading.get(loading.partition.index) is loading:
            del self._loading[loading.partition.index]

    def _unload(self, partition: CoordinatorPartition[M]) -> None:
        del self._partitions[partition.index]
        del self._beside[partition.index]
        machine = partition.machine
        if machine is not None:
            self.tell_unloaded(partition, machine)
        self.released(partition)
        partition.close()

    def reload(self, partition: CoordinatorPartition[M]) -> None:
        """Loads the partition again, as its machine can't be trusted any more."""
        self._unload(partition)
        self._load(partition.index, partition.leader_epochs)
        self.refresh()

    # -- numbers for metrics

    def loading(self) -> Iterator[LoadProgress]:
        """The partitions that are being loaded."""
        for loading in self._loading.values():
            if not loading.partition.loaded.done():
                yield loading.progress

    def warm_machines(self) -> Iterator[M]:
        """Those of partitions that this broker follows."""
        for warm in self._warm.values():
            yield warm.machine

    def machines(self) -> Iterator[tuple[int, M]]:
        """The loaded partitions with their machines."""
        for index, partition in self._partitions.items():
            if partition.machine is not None:
                yield index, partition.machine
