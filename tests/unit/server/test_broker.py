"""What a running broker carries out when the metadata arrives as a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState
from kraftpy.core.security.authorizer import Authorizer
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.broker import Broker
from kraftpy.server.network.client_quotas import ClientQuotas
from kraftpy.server.network.dispatch import Dispatcher
from kraftpy.server.network.throttle import Throttle


class Recorder:
    """Notes the names of the calls that it gets, with the topic where one is named."""

    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            topic = next((each for each in arguments if isinstance(each, str)), None)
            self.calls.append((name, topic))

        return call


def metadata(*topics: str, **configs: str) -> MetadataState:
    state = MetadataState()
    commands: list[dict[str, Any]] = [
        {
            "type": "register_broker",
            "broker_id": 1,
            "incarnation_id": bytes(16),
            "endpoints": [],
            "directories": [],
        },
        {"type": "unfence_broker", "broker_id": 1, "broker_epoch": 1},
        {
            "type": "create_topics",
            "seed": 1,
            "topics": [
                {
                    "name": name,
                    "topic_id": name.encode().ljust(16, b"-"),
                    "partitions": 1,
                    "replication_factor": 1,
                    "configs": configs,
                }
                for name in topics
            ],
        },
    ]
    for index, command in enumerate(commands, 1):
        assert state.apply(index, command).error is ErrorCode.NONE
    assert set(state.topics) == set(topics)
    return state


def test_a_snapshot_carries_changed_settings_and_deleted_topics() -> None:
    calls: list[tuple[str, Any]] = []
    broker = object.__new__(Broker)
    broker.node_id = 1
    broker.config = BrokerConfig.from_properties({})
    broker.metadata = metadata("stays", "goes")
    broker.authorizer = Authorizer(broker.metadata.acls)
    broker.replicas = broker.groups = broker.listener = Recorder(calls)  # type: ignore[assignment]
    broker.logs = SimpleNamespace(cleaner=broker.listener)  # type: ignore[assignment]
    broker.dispatcher = Dispatcher(broker, {})
    broker.quotas = ClientQuotas(broker.dispatcher, {})
    broker.coordinators = [broker.groups]
    broker._membership = broker.replicas  # type: ignore[assignment]
    broker.leader_throttle = broker.follower_throttle = Throttle(1, 0.0)
    broker._live = True
    broker._topic_configs = {}
    broker._on_snapshot(metadata("stays", **{"retention.ms": "5"}).snapshot(), 9)
    assert broker.topic_config("stays").retention_ms == 5
    assert broker.authorizer.acls is broker.metadata.acls
    assert [call for call in calls if call[0] != "update_config"] == [
        ("load", None),
        ("update_configs", None),
        ("metadata_replaced", None),
        ("topic_deleted", "goes"),
        ("refresh", None),
        ("end_sessions", None),
        ("changed", None),
    ]
