"""A broker for admin handlers: real metadata, commands applied at once, answers through bytes."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState, Result
from kraftpy.core.metadata.commands import Command, encode
from kraftpy.core.metadata.judgement import judge
from kraftpy.protocol import codec
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.messages import QuorumDescription
from kraftpy.quorum.packing import pack, unpack
from kraftpy.server.handlers import (
    cluster,
    configs,
    features,
    partitions,
    quorum,
    topic_partitions,
    topics,
)
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.session import Session

HANDLERS = {
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: cluster.alter_replica_log_dirs,
    ApiKey.UNREGISTER_BROKER: cluster.unregister_broker,
    ApiKey.DESCRIBE_QUORUM: quorum.describe_quorum,
    ApiKey.UPDATE_FEATURES: features.update_features,
    ApiKey.ELECT_LEADERS: partitions.elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: partitions.alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: partitions.list_partition_reassignments,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topic_partitions.describe_topic_partitions,
}
SESSION = Session("PLAINTEXT", peer=("127.0.0.1", 1), local=("127.0.0.9", 9092))


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


class LogDir(NamedTuple):
    path: str
    total_bytes: int
    usable_bytes: int
    logs: list[tuple[str, int, int]]


class FakeController:
    """Applies commands at once; `failure` stands for a quorum that doesn't answer."""

    def __init__(self, metadata: MetadataState) -> None:
        self.metadata = metadata
        self.commands: list[dict[str, Any]] = []
        self.timeouts_ms: list[int] = []
        self.failure: KafkaError | None = None
        self.quorum: QuorumDescription | None = None
        self.transfers: list[tuple[int, int]] = []

    async def propose(self, command: Command, timeout_ms: int) -> tuple[int, Result]:
        self.commands.append(unpack(pack(encode(command))))
        self.timeouts_ms.append(timeout_ms)
        if self.failure is not None:
            raise self.failure
        judged = judge(self.metadata, command)
        if judged.command is None:
            return -1, Result(value=dict(judged.answers({})))
        index = self.metadata.applied_index + 1
        result = self.metadata.apply(index, unpack(pack(encode(judged.command))))
        return index, replace(result, value=dict(judged.answers(result.value)))

    async def describe_quorum(self, timeout_ms: int) -> QuorumDescription:
        if self.quorum is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "no controller answers")
        return self.quorum

    async def transfer_leadership(self, voter_id: int, timeout_ms: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.transfers.append((voter_id, timeout_ms))


class FakeLogs:
    def describe(self) -> list[LogDir]:
        return [
            LogDir("/a", 1000, 600, [("t", 1, 70), ("t", 0, 50), ("u", 0, 10)]),
            LogDir("/b", 2000, 900, []),
        ]


class FakeBroker:
    """Broker 1 of `brokers`, with what admin handlers use of it."""

    def __init__(self, brokers: int = 1, **properties: str) -> None:
        self.node_id = 1
        self.cluster_id = "a-cluster"
        self.config = BrokerConfig.from_properties(
            {key.replace("_", "."): value for key, value in properties.items()}
        )
        self.metadata = MetadataState()
        self.controller = FakeController(self.metadata)
        self.logs = FakeLogs()
        self.avoided: frozenset[int] = frozenset()
        for broker_id in range(1, brokers + 1):
            self.apply(
                type="register_broker",
                broker_id=broker_id,
                incarnation_id=bytes([broker_id]) * 16,
                endpoints=[],
                directories=[],
            )
        for broker_id in range(1, brokers + 1):
            epoch = self.metadata.brokers[broker_id].epoch
            self.apply(type="unfence_broker", broker_id=broker_id, broker_epoch=epoch)

    def apply(self, **command: Any) -> None:
        """Applies a command that must be accepted."""
        result = self.metadata.apply(self.metadata.applied_index + 1, command)
        assert result.error is ErrorCode.NONE, result.message

    def fence(self, broker_id: int) -> None:
        epoch = self.metadata.brokers[broker_id].epoch
        self.apply(type="fence_broker", broker_id=broker_id, broker_epoch=epoch)

    def unfence(self, broker_id: int) -> None:
        epoch = self.metadata.brokers[broker_id].epoch
        self.apply(type="unfence_broker", broker_id=broker_id, broker_epoch=epoch)

    def expand_isr(self, topic: str, index: int, broker_id: int) -> None:
        """Has the partition's leader find that the replica on this broker is in sync."""
        known = self.metadata.topics[topic]
        state = known.partitions[index]
        epochs = {each.id: each.epoch for each in self.metadata.brokers.values()}
        self.apply(
            type="alter_partition",
            broker_id=state.leader,
            broker_epoch=epochs[state.leader],
            topics=[
                {
                    "topic_id": known.id,
                    "partitions": [
                        {
                            "index": index,
                            "leader_epoch": state.leader_epoch,
                            "partition_epoch": state.partition_epoch,
                            "isr": [
                                {"broker_id": each, "broker_epoch": epochs[each]}
                                for each in (*state.isr, broker_id)
                            ],
                        }
                    ],
                }
            ],
        )

    def controller_id(self) -> int:
        return 7

    def is_alive(self, node_id: int) -> bool:
        return not self.metadata.brokers[node_id].fenced

    def reachable_nodes(self, ctx: RequestContext) -> list[Node]:
        return [node for node in self.all_nodes(ctx) if not node.fenced]

    def all_nodes(self, ctx: RequestContext) -> list[Node]:
        return [
            Node(broker.id, ctx.session.local_host, ctx.session.local_port, "r", broker.fenced)
            for broker in self.metadata.brokers.values()
        ]

    def ask(self, request: Any, version: int | None = None) -> Any:
        """The decoded response to a request in this version (the highest one by default)."""
        key = ApiKey(request.API_KEY)
        version = ADVERTISED[key][1] if version is None else version
        frame = b"".join(codec.encode_request(key, version, 7, "client", request))
        header, position = codec.decode_request_header(frame)
        decoded = codec.decode_request(key, version, frame, position)
        context = RequestContext(header, SESSION, Counter())
        answer = HANDLERS[key](self, context, decoded)  # type: ignore[operator]
        if inspect.iscoroutine(answer):
            answer = asyncio.run(answer)
        response = b"".join(map(bytes, codec.encode_response(key, version, 7, answer)))
        correlation_id, message = codec.decode_response(key, version, response)
        assert correlation_id == 7
        return message

    def create(self, *names: str, **fields: Any) -> None:
        response = self.ask(create(*(new_topic(name, **fields) for name in names)))
        assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}


def versions(key: ApiKey) -> range:
    low, high = ADVERTISED[key]
    return range(low, high + 1)


def new_topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: dict[int, list[int]] | None = None,
) -> m.CreateTopicsRequest.CreatableTopic:
    if assignments:
        partitions = replication_factor = -1
    return m.CreateTopicsRequest.CreatableTopic(
        name,
        partitions,
        replication_factor,
        [
            m.CreateTopicsRequest.CreatableReplicaAssignment(index, replicas)
            for index, replicas in (assignments or {}).items()
        ],
        [
            m.CreateTopicsRequest.CreatableTopicConfig(key, value)
            for key, value in (configs or {}).items()
        ],
    )


def create(
    *new: m.CreateTopicsRequest.CreatableTopic, validate_only: bool = False
) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(list(new), 5000, validate_only)
