"""The group coordinator of this broker: one `GroupMachine` per partition of `__consumer_offsets`.

The machine decides, this shell carries out (architecture.md, decision 8):

* A request becomes a call of its group's machine. What comes back is carried out in order: batches
  are appended, then replies go to the futures that the requests wait on.
* Outcomes of appends are handed to the machine in the order of the log, whatever order the appends
  end in, so that the map of offsets never goes back to an older commit.
* `offsets.commit.timeout.ms` ends the wait of the client, not of the append: a batch that commits
  later still counts.
* A partition is loaded before it takes requests (COORDINATOR_LOAD_IN_PROGRESS until then), in
  pieces, so that the broker answers others meanwhile. An empty one is loaded at once. A record that
  can't be read is skipped with one log line; a damaged batch keeps the partition from being loaded,
  since a committed offset might be lost behind it.
* A client that goes away while its request is parked cancels the future; the answer is dropped when
  it comes, and the member ends with its session, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from kraftpy.core.config import BrokerConfig
from kraftpy.core.groups import (
    Client,
    Effects,
    GroupConfig,
    GroupMachine,
    OffsetRow,
    Write,
    decode_record,
    encode_record,
    partition_for,
)
from kraftpy.core.groups.records import too_long
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kraftpy.protocol.records import RecordInput, build_batch, iter_records, split_batches
from kraftpy.server.internal_topic import InternalTopic, TopicHost

log = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

_LOAD_CHUNK_BYTES = 256 * 1024
_EXPIRE_GROUPS_AT_A_TIME = 200
_LOAD_REPORT_INTERVAL_S = 5.0
_CLOCK_STEP_MS = 1_000

T = TypeVar("T")


class PartitionLog(Protocol):
    """The logs of the offsets topic, as the coordinator needs them."""

    def led_epochs(self, topic: str) -> dict[int, int]:
        """The leader epochs of the topic's partitions that this broker leads, by index."""

    def when_settled(self, topic: str, partition: int, settled: Callable[[bool], None]) -> None:
        """Calls `settled(True)` once all that earlier leaders committed can be read here.

        `settled(False)` if this broker doesn't lead the partition any more by then.
        """

    def append_records(self, topic: str, partition: int, batch: bytes) -> Awaitable[int]:
        """Appends a batch; gives its base offset once it is committed, flushed if the policy says.

        Calls append in their order. Raises KafkaError, and then the batch is not in the log and
        never will be (or this broker does not lead the partition any more).
        """

    def read_batches(
        self, topic: str, partition: int, start_offset: int, max_bytes: int
    ) -> tuple[bytes, int]:
        """Committed batches from `start_offset`, and the offset to go on from.

        No bytes at the end. Raises KafkaError.
        """


class Host(TopicHost, Protocol):
    """What the coordinator needs of its broker."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def node_id(self) -> int: ...
    @property
    def replicas(self) -> PartitionLog: ...
    @property
    def in_touch(self) -> bool:
        """Whether the quorum was heard of lately, so that nobody else leads what is led here."""

    def now_ms(self) -> int: ...


class _Append:
    """A write on its way into the log; `deadline_s` is in the loop's time."""

    __slots__ = ("deadline_s", "future", "write")

    def __init__(self, write: Write, future: asyncio.Future[int], deadline_s: float) -> None:
        self.write = write
        self.future = future
        self.deadline_s = deadline_s


class _Partition:
    """A partition of the offsets topic that this broker coordinates.

    `machine` is None while it loads, and stays so if loading failed. `appends` are in log order.
    `deleted_topics` vanished during the load, so their offsets are still to be forgotten.
    """

    def __init__(self, index: int, leader_epoch: int, loop: asyncio.AbstractEventLoop) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.machine: GroupMachine | None = None
        self.loaded: asyncio.Future[None] = loop.create_future()
        self.failed = False
        self.closed = False
        self.appends: deque[_Append] = deque()
        self.draining = False
        self.last_offset = -1
        self.timer: asyncio.Handle | None = None
        self.timer_due_s = 0.0
        self.load_offset = 0
        self.deleted_topics: list[str] = []
        self.loaded_records = 0
        self.skipped_records = 0
        self.load_reported_s = loop.time()


class GroupCoordinator:
    """Consumer groups of this broker; handlers call it, the broker tells it what it leads."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = host.loop
        self._partitions: dict[int, _Partition] = {}
        self._topic = InternalTopic(host, OFFSETS_TOPIC, "offsets.topic.replication.factor")
        self._expiry: asyncio.Task[None] | None = None
        self._clock_offset_ms = host.now_ms() - host.loop.time() * 1000

    # -- life

    def start(self) -> None:
        """Takes on the partitions that this broker leads, and begins to expire offsets."""
        self.refresh()
        self._expiry = self._loop.create_task(self._expire_periodically())

    async def stop(self) -> None:
        """Answers every parked request with NOT_COORDINATOR and stops."""
        await self._topic.stop()
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        for partition in list(self._partitions.values()):
            self._unload(partition)

    # -- following the metadata

    def refresh(self) -> None:
        """Loads and drops partitions so as to coordinate exactly those that this broker leads."""
        led = self._host.replicas.led_epochs(OFFSETS_TOPIC)
        for index, partition in list(self._partitions.items()):
            # Another leader may have been there between two epochs of this one.
            if led.get(index) != partition.leader_epoch:
                self._unload(partition)
        for index in led.keys() - self._partitions.keys():
            self._load(index, led[index])

    def topic_deleted(self, name: str) -> None:
        """Forgets what was committed for a topic that is gone (a new one may take its name)."""
        if name == OFFSETS_TOPIC:
            for partition in list(self._partitions.values()):
                self._unload(partition)
            return
        for partition in list(self._partitions.values()):
            if partition.machine is not None:
                self._carry_out(partition, partition.machine.delete_topic(name))
            elif not partition.failed:
                partition.deleted_topics.append(name)

    # -- finding the coordinator

    async def coordinator_of(
        self, group_id: str, load_deadline_s: float, *, allow_empty: bool = False
    ) -> int:
        """The node id of the group's coordinator; makes the offsets topic if there is none yet.

        If it is this broker, its partition is ready to take requests, unless that takes until
        `load_deadline_s` (of the loop's time). Raises KafkaError: COORDINATOR_NOT_AVAILABLE,
        INVALID_GROUP_ID.
        """
        self._check_group_id(group_id, allow_empty=allow_empty)
        await self._ensure_offsets_topic()
        topic = self._host.metadata.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = partition_for(group_id, len(topic.partitions))
        leader = topic.partitions[index].leader
        if leader < 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{OFFSETS_TOPIC}-{index} has no leader; is a broker down?",
            )
        partition = self._partitions.get(index)
        if leader == self._host.node_id and partition is not None:
            wait_s = max(0.0, load_deadline_s - self._loop.time())
            await asyncio.wait([partition.loaded], timeout=wait_s)
        return leader

    async def _ensure_offsets_topic(self) -> None:
        config = self._host.config
        await self._topic.ensure(
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )

    # -- requests: the answer, or a future of it

    def join_group(
        self, client: Client, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """JoinGroup; parked until the rebalance ends."""
        partition, machine = self._route(request.group_id)
        future: asyncio.Future[JoinGroupResponse] = self._loop.create_future()
        now_ms = self._now_ms()
        effects = machine.join(future, request, client, str(uuid.uuid4()), now_ms)
        return self._result(partition, effects, future)

    def sync_group(
        self, request: SyncGroupRequest
    ) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        """SyncGroup; parked until the assignment is committed."""
        partition, machine = self._route(request.group_id)
        future: asyncio.Future[SyncGroupResponse] = self._loop.create_future()
        return self._result(partition, machine.sync(future, request, self._now_ms()), future)

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Heartbeat."""
        return self._route(request.group_id)[1].heartbeat(request, self._now_ms())

    def leave_group(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """LeaveGroup in its batched form (version 3 and later)."""
        partition, machine = self._route(request.group_id)
        response, effects = machine.leave(request, self._now_ms())
        self._carry_out(partition, effects)
        return response

    def commit_offsets(
        self, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
        """OffsetCommit; waits until its batch is committed."""
        partition, machine = self._route(request.group_id, allow_empty=True)
        future: asyncio.Future[OffsetCommitResponse] = self._loop.create_future()
        effects = machine.commit(future, request, self._partition_exists, self._now_ms())
        return self._result(partition, effects, future)

    def fetch_offsets(
        self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]] | None
    ) -> list[tuple[str, list[OffsetRow]]]:
        """Committed offsets by topic; those of all partitions if `topics` is None."""
        if not self._host.in_touch:
            # Another coordinator may have committed what this one doesn't know.
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return self._route(group_id, allow_empty=True)[1].fetch(group_id, topics)

    def delete_offsets(
        self, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
        """OffsetDelete."""
        partition, machine = self._route(request.group_id)
        future: asyncio.Future[OffsetDeleteResponse] = self._loop.create_future()
        effects = machine.delete_offsets(future, request, self._partition_exists)
        return self._result(partition, effects, future)

    def delete_group(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        """One group of a DeleteGroups."""
        partition, machine = self._route(group_id, allow_empty=True)
        future: asyncio.Future[ErrorCode] = self._loop.create_future()
        return self._result(
            partition, machine.delete_group(future, group_id, self._now_ms()), future
        )

    def describe_group(self, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        """One group of a DescribeGroups."""
        return self._route(group_id, allow_empty=True)[1].describe(group_id)

    def list_groups(
        self, states: Sequence[str], types: Sequence[str]
    ) -> list[ListGroupsResponse.ListedGroup]:
        """ListGroups: the groups that this broker coordinates."""
        listed = []
        for partition in self._partitions.values():
            if partition.machine is not None:
                listed.extend(partition.machine.list_groups(states, types))
            elif not partition.failed:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return listed

    def _route(
        self, group_id: str, *, allow_empty: bool = False
    ) -> tuple[_Partition, GroupMachine]:
        """The group's partition; raises KafkaError if it isn't (or isn't yet) served here.

        `allow_empty`: requests about offsets may name the group "", which Kafka keeps working for
        old clients.
        """
        self._check_group_id(group_id, allow_empty=allow_empty)
        topic = self._host.metadata.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        partition = self._partitions.get(partition_for(group_id, len(topic.partitions)))
        if partition is None or partition.failed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if partition.machine is None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return partition, partition.machine

    def _check_group_id(self, group_id: str, *, allow_empty: bool = False) -> None:
        if (not group_id and not allow_empty) or too_long(group_id):
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)

    def _partition_exists(self, topic: str, index: int) -> bool:
        known = self._host.metadata.topics.get(topic)
        return known is not None and index in known.partitions

    # -- carrying out effects

    def _result(
        self, partition: _Partition, effects: Effects, future: asyncio.Future[T]
    ) -> T | asyncio.Future[T]:
        self._carry_out(partition, effects)
        return future.result() if future.done() else future

    def _carry_out(self, partition: _Partition, effects: Effects) -> None:
        for write in effects.writes:
            self._append(partition, write)
        _reply(effects)
        if partition.machine is not None:
            deadline_ms = partition.machine.next_deadline()
            if deadline_ms is not None:
                left_ms = deadline_ms - self._now_ms()
                self._arm(partition, self._loop.time() + left_ms / 1000)

    def _append(self, partition: _Partition, write: Write) -> None:
        now_ms = self._now_ms()
        records: list[RecordInput] = []
        for record in write.records:
            key, value = encode_record(record)
            records.append((now_ms, key, value, []))
        batch = build_batch(records)
        future = asyncio.ensure_future(
            self._host.replicas.append_records(OFFSETS_TOPIC, partition.index, batch)
        )
        deadline_s = self._loop.time() + self._host.config.offsets_commit_timeout_ms / 1000
        partition.appends.append(_Append(write, future, deadline_s))
        self._arm(partition, deadline_s)
        if future.done():
            self._drain(partition)
        else:
            future.add_done_callback(lambda future: self._drain(partition))

    def _drain(self, partition: _Partition) -> None:
        """Tells the machine of the appends that have ended, in log order."""
        if partition.draining:
            return
        partition.draining = True
        appends = partition.appends
        while appends and appends[0].future.done():
            append = appends.popleft()
            effects = self._outcome(partition, append)
            if effects is not None:
                self._carry_out(partition, effects)
        partition.draining = False

    def _outcome(self, partition: _Partition, append: _Append) -> Effects | None:
        error = ErrorCode.NONE
        offset = -1
        if append.future.cancelled():
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif (raised := append.future.exception()) is None:
            offset = append.future.result()
        elif isinstance(raised, KafkaError):
            error = raised.code
        else:
            log.error("%s-%d: append failed", OFFSETS_TOPIC, partition.index, exc_info=raised)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        machine = partition.machine
        if machine is None:
            return None
        now_ms = self._now_ms()
        if error is not ErrorCode.NONE:
            return machine.failed(append.write, error, now_ms)
        if offset <= partition.last_offset:
            log.error(
                "%s-%d: offset %d came after %d; loading the partition again",
                OFFSETS_TOPIC,
                partition.index,
                offset,
                partition.last_offset,
            )
            self._unload(partition)
            self._load(partition.index, partition.leader_epoch)
            return None
        partition.last_offset = offset
        return machine.committed(append.write, now_ms)

    # -- time

    def _now_ms(self) -> int:
        """The wall clock; when it was set, running deadlines move along with it."""
        now_ms = self._host.now_ms()
        step_ms = now_ms - self._loop.time() * 1000 - self._clock_offset_ms
        if abs(step_ms) > _CLOCK_STEP_MS:
            log.warning("the clock was set by %d ms; group deadlines follow it", step_ms)
            self._clock_offset_ms += step_ms
            for partition in self._partitions.values():
                if partition.machine is not None:
                    partition.machine.shift_deadlines(round(step_ms))
        return now_ms

    def _arm(self, partition: _Partition, deadline_s: float) -> None:
        """Makes sure that the partition's timer fires at this time of the loop at the latest."""
        timer = partition.timer
        if timer is not None:
            if partition.timer_due_s <= deadline_s:
                return
            timer.cancel()
        # What uvloop returns for a time that is now or past doesn't know its `when`.
        partition.timer_due_s = deadline_s
        partition.timer = self._loop.call_at(deadline_s, self._on_timer, partition)

    def _on_timer(self, partition: _Partition) -> None:
        partition.timer = None
        machine = partition.machine
        if machine is None:
            return
        now_ms = self._now_ms()
        loop_s = self._loop.time()
        for append in list(partition.appends):
            if append.deadline_s > loop_s:
                self._arm(partition, append.deadline_s)
                break
            if not append.write.settled:
                self._carry_out(partition, machine.timed_out(append.write, now_ms))
        self._carry_out(partition, machine.handle_timers(now_ms))

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._host.config.offsets_retention_check_interval_ms / 1000)
            for partition in list(self._partitions.values()):
                await self._expire(partition)

    async def _expire(self, partition: _Partition) -> None:
        machine = partition.machine
        if machine is None:
            return
        expired = 0
        group_ids = machine.group_ids()
        while chunk := list(islice(group_ids, _EXPIRE_GROUPS_AT_A_TIME)):
            count, effects = machine.expire_offsets(chunk, self._now_ms())
            expired += count
            self._carry_out(partition, effects)
            await asyncio.sleep(0)
            if partition.closed:
                return
        if expired:
            log.info("%s-%d: %d committed offsets expired", OFFSETS_TOPIC, partition.index, expired)

    # -- loading and unloading

    def _load(self, index: int, leader_epoch: int) -> None:
        partition = self._partitions[index] = _Partition(index, leader_epoch, self._loop)
        group_config = GroupConfig.from_broker(self._host.config)

        def settled(is_leader: bool) -> None:
            if is_leader:
                self._load_some(partition, GroupMachine(group_config))

        # A new leader's high watermark may be behind what was committed (rule 9).
        self._host.replicas.when_settled(OFFSETS_TOPIC, index, settled)

    def _load_some(self, partition: _Partition, machine: GroupMachine) -> None:
        """Replays the next piece of the log; comes back for more after others had their turn."""
        if partition.closed:
            return
        try:
            data, next_offset = self._host.replicas.read_batches(
                OFFSETS_TOPIC, partition.index, partition.load_offset, _LOAD_CHUNK_BYTES
            )
            self._replay(partition, machine, data)
        except (DecodeError, KafkaError, OSError) as error:
            partition.failed = True
            partition.loaded.set_result(None)
            log.error(
                "%s-%d can't be loaded from offset %d; its groups are not served here: %s",
                OFFSETS_TOPIC,
                partition.index,
                partition.load_offset,
                error,
            )
            return
        if next_offset > partition.load_offset:
            partition.load_offset = next_offset
            self._report_load(partition, machine)
            self._loop.call_soon(self._load_some, partition, machine)
            return
        partition.last_offset = partition.load_offset - 1
        partition.machine = machine
        partition.loaded.set_result(None)
        if partition.loaded_records or partition.skipped_records:
            log.info(
                "%s-%d: loaded %d records, %d skipped: %d groups, %d committed offsets",
                OFFSETS_TOPIC,
                partition.index,
                partition.loaded_records,
                partition.skipped_records,
                machine.groups_count,
                machine.offsets_count,
            )
        self._carry_out(partition, machine.finish_load(self._now_ms()))
        for topic in partition.deleted_topics:
            self._carry_out(partition, machine.delete_topic(topic))
        partition.deleted_topics.clear()

    def _report_load(self, partition: _Partition, machine: GroupMachine) -> None:
        """Says every few seconds how far a long load is."""
        now_s = self._loop.time()
        if now_s - partition.load_reported_s < _LOAD_REPORT_INTERVAL_S:
            return
        partition.load_reported_s = now_s
        log.info(
            "%s-%d: loading, at offset %d: %d records, %d committed offsets so far",
            OFFSETS_TOPIC,
            partition.index,
            partition.load_offset,
            partition.loaded_records,
            machine.offsets_count,
        )

    def _replay(self, partition: _Partition, machine: GroupMachine, data: bytes) -> None:
        for position, header in split_batches(data):
            if header.is_control or header.is_transactional:
                partition.skipped_records += header.records_count
                continue
            for record in iter_records(data, position):
                try:
                    decoded = decode_record(record.key, record.value)
                except DecodeError as error:
                    if not partition.skipped_records:
                        log.error(
                            "%s-%d: the record at offset %d is skipped: %s",
                            OFFSETS_TOPIC,
                            partition.index,
                            record.offset,
                            error,
                        )
                    partition.skipped_records += 1
                    continue
                if decoded is None:
                    partition.skipped_records += 1
                else:
                    machine.load(decoded)
                    partition.loaded_records += 1

    def _unload(self, partition: _Partition) -> None:
        del self._partitions[partition.index]
        partition.closed = True
        machine, partition.machine = partition.machine, None
        if partition.timer is not None:
            partition.timer.cancel()
        if not partition.loaded.done():
            partition.loaded.set_result(None)
        if machine is not None:
            _reply(machine.close(ErrorCode.NOT_COORDINATOR, self._now_ms()))

    # -- numbers for metrics

    def loading(self) -> Iterator[tuple[int, int, int]]:
        """The partitions that are being loaded: index, next offset to read, records so far."""
        for index, partition in self._partitions.items():
            if partition.machine is None and not partition.failed:
                yield index, partition.load_offset, partition.loaded_records

    def machines(self) -> Iterator[tuple[int, GroupMachine]]:
        """The loaded partitions with their machines."""
        for index, partition in self._partitions.items():
            if partition.machine is not None:
                yield index, partition.machine


def _reply(effects: Effects) -> None:
    for token, response in effects.replies:
        assert isinstance(token, asyncio.Future)
        if not token.done():  # done: the client went away
            token.set_result(response)
