"""Share groups at their coordinator (KIP-932), in raw requests: members, offsets, errors, life.

What is expected here is what Apache Kafka 4.3 answers, but for the numbers of epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kraftpy.core.metadata.levels import SHARE_VERSION
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.testing import Broker
from tests.server.test_produce import batch
from tests.server.test_transaction_version import SAFE, Update, updated
from tests.server.wire import Wire, produce
from tests.waiting import wait_until

SESSION_MS = 700
ZERO = bytes(16)

_groups = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        group_share_max_size=3,
        group_share_min_session_timeout_ms=100,
        group_share_session_timeout_ms=SESSION_MS,
        group_share_min_heartbeat_interval_ms=50,
        group_share_heartbeat_interval_ms=50,
    ) as started:
        yield started


class Group:
    """One share group, spoken to over one connection."""

    def __init__(self, wire: Wire, topic: str, name: str | None = None) -> None:
        self.wire = wire
        self.topic = topic
        self.name = name or f"share-{next(_groups)}"
        finding = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[self.name])
        answer = wire.call(ApiKey.FIND_COORDINATOR, 4, finding)
        assert answer.coordinators[0].error_code == 0

    def beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        """A heartbeat that says no more than it must."""
        request = m.ShareGroupHeartbeatRequest(
            **{"group_id": self.name, "member_id": member_id, "member_epoch": epoch, **fields}
        )
        return self.wire.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request)

    def join(self, member_id: str, **fields: Any) -> Any:
        """The first heartbeat."""
        fields.setdefault("subscribed_topic_names", [self.topic])
        return self.beat(member_id, fields.pop("epoch", 0), **fields)

    def joined(self, *member_ids: str) -> dict[str, set[int]]:
        """Joins all of them; what each has once all partitions of the topic are dealt out."""
        answers = {each: ok(self.join(each)) for each in member_ids}
        given: dict[str, set[int]] = {}

        def dealt() -> bool:
            for each in member_ids:
                rows = answers[each].assignment
                if rows is not None:
                    given[each] = {i for row in rows.topic_partitions for i in row.partitions}
                answers[each] = ok(self.beat(each, answers[each].member_epoch))
            return all(given[each] for each in member_ids)

        wait_until(dealt, "every member has partitions", 10)
        return given

    def left(self, member_id: str) -> None:
        assert ok(self.beat(member_id, -1)).member_epoch == -1

    def describe(self) -> Any:
        request = m.ShareGroupDescribeRequest([self.name])
        (found,) = self.wire.call(ApiKey.SHARE_GROUP_DESCRIBE, 1, request).groups
        return found

    def starts(self, topics: Mapping[str, list[int]] | None = None, version: int = 1) -> Any:
        """DescribeShareGroupOffsets of this group."""
        kinds = m.DescribeShareGroupOffsetsRequest
        wanted = None
        if topics is not None:
            wanted = [kinds.DescribeShareGroupOffsetsRequestTopic(*each) for each in topics.items()]
        request = kinds([kinds.DescribeShareGroupOffsetsRequestGroup(self.name, wanted)])
        (found,) = self.wire.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, request).groups
        assert found.group_id == self.name
        return found

    def offsets(self) -> dict[int, tuple[int, int]]:
        """Of each partition of the topic, where the group begins and its lag."""
        found = self.starts()
        assert found.error_code == 0
        return {
            each.partition_index: (each.start_offset, each.lag)
            for topic in found.topics
            for each in topic.partitions
        }

    def alter(self, offsets: Mapping[int, int], topic: str | None = None) -> Any:
        kinds = m.AlterShareGroupOffsetsRequest
        rows = [kinds.AlterShareGroupOffsetsRequestPartition(*each) for each in offsets.items()]
        topics = [kinds.AlterShareGroupOffsetsRequestTopic(topic or self.topic, rows)]
        return self.wire.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, kinds(self.name, topics))

    def forget(self, *topics: str) -> Any:
        """DeleteShareGroupOffsets."""
        kinds = m.DeleteShareGroupOffsetsRequest
        names = [kinds.DeleteShareGroupOffsetsRequestTopic(each) for each in topics or [self.topic]]
        return self.wire.call(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, kinds(self.name, names))

    def deleted(self) -> E:
        request = m.DeleteGroupsRequest([self.name])
        return E(self.wire.call(ApiKey.DELETE_GROUPS, 3, request).results[0].error_code)


def ok(answer: Any) -> Any:
    assert answer.error_code == 0, answer.error_message
    return answer


def errors_of(answer: Any) -> dict[int, E]:
    """Those of the partitions of an answer to `alter`."""
    (topic,) = ok(answer).responses
    return {each.partition_index: E(each.error_code) for each in topic.partitions}


@pytest.fixture
def group(wire: Wire, new_topic: Callable[..., str]) -> Group:
    return Group(wire, new_topic(4))


# -- members


def test_members_are_told_what_to_read(group: Group) -> None:
    answer = ok(group.join("one"))
    assert (answer.member_id, answer.member_epoch) == ("one", 1)
    assert answer.heartbeat_interval_ms == 50
    # Nothing is dealt out before its state is kept.
    assert answer.assignment.topic_partitions == []
    given = group.joined("one", "two")
    assert {*given["one"]} | {*given["two"]} == {0, 1, 2, 3}
    assert not given["one"] & given["two"]
    described = group.describe()
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    assert described.group_epoch == described.assignment_epoch
    members = {each.member_id: each for each in described.members}
    assert members.keys() == given.keys()
    for member_id, member in members.items():
        (row,) = member.assignment.topic_partitions
        assert (row.topic_name, {*row.partitions}) == (group.topic, given[member_id])
        assert (member.client_id, member.subscribed_topic_names) == ("wire", [group.topic])
        assert member.member_epoch == described.group_epoch
    group.left("two")
    assert group.joined("one") == {"one": {0, 1, 2, 3}}


def test_more_members_than_partitions_share_them(wire: Wire, new_topic: Callable[..., str]) -> None:
    group = Group(wire, new_topic(1))
    assert group.joined("a", "b", "c") == {"a": {0}, "b": {0}, "c": {0}}
    assert group.join("d").error_code == E.GROUP_MAX_SIZE_REACHED


def test_who_is_silent_is_taken_out(group: Group) -> None:
    group.joined("silent")
    wait_until(lambda: group.describe().group_state == "Empty", "it is taken out", 10)
    assert group.beat("silent", 1).error_code == E.UNKNOWN_MEMBER_ID


def test_a_topic_that_grows_is_dealt_out_whole(group: Group) -> None:
    group.joined("m")
    kinds = m.CreatePartitionsRequest
    request = kinds([kinds.CreatePartitionsTopic(group.topic, 6, None)], 10_000, False)
    (result,) = group.wire.call(ApiKey.CREATE_PARTITIONS, 3, request).results
    assert result.error_code == 0
    wait_until(lambda: group.joined("m") == {"m": {0, 1, 2, 3, 4, 5}}, "it has all", 10)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"member_id": "x" * 37}, "Invalid member id in the request."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": []}, "SubscribedTopicNames must be set in first request."),
        ({"epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_what_no_group_accepts(group: Group, fields: dict[str, Any], problem: str) -> None:
    member_id = fields.pop("member_id", "m")
    answer = group.join(member_id, **fields)
    assert (answer.error_code, answer.error_message) == (E.INVALID_REQUEST, problem)


def test_who_a_member_is(group: Group) -> None:
    assert group.beat("m", 1).error_code == E.GROUP_ID_NOT_FOUND
    assert group.beat("m", -1).error_code == E.GROUP_ID_NOT_FOUND
    assert group.describe().error_code == E.GROUP_ID_NOT_FOUND
    group.joined("m")
    epoch = group.describe().group_epoch
    assert group.beat("other", epoch).error_code == E.UNKNOWN_MEMBER_ID
    assert group.beat("m", epoch + 1).error_code == E.FENCED_MEMBER_EPOCH
    ok(group.beat("m", epoch - 1))  # the answer that raised it may have been lost
    assert ok(group.join("m")).assignment.topic_partitions[0].partitions == [0, 1, 2, 3]


# -- one namespace


def listed(wire: Wire, *types: str) -> dict[str, tuple[str, str, str]]:
    request = m.ListGroupsRequest([], list(types))
    return {
        each.group_id: (each.group_type, each.protocol_type, each.group_state)
        for each in wire.call(ApiKey.LIST_GROUPS, 5, request).groups
    }


def test_share_groups_are_listed(group: Group) -> None:
    group.joined("m")
    assert listed(group.wire)[group.name] == ("share", "share", "Stable")
    assert group.name in listed(group.wire, "Share")
    assert group.name not in listed(group.wire, "consumer", "classic")
    group.left("m")
    assert listed(group.wire, "share")[group.name] == ("share", "share", "Empty")


def test_an_id_is_of_one_kind_of_group(group: Group) -> None:
    wire = group.wire
    group.joined("m")
    join = m.JoinGroupRequest(
        group.name,
        10_000,
        10_000,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"x")],
    )
    assert wire.call(ApiKey.JOIN_GROUP, 5, join).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    beat = m.ConsumerGroupHeartbeatRequest(
        group.name, "c", 0, None, None, 1000, [group.topic], topic_partitions=[]
    )
    answer = wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat)
    assert answer.error_code == E.GROUP_ID_NOT_FOUND
    assert answer.error_message == f"Group {group.name} is not a consumer group."
    kinds = m.OffsetCommitRequest
    topics = [
        kinds.OffsetCommitRequestTopic(
            group.topic, ZERO, [kinds.OffsetCommitRequestPartition(0, 5)]
        )
    ]
    for version in (8, 9):
        commit = wire.call(ApiKey.OFFSET_COMMIT, version, kinds(group.name, -1, "", topics=topics))
        assert commit.topics[0].partitions[0].error_code == E.GROUP_ID_NOT_FOUND
    describe = m.DescribeGroupsRequest([group.name])
    (classic,) = wire.call(ApiKey.DESCRIBE_GROUPS, 6, describe).groups
    assert classic.error_code == E.GROUP_ID_NOT_FOUND

    other = Group(wire, group.topic)
    commit = wire.call(ApiKey.OFFSET_COMMIT, 8, kinds(other.name, -1, "", topics=topics))
    assert commit.topics[0].partitions[0].error_code == 0
    answer = other.join("m")
    assert answer.error_code == E.GROUP_ID_NOT_FOUND
    assert answer.error_message == f"Group {other.name} is not a share group."


# -- offsets


def test_offsets_of_a_group(group: Group) -> None:
    assert group.offsets() == {}  # as of a group that there isn't
    group.joined("m")
    # Nobody has read yet: the leader decides where to begin when somebody does.
    assert group.offsets() == dict.fromkeys(range(4), (-1, -1))
    found = group.starts({group.topic: [2, 9, 2], "nobody's": [0]})
    rows = {
        topic.topic_name: [(each.partition_index, each.start_offset) for each in topic.partitions]
        for topic in found.topics
    }
    assert rows == {group.topic: [(2, -1), (9, -1)], "nobody's": [(0, -1)]}
    assert group.alter({0: 1}).error_code == E.NON_EMPTY_GROUP
    assert group.forget().error_code == E.NON_EMPTY_GROUP
    assert group.deleted() is E.NON_EMPTY_GROUP


def test_offsets_are_set_by_hand(group: Group) -> None:
    for _ in range(3):
        assert produce(group.wire, group.topic, batch(b"x"), partition=1).error_code == 0
    # It makes the group.
    altered = group.alter({0: 0, 1: 1, 7: 0, 2: -2})
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert errors_of(altered) == {0: E.NONE, 1: E.NONE, 7: unknown, 2: E.INVALID_REQUEST}
    assert group.offsets() == {0: (0, 0), 1: (1, 2)}
    assert errors_of(group.alter({0: 0}, "nobody's")) == {0: unknown}
    epoch = group.describe().group_epoch
    assert errors_of(group.alter({1: 3})) == {1: E.NONE}
    assert group.offsets()[1] == (3, 0)
    assert group.describe().group_epoch == epoch + 1  # what was kept before is fenced
    assert listed(group.wire)[group.name] == ("share", "share", "Empty")
    wait_until(lambda: group.joined("m") == {"m": {0, 1, 2, 3}}, "it has all", 10)
    assert group.offsets() == {0: (0, 0), 1: (3, 0), 2: (-1, -1), 3: (-1, -1)}


def test_offsets_are_forgotten(group: Group) -> None:
    assert group.forget().error_code == E.GROUP_ID_NOT_FOUND
    assert errors_of(group.alter({0: 5})) == {0: E.NONE}
    answer = ok(group.forget(group.topic, "nobody's"))
    found = {each.topic_name: (E(each.error_code), each.error_message) for each in answer.responses}
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {group.topic: (E.NONE, None), "nobody's": (unknown, unknown.message)}
    assert group.offsets() == {}
    (again,) = ok(group.forget()).responses
    assert (again.error_code, again.error_message) == (
        unknown,
        "There is no offset information to delete.",
    )
    assert group.joined("m") == {"m": {0, 1, 2, 3}}
    assert group.offsets()[0] == (-1, -1)


def test_a_group_is_deleted_with_its_states(group: Group) -> None:
    assert group.deleted() is E.GROUP_ID_NOT_FOUND
    assert errors_of(group.alter({0: 5})) == {0: E.NONE}
    assert group.deleted() is E.NONE
    assert group.name not in listed(group.wire)
    assert group.describe().error_code == E.GROUP_ID_NOT_FOUND
    assert group.offsets() == {}
    group.joined("m")
    assert group.offsets()[0] == (-1, -1)


def test_a_topic_that_is_gone_is_forgotten(group: Group) -> None:
    assert errors_of(group.alter({0: 5})) == {0: E.NONE}
    request = m.DeleteTopicsRequest(topic_names=[group.topic], timeout_ms=10_000)
    assert group.wire.call(ApiKey.DELETE_TOPICS, 4, request).responses[0].error_code == 0
    wait_until(lambda: group.starts().topics == [], "its states are forgotten", 10)
    assert group.deleted() is E.NONE


# -- the broker


def test_a_group_outlives_its_broker() -> None:
    with Broker() as own:
        with Wire(own.host, own.port) as wire:
            request = m.CreateTopicsRequest
            topic = request.CreatableTopic("t", 2, 1)
            wire.call(ApiKey.CREATE_TOPICS, 7, request([topic], 10_000))
            group = Group(wire, "t", "kept")
            group.joined("m")
            before = group.describe()
            other = Group(wire, "t", "altered")
            assert errors_of(other.alter({1: 7})) == {1: E.NONE}
        own.kill()
        own.restart()
        with Wire(own.host, own.port) as wire:
            group = Group(wire, "t", "kept")
            assert group.describe() == before
            assert ok(group.beat("m", before.group_epoch)).assignment is None
            assert Group(wire, "t", "altered").offsets() == {1: (7, 0)}


def test_without_the_feature_there_are_no_share_groups(group: Group) -> None:
    wire = group.wire
    asking = m.ApiVersionsRequest("test", "1")
    named = {each.api_key for each in wire.call(ApiKey.API_VERSIONS, 4, asking).api_keys}
    assert {76, 77, 90, 91, 92} <= named
    try:
        assert updated(wire, Update(SHARE_VERSION, 0, False, SAFE)) is E.NONE
        left = {each.api_key for each in wire.call(ApiKey.API_VERSIONS, 4, asking).api_keys}
        assert not {76, 77, 90, 91, 92} & left
        for answer in (
            group.join("m"),
            group.describe(),
            group.starts(),
            group.alter({0: 0}),
            group.forget(),
        ):
            assert answer.error_code == E.UNSUPPORTED_VERSION
    finally:
        assert updated(wire, Update(SHARE_VERSION, 1)) is E.NONE
    ok(group.join("m"))
