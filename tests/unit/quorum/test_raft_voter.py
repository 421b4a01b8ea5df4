"""Raft voters as a `port.Quorum`, over real sockets on one event loop."""

from __future__ import annotations

import _thread
import asyncio
import logging
import time
from pathlib import Path

import pytest

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import JournalFailedError, JournalFullError
from kraftpy.quorum.port import Applied, ProposalRefusedError, Role, VoterState
from kraftpy.quorum.raft import RaftVoter
from kraftpy.quorum.raft.bridge import ELECTION_MAX_S
from kraftpy.quorum.raft.messages import Kind
from kraftpy.quorum.raft.peers import Peers
from kraftpy.quorum.single import SingleVoter
from kraftpy.quorum.snapshot import VOTERS_NAME
from kraftpy.quorum.state import pack_envelope
from kraftpy.quorum.voter import VotersChangedError
from tests.waiting import until

from .faults import IO_ERROR, NO_SPACE, FailingLayer
from .raft_stack import CREDENTIALS, Trio
from .standin import Values

CLIENT = b"c" * 16


def command(n: int) -> bytes:
    return pack_envelope(CLIENT, n, 1, 0, {"add": n})


def values(trio: Trio) -> list[list[int]]:
    return [voter.machine.snapshot()["values"] for voter in trio.voters.values()]


async def test_commands_are_applied_everywhere_and_answered_by_the_leader(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        assert leader.role is Role.LEADER
        seen: list[Applied] = []
        leader.on_apply(seen.extend)
        applied = await asyncio.gather(*(leader.propose(command(n)) for n in range(1, 301)))
        indexes = [one.effective_index for one in applied]
        assert indexes == list(range(indexes[0], indexes[0] + 300))
        assert [one.entry.index for one in seen] == indexes
        again = await leader.propose(command(7))
        assert (again.effective_index, again.fresh) == (indexes[6], False)
        await until(lambda: values(trio) == [list(range(1, 301))] * 3)
        assert leader.committed_index >= indexes[-1]
        assert [fresh for _, fresh in leader.entries_from(indexes[0], 1 << 30) or ()] == [
            True
        ] * 300 + [False]


async def test_followers_refuse_and_say_who_leads(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        follower = next(v for v in trio.voters.values() if v is not leader)
        for call in (follower.propose(command(1)), follower.barrier()):
            with pytest.raises(ProposalRefusedError, match=str(leader.voter_id)) as caught:
                await call
            assert caught.value.error is ErrorCode.NOT_CONTROLLER
        assert follower.role is Role.FOLLOWER
        assert follower.voter_states() == []
        assert not await follower.transfer_leadership()


async def test_everybody_hears_who_leads(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        heard: dict[int, list[tuple[int | None, int]]] = {}
        for voter_id, voter in trio.voters.items():
            heard[voter_id] = []
            voter.on_leader(lambda *told, to=heard[voter_id]: to.append(told))
        first = await trio.leader()
        applied_when_told: list[int] = []
        for voter in trio.voters.values():
            voter.on_leader(
                lambda leader, _, voter=voter: (
                    applied_when_told.append(voter.applied_index)
                    if leader == voter.voter_id and voter is not first
                    else None
                )
            )
        await first.propose(command(1))
        before, term = first.applied_index, first.term
        assert await first.transfer_leadership()
        second = await trio.leader()
        assert second is not first
        for told in heard.values():
            assert told[-1] == (second.voter_id, second.term)
            assert (first.voter_id, term) in told
        assert applied_when_told[0] > before, "a leader is told once its state is complete"


async def test_nobody_hears_twice_who_leads(tmp_path: Path) -> None:
    """A voter that is started again has a term at once, and who asks is told soon, too."""
    async with Trio(tmp_path) as trio:
        term = (await trio.leader()).term
        trio.stop(1)
    voter = RaftVoter(
        tmp_path / "1", 1, trio.addresses, CREDENTIALS, on_fatal=pytest.fail, machine_type=Values
    )
    heard: list[tuple[int | None, int]] = []
    voter.on_leader(lambda *told: heard.append(told))
    await until(lambda: bool(heard))
    await asyncio.sleep(0)  # what was called soon as well
    assert heard == [(None, term)]
    voter.stop()


async def test_a_barrier_covers_what_any_leader_committed(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        applied = await leader.propose(command(1))
        assert await leader.barrier() > applied.effective_index
        both = asyncio.gather(leader.propose(command(2)), leader.barrier())
        one, index = await both
        assert index >= one.effective_index


async def test_the_lead_moves_without_losing_a_proposal(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        target = next(v for v in trio.voters if v != leader.voter_id)
        before = [leader.propose(command(n)) for n in range(1, 51)]
        while not leader._proposed:
            await asyncio.sleep(0)
        moved = leader.transfer_leadership(target)
        during = leader.propose(command(51))
        assert await moved
        assert (await trio.leader()).voter_id == target
        assert all(not one.cancelled() and one.exception() is None for one in before)
        with pytest.raises(ProposalRefusedError) as caught:
            await during
        assert caught.value.error is ErrorCode.NOT_CONTROLLER
        assert not await trio.voters[target].transfer_leadership(target)
        assert not await trio.voters[target].transfer_leadership(99)


async def test_a_transfer_to_a_voter_that_hangs_is_given_up(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        target = next(v for v in trio.voters.values() if v is not leader)
        target._node.receive = lambda *_: None  # type: ignore[method-assign]
        waiting = leader.propose(command(1))
        assert not await leader.transfer_leadership(target.voter_id)
        await waiting
        await leader.propose(command(2))
        assert leader.role is Role.LEADER


async def test_without_a_majority_nothing_is_promised(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        for voter_id in [v for v in trio.voters if v != leader.voter_id]:
            trio.stop(voter_id)
        proposal, barrier = leader.propose(command(1)), leader.barrier()
        with pytest.raises(asyncio.CancelledError):
            await proposal
        with pytest.raises(asyncio.CancelledError):
            await barrier
        assert leader.leader_id is None
        with pytest.raises(ProposalRefusedError):
            await leader.propose(command(2))


async def test_voters_report_how_far_they_are(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        stopped = next(v for v in trio.voters if v != leader.voter_id)
        await leader.barrier()
        await until(lambda: len({s.log_end_offset for s in leader.voter_states()}) == 1)
        trio.stop(stopped)
        await leader.propose(command(1))
        await until(
            lambda: (
                sorted(s.log_end_offset for s in leader.voter_states())[1]
                == leader.committed_index + 1
            )
        )

        def split() -> tuple[VoterState, list[VoterState]]:
            states = {s.voter_id: s for s in leader.voter_states()}
            return states.pop(stopped), list(states.values())

        gone, others = split()
        assert all(s.log_end_offset == leader.committed_index + 1 for s in others)
        assert gone.log_end_offset < leader.committed_index + 1

        def is_behind() -> bool:
            gone, others = split()
            return gone.last_caught_up_ms < min(s.last_caught_up_ms for s in others)

        await until(is_behind)


async def test_a_voter_that_lost_everything_gets_a_snapshot(tmp_path: Path) -> None:
    async with Trio(tmp_path, snapshot_interval_bytes=2_000) as trio:
        leader = await trio.leader()
        lost = next(v for v in trio.voters if v != leader.voter_id)
        trio.stop(lost)
        n = 0
        while leader._replica.journal.base_index == 0:
            n += 1
            await leader.propose(command(n))
        (tmp_path / str(lost)).rename(tmp_path / "aside")
        fresh = await trio.start(lost)
        await until(lambda: fresh.applied_index == leader.applied_index)
        assert values(trio) == [list(range(1, n + 1))] * 3
        assert list((tmp_path / str(lost)).glob("*.checkpoint"))


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(
    ("operation", "number", "error"),
    [
        ("datasync", IO_ERROR, JournalFailedError),
        ("write", IO_ERROR, JournalFailedError),
        ("write", NO_SPACE, JournalFullError),
    ],
)
async def test_a_failing_disk_stops_one_voter_and_the_others_go_on(
    tmp_path: Path, operation: str, number: int, error: type[Exception], leads: bool
) -> None:
    layers: dict[int, FailingLayer] = {}
    trio = Trio(tmp_path)
    for voter_id in trio.addresses:
        layers[voter_id] = FailingLayer()
        trio.options["files"] = layers[voter_id]
        await trio.start(voter_id)
    leader = await trio.leader()
    broken = leader.voter_id
    if not leads:
        broken = next(v for v in trio.voters if v != leader.voter_id)
    layers[broken].failures[operation] = number
    proposal = leader.propose(command(1))
    await until(lambda: trio.errors)
    (voter_id, raised), *others = trio.errors
    assert voter_id == broken
    assert isinstance(raised, error)
    assert str(tmp_path / str(broken)) in str(raised), "it names the file"
    assert not others
    if leads:
        with pytest.raises(asyncio.CancelledError):
            await proposal
    trio.stop(broken)
    successor = await trio.leader()
    await successor.propose(command(1))
    await until(lambda: values(trio) == [[1]] * 2)
    for left in list(trio.voters):
        trio.stop(left)


class SlowLayer(FileLayer):
    """Takes a while for each sync."""

    takes_s = 0.0

    def datasync(self, fd: int) -> None:
        time.sleep(self.takes_s)
        super().datasync(fd)


async def test_a_busy_disk_costs_no_leader_its_lead(tmp_path: Path) -> None:
    layers: dict[int, SlowLayer] = {}
    trio = Trio(tmp_path)
    for voter_id in trio.addresses:
        layers[voter_id] = trio.options["files"] = SlowLayer()
        await trio.start(voter_id)
    leader = await trio.leader()
    term = leader.term
    layers[leader.voter_id].takes_s = 0.02
    await leader.propose(command(1))
    layers[leader.voter_id].takes_s = ELECTION_MAX_S + 0.3
    slow = asyncio.gather(leader.propose(command(2)), leader.barrier())
    turns = 0
    while not slow.done():
        turns += 1
        await asyncio.sleep(0.01)
    assert turns > 10, "the loop, and with it every heartbeat, waited for the disk"
    assert (leader.role, leader.term) == (Role.LEADER, term)
    for voter_id in list(trio.voters):
        layers[voter_id].takes_s = 0
        trio.stop(voter_id)


@pytest.mark.parametrize("kind", [Kind.PRE_VOTE, Kind.VOTE])
async def test_a_leader_answers_a_candidate_of_an_older_term_without_its_disk(
    tmp_path: Path, kind: Kind
) -> None:
    """The answer says nothing of the log, so the loop doesn't wait for the write under way."""

    layers: dict[int, SlowLayer] = {}
    trio = Trio(tmp_path)
    for voter_id in trio.addresses:
        layers[voter_id] = trio.options["files"] = SlowLayer()
        await trio.start(voter_id)
    leader = await trio.leader()
    term = leader.term
    other = next(each for each in trio.voters if each != leader.voter_id)
    layers[leader.voter_id].takes_s = 0.02
    await leader.propose(command(1))
    layers[leader.voter_id].takes_s = ELECTION_MAX_S + 0.3
    slow = leader.propose(command(2))
    await until(lambda: leader._node._log.sync_age_s > 0)
    rounds = [1] if kind is Kind.PRE_VOTE else []
    turns = 0
    while not slow.done():
        turns += 1
        leader.peer_received(other, [kind, 0, *rounds, 0, 0])
        await asyncio.sleep(0.01)
    assert turns > 10, "the loop, and with it every heartbeat, waited for the disk"
    assert (leader.role, leader.term) == (Role.LEADER, term)
    for voter_id in list(trio.voters):
        layers[voter_id].takes_s = 0
        trio.stop(voter_id)


async def test_a_voter_that_gets_no_thread_writes_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        leader._disk_slow_until = asyncio.get_running_loop().time() + 10
        monkeypatch.setattr(_thread, "start_new_thread", fail)
        await leader.propose(command(1))
        await until(lambda: values(trio) == [[1]] * 3)
        assert not trio.errors


async def test_an_exception_in_the_rules_stops_the_voter(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        leader = await trio.leader()
        proposal = leader.propose(pack_envelope(CLIENT, 1, 1, 0, {"bug": True}))
        await until(lambda: trio.errors)
        assert "a bug in the rules" in str(trio.errors[0][1])
        with pytest.raises(asyncio.CancelledError):
            await proposal


@pytest.mark.parametrize(
    "introduction",
    [
        ["voter", 3],
        ["voter", 3, [1, 2, 3, 4]],
        ["voter", 1, [1, 2, 3]],
        ["voter", 7, [1, 2, 3]],
    ],
)
async def test_a_voter_with_another_list_of_voters_is_refused(
    tmp_path: Path, introduction: list[object]
) -> None:
    async with Trio(tmp_path) as trio:
        with pytest.raises(ValueError, match=r"voter|shape"):
            trio.voters[1].accept_peer(introduction, None)  # type: ignore[arg-type]


async def test_a_silent_connection_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.quorum.raft.peers.SILENCE_TIMEOUT_S", 0.3)
    monkeypatch.setattr("kraftpy.quorum.raft.peers.PING_INTERVAL_S", 0.1)
    caplog.set_level(logging.INFO)

    async with Trio(tmp_path) as trio:
        await trio.leader()
        silent = trio.voters[3]._peers
        links = dict(silent._links)
        for link in links.values():  # as if the network had swallowed everything from here
            link.connection.send = lambda message: None  # type: ignore[method-assign]
        await until(lambda: all(silent._links.get(v) not in (None, links[v]) for v in links))
        assert "nothing was heard from it for 0.3 s" in caplog.text
        leader = await trio.leader()
        await leader.propose(command(1))
        await until(lambda: values(trio) == [[1]] * 3)


async def test_a_peer_is_dialed_by_the_higher_id_only(tmp_path: Path) -> None:
    async with Trio(tmp_path) as trio:
        await trio.leader()
        dialing = {v: len(voter._peers._dialers) for v, voter in trio.voters.items()}
        assert dialing == {1: 0, 2: 1, 3: 2}
        assert isinstance(trio.voters[1]._peers, Peers)


async def test_a_folder_stays_with_its_voters(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    alone = SingleVoter(tmp_path / "1", 1, Values, lambda error: None)
    alone.stop()
    with pytest.raises(VotersChangedError, match=r"a quorum of 1, .* now names 1,2,3"):
        await trio.start(1)
    (tmp_path / "1" / VOTERS_NAME).unlink()  # as an older kraftpy leaves it
    with pytest.raises(VotersChangedError, match=r"a quorum of one voter"):
        await trio.start(1)
    await trio.start(2)
    trio.stop(2)
    with pytest.raises(VotersChangedError, match=r"a quorum of 1,2,3, .* now names 2"):
        SingleVoter(tmp_path / "2", 2, Values, lambda error: None)
