"""Clients that create and delete more partitions than they may (KIP-599), over the wire."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.network.quota_use import WAIT_MAX_S
from kraftpy.testing import Broker
from tests.server.test_quotas import alter, entry
from tests.server.wire import Wire

THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
_numbers = itertools.count()


class Client(Wire):
    """Connects anew for each request: else it would wait for what the last one was too much."""

    def __init__(self, broker: Broker) -> None:
        self.id = f"changes-{next(_numbers)}"
        self._broker = broker

    def call(self, key: ApiKey, version: int, request: Any) -> Any:
        super().__init__(self._broker.host, self._broker.port, client_id=self.id)
        with self:
            return super().call(key, version, request)

    def create(self, *topics: tuple[str, int], version: int = 7, dry: bool = False) -> Any:
        new = [m.CreateTopicsRequest.CreatableTopic(name, count, 1) for name, count in topics]
        return self.call(ApiKey.CREATE_TOPICS, version, m.CreateTopicsRequest(new, 10_000, dry))

    def grow(self, name: str, count: int, version: int = 3) -> Any:
        grown = [m.CreatePartitionsRequest.CreatePartitionsTopic(name, count, None)]
        return self.call(
            ApiKey.CREATE_PARTITIONS, version, m.CreatePartitionsRequest(grown, 10_000)
        )

    def delete(self, *names: str, version: int = 5) -> Any:
        request = m.DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000)
        return self.call(ApiKey.DELETE_TOPICS, version, request)


@pytest.fixture
def name() -> str:
    return f"mutated-{next(_numbers)}"


@pytest.fixture
def client(broker: Broker, wire: Wire) -> Iterator[Client]:
    """May change a partition in ten seconds: there are 1.1 at first."""
    made = Client(broker)
    entity = (("client-id", made.id),)
    assert alter(wire, entry(entity, controller_mutation_rate=0.1)) == {entity: 0}
    yield made
    alter(wire, entry(entity, controller_mutation_rate=None))


def errors(answer: Any) -> list[int]:
    (items,) = (getattr(answer, each, None) for each in ("topics", "responses", "results")
                if hasattr(answer, each))  # fmt: skip
    return [each.error_code for each in items]


def test_what_is_too_much_is_refused_topic_by_topic(client: Client, wire: Wire, name: str) -> None:
    answer = client.create((f"{name}-a", 1), (f"{name}-b", 5), (f"{name}-c", 1))
    assert errors(answer) == [0, 0, THROTTLED]
    assert answer.topics[2].error_message
    assert 0 < answer.throttle_time_ms <= 50_000
    assert errors(client.create((f"{name}-c", 1))) == [THROTTLED]
    assert errors(client.grow(f"{name}-a", 2)) == [THROTTLED]
    assert errors(client.delete(f"{name}-a")) == [THROTTLED]
    topics = wire.call(ApiKey.METADATA, 9, m.MetadataRequest(None)).topics
    assert {each.name: len(each.partitions) for each in topics if each.name.startswith(name)} == {
        f"{name}-a": 1,
        f"{name}-b": 5,
    }
    other = Client(client._broker)
    assert errors(other.delete(f"{name}-a", f"{name}-b")) == [0, 0]


def test_earlier_versions_go_through_and_wait(client: Client, name: str) -> None:
    first = client.create((name, 5), version=5)
    assert errors(first) == [0]
    assert first.throttle_time_ms > 0
    second = client.grow(name, 7, version=2)
    assert errors(second) == [0]
    assert second.throttle_time_ms > first.throttle_time_ms
    third = client.delete(name, version=4)
    assert errors(third) == [0]
    assert third.throttle_time_ms > second.throttle_time_ms


def test_nobody_is_told_to_wait_for_longer_than_it_is_held_back(
    client: Client, wire: Wire, name: str
) -> None:
    entity = (("client-id", client.id),)
    assert alter(wire, entry(entity, controller_mutation_rate=0.0001)) == {entity: 0}
    assert client.create((name, 5), version=5).throttle_time_ms == WAIT_MAX_S * 1000


def test_what_a_mention_creates_counts_and_is_never_refused(client: Client, name: str) -> None:
    names = [m.MetadataRequest.MetadataRequestTopic(name=f"{name}-{each}") for each in range(5)]
    answer = client.call(ApiKey.METADATA, 9, m.MetadataRequest(names))
    assert [each.error_code for each in answer.topics] == [0] * 5
    assert answer.throttle_time_ms > 10_000
    assert errors(client.create((name, 1))) == [THROTTLED]


def test_what_is_only_validated_counts_and_what_fails_does_not(client: Client, name: str) -> None:
    assert errors(client.delete(name)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert errors(client.create((name, 1))) == [0]
    assert errors(client.create((name, 50))) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert errors(client.create((f"{name}-dry", 5), dry=True)) == [0]
    assert errors(client.create((f"{name}-wet", 1))) == [THROTTLED]


def test_the_connection_of_who_was_refused_is_held_back(
    broker: Broker, client: Client, name: str
) -> None:
    with Wire(broker.host, broker.port, client_id=client.id) as connected:
        new = m.CreateTopicsRequest.CreatableTopic
        request = m.CreateTopicsRequest([new(name, 5, 1), new(f"{name}-b", 1, 1)], 10_000)
        answer = connected.call(ApiKey.CREATE_TOPICS, 7, request)
        assert errors(answer) == [0, THROTTLED]
        assert answer.throttle_time_ms > 10_000
        connected.send(ApiKey.HEARTBEAT, 3, m.HeartbeatRequest("g"))
        connected.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connected.receive_frame()
