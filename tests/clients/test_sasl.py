"""Stock clients that have to log in: PLAIN and SCRAM, plain and by TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from kraftpy.testing import Broker
from tests.certificates import Authority
from tests.clients.confluent import deliver_or_be_refused
from tests.knowing import knowing

PASSWORD = "marker-password-3"
TIMEOUT_S = 30.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_admin="{PASSWORD}" user_alice="{PASSWORD}";'
)
SCRAM = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
SETTINGS: dict[str, Any] = {
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
}


def protocol_of(broker: Broker) -> str:
    """What its clients have to speak: with TLS it has an authority's certificate beside it."""
    return "SASL_SSL" if (broker.dir / "broker.pem").exists() else "SASL_PLAINTEXT"


def trusting(broker: Broker) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=broker.dir / "ca.pem")


def librdkafka(broker: Broker, mechanism: str, name: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": protocol_of(broker),
        "ssl.ca.location": str(broker.dir / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
    }


def keywords(broker: Broker, mechanism: str, name: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": protocol_of(broker),
        "ssl_context": None if protocol_of(broker) == "SASL_PLAINTEXT" else trusting(broker),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": name,
        "sasl_plain_password": password,
    }


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient(librdkafka(broker, "PLAIN", "admin", PASSWORD))


def set_password(broker: Broker, name: str, password: str = PASSWORD) -> None:
    upsertions = [
        UserScramCredentialUpsertion(
            name, ScramCredentialInfo(each, 4096), password.encode(), b"salt" * 4
        )
        for each in SCRAM.values()
    ]
    admin = admin_of(broker)
    futures = admin.alter_user_scram_credentials(upsertions)
    assert futures[name].result(TIMEOUT_S) is None


@pytest.fixture(scope="module", params=["SASL_PLAINTEXT", "SASL_SSL"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("sasl")
    authority = Authority()
    authority.write(folder / "ca.pem")
    settings = dict(SETTINGS)
    settings["listener.security.protocol.map"] = f"PLAINTEXT:{request.param},CONTROLLER:PLAINTEXT"
    if request.param == "SASL_SSL":
        keystore = authority.issue("CN=broker").write_pem(folder / "broker.pem")
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore}
    with Broker(dir=folder, **settings) as started:
        set_password(started, "alice")
        yield started


def confluent_round(
    broker: Broker, mechanism: str, topic: str, name: str, password: str
) -> list[bytes]:
    config = librdkafka(broker, mechanism, name, password)
    deliver_or_be_refused(config, topic)
    consumer = Consumer({**config, "group.id": f"{topic}-group", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        (record,) = consumer.consume(1, TIMEOUT_S)
        return [record.value()]
    finally:
        consumer.close()


def kafka_python_round(
    broker: Broker,
    mechanism: str,
    topic: str,
    name: str,
    password: str,
    patience_ms: int = 20_000,
) -> list[bytes]:
    config = keywords(broker, mechanism, name, password)
    producer = KafkaProducer(**config, max_block_ms=8_000, bootstrap_timeout_ms=patience_ms)
    try:
        producer.send(topic, b"value").get(timeout=TIMEOUT_S)
    finally:
        producer.close(timeout=5)
    consumer = KafkaConsumer(
        topic,
        **config,
        group_id=f"{topic}-group",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
    )
    try:
        return [next(knowing(consumer, topic)).value]
    finally:
        consumer.close()


def aiokafka_round(
    broker: Broker, mechanism: str, topic: str, name: str, password: str
) -> list[bytes]:
    async def run() -> list[bytes]:
        config = keywords(broker, mechanism, name, password)
        producer = AIOKafkaProducer(**config)
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"value")
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, **config, group_id=f"{topic}-group", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            return [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value]
        finally:
            await consumer.stop()

    return asyncio.run(run())


def kafka_python_refused(broker: Broker, mechanism: str, topic: str) -> None:
    """kafka-python tries again while it's let, so it's let until the broker has refused it.

    That it was refused it doesn't always know itself: it looks at the end of a connection before
    what came in front of that.
    """
    patience_ms, known = 500, len(broker.log_path.read_text())
    while "authentication-failed" not in broker.log_path.read_text()[known:]:
        assert patience_ms < TIMEOUT_S * 1000
        with pytest.raises(KafkaPythonError):
            kafka_python_round(broker, mechanism, topic, "alice", "wrong", patience_ms)
        patience_ms *= 2


ROUNDS = {
    "confluent": (confluent_round, KafkaException),
    "kafka-python": (kafka_python_round, KafkaPythonError),
    "aiokafka": (aiokafka_round, AioKafkaError),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", ROUNDS)
def test_a_client_logs_in_and_works(broker: Broker, client: str, mechanism: str) -> None:
    topic = f"{client}-{mechanism}".lower()
    round_trip, _ = ROUNDS[client]
    assert round_trip(broker, mechanism, topic, "alice", PASSWORD) == [b"value"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("client", ROUNDS)
def test_a_wrong_password_is_an_error_of_the_client(
    broker: Broker, client: str, mechanism: str
) -> None:
    round_trip, error = ROUNDS[client]
    if client == "kafka-python":
        kafka_python_refused(broker, mechanism, "never")
    else:
        with pytest.raises(error):
            round_trip(broker, mechanism, "never", "alice", "wrong")
    assert "never" not in admin_of(broker).list_topics(timeout=TIMEOUT_S).topics


def test_librdkafka_sets_describes_and_deletes_users(broker: Broker) -> None:
    admin = admin_of(broker)
    set_password(broker, "bob")
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(TIMEOUT_S)
    assert {
        each.mechanism: each.iterations for each in described.scram_credential_infos
    } == dict.fromkeys(SCRAM.values(), 4096)
    rounds = confluent_round(broker, "SCRAM-SHA-256", "bobs", "bob", PASSWORD)
    assert rounds == [b"value"]
    deletions = [UserScramCredentialDeletion("bob", each) for each in SCRAM.values()]
    admin.alter_user_scram_credentials(deletions)["bob"].result(TIMEOUT_S)
    with pytest.raises(KafkaException):
        confluent_round(broker, "SCRAM-SHA-256", "bobs", "bob", PASSWORD)


def test_no_password_is_in_the_log(broker: Broker) -> None:
    """The trap of security called secrets; runs behind the others, but needs none of them."""
    set_password(broker, "dora", "marker-password-4")
    with pytest.raises(KafkaException):
        confluent_round(broker, "PLAIN", "doras", "dora", "marker-password-4")
    text = broker.log_path.read_text()
    assert "authentication-failed" in text
    assert "marker-password" not in text
