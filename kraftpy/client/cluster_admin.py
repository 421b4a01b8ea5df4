"""What an operator asks of a cluster: its brokers and quorum, who leads, where replicas lie.

Any broker answers, and passes on to the controller what only that can do. A request is tried again
on retriable errors until `timeout_ms`; the errors of single partitions are part of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kraftpy
from kraftpy.client.admin import ANSWER_MARGIN_MS, TOPIC_RESOURCE, Admin
from kraftpy.client.arguments import check_names
from kraftpy.client.cluster import check
from kraftpy.client.offsets import by_topic
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.errors import KafkaError, error_code
from kraftpy.protocol.extensions import (
    METADATA_LEVEL_FEATURE,
    METRICS_TAG,
    REGISTERED_TAG,
    decode_int64,
)

METADATA_TOPIC = "__cluster_metadata"
PREFERRED_ELECTION = 0
UNCLEAN_ELECTION = 1
# See kraftpy.server.handlers.quorum; brokers that don't know it answer that the topic is unknown.
_LEADER_TAG = 10_000


class PartitionName(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ClusterBroker:
    """A registered broker; one that is `fenced` is down or has yet to catch up.

    `registered_ms` is when it registered last, by its own clock; `metrics` where those of its node
    are served. None is what isn't known.
    """

    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    registered_ms: int | None = None
    metrics: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Who belongs to the cluster; brokers by id."""

    id: str
    controller_id: int
    brokers: dict[int, ClusterBroker]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or observer of the metadata log; times are wall-clock milliseconds, -1 for never."""

    id: int
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The metadata quorum; `addresses` has those of the voters that are known."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    addresses: dict[int, str]


class MetadataLevel(NamedTuple):
    """What may be in the metadata, and the newest level that the broker knows that was asked."""

    current: int
    newest: int


@dataclass(frozen=True, slots=True)
class ReplicatedPartition:
    """A partition with all that is known of its replicas; `leader` is -1 if there is none."""

    topic: str
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that is being moved: `replicas` are all of them, old and new."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that the partition is going to have."""
        return tuple(each for each in self.replicas if each not in self.removing)


class ClusterAdmin(Admin):
    """`Admin` and what concerns brokers and replicas."""

    async def _ask(self, request: Any) -> Any:
        """The response to a request with an error code of its own, tried again while it helps."""

        async def ask() -> Any:
            response = await self._cluster.request(
                request, timeout_ms=self._timeout_ms + ANSWER_MARGIN_MS
            )
            check(response.error_code, getattr(response, "error_message", None))
            return response

        return await self._patiently(ask)

    async def describe_cluster(self) -> ClusterInfo:
        """The brokers, also the fenced ones if the cluster can tell (DescribeCluster 2)."""
        request = messages.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._ask(request)
        return ClusterInfo(
            response.cluster_id,
            response.controller_id,
            {
                each.broker_id: ClusterBroker(
                    each.broker_id,
                    each.host,
                    each.port,
                    each.rack,
                    each.is_fenced,
                    *_registry(each._tags or {}),
                )
                for each in sorted(response.brokers, key=lambda each: each.broker_id)
            },
        )

    async def describe_quorum(self) -> QuorumInfo:
        """The quorum as its leader sees it; KafkaError(NOT_CONTROLLER) if none leads."""
        kinds = messages.DescribeQuorumRequest
        partition = kinds.PartitionData(partition_index=0)
        response = await self._ask(kinds([kinds.TopicData(METADATA_TOPIC, [partition])]))
        (topic,) = response.topics
        (described,) = topic.partitions
        check(described.error_code, described.error_message)
        return QuorumInfo(
            described.leader_id,
            described.leader_epoch,
            described.high_watermark,
            _quorum_replicas(described.current_voters),
            _quorum_replicas(described.observers),
            {
                node.node_id: f"{node.listeners[0].host}:{node.listeners[0].port}"
                for node in response.nodes
                if node.listeners
            },
        )

    async def metadata_level(self) -> MetadataLevel | None:
        """What may be in the metadata, as all nodes know it; None if nothing is said of that."""
        response = await self._request_any(
            messages.ApiVersionsRequest(
                client_software_name="kraftpy", client_software_version=kraftpy.__version__
            )
        )
        known = {each.name: each.max_version for each in response.supported_features}
        if METADATA_LEVEL_FEATURE not in known:
            return None
        found = {each.name: each.max_version_level for each in response.finalized_features}
        return MetadataLevel(found.get(METADATA_LEVEL_FEATURE, 0), known[METADATA_LEVEL_FEATURE])

    async def raise_metadata_level(self, level: int, *, validate_only: bool = False) -> None:
        """Has the metadata reach a level; it never falls.

        KafkaErrors: INVALID_UPDATE_VERSION if not all nodes are up and know it, with who doesn't.
        """
        kinds = messages.UpdateFeaturesRequest
        await self._ask(
            kinds(
                self._timeout_ms,
                [kinds.FeatureUpdateKey(METADATA_LEVEL_FEATURE, level)],
                validate_only,
            )
        )

    async def describe_partitions(
        self, topics: Sequence[str] | None = None
    ) -> dict[PartitionName, ReplicatedPartition]:
        """The partitions of topics (None: all), sorted; KafkaError for the first unknown topic."""
        check_names(topics, "describe_partitions")
        kinds = messages.DescribeTopicPartitionsRequest
        request = kinds([kinds.TopicRequest(name) for name in topics or ()])
        found: dict[PartitionName, ReplicatedPartition] = {}
        while True:
            # The errors are those of topics; none of them is cured by waiting.
            response = await self._request_any(request)
            for topic in response.topics:
                if topic.error_code:
                    raise KafkaError(
                        error_code(topic.error_code), f"there is no topic {topic.name!r}"
                    )
                for each in topic.partitions:
                    found[PartitionName(topic.name, each.partition_index)] = _partition(
                        topic.name, each
                    )
            if response.next_cursor is None:
                return found
            cursor = response.next_cursor
            request.cursor = kinds.Cursor(cursor.topic_name, cursor.partition_index)

    async def topic_configs(
        self, topics: Iterable[str], keys: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Some settings of many topics; topics that went meanwhile are left out."""
        check_names(topics, "topic_configs")
        kinds = messages.DescribeConfigsRequest
        resources = [
            kinds.DescribeConfigsResource(TOPIC_RESOURCE, name, list(keys)) for name in topics
        ]
        if not resources:
            return {}
        response = await self._request_any(kinds(resources))
        return {
            result.resource_name: {config.name: config.value or "" for config in result.configs}
            for result in response.results
            if not result.error_code
        }

    async def log_sizes(self, broker_id: int) -> dict[PartitionName, int]:
        """The size in bytes of each partition that lies on a broker."""
        request = messages.DescribeLogDirsRequest(topics=None)
        if broker_id not in self._cluster.brokers:
            await self._cluster.refresh()
        response = await self._cluster.request(request, node_id=broker_id)
        check(response.error_code)
        return {
            PartitionName(topic.name, each.partition_index): each.partition_size
            for folder in response.results
            for topic in folder.topics
            for each in topic.partitions
        }

    async def elect_leaders(
        self, election_type: int, partitions: Iterable[PartitionName] | None = None
    ) -> dict[PartitionName, KafkaError | None]:
        """Elects the leaders of partitions (None: of all that need it); what became of each.

        ELECTION_NOT_NEEDED: the partition has its preferred leader, or any leader when the election
        is unclean. PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE: its broker, or
        all brokers, are down.
        """
        kinds = messages.ElectLeadersRequest
        named = None
        if partitions is not None:
            named = [
                kinds.TopicPartitions(topic, indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        response = await self._ask(kinds(election_type, named, self._timeout_ms))
        return {
            PartitionName(topic.topic, each.partition_id): _error(each)
            for topic in response.replica_election_results
            for each in topic.partition_result
        }

    async def transfer_quorum(self, voter_id: int) -> None:
        """Has a voter lead the metadata quorum; a kraftpy extension of ElectLeaders.

        KafkaErrors: INVALID_REQUEST if there is no such voter, REQUEST_TIMED_OUT if it does not
        lead within the timeout.
        """
        kinds = messages.ElectLeadersRequest
        named = [kinds.TopicPartitions(METADATA_TOPIC, [0])]
        request = kinds(PREFERRED_ELECTION, named, self._timeout_ms)
        request._tags = {_LEADER_TAG: voter_id.to_bytes(4, "big")}
        response = await self._ask(request)
        for topic in response.replica_election_results:
            for each in topic.partition_result:
                check(each.error_code, each.error_message)

    async def alter_reassignments(
        self, targets: Mapping[PartitionName, Sequence[int] | None]
    ) -> dict[PartitionName, KafkaError | None]:
        """Begins to move partitions to these replicas, None to cancel; what became of each.

        KafkaErrors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT,
        NO_REASSIGNMENT_IN_PROGRESS.
        """
        kinds = messages.AlterPartitionReassignmentsRequest
        topics = [
            kinds.ReassignableTopic(
                topic,
                [
                    kinds.ReassignablePartition(index, None if target is None else list(target))
                    for index in indexes
                    for target in (targets[PartitionName(topic, index)],)
                ],
            )
            for topic, indexes in by_topic(targets).items()
        ]
        response = await self._ask(kinds(timeout_ms=self._timeout_ms, topics=topics))
        return {
            PartitionName(topic.name, each.partition_index): _error(each)
            for topic in response.responses
            for each in topic.partitions
        }

    async def list_reassignments(self) -> dict[PartitionName, Reassignment]:
        """The partitions that are being moved, sorted."""
        request = messages.ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms)
        response = await self._ask(request)
        found = {
            PartitionName(topic.name, each.partition_index): Reassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in response.topics
            for each in topic.partitions
        }
        return dict(sorted(found.items()))

    async def unregister_broker(self, broker_id: int) -> None:
        """Forgets a broker; KafkaError(BROKER_ID_NOT_REGISTERED)."""
        await self._ask(messages.UnregisterBrokerRequest(broker_id=broker_id))

    async def _request_any(self, request: Any) -> Any:
        """The response of any broker to a request whose answer has no error of its own."""
        return await self._patiently(lambda: self._cluster.request(request))


async def sizes_by_broker(
    admin: ClusterAdmin, broker_ids: Iterable[int]
) -> dict[int, dict[PartitionName, int]]:
    """`ClusterAdmin.log_sizes` of several brokers at once, without those that do not answer."""
    ids = list(broker_ids)
    answers = await asyncio.gather(*map(admin.log_sizes, ids), return_exceptions=True)
    sizes = {}
    for broker_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, dict):
            sizes[broker_id] = answer
        elif not isinstance(answer, ConnectionError | KafkaError):
            raise answer
    return sizes


def _registry(tags: dict[int, bytes]) -> tuple[int | None, str | None]:
    registered, metrics = tags.get(REGISTERED_TAG), tags.get(METRICS_TAG)
    return (
        None if registered is None else decode_int64(registered),
        None if metrics is None else metrics.decode("utf-8", "replace"),
    )


def _quorum_replicas(states: Iterable[Any]) -> tuple[QuorumReplica, ...]:
    return tuple(
        QuorumReplica(
            each.replica_id,
            each.log_end_offset,
            each.last_fetch_timestamp,
            each.last_caught_up_timestamp,
        )
        for each in sorted(states, key=lambda each: each.replica_id)
    )


def _partition(topic: str, described: Any) -> ReplicatedPartition:
    return ReplicatedPartition(
        topic,
        described.partition_index,
        described.leader_id,
        described.leader_epoch,
        tuple(described.replica_nodes),
        tuple(described.isr_nodes),
        tuple(described.eligible_leader_replicas or ()),
        tuple(described.last_known_elr or ()),
    )


def _error(item: Any) -> KafkaError | None:
    if not item.error_code:
        return None
    return KafkaError(error_code(item.error_code), item.error_message)
