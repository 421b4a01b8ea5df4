"""Groups whose coordinator assigns partitions (KIP-848), in raw requests: errors, deadlines, life.

What is expected here is what Apache Kafka 4.3 answers (tests/conformance/test_consumer_protocol.py
asks it), except for the numbers of epochs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kraftpy.core.metadata import LEVEL
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.server.wire import Wire
from tests.waiting import wait_until

BEAT = messages.ConsumerGroupHeartbeatRequest
SESSION_MS = 700

_groups = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        group_consumer_max_size=3,
        group_consumer_min_session_timeout_ms=100,
        group_consumer_session_timeout_ms=SESSION_MS,
        group_consumer_min_heartbeat_interval_ms=50,
        group_consumer_heartbeat_interval_ms=50,
    ) as started:
        yield started


class Group:
    """One group, spoken to over one connection."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.name = f"g-{next(_groups)}"
        finding = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[self.name])
        answer = wire.call(ApiKey.FIND_COORDINATOR, 4, finding)
        assert answer.coordinators[0].error_code == 0

    def beat(self, member_id: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
        """A heartbeat that says no more than it must."""
        request = BEAT(
            **{"group_id": self.name, "member_id": member_id, "member_epoch": epoch, **fields}
        )
        return self.wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)

    def join(self, member_id: str, **fields: Any) -> Any:
        """The first heartbeat."""
        said: dict[str, Any] = {
            "rebalance_timeout_ms": 5_000,
            "subscribed_topic_names": [self.topic],
            "topic_partitions": [],
        }
        return self.beat(member_id, fields.pop("epoch", 0), **{**said, **fields})

    def joined(self, member_id: str, **fields: Any) -> Any:
        """The answer to the first heartbeat, which must be accepted."""
        answer = self.join(member_id, **fields)
        assert answer.error_code == 0, answer.error_message
        return answer

    def describe(self) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
        request = messages.ConsumerGroupDescribeRequest([self.name])
        (found,) = self.wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request).groups
        assert isinstance(found, messages.ConsumerGroupDescribeResponse.DescribedGroup)
        return found

    def commit(self, member_id: str, epoch: int, version: int = 9) -> ErrorCode:
        request = messages.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(0, 5, -1, committed_metadata="")
        asked = request(
            group_id=self.name,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[request.OffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )
        answer = self.wire.call(ApiKey.OFFSET_COMMIT, version, asked)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def fetch(self, member_id: str | None, epoch: int) -> tuple[ErrorCode, list[int]]:
        request = messages.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])
        group = request.OffsetFetchRequestGroup(self.name, member_id, epoch, [topic])
        (found,) = self.wire.call(ApiKey.OFFSET_FETCH, 9, request(groups=[group])).groups
        offsets = [each.committed_offset for t in found.topics for each in t.partitions]
        return ErrorCode(found.error_code), offsets


def partitions(answer: Any) -> list[int] | None:
    """What the member is to own; None if the answer doesn't say."""
    if answer.assignment is None:
        return None
    return sorted(index for each in answer.assignment.topic_partitions for index in each.partitions)


def owned(answer: Any) -> list[BEAT.TopicPartitions]:
    """The same as a heartbeat says it."""
    return [
        BEAT.TopicPartitions(t.topic_id, t.partitions) for t in answer.assignment.topic_partitions
    ]


@pytest.fixture
def group(wire: Wire, new_topic: Callable[..., str]) -> Group:
    return Group(wire, new_topic(partitions=4))


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (ErrorCode.INVALID_REQUEST, {"group_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"member_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"instance_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"rack_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"rebalance_timeout_ms": -1}),
        (ErrorCode.INVALID_REQUEST, {"subscribed_topic_names": None}),
        (ErrorCode.INVALID_REQUEST, {"topic_partitions": None}),
        (ErrorCode.INVALID_REQUEST, {"topic_partitions": [BEAT.TopicPartitions(bytes(16), [1])]}),
        (ErrorCode.INVALID_REQUEST, {"epoch": -3}),
        (ErrorCode.INVALID_REQUEST, {"epoch": -2}),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, {"server_assignor": "mine"}),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, {"server_assignor": ""}),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, {"subscribed_topic_regex": "(a"}),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, {"subscribed_topic_regex": "a" * 5_000}),
        (ErrorCode.GROUP_ID_NOT_FOUND, {"epoch": 3}),
        (ErrorCode.GROUP_ID_NOT_FOUND, {"epoch": -1}),
    ],
    ids=str,
)
def test_a_heartbeat_that_is_refused(
    group: Group, error: ErrorCode, fields: dict[str, Any]
) -> None:
    fields = dict(fields)
    answer = group.join(fields.pop("member_id", "m"), **fields)
    assert (ErrorCode(answer.error_code), answer.assignment) == (error, None)
    assert answer.error_message
    # Nothing is left of it.
    assert group.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_without_an_id_is_given_one_up_to_version_0(group: Group) -> None:
    answer = group.joined("", version=0)
    assert partitions(answer) == [0, 1, 2, 3]
    again = group.beat(answer.member_id, answer.member_epoch)
    assert (again.error_code, again.member_epoch, partitions(again)) == (
        0,
        answer.member_epoch,
        None,
    )
    assert answer.heartbeat_interval_ms == 50


def test_members_of_wrong_epochs_and_names_are_fenced(group: Group) -> None:
    joined = group.joined("m")
    epoch = joined.member_epoch
    answers = {
        "unknown": group.beat("other", epoch),
        "unknown leaves": group.beat("other", -1),
        "from the future": group.beat("m", epoch + 1),
    }
    later = group.beat("m", epoch, subscribed_topic_names=[])
    assert partitions(later) == []
    assert group.beat("m", epoch, topic_partitions=[]).member_epoch == epoch + 1
    # As long as it owns no more than it should, its last answer may have been lost.
    assert group.beat("m", epoch, topic_partitions=[]).error_code == 0
    answers["from the past"] = group.beat("m", epoch, topic_partitions=owned(joined))
    assert {name: ErrorCode(answer.error_code).name for name, answer in answers.items()} == {
        "unknown": "UNKNOWN_MEMBER_ID",
        "unknown leaves": "UNKNOWN_MEMBER_ID",
        "from the future": "FENCED_MEMBER_EPOCH",
        "from the past": "FENCED_MEMBER_EPOCH",
    }


def test_a_static_member_holds_its_place_while_it_is_away(group: Group) -> None:
    first = group.joined("m1", instance_id="i")
    assert group.join("m2", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    fenced = group.beat("m2", first.member_epoch, instance_id="i")
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    unknown = group.beat("m1", first.member_epoch, instance_id="j")
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.beat("m1", -2, instance_id="i").member_epoch == -2
    (away,) = group.describe().members
    assert (away.member_id, away.member_epoch) == ("m1", -2)
    again = group.joined("m2", instance_id="i")
    assert (again.member_epoch, partitions(again)) == (first.member_epoch, [0, 1, 2, 3])


def test_a_partition_is_given_on_only_when_its_owner_says_so(group: Group) -> None:
    first = group.joined("m1")
    second = group.joined("m2")
    assert partitions(second) == []
    told = group.beat("m1", first.member_epoch)
    kept = partitions(told)
    assert kept is not None
    assert len(kept) == 2
    assert partitions(group.beat("m2", second.member_epoch)) is None
    assert group.describe().group_state == "Reconciling"
    assert group.beat("m1", first.member_epoch, topic_partitions=owned(told)).error_code == 0
    given = group.beat("m2", second.member_epoch)
    assert partitions(given) == sorted({0, 1, 2, 3} - set(kept))
    assert group.beat("m2", second.member_epoch, topic_partitions=owned(given)).error_code == 0
    described = group.describe()
    assert (described.group_state, described.assignor_name) == ("Stable", "uniform")


def test_a_group_that_is_full(group: Group) -> None:
    for number in range(3):
        group.joined(f"m{number}")
    refused = group.join("one too many")
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.beat("m0", -1).error_code == 0
    group.joined("now")


def test_a_member_that_falls_silent_loses_its_place(group: Group) -> None:
    first = group.joined("m1")
    began_s = time.monotonic()
    group.joined("m2")

    def is_alone() -> bool:
        assert group.beat("m1", first.member_epoch).error_code in (0, ErrorCode.FENCED_MEMBER_EPOCH)
        return [member.member_id for member in group.describe().members] == ["m1"]

    wait_until(is_alone, "the silent member is taken out")
    assert time.monotonic() - began_s >= SESSION_MS / 1000 * 0.9
    assert group.beat("m2", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_gives_nothing_up_loses_its_place(group: Group) -> None:
    first = group.joined("m1", rebalance_timeout_ms=200)
    second = group.joined("m2")
    told = group.beat("m1", first.member_epoch)
    assert len(partitions(told) or []) == 2

    def has_everything() -> bool:
        group.beat("m1", first.member_epoch)  # it lives, but keeps what it has
        answer = group.beat("m2", second.member_epoch)
        assert answer.error_code == 0
        second.member_epoch = answer.member_epoch
        members = group.describe().members
        return [m.member_id for m in members] == ["m2"] and partitions(answer) == [0, 1, 2, 3]

    wait_until(has_everything, "the stubborn member is taken out")
    assert group.beat("m1", first.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_may_commit_and_fetch(group: Group) -> None:
    assert group.commit("m", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert group.commit("m", 1, version=8) is ErrorCode.ILLEGAL_GENERATION
    epoch = group.joined("m").member_epoch
    assert group.commit("m", epoch) is ErrorCode.NONE
    assert group.commit("m", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.commit("m", epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert group.commit("other", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.fetch("m", epoch) == (ErrorCode.NONE, [5])
    assert group.fetch(None, -1) == (ErrorCode.NONE, [5])
    assert group.fetch("m", epoch + 1) == (ErrorCode.STALE_MEMBER_EPOCH, [])
    assert group.fetch("other", epoch) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
    group.beat("m", -1)
    assert group.commit("", -1) is ErrorCode.NONE


def test_the_features_of_the_cluster(wire: Wire) -> None:
    asked = messages.ApiVersionsRequest("a-client", "1.0")
    answer = wire.call(ApiKey.API_VERSIONS, 3, asked)
    fixed = {"eligible.leader.replicas.version": 1, "group.version": 1, "metadata.version": 33}
    known = {name: (level, level) for name, level in fixed.items()}
    known["kraftpy.metadata.level"] = (1, LEVEL)
    in_use = {**fixed, "kraftpy.metadata.level": LEVEL, "transaction.version": 2}
    in_use |= {"kraftpy.cooperative": 2, "share.version": 1}
    assert {f.name: (f.min_version, f.max_version) for f in answer.supported_features} == known
    assert {f.name: f.max_version_level for f in answer.finalized_features} == in_use
    assert answer.finalized_features_epoch >= 0
    ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert ranges[ApiKey.CONSUMER_GROUP_HEARTBEAT] == (0, 1)
    assert ranges[ApiKey.CONSUMER_GROUP_DESCRIBE] == (0, 1)


def test_a_group_outlives_its_broker(tmp_path: Any) -> None:
    with Broker(dir=tmp_path) as first, Wire(first.host, first.port) as wire:
        wire.call(
            ApiKey.CREATE_TOPICS,
            7,
            messages.CreateTopicsRequest(
                [messages.CreateTopicsRequest.CreatableTopic("t", 4, 1)], timeout_ms=10_000
            ),
        )
        group = Group(wire, "t")
        before = group.joined("m", subscribed_topic_names=None, subscribed_topic_regex="[tu]")
        assert partitions(before) == [0, 1, 2, 3]
        described = group.describe()
    with Broker(dir=tmp_path) as second, Wire(second.host, second.port) as wire:
        again = Group(wire, "t")
        again.name = group.name
        wait_until(lambda: again.describe().error_code == 0, "the group is loaded")
        assert again.describe() == described
        answer = again.beat("m", before.member_epoch)
        assert (answer.error_code, answer.member_epoch) == (0, before.member_epoch)
        assert partitions(answer) is None


class TestWhatNoBatchHolds:
    """More than max.message.bytes of the offsets topic, whoever asks for it."""

    def test_a_commit(self, group: Group) -> None:
        assert group.commit("", -1) == ErrorCode.NONE
        request = messages.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(0, 9, -1, committed_metadata="x" * 4_000)
        topic = request.OffsetCommitRequestTopic(name=group.topic, partitions=[partition] * 300)
        asked = request(group_id=group.name, topics=[topic])
        answer = group.wire.call(ApiKey.OFFSET_COMMIT, 9, asked)
        errors = {each.error_code for t in answer.topics for each in t.partitions}
        assert errors == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert group.fetch(None, -1) == (ErrorCode.NONE, [5])

    def test_a_subscription(self, group: Group) -> None:
        names = [f"topic-{number}" for number in range(90_000)]  # more with their lengths
        answer = group.join("a", subscribed_topic_names=names)
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert group.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group.joined("a").member_epoch == 1
