"""Stock clients create, describe, grow, configure and delete topics."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kraftpy.protocol.errors import ErrorCode
from tests.clients.driver import (
    Deadline,
    Driver,
    Message,
    RefusedError,
    eventually,
    until,
    wait_for_partitions,
)


def wait_for_refusal(code: ErrorCode, call: Callable[[], object]) -> None:
    deadline = Deadline(f"refusal with {code.name}")
    while deadline.left():
        try:
            call()
        except RefusedError as refused:
            if refused.code == code:
                return
            raise


def test_create_describe_delete(client: Driver, topic: str) -> None:
    client.create_topic(topic, 3, {"retention.ms": "3600000"})
    wait_for_partitions(client, topic, 3)
    assert client.topic_configs(topic)["retention.ms"] == "3600000"
    client.delete_topic(topic)
    # A deletion is answered before every copy of the metadata has it.
    wait_for_refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: client.partition_count(topic))


def test_a_deleted_topic_comes_back_empty(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    client.produce(topic, [Message(b"old")] * 3)
    client.delete_topic(topic)
    wait_for_refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: client.partition_count(topic))
    eventually(ErrorCode.TOPIC_ALREADY_EXISTS, lambda: client.create_topic(topic))
    wait_for_partitions(client, topic, 1)
    assert client.watermarks(topic, 0) == (0, 0)
    assert client.produce(topic, [Message(b"new")]) == [0]
    assert [record.value for record in client.read(topic, 0, 0, 1)] == [b"new"]


def test_create_refuses(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    for name, partitions, configs, code in (
        (topic, 1, {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("not/a/name", 1, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (f"{topic}-zero", 0, {}, ErrorCode.INVALID_PARTITIONS),
        (f"{topic}-key", 1, {"no.such.key": "1"}, ErrorCode.INVALID_CONFIG),
        (f"{topic}-value", 1, {"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG),
    ):
        with pytest.raises(RefusedError) as refused:
            client.create_topic(name, partitions, configs)
        assert refused.value.code == code, (name, refused.value)


def test_delete_refuses_what_is_not_there(client: Driver, topic: str) -> None:
    with pytest.raises(RefusedError) as refused:
        client.delete_topic(topic)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_grow(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=1)
    client.produce(topic, [Message(b"kept")])
    client.grow_topic(topic, 3)
    wait_for_partitions(client, topic, 3)
    assert client.produce(topic, [Message(b"third", partition=2)]) == [0]
    assert [record.value for record in client.read(topic, 0, 0, 1)] == [b"kept"]
    with pytest.raises(RefusedError) as refused:
        client.grow_topic(topic, 2)
    assert refused.value.code == ErrorCode.INVALID_PARTITIONS


def test_configs_take_effect_at_once(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    before = client.topic_configs(topic)
    assert before["max.message.bytes"] == "1048588"
    assert before["cleanup.policy"] == "delete"
    message = Message(bytes(range(256)) * 400)
    client.set_topic_configs(topic, {"max.message.bytes": "50000"})
    until("new limit", lambda: client.topic_configs(topic)["max.message.bytes"] == "50000")
    with pytest.raises(RefusedError) as refused:
        client.produce(topic, [message])
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    client.set_topic_configs(topic, {"max.message.bytes": "200000"})
    sent = eventually(ErrorCode.MESSAGE_TOO_LARGE, lambda: client.produce(topic, [message]))
    assert sent == [0]


def test_configs_refuse(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    for configs in ({"no.such.key": "1"}, {"segment.bytes": "many"}):
        with pytest.raises(RefusedError) as refused:
            client.set_topic_configs(topic, configs)
        assert refused.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.skipif("KRAFTPY_TEST_BOOTSTRAP" in os.environ, reason="Kafka deletes them")
def test_the_brokers_own_topics_are_not_deleted(
    client: Driver, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client.produce(topic, [Message(b"x")])
    client.group_read(topic, f"g-{topic}", 1)
    for refused_call in (
        lambda: client.delete_topic("__consumer_offsets"),
        lambda: client.grow_topic("__consumer_offsets", 60),
        lambda: client.create_topic("__transaction_state"),
    ):
        with pytest.raises(RefusedError) as refused:
            refused_call()
        assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
