"""Topics, partitions and configurations: what Kafka's Admin client does.

Changes go to the controller that Metadata names (a KRaft broker forwards them, a ZooKeeper-mode
controller takes them itself) and are tried again on retriable errors until `timeout_ms`. Errors
are per item, so a method that changes something takes one; callers loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kraftpy.client.arguments import check_configs, check_names, checked_cluster
from kraftpy.client.cluster import Cluster, Retry, TopicInfo, check
from kraftpy.client.offsets import Partition, by_topic
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code
from kraftpy.protocol.extensions import FORCE_INTERNAL_TAG, YES

# A broker that is told a timeout answers when it is over, with the reason: wait for that.
ANSWER_MARGIN_MS = 2_000
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
GROUP_RESOURCE = 32
NO_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_OPERATION_SET = 0
_OPERATION_DELETE = 1
# ConfigSource of DescribeConfigs: 1 topic, 2 dynamic broker, 3 dynamic default, 4 static, 5 default
_SOURCES = {1: "topic", 2: "broker", 3: "brokers", 4: "file", 5: "default"}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One configuration entry; `value` is None when it is unset or hidden (sensitive).

    `source` says where the value comes from: topic, broker, brokers (dynamic, all brokers), file
    (server.properties) or default.
    """

    name: str
    value: str | None
    source: str
    read_only: bool


class Admin:
    """Administration through a `Cluster`, which stays the caller's to close."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int = 30_000) -> None:
        self._cluster = checked_cluster(cluster, type(self).__name__)
        self._timeout_ms = timeout_ms

    async def _change(self, request: Any, results: str) -> Any:
        """Sends a one-item change to the controller until it is accepted; the item's result."""

        async def ask() -> Any:
            await self._cluster.refresh()
            controller = self._cluster.controller_id
            response = await self._cluster.request(
                request,
                node_id=controller if controller >= 0 else None,
                timeout_ms=self._timeout_ms + ANSWER_MARGIN_MS,
            )
            (item,) = getattr(response, results)
            # The message came to DeleteTopics with version 5.
            check(item.error_code, getattr(item, "error_message", None))
            return item

        return await self._patiently(ask, NO_TOPIC)

    async def _patiently(
        self, ask: Callable[[], Awaitable[T]], answer: ErrorCode | None = None
    ) -> T:
        """What `ask` returns, asked again while that may help; this error is an answer."""
        retry = Retry(self._timeout_ms)
        while True:
            try:
                return await ask()
            except (ConnectionError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code is answer:
                    raise
                await retry.wait(error)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic; -1 stands for the broker's num.partitions / default.replication.factor.

        KafkaError: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
        INVALID_REPLICATION_FACTOR, INVALID_CONFIG, POLICY_VIOLATION.
        """
        check_configs(configs, f"topic {name!r}")
        kinds = messages.CreateTopicsRequest
        topic = kinds.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[
                kinds.CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        request = kinds(topics=[topic], timeout_ms=self._timeout_ms)
        await self._change(request, "topics")

    async def delete_topic(self, name: str, *, force_internal: bool = False) -> None:
        """Deletes a topic, with `force_internal` even one that belongs to the brokers.

        KafkaError: UNKNOWN_TOPIC_OR_PARTITION, TOPIC_DELETION_DISABLED, INVALID_TOPIC_EXCEPTION.
        """
        kinds = messages.DeleteTopicsRequest
        request = kinds(
            topics=[kinds.DeleteTopicState(name=name)],
            topic_names=[name],  # up to version 5
            timeout_ms=self._timeout_ms,
            _tags={FORCE_INTERNAL_TAG: YES} if force_internal else None,
        )
        await self._change(request, "responses")
        self._cluster.topics.pop(name, None)

    async def create_partitions(self, name: str, count: int) -> None:
        """Raises a topic's number of partitions to `count`; KafkaError: INVALID_PARTITIONS."""
        kinds = messages.CreatePartitionsRequest
        request = kinds(
            topics=[kinds.CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
        )
        await self._change(request, "results")
        self._cluster.topics.pop(name, None)

    async def delete_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Has logs begin at these offsets (-1: the high watermark); where they begin now.

        What came before is gone for everybody. KafkaError, of the first partition that has one:
        OFFSET_OUT_OF_RANGE beyond the high watermark, POLICY_VIOLATION where `cleanup.policy`
        lacks `delete`, UNKNOWN_TOPIC_OR_PARTITION. Others may be done by then; doing it again does
        no harm.
        """
        kinds = messages.DeleteRecordsRequest
        found: dict[Partition, int] = {}

        async def ask() -> None:
            for topic in {topic for topic, _ in offsets}:
                await self._cluster.topic(topic)
            by_leader: dict[int, list[Partition]] = {}
            for name in sorted(offsets.keys() - found.keys()):
                by_leader.setdefault(self._cluster.leader(*name), []).append(name)
            for leader, names in by_leader.items():
                topics = [
                    kinds.DeleteRecordsTopic(
                        topic,
                        [kinds.DeleteRecordsPartition(n, offsets[topic, n]) for n in numbers],
                    )
                    for topic, numbers in by_topic(names).items()
                ]
                response = await self._cluster.request(
                    kinds(topics, self._timeout_ms),
                    node_id=leader,
                    timeout_ms=self._timeout_ms + ANSWER_MARGIN_MS,
                )
                for answered in response.topics:
                    for each in answered.partitions:
                        self._check_deleted(answered.name, each)
                        found[answered.name, each.partition_index] = each.low_watermark

        await self._patiently(ask, NO_TOPIC)
        return dict(sorted(found.items()))

    def _check_deleted(self, topic: str, answer: Any) -> None:
        if answer.error_code:
            self._cluster.topics.pop(topic, None)  # it may be led by another broker by now
            code = error_code(answer.error_code)
            raise KafkaError(code, f"{topic}-{answer.partition_index}: {code.message}")

    async def alter_configs(
        self,
        name: str,
        *,
        values: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        resource_type: int = TOPIC_RESOURCE,
    ) -> None:
        """Sets some of a resource's configurations and returns others to their defaults.

        Entries not named stay as they are (IncrementalAlterConfigs, KIP-339). KafkaError:
        INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION.
        """
        check_configs(values, repr(name))
        kinds = messages.IncrementalAlterConfigsRequest
        configs = [
            kinds.AlterableConfig(name=key, config_operation=_OPERATION_SET, value=value)
            for key, value in (values or {}).items()
        ]
        configs += [
            kinds.AlterableConfig(name=key, config_operation=_OPERATION_DELETE, value=None)
            for key in delete
        ]
        resource = kinds.AlterConfigsResource(
            resource_type=resource_type, resource_name=name, configs=configs
        )
        await self._change(kinds(resources=[resource]), "responses")

    async def describe_configs(
        self, name: str, *, resource_type: int = TOPIC_RESOURCE
    ) -> list[ConfigValue]:
        """Every configuration entry of a topic, broker or group, sorted by name."""
        kinds = messages.DescribeConfigsRequest
        resource = kinds.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=None
        )
        node_id = int(name) if resource_type == BROKER_RESOURCE else None

        async def ask() -> Any:
            if node_id is not None and node_id not in self._cluster.brokers:
                await self._cluster.refresh()
            return await self._cluster.request(kinds(resources=[resource]), node_id=node_id)

        (result,) = (await self._patiently(ask)).results
        check(result.error_code, result.error_message)
        values = [
            ConfigValue(c.name, c.value, _SOURCES.get(c.config_source, "default"), c.read_only)
            for c in result.configs
        ]
        return sorted(values, key=lambda value: value.name)

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """Topics by name (None: all), sorted; KafkaError for the first one that has an error."""
        check_names(names, "describe_topics")

        async def ask() -> list[TopicInfo]:
            errors = await self._cluster.refresh(names)
            for name in names or ():
                if name in errors:
                    raise errors[name]
            wanted = self._cluster.topics if names is None else names
            return [self._cluster.topics[name] for name in sorted(wanted)]

        return await self._patiently(ask, NO_TOPIC)
