"""Share groups in a machine that is driven by hand: epochs, states, lines, deadlines, take-over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kraftpy.core.groups import Client, Effects
from kraftpy.core.groups.share.offsets import Begun
from kraftpy.core.groups.share.service import REFUSED_RETRY_MS
from kraftpy.core.groups.share.states import DeleteStates, InitializeStates, StateWork
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode as E

from ..driver import Driver
from ..topics import topic_id

T, U = topic_id("t"), topic_id("u")
SESSION_MS = 45_000
RETRY_MS = 30_000


class Shares(Driver):
    """`wanted` is what share coordinators are to be asked; `come` and `go` say what they did."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.topics.counts = {"t": 4, "u": 2}
        self.wanted: list[StateWork] = []

    def carry_out(self, effects: Effects) -> None:
        for message in effects.messages:
            assert isinstance(message, (InitializeStates, DeleteStates))
            self.wanted.append(message)
        super().carry_out(effects)

    def taken_over(self) -> Shares:
        """Another coordinator, which knows the log alone."""
        fresh, other = self.reloaded(), Shares()
        other.topics, other.now_ms, other.log = self.topics, self.now_ms, fresh.log
        other.machine, other.memory = fresh.machine, fresh.memory
        return other

    def beat(self, member: str, epoch: int, names: list[str] | None = None) -> str:
        token = self._next()
        request = messages.ShareGroupHeartbeatRequest("g", member, epoch, None, names)
        client = Client(1, "c", "/127.0.0.1")
        self.carry_out(self.machine.share_heartbeat(token, request, client, self.now_ms))
        return token

    def said(self, member: str, epoch: int, names: list[str] | None = None) -> Any:
        """The answer to a heartbeat, which must be accepted."""
        answer = self.replies[self.beat(member, epoch, names)]
        assert answer.error_code == 0, answer.error_message
        return answer

    def error(self, member: str, epoch: int, names: list[str] | None = None) -> E:
        return E(self.replies[self.beat(member, epoch, names)].error_code)

    def come(self, work: StateWork | None = None, *, gives_up: bool = False) -> None:
        """What was wanted last, or this, is there."""
        work = work or self.wanted.pop()
        assert isinstance(work, InitializeStates)
        token = self._next()
        self.carry_out(
            self.machine.share_states_came(
                token, "g", work.offsets, {}, self.now_ms, gives_up=gives_up
            )
        )
        assert self.replies[token] is E.NONE

    def refused(self, work: InitializeStates, *, gives_up: bool = False) -> None:
        self.carry_out(
            self.machine.share_states_came(
                self._next(), "g", {}, work.offsets, self.now_ms, gives_up=gives_up
            )
        )

    def alter(self, wanted: Mapping[str, Mapping[int, int]]) -> Begun:
        token = self._next()
        self.carry_out(self.machine.alter_share_offsets(token, "g", wanted, self.now_ms))
        begun = self.replies[token]
        assert isinstance(begun, Begun)
        return begun

    def forget(self, *names: str) -> Begun:
        token = self._next()
        self.carry_out(self.machine.delete_share_offsets(token, "g", names, self.now_ms))
        begun = self.replies[token]
        assert isinstance(begun, Begun)
        return begun

    def went(self, *topics: bytes, refused: bool = False) -> None:
        self.carry_out(
            self.machine.share_states_went(self._next(), "g", topics, self.now_ms, refused=refused)
        )

    @property
    def kept(self) -> dict[bytes, set[int]]:
        return {topic: set(some) for topic, some in self.machine.share_partitions("g").items()}


def given(answer: Any) -> dict[bytes, list[int]]:
    return {row.topic_id: row.partitions for row in answer.assignment.topic_partitions}


def joined(shares: Shares, *members: str) -> int:
    """All of them have joined and have been told what to read; the epoch."""
    epochs = {each: shares.said(each, 0, ["t"]).member_epoch for each in members}
    if shares.wanted:
        shares.come()
    for _ in range(2):
        epochs = {each: shares.said(each, epochs[each]).member_epoch for each in members}
    (epoch,) = set(epochs.values())
    return int(epoch)


# -- epochs


def test_what_is_dealt_out_has_a_state_before() -> None:
    shares = Shares()
    assert given(shares.said("m", 0, ["t"])) == {}
    assert shares.wanted == [InitializeStates("g", 1, {T: dict.fromkeys(range(4), -1)})]
    assert shares.said("m", 1).assignment is None
    assert len(shares.wanted) == 1  # it's asked once
    shares.come()
    answer = shares.said("m", 1)
    assert (answer.member_epoch, given(answer)) == (2, {T: [0, 1, 2, 3]})
    assert shares.said("m", 2).assignment is None


def test_members_are_told_at_once() -> None:
    """Nobody waits until another one has given something up."""
    shares = Shares()
    epoch = joined(shares, "1")
    other = shares.said("2", 0, ["t"])
    assert (other.member_epoch, len(given(other)[T])) == (epoch + 1, 2)
    first = shares.said("1", epoch)
    assert (first.member_epoch, len(given(first)[T])) == (epoch + 1, 2)
    assert shares.error("1", epoch + 2) is E.FENCED_MEMBER_EPOCH
    assert shares.said("1", epoch).member_epoch == epoch + 1  # its answer may have been lost
    shares.said("2", 0, ["t"])
    assert shares.said("1", epoch + 1).member_epoch == epoch + 1  # who comes again changes nothing


def test_who_leaves_and_who_is_silent_is_missed_by_the_others() -> None:
    shares = Shares()
    epoch = joined(shares, "1", "2", "3")
    assert shares.said("3", -1).member_epoch == -1
    shares.advance(SESSION_MS - 1)
    answer = shares.said("1", epoch)
    assert answer.member_epoch == epoch + 1
    shares.advance(2)
    assert shares.error("2", epoch) is E.UNKNOWN_MEMBER_ID
    answer = shares.said("1", epoch + 1)
    assert (answer.member_epoch, given(answer)) == (epoch + 2, {T: [0, 1, 2, 3]})


def test_topics_that_come_grow_and_go_are_seen() -> None:
    shares = Shares()
    del shares.topics.counts["u"]
    shares.said("m", 0, ["t", "u"])
    shares.come()
    epoch = shares.said("m", 1).member_epoch
    shares.topics.counts |= {"t": 6, "u": 1}
    shares.topics.version += 1
    epoch = shares.said("m", epoch).member_epoch
    assert shares.wanted == [InitializeStates("g", epoch, {T: {4: -1, 5: -1}, U: {0: -1}})]
    shares.come()
    answer = shares.said("m", epoch)
    assert given(answer) == {T: [0, 1, 2, 3, 4, 5], U: [0]}
    del shares.topics.counts["t"]
    shares.topics.version += 1
    shares.carry_out(shares.machine.delete_topic("t", shares.now_ms))
    assert shares.kept == {U: {0}}
    assert given(shares.said("m", answer.member_epoch)) == {U: [0]}


def test_a_group_is_bounded() -> None:
    shares = Shares(share_max_size=1)
    joined(shares, "1")
    assert shares.error("2", 0, ["t"]) is E.GROUP_MAX_SIZE_REACHED
    small = Shares(memory_bytes=1)
    assert small.error("1", 0, ["t"]) is E.COORDINATOR_NOT_AVAILABLE
    assert not small.machine.is_share_group("g")
    narrow = Shares(group_max_metadata_bytes=10)
    assert narrow.error("1", 0, ["t" * 10]) is E.UNKNOWN_SERVER_ERROR


def test_memory_is_counted_and_given_back() -> None:
    shares = Shares()
    joined(shares, "1", "2")
    assert shares.memory.used_bytes > 0
    for member in "12":
        shares.said(member, -1)
    begun_token = shares._next()
    shares.carry_out(shares.machine.delete_share_states(begun_token, "g", shares.now_ms))
    shares.went(T)
    assert shares.replies[shares.delete_group()] is E.NONE
    assert shares.memory.used_bytes == 0


# -- writes that take long or fail


def test_a_group_is_judged_by_what_is_in_the_log() -> None:
    shares = Shares(commits=False)
    first, second = shares.beat("1", 0, ["t"]), shares.beat("2", 0, ["t"])
    assert first not in shares.replies
    assert len(shares.in_flight) == 1
    shares.settle(E.NOT_ENOUGH_REPLICAS)
    assert shares.replies[first].error_code == E.COORDINATOR_NOT_AVAILABLE
    shares.settle()
    assert shares.replies[second].member_epoch == 1
    assert not shares.in_flight
    assert [work.group_id for work in shares.wanted] == ["g"]  # when the record is in, not before


def test_nobody_waits_for_a_write_that_takes_long() -> None:
    shares = Shares(commits=False)
    first, second = shares.beat("1", 0, ["t"]), shares.beat("2", 0, ["t"])
    shares.time_out()
    for token in (first, second):
        assert shares.replies[token].error_code == E.COORDINATOR_NOT_AVAILABLE
    assert shares.error("3", 0, ["t"]) is E.COORDINATOR_NOT_AVAILABLE
    shares.settle()
    shares.commits = True
    assert shares.said("1", 1).member_epoch == 1


def test_who_waits_is_told_when_the_coordinator_moves() -> None:
    shares = Shares(commits=False)
    tokens = [shares.beat(member, 0, ["t"]) for member in "12"]
    shares.in_flight.clear()
    shares.carry_out(shares.machine.close(E.NOT_COORDINATOR, shares.now_ms))
    assert {shares.replies[token].error_code for token in tokens} == {E.NOT_COORDINATOR}


# -- states


def test_share_coordinators_are_asked_again() -> None:
    shares = Shares()
    shares.said("m", 0, ["t"])
    first = shares.wanted.pop()
    while shares.now_ms < 1_000_000 + RETRY_MS:
        assert not shares.wanted
        shares.advance(1_000)
        shares.said("m", 1)
    assert shares.wanted.pop() == first
    assert isinstance(first, InitializeStates)
    shares.refused(first)
    shares.advance(REFUSED_RETRY_MS)
    assert shares.wanted.pop() == first
    shares.come(first)
    shares.advance(3 * RETRY_MS)
    assert not shares.wanted


def test_who_takes_over_asks_again() -> None:
    shares = Shares()
    shares.said("m", 0, ["t"])
    other = shares.taken_over()
    other.advance(1_000)
    assert other.wanted == shares.wanted
    other.come()
    epoch = other.said("m", 1).member_epoch
    third = other.taken_over()
    assert third.machine.share_describe("g") == other.machine.share_describe("g")
    assert third.kept == {T: {0, 1, 2, 3}}
    assert third.said("m", epoch).assignment is None
    third.advance(SESSION_MS + 1)
    assert third.error("m", epoch) is E.UNKNOWN_MEMBER_ID


def test_offsets_set_by_hand_have_an_epoch_of_their_own() -> None:
    shares = Shares()
    work = shares.alter({"t": {0: 7, 9: 1}, "nobody's": {0: 0}}).work
    assert work == InitializeStates("g", 1, {T: {0: 7}})
    shares.come(work, gives_up=True)
    assert shares.kept == {T: {0}}
    again = shares.alter({"t": {0: 3}}).work
    assert again == InitializeStates("g", 2, {T: {0: 3}})
    assert isinstance(again, InitializeStates)
    shares.refused(again, gives_up=True)
    shares.advance(2 * RETRY_MS)
    assert not shares.wanted  # it would set another offset
    assert shares.kept == {T: {0}}
    assert shares.alter({}) == Begun()
    joined(shares, "m")
    assert shares.alter({"t": {0: 3}}).error is E.NON_EMPTY_GROUP
    assert shares.forget("t").error is E.NON_EMPTY_GROUP


def test_an_offset_that_may_have_been_set_is_not_set_otherwise() -> None:
    """The coordinator died in the midst of it: the state that there is stays."""
    shares = Shares()
    shares.come(shares.alter({"t": {0: 7}}).work, gives_up=True)
    shares.alter({"t": {0: 3}})
    other = shares.taken_over()
    other.advance(2 * RETRY_MS)
    assert not other.wanted
    assert other.kept == {T: {0}}


def test_states_are_forgotten_until_all_are_gone() -> None:
    shares = Shares()
    assert shares.forget("t").error is E.GROUP_ID_NOT_FOUND
    shares.come(shares.alter({"t": {0: 7, 2: 7}, "u": {1: 0}}).work, gives_up=True)
    assert shares.forget("t", "nobody's").work == DeleteStates("g", {T: frozenset((0, 2))})
    assert shares.kept == {U: {1}}
    shares.went(refused=True)
    shares.advance(REFUSED_RETRY_MS)
    # Of which partitions there are states isn't known any more.
    assert shares.wanted == [DeleteStates("g", {T: frozenset(range(4))})]
    shares.went(T)
    shares.advance(2 * RETRY_MS)
    assert len(shares.wanted) == 1


def test_what_is_wanted_again_is_not_forgotten() -> None:
    shares = Shares()
    shares.come(shares.alter({"t": {0: 7}}).work, gives_up=True)
    shares.forget("t")
    shares.said("m", 0, ["t"])
    assert isinstance(shares.wanted[0], InitializeStates)
    shares.advance(RETRY_MS)
    assert not any(isinstance(work, DeleteStates) for work in shares.wanted)


def test_a_group_goes_when_its_states_have_gone() -> None:
    shares = Shares()
    epoch = joined(shares, "m")
    token = shares._next()
    shares.carry_out(shares.machine.delete_share_states(token, "g", shares.now_ms))
    assert shares.replies[token].error is E.NON_EMPTY_GROUP
    shares.said("m", -1)
    token = shares._next()
    shares.carry_out(shares.machine.delete_share_states(token, "g", shares.now_ms))
    assert shares.replies[token].work == DeleteStates("g", {T: frozenset(range(4))})
    shares.went(T)
    assert shares.replies[shares.delete_group()] is E.NONE
    assert not shares.machine.is_share_group("g")
    assert shares.error("m", epoch) is E.GROUP_ID_NOT_FOUND
    assert not shares.taken_over().machine.is_share_group("g")


def test_an_empty_share_group_does_not_expire() -> None:
    shares = Shares()
    joined(shares, "m")
    shares.said("m", -1)
    shares.advance(10 * shares.config.offsets_retention_ms)
    assert shares.expire() == 0
    assert shares.machine.is_share_group("g")


@pytest.mark.parametrize("commits", [True, False])
def test_an_id_is_of_one_kind(commits: bool) -> None:
    """Also while the first record of the group is on its way."""
    shares = Shares(commits=commits)
    shares.beat("m", 0, ["t"])
    assert shares.replies[shares.join()].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    (error,) = shares.commit_errors(shares.commit({("t", 0): 1}))
    assert error is E.GROUP_ID_NOT_FOUND
    other = Shares()
    other.commit({("t", 0): 1})
    assert other.error("m", 0, ["t"]) is E.GROUP_ID_NOT_FOUND
