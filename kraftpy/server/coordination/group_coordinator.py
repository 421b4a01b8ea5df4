"""The group coordinator of this broker: consumer groups and their offsets in `__consumer_offsets`.

What a request does is `GroupMachine`'s to decide; here is which of its operations that is. What
all coordinators have in common is in `runtime`.

* A group whose members subscribe by regular expressions takes no requests before the topics that
  these match have been found, in pieces.
* Committed offsets whose topic is gone are forgotten, also if it went while nobody coordinated.
* Claims are kept in the twin of the offsets topic, which the first claim makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast

from kraftpy.core.config import BrokerConfig, consumer_times, share_times
from kraftpy.core.coordination import PRIMARY
from kraftpy.core.groups import (
    Client,
    ConsumerTimes,
    GroupCodec,
    GroupConfig,
    GroupMachine,
    GroupMemory,
    OffsetRow,
    new_member_id,
)
from kraftpy.core.groups.effects import Effects
from kraftpy.core.groups.individual.codec import ClaimsCodec
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.places import TWIN, ClaimsLog, ClaimsWanted
from kraftpy.core.groups.individual.requests import claim_tags
from kraftpy.core.groups.share.states import StateWork
from kraftpy.core.metadata import ResourceType
from kraftpy.core.metadata.levels import TWINS
from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC, OFFSETS_TOPIC
from kraftpy.events import emit
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE
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
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kraftpy.server.coordination.group_ids import check_group_id
from kraftpy.server.coordination.group_topics import ClusterTopics, DeleteTopic
from kraftpy.server.coordination.internal_topic import InternalTopic
from kraftpy.server.coordination.loading import Loading, Task
from kraftpy.server.coordination.partition import (
    CoordinatorLog,
    CoordinatorPartition,
    PartitionLog,
)
from kraftpy.server.coordination.runtime import CoordinatorRuntime, Host, answer_of
from kraftpy.server.replication.markers import Marker

log = logging.getLogger(__name__)

_LISTED_TOGETHER = 500

CLAIMS_AT_ONCE_MAX_BYTES = 40_000
"""What commits claim beyond that is for their handlers to cut (`handlers.claim_parts`)."""


class OffsetsLog(PartitionLog, Protocol):
    """The log of the offsets topic, which transactions write to as well."""

    def append_markers(
        self, topic: str, partition: int, markers: Sequence[Marker]
    ) -> tuple[list[ErrorCode], asyncio.Future[int]]:
        """Appends markers now; gives why one isn't taken, and the last offset of the others."""


class ShareStates(Protocol):
    """Who has share coordinators asked for something."""

    def carry_out(self, work: StateWork) -> None: ...


class GroupHost(Host, Protocol):
    """What the coordinator needs of its broker."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def replicas(self) -> OffsetsLog: ...
    @property
    def in_touch(self) -> bool:
        """Whether the quorum was heard of lately, so that nobody else leads what is led here."""

    @property
    def share_groups(self) -> ShareStates: ...


class GroupCoordinator(CoordinatorRuntime[GroupMachine]):
    """Consumer groups of this broker; handlers call it, the broker tells it what it leads."""

    _host: GroupHost

    def __init__(self, host: GroupHost) -> None:
        config = host.config
        topic = InternalTopic(
            host,
            OFFSETS_TOPIC,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=config.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
            setting="offsets.topic.replication.factor",
        )
        self._twin = InternalTopic(
            host,
            INDIVIDUAL_OFFSETS_TOPIC,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "min.cleanable.dirty.ratio": "0.1",
                "segment.bytes": str(config.individual_commit_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
            setting="offsets.topic.replication.factor",
            twin_of=OFFSETS_TOPIC,
        )
        self._making_twin: asyncio.Task[None] | None = None
        logs = [
            CoordinatorLog(OFFSETS_TOPIC, GroupCodec()),
            CoordinatorLog(INDIVIDUAL_OFFSETS_TOPIC, ClaimsCodec(), beside=True),
        ]
        super().__init__(host, "group", topic, logs, self._new_machine)
        self._memory = GroupMemory(config.group_coordinator_max_memory_bytes)
        self.claim_memory = ClaimMemory(config.individual_commit_max_bytes)
        self._topics = ClusterTopics(lambda: host.metadata)
        self._own_times: dict[str, ConsumerTimes] = {}
        self._share_times: dict[str, ConsumerTimes] = {}

    def _new_machine(self, leader_epoch: int) -> GroupMachine:
        config = GroupConfig.from_broker(self._host.config)
        machine = GroupMachine(
            config,
            self._topics,
            self._memory,
            self._own_times,
            self.claim_memory,
            self._share_times,
        )
        machine.claims.is_offered = self._offers_claims
        machine.claims.at_once_max_bytes = CLAIMS_AT_ONCE_MAX_BYTES
        if INDIVIDUAL_OFFSETS_TOPIC in self._host.metadata.topics:
            machine.claims.state = ClaimsLog.CLOSED
        return machine

    def _offers_claims(self) -> bool:
        return self._host.metadata.features.get(COOPERATIVE_FEATURE, 0) > 0

    @property
    def takes_claims(self) -> bool:
        """Whether clients may claim, as the cluster's features and this broker's settings say."""
        return self._host.config.accept_individual_commit and self._offers_claims()

    @property
    def reads_along(self) -> bool:
        return self._host.config.offsets_warm_replicas

    @property
    def write_timeout_ms(self) -> int:
        return self._host.config.offsets_commit_timeout_ms

    # -- life

    def start(self) -> None:
        """Takes on the partitions that this broker leads, and begins to expire offsets."""
        self.metadata_replaced()
        super().start()
        self.every(lambda: self._expiry_interval_s, self.expire_offsets)

    async def stop(self) -> None:
        """Answers every parked request with NOT_COORDINATOR and stops."""
        await self._twin.stop()
        if self._making_twin is not None:
            await asyncio.gather(self._making_twin, return_exceptions=True)
        await super().stop()

    # -- the twin

    def send(self, message: object) -> None:
        """The first claim wants its log: whoever sent it tries again. Or states are wanted."""
        if not isinstance(message, ClaimsWanted):
            self._host.share_groups.carry_out(cast("StateWork", message))
        elif self._host.metadata.level >= TWINS and self._making_twin is None:
            self._making_twin = self._loop.create_task(self._make_twin())

    async def _make_twin(self) -> None:
        # `InternalTopic` has said why not.
        with contextlib.suppress(KafkaError):
            await self._twin.ensure()
        self._making_twin = None

    # -- following the metadata

    def topic_changed(self, name: str) -> None:
        """A topic came, went or got partitions: consumer groups look at their topics again."""
        self._topics.changed(name)

    def metadata_replaced(self) -> None:
        """Any topic may have come, gone or got partitions, any group another configuration."""
        self._topics.replaced()
        self._own_times.clear()
        self._share_times.clear()
        for type_, name in self._host.metadata.configs:
            if type_ == ResourceType.GROUP:
                self.group_configured(name)

    def group_configured(self, group_id: str) -> None:
        """The group has another configuration, or none any more."""
        configs = self._host.metadata.config(ResourceType.GROUP, group_id)
        for times, of in ((self._own_times, consumer_times), (self._share_times, share_times)):
            if configs:
                times[group_id] = ConsumerTimes(*of(configs, self._host.config))
            else:
                times.pop(group_id, None)

    def topic_deleted(self, name: str) -> None:
        """Forgets what was committed for a topic that is gone (a new one may take its name)."""
        super().topic_deleted(name)
        if name not in (OFFSETS_TOPIC, INDIVIDUAL_OFFSETS_TOPIC):
            self.on_all(DeleteTopic(name))

    # -- loading

    def prepare(self, machine: GroupMachine) -> Awaitable[None] | None:
        regexes = [each for each in machine.regexes() if not self._topics.knows(each)]
        return self._match(regexes) if regexes else None

    async def _match(self, regexes: Iterable[str]) -> None:
        for regex in regexes:
            # Kafka may have accepted what is none here; its members will hear of it.
            with contextlib.suppress(KafkaError):
                await self._topics.prepare(regex)

    def after_load(self, machine: GroupMachine) -> Iterable[Task[GroupMachine]]:
        # Topics may also have gone while nobody coordinated. What the log has is older than this
        # leadership, so a topic that is not known here is no new one. One that was made again
        # meanwhile can't be told from the old one: the records name topics without their ids.
        named = {*machine.offsets.topics(), *machine.pending.topics()}
        gone = {topic for topic in named if self._topics.find(topic) is None}
        # The records of share groups have the ids.
        for topic_id, name in machine.share_topics().items():
            if self._topics.name_of(topic_id) is None:
                gone.add(name)
        return map(DeleteTopic, sorted(gone))

    def contents(self, machine: GroupMachine) -> str:
        return f"{machine.offsets_count} committed offsets"

    def tell_loaded(self, loading: Loading[GroupMachine], machine: GroupMachine) -> None:
        counts = loading.counts
        if counts.records or counts.skipped or machine.groups_count or machine.offsets_count:
            emit(
                log,
                logging.INFO,
                "coordinator-loaded",
                partition=loading.partition.index,
                epoch=loading.partition.leader_epochs[0],
                seconds=self._loop.time() - loading.started_s,
                records=counts.records,
                skipped=counts.skipped,
                groups=machine.groups_count,
                offsets=machine.offsets_count,
            )

    def tell_unloaded(
        self, partition: CoordinatorPartition[GroupMachine], machine: GroupMachine
    ) -> None:
        if groups := machine.groups_count:
            emit(
                log,
                logging.INFO,
                "coordinator-unloaded",
                partition=partition.index,
                epoch=partition.leader_epochs[0],
                groups=groups,
            )

    # -- requests: the answer, or a future of it

    async def coordinator_of(
        self, key: str, load_deadline_s: float, *, allow_empty: bool = False
    ) -> int:
        """As of every coordinator. Raises KafkaError: INVALID_GROUP_ID, too."""
        check_group_id(key, allow_empty=allow_empty)
        return await super().coordinator_of(key, load_deadline_s)

    async def index_of(self, key: str) -> int:
        """As of every coordinator. Raises KafkaError: INVALID_GROUP_ID, too."""
        return await super().index_of(check_group_id(key, allow_empty=True))

    def join_group(
        self, client: Client, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """JoinGroup; parked until the rebalance ends."""
        group_id = check_group_id(request.group_id)
        random_id = str(uuid.uuid4())

        def abandon(machine: GroupMachine, token: object, now_ms: int) -> Effects:
            member_id = request.member_id or new_member_id(request, client, random_id)
            return machine.abandon(group_id, member_id, token, now_ms)

        return self.write(
            group_id,
            lambda machine, token, now_ms: machine.join(token, request, client, random_id, now_ms),
            abandon,
        )

    def sync_group(
        self, request: SyncGroupRequest
    ) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        """SyncGroup; parked until the assignment is committed."""
        return self.write(
            check_group_id(request.group_id),
            lambda machine, token, now_ms: machine.sync(token, request, now_ms),
        )

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Heartbeat."""
        return self.read(
            check_group_id(request.group_id),
            lambda machine, now_ms: machine.heartbeat(request, now_ms),
        )

    def leave_group(
        self, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
        """LeaveGroup in its batched form (version 3 and later)."""
        return self.write(
            check_group_id(request.group_id),
            lambda machine, token, now_ms: machine.leave(token, request, now_ms),
        )

    def consumer_heartbeat(
        self, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat; waits until what it changes is committed."""
        group_id = check_group_id(request.group_id)
        regex = request.subscribed_topic_regex
        if regex and not self._topics.knows(regex):
            self.check_served(group_id)
            return self._find_and_heartbeat(regex, client, request)
        return self._heartbeat(client, request)

    def _heartbeat(
        self, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
        random_id = str(uuid.uuid4())
        return self.write(
            request.group_id,
            lambda machine, token, now_ms: machine.consumer_heartbeat(
                token, request, client, random_id, now_ms
            ),
        )

    async def _find_and_heartbeat(
        self, regex: str, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """The same, once the topics that a regex matches have been found."""
        # What is no regex is for the machine to refuse: something else may be worse.
        await self._match([regex])
        answer = self._heartbeat(client, request)
        return await answer_of(answer)

    def describe_consumer_group(
        self, group_id: str
    ) -> ConsumerGroupDescribeResponse.DescribedGroup:
        """One group of a ConsumerGroupDescribe."""
        return self.read(
            check_group_id(group_id), lambda machine, now_ms: machine.consumer_describe(group_id)
        )

    def commit_offsets(
        self, api_version: int, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
        """OffsetCommit; waits until its batch is committed. Raises ManyClaims, too."""
        return self.write(
            check_group_id(request.group_id, allow_empty=True),
            lambda machine, token, now_ms: machine.commit(
                token, request, self._partitions_of, now_ms, api_version=api_version
            ),
        )

    def commit_in_transaction(
        self, api_version: int, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse | asyncio.Future[TxnOffsetCommitResponse]:
        """TxnOffsetCommit of an admitted producer; waits until what it writes is committed.

        Raises ManyClaims, too.
        """
        return self.write(
            check_group_id(request.group_id),
            lambda machine, token, now_ms: machine.commit_in_transaction(
                token, request, self._partitions_of, now_ms, api_version=api_version
            ),
        )

    def wait_for_stable(
        self, request: TxnOffsetCommitRequest
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Waits until what a TxnOffsetCommit wants to be done first is, or why that's over."""
        group_id = check_group_id(request.group_id)
        return self.write(
            group_id,
            lambda machine, token, now_ms: machine.wait_for_stable(
                token, request, self._partitions_of, now_ms, self.write_timeout_ms
            ),
            lambda machine, token, now_ms: machine.abandon_wait(group_id, token),
        )

    def served_partition(self, group_id: str) -> int:
        """The partition of the offsets topic that keeps a group of this broker.

        Raises KafkaError as `write` does, and INVALID_GROUP_ID.
        """
        return self._route(check_group_id(group_id))[0].index

    def served_claims(self, group_id: str) -> int | None:
        """The same of the claims' log; None if claims aren't taken.

        Raises KafkaError as `served_partition` does, and COORDINATOR_LOAD_IN_PROGRESS while that
        log isn't served; the first who asks has it made.
        """
        partition, machine = self._route(check_group_id(group_id))
        if not self.takes_claims:
            return None
        if machine.claims.state is ClaimsLog.ABSENT:
            self.send(ClaimsWanted())
        if machine.claims.state is not ClaimsLog.OPEN:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return partition.index

    def write_markers(
        self, topic: str, index: int, markers: Sequence[Marker]
    ) -> list[ErrorCode | asyncio.Future[ErrorCode]]:
        """Appends markers to a partition of the offsets topic, or of that of claims.

        Gives why one isn't taken, or when it has taken effect: NOT_LEADER_OR_FOLLOWER while the
        partition is loaded.
        """
        partition = self._partitions.get(index)
        machine = None if partition is None else partition.machine
        number = TWIN if topic == INDIVIDUAL_OFFSETS_TOPIC else PRIMARY
        if (
            partition is None
            or machine is None
            or (number == TWIN and machine.claims.state is not ClaimsLog.OPEN)
        ):
            return [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(markers)
        errors, appended = self._host.replicas.append_markers(topic, index, markers)
        ends = [
            (marker.producer_id, marker.end.committed)
            for marker, error in zip(markers, errors, strict=True)
            if error is ErrorCode.NONE
        ]
        answer: asyncio.Future[ErrorCode] = self._loop.create_future()
        if ends:
            partition.follow(machine.markers(answer, ends, number), appended, self.now_ms())
        return [answer if error is ErrorCode.NONE else error for error in errors]

    def fetch_offsets(
        self,
        group_id: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        member_id: str | None = None,
        member_epoch: int = -1,
        *,
        require_stable: bool = False,
        wants_ranges: bool = False,
    ) -> Callable[[], list[tuple[str, list[OffsetRow]]]]:
        """Reads committed offsets by topic when called; of all partitions if `topics` is None.

        `require_stable`: not where a transaction may be about to change it; a member that
        `wants_ranges` is concerned where it has the keys itself. Errors are raised now.
        A member of a consumer group may say who it is: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH.
        """
        if not self._host.in_touch:
            # Another coordinator may have committed what this one doesn't know.
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

        def fetch(
            machine: GroupMachine, now_ms: int
        ) -> Callable[[], list[tuple[str, list[OffsetRow]]]]:
            if member_id is not None or member_epoch >= 0:
                error = machine.check_fetch(group_id, member_id, member_epoch)
                if error is not ErrorCode.NONE:
                    raise KafkaError(error)
            asker = member_id if wants_ranges else None
            return partial(
                machine.fetch, group_id, topics, require_stable=require_stable, asker=asker
            )

        return self.read(check_group_id(group_id, allow_empty=True), fetch)

    def claims_of(self, group_id: str) -> Callable[[str, int], dict[int, bytes] | None]:
        """Tells of a topic and partition what the group has claimed, as tagged fields.

        Raises KafkaError: COORDINATOR_LOAD_IN_PROGRESS while nobody knows.
        """

        def tags(machine: GroupMachine, now_ms: int) -> Callable[[str, int], Any]:
            if machine.claims.unknown:
                raise KafkaError(machine.claims.unknown)
            return lambda topic, index: claim_tags(
                machine.claims.coverage((group_id, topic, index))
            )

        return self.read(check_group_id(group_id, allow_empty=True), tags)

    def generation_of(self, group_id: str) -> int:
        """The generation of a group that has members, -1 of others. Raises KafkaError."""
        group_id = check_group_id(group_id, allow_empty=True)
        return self.read(group_id, lambda machine, now_ms: machine.generation_of(group_id))

    def delete_offsets(
        self, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
        """OffsetDelete."""
        return self.write(
            check_group_id(request.group_id),
            lambda machine, token, now_ms: machine.delete_offsets(
                token, request, self._partitions_of, now_ms
            ),
        )

    def delete_group(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        """One group of a DeleteGroups."""
        return self.write(
            check_group_id(group_id, allow_empty=True),
            lambda machine, token, now_ms: machine.delete_group(token, group_id, now_ms),
        )

    def describe_group(self, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        """One group of a DescribeGroups."""
        return self.read(
            check_group_id(group_id, allow_empty=True),
            lambda machine, now_ms: machine.describe(group_id),
        )

    def list_groups(
        self, states: Sequence[str], types: Sequence[str]
    ) -> Iterator[list[ListGroupsResponse.ListedGroup]]:
        """ListGroups: the groups that this broker coordinates, some at a time.

        Groups may come and go in between.
        """
        for machine in self.all_machines():
            group_ids = list(machine.group_ids())
            for start in range(0, len(group_ids), _LISTED_TOGETHER):
                some = group_ids[start : start + _LISTED_TOGETHER]
                yield machine.list_groups(states, types, some)

    def _partitions_of(self, topic: str) -> Collection[int]:
        known = self._host.metadata.topics.get(topic)
        return () if known is None else known.partitions

    # -- expiry

    async def expire_offsets(self) -> None:
        """Deletes the committed offsets whose time is over; it also runs by itself."""
        await self.expire_all(
            "committed offsets",
            GroupMachine.group_ids,
            GroupMachine.expire_offsets,
            self._expiry_interval_s,
        )

    @property
    def _expiry_interval_s(self) -> float:
        return self._host.config.offsets_retention_check_interval_ms / 1000
