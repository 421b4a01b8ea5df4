"""What an operator asks of consumer groups: which there are, who is in them, what they committed.

Rules:

* A request about one group goes to its coordinator; `list_groups` asks every broker, because each
  knows only the groups that it coordinates, and fails rather than leave some out.
* Groups of both protocols look the same here: a group is described as one of KIP-848 first, and as
  a classic one if it is none or the broker knows no others.
* Offsets are committed as Kafka's tools do it, from outside the group (generation -1). The
  coordinator takes that only while the group has no members.
* Whoever isn't asked for claims isn't held up where nobody knows them yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kraftpy.batching import bounded
from kraftpy.client.admin import Admin
from kraftpy.client.arguments import check_names
from kraftpy.client.claims import FETCH_VERSION, claims_in
from kraftpy.client.cluster import BrokerInfo, Cluster, check
from kraftpy.client.coordinator import Coordinator
from kraftpy.client.group_info import (
    GroupInfo,
    ListedGroup,
    classic_group,
    consumer_group,
    share_group,
)
from kraftpy.client.group_shares import KeyOwner, Share, owner_of_key, shares_of
from kraftpy.client.ledger import Claim
from kraftpy.client.offsets import Offset, Partition, by_topic, with_metadata
from kraftpy.client.partitioner import partition_of_key
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import (
    ALL_OR_NONE_TAG,
    EXPECTED_OFFSET_TAG,
    WANT_RANGES_TAG,
    YES,
)
from kraftpy.wording import numbers_text

_DEAD = "Dead"
# A commit becomes one record batch, which has to stay below the broker's limit (1 MB by default).
_COMMIT_MAX_BYTES = 256 * 1024
_ENTRY_BYTES = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a group goes on in a partition; `leader_epoch` is -1 if the commit named none.

    `ranges` are what it has done above the offset, if they were asked for.
    """

    offset: int
    leader_epoch: int
    metadata: str
    ranges: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareStart:
    """Where a share group begins in a partition, and what it hasn't done there.

    `lag` is None if nobody can say it.
    """

    offset: int
    leader_epoch: int
    lag: int | None


class GroupAdmin(Admin):
    """`Admin` and what concerns groups.

    Every method raises KafkaError: the first error that isn't retriable, or the last retriable one
    when `timeout_ms` is over; and `ConnectionError`.
    """

    def __init__(self, cluster: Cluster, *, timeout_ms: int = 30_000) -> None:
        super().__init__(cluster, timeout_ms=timeout_ms)
        self._coordinators: dict[str, Coordinator] = {}
        self._knows_consumer_groups = True

    async def _ask_coordinator(
        self, group_id: str, request: Any, take: Callable[[Any], T], version: int | None = None
    ) -> tuple[T, BrokerInfo]:
        """What `take` makes of the response, or the error that it raises; and who answered."""
        coordinator = self._coordinator(group_id)

        async def ask() -> tuple[T, BrokerInfo]:
            try:
                answer = await coordinator.ask(
                    request, timeout_ms=self._timeout_ms, version=version
                )
                taken = take(answer)
            except (ConnectionError, KafkaError) as error:
                if not isinstance(error, KafkaError) or error.code.retriable:
                    coordinator.forget()
                raise
            assert coordinator.node_id is not None
            return taken, self._cluster.brokers[coordinator.node_id]

        return await self._patiently(ask)

    def _coordinator(self, group_id: str) -> Coordinator:
        coordinator = self._coordinators.get(group_id)
        if coordinator is None:
            coordinator = Coordinator(self._cluster, group_id, shared=True)
            self._coordinators[group_id] = coordinator
        return coordinator

    # -- groups

    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[ListedGroup]:
        """The groups of all brokers, or those in one of some states and of one of some types."""
        kinds = messages.ListGroupsRequest
        request = kinds(states_filter=list(states), types_filter=list(types))

        async def ask() -> list[ListedGroup]:
            await self._cluster.refresh()
            brokers = sorted(self._cluster.brokers)
            answers = await asyncio.gather(*(self._list_of(node, request) for node in brokers))
            # While a coordinator moves two brokers may list a group.
            found = {group.id: group for answer in answers for group in answer}
            return [found[group_id] for group_id in sorted(found)]

        return await self._patiently(ask)

    async def _list_of(self, node_id: int, request: Any) -> list[ListedGroup]:
        response = await self._cluster.request(
            request, node_id=node_id, timeout_ms=self._timeout_ms
        )
        check(response.error_code)
        return [
            ListedGroup(
                each.group_id,
                each.group_type.lower(),
                each.group_state,
                each.protocol_type,
                node_id,
            )
            for each in response.groups
        ]

    async def describe_group(self, group_id: str) -> GroupInfo:
        """State, members and assignment of a group; KafkaError: GROUP_ID_NOT_FOUND."""
        if self._knows_consumer_groups:
            request = messages.ConsumerGroupDescribeRequest(group_ids=[group_id])
            try:
                described, broker = await self._ask_coordinator(group_id, request, _only_group)
                return consumer_group(described, broker)
            except KafkaError as error:
                if error.code is ErrorCode.UNSUPPORTED_VERSION:
                    self._knows_consumer_groups = False
                elif error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
        classic = messages.DescribeGroupsRequest(groups=[group_id])
        try:
            described, broker = await self._ask_coordinator(group_id, classic, _only_group)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
        else:
            if described.group_state != _DEAD:
                return classic_group(described, broker)
        try:
            share = messages.ShareGroupDescribeRequest([group_id])
            return share_group(*await self._ask_coordinator(group_id, share, _only_group))
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND) from None

    async def share_offsets(self, group_id: str) -> dict[Partition, ShareStart]:
        """Where a share group begins in each of its partitions, sorted.

        Those that nobody has read yet are left out.
        """

        def take(response: Any) -> dict[Partition, ShareStart]:
            (group,) = response.groups
            check(group.error_code, group.error_message)
            return {
                (topic.topic_name, each.partition_index): ShareStart(
                    each.start_offset, each.leader_epoch, each.lag if each.lag >= 0 else None
                )
                for topic in sorted(group.topics, key=lambda topic: topic.topic_name)
                for each in topic.partitions
                if each.start_offset >= 0 and not each.error_code
            }

        kinds = messages.DescribeShareGroupOffsetsRequest
        request = kinds([kinds.DescribeShareGroupOffsetsRequestGroup(group_id, None)])
        return (await self._ask_coordinator(group_id, request, take))[0]

    async def alter_share_offsets(
        self, group_id: str, offsets: Mapping[Partition, int]
    ) -> dict[Partition, KafkaError]:
        """Has a share group go on from these offsets; the partitions that were refused, and why.

        What it has done of them behind an offset is forgotten. The group is made if there is none.
        KafkaError: NON_EMPTY_GROUP.
        """
        kinds = messages.AlterShareGroupOffsetsRequest
        topics = [
            kinds.AlterShareGroupOffsetsRequestTopic(
                topic,
                [
                    kinds.AlterShareGroupOffsetsRequestPartition(number, offsets[topic, number])
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(sorted(offsets)).items()
        ]

        def take(response: Any) -> dict[Partition, KafkaError]:
            check(response.error_code, response.error_message)
            return {
                (topic.topic_name, each.partition_index): KafkaError(
                    error_code(each.error_code), each.error_message
                )
                for topic in response.responses
                for each in topic.partitions
                if each.error_code
            }

        return (await self._ask_coordinator(group_id, kinds(group_id, topics), take))[0]

    async def delete_share_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, KafkaError | None]:
        """Forgets what a share group has done of topics; for each None or its error.

        It begins there anew if it reads them again. KafkaError: GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP.
        """
        kinds = messages.DeleteShareGroupOffsetsRequest

        def take(response: Any) -> dict[str, KafkaError | None]:
            check(response.error_code, response.error_message)
            return {
                each.topic_name: KafkaError(error_code(each.error_code), each.error_message)
                if each.error_code
                else None
                for each in response.responses
            }

        check_names(topics, "delete_share_offsets")
        names = [kinds.DeleteShareGroupOffsetsRequestTopic(topic) for topic in sorted(set(topics))]
        return (await self._ask_coordinator(group_id, kinds(group_id, names), take))[0]

    async def delete_group(self, group_id: str) -> None:
        """Deletes a group with its offsets; KafkaError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""

        def take(response: Any) -> None:
            (result,) = response.results
            check(result.error_code)

        request = messages.DeleteGroupsRequest(groups_names=[group_id])
        await self._ask_coordinator(group_id, request, take)

    # -- offsets

    async def committed(
        self, group_id: str, *, stable: bool = False, ranges: bool = False
    ) -> dict[Partition, CommittedOffset]:
        """All offsets of a group, sorted; empty for a group that there is not.

        Those of open transactions don't count; `stable` waits until there are none (KIP-447). With
        `ranges` what the group has claimed comes along, if its broker serves claims.
        """
        if ranges and await self.serves_claims(group_id):
            return await self._committed_ranges(group_id, stable)

        def take(response: Any) -> dict[Partition, CommittedOffset]:
            check(response.error_code)
            return _committed(response.topics, lambda partition: ())

        request = messages.OffsetFetchRequest(group_id=group_id, topics=None, require_stable=stable)
        return (await self._ask_coordinator(group_id, request, take))[0]

    async def _committed_ranges(
        self, group_id: str, stable: bool
    ) -> dict[Partition, CommittedOffset]:
        def take(response: Any) -> dict[Partition, CommittedOffset]:
            (group,) = response.groups
            check(group.error_code)
            return _committed(group.topics, lambda partition: tuple(claims_in(partition)))

        kinds = messages.OffsetFetchRequest
        request = kinds(
            groups=[kinds.OffsetFetchRequestGroup(group_id=group_id, topics=None)],
            require_stable=stable,
            _tags={WANT_RANGES_TAG: YES},
        )
        return (await self._ask_coordinator(group_id, request, take, FETCH_VERSION))[0]

    async def serves_claims(self, group_id: str) -> bool:
        """Whether the group's broker takes claims, so that its members may share partitions."""
        coordinator = self._coordinator(group_id)

        async def ask() -> bool:
            await coordinator.ask_features()
            return await coordinator.knows_claims()

        return await self._patiently(ask)

    async def shares(self, group_id: str) -> dict[Partition, list[Share]]:
        """Who has which keys of each partition that the group reads.

        KafkaError: GROUP_ID_NOT_FOUND.
        """
        return shares_of(await self.describe_group(group_id))

    async def owner_of(
        self, group_id: str, topic: str, key: bytes, *, partition: int | None = None
    ) -> KeyOwner:
        """Which member has a key's records: where to ask for what it has made of them.

        The partition is where Kafka's producers put the key, if none is named. KafkaError:
        GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION.
        """
        partitions = (await self._cluster.topic(topic)).partitions
        number = partition_of_key(key, len(partitions)) if partition is None else partition
        if number not in partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} has no partition {number}, only {numbers_text(max(partitions))}",
            )
        return owner_of_key((topic, number), key, await self.shares(group_id))

    async def commit(
        self, group_id: str, offsets: Mapping[Partition, Offset], expected: Mapping[Partition, int]
    ) -> dict[Partition, KafkaError]:
        """Commits offsets from outside a group; the partitions that were refused, and why.

        A partition is refused (UNEXPECTED_OFFSET) if what is committed is not `expected`, -1 for
        nothing; only kraftpy's brokers look at that. UNKNOWN_MEMBER_ID: the group has members.
        Up to a few thousand partitions are committed at once, all or none of them, more in several
        steps. OPERATION_NOT_ATTEMPTED: nothing is wrong with this one, but with another one of the
        same step; these come last.
        """
        errors: dict[Partition, KafkaError] = {}
        for some in _commit_parts(group_id, offsets):
            request = _commit_request(group_id, some, expected)
            answer, _ = await self._ask_coordinator(group_id, request, _partition_errors)
            errors |= {name: error for name, error in answer.items() if error is not None}
        if any(error.code is ErrorCode.UNEXPECTED_OFFSET for error in errors.values()):
            # What an attempt without an answer wrote is not expected by the next one.
            now = await self.committed(group_id)
            for name in [name for name in errors if name in now]:
                wanted = with_metadata(offsets[name])
                if (now[name].offset, now[name].metadata) == wanted[:2]:
                    del errors[name]
        others = ErrorCode.OPERATION_NOT_ATTEMPTED
        return dict(sorted(errors.items(), key=lambda item: item[1].code is others))

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[Partition]
    ) -> dict[Partition, KafkaError | None]:
        """Forgets offsets; for each partition None or its error.

        GROUP_SUBSCRIBED_TO_TOPIC: the group reads that topic. Raises KafkaError:
        GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP for one whose members are no consumers.
        """
        kinds = messages.OffsetDeleteRequest
        topics = [
            kinds.OffsetDeleteRequestTopic(
                topic, [kinds.OffsetDeleteRequestPartition(number) for number in numbers]
            )
            for topic, numbers in by_topic(sorted(partitions)).items()
        ]

        def take(response: Any) -> dict[Partition, KafkaError | None]:
            check(response.error_code)
            return _partition_errors(response)

        return (await self._ask_coordinator(group_id, kinds(group_id, topics), take))[0]


def _committed(
    topics: Iterable[Any], ranges: Callable[[Any], tuple[Claim, ...]]
) -> dict[Partition, CommittedOffset]:
    found = {}
    for topic in topics:
        for each in topic.partitions:
            check(each.error_code)
            if each.committed_offset >= 0:
                found[topic.name, each.partition_index] = CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata or "",
                    ranges(each),
                )
    return dict(sorted(found.items()))


def _only_group(response: Any) -> Any:
    (described,) = response.groups
    check(described.error_code, getattr(described, "error_message", None))
    return described


def _partition_errors(response: Any) -> dict[Partition, KafkaError | None]:
    """The error of each partition; a retriable one is raised."""
    errors: dict[Partition, KafkaError | None] = {}
    for topic in response.topics:
        for each in topic.partitions:
            error = KafkaError(error_code(each.error_code)) if each.error_code else None
            # Retriable in Kafka's list, but the topic will not come by itself.
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if error is not None and error.code.retriable and error.code is not missing:
                raise error
            errors[topic.name, each.partition_index] = error
    return errors


def _commit_parts(
    group_id: str, offsets: Mapping[Partition, Offset]
) -> Iterator[dict[Partition, Offset]]:
    def entry_bytes(name: Partition, offset: Offset) -> int:
        texts = (group_id, name[0], with_metadata(offset).metadata)
        return _ENTRY_BYTES + sum(len(text.encode()) for text in texts)

    weighed = ((each, entry_bytes(*each)) for each in sorted(offsets.items()))
    return map(dict, bounded(weighed, _COMMIT_MAX_BYTES))


def _commit_request(
    group_id: str, offsets: Mapping[Partition, Offset], expected: Mapping[Partition, int]
) -> messages.OffsetCommitRequest:
    kinds = messages.OffsetCommitRequest
    topics = []
    for topic, numbers in by_topic(sorted(offsets)).items():
        partitions = []
        for number in numbers:
            offset, metadata, epoch = with_metadata(offsets[topic, number])
            partition = kinds.OffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata=metadata,
            )
            before = expected[topic, number].to_bytes(8, "big", signed=True)
            partition._tags = {EXPECTED_OFFSET_TAG: before}
            partitions.append(partition)
        topics.append(kinds.OffsetCommitRequestTopic(name=topic, partitions=partitions))
    return kinds(group_id=group_id, topics=topics, _tags={ALL_OR_NONE_TAG: YES})
