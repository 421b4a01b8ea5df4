"""Commits of the first clients, and commits by topic id (docs/offsets.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import ALL_OR_NONE_TAG, YES
from tests.server.wire import Wire

NewTopic = Callable[..., str]
NOBODYS_ID = b"an id of nobody!"
NONE = ErrorCode.NONE
UNKNOWN_ID, UNKNOWN_PARTITION = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
Asked = m.OffsetFetchRequest


@pytest.fixture
def group(wire: Wire, new_topic: NewTopic) -> str:
    """A group that this broker is ready to coordinate."""
    group = f"group-{new_topic()}"
    finding = m.FindCoordinatorRequest(key=group, key_type=0)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    return group


def topic_id(wire: Wire, topic: str) -> bytes:
    request = m.MetadataRequest
    answer = wire.call(ApiKey.METADATA, 12, request([request.MetadataRequestTopic(name=topic)]))
    found: bytes = answer.topics[0].topic_id
    return found


def commit(
    wire: Wire, group: str, version: int, topic: str | bytes, offsets: dict[int, int], **more: Any
) -> list[ErrorCode]:
    """The errors of a commit for partitions of a topic, by name or by id."""
    kinds = m.OffsetCommitRequest
    partitions = [
        kinds.OffsetCommitRequestPartition(index, offset, committed_metadata=f"v{version}")
        for index, offset in offsets.items()
    ]
    named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    request = kinds(group, topics=[kinds.OffsetCommitRequestTopic(**named, partitions=partitions)])
    request._tags = more.get("tags")
    (answer,) = wire.call(ApiKey.OFFSET_COMMIT, version, request).topics
    assert (answer.name or answer.topic_id) == topic
    return [ErrorCode(each.error_code) for each in answer.partitions]


def fetch(wire: Wire, group: str, version: int, topic: str) -> tuple[int, str, ErrorCode]:
    """Offset, metadata and error of partition 0, up to version 7."""
    request = Asked(group, topics=[Asked.OffsetFetchRequestTopic(topic, [0])])
    (found,) = wire.call(ApiKey.OFFSET_FETCH, version, request).topics[0].partitions
    return found.committed_offset, found.metadata, ErrorCode(found.error_code)


def fetch_by_id(
    wire: Wire, group: str, wanted: dict[bytes, list[int]] | None
) -> dict[bytes, list[tuple[int, int, ErrorCode]]]:
    """(partition, offset, error)s by topic id, of OffsetFetch 10."""
    topics = None
    if wanted is not None:
        topics = [
            Asked.OffsetFetchRequestTopics(topic_id=each, partition_indexes=indexes)
            for each, indexes in wanted.items()
        ]
    request = Asked(groups=[Asked.OffsetFetchRequestGroup(group, topics=topics)])
    (answer,) = wire.call(ApiKey.OFFSET_FETCH, 10, request).groups
    assert answer.error_code == NONE
    return {
        topic.topic_id: [
            (each.partition_index, each.committed_offset, ErrorCode(each.error_code))
            for each in topic.partitions
        ]
        for topic in answer.topics
    }


def test_all_versions_keep_the_same_offsets(wire: Wire, new_topic: NewTopic, group: str) -> None:
    topic = new_topic()
    for version in range(8):
        assert fetch(wire, group, version, topic) == (-1, "", NONE)
    for version in range(10):
        assert commit(wire, group, version, topic, {0: version}) == [NONE]
        for reading in range(8):
            assert fetch(wire, group, reading, topic) == (version, f"v{version}", NONE)


@pytest.mark.parametrize("version", range(2))
def test_the_first_versions_name_what_is_wrong(wire: Wire, group: str, version: int) -> None:
    assert commit(wire, group, version, "missing", {0: 1}) == [UNKNOWN_PARTITION]
    assert fetch(wire, group, version, "missing") == (-1, "", NONE)


def test_a_member_commits_in_version_1(wire: Wire, new_topic: NewTopic, group: str) -> None:
    topic = new_topic()
    joining = m.JoinGroupRequest
    protocol = joining.JoinGroupRequestProtocol("range", b"")
    request = joining(group, 10_000, 10_000, "", None, "consumer", [protocol])
    joined = wire.call(ApiKey.JOIN_GROUP, 3, request)
    kinds = m.SyncGroupRequest
    assignments = [kinds.SyncGroupRequestAssignment(joined.member_id, b"")]
    synced = kinds(group, joined.generation_id, joined.member_id, assignments=assignments)
    assert wire.call(ApiKey.SYNC_GROUP, 2, synced).error_code == NONE
    commits = m.OffsetCommitRequest
    for generation, expected in (
        (joined.generation_id, NONE),
        (joined.generation_id + 1, ErrorCode.ILLEGAL_GENERATION),
    ):
        # The time is the client's, and from long ago: the offset isn't to expire by it.
        partition = commits.OffsetCommitRequestPartition(0, 5, -1, 1, "m")
        named = commits.OffsetCommitRequestTopic(topic, partitions=[partition])
        asked = commits(group, generation, joined.member_id, topics=[named])
        (answer,) = wire.call(ApiKey.OFFSET_COMMIT, 1, asked).topics
        assert answer.partitions[0].error_code == expected
    assert commit(wire, group, 0, topic, {0: 6}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert fetch(wire, group, 0, topic) == (5, "m", NONE)


def test_by_topic_id(wire: Wire, new_topic: NewTopic, group: str) -> None:
    name = new_topic(partitions=2)
    topic = topic_id(wire, name)
    assert commit(wire, group, 10, topic, {0: 5, 7: 6}) == [NONE, UNKNOWN_PARTITION]
    assert commit(wire, group, 10, NOBODYS_ID, {0: 5}) == [UNKNOWN_ID]
    assert fetch(wire, group, 7, name) == (5, "v10", NONE)
    assert fetch_by_id(wire, group, {topic: [0, 1], NOBODYS_ID: [3, 3]}) == {
        topic: [(0, 5, NONE), (1, -1, NONE)],
        NOBODYS_ID: [(3, -1, UNKNOWN_ID)],
    }
    assert fetch_by_id(wire, group, {NOBODYS_ID: [3]}) == {NOBODYS_ID: [(3, -1, UNKNOWN_ID)]}
    assert fetch_by_id(wire, group, {}) == {}
    assert fetch_by_id(wire, group, None) == {topic: [(0, 5, NONE)]}


def test_all_or_none_by_topic_id(wire: Wire, new_topic: NewTopic, group: str) -> None:
    topic = topic_id(wire, new_topic())
    tags = {ALL_OR_NONE_TAG: YES}
    untried = ErrorCode.OPERATION_NOT_ATTEMPTED
    errors = commit(wire, group, 10, topic, {0: 5, 7: 6}, tags=tags)
    assert errors == [untried, UNKNOWN_PARTITION]
    assert fetch_by_id(wire, group, None) == {}


def test_an_id_is_that_of_one_topic_for_ever(wire: Wire, new_topic: NewTopic, group: str) -> None:
    name = new_topic()
    old = topic_id(wire, name)
    assert commit(wire, group, 10, old, {0: 5}) == [NONE]
    request = m.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    assert wire.call(ApiKey.DELETE_TOPICS, 5, request).responses[0].error_code == NONE
    creating = m.CreateTopicsRequest
    wire.call(ApiKey.CREATE_TOPICS, 7, creating([creating.CreatableTopic(name, 1, 1)], 10_000))
    assert commit(wire, group, 10, old, {0: 6}) == [UNKNOWN_ID]
    assert fetch_by_id(wire, group, {old: [0]}) == {old: [(0, -1, UNKNOWN_ID)]}
    new = topic_id(wire, name)
    assert commit(wire, group, 10, new, {0: 1}) == [NONE]
    assert fetch_by_id(wire, group, {new: [0]}) == {new: [(0, 1, NONE)]}
