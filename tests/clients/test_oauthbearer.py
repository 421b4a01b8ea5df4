"""Stock clients that log in by tokens (KIP-255), and come again with others before they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl.oauth import AbstractTokenProvider

from kraftpy.testing import Broker
from tests.clients.confluent import deliver_or_be_refused
from tests.tokens import Issuer, write_keys

TIMEOUT_S = 30.0
ISSUER, STRANGER = Issuer("known"), Issuer("known")
AUDIENCE = "kafka"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.json"
    settings: dict[str, Any] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": write_keys(keys, ISSUER),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "kraftpy.log.level": "debug",
    }
    with Broker(**settings) as started:
        yield started


class Tokens(AbstractTokenProvider):
    """Makes one that counts for so long whenever it's asked."""

    def __init__(self, issuer: Issuer = ISSUER, lifetime_s: int = 3600) -> None:
        self.issuer = issuer
        self._lifetime_s = lifetime_s

    def token(self) -> str:
        return self.new()[0]

    def new(self, _: str = "") -> tuple[str, float]:
        ends_s = int(time.time()) + self._lifetime_s
        return self.issuer.token(aud=AUDIENCE, exp=ends_s), float(ends_s)


class AioTokens(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def token(self) -> str:
        return self._tokens.token()


def confluent(broker: Broker, tokens: Tokens) -> list[bytes]:
    config = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": tokens.new,
    }
    deliver_or_be_refused(config, "confluent")
    consumer = Consumer({**config, "group.id": "confluent"})
    try:
        consumer.assign([TopicPartition("confluent", 0, 0)])
        (record,) = consumer.consume(1, TIMEOUT_S)
        return [record.value()]
    finally:
        consumer.close()


def kafka_python(broker: Broker, tokens: Tokens) -> list[bytes]:
    config: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": tokens,
    }
    producer = KafkaProducer(**config, max_block_ms=8_000)
    try:
        producer.send("kafka-python", b"value").get(timeout=TIMEOUT_S)
    finally:
        producer.close(timeout=5)
    consumer = KafkaConsumer(
        "kafka-python",
        **config,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
    )
    try:
        return [next(consumer).value]
    finally:
        consumer.close()


def aiokafka(broker: Broker, tokens: Tokens) -> list[bytes]:
    async def run() -> list[bytes]:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AioTokens(tokens),
        )
        try:
            await producer.start()
            await producer.send_and_wait("aiokafka", b"value")
        finally:
            await producer.stop()
        return [b"value"]

    return asyncio.run(run())


ROUNDS = {
    "confluent": (confluent, KafkaException),
    "kafka-python": (kafka_python, KafkaPythonError),
    "aiokafka": (aiokafka, AioKafkaError),
}


@pytest.mark.parametrize("client", ROUNDS)
def test_a_client_logs_in_by_a_token(broker: Broker, client: str) -> None:
    assert ROUNDS[client][0](broker, Tokens()) == [b"value"]


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_a_token_that_another_has_signed_is_an_error_of_the_client(
    broker: Broker, client: str
) -> None:
    round_trip, error = ROUNDS[client]
    with pytest.raises(error):
        round_trip(broker, Tokens(STRANGER))


def test_librdkafka_comes_again_with_another_token(broker: Broker) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "renewing",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": Tokens(lifetime_s=3).new,
        }
    )
    errors: list[Any] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    sent = 0
    while "renewing (" not in broker.log_path.read_text():
        assert time.monotonic() < deadline_s
        producer.produce("renewed", b"value", on_delivery=lambda error, _: errors.append(error))
        sent += 1
        assert producer.flush(10) == 0
        time.sleep(0.05)
    assert errors == [None] * sent
