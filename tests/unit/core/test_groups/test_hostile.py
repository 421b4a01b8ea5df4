"""Requests that no client of Kafka's sends, and logs that another coordinator left behind.

None of them may stop a coordinator, keep a group from going on, or give a partition to two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kraftpy.core.groups import Client, GroupRecord, commits, encode_record
from kraftpy.core.groups.consumer.embedded import read_assignment, write_assignment
from kraftpy.core.groups.consumer.records import (
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
)
from kraftpy.core.groups.records import CoordinatorRecord, GroupSnapshot, MemberSnapshot
from kraftpy.protocol import messages
from kraftpy.protocol.codec import encode_versioned
from kraftpy.protocol.errors import ErrorCode

from .driver import REBALANCE_MS, TOPICS, Driver
from .topics import topic_id

Row = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
T = topic_id("t")
TOO_LONG = "x" * 40_000


def subscription(*topics: str, owned: Mapping[str, Sequence[int]] | None = None) -> bytes:
    kinds = messages.ConsumerProtocolSubscription
    rows = [kinds.TopicPartition(name, list(each)) for name, each in (owned or {}).items()]
    return encode_versioned(
        "ConsumerProtocolSubscription",
        3,
        kinds(topics=list(topics or ["t"]), owned_partitions=rows),
    )


def beat(
    driver: Driver,
    member_id: str = "m",
    epoch: int = 0,
    *,
    names: Sequence[str] | None = ("t",),
    owned: Sequence[Row] | None = (),
    timeout_ms: int = 60_000,
    group: str = "g",
) -> str:
    """A heartbeat of the consumer protocol: the token of its answer."""
    token = driver._next()
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=timeout_ms,
        subscribed_topic_names=None if names is None else list(names),
        topic_partitions=None if owned is None else list(owned),
    )
    client = Client(1, "c", "/h")
    driver.carry_out(
        driver.machine.consumer_heartbeat(token, request, client, token, driver.now_ms)
    )
    return token


def leave(driver: Driver, member_id: str = "m") -> Any:
    return driver.replies[beat(driver, member_id, -1, names=None, owned=None, timeout_ms=-1)]


class TestWhatNoRecordCanHold:
    @pytest.mark.parametrize(
        "how", [{"member_id": TOO_LONG}, {"instance": TOO_LONG}, {"protocols": {TOO_LONG: b""}}]
    )
    def test_a_classic_member_of_a_consumer_group_with_long_names(
        self, how: dict[str, Any]
    ) -> None:
        driver = Driver()
        beat(driver)
        join = driver.join(**{"member_id": "a", "protocols": {"range": subscription()}, **how})
        assert driver.replies[join].error_code == ErrorCode.INVALID_REQUEST

    def test_a_retention_until_the_end_of_time(self) -> None:
        driver = Driver()
        commit = driver.commit({("t", 0): 7}, retention_ms=2**63 - 1)
        assert driver.commit_errors(commit) == [ErrorCode.NONE]
        driver.advance(driver.config.offsets_retention_ms * 10)
        assert driver.expire() == 0
        assert driver.reloaded().offsets() == {("t", 0): 7}

    def test_a_topic_whose_name_is_none_does_not_keep_a_group_from_a_downgrade(self) -> None:
        driver = Driver()
        beat(driver, names=("t", TOO_LONG))
        driver.join("a", protocols={"range": subscription()})
        assert leave(driver).error_code == ErrorCode.NONE
        assert driver.state() == "PreparingRebalance"

    def test_nor_does_a_protocol_without_a_subscription(self) -> None:
        driver = Driver()
        beat(driver)
        driver.join("a", protocols={"one": subscription(), "two": b""})
        driver.join("b", protocols={"two": subscription()})
        assert leave(driver).error_code == ErrorCode.NONE
        assert driver.state() == "PreparingRebalance"

    def test_a_subscription_to_all_that_can_be_thought_of(self) -> None:
        driver = Driver()
        names = [f"topic-{number}" for number in range(100_000)]
        answer = driver.replies[beat(driver, names=names)]
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "larger than 1048576 bytes" in answer.error_message
        beat(driver)
        join = driver.join("a", protocols={"range": subscription(*names)})
        assert driver.replies[join].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert len(driver.machine.consumer_describe("g").members) == 1


class TestTimeoutsOfNothing:
    def test_to_give_partitions_up_while_a_write_takes_too_long(self) -> None:
        driver = Driver()
        epoch = driver.replies[beat(driver, "a", timeout_ms=0)].member_epoch
        beat(driver, "b", timeout_ms=0)
        driver.commits = False
        everything = [Row(T, list(range(TOPICS["t"])))]
        beat(driver, "a", epoch, names=None, owned=everything, timeout_ms=-1)
        driver.settle()
        beat(driver, "c")
        driver.time_out()
        driver.machine.handle_timers(driver.now_ms)  # comes back
        deadline_ms = driver.machine.next_deadline()
        assert deadline_ms is not None
        assert deadline_ms > driver.now_ms
        driver.commits = True
        driver.settle()
        driver.advance(2_000)
        described = driver.machine.consumer_describe("g")
        assert {member.member_id for member in described.members} == {"b", "c"}

    def test_to_give_them_up_while_nothing_can_be_written(self) -> None:
        driver = Driver()
        epoch = driver.replies[beat(driver, "a", timeout_ms=-5)].member_epoch
        beat(driver, "b", timeout_ms=-5)
        everything = [Row(T, list(range(TOPICS["t"])))]
        beat(driver, "a", epoch, names=None, owned=everything, timeout_ms=-1)
        driver.commits = False
        driver.advance(0)
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        driver.advance(500)
        assert not driver.in_flight

    def test_to_rejoin_where_none_but_static_members_are_left(self) -> None:
        driver = Driver()
        members, _ = driver.static_group("one", "two")
        for instance in ("one", "two"):
            driver.join(instance=instance, rebalance_ms=0)
        (gone, _) = (m.member_id for m in driver.machine.describe("g").members)
        assert gone not in members
        driver.leave((gone, "one"))
        driver.machine.handle_timers(driver.now_ms)  # comes back
        deadline_ms = driver.machine.next_deadline()
        assert deadline_ms is not None
        assert deadline_ms > driver.now_ms


class TestWhatMembersOwn:
    def test_a_member_told_to_give_up_owns_that_until_it_joins_again_after_an_upgrade(self) -> None:
        driver = Driver()
        everything = {"t": range(TOPICS["t"])}

        def cooperative(owned: Mapping[str, Sequence[int]] | None = None) -> dict[str, Any]:
            return {"protocols": {"cooperative-sticky": subscription(owned=owned)}}

        def given(indexes: Sequence[int]) -> bytes:
            return write_assignment({T: indexes}, driver.topics, subscription())

        first = driver.new_member(**cooperative())
        join = driver.join(first, **cooperative())
        driver.advance(2 * driver.config.group_initial_rebalance_delay_ms)
        driver.sync(first, driver.replies[join].generation_id, {first: given(everything["t"])})
        second = driver.new_member(**cooperative())
        driver.join(second, **cooperative())
        join = driver.join(first, **cooperative(everything))
        generation = driver.replies[join].generation_id
        # The answer may not have come yet, or the member is busy with its last records.
        driver.sync(first, generation, {first: given(range(5))})
        assert driver.state() == "Stable"
        for at in (driver, driver.reloaded()):
            assert at.replies[beat(at)].assignment.topic_partitions == []

    def test_an_assignment_that_was_withheld_leaves_members_what_they_had(self) -> None:
        driver = Driver()
        (leader, silent), generation = driver.static_group("one", "two")
        driver.join(leader, instance="one")
        for _ in range(REBALANCE_MS // 5_000):
            driver.advance(5_000)
            driver.heartbeat(silent, generation, instance="two")
        assert driver.state() == "CompletingRebalance"
        driver.join(instance="three")
        assert driver.state() == "PreparingRebalance"
        assert (
            driver.machine._groups["g"].members[silent].assignment == f"part of {silent}".encode()
        )

    def test_a_classic_member_is_told_to_give_up_though_the_next_rebalance_has_begun(self) -> None:
        driver = Driver()
        beat(driver, "m")
        protocols = {"cooperative-sticky": subscription()}
        generation = driver.replies[driver.join("a", protocols=protocols)].generation_id
        driver.sync("a", generation)
        epoch = 1
        for owned in (range(10), range(5)):
            epoch = driver.replies[
                beat(driver, "m", epoch, names=None, owned=[Row(T, list(owned))], timeout_ms=-1)
            ].member_epoch
        driver.join("a", protocols=protocols)
        sync = driver.sync("a", generation)
        (before,) = read_assignment(driver.replies[sync].assignment, driver.topics).values()
        assert before == frozenset(range(5, 10))
        beat(driver, "n")
        protocols = {"cooperative-sticky": subscription(owned={"t": sorted(before)})}
        join = driver.join("a", protocols=protocols)
        assert driver.replies[join].generation_id == generation
        beat(driver, "o")
        answer = driver.replies[driver.sync("a", generation)]
        assert answer.error_code == ErrorCode.NONE
        (after,) = read_assignment(answer.assignment, driver.topics).values()
        assert after < before
        assert driver.heartbeat("a", generation) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_pattern_of_another_member_that_is_none_here() -> None:
    """Kafka may have taken it: it has other limits."""
    asks = MemberMetadata(None, None, "", "", (), TOO_LONG, 60_000, None, None)
    driver = Driver()
    driver.log = [
        encode_record(GroupEpochRecord("g", GroupEpoch(3, 77))),
        encode_record(MemberRecord("g", "other", asks)),
    ]
    driver = driver.reloaded()
    answer = driver.replies[beat(driver)]
    assert answer.error_code == ErrorCode.NONE
    assert [row.partitions for row in answer.assignment.topic_partitions] == [list(range(10))]


def test_a_dead_member_is_taken_out_though_its_group_is_too_large_to_become_a_classic_one() -> None:
    driver = Driver()
    beat(driver)
    driver.join("a", protocols={"range": subscription()}, session_ms=1_000_000)
    driver.advance(driver.config.consumer_session_timeout_ms - 1)
    driver.commits = False
    driver.advance(1)
    driver.settle(ErrorCode.MESSAGE_TOO_LARGE)
    driver.settle()
    described = driver.machine.consumer_describe("g")
    assert [member.member_id for member in described.members] == ["a"]


def test_a_group_with_a_long_name_and_many_offsets_can_be_deleted() -> None:
    driver = Driver()
    group_id = "g" * 32_767
    driver.commit({(topic, index): 1 for topic in TOPICS for index in range(10)}, group=group_id)
    driver.commits = False
    delete = driver.delete_group(group_id)
    for write in driver.in_flight:
        encoded = [encode_record(record) for record in write.records]
        assert sum(len(key) for key, _ in encoded) < 600_000
    while driver.in_flight:
        driver.settle()
    assert driver.replies[delete] == ErrorCode.NONE
    assert driver.offsets(group_id) == {}


@pytest.mark.parametrize(("was", "state"), [("classic", "Dead"), ("consumer", "Stable")])
def test_a_group_of_which_the_log_lost_a_tombstone_is_one_of_either_kind(
    was: str, state: str
) -> None:
    asks = MemberMetadata(None, None, "", "", ("t",), None, 60_000, None, None)
    member = MemberRecord("g", "m", asks)
    snapshot = MemberSnapshot("a", None, "", "", 60_000, 10_000, subscription(), b"")
    group = GroupRecord("g", GroupSnapshot("consumer", 3, "range", "a", 1, (snapshot,)))
    epoch, gone = GroupEpochRecord("g", GroupEpoch(3, 77)), GroupEpochRecord("g", None)
    driver = Driver()
    # An upgrade without the end of the classic group, a downgrade without that of a member.
    records: list[CoordinatorRecord]
    records = [group, member, epoch] if was == "classic" else [member, epoch, gone, group]
    driver.log = [encode_record(record) for record in records]
    driver = driver.reloaded()
    assert driver.state() == state
    assert len(driver.machine.list_groups([], [])) == 1


class TestNothingStaysBehind:
    def test_of_groups_that_never_came_to_be_or_went(self) -> None:
        driver = Driver()
        driver.commits = False
        beat(driver)
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert not driver.machine._consumers._live
        driver.commits = True
        beat(driver)
        leave(driver)
        assert driver.replies[driver.delete_group()] == ErrorCode.NONE
        assert not driver.machine._consumers._live
        assert not driver.machine._groups

    def test_of_a_deletion_that_failed(self) -> None:
        driver = Driver()
        beat(driver)
        leave(driver)
        driver.commits = False
        delete = driver.delete_group()
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.replies[delete] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        driver.commits = True
        commit = driver.commit({("t", 0): 1})
        assert driver.commit_errors(commit) == [ErrorCode.NONE]

    def test_of_a_classic_member_that_joins_and_never_syncs(self) -> None:
        driver = Driver()
        beat(driver)
        protocols = {"range": subscription()}
        join = driver.join("a", protocols=protocols, session_ms=1_000_000, rebalance_ms=20_000)
        assert driver.replies[join].error_code == ErrorCode.NONE
        driver.advance(20_000)
        described = driver.machine.consumer_describe("g")
        assert [member.member_id for member in described.members] == ["m"]


@pytest.mark.parametrize("all_or_none", [None, b"\1"])
def test_a_commit_of_very_many_topics_that_are_not_there_is_answered_as_one_of_few(
    all_or_none: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = {(f"zzz{n}", n % 3): n for n in range(1_500)} | {("t", 0): 5, ("t", 99): 1}
    ends = []
    for many in (commits._TOPICS_MANY, 10_000):
        monkeypatch.setattr(commits, "_TOPICS_MANY", many)
        driver = Driver()
        commit = driver.commit(offsets, metadata="note", all_or_none=all_or_none)
        answers = {
            (topic.name, each.partition_index): each.error_code
            for topic in driver.replies[commit].topics
            for each in topic.partitions
        }
        ends.append((answers, driver.committed()))
    assert ends[0] == ends[1]
    assert ends[0][0]["zzz1499", 2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ends[0][1].keys() == (set() if all_or_none else {("t", 0)})
