"""Talking to a coordinator: finding it, again when it moves, and keeping a group's offsets with it.

Rules:

* The coordinator is asked for when a request says that it moved or its connection breaks; requests
  are tried again, with `Retry`'s pauses, on retriable errors.
* A member's requests have connections of their own, and its JoinGroup one apart from all others,
  because it is answered when the other members have joined too.
* Commits carry the member's generation, so that the coordinator refuses those of a member that has
  been replaced. Without a generation (-1) they are those of a simple consumer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kraftpy.client.cluster import BrokerInfo, Cluster, Retry, check, new_lane
from kraftpy.client.connection import Connection
from kraftpy.client.offsets import Offset, OffsetAndMetadata, Partition, with_metadata
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import ALL_OR_NONE_TAG, COOPERATIVE_FEATURE, NO, YES

MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
GROUP_KEY, TRANSACTION_KEY = 0, 1
_NOT_TO_BLAME = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})


@dataclass(frozen=True, slots=True)
class Generation:
    """Who commits or joins: a member of a generation of its group, or (the default) nobody's."""

    id: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """As which member of which group a transaction commits offsets (`Consumer.group_metadata`).

    `done` says of offsets what is to be committed for them (`commits.Done`), or without any what is
    done: of parts of partitions that are claims.
    """

    group_id: str
    generation: Generation = Generation()
    done: Callable[[Mapping[Partition, Offset] | None], Mapping[Partition, Any]] | None = field(
        default=None, compare=False, repr=False
    )


class CoordinatorRoute:
    """The way to the broker that coordinates one group, or the transactions of one id.

    Without lanes of their own, requests go over the connections that the cluster has anyway.
    """

    def __init__(
        self, cluster: Cluster, key: str, key_type: int, *, lane: str = "", join_lane: str = ""
    ) -> None:
        self._key = key
        self._key_type = key_type
        self._cluster = cluster
        self._node_id: int | None = None
        self._lane = lane
        self._join_lane = join_lane

    @property
    def node_id(self) -> int | None:
        """The broker's id, None while it has to be looked for."""
        return self._node_id

    async def close(self) -> None:
        """Closes the connections that are its own."""
        for lane in filter(None, (self._lane, self._join_lane)):
            await self._cluster.close_lane(lane)

    async def connection(self, *, joining: bool = False) -> Connection:
        """The connection to the coordinator, which is looked for if it isn't known."""
        if self._node_id is None:
            self._node_id = await self._find()
        lane = self._join_lane if joining else self._lane
        try:
            return await self._cluster.connection(self._node_id, lane)
        except ConnectionError:
            self._node_id = None
            raise

    async def ask(
        self,
        request: Any,
        *,
        joining: bool = False,
        timeout_ms: int | None = None,
        at_most: int | None = None,
        version: int | None = None,
    ) -> Any:
        """Sends a request to the coordinator, once; `ConnectionError` and KafkaError as they come.

        After an error at the response's top level that says that the coordinator moved, or a broken
        connection, the next request looks for it again. `at_most` is the highest version to use,
        `version` the only one.
        """
        connection = await self.connection(joining=joining)
        try:
            response = await connection.request(
                request,
                timeout_ms=timeout_ms or self._cluster.request_timeout_ms,
                version=version or connection.version(request.API_KEY, at_most),
            )
        except ConnectionError:
            self._node_id = None
            raise
        if getattr(response, "error_code", 0) in MOVED:
            self._node_id = None
        return response

    def forget(self) -> None:
        """Looks for the coordinator again before the next request."""
        self._node_id = None

    async def _find(self) -> int:
        response = await self._cluster.request(
            messages.FindCoordinatorRequest(key=self._key, key_type=self._key_type)
        )
        check(response.error_code, response.error_message)
        node_id: int = response.node_id
        known = self._cluster.brokers.get(node_id)
        rack = None if known is None else known.rack
        self._cluster.brokers[node_id] = BrokerInfo(node_id, response.host, response.port, rack)
        return node_id


class Coordinator(CoordinatorRoute):
    """The broker that coordinates one group.

    With `shared`, for what is no member, requests go over the connections that the cluster has
    anyway.
    """

    def __init__(self, cluster: Cluster, group_id: str, *, shared: bool = False) -> None:
        self.group_id = group_id
        self.refuses_claims = False
        """Whether it last said so, or wasn't asked; whatever the cluster's features are."""
        lane, join_lane = ("", "") if shared else (new_lane("group"), new_lane("join"))
        super().__init__(cluster, group_id, GROUP_KEY, lane=lane, join_lane=join_lane)

    @property
    def request_timeout_ms(self) -> int:
        """How long what isn't given another time is tried again."""
        return self._cluster.request_timeout_ms

    @property
    def takes_claims(self) -> bool:
        """Whether the group can have done records out of order, as far as it's known."""
        return self._cluster.feature(COOPERATIVE_FEATURE) > 0 and not self.refuses_claims

    async def knows_claims(self) -> bool:
        """Whether it may be sent claims, and be asked for them."""
        await self.connection()
        return self._cluster.feature(COOPERATIVE_FEATURE) > 0

    async def ask_features(self) -> int:
        """Has the coordinator tell the cluster's features anew; its level of sharing."""
        connection = await self.connection(joining=True)
        try:
            await self._cluster.ask_features(connection)
        except ConnectionError:
            self.forget()
            raise
        return connection.feature(COOPERATIVE_FEATURE)

    async def commit(
        self,
        offsets: Mapping[Partition, Offset],
        generation: Generation,
        *,
        all_or_none: bool = True,
        timeout_ms: int | None = None,
    ) -> None:
        """Keeps the offsets to go on from; all of them, or an error.

        After an error none is kept, unless it leaves open whether the broker has done it (a
        `ConnectionError`, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE): such a commit may still
        take effect, whole, and over one that was made later elsewhere. Without `all_or_none`, and
        with brokers of Apache Kafka, those that nothing is wrong with are kept.

        Raises KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID when the
        member has been replaced, REBALANCE_IN_PROGRESS when it has to join again first; and the
        last `ConnectionError` or retriable KafkaError when time is up.
        """
        kinds = messages.OffsetCommitRequest
        topics: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            committed, metadata, epoch = with_metadata(offset)
            topics.setdefault(topic, []).append(
                kinds.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=committed,
                    committed_leader_epoch=epoch,
                    committed_metadata=metadata,
                )
            )
        request = kinds(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation.id,
            member_id=generation.member_id,
            group_instance_id=generation.instance_id,
            topics=[
                kinds.OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
            _tags={ALL_OR_NONE_TAG: YES if all_or_none else NO},
        )

        async def attempt(timeout_ms: int) -> None:
            response = await self.ask(request, timeout_ms=timeout_ms)
            self.check_partitions(response.topics)

        await self.retrying(attempt, timeout_ms)

    async def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[Partition, int]:
        """The group's offsets of these partitions; those without one are left out."""
        found = await self.committed_with_metadata(partitions, timeout_ms=timeout_ms)
        return {name: each.offset for name, each in found.items()}

    async def committed_with_metadata(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[Partition, OffsetAndMetadata]:
        """The same with what was committed beside them."""
        kinds = messages.OffsetFetchRequest
        wanted: dict[str, list[int]] = {}
        for topic, partition in partitions:
            wanted.setdefault(topic, []).append(partition)
        request = kinds(
            group_id=self.group_id,
            topics=[
                kinds.OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in wanted.items()
            ],
            require_stable=True,
        )
        found: dict[Partition, OffsetAndMetadata] = {}

        async def attempt(timeout_ms: int) -> None:
            response = await self.ask(request, timeout_ms=timeout_ms)
            check(response.error_code)
            self.check_partitions(response.topics)
            for topic in response.topics:
                for partition in topic.partitions:
                    if partition.committed_offset >= 0:
                        name = (topic.name, partition.partition_index)
                        found[name] = OffsetAndMetadata(
                            partition.committed_offset,
                            partition.metadata or "",
                            partition.committed_leader_epoch,
                        )

        if wanted:
            await self.retrying(attempt, timeout_ms)
        return found

    def check_partitions(self, topics: Iterable[Any]) -> None:
        """Raises the first error of a response's partitions that has a cause of its own."""
        for topic in topics:
            for partition in topic.partitions:
                if partition.error_code not in _NOT_TO_BLAME:
                    code = error_code(partition.error_code)
                    if code in MOVED:
                        self.forget()
                    name = f"{topic.name}-{partition.partition_index}"
                    raise KafkaError(code, f"group {self.group_id!r}, {name}: {code.message}")

    def check_group(self, number: int) -> None:
        """Raises the error of a whole group, which an answer for several has one of each."""
        if number:
            code = error_code(number)
            if code in MOVED:
                self.forget()
            raise KafkaError(code, f"group {self.group_id!r}: {code.message}")

    async def retrying(
        self, attempt: Callable[[int], Awaitable[None]], timeout_ms: int | None
    ) -> None:
        """Makes an attempt until it succeeds, fails for good, or time is up."""
        timeout_ms = timeout_ms or self._cluster.request_timeout_ms
        retry = Retry(timeout_ms)
        while True:
            try:
                return await attempt(timeout_ms)
            except (ConnectionError, KafkaError) as error:
                await retry.wait(error)
