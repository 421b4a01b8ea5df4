"""Voters that lost their disks, and quorums that begin: who counts as complete."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kraftpy.quorum.port import Entry
from kraftpy.quorum.raft.completeness import BLANK_WAIT_S
from kraftpy.quorum.raft.messages import Kind
from kraftpy.quorum.replica import INCOMPLETE_NAME

from .raft_steps import others, say
from .raft_world import Member, World


def test_a_voter_that_lost_its_disk_votes_again_once_it_has_everything(world: World) -> None:
    """It had acknowledged what only it and the dead leader hold: together with the third voter it
    must not elect one that lacks that."""
    leader = world.leader()
    b, c = others(world, leader)
    world.run(0.1)
    world.isolate(c.voter_id)
    leader.propose("x")
    world.settle(but=[c.voter_id])
    assert world.acknowledged == ["x"]
    world.crash(b.voter_id)
    world.crash(leader.voter_id)
    shutil.rmtree(b.folder)
    b.start()
    world.connect(b.voter_id, c.voter_id)
    world.run(5 * BLANK_WAIT_S)
    assert not c.node.leads
    assert not b.node.takes_part()
    leader.start()
    world.rejoin(leader.voter_id)
    world.leader()
    world.run(0.5)
    world.crash(leader.voter_id)
    successor = world.leader(but=[leader.voter_id])
    assert successor.values == b.values == c.values == ["x"]


def without_disk(world: World) -> tuple[Member, Member, Member]:
    """A leader, a voter that has just lost its disk, and one that lacks what these two committed;
    none of them connected."""
    leader = world.leader()
    b, c = others(world, leader)
    world.run(0.1)
    world.isolate(c.voter_id)
    leader.propose("x")
    world.settle(but=[c.voter_id])
    assert world.acknowledged == ["x"]
    world.crash(b.voter_id)
    shutil.rmtree(b.folder)
    b.start()
    return leader, b, c


def test_a_voter_that_lost_its_disk_waits_for_a_leader_however_long_that_takes(
    world: World,
) -> None:
    leader, b, c = without_disk(world)
    for number in range(30):  # so it has long been up, though not caught up, when the leader dies
        world.now += 0.1
        say(world, leader, b, [Kind.HEARTBEAT, leader.node.term, number])
        b.turn()
    world.crash(leader.voter_id)
    world.connect(b.voter_id, c.voter_id)
    world.run(5 * BLANK_WAIT_S)
    say(world, c, b, [Kind.VOTE, b.node.term + 1, c.node.last_index, c.node._log.last_term])
    b.turn()
    assert not [m for m in world.peek(b.voter_id, c.voter_id) if m[0] == Kind.VOTED]
    assert not c.node.leads


def test_a_voter_that_lost_its_disk_does_not_stand_with_part_of_the_log(world: World) -> None:
    """It has more than the third voter, and less than what it had acknowledged."""
    leader, b, c = without_disk(world)
    first = leader.node._log.entry_at(1)
    more = [[leader.node.term, b""]] * 5
    message = [Kind.APPEND, leader.node.term, 1, 0, 0, 0, [[first.term, first.command], *more]]
    say(world, leader, b, message)
    b.turn()
    world.crash(leader.voter_id)
    assert b.node.last_index > c.node.last_index
    world.connect(b.voter_id, c.voter_id)
    world.run(5 * BLANK_WAIT_S)
    assert not b.node.leads
    assert not c.node.leads


def test_two_voters_that_lost_their_disks_do_not_outvote_the_one_that_has_the_log(
    world: World,
) -> None:
    leader = world.leader()
    leader.propose("x")
    world.settle()
    world.run(0.2)
    b, c = others(world, leader)
    for member in (leader, b, c):
        world.crash(member.voter_id)
    for member in (b, c):
        shutil.rmtree(member.folder)
        member.start()
    world.connect(b.voter_id, c.voter_id)
    leader.start()
    world.rejoin(leader.voter_id)
    world.run(5 * BLANK_WAIT_S)
    assert not [m for m in world.members.values() if m.node.leads]
    assert leader.node.last_index > 0


def test_an_operator_can_have_a_voter_with_an_empty_folder_vote(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    leader = world.leader()
    leader.propose("x")
    world.settle()
    world.run(0.2)
    b, c = others(world, leader)
    for member in (leader, b, c):
        world.crash(member.voter_id)
    shutil.rmtree(b.folder)
    b.forced = True
    b.start()
    c.start()
    world.connect(b.voter_id, c.voter_id)
    assert world.leader(but=[leader.voter_id]) is c
    assert f"voter {b.voter_id} votes though its folder was empty" in caplog.text
    world.run(0.5, but=[leader.voter_id])
    assert b.values == c.values == ["x"]


@pytest.mark.parametrize("empty", [[1, 2, 3], [2, 3], [3], []])
def test_a_first_start_that_was_broken_off_is_taken_up_again(
    tmp_path: Path, empty: list[int]
) -> None:
    """All have begun with nothing, and some have entries that nobody knows to be committed."""
    with World(tmp_path) as world:
        for member in world.members.values():
            member.start()
            if member.voter_id not in empty:
                member.node._log.stage(Entry(1, 1, b""))
                member.node._log.flush()
            world.crash(member.voter_id)
        world.start_all()
        world.leader()
        world.run(0.2)
        assert not [m for m in world.members.values() if m.node._completeness.is_blank]


def test_the_voters_of_a_new_quorum_soon_count_as_complete(world: World) -> None:
    world.leader()
    world.run(0.1)
    assert not [m for m in world.members.values() if (m.folder / INCOMPLETE_NAME).exists()]
    assert not [m for m in world.members.values() if m.node._completeness.is_blank]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_new_leader_that_knows_of_nothing_committed_does_not_vouch_for_the_log(
    world: World, restarts: bool
) -> None:
    leader, b, c = without_disk(world)
    term = leader.node.term
    first = leader.node._log.entry_at(1)
    message = [Kind.APPEND, term, 1, 0, 0, 0, [[first.term, first.command]]]
    say(world, leader, b, message)  # as after a restart of all, with nothing committed yet
    b.turn()
    if restarts:
        world.crash(b.voter_id)
        b.start()
        assert b.node.last_index == 1
    world.connect(b.voter_id, c.voter_id)
    say(world, c, b, [Kind.VOTE, term + 1, c.node.last_index, c.node._log.last_term])
    b.turn()
    assert not [m for m in world.peek(b.voter_id, c.voter_id) if m[0] == Kind.VOTED]


def test_a_new_quorum_forms_without_a_voter_that_has_not_been_started(tmp_path: Path) -> None:
    """And one that comes when its first leader has died waits for that one: it may have lost its
    folder, for all that anybody knows."""
    with World(tmp_path) as world:
        for voter_id in (1, 2):
            world.members[voter_id].start()
        world.connect(1, 2)
        leader = world.leader(but=[3])
        leader.propose("x")
        world.settle(but=[3])
        world.run(0.1, but=[3])
        world.crash(leader.voter_id)
        world.members[3].start()  # for the first time
        world.rejoin(3)
        world.run(5 * BLANK_WAIT_S, but=[leader.voter_id])
        assert not [m for m in world.members.values() if m.alive and m.node.leads]
        leader.start()
        world.rejoin(leader.voter_id)
        world.leader()
        world.run(0.2)
        assert world.members[3].values == ["x"]


def test_a_leader_notices_that_a_voter_lost_its_disk(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    leader.propose("x")
    world.settle()
    world.run(0.2)
    world.crash(b.voter_id)
    shutil.rmtree(b.folder)
    b.start()
    world.rejoin(b.voter_id)
    world.run(0.5)
    assert leader.node.leads
    assert b.values == ["x"]
    assert "lacks entries that it had acknowledged" in caplog.text
