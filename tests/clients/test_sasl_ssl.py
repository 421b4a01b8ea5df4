"""Stock clients that log in over TLS: PLAIN and SCRAM over SASL_SSL."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from kraftpy.testing import Broker
from tests.certificates import Authority
from tests.knowing import knowing
from tests.waiting import wait_until

PASSWORD = "marker-password-3"
TIMEOUT_S = 30.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_admin="{PASSWORD}" user_alice="{PASSWORD}";'
)
VALUES = [bytes([number]) * 50_000 for number in range(40)]


class Secured(NamedTuple):
    broker: Broker
    ca: str

    def librdkafka(self, mechanism: str, name: str, password: str = PASSWORD) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
        }

    def keywords(self, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.broker.bootstrap,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.ca),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder: Path = tmp_path_factory.mktemp("sasl-ssl")
    authority = Authority()
    settings: dict[str, Any] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.issue("CN=broker").write_pem(folder / "broker.pem"),
        # Without the prefix it doesn't count here: nobody shows a certificate.
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=nobody$/nobody/",
    }
    with Broker(**settings) as broker:
        secured = Secured(broker, str(authority.write(folder / "ca.pem")))
        admin = AdminClient(secured.librdkafka("PLAIN", "admin"))
        upsertions = [
            UserScramCredentialUpsertion(
                "alice", ScramCredentialInfo(each, 4096), PASSWORD.encode()
            )
            for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        assert admin.alter_user_scram_credentials(upsertions)["alice"].result(TIMEOUT_S) is None
        yield secured


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(secured: Secured, mechanism: str) -> None:
    topic, config = f"confluent-{mechanism}", secured.librdkafka(mechanism, "alice")
    producer = Producer(config)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        assert [each.value() for each in consumer.consume(len(VALUES), TIMEOUT_S)] == VALUES
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: Secured, mechanism: str) -> None:
    topic, config = f"kafka-python-{mechanism}", secured.keywords(mechanism)
    producer = KafkaProducer(**config)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, **config, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    knowing(consumer, topic)
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka(secured: Secured, mechanism: str) -> None:
    topic, config = f"aiokafka-{mechanism}", secured.keywords(mechanism)
    async with AIOKafkaProducer(**config) as producer:
        for value in VALUES:
            await producer.send(topic, value)
        await producer.flush()
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaConsumer(topic, **config, group_id=topic, auto_offset_reset="earliest") as consumer,
    ):
        assert [(await consumer.getone()).value for _ in VALUES] == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused(secured: Secured, mechanism: str) -> None:
    errors: list[Any] = []
    config = secured.librdkafka(mechanism, "alice", PASSWORD + "x")
    producer = Producer({**config, "error_cb": errors.append})

    def is_refused() -> bool:
        producer.poll(0.1)
        return any(each.name() == "_AUTHENTICATION" for each in errors)

    wait_until(is_refused, "it is refused")
    assert PASSWORD not in secured.broker.log_path.read_text()


def test_who_has_tls_alone_gets_nothing(secured: Secured) -> None:
    config = {"bootstrap.servers": secured.broker.bootstrap, "ssl.ca.location": secured.ca}
    with pytest.raises(KafkaException):
        AdminClient({**config, "security.protocol": "ssl"}).list_topics(timeout=3)
