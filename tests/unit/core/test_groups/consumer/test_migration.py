"""The moments of a conversion: what waits, what is put off, and what becomes of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.core.groups import Client
from kraftpy.core.groups.config import MigrationPolicy
from kraftpy.core.groups.consumer.embedded import write_assignment, write_subscription
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode

from ..driver import SESSION_MS, Driver
from ..topics import topic_id

SUBSCRIPTION = write_subscription(["t"])
CONSUMER = {"protocols": {"range": SUBSCRIPTION}}


def beat(driver: Driver, member_id: str = "new", epoch: int = 0) -> str:
    """A heartbeat of the consumer protocol: the token of its answer."""
    token = driver._next()
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    driver.carry_out(
        driver.machine.consumer_heartbeat(
            token, request, Client(1, "c", "/h"), token, driver.now_ms
        )
    )
    return token


def classic_group(driver: Driver) -> tuple[list[str], int]:
    """Two stable members, each with half of topic t."""
    members = [driver.new_member(**CONSUMER) for _ in range(2)]
    joins = [driver.join(member, **CONSUMER) for member in members]
    driver.advance(2 * driver.config.group_initial_rebalance_delay_ms)
    generation = driver.replies[joins[0]].generation_id
    halves = [range(5), range(5, 10)]
    given = {
        member: write_assignment({topic_id("t"): half}, driver.topics, SUBSCRIPTION)
        for member, half in zip(members, halves, strict=True)
    }
    driver.sync(members[0], generation, given)
    driver.sync(members[1], generation)
    assert driver.state() == "Stable"
    return members, generation


def kind(driver: Driver) -> str:
    (listed,) = driver.machine.list_groups([], [])
    return str(listed.group_type)


class TestUpgrade:
    def test_parked_members_are_told_to_rejoin_once_it_is_committed(self) -> None:
        driver = Driver()
        (leader, _), _ = classic_group(driver)
        parked = driver.join(leader, **CONSUMER)
        driver.commits = False
        answer = beat(driver)
        assert not {parked, answer} & driver.replies.keys()
        assert kind(driver) == "classic"
        driver.settle()
        assert driver.replies[parked].error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert driver.replies[answer].error_code == ErrorCode.NONE
        assert kind(driver) == "consumer"

    def test_what_comes_meanwhile_waits_and_meets_what_there_is_then(self) -> None:
        for error in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS):
            driver = Driver()
            (leader, follower), generation = classic_group(driver)
            driver.commits = False
            beat(driver)
            sync = driver.sync(follower, generation)
            join = driver.join(leader, **CONSUMER)
            assert driver.heartbeat(leader, generation) == ErrorCode.NONE
            assert not {sync, join} & driver.replies.keys()
            driver.settle(error)
            driver.commits = True
            while driver.in_flight:
                driver.settle()
            expected = ErrorCode.NONE if error else ErrorCode.REBALANCE_IN_PROGRESS
            assert driver.replies[sync].error_code == expected
            assert kind(driver) == ("classic" if error else "consumer")
            assert driver.state() == ("PreparingRebalance" if error else "Dead")
            if not error:
                assert driver.replies[join].error_code == ErrorCode.NONE

    def test_a_failure_leaves_the_classic_group_as_it_was(self) -> None:
        driver = Driver()
        (leader, follower), generation = classic_group(driver)
        driver.commits = False
        answer = beat(driver)
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.replies[answer].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        for member in (leader, follower):
            assert driver.heartbeat(member, generation) == ErrorCode.NONE
        assert driver.state() == "Stable"

    def test_one_that_commits_after_its_timeout_counts(self) -> None:
        driver = Driver()
        (leader, _), generation = classic_group(driver)
        driver.commits = False
        answer = beat(driver)
        driver.time_out()
        assert driver.replies[answer].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = driver.join(leader, **CONSUMER)
        assert driver.replies[refused].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        driver.settle()
        assert kind(driver) == "consumer"
        assert driver.heartbeat(leader, generation) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_sessions_end_only_after_it_has_landed(self) -> None:
        driver = Driver()
        (_, follower), generation = classic_group(driver)
        driver.commits = False
        beat(driver)
        driver.advance(SESSION_MS)
        assert len(driver.in_flight) == 1  # nobody was dropped behind the back of the conversion
        driver.settle()
        assert driver.heartbeat(follower, generation) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_it_waits_for_the_assignment_that_is_being_recorded(self) -> None:
        driver = Driver()
        (leader, follower), _ = classic_group(driver)
        driver.join(leader, **CONSUMER)
        generation = driver.replies[driver.join(follower, **CONSUMER)].generation_id
        driver.commits = False
        driver.sync(leader, generation, {})
        answer = beat(driver)
        assert len(driver.in_flight) == 1
        driver.settle()
        assert answer not in driver.replies
        driver.settle()
        assert driver.replies[answer].error_code == ErrorCode.NONE
        assert driver.heartbeat(leader, generation) == ErrorCode.REBALANCE_IN_PROGRESS

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"consumer_migration_policy": MigrationPolicy.DOWNGRADE}, "migration.policy"),
            ({"consumer_max_size": 1}, "max.size"),
        ],
    )
    def test_when_it_is_not_allowed(self, config: dict[str, Any], words: str) -> None:
        driver = Driver(**config)
        classic_group(driver)
        reply = driver.replies[beat(driver)]
        assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert words in reply.error_message
        assert driver.state() == "Stable"


class TestDowngrade:
    def mixed(self, **config: Any) -> tuple[Driver, list[str], int]:
        """A consumer group that was a classic one, with a new member "new"."""
        driver = Driver(**config)
        members, generation = classic_group(driver)
        beat(driver)
        return driver, members, generation

    def test_it_survives_the_coordinator_and_finds_that_somebody_is_missing(self) -> None:
        driver, members, _ = self.mixed()
        beat(driver, epoch=-1)
        assert (kind(driver), driver.state()) == ("classic", "PreparingRebalance")
        other = driver.reloaded()
        assert (kind(other), other.state()) == ("classic", "Stable")
        assert {m.member_id for m in other.machine.describe("g").members} == {*members, "new"}
        other.advance(other.config.consumer_session_timeout_ms)
        assert other.state() != "Stable"

    def test_members_support_all_that_they_did(self) -> None:
        driver, (leader, follower), _ = self.mixed()
        beat(driver, epoch=-1)
        for member in (leader, follower):
            protocols = driver.machine._groups["g"].members[member].protocols
            assert protocols == {"range": SUBSCRIPTION}

    def test_a_session_that_ends_does_it_too(self) -> None:
        driver, members, generation = self.mixed(consumer_session_timeout_ms=SESSION_MS)
        driver.advance(SESSION_MS // 2)
        for member in members:
            assert driver.heartbeat(member, generation) == ErrorCode.REBALANCE_IN_PROGRESS
        assert kind(driver) == "consumer"
        driver.advance(SESSION_MS // 2)
        assert kind(driver) == "classic"
        # They had not joined the last epoch yet, which is the generation now.
        assert driver.heartbeat(members[0], generation) == ErrorCode.ILLEGAL_GENERATION

    def test_a_failure_leaves_the_consumer_group_as_it_was(self) -> None:
        driver, (leader, _), generation = self.mixed()
        driver.commits = False
        answer = beat(driver, epoch=-1)
        driver.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.replies[answer].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert kind(driver) == "consumer"
        assert driver.heartbeat(leader, generation) == ErrorCode.REBALANCE_IN_PROGRESS

    @pytest.mark.parametrize(
        "config",
        [
            {"consumer_migration_policy": MigrationPolicy.UPGRADE},
            {"group_max_size": 1},
        ],
    )
    def test_when_it_is_not_allowed(self, config: dict[str, Any]) -> None:
        driver, members, generation = self.mixed()
        driver.config = type(driver.config)(**config)
        driver = driver.reloaded()
        beat(driver, epoch=-1)
        assert kind(driver) == "consumer"
        assert driver.heartbeat(members[0], generation) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_classic_member_that_takes_the_last_place(self) -> None:
        driver = Driver()
        token = driver._next()
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="new",
            member_epoch=0,
            instance_id="i",
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        driver.carry_out(
            driver.machine.consumer_heartbeat(
                token, request, Client(1, "c", "/h"), token, driver.now_ms
            )
        )
        other = driver.join(version=3, **CONSUMER)
        assert driver.replies[other].error_code == ErrorCode.NONE
        join = driver.join(instance="i", **CONSUMER)
        assert kind(driver) == "classic"
        rejoin = driver.join(driver.replies[other].member_id, **CONSUMER)
        assert driver.replies[join].generation_id == driver.replies[rejoin].generation_id
        assert "new" not in {m.member_id for m in driver.machine.describe("g").members}
