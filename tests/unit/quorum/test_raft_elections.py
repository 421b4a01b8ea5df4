"""Who leads a quorum: what elects a voter, and what doesn't unseat one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.quorum.raft import library
from kraftpy.quorum.raft.bridge import ELECTION_MAX_S, ELECTION_MIN_S, FALLBACK_S, HEARTBEAT_S
from kraftpy.quorum.raft.messages import Kind
from kraftpy.quorum.raft.node import LOST_MIN_S

from .raft_steps import others, say
from .raft_world import World

# Elections


def test_a_voter_that_was_cut_off_does_not_unseat_the_leader(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    term = leader.node.term
    world.isolate(b.voter_id)
    world.run(5.0)
    assert b.node.term == term, "without pre-votes it would have counted its term up"
    world.rejoin(b.voter_id)
    world.run(1.0)
    assert leader.node.leads
    assert leader.node.term == term


def test_a_voter_that_hears_only_others_does_not_unseat_the_leader(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    term = leader.node.term
    world.disconnect(leader.voter_id, b.voter_id)
    world.run(5.0)
    assert leader.node.leads
    assert leader.node.term == term


def test_a_higher_term_does_not_lock_a_voter_out(world: World) -> None:
    """One that counted its term up refuses the leader's messages; the leader has to learn why."""
    leader = world.leader()
    b, _ = others(world, leader)
    world.isolate(b.voter_id)
    b.node._SyncObj__setCurrentTerm(leader.node.term + 5, None)
    leader.propose("x")
    world.settle(but=[b.voter_id])
    world.rejoin(b.voter_id)
    world.run(3.0)
    world.leader().propose("y")
    world.settle()
    world.run(0.1)
    assert b.values == ["x", "y"]


def test_a_broken_connection_to_the_leader_shortens_the_wait(world: World) -> None:
    leader = world.leader()
    world.run(0.2)
    world.crash(leader.voter_id)
    started = world.now
    world.leader(but=[leader.voter_id])
    assert world.now - started < ELECTION_MIN_S


def test_a_silent_leader_is_replaced_within_the_timeouts(world: World) -> None:
    leader = world.leader()
    world.run(0.2)
    started = world.now
    world.leader(but=[leader.voter_id])  # connected as before, but not a word from it
    assert ELECTION_MIN_S - 2 * HEARTBEAT_S < world.now - started < 2 * ELECTION_MAX_S


@pytest.mark.parametrize("delay_s", [0.03, 0.1, 0.25])
def test_a_leader_is_elected_over_slow_links_too(world: World, delay_s: float) -> None:
    leader = world.leader()
    world.run(0.2)
    world.crash(leader.voter_id)
    first, second = others(world, leader)
    world.run_slowly(8.0, delay_s)
    assert first.node.leader == second.node.leader != leader.voter_id
    assert first.node.leader is not None
    term = first.node.term
    world.run_slowly(5.0, delay_s)
    assert (first.node.term, second.node.term) == (term, term)  # and it stays


def test_a_leader_that_nobody_answers_steps_down(world: World) -> None:
    leader = world.leader()
    b, c = others(world, leader)
    world.run(FALLBACK_S / 2, but=[b.voter_id, c.voter_id])
    assert leader.node.leads
    world.run(FALLBACK_S, but=[b.voter_id, c.voter_id])
    assert not leader.node.leads


def test_a_leader_without_connections_steps_down_before_another_one_leads(world: World) -> None:
    leader = world.leader()
    b, c = others(world, leader)
    world.disconnect(leader.voter_id, b.voter_id)
    world.run(1.0)
    assert leader.node.leads  # it has a majority with the other one
    world.disconnect(leader.voter_id, c.voter_id)
    world.run(LOST_MIN_S / 2)
    world.connect(leader.voter_id, c.voter_id)
    world.run(1.0)
    assert leader.node.leads
    world.isolate(leader.voter_id)
    world.run(LOST_MIN_S + HEARTBEAT_S)
    assert not leader.node.leads


def test_a_stall_of_its_own_does_not_make_a_voter_stand(world: World) -> None:
    leader = world.leader()
    b, c = others(world, leader)
    world.run(0.2, but=[])
    for _ in range(100):  # b does nothing for a second; the leader's messages pile up
        world.now += 0.01
        world.settle(but=[b.voter_id])
    b.node.stalled(1.0)
    b.turn()
    assert not [m for m in world.peek(b.voter_id, c.voter_id) if m[0] == Kind.PRE_VOTE]
    world.settle()
    assert b.node.leader == leader.voter_id


def test_one_vote_a_voter_and_term_even_after_a_crash(world: World) -> None:
    leader = world.leader()
    b, c = others(world, leader)
    world.run(0.1)
    term = leader.node.term + 1
    end, last_term = b.node.last_index, leader.node.term
    say(world, leader, b, [Kind.VOTE, term, end, last_term])
    b.turn()
    assert world.peek(b.voter_id, leader.voter_id)[-1] == [Kind.VOTED, term]
    world.crash(b.voter_id)
    b.start()
    world.rejoin(b.voter_id)
    say(world, c, b, [Kind.VOTE, term, end, last_term])
    b.turn()
    assert not [m for m in world.peek(b.voter_id, c.voter_id) if m[0] == Kind.VOTED]


def test_a_vote_counts_once(tmp_path: Path) -> None:
    with World(tmp_path, count=5) as world:
        world.start_all()
        leader = world.leader()
        node = next(m for m in world.members.values() if m is not leader).node
        node._stand()
        node._SyncObj__setState(library.CANDIDATE)
        node._SyncObj__setCurrentTerm(node.term + 1, node._voter_id)
        node._SyncObj__votesCount = 1
        voter = next(i for i in world.ids if i not in (node._voter_id, leader.voter_id))
        for _ in range(3):
            node.receive(voter, [Kind.VOTED, node.term])
        assert not node.leads


# Handing over


def test_the_lead_is_handed_over_at_once(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    world.run(0.1)
    leader.propose("x")
    world.settle()
    started = world.now
    assert leader.node.transfer(b.voter_id)
    world.settle()
    assert world.now == started, "no timeout has to pass: neither pre-votes nor heartbeats delay it"
    assert b.node.leads
    assert b.values == ["x"]


def test_a_voter_that_lacks_entries_is_not_told_to_take_over(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    leader.propose("x")
    leader.turn()
    assert not leader.node.transfer(b.voter_id)


def test_only_the_leader_can_tell_a_voter_to_take_over(world: World) -> None:
    leader = world.leader()
    b, c = others(world, leader)
    say(world, b, c, [Kind.TIMEOUT_NOW, leader.node.term])
    c.turn()
    world.settle()
    assert leader.node.leads


def test_a_call_to_take_over_is_void_once_another_voter_leads(world: World) -> None:
    leader = world.leader()
    b, c = others(world, leader)
    world.run(0.1)
    term, end = leader.node.term, c.node.last_index
    say(world, leader, b, [Kind.TIMEOUT_NOW, term])
    say(world, c, b, [Kind.VOTE, term + 1, end, term])  # before b got round to it
    for m in (b, leader):
        m.turn()
    c.node._stand()
    c.node._SyncObj__setState(library.CANDIDATE)
    c.node._SyncObj__setCurrentTerm(term + 1, c.voter_id)
    c.node._SyncObj__votesCount = 1
    world.settle()
    assert c.node.leads
    world.run(3.0)
    assert c.node.leads
    assert c.node.term == term + 1
