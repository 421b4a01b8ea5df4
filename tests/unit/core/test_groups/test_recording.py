"""What a group has recorded counts, and nothing else; the next coordinator finds it."""

from __future__ import annotations

import pytest

from kraftpy.protocol.errors import ErrorCode

from .driver import DELAY_MS, SESSION_MS, Driver


class TestRecording:
    """The assignment is persisted before anybody learns it."""

    def joined_pair(self) -> tuple[Driver, str, str]:
        driver = Driver(commits=False)
        first, second = driver.new_member(), driver.new_member()
        driver.join(first), driver.join(second)
        driver.advance(2 * DELAY_MS)
        return driver, first, second

    def test_nobody_gets_an_assignment_that_is_not_committed(self) -> None:
        driver, first, second = self.joined_pair()
        syncs = [driver.sync(second, 1), driver.sync(first, 1, {second: b"b"})]
        assert not driver.replies.keys() & set(syncs)
        assert driver.state() == "CompletingRebalance"
        driver.settle()
        assert [driver.replies[sync].assignment for sync in syncs] == [b"b", b""]

    def test_a_leader_that_repeats_itself_writes_once(self) -> None:
        driver, first, _ = self.joined_pair()
        once = driver.sync(first, 1, {first: b"a"})
        twice = driver.sync(first, 1, {first: b"a"})
        assert len(driver.in_flight) == 1
        assert driver.replies[once].error_code == ErrorCode.REBALANCE_IN_PROGRESS
        driver.settle()
        assert driver.replies[twice].assignment == b"a"

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
            (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        ],
    )
    def test_a_failure_is_told_and_the_group_rebalances(
        self, error: ErrorCode, told: ErrorCode
    ) -> None:
        driver, first, second = self.joined_pair()
        syncs = [driver.sync(second, 1), driver.sync(first, 1, {})]
        driver.settle(error)
        assert [driver.replies[sync].error_code for sync in syncs] == [told, told]
        assert driver.state() == "PreparingRebalance"

    def test_an_assignment_that_commits_after_its_timeout_is_not_given_out(self) -> None:
        driver, first, second = self.joined_pair()
        sync = driver.sync(first, 1, {first: b"a"})
        driver.time_out()
        assert driver.replies[sync].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        driver.join(first), driver.join(second)
        driver.settle()
        assert driver.state() == "CompletingRebalance"  # of generation 2
        assert driver.heartbeat(first, 2) == ErrorCode.NONE

    def test_an_assignment_overtaken_by_a_rebalance_changes_nothing(self) -> None:
        driver, first, second = self.joined_pair()
        driver.sync(first, 1, {first: b"a"})
        driver.leave(second)
        driver.join(first)
        driver.settle()
        assert driver.state() == "CompletingRebalance"
        assert driver.heartbeat(first, 2) == ErrorCode.NONE

    def test_close_answers_everything_that_is_parked(self) -> None:
        driver, first, second = self.joined_pair()
        tokens = [driver.sync(first, 1, {}), driver.sync(second, 1)]
        tokens.append(driver.join(group="h", instance="i-1"))
        tokens.append(driver.commit({("t", 0): 1}, group="other"))
        effects = driver.machine.close(ErrorCode.NOT_COORDINATOR, driver.now_ms)
        assert effects.writes == []
        driver.carry_out(effects)
        for token in tokens[:3]:
            assert driver.replies[token].error_code == ErrorCode.NOT_COORDINATOR
        assert driver.commit_errors(tokens[3]) == [ErrorCode.NOT_COORDINATOR]
        assert driver.machine.next_deadline() is None


class TestLoading:
    def test_members_of_a_stable_group_get_a_fresh_session(self) -> None:
        driver = Driver()
        members, generation = driver.stable_group(2)
        driver.now_ms += 3_600_000
        other = driver.reloaded()
        assert other.state() == "Stable"
        other.advance(SESSION_MS - 1)
        assert all(other.heartbeat(m, generation) == ErrorCode.NONE for m in members)
        other.advance(SESSION_MS)
        assert other.state() == "Empty"

    def test_what_members_committed_to_is_all_there(self) -> None:
        driver = Driver()
        driver.static_group("i-1", "i-2")
        assert driver.reloaded().machine.describe("g") == driver.machine.describe("g")

    def test_what_members_see_whose_coordinator_dies_in_a_rebalance(self) -> None:
        """Nobody needs a new id but the newcomer, and the old generation goes on if all want it."""
        driver = Driver()
        (leader, follower), generation = driver.stable_group(2)
        newcomer = driver.new_member()
        joins = [driver.join(member) for member in (newcomer, leader, follower)]
        assert {driver.replies[join].generation_id for join in joins} == {generation + 1}
        other = driver.reloaded()
        illegal, unknown = ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID
        assert other.heartbeat(leader, generation + 1) == illegal
        assert other.replies[other.sync(follower, generation + 1)].error_code == illegal
        assert other.heartbeat(newcomer, generation + 1) == unknown
        assert other.replies[other.sync(newcomer, generation + 1)].error_code == unknown
        assert other.replies[other.join(newcomer)].error_code == unknown
        again = other.replies[other.join(follower)]
        assert (again.error_code, again.generation_id) == (ErrorCode.NONE, generation)
        sync = other.replies[other.sync(follower, generation)]
        assert sync.assignment == f"part of {follower}".encode()
        assert other.state() == "Stable"
        other.join(leader)  # who leads may have learnt of new topics: that is a rebalance
        assert other.state() == "PreparingRebalance"

    def test_a_rebalance_that_was_not_finished_is_forgotten(self) -> None:
        driver = Driver()
        (first,), generation = driver.stable_group()
        driver.join(driver.new_member())
        other = driver.reloaded()
        assert other.state() == "Stable"
        assert other.heartbeat(first, generation) == ErrorCode.NONE
