"""Stock clients of several users, each with rights of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kraftpy.testing import Broker
from tests.waiting import wait_until

PASSWORD = "a-password"
TIMEOUT_S = 30.0
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_admin="{PASSWORD}" user_alice="{PASSWORD}" user_bob="{PASSWORD}";'
)
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE = AclOperation.READ, AclOperation.WRITE
ALLOW = AclPermissionType.ALLOW


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings: dict[str, Any] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with Broker(**settings) as started:
        admin = AdminClient(config_of(started, "admin"))
        for topic in ("orders-1", "other-1"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
        bindings = [
            AclBinding(TOPIC, "orders-", PREFIXED, "User:alice", "*", WRITE, ALLOW),
            AclBinding(TOPIC, "orders-1", LITERAL, "User:bob", "*", READ, ALLOW),
            AclBinding(GROUP, "bobs", LITERAL, "User:bob", "*", READ, ALLOW),
        ]
        for future in admin.create_acls(bindings).values():
            assert future.result(TIMEOUT_S) is None
        yield started


def config_of(broker: Broker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }


def produce(broker: Broker, user: str, topic: str, **more: Any) -> str | None:
    """The name of the error, None if there was none."""
    errors: list[Any] = []
    producer = Producer({**config_of(broker, user), "message.timeout.ms": 8_000, **more})
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)
    (error,) = errors
    return None if error is None else str(error.name())


@pytest.mark.parametrize("idempotent", [False, True])
def test_who_may_write_writes_and_nobody_else(broker: Broker, idempotent: bool) -> None:
    more = {"enable.idempotence": idempotent}
    assert produce(broker, "alice", "orders-1", **more) is None
    assert produce(broker, "alice", "other-1", **more) == "TOPIC_AUTHORIZATION_FAILED"


def test_who_may_read_does_not_write(broker: Broker) -> None:
    assert produce(broker, "bob", "orders-1") == "TOPIC_AUTHORIZATION_FAILED"


def test_who_may_not_know_of_a_topic_does_not_see_it(broker: Broker) -> None:
    listed = AdminClient(config_of(broker, "bob")).list_topics(timeout=TIMEOUT_S)
    assert set(listed.topics) == {"orders-1"}
    everything = AdminClient(config_of(broker, "admin")).list_topics(timeout=TIMEOUT_S)
    assert {"orders-1", "other-1"} <= set(everything.topics)


def read(broker: Broker, user: str, group: str, topic: str) -> bytes:
    consumer = Consumer(
        {**config_of(broker, user), "group.id": group, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error():
            raise KafkaException(message.error())
        value: bytes = message.value()
        return value
    finally:
        consumer.close()


def test_a_group_needs_its_own_right(broker: Broker) -> None:
    assert produce(broker, "alice", "orders-1") is None
    assert read(broker, "bob", "bobs", "orders-1") == b"value"
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        read(broker, "bob", "alices", "orders-1")
    with pytest.raises(KafkaException, match=r"TOPIC_AUTHORIZATION_FAILED"):
        read(broker, "bob", "bobs", "other-1")


def test_acls_are_described_and_deleted(broker: Broker) -> None:
    admin = AdminClient(config_of(broker, "admin"))
    carol = AclBinding(TOPIC, "other-1", LITERAL, "User:alice", "127.0.0.1", WRITE, ALLOW)
    assert admin.create_acls([carol])[carol].result(TIMEOUT_S) is None
    assert produce(broker, "alice", "other-1") is None
    wanted = AclBindingFilter(
        TOPIC,
        "other-1",
        ResourcePatternType.MATCH,
        "User:alice",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(TIMEOUT_S) == [carol]
    assert admin.delete_acls([wanted])[wanted].result(TIMEOUT_S) == [carol]
    assert admin.describe_acls(wanted).result(TIMEOUT_S) == []
    assert produce(broker, "alice", "other-1") == "TOPIC_AUTHORIZATION_FAILED"


def test_who_is_no_super_user_changes_no_acls(broker: Broker) -> None:
    mine = AclBinding(TOPIC, "other-1", LITERAL, "User:bob", "*", WRITE, ALLOW)
    bob = AdminClient(config_of(broker, "bob"))
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        bob.create_acls([mine])[mine].result(TIMEOUT_S)


def test_what_was_denied_is_in_the_audit_log(broker: Broker) -> None:
    assert produce(broker, "bob", "other-1") == "TOPIC_AUTHORIZATION_FAILED"

    def is_told() -> bool:
        text = broker.log_path.read_text()
        return "access-denied principal=User:bob host=127.0.0.1" in text

    wait_until(is_told, "the audit log has it")
