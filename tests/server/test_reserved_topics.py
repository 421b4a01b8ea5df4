"""What clients may not do to `__consumer_offsets`, and the one way for who means it."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import FORCE_INTERNAL_TAG, YES
from tests.server.share_state import Share
from tests.server.wire import Wire, produce

NAME = "__consumer_offsets"
STATE = "__share_group_state"
TOPIC = 2
GROUP = "group"
TIMEOUT_MS = 10_000


def commit(wire: Wire) -> None:
    """Commits 7 for a partition of a new topic; the first commit of all creates the topic."""
    creating = m.CreateTopicsRequest
    wire.call(
        ApiKey.CREATE_TOPICS, 7, creating([creating.CreatableTopic("t", 1, 1)], TIMEOUT_MS, False)
    )
    finding = m.FindCoordinatorRequest(key=GROUP, key_type=0)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    request = m.OffsetCommitRequest
    partition = request.OffsetCommitRequestPartition(0, 7, committed_metadata="")
    topic = request.OffsetCommitRequestTopic("t", partitions=[partition])
    answer = wire.call(ApiKey.OFFSET_COMMIT, 8, request(GROUP, topics=[topic]))
    assert answer.topics[0].partitions[0].error_code == 0


def committed(wire: Wire) -> int:
    """What the group has committed; -1 for nothing."""
    finding = m.FindCoordinatorRequest(key=GROUP, key_type=0)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    request = m.OffsetFetchRequest
    wanted = request(GROUP, topics=[request.OffsetFetchRequestTopic("t", [0])])
    answer = wire.call(ApiKey.OFFSET_FETCH, 7, wanted)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def topic_id(wire: Wire) -> bytes:
    request = m.MetadataRequest
    answer = wire.call(ApiKey.METADATA, 12, request([request.MetadataRequestTopic(name=NAME)]))
    found: bytes = answer.topics[0].topic_id
    return found


def deletion(**key: Any) -> m.DeleteTopicsRequest:
    request = m.DeleteTopicsRequest
    names = [key["name"]] if "name" in key else []
    return request([request.DeleteTopicState(**key)], names, TIMEOUT_MS)


@pytest.mark.parametrize("version", range(1, 7))
def test_they_are_not_deleted(wire: Wire, version: int) -> None:
    commit(wire)
    (answer,) = wire.call(ApiKey.DELETE_TOPICS, version, deletion(name=NAME)).responses
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    if version >= 5:
        assert f"`kraftpy topic delete --force-internal {NAME}`" in answer.error_message
    assert committed(wire) == 7


def test_nor_by_their_id(wire: Wire) -> None:
    commit(wire)
    (answer,) = wire.call(ApiKey.DELETE_TOPICS, 6, deletion(topic_id=topic_id(wire))).responses
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert committed(wire) == 7


def test_a_tagged_field_deletes_them_on_purpose(wire: Wire) -> None:
    commit(wire)
    request = deletion(name=NAME)
    request._tags = {FORCE_INTERNAL_TAG: b"\0"}
    (answer,) = wire.call(ApiKey.DELETE_TOPICS, 6, request).responses
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    request._tags = {FORCE_INTERNAL_TAG: YES}
    (answer,) = wire.call(ApiKey.DELETE_TOPICS, 6, request).responses
    assert answer.error_code == ErrorCode.NONE
    assert committed(wire) == -1


@pytest.mark.parametrize("name", [NAME, "__transaction_state", STATE])
def test_they_are_not_created_or_grown_like_a_clients(wire: Wire, name: str) -> None:
    creating = m.CreateTopicsRequest
    request = creating([creating.CreatableTopic(name, 1, 1)], TIMEOUT_MS, False)
    (created,) = wire.call(ApiKey.CREATE_TOPICS, 7, request).topics
    assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    growing = m.CreatePartitionsRequest
    growth = growing([growing.CreatePartitionsTopic(name, 60)], TIMEOUT_MS)
    (grown,) = wire.call(ApiKey.CREATE_PARTITIONS, 3, growth).results
    assert grown.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_nobody_deletes_or_writes_their_records(wire: Wire) -> None:
    commit(wire)
    request = m.DeleteRecordsRequest
    partitions = [request.DeleteRecordsPartition(index, -1) for index in range(50)]
    wanted = request([request.DeleteRecordsTopic(NAME, partitions)], TIMEOUT_MS)
    answer = wire.call(ApiKey.DELETE_RECORDS, 2, wanted)
    assert {each.error_code for each in answer.topics[0].partitions} == {
        ErrorCode.INVALID_TOPIC_EXCEPTION
    }
    assert produce(wire, NAME, b"x").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert committed(wire) == 7


SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize(
    ("key", "operation", "value", "code"),
    [
        ("cleanup.policy", SET, "delete", ErrorCode.INVALID_CONFIG),
        ("cleanup.policy", SET, "compact,delete", ErrorCode.INVALID_CONFIG),
        ("cleanup.policy", SET, "", ErrorCode.INVALID_CONFIG),
        ("cleanup.policy", DELETE, None, ErrorCode.INVALID_CONFIG),
        ("cleanup.policy", APPEND, "delete", ErrorCode.INVALID_CONFIG),
        ("cleanup.policy", SUBTRACT, "compact", ErrorCode.INVALID_CONFIG),
        ("cleanup.policy", SET, "compact", ErrorCode.NONE),
        ("cleanup.policy", APPEND, "compact", ErrorCode.NONE),
        ("cleanup.policy", SUBTRACT, "delete", ErrorCode.NONE),
        ("segment.bytes", SET, "2097152", ErrorCode.NONE),
    ],
)
def test_their_records_stay_compacted(
    wire: Wire, key: str, operation: int, value: str | None, code: ErrorCode
) -> None:
    commit(wire)
    request = m.IncrementalAlterConfigsRequest
    resource = request.AlterConfigsResource(
        TOPIC, NAME, [request.AlterableConfig(key, operation, value)]
    )
    (answer,) = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request([resource])).responses
    assert answer.error_code == code, answer.error_message


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({"segment.bytes": "2097152"}, ErrorCode.INVALID_CONFIG),
        ({"cleanup.policy": "delete"}, ErrorCode.INVALID_CONFIG),
        ({"cleanup.policy": "compact", "segment.bytes": "2097152"}, ErrorCode.NONE),
    ],
)
def test_also_where_all_settings_are_replaced(
    wire: Wire, configs: dict[str, str], code: ErrorCode
) -> None:
    commit(wire)
    request = m.AlterConfigsRequest
    entries = [request.AlterableConfig(*each) for each in configs.items()]
    resource = request.AlterConfigsResource(TOPIC, NAME, entries)
    (answer,) = wire.call(ApiKey.ALTER_CONFIGS, 2, request([resource])).responses
    assert answer.error_code == code, answer.error_message


def configured(wire: Wire, **ops: tuple[int, str | None]) -> ErrorCode:
    """What becomes of an attempt to change settings of the topic of share groups' state."""
    Share(wire, bytes(range(16))).find()
    request = m.IncrementalAlterConfigsRequest
    changes = [request.AlterableConfig(key.replace("_", "."), *each) for key, each in ops.items()]
    resource = request.AlterConfigsResource(TOPIC, STATE, changes)
    (answer,) = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request([resource])).responses
    return ErrorCode(answer.error_code)


def test_nothing_of_share_groups_state_goes_with_time(wire: Wire) -> None:
    refused = ErrorCode.INVALID_CONFIG
    assert configured(wire, cleanup_policy=(SET, "compact")) is refused
    assert configured(wire, cleanup_policy=(APPEND, "compact")) is refused
    assert configured(wire, retention_ms=(SET, "1000")) is refused
    assert configured(wire, retention_ms=(DELETE, None)) is refused
    assert configured(wire, retention_bytes=(SET, "1")) is refused
    assert configured(wire, retention_ms=(SET, "-1")) is ErrorCode.NONE
    assert configured(wire, segment_bytes=(SET, "2097152")) is ErrorCode.NONE


@pytest.mark.parametrize("missing", [None, "cleanup.policy", "retention.ms", "retention.bytes"])
def test_also_where_all_of_its_settings_are_replaced(wire: Wire, missing: str | None) -> None:
    Share(wire, bytes(range(16))).find()
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    if missing is not None:
        del kept[missing]
    request = m.AlterConfigsRequest
    entries = [request.AlterableConfig(*each) for each in kept.items()]
    resource = request.AlterConfigsResource(TOPIC, STATE, entries)
    (answer,) = wire.call(ApiKey.ALTER_CONFIGS, 2, request([resource])).responses
    assert answer.error_code == (0 if missing is None else ErrorCode.INVALID_CONFIG)
