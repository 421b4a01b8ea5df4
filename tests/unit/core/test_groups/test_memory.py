"""What groups may keep because clients said so: of one member, of all, of none that joined."""

from __future__ import annotations

import pytest

from kraftpy.core.groups import memory
from kraftpy.protocol.errors import ErrorCode

from .driver import DELAY_MS, SESSION_MS, Driver
from .test_hostile import beat

MAX_BYTES = 1_048_576
LARGE = bytes(MAX_BYTES - 1000)
ROOM_FOR_TWO = 2 * MAX_BYTES + 100_000


def test_a_member_that_says_too_much_is_refused_and_leaves_nothing() -> None:
    driver = Driver()
    join = driver.join(version=3, protocols={"a": bytes(MAX_BYTES // 2), "b": LARGE})
    assert driver.replies[join].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    many = {f"p{number}": b"" for number in range(MAX_BYTES // memory.ITEM_BYTES)}
    join = driver.join(version=3, protocols=many)
    assert driver.replies[join].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.machine.groups_count == 0
    assert driver.memory.used_bytes == 0


def test_all_members_together_have_room_for_so_much() -> None:
    driver = Driver(memory_bytes=ROOM_FOR_TWO)
    tokens = [
        driver.join(version=3, group=group, protocols={"a": LARGE}) for group in ("g", "h", "i")
    ]
    assert tokens[0] not in driver.replies
    assert tokens[1] not in driver.replies
    assert driver.replies[tokens[2]].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.advance(DELAY_MS)
    member = driver.replies[tokens[0]].member_id
    driver.leave(member)
    token = driver.join(version=3, group="i", protocols={"a": LARGE})
    driver.advance(DELAY_MS)
    assert driver.replies[token].error_code == ErrorCode.NONE


def test_who_is_in_stays_in_when_the_room_is_used_up() -> None:
    driver = Driver(memory_bytes=ROOM_FOR_TWO)
    token = driver.join(version=3, protocols={"a": LARGE})
    driver.join(version=3, group="h", protocols={"a": LARGE})
    driver.advance(DELAY_MS)
    member = driver.replies[token].member_id
    again = driver.join(member, protocols={"a": LARGE})
    assert driver.replies[again].error_code == ErrorCode.NONE
    more = driver.join(member, protocols={"a": LARGE, "b": bytes(100_000)})
    assert driver.replies[more].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    small = driver.join(version=3, group="j", protocols={"a": bytes(100_000)})
    assert driver.replies[small].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_assignment_has_the_same_limits() -> None:
    driver = Driver()
    member = driver.new_member()
    driver.join(member)
    driver.advance(DELAY_MS)
    before = driver.memory.used_bytes
    sync = driver.sync(member, 1, {member: bytes(MAX_BYTES + 1)})
    assert driver.replies[sync].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.memory.used_bytes == before
    assert driver.state() == "PreparingRebalance"
    driver.join(member)
    sync = driver.sync(member, 2, {member: LARGE})
    assert driver.replies[sync].assignment == LARGE
    assert driver.memory.used_bytes == before + len(LARGE)


def test_a_static_member_whose_return_is_not_recorded_in_time_takes_what_it_took_before() -> None:
    driver = Driver()
    driver.static_group("i-1")
    before = driver.memory.used_bytes
    driver.commits = False
    larger = {"range": b"meta-1", "roundrobin": bytes(500)}
    token = driver.join(instance="i-1", protocols=larger)
    assert driver.memory.used_bytes > before
    driver.time_out()
    assert driver.replies[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.memory.used_bytes == before


def test_an_assignment_without_room() -> None:
    driver = Driver(memory_bytes=500_000)
    member = driver.new_member()
    driver.join(member)
    driver.advance(DELAY_MS)
    sync = driver.sync(member, 1, {member: LARGE})
    assert driver.replies[sync].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_group_that_never_had_a_generation_goes_with_its_connections() -> None:
    driver = Driver()
    first = driver.join(version=3, protocols={"a": LARGE})
    second = driver.join(version=3, protocols={"a": LARGE})
    driver.abandon(f"c-{first}", first)
    assert driver.machine.groups_count == 1
    driver.abandon(f"c-{second}", second)
    assert driver.machine.groups_count == 0
    assert driver.memory.used_bytes == 0
    driver.advance(10 * DELAY_MS)
    assert driver.log == []
    assert driver.join("c-request-1") in driver.replies
    token = driver.join(version=3)
    driver.advance(DELAY_MS)
    assert driver.replies[token].generation_id == 1


def test_a_member_of_a_group_that_has_a_generation_may_come_back() -> None:
    driver = Driver()
    (member,), generation = driver.stable_group()
    newcomer = driver.new_member()
    token = driver.join(newcomer)
    driver.abandon(newcomer, token)
    driver.join(member)
    assert driver.join(newcomer) in driver.replies
    assert driver.state() == "CompletingRebalance"
    assert driver.heartbeat(member, generation + 1) == ErrorCode.NONE


def test_one_that_has_asked_again_meanwhile_stays() -> None:
    driver = Driver()
    member = driver.new_member()
    first = driver.join(member)
    second = driver.join(member)
    driver.abandon(member, first)
    driver.advance(DELAY_MS)
    assert driver.replies[second].generation_id == 1


def test_invented_groups_make_room_for_each_other() -> None:
    driver = Driver(memory_bytes=100_000)
    oldest = driver.new_member(group="oldest")
    for number in range(40):
        driver.new_member(group=f"{number}-" + "x" * 1_000_000)
        assert driver.memory.awaited_bytes <= memory.AWAITED_MAX_BYTES
    assert driver.machine.groups_count < 20
    refused = driver.join(oldest, group="oldest")
    assert driver.replies[refused].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    again = driver.new_member(group="oldest")
    token = driver.join(again, group="oldest")
    driver.advance(SESSION_MS)
    assert driver.replies[token].generation_id == 1
    driver.advance(SESSION_MS)
    assert driver.memory.awaited_bytes == 0


def test_a_coordinator_that_closes_gives_all_back_and_the_next_counts_it_again() -> None:
    driver = Driver()
    driver.stable_group(2)
    driver.new_member(group="other")
    beat(driver, "m", group="consumers")
    used_bytes = driver.memory.used_bytes
    driver.carry_out(driver.machine.close(ErrorCode.NOT_COORDINATOR, driver.now_ms))
    assert (driver.memory.used_bytes, driver.memory.awaited_bytes) == (0, 0)
    assert driver.reloaded().memory.used_bytes == used_bytes


@pytest.mark.parametrize(
    "said",
    [{"names": [""] * (MAX_BYTES // 2 + 1)}, {"names": ["x" * 32_000] * 40}],
    ids=["nothing, often", "long names"],
)
def test_a_subscription_of_the_consumer_protocol(said: dict[str, list[str]]) -> None:
    driver = Driver()
    answer = driver.replies[beat(driver, "m", **said)]
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.memory.used_bytes == 0


def test_consumer_groups_share_the_room() -> None:
    driver = Driver(memory_bytes=100_000)
    names = [f"topic-{number}" for number in range(1000)]
    assert driver.replies[beat(driver, "m", names=names)].error_code == ErrorCode.NONE
    refused = driver.replies[beat(driver, "n", names=names)]
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "group.coordinator.max.memory.bytes" in refused.error_message
    assert driver.replies[beat(driver, "m", names=names)].error_code == ErrorCode.NONE
    driver.advance(driver.config.consumer_session_timeout_ms)
    assert driver.replies[beat(driver, "n", names=names)].error_code == ErrorCode.NONE
