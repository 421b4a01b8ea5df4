"""Random schedules for Raft voters:

    python -m tests.unit.quorum.raft_fuzz --seeds 100 --steps 5000

Ticks, deliveries, broken and stalled links, snapshots in small pieces, transfers of the lead,
proposals made again, kills, and kills and power losses in the middle of system calls, in an order
that the seed decides; then everything is healed. Checked: no acknowledged command is lost, none is
applied twice, all voters applied the same entries and end in the same state, and no term has two
leaders.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from kraftpy.quorum.raft import node, progress

from .faults import Crash
from .raft_world import NEVER, World

SMALL = {
    (node, "BATCH_BYTES"): 150,
    (node, "CHUNK_BYTES"): 700,
    (node, "APPLY_BYTES"): 400,
    (progress, "WINDOW_BYTES"): 600,
}


class Fuzz:
    """One run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.next_value = 0
        self.stalled: set[tuple[int, int]] = set()

    def step(self) -> None:
        world, random = self.world, self.random
        world.now += random.random() * 0.004
        kind = random.random()
        member = world.members[random.choice(world.ids)]
        if not member.alive:
            if random.random() < 0.012:
                self.restart(member.voter_id)
            return
        voter_id = member.voter_id
        if kind < 0.45:
            sync = random.random() < 0.7
            self.guarded(voter_id, lambda: member.turn(sync=sync))
        elif kind < 0.80:
            self.deliver(voter_id)
        elif kind < 0.93:
            for _ in range(random.choice((1, 3, 10, 20))):
                if self.next_value and random.random() < 0.1:
                    member.propose(random.randrange(self.next_value))
                elif member.propose(self.next_value):
                    self.next_value += 1
        elif kind < 0.95:
            self.guarded(voter_id, member.helper.finish)
        elif kind < 0.97:
            world.rejoin(voter_id)
        elif kind < 0.98:
            self.stalled.clear()
        elif kind < 0.99:
            self.fault(voter_id)

    def deliver(self, sender: int) -> None:
        receiver = self.random.choice([i for i in self.world.ids if i != sender])
        if (sender, receiver) not in self.stalled and self.world.members[receiver].alive:
            count = self.random.choice((1, 1, 2, 5, 20))
            self.guarded(receiver, lambda: self.world.deliver(sender, receiver, count))

    def fault(self, voter_id: int) -> None:
        world, random = self.world, self.random
        other = random.choice([i for i in world.ids if i != voter_id])
        kind = random.random()
        if kind < 0.25:
            world.disconnect(voter_id, other)
        elif kind < 0.40:
            world.isolate(voter_id)
        elif kind < 0.60:
            self.stalled.add((voter_id, other))
        elif kind < 0.70:
            world.members[voter_id].transfer_to = other
        elif kind < 0.85:
            world.members[voter_id].disk.crash_after(random.randrange(12))
        elif kind < 0.93:
            world.crash(voter_id)
        else:
            world.kill(voter_id)

    def guarded(self, voter_id: int, action: Callable[[], object]) -> None:
        """Do something as a voter, which may end on the way, and lose its power or not."""
        try:
            action()
        except Crash:
            self.random.choice((self.world.crash, self.world.kill))(voter_id)

    def restart(self, voter_id: int) -> None:
        member = self.world.members[voter_id]
        if self.random.random() < 0.1:
            member.disk.crash_after(self.random.randrange(12))
        try:
            member.start()
        except Crash:
            member.disk.lose_unsynced()
            return
        self.world.rejoin(voter_id)

    def heal(self) -> None:
        world = self.world
        self.stalled.clear()
        for member in world.members.values():
            member.disk.crash_after(NEVER)
            if not member.alive:
                member.start()
        for voter_id in world.ids:
            world.rejoin(voter_id)
        for _ in range(100):
            leader = world.leader()
            ends = {m.node.last_index for m in world.members.values()}
            applied = {m.replica.applied_index for m in world.members.values()}
            if len(ends | applied) == 1:
                break
            for member in world.members.values():
                member.helper.finish()
            world.run(0.1)
        else:
            raise AssertionError(f"voters don't catch up: ends {ends}, applied {applied}")
        values = leader.values
        assert all(member.values == values for member in world.members.values())
        assert len(values) == len(set(values)), "a command was applied twice"
        lost = set(world.acknowledged) - set(values)
        assert not lost, f"{len(lost)} acknowledged commands are lost"


def run(seed: int, steps: int, *, count: int = 3) -> Fuzz:
    """One seed; raises `AssertionError` (or whatever a voter raises)."""
    shared = Path("/dev/shm")  # as no sync is real, memory does
    with (
        tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder,
        World(Path(folder), count=count, seed=seed, snapshot_interval_bytes=500) as world,
    ):
        patches = [mock.patch.object(*where, value) for where, value in SMALL.items()]
        for patch in patches:
            patch.start()
        try:
            fuzz = Fuzz(world)
            world.start_all()
            for _ in range(steps):
                fuzz.step()
            fuzz.heal()
            return fuzz
        finally:
            for patch in patches:
                patch.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--voters", type=int, default=3)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    acknowledged = terms = 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            fuzz = run(seed, given.steps, count=given.voters)
        except BaseException:
            print(f"seed {seed} failed; --first {seed} --seeds 1 shows it again", file=sys.stderr)
            raise
        acknowledged += len(fuzz.world.acknowledged)
        terms += len(fuzz.world.leaders)
        if sys.stdout.isatty():
            print(f"\r{seed}", end="\r")
    print(
        f"{given.seeds} seeds x {given.steps} steps: {acknowledged} commands acknowledged in "
        f"{terms} terms, 0 lost, 0 applied twice, states equal, one leader per term "
        f"({time.monotonic() - started:.0f} s)"
    )


if __name__ == "__main__":
    main()
