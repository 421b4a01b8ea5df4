"""Committed offsets: who may commit, what is seen when, deletion and expiry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups import CommittedOffset, OffsetRecord, commits, decode_record, encode_record
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import EXPECTED_OFFSET_TAG

from .driver import DELAY_MS, Driver, partitions_of

RETENTION_MS = 10_080 * 60_000


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


asked = messages.OffsetCommitRequest
asked_partitions = st.lists(
    st.builds(
        asked.OffsetCommitRequestPartition,
        partition_index=st.integers(-1, 11),
        committed_offset=st.integers(0, 2**63 - 1),
        committed_leader_epoch=st.integers(-1, 9),
        committed_metadata=st.sampled_from([None, "", "", "", "note"]),
        _tags=st.sampled_from([None, None, None, {7: b""}]),
    ),
    max_size=12,
)
asked_topics = st.lists(
    st.builds(
        asked.OffsetCommitRequestTopic,
        name=st.sampled_from("ttuuz"),
        partitions=asked_partitions,
    ),
    max_size=3,
)


class TestCommit:
    @given(asked_topics, st.sampled_from([-1, -1, -1, 5]))
    def test_at_once_or_one_by_one_is_the_same(
        self, topics: list[asked.OffsetCommitRequestTopic], retention_ms: int
    ) -> None:
        """Repeated, unordered, unknown partitions too: what judges in columns may only decline."""
        request = asked(group_id="g", topics=topics, retention_time_ms=retention_ms)
        ends = []
        for judge in (commits._judge_at_once, lambda *_: None):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(commits, "_judge_at_once", judge)
                driver = Driver()
                driver.carry_out(driver.machine.commit("c", request, partitions_of, driver.now_ms))
            if retention_ms < 0:  # no version has both that and a leader epoch
                assert driver.reloaded().committed() == driver.committed()
            ends.append((driver.replies, driver.committed(), driver.log))
        assert ends[0] == ends[1]

    def test_from_outside_any_group(self) -> None:
        driver = Driver()
        commit = driver.commit({("t", 0): 5, ("u", 3): 7}, metadata="note")
        assert driver.commit_errors(commit) == [ErrorCode.NONE, ErrorCode.NONE]
        assert driver.committed() == {
            ("t", 0): CommittedOffset(5, 5, "note", driver.now_ms, -1),
            ("u", 3): CommittedOffset(7, 5, "note", driver.now_ms, -1),
        }
        assert driver.state() == "Empty"

    def test_is_seen_when_it_is_committed_and_not_before(self) -> None:
        driver = Driver(commits=False)
        commit = driver.commit({("t", 0): 5})
        assert commit not in driver.replies
        assert driver.offsets() == {}
        driver.settle()
        assert driver.offsets() == {("t", 0): 5}
        assert driver.commit_errors(commit) == [ErrorCode.NONE]

    def test_one_request_is_one_batch(self) -> None:
        driver = Driver(commits=False)
        driver.commit({("t", index): index for index in range(10)})
        driver.commit({("u", 0): 1})
        assert [len(write.records) for write in driver.in_flight] == [10, 1]

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
            (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
        ],
    )
    def test_a_failure_changes_nothing(self, error: ErrorCode, told: ErrorCode) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        driver.commits = False
        commit = driver.commit({("t", 0): 2, ("nowhere", 0): 2})
        driver.settle(error)
        assert driver.commit_errors(commit) == [told, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert driver.offsets() == {("t", 0): 1}

    def test_one_that_commits_after_its_timeout_still_counts(self) -> None:
        driver = Driver(commits=False)
        commit = driver.commit({("t", 0): 1})
        driver.time_out()
        assert driver.commit_errors(commit) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert driver.offsets() == {}
        driver.settle()
        assert driver.offsets() == {("t", 0): 1}

    def test_partitions_are_refused_one_by_one(self) -> None:
        driver = Driver()
        commit = driver.commit({("t", 10): 1, ("t", 9): 1, ("missing", 0): 1})
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert driver.commit_errors(commit) == [unknown, ErrorCode.NONE, unknown]
        assert driver.offsets() == {("t", 9): 1}

    @pytest.mark.parametrize("metadata", ["", "m"])
    def test_an_offset_below_those_that_clients_have_names_for(self, metadata: str) -> None:
        driver = Driver()
        commit = driver.commit({("t", 0): -1, ("t", 1): -2, ("t", 2): -3}, metadata=metadata)
        assert driver.commit_errors(commit) == [0, 0, ErrorCode.INVALID_REQUEST]
        assert driver.offsets() == {("t", 0): -1, ("t", 1): -2}

    def test_metadata_up_to_the_limit(self) -> None:
        driver = Driver()
        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert driver.commit_errors(driver.commit({("t", 0): 1}, metadata="x" * 4097)) == [
            too_large
        ]
        assert driver.offsets() == {}
        driver.commit({("t", 0): 1}, metadata="ä" * 4096)
        assert driver.reloaded().committed()["t", 0].metadata == "ä" * 4096

    def test_metadata_that_no_record_can_hold(self) -> None:
        driver = Driver(offset_metadata_max_bytes=100_000)
        commit = driver.commit({("t", 0): 1}, metadata="ä" * 20_000)
        assert driver.commit_errors(commit) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]

    def test_no_metadata_is_empty_metadata(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1}, metadata=None)
        assert driver.committed()["t", 0].metadata == ""

    def test_by_a_member(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group()
        commit = driver.commit({("t", 0): 1}, member_id=member, generation=generation)
        assert driver.commit_errors(commit) == [ErrorCode.NONE]

    def test_by_a_member_during_the_join_phase(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group()
        driver.join(driver.new_member())
        commit = driver.commit({("t", 0): 1}, member_id=member, generation=generation)
        assert driver.commit_errors(commit) == [ErrorCode.NONE]

    def test_not_while_the_new_assignment_is_on_its_way(self) -> None:
        driver = Driver()
        member = driver.new_member()
        driver.join(member)
        driver.advance(DELAY_MS)
        commit = driver.commit({("t", 0): 1}, member_id=member, generation=1)
        assert driver.commit_errors(commit) == [ErrorCode.REBALANCE_IN_PROGRESS]

    def test_who_is_refused(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group()

        def errors(member_id: str, generation: int) -> list[ErrorCode]:
            return driver.commit_errors(
                driver.commit({("t", 0): 1}, member_id=member_id, generation=generation)
            )

        assert errors(member, generation + 1) == [ErrorCode.ILLEGAL_GENERATION]
        assert errors(member, generation - 1) == [ErrorCode.ILLEGAL_GENERATION]
        assert errors("stranger", generation) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert errors("", -1) == [ErrorCode.UNKNOWN_MEMBER_ID]  # the group has members
        assert driver.offsets() == {}
        driver.leave(member)
        assert errors(member, generation) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert errors("", -1) == [ErrorCode.NONE]

    def test_a_generation_of_a_group_that_is_not_there(self) -> None:
        driver = Driver()
        commit = driver.commit({("t", 0): 1}, member_id="m", generation=1)
        assert driver.commit_errors(commit) == [ErrorCode.ILLEGAL_GENERATION]

    def test_the_later_one_wins(self) -> None:
        driver = Driver(commits=False)
        driver.commit({("t", 0): 9})
        driver.commit({("t", 0): 3})
        driver.settle(), driver.settle()
        assert driver.offsets() == {("t", 0): 3}


class TestExpectedOffset:
    unexpected = ErrorCode.UNEXPECTED_OFFSET

    def errors(self, driver: Driver, offset: int, expected: int | bytes) -> list[ErrorCode]:
        return driver.commit_errors(driver.commit({("t", 0): offset}, expected=expected))

    def test_the_commit_happens_if_the_offset_is_that_one(self) -> None:
        driver = Driver()
        assert self.errors(driver, 1, expected=0) == [self.unexpected]
        assert self.errors(driver, 1, expected=-1) == [ErrorCode.NONE]
        assert self.errors(driver, 2, expected=-1) == [self.unexpected]
        assert self.errors(driver, 2, expected=2) == [self.unexpected]
        assert driver.offsets() == {("t", 0): 1}
        assert self.errors(driver, 2, expected=1) == [ErrorCode.NONE]
        assert driver.offsets() == {("t", 0): 2}

    def test_one_that_is_refused_keeps_the_others_from_being_committed(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1, ("t", 1): 7})
        commit = driver.commit({("t", 0): 2, ("t", 1): 2}, expected=1)
        untried = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert driver.commit_errors(commit) == [untried, self.unexpected]
        assert driver.offsets() == {("t", 0): 1, ("t", 1): 7}

    def test_partitions_are_refused_one_by_one_if_the_client_wants_that(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1, ("t", 1): 7})
        commit = driver.commit({("t", 0): 2, ("t", 1): 2}, expected=1, all_or_none=b"\0")
        assert driver.commit_errors(commit) == [ErrorCode.NONE, self.unexpected]
        assert driver.offsets() == {("t", 0): 2, ("t", 1): 7}

    def test_of_two_at_once_one_succeeds(self) -> None:
        driver = Driver(commits=False)
        first = driver.commit({("t", 0): 1}, expected=-1)
        assert self.errors(driver, 2, expected=-1) == [self.unexpected]
        assert self.errors(driver, 2, expected=1) == [self.unexpected]  # it may still fail
        driver.time_out()
        assert self.errors(driver, 2, expected=-1) == [self.unexpected]
        driver.settle()
        assert driver.commit_errors(first) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert driver.offsets() == {("t", 0): 1}

    def test_a_partition_twice_in_a_request(self) -> None:
        driver = Driver()
        expected = {EXPECTED_OFFSET_TAG: (-1).to_bytes(8, "big", signed=True)}
        request = messages.OffsetCommitRequest
        twice = [
            request.OffsetCommitRequestPartition(0, offset, _tags=expected) for offset in (1, 2)
        ]
        topics = [request.OffsetCommitRequestTopic(name="t", partitions=twice)]
        driver.carry_out(
            driver.machine.commit(
                "token", request(group_id="g", topics=topics), partitions_of, driver.now_ms
            )
        )
        untried = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert driver.commit_errors("token") == [untried, self.unexpected]
        assert driver.offsets() == {}

    @pytest.mark.parametrize("expected", [b"", bytes(7), bytes(9)])
    def test_of_the_wrong_size(self, expected: bytes) -> None:
        driver = Driver()
        assert self.errors(driver, 1, expected) == [ErrorCode.INVALID_REQUEST]
        assert driver.offsets() == {}


class TestAllOrNone:
    untried = ErrorCode.OPERATION_NOT_ATTEMPTED

    @pytest.mark.parametrize("flag", [b"\1", b"", b"\2", b"\0\0"])
    def test_if_one_partition_is_refused_none_is_committed(self, flag: bytes) -> None:
        driver = Driver()
        offsets = {("t", 0): 1, ("missing", 0): 2, ("u", 3): 3}
        commit = driver.commit(offsets, all_or_none=flag)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert driver.commit_errors(commit) == [self.untried, unknown, self.untried]
        assert driver.offsets() == {}
        assert not driver.in_flight

    def test_several_refused_partitions_each_say_why(self) -> None:
        driver = Driver()
        offsets = {("t", 0): 1, ("missing", 0): 2}
        commit = driver.commit(offsets, metadata="x" * 5000, all_or_none=b"\1")
        assert driver.commit_errors(commit) == [
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    def test_all_are_committed_where_nothing_is_wrong(self) -> None:
        driver = Driver()
        commit = driver.commit({("t", 0): 1, ("u", 3): 3}, all_or_none=b"\1")
        assert driver.commit_errors(commit) == [ErrorCode.NONE, ErrorCode.NONE]
        assert driver.offsets() == {("t", 0): 1, ("u", 3): 3}

    @pytest.mark.parametrize("flag", [None, b"\0"])
    def test_stock_clients_keep_kafkas_way(self, flag: bytes | None) -> None:
        driver = Driver()
        commit = driver.commit({("t", 0): 1, ("missing", 0): 2}, all_or_none=flag)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert driver.commit_errors(commit) == [ErrorCode.NONE, unknown]
        assert driver.offsets() == {("t", 0): 1}


def test_fetch_of_some_partitions() -> None:
    driver = Driver()
    driver.commit({("t", 0): 5})
    fetched = driver.machine.fetch("g", [("t", [0, 1]), ("x", [0])])
    assert fetched == [("t", [(0, 5, 5, ""), (1, -1, -1, "")]), ("x", [(0, -1, -1, "")])]
    assert driver.machine.fetch("nothing", None) == []


class TestDeleteGroup:
    def test_an_empty_one_goes_with_its_offsets(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group()
        driver.commit({("t", 0): 1, ("u", 1): 2}, member_id=member, generation=generation)
        driver.leave(member)
        assert driver.replies[driver.delete_group()] == ErrorCode.NONE
        for machine in (driver.machine, driver.reloaded().machine):
            assert list(machine.group_ids()) == []
            assert machine.fetch("g", None) == []
        assert driver.replies[driver.delete_group()] == ErrorCode.GROUP_ID_NOT_FOUND

    def test_one_that_only_keeps_offsets(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        assert driver.replies[driver.delete_group()] == ErrorCode.NONE
        assert list(driver.reloaded().machine.group_ids()) == []

    def test_one_with_members_stays(self) -> None:
        driver = Driver()
        driver.stable_group()
        assert driver.replies[driver.delete_group()] == ErrorCode.NON_EMPTY_GROUP

    def test_one_with_very_many_offsets_takes_several_batches(self) -> None:
        driver = Driver()
        for index in range(2_500):
            committed = CommittedOffset(index, -1, "", driver.now_ms, -1)
            driver.machine.load(OffsetRecord("g", "t", index, committed))
        driver.commits = False
        delete = driver.delete_group()
        assert [len(write.records) for write in driver.in_flight] == [1000, 1000, 501]
        for _ in range(3):
            assert delete not in driver.replies
            driver.settle()
        assert driver.replies[delete] == ErrorCode.NONE
        assert list(driver.machine.group_ids()) == []

    def test_a_commit_in_flight_goes_too(self) -> None:
        driver = Driver(commits=False)
        driver.commit({("t", 0): 1})
        driver.delete_group()
        driver.settle(), driver.settle()
        assert driver.offsets() == {}
        assert driver.reloaded().offsets() == {}

    def test_nobody_gets_in_while_it_goes(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        driver.commits = False
        delete = driver.delete_group()
        gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert driver.replies[driver.join()].error_code == gone
        assert driver.commit_errors(driver.commit({("t", 0): 2})) == [gone]
        assert driver.heartbeat("m", 1) == gone
        assert driver.leave("m").error_code == gone
        assert driver.replies[driver.sync("m", 1)].error_code == gone
        assert driver.state() == "Dead"
        assert driver.offsets() == {("t", 0): 1}  # still committed
        driver.settle()
        assert driver.replies[delete] == ErrorCode.NONE
        assert driver.replies[driver.join()].error_code == ErrorCode.MEMBER_ID_REQUIRED

    def test_if_it_fails_the_group_lives_on(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        driver.commits = False
        delete = driver.delete_group()
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.replies[delete] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert driver.state() == "Empty"
        assert driver.offsets() == {("t", 0): 1}

    def test_one_that_commits_after_its_timeout_leaves_later_members_alone(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        driver.commits = False
        driver.delete_group()
        driver.time_out()
        member = driver.new_member()
        driver.join(member)
        driver.settle()
        assert driver.state() == "PreparingRebalance"
        assert driver.offsets() == {}


class TestDeleteOffsets:
    def test_of_a_group_without_members(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1, ("u", 0): 2})
        reply = driver.replies[driver.delete_offsets(("t", 0), ("t", 5), ("missing", 0))]
        assert reply.error_code == ErrorCode.NONE
        assert [topic.partitions[0].error_code for topic in reply.topics] == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert driver.offsets() == driver.reloaded().offsets() == {("u", 0): 2}

    def test_of_a_topic_that_is_read(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group(protocols={"range": subscription("t")})
        driver.commit({("t", 0): 1, ("u", 0): 2}, member_id=member, generation=generation)
        reply = driver.replies[driver.delete_offsets(("t", 0), ("u", 0))]
        assert [topic.partitions[0].error_code for topic in reply.topics] == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ErrorCode.NONE,
        ]
        assert driver.offsets() == {("t", 0): 1}

    @pytest.mark.parametrize(
        "metadata",
        [
            b"",
            b"\0",
            b"\xff\xff\0\0\0\0",
            b"\0\0\x7f\xff\xff\xff",
            b"\0\0\0\0\0\1\0\5abc",
            b"\0\0\0\0\0\1\0\1\xff",
        ],
    )
    def test_members_that_can_not_be_understood_may_read_anything(self, metadata: bytes) -> None:
        driver = Driver()
        driver.stable_group(protocols={"range": metadata})
        reply = driver.replies[driver.delete_offsets(("t", 0))]
        assert reply.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

    def test_of_an_active_group_of_another_kind(self) -> None:
        driver = Driver()
        driver.stable_group(protocol_type="connect")
        reply = driver.replies[driver.delete_offsets(("t", 0))]
        assert reply.error_code == ErrorCode.NON_EMPTY_GROUP

    def test_of_a_group_that_is_not_there(self) -> None:
        driver = Driver()
        reply = driver.replies[driver.delete_offsets(("t", 0))]
        assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    def test_a_failure_keeps_them(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        driver.commits = False
        delete = driver.delete_offsets(("t", 0))
        driver.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert driver.replies[delete].error_code == ErrorCode.NOT_COORDINATOR
        assert driver.offsets() == {("t", 0): 1}


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    driver = Driver()
    driver.commit({("t", 0): 1, ("u", 0): 2})
    driver.commit({("t", 1): 3}, group="h")
    driver.commits = False
    driver.commit({("t", 2): 4})
    driver.carry_out(driver.machine.delete_topic("t", driver.now_ms))
    while driver.in_flight:
        driver.settle()
    assert driver.offsets() == {("u", 0): 2}
    assert driver.offsets("h") == {}
    assert list(driver.reloaded().machine.group_ids()) == ["g"]


def test_a_deleted_topic_that_many_groups_read_takes_few_writes() -> None:
    driver = Driver()
    groups = [f"group-{number}" for number in range(2_500)]
    groups += [f"{number:032000}" for number in range(20)]
    for group in groups:
        driver.commit({("t", 0): 1, ("u", 0): 2}, group=group)
    driver.commits = False
    driver.carry_out(driver.machine.delete_topic("t", driver.now_ms))
    assert len(driver.in_flight) <= 5
    driver.carry_out(driver.machine.delete_topic("u", driver.now_ms))
    for write in driver.in_flight:
        encoded = [encode_record(record) for record in write.records]
        assert sum(len(key) for key, _ in encoded) < 600_000
    driver.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    while driver.in_flight:
        driver.settle()
    left = {group for group in groups if driver.offsets(group)}
    assert len(left) == 1_000  # those whose tombstones failed
    assert all(driver.offsets(group) == {("t", 0): 1} for group in left)


class TestExpiry:
    def test_counts_from_when_the_group_became_empty(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group(session_ms=1_800_000)
        driver.commit({("t", 0): 1}, member_id=member, generation=generation)
        driver.advance(1_000_000)
        driver.leave(member)
        driver.advance(RETENTION_MS - 1)
        assert driver.expire() == 0
        driver.advance(1)
        assert driver.expire() == 1
        assert list(driver.machine.group_ids()) == []
        assert list(driver.reloaded().machine.group_ids()) == []

    def test_counts_from_a_commit_to_the_empty_group(self) -> None:
        """As somebody makes who sets offsets back before the group is used again."""
        driver = Driver()
        (member,), generation = driver.stable_group(session_ms=1_800_000)
        driver.commit({("t", 0): 1, ("t", 1): 1}, member_id=member, generation=generation)
        driver.leave(member)
        driver.advance(RETENTION_MS - 1)
        driver.commit({("t", 0): 0})
        driver.advance(1)
        assert driver.expire() == 1
        assert driver.offsets() == {("t", 0): 0}
        driver.advance(RETENTION_MS - 1)
        assert driver.expire() == 1

    def test_counts_from_the_commit_for_a_group_of_offsets_alone(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        driver.advance(RETENTION_MS - 1)
        driver.commit({("t", 1): 1})
        driver.advance(1)
        assert driver.expire() == 1
        assert driver.offsets() == {("t", 1): 1}

    def test_spares_what_a_live_group_reads(self) -> None:
        driver = Driver()
        how = {"protocols": {"range": subscription("t")}, "session_ms": 1_800_000}
        (member,), generation = driver.stable_group(**how)
        driver.commit({("t", 0): 1, ("u", 0): 2}, member_id=member, generation=generation)
        for _ in range(RETENTION_MS // 1_700_000 + 1):
            driver.advance(1_700_000)
            assert driver.heartbeat(member, generation) == ErrorCode.NONE
        assert driver.expire() == 1
        assert driver.offsets() == {("t", 0): 1}
        assert driver.state() == "Stable"

    def test_a_retention_of_the_clients_own(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1}, retention_ms=1_000)
        other = driver.reloaded()
        assert other.committed() == driver.committed()
        for each in (driver, other):
            each.advance(999)
            assert each.expire() == 0
            each.advance(1)
            assert each.expire() == 1

    def test_keeps_its_clock_when_the_coordinator_moves(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group()
        driver.commit({("t", 0): 1}, member_id=member, generation=generation)
        driver.leave(member)
        driver.advance(RETENTION_MS)
        assert driver.reloaded().expire() == 1

    def test_leaves_a_group_with_a_commit_in_flight_alone(self) -> None:
        driver = Driver()
        driver.commit({("t", 0): 1})
        driver.advance(RETENTION_MS)
        driver.commits = False
        driver.commit({("t", 0): 2})
        assert driver.expire() == 0
        driver.settle()
        assert driver.offsets() == {("t", 0): 2}

    def test_an_empty_group_without_offsets_goes(self) -> None:
        driver = Driver()
        (member,), _ = driver.stable_group()
        driver.leave(member)
        assert driver.expire() == 0
        assert list(driver.machine.group_ids()) == []
        assert decode_record(*driver.log[-1]) == ("g", None)

    def test_a_group_that_somebody_is_about_to_join_stays(self) -> None:
        driver = Driver()
        (member,), _ = driver.stable_group()
        driver.leave(member)
        driver.new_member()
        driver.expire()
        assert list(driver.machine.group_ids()) == ["g"]


def test_groups_that_nobody_joined_are_not_kept() -> None:
    driver = Driver()
    for number in range(100):
        driver.join(group=f"g-{number}")
    assert driver.machine.groups_count == 100
    driver.advance(10_000)
    assert driver.machine.groups_count == 0
    assert driver.log == []
    assert driver.machine.next_deadline() is None
