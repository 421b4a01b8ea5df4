"""ConsumerGroupHeartbeat rule by rule: Kafka 4.4's answers (KIP-848, KIP-1251)."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.core.groups import Client
from kraftpy.core.groups.config import WAITING_REQUESTS_MAX
from kraftpy.core.groups.consumer.records import MemberState
from kraftpy.protocol.errors import ErrorCode

from .story import NONE, Story, given, told
from .world import GROUP, SESSION_MS

# -- the request on its own


@pytest.mark.parametrize(
    ("epoch", "fields"),
    [
        (0, {"instance_id": ""}),
        (0, {"rack_id": ""}),
        (0, {"instance_id": "x" * 40_000}),
        (0, {"rebalance_timeout_ms": -1}),
        (0, {"owned": {(b"t" * 16, 0)}}),
        (0, {"subscribed_topic_names": None}),
        (-2, {}),
        (-3, {}),
    ],
)
def test_requests_that_no_group_accepts(epoch: int, fields: dict[str, Any]) -> None:
    story = Story()
    assert story.error("a", epoch, **fields) is ErrorCode.INVALID_REQUEST
    assert story.group is None


def test_a_member_makes_its_id_since_version_1() -> None:
    story = Story()
    assert story.error("", 0) is ErrorCode.INVALID_REQUEST
    effects = story.machine.consumer_heartbeat(
        "t", story.request("", 0), Client(0, "c", "/h"), "made-here", story.now_ms
    )
    story.carry_out(effects)
    story.land()
    assert story.replies["t"].member_id == "made-here"


def test_unknown_assignors_and_regexes_are_refused() -> None:
    story = Story()
    assert story.error("a", 0, server_assignor="sticky") is ErrorCode.UNSUPPORTED_ASSIGNOR
    wrong = {"subscribed_topic_names": None, "subscribed_topic_regex": "beer("}
    assert story.error("a", 0, **wrong) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert story.group is None


def test_only_a_join_makes_a_group() -> None:
    assert Story().error("a", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert Story().error("a", -1) is ErrorCode.GROUP_ID_NOT_FOUND


# -- epochs


def test_a_member_is_believed_in_its_own_epoch_only() -> None:
    story = Story()
    story.two_members()
    assert story.error("c", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.error("a", 3) is ErrorCode.FENCED_MEMBER_EPOCH
    assert story.error("a", 1) is ErrorCode.FENCED_MEMBER_EPOCH  # it doesn't say what it owns
    assert story.error("a", 2) is NONE


def test_the_epoch_before_is_good_for_who_owns_nothing_else() -> None:
    """The answer that raised the epoch may have been lost: it is repeated."""
    story = Story()
    story.two_members()
    assert story.error("a", 1, owned=given(story, "b")) is ErrorCode.FENCED_MEMBER_EPOCH
    again = story.beat("a", 1, owned=given(story, "a"))
    assert (again.error_code, again.member_epoch) == (NONE, 2)
    assert told(again) == given(story, "a")
    assert story.error("a", 0) is NONE


def test_who_joins_again_gets_what_it_had() -> None:
    story = Story()
    story.two_members()
    again = story.beat("a", 0)
    assert (again.member_epoch, told(again)) == (2, given(story, "a"))
    assert story.there.epoch == 2, "nothing to rebalance"


def test_a_repeated_first_join_is_answered_alike() -> None:
    story = Story()
    assert story.beat("a", 0) == story.beat("a", 0)
    assert story.there.epoch == 1


# -- assignments


def test_partitions_move_once_they_are_given_up() -> None:
    story = Story()
    assert told(story.beat("a", 0)) == story.beer(*range(6))
    assert told(story.beat("b", 0)) == set()
    assert told(story.beat("a", 1)) == story.beer(0, 1, 2)
    assert told(story.beat("b", 2)) is None, "nothing is free yet"
    assert told(story.beat("a", 1)) is None, "it has been told"
    assert story.state == "Reconciling"
    assert story.beat("a", 1, owned=story.beer(0, 1, 2)).member_epoch == 2
    assert told(story.beat("b", 2)) == story.beer(3, 4, 5)
    assert story.state == "Stable"


def test_a_full_request_has_a_full_answer() -> None:
    story = Story()
    story.two_members()
    full = {"subscribed_topic_names": ["beer"], "rebalance_timeout_ms": 1000}
    assert told(story.beat("a", 2, owned=given(story, "a"))) is None
    assert told(story.beat("a", 2, owned=given(story, "a"), **full)) == given(story, "a")


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    story = Story()
    story.two_members()
    before = len(story.log)
    for owned in (None, given(story, "a")):
        assert story.beat("a", 2, owned=owned).heartbeat_interval_ms == 1_000
    assert len(story.log) == before


def test_the_next_heartbeat_sees_that_topics_changed() -> None:
    story = Story()
    story.two_members()
    story.topics.grow("cheese", 1)
    assert story.beat("a", 2).member_epoch == 2, "nobody subscribes to that"
    story.topics.grow("beer", 2)
    assert story.beat("a", 2).member_epoch == 3
    assert len(given(story, "a")) == 4
    assert story.beat("b", 2).member_epoch == 3
    assert story.state == "Stable"


def test_a_topic_made_again_is_another_topic() -> None:
    story = Story()
    story.beat("a", 0)
    old = given(story, "a")
    story.topics.delete("beer")
    story.topics.make("beer", 6)
    story.beat("a", 1, owned=old)
    story.beat("a", 1, owned=set())
    assert given(story, "a") == story.beer(*range(6)) != old


def test_a_regex_follows_the_topics() -> None:
    story = Story()
    story.beat("a", 0, subscribed_topic_names=None, subscribed_topic_regex="b.*")
    story.topics.make("bread", 1)
    story.beat("a", 1)
    bread = story.topics.topics["bread"].topic_id
    assert given(story, "a") == story.beer(*range(6)) | {(bread, 0)}
    story.beat("a", 2, subscribed_topic_names=["beer"], subscribed_topic_regex="")
    assert not story.there.regexes


def test_most_wishes_choose_the_assignor() -> None:
    story = Story()
    for member_id, assignor in (("a", "range"), ("b", None), ("c", "range"), ("d", "uniform")):
        story.beat(member_id, 0, server_assignor=assignor)
    described = story.machine.consumer_describe(GROUP)
    assert described.assignor_name == "range"


def test_another_assignor_that_most_wish_for_makes_a_new_epoch() -> None:
    story = Story()
    story.beat("a", 0)
    story.beat("b", 0)
    story.beat("c", 0)
    assert story.there.epoch == 3
    story.beat("a", 1, server_assignor="uniform")  # what they have without a wish
    story.beat("b", 2, server_assignor="range")  # a tie
    assert story.there.epoch == 3
    story.beat("c", 3, server_assignor="range")
    assert (story.there.epoch, story.there.assignment_epoch) == (4, 4)
    assert story.machine.consumer_describe(GROUP).assignor_name == "range"


def test_a_large_group_makes_one_target_for_all_who_wait() -> None:
    story = Story()
    story.large_size = 1
    story.machine = story.load([])
    tokens = [story.transmit(story.request(member_id, 0)) for member_id in "abcd"]
    for _ in tokens:
        story.land()
    assert [story.replies[token].member_epoch for token in tokens] == [1, 1, 1, 4]
    assert (story.there.epoch, story.there.assignment_epoch) == (4, 4)
    for _ in range(3):
        for member_id in "abcd":
            epoch = story.there.current(member_id).epoch
            story.beat(member_id, epoch, owned=given(story, member_id))
    assert story.state == "Stable"


def test_who_was_the_only_one_to_read_a_topic_is_not_missed_twice() -> None:
    story = Story()
    story.beat("a", 0)
    story.beat("b", 0, subscribed_topic_names=["beer", "cheese"])
    story.beat("b", -1)
    story.beat("a", 1, owned=set())
    epoch = story.there.epoch
    story.fail_over()
    story.beat("a", epoch, owned=set())
    assert story.there.epoch == epoch


# -- leaving


def test_who_leaves_makes_room() -> None:
    story = Story()
    story.two_members()
    left = story.beat("a", -1)
    assert (left.member_id, left.member_epoch, left.error_code) == ("a", -1, NONE)
    assert story.state == "Assigning"
    assert told(story.beat("b", 2)) == story.beer(*range(6))
    assert story.error("a", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.error("a", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    story.beat("b", -1)
    assert story.state == "Empty"


def test_a_silent_member_is_taken_out() -> None:
    story = Story()
    story.two_members()
    story.advance(SESSION_MS - 1)
    assert story.error("a", 2) is NONE
    story.advance(1)
    story.land()
    assert list(story.there.members) == ["a"]
    story.advance(SESSION_MS)
    story.land()
    assert story.state == "Empty"


def test_a_heartbeat_that_waits_its_turn_keeps_the_session() -> None:
    story = Story()
    story.two_members()
    story.advance(SESSION_MS - 1)
    story.transmit(story.request("c", 0))
    token = story.transmit(story.request("a", 2))
    story.advance(1)
    while story.in_flight:
        story.land()
    assert story.replies[token].error_code == NONE
    assert set(story.there.members) == {"a", "c"}


def test_who_gives_nothing_up_in_time_is_taken_out() -> None:
    story = Story()
    story.beat("a", 0, rebalance_timeout_ms=5_000)
    story.beat("b", 0)
    story.beat("a", 1)
    story.advance(4_999)
    assert story.error("a", 1) is NONE
    story.advance(1)
    story.land()
    assert story.error("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID


# -- static members


def test_a_static_member_comes_back_to_its_partitions() -> None:
    story = Story()
    story.two_members()
    story.beat("b", -1)
    story.beat("s-1", 0, instance_id="s")
    story.beat("a", 2)
    story.beat("a", 2, owned=given(story, "a"))
    story.beat("s-1", 4, instance_id="s")
    had = given(story, "s-1")
    assert len(had) == 3
    # Another process can't have the name while this one has it.
    assert story.error("s-2", 0, instance_id="s") is ErrorCode.UNRELEASED_INSTANCE_ID
    assert story.error("s-2", 4, instance_id="s") is ErrorCode.FENCED_INSTANCE_ID
    assert story.error("s-1", 4, instance_id="t") is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.error("s-1", 0, instance_id="s") is NONE
    # It steps aside, and its partitions are kept for whoever bears its name.
    assert story.beat("s-1", -2, instance_id="s").member_epoch == -2
    assert given(story, "s-1") == had
    assert story.error("s-1", 4, instance_id="s") is ErrorCode.FENCED_MEMBER_EPOCH
    back = story.beat("s-2", 0, instance_id="s")
    assert (back.member_epoch, told(back)) == (4, had)
    assert story.there.epoch == 4, "no reason to rebalance"
    assert story.there.current("s-2").previous_epoch == 0
    assert story.error("s-1", 4, instance_id="s") is ErrorCode.FENCED_INSTANCE_ID
    assert story.state == "Stable"


def test_a_static_member_that_stays_away_loses_its_partitions() -> None:
    story = Story()
    story.beat("s-1", 0, instance_id="s")
    story.beat("s-1", -2, instance_id="s")
    story.advance(SESSION_MS)
    story.land()
    assert story.state == "Empty"


def test_a_static_member_that_steps_aside_has_given_up_what_it_was_told_to() -> None:
    story = Story()
    story.beat("a", 0, instance_id="i")
    story.beat("b", 0)
    story.beat("a", 1, instance_id="i")
    assert story.there.current("a").state is MemberState.UNREVOKED_PARTITIONS
    assert not told(story.beat("b", 2))
    story.beat("a", -2, instance_id="i")
    assert len(told(story.beat("b", 2)) or ()) == 3


def test_a_full_group_takes_nobody_but_who_is_in_it() -> None:
    story = Story(consumer_max_size=1)
    story.beat("s-1", 0, instance_id="s")
    assert story.error("a", 0) is ErrorCode.GROUP_MAX_SIZE_REACHED
    story.beat("s-1", -2, instance_id="s")
    assert story.error("s-2", 0, instance_id="s") is NONE


# -- writes


def test_a_failed_write_changes_nothing() -> None:
    story = Story()
    story.two_members()
    token = story.transmit(story.request("c", 0))
    effects = story.machine.failed(
        story.in_flight.pop(), ErrorCode.NOT_ENOUGH_REPLICAS, story.now_ms
    )
    story.carry_out(effects)
    assert story.replies[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(story.there.members) == {"a", "b"}
    assert story.error("c", 0) is NONE


def test_nothing_is_seen_before_it_is_committed() -> None:
    story = Story()
    story.transmit(story.request("a", 0))
    token = story.transmit(story.request("b", 0))
    assert story.group is None
    assert len(story.in_flight) == 1, "one write of a group at a time"
    story.land()
    assert list(story.there.members) == ["a"]
    assert token not in story.replies
    story.land()
    assert list(story.there.members) == ["a", "b"]
    assert story.replies[token].member_epoch == 2


def test_the_line_is_bounded() -> None:
    story = Story()
    story.transmit(story.request("a", 0))
    for _ in range(WAITING_REQUESTS_MAX):
        story.transmit(story.request("b", 0))
    token = story.transmit(story.request("b", 0))
    assert story.replies[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_who_is_new_after_a_late_write_has_a_session_all_the_same() -> None:
    story = Story()
    story.transmit(story.request("a", 0))
    story.be_late()
    story.land()
    assert list(story.there.members) == ["a"]
    story.advance(SESSION_MS)
    story.land()
    assert story.state == "Empty"


def test_another_coordinator_disturbs_nobody() -> None:
    story = Story()
    story.two_members()
    story.beat("c", 0)
    story.beat("a", 2)
    before = len(story.log)
    story.fail_over()
    assert story.error("a", 2) is NONE
    assert story.error("c", 3) is NONE
    assert story.state == "Reconciling"
    assert len(story.log) == before, "the metadata hash is known"
    assert story.there.current("a").state is MemberState.UNREVOKED_PARTITIONS
    story.advance(SESSION_MS)  # it began with the new coordinator
    while story.in_flight:
        story.land()
    assert not story.there.members
