"""Stock clients where a login counts for a time (KIP-368).

librdkafka and kafka-python log in again on the connections that they have. aiokafka doesn't: its
connections are closed, and it makes others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from kraftpy.testing import Broker
from tests.knowing import knowing

PASSWORD = "marker-password-13"
TIMEOUT_S = 40.0
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'
SETTINGS: dict[str, Any] = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
    "connections.max.reauth.ms": 2000,
    "kraftpy.log.level": "debug",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(**SETTINGS) as started:
        yield started


class Until:
    """Goes on until the broker's log says something of a client, and all has come."""

    def __init__(
        self,
        broker: Broker,
        wanted: Callable[[str], bool],
        has_all: Callable[[], bool] = lambda: True,
    ) -> None:
        self._broker = broker
        self._has_all = has_all
        self._wanted = wanted
        self._deadline_s = time.monotonic() + TIMEOUT_S

    def __iter__(self) -> Iterator[bytes]:
        number = 0
        while not (self._has_all() and self._is_told()):
            assert time.monotonic() < self._deadline_s, "the broker's log has nothing of it"
            yield b"%d" % number
            number += 1
            time.sleep(0.05)

    def _is_told(self) -> bool:
        return any(map(self._wanted, self._broker.log_path.read_text().splitlines()))


def again(client: str) -> Callable[[str], bool]:
    return lambda line: f"{client} (" in line and "has logged in again" in line


def expired(client: str) -> Callable[[str], bool]:
    return lambda line: f"client={client}" in line and "its login has expired" in line


def confluent(broker: Broker) -> None:
    config = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    errors: list[Any] = []
    producer = Producer({**config, "client.id": "c-out"})
    sent = []
    for value in Until(broker, again("c-out")):
        producer.produce("confluent", value, on_delivery=lambda error, _: errors.append(error))
        sent.append(value)
        assert producer.flush(10) == 0
    assert errors == [None] * len(sent)
    consumer = Consumer(
        {**config, "client.id": "c-in", "group.id": "c", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["confluent"])
    got: list[Any] = []
    try:
        for _ in Until(broker, again("c-in"), lambda: len(got) >= len(sent)):
            got.extend(each.value() for each in consumer.consume(1000, 0.1))
    finally:
        consumer.close()
    assert got == sent


def kafka_python(broker: Broker) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**config, client_id="k-out")
    sent = []
    try:
        for value in Until(broker, again("k-out")):
            producer.send("kafka-python", value).get(timeout=10)
            sent.append(value)
    finally:
        producer.close(timeout=5)
    consumer = KafkaConsumer(
        "kafka-python", **config, client_id="k-in", group_id="k", auto_offset_reset="earliest"
    )
    got: list[bytes] = []
    try:
        knowing(consumer, "kafka-python")
        for _ in Until(broker, again("k-in"), lambda: len(got) >= len(sent)):
            got.extend(each.value for some in consumer.poll(100).values() for each in some)
    finally:
        consumer.close()
    assert got == sent


def aiokafka(broker: Broker) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password=PASSWORD,
            client_id="a-out",
        )
        await producer.start()
        try:
            for value in Until(broker, expired("a-out")):
                await producer.send_and_wait("aiokafka", value)
            await producer.send_and_wait("aiokafka", b"behind it")
        finally:
            await producer.stop()

    asyncio.run(run())


def test_clients_go_on_when_the_time_of_their_login_is_over(broker: Broker) -> None:
    clients = (confluent, kafka_python, aiokafka)
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [pool.submit(client, broker) for client in clients]:
            done.result(2 * TIMEOUT_S)
