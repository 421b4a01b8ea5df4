"""Logins that count for a time, at a broker: what waits when the time is over (KIP-368)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.producer import Producer
from kraftpy.client.security import Login, Security
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.sasl.clients import login
from kraftpy.secret import Secret
from kraftpy.testing import Broker
from tests.server.wire import TIMEOUT_S, Closed, Wire

PASSWORD = "marker-password-12"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'
WAIT_MS = int(TIMEOUT_S * 1000) * 10


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings: dict[str, Any] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
        "listener.name.plaintext.plain.connections.max.reauth.ms": "1500",
        "kraftpy.log.level": "debug",
    }
    with Broker(**settings) as started:
        yield started


def logged_in(broker: Broker) -> Wire:
    wire = Wire(broker.host, broker.port)
    answer = wire.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest("PLAIN"))
    assert answer.error_code == 0
    first = login("PLAIN", "alice", PASSWORD, "").first()
    answer = wire.call(ApiKey.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(first))
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 1500)
    return wire


def fetch(topics: list[str]) -> m.FetchRequest:
    kinds = m.FetchRequest
    partition = kinds.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return kinds(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[kinds.FetchTopic(topic=topic, partitions=[partition]) for topic in topics],
    )


@pytest.mark.parametrize("count", [1, 150], ids=["few", "many"])
def test_trap_4_a_fetch_does_not_wait_beyond_the_end_of_its_login(
    broker: Broker, count: int
) -> None:
    """It is answered with what there is, nothing; then the connection is good for a login only."""
    names = [f"parked-{count}-{number}" for number in range(count)]
    with logged_in(broker) as maker:
        topic = m.CreateTopicsRequest.CreatableTopic
        request = m.CreateTopicsRequest([topic(name, 1, 1) for name in names], timeout_ms=10_000)
        created = maker.call(ApiKey.CREATE_TOPICS, 5, request)
        assert {each.error_code for each in created.topics} == {0}
    with logged_in(broker) as wire:
        answer = wire.call(ApiKey.FETCH, 12, fetch(names))
        assert answer.error_code == 0
        partitions = [each for topic in answer.responses for each in topic.partitions]
        assert [each.error_code for each in partitions] == [0] * count
        assert not any(each.records for each in partitions)
        wire.send(ApiKey.FETCH, 12, fetch(names))
        with pytest.raises(Closed):
            wire.receive_frame()


async def test_our_own_client_logs_in_again_and_keeps_its_connections(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early, so that a machine that stands still in between doesn't make it too late."""
    monkeypatch.setattr("kraftpy.client.connection.RENEWED_AFTER", (0.3, 0.35))
    user = Login(mechanism="PLAIN", username="alice", password=Secret(PASSWORD))
    security = Security(user=user)
    async with Cluster(broker.bootstrap, client_id="ours", security=security) as cluster:
        consumer = Consumer(cluster, group_id="g", auto_offset_reset="earliest")
        async with Producer(cluster) as producer, consumer:
            consumer.subscribe(["ours"])
            await producer.send_and_wait("ours", b"0")
            connection = await cluster.connection(1)
            sent, got = 1, 0
            due: set[float | None] = {connection._renew_at_s}
            while len(due) < 2 or got < sent:
                if len(due) < 2:
                    await producer.send_and_wait("ours", b"%d" % sent)
                    await cluster.refresh(["ours"])
                    sent += 1
                got += len(await consumer.poll(timeout_ms=100))
                due.add(connection._renew_at_s)
                assert not connection.closed
            assert await cluster.connection(1) is connection
            assert got == sent
    assert re.search(r"ours \(\S+\) has logged in again", broker.log_path.read_text())
