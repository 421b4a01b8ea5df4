"""Calls that librdkafka's admin client makes: cluster, records, broker configs, offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from kraftpy.protocol.errors import ErrorCode
from tests.clients.driver import T0_MS, TIMEOUT_S, Driver, Message, until


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def test_describe_cluster(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.controller.id == node.id
    assert cluster.cluster_id == admin.list_topics(timeout=TIMEOUT_S).cluster_id
    assert len(cluster.cluster_id) == 22  # 16 bytes, base64 without padding


def test_delete_records(
    admin: AdminClient, reference: Driver, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    reference.produce(topic, [Message(b"%d" % i) for i in range(10)])
    deleted = only(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    assert reference.watermarks(topic, 0) == (4, 10)
    assert reference.read(topic, 0, 4, 6)[0].value == b"4"


def test_list_offsets(admin: AdminClient, reference: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    times = (T0_MS, T0_MS + 5000, T0_MS + 2000)
    for time_ms in times:
        reference.produce(topic, [Message(b"x", timestamp_ms=time_ms)])
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(T0_MS + 1000), 1),
    ):
        found = only(admin.list_offsets({TopicPartition(topic, 0): spec}))
        assert found.offset == offset, spec


def test_broker_config_becomes_the_topics_default(
    admin: AdminClient, reference: Driver, new_topic: Callable[..., str]
) -> None:
    (node_id,) = map(str, admin.list_topics(timeout=TIMEOUT_S).brokers)

    def broker(value: str | None) -> ConfigResource:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry("log.segment.bytes", value, incremental_operation=operation)
        return ConfigResource(ResourceType.BROKER, node_id, incremental_configs=[entry])

    def wait_for_segment_bytes(value: str) -> None:
        until(value, lambda: reference.topic_configs(topic)["segment.bytes"] == value)

    topic = new_topic()
    assert reference.topic_configs(topic)["segment.bytes"] == "1073741824"
    only(admin.incremental_alter_configs([broker("1073741000")], request_timeout=TIMEOUT_S))
    try:
        wait_for_segment_bytes("1073741000")
    finally:
        only(admin.incremental_alter_configs([broker(None)], request_timeout=TIMEOUT_S))
    wait_for_segment_bytes("1073741824")


def test_acls_and_credentials_that_are_not_configured(admin: AdminClient) -> None:
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(everything).result(TIMEOUT_S) == []  # it hides SECURITY_DISABLED
    assert admin.describe_user_scram_credentials().result(TIMEOUT_S) == {}
    (user,) = admin.describe_user_scram_credentials(["alice"]).values()
    with pytest.raises(KafkaException) as caught:
        user.result(TIMEOUT_S)
    assert caught.value.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND


def test_authorized_operations_of_a_group(
    admin: AdminClient, reference: Driver, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    group = f"g-{topic}"
    reference.produce(topic, [Message(b"x")])
    reference.group_read(topic, group, 1)

    def operations(asked: bool) -> set[AclOperation] | None:
        described = only(
            admin.describe_consumer_groups([group], include_authorized_operations=asked)
        )
        found = described.authorized_operations
        return None if found is None else set(found)

    assert operations(False) is None
    assert operations(True) == {
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    }
