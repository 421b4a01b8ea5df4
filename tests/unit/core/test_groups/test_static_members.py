"""Members that keep their place through a restart (KIP-345)."""

from __future__ import annotations

from kraftpy.protocol.errors import ErrorCode

from .driver import DELAY_MS, SESSION_MS, Driver


class TestStaticMembers:
    def test_a_restart_takes_the_place_without_a_rebalance(self) -> None:
        driver = Driver()
        (first, second), generation = driver.static_group("i-1", "i-2")
        reply = driver.replies[driver.join(instance="i-2")]
        assert reply.error_code == ErrorCode.NONE
        assert reply.generation_id == generation
        assert reply.member_id != second
        assert (reply.leader, reply.members, reply.skip_assignment) == (first, [], False)
        assert driver.state() == "Stable"
        sync = driver.sync(reply.member_id, generation, instance="i-2")
        assert driver.replies[sync].assignment == f"part of {second}".encode()

    def test_the_old_member_is_fenced(self) -> None:
        driver = Driver()
        (_, second), generation = driver.static_group("i-1", "i-2")
        driver.join(instance="i-2")
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert driver.heartbeat(second, generation, instance="i-2") == fenced
        assert driver.replies[driver.sync(second, generation, instance="i-2")].error_code == fenced
        assert driver.replies[driver.join(second, instance="i-2")].error_code == fenced
        assert driver.leave((second, "i-2")).members[0].error_code == fenced
        commit = driver.commit(
            {("t", 0): 1}, member_id=second, generation=generation, instance="i-2"
        )
        assert driver.commit_errors(commit) == [fenced]

    def test_a_parked_request_of_the_old_member_ends_with_the_fence(self) -> None:
        driver = Driver()
        parked = driver.join(instance="i-1")
        driver.join(instance="i-1")
        assert driver.replies[parked].error_code == ErrorCode.FENCED_INSTANCE_ID

    def test_a_restarted_leader_skips_the_assignment(self) -> None:
        driver = Driver()
        _, generation = driver.static_group("i-1", "i-2")
        reply = driver.replies[driver.join(instance="i-1")]
        assert reply.leader == reply.member_id
        assert reply.skip_assignment is True
        assert len(reply.members) == 2
        assert reply.generation_id == generation

    def test_a_restarted_leader_of_an_older_version_takes_itself_for_a_follower(self) -> None:
        driver = Driver()
        (first, _), _ = driver.static_group("i-1", "i-2")
        reply = driver.replies[driver.join(instance="i-1", version=8)]
        assert (reply.leader, reply.members) == (first, [])
        assert reply.member_id != first

    def test_the_restart_survives_a_move_of_the_coordinator(self) -> None:
        driver = Driver()
        _, generation = driver.static_group("i-1", "i-2")
        member = driver.replies[driver.join(instance="i-2")].member_id
        other = driver.reloaded()
        assert other.heartbeat(member, generation, instance="i-2") == ErrorCode.NONE

    def test_a_restart_that_is_not_recorded_is_told_to_look_for_the_coordinator(self) -> None:
        driver = Driver()
        (_, second), generation = driver.static_group("i-1", "i-2")
        driver.commits = False
        join = driver.join(instance="i-2")
        assert join not in driver.replies
        driver.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert driver.replies[join].error_code == ErrorCode.NOT_COORDINATOR
        assert driver.heartbeat(second, generation, instance="i-2") == ErrorCode.NONE

    def test_two_restarts_of_which_none_is_recorded(self) -> None:
        driver = Driver()
        (_, second), generation = driver.static_group("i-1", "i-2")
        driver.commits = False
        driver.join(instance="i-2")
        driver.join(instance="i-2")
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.heartbeat(second, generation, instance="i-2") == ErrorCode.NONE

    def test_two_restarts_of_which_the_first_is_recorded(self) -> None:
        driver = Driver()
        _, generation = driver.static_group("i-1", "i-2")
        driver.commits = False
        driver.join(instance="i-2")
        driver.settle()
        first = driver.machine._groups["g"].static_members["i-2"]
        driver.join(instance="i-2")
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.heartbeat(first, generation, instance="i-2") == ErrorCode.NONE

    def test_a_rebalance_takes_over_a_restart_that_is_being_recorded(self) -> None:
        driver = Driver()
        (first, _), generation = driver.static_group("i-1", "i-2")
        driver.commits = False
        join = driver.join(instance="i-2")
        driver.join(first, instance="i-1")
        assert driver.replies[join].generation_id == generation + 1
        driver.settle()  # the record of the restart: overtaken, and nobody is answered twice

    def test_another_protocol_makes_a_rebalance(self) -> None:
        driver = Driver()
        join = driver.join(instance="i-1", protocols={"a": b"", "b": b""})
        driver.advance(DELAY_MS)
        member = driver.replies[join].member_id
        driver.sync(member, 1, {})
        again = driver.join(instance="i-1", protocols={"b": b""})
        assert driver.replies[again].generation_id == 2
        assert driver.replies[again].protocol_name == "b"

    def test_it_keeps_its_place_through_a_rebalance_until_its_session_ends(self) -> None:
        driver = Driver()
        (first, _second), _generation = driver.static_group("i-1", "i-2")
        join = driver.join(first, instance="i-1", rebalance_ms=7_000)
        driver.advance(SESSION_MS - 1)
        assert join not in driver.replies  # the other one's rebalance timeout is still running
        driver.advance(1)
        assert [m.member_id for m in driver.replies[join].members] == [first]

    def test_absent_from_a_short_rebalance_it_is_still_a_member(self) -> None:
        driver = Driver(group_initial_rebalance_delay_ms=0)
        joins = [driver.join(instance=name, rebalance_ms=7_000) for name in ("i-1", "i-2")]
        driver.advance(0)
        members = [driver.replies[join].member_id for join in joins[1:]]
        assert members  # both joined in the one initial rebalance
        first = driver.replies[joins[0]].member_id
        driver.sync(first, 1, {}, instance="i-1")
        driver.sync(members[0], 1, instance="i-2")
        again = driver.join(first, instance="i-1", rebalance_ms=7_000)
        driver.advance(7_000)
        assert len(driver.replies[again].members) == 2
        assert driver.replies[again].generation_id == 2

    def test_an_unknown_instance(self) -> None:
        driver = Driver()
        (first, _), generation = driver.static_group("i-1", "i-2")
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.heartbeat(first, generation, instance="i-9") == unknown
        assert driver.replies[driver.join(first, instance="i-9")].error_code == unknown
