"""Schedules under which pysyncobj loses or stalls, event by event, on voters that must not.

Names as in the research that found them: T1 is a success reported for a command that is not
committed, T4 the truncation of entries that were acknowledged.
"""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest

from kraftpy.quorum.port import MAX_COMMAND_SIZE_BYTES
from kraftpy.quorum.raft import library
from kraftpy.quorum.raft import node as node_module
from kraftpy.quorum.raft.bridge import Bridge
from kraftpy.quorum.raft.log import CommittedEntryLost
from kraftpy.quorum.raft.messages import Kind, MessageError, Outcome
from kraftpy.quorum.raft.node import HANGING_DISK_S
from kraftpy.quorum.state import pack_envelope

from .faults import Crash
from .raft_steps import others, say, snapshot
from .raft_world import NEVER, Member, World

# T4


def test_a_repeated_batch_does_not_shorten_the_log(world: World) -> None:
    """A follower that cut its log at a duplicate would lose what it has acknowledged: with the
    leader dead, the other two could then elect a voter without it."""
    leader = world.leader()
    b, c = others(world, leader)
    world.settle()
    for value in range(3):
        leader.propose(value)
    leader.turn()
    batch = world.peek(leader.voter_id, b.voter_id)[-1]
    assert batch[0] == Kind.APPEND
    assert len(batch[6]) == 3
    world.deliver(leader.voter_id, c.voter_id, NEVER)
    for value in range(3, 6):
        leader.propose(value)
    leader.turn()
    world.deliver(leader.voter_id, b.voter_id, NEVER)
    b.turn()  # it acknowledges all six and doesn't know yet that any is committed
    c.turn()
    say(world, leader, b, batch)
    b.turn()
    world.deliver(b.voter_id, leader.voter_id, NEVER)
    leader.turn()
    assert world.acknowledged == [0, 1, 2, 3, 4, 5]
    world.crash(leader.voter_id)
    world.crash(b.voter_id)
    b.start()
    world.rejoin(b.voter_id)
    successor = world.leader()
    world.run(0.2)
    assert successor.values == [0, 1, 2, 3, 4, 5]


def test_a_heartbeat_does_not_remove_what_follows_its_position(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    leader.turn()
    end = b.node.last_index
    beat = [Kind.APPEND, leader.node.term, 10_000, end, end, leader.node.term, []]
    leader.propose("x")
    world.settle()
    assert b.node.last_index == end + 1
    say(world, leader, b, beat)
    b.turn()
    assert b.node.last_index == end + 1


def test_a_leader_that_contradicts_a_committed_entry_is_not_believed(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    leader.propose("x")
    world.settle()
    world.run(0.1)
    committed = b.node.committed_index
    assert b.values == ["x"]
    with pytest.raises(CommittedEntryLost):
        b.node._log.cut(committed, committed)


def test_a_log_that_differs_below_the_commit_index_is_not_built_upon(world: World) -> None:
    """Only voters that lost their disks could elect such a leader."""
    leader = world.leader()
    b, _ = others(world, leader)
    for value in ("x", "y"):
        leader.propose(value)
        world.settle()
    world.run(0.1)
    committed, term = b.node.committed_index, leader.node.term
    entries = [[term + 1, b""] for _ in range(committed + 1)]
    message = [Kind.APPEND, term + 1, 1, 0, 0, 0, entries]
    with pytest.raises(CommittedEntryLost):
        say(world, leader, b, message)


def test_a_voter_that_has_lost_its_leader_names_none(world: World) -> None:
    """Brokers tell by that whether the quorum lives (`server/cluster/cut_off.py`)."""
    leader = world.leader()
    b, c = others(world, leader)
    world.settle()
    assert b.node.leader == leader.voter_id
    world.isolate(leader.voter_id)
    world.isolate(c.voter_id)
    world.run(2.0)
    assert b.node.leader is None


# T1


def test_no_success_is_reported_for_entries_that_were_not_committed(world: World) -> None:
    """A deposed leader's own tail is not vouched for by what the new leader has committed."""
    old = world.leader()
    b, c = others(world, old)
    world.settle()
    base = old.node.last_index
    world.isolate(old.voter_id)
    for value in ("lost 1", "lost 2", "lost 3"):
        assert old.propose(value)
    old.turn()
    new = world.leader(but=[old.voter_id])
    for value in ("kept 1", "kept 2"):
        new.propose(value)
    world.settle(but=[old.voter_id])
    assert old.node.last_index == base + 3
    assert new.node.committed_index == base + 3
    term, commit = new.node.term, new.node.committed_index
    # signs of life and snapshot chunks carry no position in the log
    say(world, new, old, [Kind.HEARTBEAT, term, 1])
    old.turn()
    assert old.node.committed_index == base
    # and an empty message vouches for nothing after the entry that it names
    previous_term = old.node._log.term_at(base)
    say(world, new, old, [Kind.APPEND, term, 2, commit, base, previous_term, []])
    old.turn()
    assert old.node.committed_index == base
    assert world.acknowledged == ["kept 1", "kept 2"]
    world.rejoin(old.voter_id)
    world.leader()
    world.run(0.2)
    assert old.values == b.values == c.values == ["kept 1", "kept 2"]
    assert world.acknowledged == ["kept 1", "kept 2"]


def test_answers_of_an_earlier_term_count_for_nothing(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    world.settle()
    leader.propose("x")
    leader.turn()
    end = leader.node.last_index
    answer = [Kind.APPENDED, leader.node.term - 1, 1, end + 1, Outcome.MATCHED]
    say(world, b, leader, answer)
    leader.turn()
    assert leader.node.committed_index < end


def test_an_acknowledgement_of_what_was_never_sent_is_refused(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    answer = [Kind.APPENDED, leader.node.term, 1, leader.node.last_index + 2, Outcome.MATCHED]
    with pytest.raises(MessageError):
        say(world, b, leader, answer)


# Durability


def test_nothing_is_acknowledged_or_voted_before_it_is_durable(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    world.run(0.1)
    leader.propose("x")
    leader.turn()
    world.deliver(leader.voter_id, b.voter_id, NEVER)
    b.disk.crash_after(1)  # in the middle of the write
    with pytest.raises(Crash):
        b.turn()
    assert not world.peek(b.voter_id, leader.voter_id)


def test_a_leader_counts_itself_only_once_its_own_log_is_durable(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    world.settle()
    leader.propose("x")
    node = leader.node
    node.tick()
    node.replicate()
    write = node.start_sync()
    assert write is not None
    world.deliver(leader.voter_id, b.voter_id, NEVER)
    b.turn()
    world.deliver(b.voter_id, leader.voter_id, NEVER)
    node.tick()
    assert node.committed_index < node.last_index
    write.run()
    node.settle()
    node.tick()
    assert node.committed_index == node.last_index


def test_a_leader_whose_disk_hangs_makes_way(world: World) -> None:
    leader = world.leader()
    b, c = others(world, leader)
    world.run(0.1)
    leader.propose("x")
    leader.turn(sync=False)
    while leader.node.leads:
        assert leader.node._log.sync_age_s < HANGING_DISK_S + 0.1
        world.now += 0.01
        for member in (b, c):
            member.turn()
        for sender, receiver in world.queues:
            world.deliver(sender, receiver, NEVER)
        leader.node.tick()
        leader.node.replicate()  # heartbeats go on, nothing is written
        assert leader.node.committed_index < leader.node.last_index
    world.leader(but=[leader.voter_id])
    world.run(0.1, but=[leader.voter_id])
    assert b.values == c.values == ["x"]


def test_a_write_that_somebody_has_waited_for_already_is_not_taken_for_the_next_one(
    world: World,
) -> None:
    """Its thread says late that it is done, when the next write is under way: nobody waits."""
    leader = world.leader()
    leader.propose("x")
    first = leader.node.start_sync()
    assert first is not None
    first.run()
    leader.node.settle()
    leader.propose("y")
    second = leader.node.start_sync()
    assert second is not None
    durable = leader.node._log.durable_index
    leader.node.synced(first)
    assert leader.node._log.durable_index == durable
    assert leader.node.unsynced
    second.run()
    leader.node.synced(second)
    assert not leader.node.unsynced


def test_what_waits_for_a_slow_disk_is_written_in_pieces(world: World) -> None:
    leader = world.leader()
    world.settle()
    end = leader.node.last_index
    largest = bytes(MAX_COMMAND_SIZE_BYTES)
    leader.node.append([largest] * 5)
    write = leader.node.start_sync()
    assert write is not None
    assert len(write.entries) == 2
    leader.node.flush()
    assert leader.node._log.durable_index == end + 5


# Catching up


def test_a_long_tail_of_its_own_does_not_keep_a_voter_from_catching_up(world: World) -> None:
    """With several batches under way each is refused; the refusals must not send the leader back
    and forth for ever."""
    with (
        mock.patch.object(node_module, "BATCH_BYTES", 200),
        mock.patch.object(node_module, "CHUNK_BYTES", 200),
    ):
        old = world.leader()
        world.settle()
        world.isolate(old.voter_id)
        for value in range(200):
            old.propose(f"old {value}")
        old.turn()
        new = world.leader(but=[old.voter_id])
        for value in range(300):
            new.propose(f"new {value}")
        world.settle(but=[old.voter_id])
        world.rejoin(old.voter_id)
        world.run(0.5)
        assert new.node.leads
        assert old.values == new.values == [f"new {value}" for value in range(300)]


def test_late_refusals_do_not_move_the_leader_again(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    world.settle()
    progress = leader.node.progress(b.voter_id)
    term, end = leader.node.term, leader.node.last_index
    numbers = [leader.node._next_number() for _ in range(3)]
    progress.match_index = 0
    for hint, number in zip((1, end, 1), numbers, strict=True):
        say(world, b, leader, [Kind.APPENDED, term, number, hint, Outcome.MISMATCHED])
        leader.node.replicate()
        assert progress.next_index == 1 + end
    sent = [m for m in world.peek(leader.voter_id, b.voter_id) if m[0] == Kind.APPEND]
    assert len(sent) == 1, "one message looks for the place, whatever else is refused"


def test_a_message_from_before_the_journal_begins_is_answered(world: World) -> None:
    leader = world.leader()
    b, _ = others(world, leader)
    leader.turn()
    leader.propose("x")
    leader.turn()
    batch = world.peek(leader.voter_id, b.voter_id)[-1]
    world.settle()
    for value in range(2):
        leader.propose(value)
        world.settle()
        world.run(0.1)
        snapshot(b)
    assert b.replica.journal.base_index > batch[4] + 1
    say(world, leader, b, batch)
    b.turn()
    answer = world.peek(b.voter_id, leader.voter_id)[-1]
    assert answer[3:] == [b.node.committed_index + 1, Outcome.MATCHED]


# Snapshots


def lagging(world: World, member: Member, count: int = 40) -> Member:
    """Have a leader (not `member`) that kept only snapshots of what `member` lacks."""
    world.isolate(member.voter_id)
    leader = world.leader(but=[member.voter_id])
    for part in range(2):
        for value in range(count):
            leader.propose(f"{part}.{value}")
        world.settle(but=[member.voter_id])
        snapshot(leader)
    assert leader.replica.journal.base_index > member.node.last_index
    return leader


def test_a_voter_far_behind_gets_a_snapshot_in_pieces(world: World) -> None:
    with mock.patch.object(node_module, "CHUNK_BYTES", 50):
        member = world.members[3]
        leader = lagging(world, member)
        world.rejoin(3)
        world.run(1.0)
        assert member.values == leader.values
        assert len(member.values) == 80
        assert member.replica.journal.base_index >= leader.replica.journal.base_index
        world.crash(3)
        member.start()
        assert member.values == leader.values, "it survives a restart"


def test_a_snapshot_installed_again_does_not_take_the_voter_back(world: World) -> None:
    member = world.members[3]
    leader = lagging(world, member)
    world.rejoin(3)
    found = leader.replica.snapshot_file()
    assert found is not None
    name, data = found
    world.run(1.0)
    leader.propose("after")
    world.settle()
    world.run(0.1)
    assert member.values[-1] == "after"
    chunk = [Kind.SNAPSHOT, leader.node.term, 9, name.index, name.term, len(data), 0, data]
    say(world, leader, member, chunk)
    member.turn()
    assert member.values[-1] == "after"
    answer = world.peek(3, leader.voter_id)[-1]
    assert answer[0] == Kind.APPENDED
    assert answer[3] > member.node.committed_index


def test_a_damaged_snapshot_is_refused_and_the_good_one_stays(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    member = world.members[3]
    leader = lagging(world, member)
    found = leader.replica.snapshot_file()
    assert found is not None
    name, data = found
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    world.rejoin(3)
    before = sorted(p.name for p in member.folder.iterdir())
    chunk = [Kind.SNAPSHOT, leader.node.term, 9, name.index, name.term, len(data), 0, damaged]
    say(world, leader, member, chunk)
    member.turn()
    assert member.replica.applied_index < name.index
    assert sorted(p.name for p in member.folder.iterdir()) == before
    assert "is damaged" in caplog.text
    world.run(1.0)
    assert member.values == leader.values


@pytest.mark.parametrize("step", range(20))
def test_power_lost_while_a_snapshot_is_installed(world: World, step: int) -> None:
    member = world.members[3]
    leader = lagging(world, member)
    world.rejoin(3)
    member.disk.crash_after(step)
    for _ in range(30):
        world.now += 0.03
        for voter in world.members.values():
            if voter.alive:
                world.guarded(voter.voter_id, voter.turn)
        for a, b in world.queues:
            if world.members[b].alive:
                world.guarded(b, lambda: world.deliver(a, b, NEVER))  # noqa: B023
    member.disk.crash_after(NEVER)
    if not member.alive:
        member.start()
        world.rejoin(3)
    world.run(1.0)
    assert member.values == world.leader().values == leader.values


# Commands


def test_bytes_that_are_no_command_change_nothing_anywhere(world: World) -> None:
    leader = world.leader()
    leader.node.append([b"\x80\x04K\x01."])  # a pickled 1
    leader.propose("x")
    world.settle()
    world.run(0.1)
    assert all(member.values == ["x"] for member in world.members.values())


def test_an_exception_in_the_rules_is_raised_and_not_tried_again(world: World) -> None:
    """pysyncobj logs it and applies the same entry again, for ever, before it sends heartbeats."""
    leader = world.leader()
    world.settle()
    leader.node.append([pack_envelope(b"c" * 16, 1, 1, 0, {"bug": True})])
    with pytest.raises(RuntimeError, match="a bug in the rules"):
        world.settle()


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        [99],
        ["PING"],
        [Kind.APPEND, 1, 1, 0, -5, 0, []],
        [Kind.APPEND, 1, 1, 0, 0, 0, [["1", b""]]],
        [Kind.APPEND, 99, 1, 0, 0, 0, [[99]]],
        [Kind.SNAPSHOT, 99, 1, 1000, 1, 3, 0, b"four"],
        [Kind.SNAPSHOT, 99, 1, 1000, 1, 1 << 40, 0, b""],
        {"type": "append_entries"},
    ],
)
def test_what_no_voter_sends_is_refused(world: World, message: object) -> None:
    leader = world.leader()
    with pytest.raises(MessageError):
        world.members[leader.voter_id % 3 + 1].node.receive(leader.voter_id, message)


# The library


def test_another_version_of_pysyncobj_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "VERSION", "0.3.18")
    with (
        World(tmp_path) as world,
        pytest.raises(library.LibraryUnsuitable, match=re.escape("pysyncobj==0.3.17")),
    ):
        world.members[1].start()


def test_a_changed_pysyncobj_of_the_right_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(library.SyncObj, "_SyncObj__loadDumpFile")
    monkeypatch.delattr(Bridge, "_SyncObj__loadDumpFile")
    with World(tmp_path) as world, pytest.raises(library.LibraryUnsuitable, match="loadDumpFile"):
        world.members[1].start()
