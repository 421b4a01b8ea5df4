"""Clients that are over their quotas, over the wire and with a stock client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Broker
from tests.server.test_produce import batch
from tests.server.test_quotas import alter, entry
from tests.server.wire import Wire, fetch_request, produce, produce_request

NewTopic = Callable[..., str]
_numbers = itertools.count()


class Client(Wire):
    """A client with an id of its own, whose quotas `limit` sets over another connection."""

    def __init__(self, broker: Broker, other: Wire) -> None:
        self.id = f"held-back-{next(_numbers)}"
        super().__init__(broker.host, broker.port, client_id=self.id)
        self._other = other

    def limit(self, **values: float) -> None:
        entity = (("client-id", self.id),)
        assert alter(self._other, entry(entity, **values)) == {entity: 0}


@pytest.fixture
def client(broker: Broker, wire: Wire) -> Iterator[Client]:
    with Client(broker, wire) as connected:
        yield connected


def test_a_producer_over_its_quota_is_answered_and_held_back(
    wire: Wire, client: Client, new_topic: NewTopic
) -> None:
    topic, records = new_topic(), batch(bytes(1_000))
    produce(client, topic, records)  # the connection is older than the quota
    size_bytes = len(records)
    client.limit(producer_byte_rate=size_bytes // 10 - 1)
    request = produce_request(topic, records)
    told_ms = [client.call(ApiKey.PRODUCE, 9, request).throttle_time_ms]
    began_s = time.monotonic()
    sent = [client.send(ApiKey.HEARTBEAT, 3, m.HeartbeatRequest("g")) for _ in range(3)]
    assert [client.receive(ApiKey.HEARTBEAT, 3)[0] for _ in sent] == sent
    took_s = time.monotonic() - began_s
    assert 0 < told_ms[0] < 10_000
    assert took_s >= told_ms[0] / 1000 - 0.1  # it had some of that before we began
    assert produce(wire, topic, records).error_code == 0


def test_a_fetch_over_the_quota_is_empty_and_leaves_its_session(
    wire: Wire, client: Client, new_topic: NewTopic
) -> None:
    topic, records = new_topic(), batch(bytes(2_000))
    for _ in range(4):
        produce(wire, topic, records)
    whole = fetch_request(topic, 0, partition_max_bytes=len(records))
    whole.session_id, whole.session_epoch = 0, 0
    first = client.call(ApiKey.FETCH, 12, whole)
    assert first.session_id
    client.limit(consumer_byte_rate=len(records) // 10 + 1)

    def ask(epoch: int, offset: int) -> m.FetchResponse:
        request = fetch_request(topic, offset, partition_max_bytes=len(records))
        request.session_id, request.session_epoch = first.session_id, epoch
        answer: m.FetchResponse = client.call(ApiKey.FETCH, 12, request)
        return answer

    within = ask(1, 1)
    assert within.responses[0].partitions[0].records
    assert within.throttle_time_ms == 0
    # One byte more than the quota: as long as that takes it has to wait.
    client.limit(consumer_byte_rate=len(records) * 2 // 10)
    over = ask(2, 2)
    assert over.throttle_time_ms == 0
    empty = ask(3, 3)
    assert (empty.session_id, empty.error_code, empty.responses) == (first.session_id, 0, [])
    assert empty.throttle_time_ms > 0
    client.limit(consumer_byte_rate=1e9)
    with Wire(client.sock.getpeername()[0], client.sock.getpeername()[1]) as another:
        assert another.call(ApiKey.FETCH, 12, whole).responses[0].partitions[0].records


def test_a_whole_fetch_over_the_quota_begins_no_session(
    broker: Broker, wire: Wire, client: Client, new_topic: NewTopic
) -> None:
    topic, records = new_topic(), batch(bytes(2_000))
    produce(wire, topic, records)
    client.limit(consumer_byte_rate=len(records) // 10 + 1)
    request = fetch_request(topic, 0)
    request.session_id, request.session_epoch = 0, 0
    assert client.call(ApiKey.FETCH, 12, request).session_id
    refused = client.call(ApiKey.FETCH, 12, request)
    assert (refused.session_id, refused.responses) == (0, [])
    assert refused.throttle_time_ms > 0


def test_who_has_a_part_of_the_loop_is_held_back_for_its_time(wire: Wire, client: Client) -> None:
    client.limit(request_percentage=0.001)
    request = m.MetadataRequest(None)
    told_ms = [client.call(ApiKey.METADATA, 9, request).throttle_time_ms for _ in range(2)]
    assert 0 < max(told_ms) <= 1_000
    assert wire.call(ApiKey.METADATA, 9, request).throttle_time_ms == 0


def test_librdkafka_is_told_and_held_back(
    broker: Broker, wire: Wire, client: Client, new_topic: NewTopic
) -> None:
    """confluent-kafka's producer: every record arrives, `throttle_cb` is told, as is its rate."""
    topic = new_topic()
    client.limit(producer_byte_rate=210_000)
    told: list[float] = []
    failed: list[Any] = []
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": client.id,
        "throttle_cb": lambda event: told.append(event.throttle_time),
        "linger.ms": 0,
        "batch.size": 100_000,
    }
    producer = Producer(settings)
    began_s = time.monotonic()
    for _ in range(23):
        producer.produce(
            topic, bytes(100_000), on_delivery=lambda error, _: error and failed.append(error)
        )
        assert producer.flush(60) == 0
    took_s = time.monotonic() - began_s
    assert not failed
    assert max(told) > 0
    # The last but one was more than ten seconds' worth by half a second.
    assert took_s >= 0.4
