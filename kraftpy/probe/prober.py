"""The probe at work: it sends to every partition, receives as a group, commits, and looks around.

Rules:

* Producer, consumer and administration have connections of their own: none waits behind another.
* A message is `RUN NUMBER`; what other runs sent is passed over. Nothing is counted before a first
  message, one for each partition, has come back, or `WARM_UP_MAX_S` is over. One that fails is sent
  again: no SLA is its limit.
* Whatever the cluster does, the probe goes on: errors are logged once in a while and tried again.
  It ends only if another probe took its name, or if no broker could be reached at the start.
* At most `ON_ITS_WAY_MAX` messages of a partition are without acknowledgement: while a partition
  takes none, no more are sent to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from kraftpy.client.batches import RecordMetadata
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.group import GroupTimes
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.offsets import Partition
from kraftpy.client.producer import Producer, UnknownPartitionError
from kraftpy.client.security import NO_SECURITY, Security
from kraftpy.probe.heartbeat import Heartbeat
from kraftpy.probe.tracker import Tracker
from kraftpy.protocol.errors import ErrorCode, KafkaError

COMMIT_INTERVAL_S = 1.0
LOOK_INTERVAL_S = 5.0
EXPIRE_INTERVAL_S = 0.1
WARM_UP_MAX_S = 30.0
ON_ITS_WAY_MAX = 1000
_REQUEST_TIMEOUT_MIN_MS = 2_000
_GIVEN_UP_AFTER_SLAS = 4
_POLL_MS = 200
_PAUSE_S = 0.5
_CLOSE_MAX_S = 2.0
_DIGITS_MAX = 18  # anybody may write to the topic
_METADATA_MAX_AGE_MS = 5_000
_SAID_EVERY_S = 10.0

logger = logging.getLogger(__name__)


class NameTakenError(Exception):
    """Another probe runs under this one's name."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What a probe is to do; `group_instance_id` makes it the only one of its group."""

    bootstrap: str
    topic: str
    group_id: str
    group_instance_id: str | None
    interval_ms: int
    sla_ms: int
    security: Security = NO_SECURITY


class _Joined(RebalanceListener):
    """Tells when the group gave the consumer partitions."""

    def __init__(self, told: Callable[[], None]) -> None:
        self.once = False
        self._told = told

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        self.once = True
        self._told()


class Prober:
    """One run; `tracker` has what became of its messages."""

    def __init__(self, options: ProbeOptions) -> None:
        self.options = options
        self.tracker = Tracker(options.sla_ms / 1000)
        self._run = os.urandom(6).hex()
        timeout_ms = max(options.sla_ms, _REQUEST_TIMEOUT_MIN_MS)
        self._clusters = [
            Cluster(
                options.bootstrap,
                client_id="kraftpy-probe",
                request_timeout_ms=timeout_ms,
                security=options.security,
            )
            for _ in range(3)
        ]
        self.heartbeat = Heartbeat(self._clusters[0], options.topic)
        self._producer: Producer[bytes, bytes] | None = None
        self._consumer: Consumer[bytes, bytes] | None = None
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._joined = _Joined(self._news.set)
        self._warm: set[int] = set()
        self._counting = False
        self._committing: asyncio.Task[None] | None = None
        self._commit_due = 0.0
        self._said: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Prober:
        """Looks for the cluster and gets ready. Raises what the client does, NameTakenError."""
        try:
            await self.heartbeat.look()
            self._producer = Producer(
                self._clusters[1],
                linger_ms=0,
                delivery_timeout_ms=max(
                    _GIVEN_UP_AFTER_SLAS * self.options.sla_ms, _REQUEST_TIMEOUT_MIN_MS
                ),
            )
            self._spawn(self._consume())
            self._spawn(self._look())
            await self._warm_up()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends everything; who sent what is still in `tracker`."""
        await self._end_tasks()
        if self._producer is not None:
            await self._producer.close(flush=False)
        await self._end_consumer()
        for cluster in self._clusters:
            await cluster.close()

    async def remove_group(self) -> None:
        """Leaves and deletes the group; a failure is only logged: it expires by itself."""
        await self._end_tasks()
        await self._end_consumer()
        try:
            cluster = self._clusters[0]
            admin = GroupAdmin(cluster, timeout_ms=cluster.request_timeout_ms)
            await admin.delete_group(self.options.group_id)
        except (ConnectionError, KafkaError) as error:
            logger.info("the group %s stays: %s", self.options.group_id, error)

    # -- sending

    def stop(self) -> None:
        """Has `run` send no more, and end when it is known what became of what was sent."""
        self._stopping.set()

    async def run(self, rounds: int | None) -> None:
        """Sends to every partition, `rounds` times or until `stop`.

        Then it waits for what is on its way. Raises NameTakenError.
        """
        self._counting = True
        sending = asyncio.create_task(self._send_rounds(rounds))
        expiring = asyncio.create_task(self._expire())
        try:
            await asyncio.wait([sending, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            self._check_tasks()
            sending.result()
            await self._settle()
        finally:
            for task in (sending, expiring):
                task.cancel()
            await asyncio.gather(sending, expiring, return_exceptions=True)
        self.tracker.give_up()

    async def _send_rounds(self, rounds: int | None) -> None:
        interval_s = self.options.interval_ms / 1000
        due = time.monotonic()
        for number in itertools.count(1):
            for partition, leader in sorted(self.heartbeat.leaders.items()):
                if self._stopping.is_set():
                    return
                await self._send(partition, leader)
            if number == rounds:
                return
            now = time.monotonic()
            due = max(due + interval_s, now)  # what was missed isn't made up for
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - now):
                    await self._stopping.wait()

    async def _send(self, partition: int, leader: int) -> None:
        assert self._producer is not None
        if self.tracker.on_its_way(partition) >= ON_ITS_WAY_MAX:
            self._say("full", "partition %d takes no messages", partition)
            return
        number = self.tracker.sent(partition, leader, time.monotonic())
        try:
            await self._producer.send(
                self.options.topic,
                f"{self._run} {number}".encode(),
                partition=partition,
                on_delivery=partial(self._delivered, number),
            )
        except (ConnectionError, KafkaError, UnknownPartitionError) as error:
            self._say("send", "can't send to partition %d: %s", partition, error)
            self.tracker.failed(number)

    def _delivered(
        self, number: int, metadata: RecordMetadata | None, error: Exception | None
    ) -> None:
        if error is None:
            self.tracker.acknowledged(number, time.monotonic())
        else:
            self._say("delivery", "a message was not acknowledged: %s", error)
            self.tracker.failed(number)
        self._news.set()

    async def _settle(self) -> None:
        """Gives what is on its way the time that the SLA allows: for sending, and for arriving."""
        if not await self._until(lambda: self.tracker.settled, 2 * self.tracker.sla_s):
            self.tracker.fail_unacknowledged()
            await self._until(lambda: self.tracker.settled, self.tracker.sla_s)
        if not self.tracker.commits and not self.tracker.commits_failed:
            if self._committing is None:
                self._commit()
            if not await self._until(lambda: self._committing is None, self.tracker.sla_s):
                self.tracker.commit_failed()  # given up with the consumer

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_S)
            lost = self.tracker.expire(time.monotonic())
            if lost:
                partitions = sorted({message.partition for message in lost})
                logger.error(
                    "%d messages of partitions %s are lost: acknowledged, and not there after %g s",
                    len(lost),
                    partitions,
                    self.tracker.sla_s,
                )

    # -- receiving

    async def _warm_up(self) -> None:
        """One message through each partition: connections, group and positions are there then."""
        started = time.monotonic()
        await self._until(lambda: self._joined.once or self._ended, WARM_UP_MAX_S)
        self._check_tasks()
        wanted = set(self.heartbeat.leaders)
        sending = [asyncio.create_task(self._send_first(partition)) for partition in wanted]
        left_s = WARM_UP_MAX_S - (time.monotonic() - started)
        try:
            came = await self._until(lambda: wanted <= self._warm or self._ended, left_s)
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        if not came:
            logger.warning(
                "partitions %s bring nothing back yet; beginning all the same",
                sorted(wanted - self._warm),
            )
        self._check_tasks()

    async def _send_first(self, partition: int) -> None:
        assert self._producer is not None
        message = f"{self._run} 0".encode()
        while True:
            try:
                await self._producer.send_and_wait(self.options.topic, message, partition=partition)
            except (ConnectionError, KafkaError, UnknownPartitionError) as error:
                self._say("send", "can't send to partition %d: %s", partition, error)
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _consume(self) -> None:
        while True:
            try:
                if self._consumer is None:
                    self._consumer = self._new_consumer()
                for record in await self._consumer.poll(_POLL_MS):
                    self._arrived(record)
            except (ConnectionError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_INSTANCE_ID:
                    raise NameTakenError(
                        f"another probe runs as {self.options.group_instance_id!r} in the group "
                        f"{self.options.group_id!r}"
                    ) from error
                self._say("consume", "can't receive: %s", error)
                await self._end_consumer()
                await asyncio.sleep(_PAUSE_S)
            else:
                self._commit_if_due()

    def _new_consumer(self) -> Consumer[bytes, bytes]:
        consumer = Consumer(
            self._clusters[2],
            group_id=self.options.group_id,
            group_instance_id=self.options.group_instance_id,
            times=GroupTimes(session_timeout_ms=10_000, heartbeat_interval_ms=1_000),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=_METADATA_MAX_AGE_MS,
        )
        consumer.subscribe([self.options.topic], listener=self._joined)
        self._commit_due = time.monotonic() + COMMIT_INTERVAL_S
        return consumer

    async def _end_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)
            self._committing = None
        if consumer is not None:
            try:
                async with asyncio.timeout(_CLOSE_MAX_S):
                    await consumer.close()
            except (ConnectionError, KafkaError, TimeoutError) as error:
                logger.debug("the consumer ended with an error: %s", error)

    def _arrived(self, record: ConsumerRecord[bytes, bytes]) -> None:
        run, _, number = (record.value or b"").partition(b" ")
        if run != self._run.encode() or not number.isdigit() or len(number) > _DIGITS_MAX:
            return
        if int(number):
            self.tracker.arrived(int(number), record.offset, time.monotonic())
        else:
            self._warm.add(record.partition)
        self._news.set()

    # -- committing

    def _commit_if_due(self) -> None:
        due = self._counting and time.monotonic() >= self._commit_due
        if due and self._committing is None:
            self._commit_due = time.monotonic() + COMMIT_INTERVAL_S
            self._commit()

    def _commit(self) -> None:
        self._committing = asyncio.create_task(self._commit_now())

    async def _commit_now(self) -> None:
        consumer = self._consumer
        started = time.monotonic()
        try:
            if consumer is None:
                return
            await consumer.commit(timeout_ms=self._clusters[2].request_timeout_ms)
        except (ConnectionError, KafkaError) as error:
            self._say("commit", "can't commit: %s", error)
            self.tracker.commit_failed()
        else:
            coordinator = consumer.coordinator_id
            took_s = time.monotonic() - started
            self.tracker.committed(-1 if coordinator is None else coordinator, took_s)
        finally:
            self._committing = None
            self._news.set()

    # -- looking around

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self.heartbeat.look()
            except (ConnectionError, KafkaError) as error:
                self._say("look", "can't look at the cluster: %s", error)

    # -- the tasks

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._news.set())
        self._tasks.add(task)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _ended(self) -> bool:
        """Whether something that goes on for ever doesn't."""
        return any(task.done() for task in self._tasks)

    def _check_tasks(self) -> None:
        """Raises what ended one of them."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for a condition that comes true with news; whether it did in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _say(self, what: str, text: str, *args: object) -> None:
        """A warning, but each kind once in a while."""
        now = time.monotonic()
        if now - self._said.get(what, -_SAID_EVERY_S) >= _SAID_EVERY_S:
            self._said[what] = now
            logger.warning(text, *args)
