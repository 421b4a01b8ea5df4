"""Three controllers as real processes and their brokers: what a quorum is for."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kraftpy.quorum.client import SESSION_TIMEOUT_MS, ControllerUnavailable
from kraftpy.quorum.raft.completeness import BLANK_WAIT_S
from tests.waiting import TIMEOUT_S, until

from .stack import TIMEOUT_MS, Broker
from .test_controller import Member
from .voters import Voters, follows, leader_of, three_voters


class Load:
    """Proposals one after the other, in several tasks; counts what was acknowledged."""

    def __init__(self, broker: Broker, tasks: int = 10) -> None:
        self.broker = broker
        self.acknowledged: set[int] = set()
        self.longest_s = 0.0
        self._proposed = 0
        self._stopping = False
        self._tasks = [asyncio.ensure_future(self._run()) for _ in range(tasks)]

    async def _run(self) -> None:
        while not self._stopping:
            self._proposed += 1
            value, started = self._proposed, time.monotonic()
            await self.broker.add(value, timeout_ms=20_000)
            self.longest_s = max(self.longest_s, time.monotonic() - started)
            assert value not in self.acknowledged
            self.acknowledged.add(value)

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        enough = len(self.acknowledged) + count
        await until(
            lambda: len(self.acknowledged) >= enough or any(t.done() for t in self._tasks),
            timeout_s=30,
        )

    async def stop(self) -> None:
        """Wait for the answers to all, and check that each took effect once."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        await self.broker.client.barrier(TIMEOUT_MS)
        values = self.broker.copy.values
        assert len(values) == len(set(values)), "applied twice"
        assert set(values) == self.acknowledged, "lost, or never asked for"


async def test_proposals_take_effect_once_over_kills_of_the_leader(tmp_path: Path) -> None:
    seed = int(os.environ.get("KRAFTPY_SEED", time.time_ns() & 0xFFFF))
    print(f"KRAFTPY_SEED={seed}")
    rng = random.Random(seed)

    async with (
        three_voters(tmp_path, snapshot_interval_bytes=20_000) as voters,
        voters.broker() as broker,
        voters.broker(node_id=43) as witness,
    ):
        load = Load(broker)
        for _ in range(4):
            await load.more(100)
            await asyncio.sleep(rng.uniform(0, 0.05))
            leader = await leader_of(broker)
            voters.kill(leader)
            await load.more(50)
            await until(lambda: broker.client.leader_id not in (None, leader))  # noqa: B023
            voters.start(leader)
            await follows(broker, leader)
        await load.stop()
        await witness.client.barrier(TIMEOUT_MS)
        assert witness.copy.values == broker.copy.values
        async with voters.broker(node_id=44) as fresh:
            assert fresh.copy.values == broker.copy.values
        print(f"longest wait {load.longest_s:.2f} s")


async def test_a_stopped_leader_is_replaced_and_comes_back_as_a_follower(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters, voters.broker() as broker:
        load = Load(broker)
        await load.more(100)
        leader = await leader_of(broker)
        voters.signal(leader, signal.SIGSTOP)
        await load.more(100)
        await until(lambda: broker.client.leader_id not in (None, leader))
        new = await leader_of(broker)
        assert load.longest_s < SESSION_TIMEOUT_MS / 1000, "nobody waited for that"
        term = broker.client.term
        voters.signal(leader, signal.SIGCONT)
        await load.more(500)
        await follows(broker, leader)
        assert (await leader_of(broker), broker.client.term) == (new, term), "it disturbs nobody"
        await load.stop()


async def test_a_voter_that_was_away_too_long_gets_a_snapshot_and_then_counts(
    tmp_path: Path,
) -> None:
    async with (
        three_voters(tmp_path, snapshot_interval_bytes=20_000) as voters,
        voters.broker() as broker,
    ):
        await broker.add("first")
        leader = await leader_of(broker)
        away, other = (n for n in (1, 2, 3) if n != leader)
        voters.kill(away)
        for n in range(5):
            await asyncio.gather(*(broker.add([n, m, "x" * 200]) for m in range(200)))
        voters.start(away)
        await follows(broker, away)
        voters.kill(other)
        await broker.add("with the one that was away")
        voters.kill(await leader_of(broker))
        voters.start(other)
        await broker.add("last")
        await broker.client.barrier(TIMEOUT_MS)
        assert len(broker.copy.values) == 1003


async def test_a_voter_that_was_away_disturbs_nobody(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters, voters.broker() as broker:
        await broker.add(1)
        before = await leader_of(broker), broker.client.term
        away = next(n for n in (1, 2, 3) if n != before[0])
        voters.kill(away)
        for _ in range(2):
            voters.start(away)
            await follows(broker, away)
            voters.signal(away, signal.SIGSTOP)
            await asyncio.sleep(1.5)
            await broker.add(2)
            voters.signal(away, signal.SIGCONT)
            await asyncio.sleep(1)
            assert (await leader_of(broker), broker.client.term) == before
            voters.kill(away)


async def hand_over(broker: Broker, voter_id: int) -> None:
    """As an operator would: who is refused, because the machine is busy, asks again."""
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while True:
            try:
                await broker.client.transfer_leadership(voter_id, TIMEOUT_MS)
            except ValueError as refusal:
                if "in time" not in str(refusal):
                    raise
            else:
                return


async def test_the_lead_is_handed_over_on_request(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters, voters.broker() as broker:
        load = Load(broker)
        for _ in range(2):
            for voter_id in (1, 2, 3):
                await load.more(50)
                await hand_over(broker, voter_id)
                assert await leader_of(broker) == voter_id
        await load.more(50)
        await load.stop()
        found = await broker.client.describe_quorum(TIMEOUT_MS)
        assert (found.leader_id, found.leader_epoch) == (3, broker.client.term)
        assert [voter.replica_id for voter in found.voters] == [1, 2, 3]
        assert [each.replica_id for each in found.observers] == [42]


async def test_a_broker_that_dies_together_with_the_leader_is_fenced_at_once(
    tmp_path: Path,
) -> None:
    """A node with both halves is killed: the new leader knows it from its own connections."""

    async with three_voters(tmp_path, metadata=True) as voters:
        first, second = metadata_member(voters, 1), metadata_member(voters, 2)
        async with first:
            await second.__aenter__()
            await asyncio.sleep(0.5)
            started = asyncio.get_running_loop().time()
            voters.kill(await leader_of(first))
            await second.client.close()
            await until(lambda: first.sees_fenced(2))
            print(f"fenced after {asyncio.get_running_loop().time() - started:.2f} s")
            assert asyncio.get_running_loop().time() - started < SESSION_TIMEOUT_MS / 1000
            await asyncio.sleep(1.2)
            assert not first.sees_fenced(1)


def metadata_member(voters: Voters, node_id: int, **options: Any) -> Member:
    return Member(voters.ports, node_id, **options)


async def test_who_has_another_secret_takes_no_part(tmp_path: Path) -> None:
    voters = Voters(tmp_path)
    (tmp_path / "other").write_bytes(b"another secret, long enough")
    try:
        voters.start(1, 2)
        voters.start(3, secret_file=str(tmp_path / "other"))
        async with voters.broker() as broker:
            for n in range(20):
                await broker.add(n)
            assert await leader_of(broker) in (1, 2)
            found = await broker.client.describe_quorum(TIMEOUT_MS)
            assert {v.replica_id: v.log_end_offset for v in found.voters}[3] == -1
            await until(lambda: "another secret" in voters.log_of(1).read_text())
            stranger = voters.broker(secret=b"another secret, long enough")
            with pytest.raises(ControllerUnavailable, match="compare the two secret files"):
                await stranger.client.start(1_000)
            await stranger.client.close()
    finally:
        voters.kill(*voters.processes)


async def test_a_minority_changes_nothing(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters, voters.broker() as broker:
        await broker.add(1)
        leader = await leader_of(broker)
        voters.kill(*(n for n in (1, 2, 3) if n != leader))
        await until(lambda: not broker.client.is_connected)
        with pytest.raises(ControllerUnavailable, match="the change was not made"):
            await broker.add("never", timeout_ms=300)
        with pytest.raises(ControllerUnavailable):
            await broker.client.barrier(300)
        voters.start(*(n for n in (1, 2, 3) if n != leader))
        await broker.add(2)
        assert broker.copy.values == [1, 2]


async def test_a_voter_whose_folder_was_emptied_does_not_help_to_forget(tmp_path: Path) -> None:
    """What it and the leader had confirmed, the third voter lacks: those two elect nobody, however
    long the leader stays away, and say why. With the leader back all is there again."""

    async with three_voters(tmp_path) as voters, voters.broker() as broker:
        await broker.add("before")
        leader = await leader_of(broker)
        emptied, behind = (each for each in (1, 2, 3) if each != leader)
        await follows(broker, emptied)
        # One with nothing in its log could be a new quorum's, and would elect with the emptied one.
        await follows(broker, behind)
        voters.kill(behind)
        await broker.add("x")
        voters.kill(leader, emptied)
        shutil.rmtree(tmp_path / f"m{emptied}")
        voters.start(emptied, behind)
        said = (
            f"controller {emptied} began with an empty folder and doesn't vote until a leader "
            "has brought it up to date"
        )
        await no_leader_because(broker, said)
        # As long again as it once took until it voted all the same.
        await no_leader(broker, 2 * int(BLANK_WAIT_S * 1000))
        await no_leader_because(broker, said)
        voters.start(leader)
        await broker.add("after")
        assert broker.copy.values == ["before", "x", "after"]
        await follows(broker, emptied)
        voters.kill(leader)
        await broker.add("it votes again")


async def test_an_operator_can_force_the_vote_of_a_voter_whose_folder_was_emptied(
    tmp_path: Path,
) -> None:
    async with three_voters(tmp_path) as voters, voters.broker() as broker:
        await broker.add("kept")
        for voter in (1, 2, 3):
            await follows(broker, voter)
        voters.kill(1, 2, 3)
        shutil.rmtree(tmp_path / "m1")
        shutil.rmtree(tmp_path / "m2")
        voters.start(1, 3)
        await no_leader_because(broker, "controller 1 began with an empty folder")
        voters.kill(1)
        voters.start(1, force_vote=True)
        await broker.add("more")
        assert broker.copy.values == ["kept", "more"]
        assert "voter 1 votes though its folder was empty" in voters.log_of(1).read_text()


async def no_leader(broker: Broker, timeout_ms: int = 200) -> str:
    """Why the quorum can't be described, as it must be for so long."""
    with pytest.raises(ControllerUnavailable) as failure:
        await broker.client.describe_quorum(timeout_ms)
    return str(failure.value)


async def no_leader_because(broker: Broker, said: str) -> None:
    """Wait until that is why; on a busy machine a voter may have no connection for a while."""
    deadline = time.monotonic() + TIMEOUT_S
    while said not in (problem := await no_leader(broker)):
        assert time.monotonic() < deadline, problem
