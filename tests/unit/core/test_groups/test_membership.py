"""The classic protocol, story by story (KIP-62, KIP-134, KIP-345, KIP-394, KIP-559, KIP-814)."""

from __future__ import annotations

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode

from .driver import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver


def test_first_member_joins_after_the_initial_delay_and_leads() -> None:
    driver = Driver()
    member = driver.new_member()
    assert driver.state() == "Empty"
    join = driver.join(member)
    assert driver.state() == "PreparingRebalance"
    driver.advance(DELAY_MS - 1)
    assert join not in driver.replies
    driver.advance(1)
    reply = driver.replies[join]
    assert reply.error_code == ErrorCode.NONE
    assert (reply.generation_id, reply.leader, reply.protocol_name) == (1, member, "range")
    assert reply.protocol_type == "consumer"
    assert [(m.member_id, m.metadata) for m in reply.members] == [(member, b"subscription")]
    assert driver.state() == "CompletingRebalance"
    sync = driver.sync(member, 1, {member: b"all of it"})
    assert driver.replies[sync].assignment == b"all of it"
    assert driver.replies[sync].protocol_name == "range"
    assert driver.state() == "Stable"


def test_member_ids_are_made_of_client_or_instance_id_and_the_given_uuid() -> None:
    driver = Driver()
    assert driver.new_member(client_id="app") == "app-request-1"
    join = driver.join(instance="i-1")
    driver.advance(2 * DELAY_MS)
    assert driver.replies[join].member_id == f"i-1-{join}"


def test_before_version_4_no_member_id_is_asked_for() -> None:
    driver = Driver()
    join = driver.join(version=3)
    assert join not in driver.replies
    driver.advance(DELAY_MS)
    assert driver.replies[join].error_code == ErrorCode.NONE
    assert driver.replies[join].member_id == f"c-{join}"


def test_members_that_come_within_the_delay_share_one_generation() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    first_join = driver.join(first)
    driver.advance(DELAY_MS - 500)
    second_join = driver.join(second)
    driver.advance(500)
    assert not {first_join, second_join} & driver.replies.keys()  # one more delay for the newcomer
    driver.advance(DELAY_MS)
    leader, follower = driver.replies[first_join], driver.replies[second_join]
    assert (leader.generation_id, follower.generation_id) == (1, 1)
    assert [m.member_id for m in leader.members] == [first, second]
    assert follower.members == []
    assert follower.leader == first


def test_the_initial_delay_ends_at_the_rebalance_timeout() -> None:
    driver = Driver()
    joins = [driver.join(driver.new_member(rebalance_ms=7_000), rebalance_ms=7_000)]
    for _ in range(3):
        driver.advance(2_000)
        joins.append(driver.join(driver.new_member(rebalance_ms=7_000), rebalance_ms=7_000))
    driver.advance(1_000)
    assert {driver.replies[join].generation_id for join in joins} == {1}


def test_without_a_delay_the_first_member_joins_at_once() -> None:
    driver = Driver(group_initial_rebalance_delay_ms=0)
    join = driver.join(driver.new_member())
    driver.advance(0)
    assert driver.replies[join].generation_id == 1


def test_a_follower_waits_for_the_leaders_assignment() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    driver.join(first), driver.join(second)
    driver.advance(2 * DELAY_MS)
    follower = driver.sync(second, 1)
    assert follower not in driver.replies
    leader = driver.sync(first, 1, {first: b"a", second: b"b"})
    assert driver.replies[leader].assignment == b"a"
    assert driver.replies[follower].assignment == b"b"


def test_a_follower_that_syncs_late_gets_its_assignment_too() -> None:
    driver = Driver()
    (_first, second), generation = driver.stable_group(2)
    sync = driver.sync(second, generation)
    assert driver.replies[sync].assignment == f"part of {second}".encode()
    assert driver.state() == "Stable"


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    driver.join(first), driver.join(second)
    driver.advance(2 * DELAY_MS)
    driver.sync(first, 1, {first: b"a", "nobody": b"x"})
    assert driver.replies[driver.sync(second, 1)].assignment == b""


def test_a_newcomer_makes_the_others_rejoin() -> None:
    driver = Driver()
    (first,), generation = driver.stable_group()
    second = driver.new_member()
    assert driver.heartbeat(first, generation) == ErrorCode.NONE  # only asked for an id so far
    second_join = driver.join(second)
    assert driver.state() == "PreparingRebalance"
    assert driver.heartbeat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    first_join = driver.join(first)
    assert driver.replies[first_join].generation_id == generation + 1
    assert driver.replies[second_join].generation_id == generation + 1
    assert len(driver.replies[first_join].members) == 2


def test_who_does_not_rejoin_in_time_is_dropped() -> None:
    driver = Driver()
    (first, second), generation = driver.stable_group(2)
    join = driver.join(first)  # the leader rejoins: a rebalance
    for _ in range(REBALANCE_MS // 5_000 - 1):
        driver.advance(5_000)
        assert driver.heartbeat(second, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert join not in driver.replies
    driver.advance(5_000)
    assert [m.member_id for m in driver.replies[join].members] == [first]
    assert driver.heartbeat(second, generation + 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_lead_passes_on_when_the_leader_does_not_rejoin() -> None:
    driver = Driver()
    (_first, second), generation = driver.stable_group(2)
    join = driver.join(second, protocols={"range": b"new subscription"})
    driver.advance(SESSION_MS)
    assert driver.replies[join].leader == second
    assert driver.replies[join].generation_id == generation + 1


def test_leaving_starts_a_rebalance() -> None:
    driver = Driver()
    (first, second), generation = driver.stable_group(2)
    response = driver.leave(second)
    assert [m.error_code for m in response.members] == [ErrorCode.NONE]
    assert driver.heartbeat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.replies[driver.join(first)].generation_id == generation + 1


def test_the_last_one_to_leave_empties_the_group() -> None:
    driver = Driver()
    (member,), generation = driver.stable_group()
    driver.leave(member)
    assert driver.state() == "Empty"
    assert driver.reloaded().state() == "Empty"
    assert driver.heartbeat(member, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    (_,), next_generation = driver.stable_group()
    assert next_generation > generation


def test_a_batched_leave_answers_each_member() -> None:
    driver = Driver()
    (_first, second), _ = driver.static_group("i-1", "i-2")
    response = driver.leave(("", "i-1"), ("", "i-9"), ("not me", "i-2"), "stranger")
    assert [m.error_code for m in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert [m.group_instance_id for m in response.members] == ["i-1", "i-9", "i-2", None]
    assert [m.member_id for m in driver.machine.describe("g").members] == [second]


def test_a_pending_member_can_leave() -> None:
    driver = Driver()
    member = driver.new_member()
    assert [m.error_code for m in driver.leave(member).members] == [ErrorCode.NONE]
    assert driver.replies[driver.join(member)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(driver.machine.group_ids()) == []


def test_leaving_a_group_that_is_not_there() -> None:
    response = Driver().leave("member")
    assert response.error_code == ErrorCode.NONE
    assert [m.error_code for m in response.members] == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_member_without_heartbeats_expires() -> None:
    driver = Driver()
    (first, second), generation = driver.stable_group(2)
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(first, generation) == ErrorCode.NONE
    driver.advance(1)
    assert driver.heartbeat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(second, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"


def test_commits_count_as_heartbeats() -> None:
    driver = Driver()
    (member,), generation = driver.stable_group()
    for _ in range(5):
        driver.advance(SESSION_MS - 1)
        driver.commit({("t", 0): 1}, member_id=member, generation=generation)
    assert driver.state() == "Stable"


def test_a_member_waiting_in_join_needs_no_heartbeat() -> None:
    driver = Driver()
    (first, second), generation = driver.stable_group(2)
    join = driver.join(first)
    for _ in range(4):
        driver.advance(SESSION_MS - 1)
        driver.heartbeat(second, generation)
    assert join not in driver.replies
    driver.join(second)
    assert driver.replies[join].error_code == ErrorCode.NONE
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"  # its session started again with the answer


def test_a_new_member_whose_client_vanished_blocks_the_group_for_five_minutes_at_most() -> None:
    driver = Driver()
    (first,), generation = driver.stable_group(rebalance_ms=3_600_000)
    ghost = driver.join(driver.new_member(rebalance_ms=3_600_000), rebalance_ms=3_600_000)
    for _ in range(59):
        driver.advance(5_000)
        assert driver.heartbeat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(5_000)
    assert driver.replies[ghost].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.replies[driver.join(first)].generation_id == generation + 1


def test_a_pending_member_expires_and_no_longer_holds_the_rebalance_up() -> None:
    driver = Driver()
    (first,), generation = driver.stable_group()
    driver.new_member()
    join = driver.join(first)
    assert join not in driver.replies
    driver.advance(SESSION_MS)
    assert driver.replies[join].generation_id == generation + 1


def test_members_that_never_sync_are_dropped_after_the_rebalance_timeout() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    driver.join(first), driver.join(second)
    driver.advance(2 * DELAY_MS)
    driver.sync(first, 1, {first: b"a", second: b"b"})
    assert driver.state() == "Stable"
    for _ in range(REBALANCE_MS // 5_000):
        assert driver.heartbeat(first, 1) == driver.heartbeat(second, 1) == ErrorCode.NONE
        driver.advance(5_000)
    assert driver.heartbeat(second, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_never_syncs_is_replaced() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    driver.join(first), driver.join(second)
    driver.advance(2 * DELAY_MS)
    parked = driver.sync(second, 1)
    driver.advance(SESSION_MS)
    assert driver.replies[parked].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.replies[driver.join(second)].leader == second


def test_a_rebalance_in_the_middle_of_the_last_one() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    driver.join(first), driver.join(second)
    driver.advance(2 * DELAY_MS)
    parked = driver.sync(second, 1)
    third_join = driver.join(driver.new_member())
    assert driver.replies[parked].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.replies[driver.sync(first, 1, {})].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    driver.join(first), driver.join(second)
    assert driver.replies[third_join].generation_id == 2


@pytest.mark.parametrize("state", ["CompletingRebalance", "Stable"])
def test_a_repeated_join_of_a_follower_is_answered_from_the_present_generation(state: str) -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    driver.join(first), driver.join(second)
    driver.advance(2 * DELAY_MS)
    if state == "Stable":
        driver.sync(first, 1, {})
    again = driver.replies[driver.join(second)]
    assert (again.generation_id, again.member_id, again.members) == (1, second, [])
    assert driver.state() == state


def test_a_repeated_join_of_the_leader_lists_the_members_again() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    driver.join(first), driver.join(second)
    driver.advance(2 * DELAY_MS)
    assert len(driver.replies[driver.join(first)].members) == 2
    assert driver.state() == "CompletingRebalance"


def test_another_request_of_the_same_member_ends_the_parked_one() -> None:
    driver = Driver()
    first, second = driver.new_member(), driver.new_member()
    parked_join = driver.join(first)
    driver.join(second)
    again = driver.join(first)
    assert driver.replies[parked_join].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(2 * DELAY_MS)
    assert driver.replies[again].error_code == ErrorCode.NONE
    parked_sync = driver.sync(second, 1)
    driver.sync(second, 1)
    assert driver.replies[parked_sync].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_the_protocol_with_most_votes_wins_among_those_that_all_support() -> None:
    driver = Driver()
    lists = [
        {"sticky": b"", "range": b"", "roundrobin": b""},
        {"roundrobin": b"", "range": b""},
        {"range": b"", "roundrobin": b"", "sticky": b""},
        {"own": b"", "roundrobin": b"", "range": b""},
    ]
    joins = [driver.join(driver.new_member(protocols=each), protocols=each) for each in lists]
    driver.advance(3 * DELAY_MS)
    assert {driver.replies[join].protocol_name for join in joins} == {"range"}


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"other": b""}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"instance": "x" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"protocols": {f"p{n}": b"" for n in range(1_001)}}, ErrorCode.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_a_join_that_does_not_fit(how: dict[str, object], error: ErrorCode) -> None:
    driver = Driver()
    driver.stable_group()
    join = driver.join(**how)  # type: ignore[arg-type]
    assert driver.replies[join].error_code == error
    assert driver.state() == "Stable"


def test_a_first_join_needs_a_protocol() -> None:
    driver = Driver()
    join = driver.join(protocol_type="")
    assert driver.replies[join].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert list(driver.machine.group_ids()) == []


def test_the_group_has_room_for_group_max_size_members() -> None:
    driver = Driver(group_max_size=2)
    driver.stable_group(2)
    reply = driver.replies[driver.join()]
    assert (reply.error_code, reply.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.state() == "Stable"


def test_while_a_rebalance_runs_the_first_to_join_get_the_places() -> None:
    driver = Driver(group_max_size=2)
    # A client that was only given an id holds no place: its client may never come back.
    *members, late = [driver.new_member() for _ in range(3)]
    joins = [driver.join(member) for member in members]
    refused = driver.replies[driver.join(late)]
    assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    driver.advance(2 * DELAY_MS)
    assert all(driver.replies[join].error_code == ErrorCode.NONE for join in joins)


def test_a_group_loaded_with_too_many_members_shrinks() -> None:
    driver = Driver()
    members, _ = driver.stable_group(3)
    other = Driver(group_max_size=2)
    other.log = driver.log
    small = other.reloaded()
    assert small.state() == "PreparingRebalance"
    replies = [small.join(member) for member in members]
    errors = [small.replies[token].error_code for token in replies if token in small.replies]
    assert errors.count(ErrorCode.GROUP_MAX_SIZE_REACHED) == 1
    assert errors.count(ErrorCode.NONE) == 2


class TestWhoIsRefused:
    """Each call with a wrong group, member or generation."""

    def test_a_group_that_is_not_there(self) -> None:
        driver = Driver()
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.replies[driver.join("member")].error_code == unknown
        assert driver.replies[driver.sync("member", 1)].error_code == unknown
        assert driver.heartbeat("member", 1) == unknown
        assert list(driver.machine.group_ids()) == []

    def test_a_stranger(self) -> None:
        driver = Driver()
        _, generation = driver.stable_group()
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.replies[driver.join("stranger")].error_code == unknown
        assert driver.replies[driver.sync("stranger", generation)].error_code == unknown
        assert driver.heartbeat("stranger", generation) == unknown

    @pytest.mark.parametrize("step", [-1, 1])
    def test_another_generation(self, step: int) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group()
        illegal = ErrorCode.ILLEGAL_GENERATION
        assert driver.replies[driver.sync(member, generation + step)].error_code == illegal
        assert driver.heartbeat(member, generation + step) == illegal

    def test_a_sync_for_another_protocol(self) -> None:
        driver = Driver()
        (member,), generation = driver.stable_group()
        for what in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
            sync = driver.sync(member, generation, **what)  # type: ignore[arg-type]
            assert driver.replies[sync].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        fits = driver.sync(member, generation, protocol_type="consumer", protocol_name="range")
        assert driver.replies[fits].error_code == ErrorCode.NONE


def test_describe_and_list() -> None:
    driver = Driver()
    members, _ = driver.stable_group(2)
    driver.join(driver.new_member(group="h", protocol_type="connect"), group="h",
                protocol_type="connect")  # fmt: skip
    driver.commit({("t", 0): 1}, group="simple")
    described = driver.machine.describe("g")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    assert [
        (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
        for m in described.members
    ] == [(m, "c", "/127.0.0.1", b"subscription", f"part of {m}".encode()) for m in members]
    moving = driver.machine.describe("h")
    assert (moving.group_state, moving.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in moving.members] == [b""]
    driver.join(members[0])
    moving = driver.machine.describe("g")
    assert (moving.group_state, moving.protocol_data) == ("PreparingRebalance", "")
    assert [(m.member_metadata, m.member_assignment) for m in moving.members] == [
        (b"", f"part of {m}".encode()) for m in members
    ]
    driver.join(members[1])
    for number, member in enumerate(members):
        driver.sync(member, 2, {} if number else dict.fromkeys(members, b"new"))
    assert driver.machine.describe("simple").group_state == "Empty"
    gone = driver.machine.describe("nothing")
    assert (gone.error_code, gone.group_state) == (ErrorCode.NONE, "Dead")

    listed = messages.ListGroupsResponse.ListedGroup
    assert driver.machine.list_groups([], []) == [
        listed("g", "consumer", "Stable", "classic"),
        listed("h", "connect", "PreparingRebalance", "classic"),
        listed("simple", "", "Empty", "classic"),
    ]
    assert [g.group_id for g in driver.machine.list_groups(["STABLE", "empty"], ["CLASSIC"])] == [
        "g",
        "simple",
    ]
    assert driver.machine.list_groups([], ["consumer"]) == []


def test_a_clock_that_is_set_ends_no_session() -> None:
    driver = Driver()
    (member,), generation = driver.stable_group()
    for step in (86_400_000, -86_400_000):
        driver.now_ms += step
        driver.machine.shift_deadlines(step)
        driver.advance(SESSION_MS - 1)
        assert driver.heartbeat(member, generation) == ErrorCode.NONE
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"
