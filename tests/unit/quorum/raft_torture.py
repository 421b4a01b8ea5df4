"""kill -9 for voters that are real processes, under load, with frequent snapshots:

    python -m tests.unit.quorum.raft_torture --rounds 20            all voters at once
    python -m tests.unit.quorum.raft_torture --rounds 20 --leader   only the one that leads

After each round the quorum must serve again; at the end every acknowledged command must be in the
state of every voter, none twice, and the states must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

from kraftpy.quorum.client import ControllerUnavailable, ProposalTimeout
from tests.loops import run
from tests.waiting import until

from .stack import Broker
from .voter_processes import VoterProcesses

SNAPSHOT_INTERVAL_BYTES = 30_000
CLIENTS = 20


class Torture:
    """Clients that never stop proposing to `quorum`."""

    def __init__(self, quorum: VoterProcesses, broker: Broker, random_: random.Random) -> None:
        self.quorum = quorum
        self.broker = broker
        self.random = random_
        self.acknowledged: list[int] = []
        self.down_s: list[float] = []
        self._next = 0
        self._going = True

    async def client(self) -> None:
        while self._going:
            self._next += 1
            value = self._next
            try:
                await self.broker.add(value, timeout_ms=20_000)
            except (ProposalTimeout, ControllerUnavailable):
                continue  # outcome unknown: it may be there or not
            self.acknowledged.append(value)

    async def round(self, *, only_leader: bool) -> None:
        """Kill after a random time, and wait until commands are acknowledged again."""
        await until(self._has_snapshot, timeout_s=30)
        await asyncio.sleep(self.random.uniform(0.2, 0.8))
        killed = list(self.quorum.ports)
        if only_leader:
            await until(lambda: self.broker.client.leader_id is not None)
            leader = self.broker.client.leader_id
            assert leader is not None
            killed = [leader]
            self.quorum.kill(leader)
        else:
            self.quorum.kill_all()
        started = time.monotonic()
        before = len(self.acknowledged)
        if not only_leader:
            for voter in killed:
                self.quorum.start(voter)
        await until(lambda: len(self.acknowledged) > before, timeout_s=30)
        self.down_s.append(time.monotonic() - started)
        if only_leader:
            await self.quorum.start_and_join(leader)

    def _has_snapshot(self) -> bool:
        return any(self.quorum.snapshots(voter) for voter in self.quorum.ports)

    async def finish(self) -> None:
        """Let the clients end, and bring all voters to the same place."""
        self._going = False
        await self.quorum.all_equal(self.broker)


def check(quorum: VoterProcesses, acknowledged: list[int]) -> None:
    """Raise `AssertionError` unless the stopped voters hold everything, once, alike."""
    states = {voter: quorum.values_on_disk(voter) for voter in quorum.ports}
    first = next(iter(states.values()))
    assert all(state == first for state in states.values()), "the voters' states differ"
    assert len(first) == len(set(first)), "a command was applied twice"
    lost = set(acknowledged) - set(first)
    assert not lost, f"{len(lost)} acknowledged commands are lost, {min(lost)} for one"


def torture(folder: Path, *, rounds: int, only_leader: bool, seed: int) -> Torture:
    """All of it; the result says how long each round was without a leader."""
    with VoterProcesses(folder, snapshot_interval_bytes=SNAPSHOT_INTERVAL_BYTES) as quorum:
        done: list[Torture] = []

        async def test() -> None:
            async with quorum.broker() as broker:
                tortured = Torture(quorum, broker, random.Random(seed))
                clients = [asyncio.create_task(tortured.client()) for _ in range(CLIENTS)]
                for _ in range(rounds):
                    await tortured.round(only_leader=only_leader)
                await tortured.finish()
                await asyncio.gather(*clients)
                done.append(tortured)

        run(test, timeout_s=30 * rounds + 60)
        for voter in list(quorum.running):
            assert quorum.stop(voter) == 0
        check(quorum, done[0].acknowledged)
        return done[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--leader", action="store_true", help="kill only the leader")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="kraftpy-quorum-") as folder:
        done = torture(Path(folder), rounds=given.rounds, only_leader=given.leader, seed=given.seed)
    down = sorted(done.down_s)
    print(
        f"{given.rounds} rounds, {len(done.acknowledged)} commands acknowledged: 0 lost, 0 applied "
        f"twice, states equal; first acknowledgement after the kill: median "
        f"{down[len(down) // 2]:.2f} s, worst {down[-1]:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
