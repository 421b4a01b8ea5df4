"""The group coordinator of this broker: one `GroupMachine` per partition of `__consumer_offsets`.

The machine decides, this shell carries out (docs/architecture.md, decision 8):

* A request becomes a call of its group's machine; what comes back is carried out by the partition
  (`group_partition`).
* A partition is loaded before it takes requests: COORDINATOR_LOAD_IN_PROGRESS until then
  (`group_loading`).
* One that has stopped takes on nothing more, though partitions are led here for a while yet.
* All partitions have one clock: the wall clock, and when it is set their deadlines move along.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from kraftpy.core.config import BrokerConfig, consumer_times
from kraftpy.core.groups import (
    Client,
    ConsumerTimes,
    Effects,
    GroupMachine,
    GroupMemory,
    OffsetRow,
    new_member_id,
    partition_for,
)
from kraftpy.core.groups.records import too_long
from kraftpy.core.metadata import ResourceType
from kraftpy.events import emit
from kraftpy.metrics.instruments import LOAD_BUCKETS, Histogram
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
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
from kraftpy.server.coordination.group_loading import GroupLoading, LoadProgress, Turns
from kraftpy.server.coordination.group_partition import OFFSETS_TOPIC, GroupPartition, PartitionLog
from kraftpy.server.coordination.group_topics import ClusterTopics
from kraftpy.server.coordination.internal_topic import InternalTopic, TopicHost

log = logging.getLogger(__name__)

_CLOCK_STEP_MS = 1_000
_LISTED_TOGETHER = 500

T = TypeVar("T")


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

    @property
    def avoided(self) -> frozenset[int]:
        """Brokers that clients aren't sent to."""

    def now_ms(self) -> int: ...


class GroupCoordinator:
    """Consumer groups of this broker; handlers call it, the broker tells it what it leads."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = host.loop
        self._partitions: dict[int, GroupPartition] = {}
        self._loading: dict[int, GroupLoading] = {}
        self._load_turns = Turns(host.loop)
        self._memory = GroupMemory(host.config.group_coordinator_max_memory_bytes)
        self.loads = Histogram(LOAD_BUCKETS)
        self._topic = InternalTopic(host, OFFSETS_TOPIC, "offsets.topic.replication.factor")
        self._expiry: asyncio.Task[None] | None = None
        self._stopped = False
        self._topics = ClusterTopics(lambda: host.metadata)
        self._own_times: dict[str, ConsumerTimes] = {}
        self._clock_offset_ms = host.now_ms() - host.loop.time() * 1000
        self._clock_set_s = -math.inf

    # -- life

    def start(self) -> None:
        """Takes on the partitions that this broker leads, and begins to expire offsets."""
        self.metadata_replaced()
        self.refresh()
        self._expiry = self._loop.create_task(self._expire_periodically())

    async def stop(self) -> None:
        """Answers every parked request with NOT_COORDINATOR and stops."""
        self._stopped = True
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

    def topic_changed(self, name: str) -> None:
        """A topic came, went or got partitions: consumer groups look at their topics again."""
        self._topics.changed(name)

    def metadata_replaced(self) -> None:
        """Any topic may have come, gone or got partitions, any group another configuration."""
        self._topics.replaced()
        self._own_times.clear()
        for type_, name in self._host.metadata.configs:
            if type_ == ResourceType.GROUP:
                self.group_configured(name)

    def group_configured(self, group_id: str) -> None:
        """The group has another configuration, or none any more."""
        configs = self._host.metadata.config(ResourceType.GROUP, group_id)
        if configs:
            times = ConsumerTimes(*consumer_times(configs, self._host.config))
            self._own_times[group_id] = times
        else:
            self._own_times.pop(group_id, None)

    def topic_deleted(self, name: str) -> None:
        """Forgets what was committed for a topic that is gone (a new one may take its name)."""
        if name == OFFSETS_TOPIC:
            for partition in list(self._partitions.values()):
                self._unload(partition)
            return
        for partition in list(self._partitions.values()):
            if partition.machine is not None:
                partition.carry_out(partition.machine.delete_topic(name), self._now_ms())
            elif not partition.failed:
                self._loading[partition.index].deleted_topics.add(name)

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
        if leader < 0 or leader in self._host.avoided:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{OFFSETS_TOPIC}-{index} has no leader; is a broker down, or cut off?",
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
        random_id = str(uuid.uuid4())
        now_ms = self._now_ms()
        effects = machine.join(future, request, client, random_id, now_ms)
        answer = self._result(partition, effects, future, now_ms)
        if answer is future:
            group_id = request.group_id
            member_id = request.member_id or new_member_id(request, client, random_id)

            def ended(future: asyncio.Future[JoinGroupResponse]) -> None:
                if future.cancelled() and partition.machine is machine:
                    now_ms = self._now_ms()
                    effects = machine.abandon(group_id, member_id, future, now_ms)
                    partition.carry_out(effects, now_ms)

            future.add_done_callback(ended)
        return answer

    def sync_group(
        self, request: SyncGroupRequest
    ) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        """SyncGroup; parked until the assignment is committed."""
        partition, machine = self._route(request.group_id)
        future: asyncio.Future[SyncGroupResponse] = self._loop.create_future()
        now_ms = self._now_ms()
        return self._result(partition, machine.sync(future, request, now_ms), future, now_ms)

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Heartbeat."""
        return self._route(request.group_id)[1].heartbeat(request, self._now_ms())

    def leave_group(
        self, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
        """LeaveGroup in its batched form (version 3 and later)."""
        partition, machine = self._route(request.group_id)
        future: asyncio.Future[LeaveGroupResponse] = self._loop.create_future()
        now_ms = self._now_ms()
        return self._result(partition, machine.leave(future, request, now_ms), future, now_ms)

    def consumer_heartbeat(
        self, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat; waits until what it changes is committed."""
        partition, machine = self._route(request.group_id)
        regex = request.subscribed_topic_regex
        if regex and not self._topics.knows(regex):
            return self._find_and_heartbeat(regex, client, request)
        return self._heartbeat(partition, machine, client, request)

    def _heartbeat(
        self,
        partition: GroupPartition,
        machine: GroupMachine,
        client: Client,
        request: ConsumerGroupHeartbeatRequest,
    ) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
        future: asyncio.Future[ConsumerGroupHeartbeatResponse] = self._loop.create_future()
        now_ms = self._now_ms()
        effects = machine.consumer_heartbeat(future, request, client, str(uuid.uuid4()), now_ms)
        return self._result(partition, effects, future, now_ms)

    async def _find_and_heartbeat(
        self, regex: str, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """The same, once the topics that a regex matches have been found."""
        # What is no regex is for the machine to refuse: something else may be worse.
        with contextlib.suppress(KafkaError):
            await self._topics.prepare(regex)
        answer = self._heartbeat(*self._route(request.group_id), client, request)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def describe_consumer_group(
        self, group_id: str
    ) -> ConsumerGroupDescribeResponse.DescribedGroup:
        """One group of a ConsumerGroupDescribe."""
        machine = self._route(group_id)[1]
        return machine.consumer_describe(group_id)

    def commit_offsets(
        self, api_version: int, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
        """OffsetCommit; waits until its batch is committed."""
        partition, machine = self._route(request.group_id, allow_empty=True)
        future: asyncio.Future[OffsetCommitResponse] = self._loop.create_future()
        now_ms = self._now_ms()
        effects = machine.commit(
            future, request, self._partitions_of, now_ms, api_version=api_version
        )
        return self._result(partition, effects, future, now_ms)

    def fetch_offsets(
        self,
        group_id: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> Callable[[], list[tuple[str, list[OffsetRow]]]]:
        """Reads committed offsets by topic when called; of all partitions if `topics` is None.

        Errors are raised now. A member of a consumer group may say who it is: UNKNOWN_MEMBER_ID,
        STALE_MEMBER_EPOCH.
        """
        if not self._host.in_touch:
            # Another coordinator may have committed what this one doesn't know.
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        machine = self._route(group_id, allow_empty=True)[1]
        if member_id is not None or member_epoch >= 0:
            error = machine.check_fetch(group_id, member_id, member_epoch)
            if error is not ErrorCode.NONE:
                raise KafkaError(error)
        return partial(machine.fetch, group_id, topics)

    def delete_offsets(
        self, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
        """OffsetDelete."""
        partition, machine = self._route(request.group_id)
        future: asyncio.Future[OffsetDeleteResponse] = self._loop.create_future()
        effects = machine.delete_offsets(future, request, self._partitions_of)
        return self._result(partition, effects, future, self._now_ms())

    def delete_group(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        """One group of a DeleteGroups."""
        partition, machine = self._route(group_id, allow_empty=True)
        future: asyncio.Future[ErrorCode] = self._loop.create_future()
        now_ms = self._now_ms()
        effects = machine.delete_group(future, group_id, now_ms)
        return self._result(partition, effects, future, now_ms)

    def describe_group(self, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        """One group of a DescribeGroups."""
        return self._route(group_id, allow_empty=True)[1].describe(group_id)

    def list_groups(
        self, states: Sequence[str], types: Sequence[str]
    ) -> Iterator[list[ListGroupsResponse.ListedGroup]]:
        """ListGroups: the groups that this broker coordinates, some at a time.

        Groups may come and go in between.
        """
        for partition in list(self._partitions.values()):
            if partition.machine is not None:
                group_ids = list(partition.machine.group_ids())
                for start in range(0, len(group_ids), _LISTED_TOGETHER):
                    some = group_ids[start : start + _LISTED_TOGETHER]
                    yield partition.machine.list_groups(states, types, some)
            elif not partition.failed:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def _route(
        self, group_id: str, *, allow_empty: bool = False
    ) -> tuple[GroupPartition, GroupMachine]:
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

    def _partitions_of(self, topic: str) -> Container[int]:
        known = self._host.metadata.topics.get(topic)
        return () if known is None else known.partitions

    def _result(
        self, partition: GroupPartition, effects: Effects, future: asyncio.Future[T], now_ms: int
    ) -> T | asyncio.Future[T]:
        partition.carry_out(effects, now_ms)
        return future.result() if future.done() else future

    # -- time

    def _now_ms(self) -> int:
        """The wall clock; when it was set, running deadlines move along with it."""
        now_ms = self._host.now_ms()
        step_ms = now_ms - self._loop.time() * 1000 - self._clock_offset_ms
        if abs(step_ms) > _CLOCK_STEP_MS:
            log.warning("the clock was set by %d ms; group deadlines follow it", step_ms)
            self._clock_offset_ms += step_ms
            self._clock_set_s = self._loop.time()
            for partition in self._partitions.values():
                if partition.machine is not None:
                    partition.machine.shift_deadlines(round(step_ms))
        return now_ms

    async def expire_offsets(self) -> None:
        """Deletes the committed offsets whose time is over; it also runs by itself.

        Not within `offsets.retention.check.interval.ms` after the clock was set: one that was set
        wrong must not delete what nobody can bring back.
        """
        self._now_ms()
        if self._loop.time() - self._clock_set_s < self._expiry_interval_s:
            return
        for partition in list(self._partitions.values()):
            await partition.expire_offsets()

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_s)
            await self.expire_offsets()

    @property
    def _expiry_interval_s(self) -> float:
        return self._host.config.offsets_retention_check_interval_ms / 1000

    # -- loading and unloading

    def _load(self, index: int, leader_epoch: int) -> None:
        if self._stopped:
            return
        partition = GroupPartition(self._host, index, leader_epoch, self._now_ms, self._reload)
        self._partitions[index] = partition
        loading = self._loading[index] = GroupLoading(
            self._host,
            partition,
            self._topics,
            self._own_times,
            self._load_turns,
            self._memory,
        )
        partition.loaded.add_done_callback(lambda _: self._loaded(loading))
        loading.start()

    def _loaded(self, loading: GroupLoading) -> None:
        if loading.partition.machine is not None:
            self.loads.observe(self._loop.time() - loading.started_s)
        if self._loading.get(loading.partition.index) is loading:
            del self._loading[loading.partition.index]

    def _unload(self, partition: GroupPartition) -> None:
        del self._partitions[partition.index]
        groups = 0 if partition.machine is None else partition.machine.groups_count
        partition.close()
        if groups:
            emit(
                log,
                logging.INFO,
                "coordinator-unloaded",
                partition=partition.index,
                epoch=partition.leader_epoch,
                groups=groups,
            )

    def _reload(self, partition: GroupPartition) -> None:
        self._unload(partition)
        self._load(partition.index, partition.leader_epoch)

    # -- numbers for metrics

    def loading(self) -> Iterator[LoadProgress]:
        """The partitions that are being loaded."""
        for loading in self._loading.values():
            if not loading.partition.loaded.done():
                yield loading.progress

    def machines(self) -> Iterator[tuple[int, GroupMachine]]:
        """The loaded partitions with their machines."""
        for index, partition in self._partitions.items():
            if partition.machine is not None:
                yield index, partition.machine
