"""Raft voters in a world without time, sockets or power: every event happens where a test says so.

A voter's disk keeps what was synced; a crash loses some of the rest and undoes renames in folders
that weren't synced. A link delivers in order until it breaks; then what was under way is lost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pysyncobj.syncobj

from kraftpy.quorum.packing import pack, unpack
from kraftpy.quorum.port import Applied, Entry
from kraftpy.quorum.raft.node import RaftNode
from kraftpy.quorum.replica import Replica
from kraftpy.quorum.state import pack_envelope

from .faults import NEVER, Crash, CrashingLayer
from .standin import Values


class Disk(CrashingLayer):
    """A `CrashingLayer` without real syncs, which no power loss will test here."""

    def __init__(self, random: Random) -> None:
        super().__init__(NEVER)
        self._random = random

    def datasync(self, fd: int) -> None:
        self._step()
        for key in [k for k in self._unsynced if os.path.sameopenfile(k, fd)]:
            os.close(key)
            del self._unsynced[key]

    def sync_directory(self, path: Path) -> None:
        self._step()
        self._renamed = [names for names in self._renamed if names[1].parent != path]

    def lose_unsynced(self) -> None:
        kept = {}
        for fd, ranges in self._unsynced.items():
            kept[fd] = [one for one in ranges if self._random.random() < 0.5]
        self._unsynced = kept
        super().lose_unsynced()
        self._left = NEVER


class LateHelper:
    """Does a snapshot's job at once and says so when the world lets it."""

    def __init__(self) -> None:
        self._done: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        return self._done is not None

    def start(self, job: Callable[[], int], done: Callable[[int], None]) -> None:
        code = job()
        self._done = lambda: done(code)

    def finish(self) -> None:
        if self._done is not None:
            done, self._done = self._done, None
            done()

    def stop(self) -> None:
        self._done = None


class Member:
    """One voter: its disk for ever, and a `RaftNode` in each of its lives."""

    def __init__(self, world: World, voter_id: int) -> None:
        self.world = world
        self.voter_id = voter_id
        self.disk = Disk(world.random)
        self.folder = world.folder / str(voter_id)
        self.alive = False
        self.forced = False
        self.proposed: dict[int, tuple[int, Any]] = {}
        self.applied: list[Applied] = []
        self.helper: LateHelper
        self.replica: Replica
        self.node: RaftNode

    def start(self) -> None:
        assert not self.alive
        self.proposed.clear()
        self.transfer_to: int | None = None
        self.helper = LateHelper()
        self.replica = Replica(
            self.folder,
            Values,
            self.disk,
            self.helper,
            self.fatal,
            replay=False,
            snapshot_interval_bytes=self.world.snapshot_interval_bytes,
        )
        self.replica.on_apply(self._on_apply)
        self.node = RaftNode(
            self.voter_id,
            self.world.ids,
            self.replica,
            self.send,
            self.world.random,
            forced=self.forced,
        )
        self.alive = True

    def fatal(self, error: Exception) -> None:
        raise AssertionError(f"voter {self.voter_id} stopped") from error

    def send(self, to: int, message: list[Any]) -> None:
        if frozenset((self.voter_id, to)) in self.world.links:
            self.world.queues[self.voter_id, to].append(pack(message))

    def receive(self, sender: int, message: Any) -> None:
        self.node.receive(sender, message)

    def turn(self, *, sync: bool = True) -> None:
        """What `RaftVoter._turn` does; without `sync` a leader's own write comes later."""
        node = self.node
        before = node.term if node.leads else -1
        for one in node.tick():
            self._answer(one)
        if before != (node.term if node.leads else -1):
            self.proposed.clear()
        self.world.check_leader(self)
        if self.transfer_to is not None and (not node.leads or node.transfer(self.transfer_to)):
            self.transfer_to = None
        node.replicate()
        if sync or node.must_flush:
            node.flush()
        elif (write := node.start_sync()) is not None and self.world.random.random() < 0.5:
            write.run()  # done, though the voter doesn't know yet

    def propose(self, value: Any) -> bool:
        """Take a command into the log, again perhaps, if this voter leads."""
        if not self.node.leads or self.transfer_to is not None:
            return False
        client_id = pack(value).rjust(16, b"\0")[-16:]
        opened_at = self.world.opened.setdefault(value, self.replica.applied_index)
        command = pack_envelope(client_id, 1, 1, opened_at, {"add": value})
        self.proposed[self.node.append([command])] = self.node.term, value
        return True

    @property
    def values(self) -> list[Any]:
        machine = self.replica.state.machine
        assert isinstance(machine, Values)
        return machine.values

    def _on_apply(self, batch: Sequence[Applied]) -> None:
        for one in batch:
            self.world.check_applied(self, one.entry)
        self.applied = [*self.applied[-100:], *batch]

    def _answer(self, one: Applied) -> None:
        term, value = self.proposed.pop(one.entry.index, (-1, None))
        if term == one.entry.term and not one.result.error:
            self.world.acknowledged.append(value)


class World:
    """Use it as a context: pysyncobj's clock is this world's then."""

    def __init__(
        self, folder: Path, *, count: int = 3, seed: int = 0, snapshot_interval_bytes: int = 1 << 30
    ) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.snapshot_interval_bytes = snapshot_interval_bytes
        self.ids = list(range(1, count + 1))
        self.now = 1000.0
        self.links: set[frozenset[int]] = set()
        self.queues: dict[tuple[int, int], deque[bytes]] = {
            (a, b): deque() for a in self.ids for b in self.ids if a != b
        }
        self.members = {voter_id: Member(self, voter_id) for voter_id in self.ids}
        self.acknowledged: list[Any] = []
        self.opened: dict[Any, int] = {}
        self.leaders: dict[int, int] = {}
        self.log: dict[int, Entry] = {}

    def __enter__(self) -> World:
        self._clock = pysyncobj.syncobj.monotonicTime
        pysyncobj.syncobj.monotonicTime = lambda: self.now
        return self

    def __exit__(self, *_: object) -> None:
        pysyncobj.syncobj.monotonicTime = self._clock
        for member in self.members.values():
            if member.alive:
                member.replica.close()

    # Invariants

    def check_leader(self, member: Member) -> None:
        node = member.node
        if node.leads:
            other = self.leaders.setdefault(node.term, member.voter_id)
            assert other == member.voter_id, f"{other} and {member.voter_id} lead {node.term}"

    def check_applied(self, member: Member, entry: Entry) -> None:
        known = self.log.setdefault(entry.index, entry)
        assert known == entry, f"voter {member.voter_id} applied {entry}, another one {known}"

    # Events

    def start_all(self) -> None:
        for member in self.members.values():
            member.start()
        for a, b in self.queues:
            if a < b:
                self.connect(a, b)

    def connect(self, a: int, b: int) -> None:
        if self.members[a].alive and self.members[b].alive:
            self.links.add(frozenset((a, b)))
            self.members[a].node.connected(b)
            self.members[b].node.connected(a)

    def disconnect(self, a: int, b: int) -> None:
        """Both ends notice; what was under way is lost."""
        if frozenset((a, b)) in self.links:
            self.links.remove(frozenset((a, b)))
            for one, other in ((a, b), (b, a)):
                self.queues[one, other].clear()
                if self.members[one].alive:
                    self.members[one].node.disconnected(other)

    def isolate(self, voter_id: int) -> None:
        for other in self.ids:
            if other != voter_id:
                self.disconnect(voter_id, other)

    def rejoin(self, voter_id: int) -> None:
        for other in self.ids:
            if other != voter_id and frozenset((voter_id, other)) not in self.links:
                self.connect(voter_id, other)

    def crash(self, voter_id: int) -> None:
        """Lose power: what is not synced is gone."""
        self.kill(voter_id)
        self.members[voter_id].disk.lose_unsynced()

    def kill(self, voter_id: int) -> None:
        """The process ends; its next life finds all that this one wrote, unless power is lost."""
        member = self.members[voter_id]
        member.alive = False
        member.helper.stop()
        self.isolate(voter_id)
        member.replica.journal.close()
        member.disk.crash_after(NEVER)

    def guarded(self, voter_id: int, action: Callable[[], object]) -> None:
        """Do something as a voter, which may lose its power on the way."""
        try:
            action()
        except Crash:
            self.crash(voter_id)

    def deliver(self, sender: int, receiver: int, count: int = 1) -> int:
        """Hand over the next messages of a link; returns how many there were."""
        queue = self.queues[sender, receiver]
        delivered = 0
        while queue and delivered < count:
            message = unpack(queue.popleft())
            delivered += 1
            self.members[receiver].receive(sender, message)
        return delivered

    def unpacked(self, message: bytes) -> Any:
        """A message as the other end of a connection sees it."""
        return unpack(message)

    def peek(self, sender: int, receiver: int) -> list[Any]:
        return [unpack(message) for message in self.queues[sender, receiver]]

    def settle(self, *, but: Sequence[int] = ()) -> None:
        """Turn and deliver among all voters but some until nobody says anything."""
        ids = [i for i in self.ids if self.members[i].alive and i not in but]
        quiet = False
        while not quiet:
            quiet = True
            for voter_id in ids:
                self.members[voter_id].turn()
            for a in ids:
                for b in ids:
                    if a != b and self.deliver(a, b, NEVER):
                        quiet = False

    def run(self, seconds: float, *, but: Sequence[int] = ()) -> None:
        """Let time go by in steps, with everything delivered among all voters but some."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            self.settle(but=but)

    def run_slowly(self, seconds: float, delay_s: float, *, but: Sequence[int] = ()) -> None:
        """As `run`, over links on which each message takes its time."""
        ids = [i for i in self.ids if self.members[i].alive and i not in but]
        links = [(a, b) for a in ids for b in ids if a != b]
        arrivals: dict[tuple[int, int], deque[float]] = {link: deque() for link in links}
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            for voter_id in ids:
                self.members[voter_id].turn()
            for link, times in arrivals.items():
                while len(times) < len(self.queues[link]):
                    times.append(self.now + delay_s)
                while times and times[0] <= self.now:
                    times.popleft()
                    self.deliver(*link)

    def leader(self, *, but: Sequence[int] = ()) -> Member:
        """Let time go by until all voters but some follow one leader whose term is open."""
        for _ in range(1000):
            members = [m for m in self.members.values() if m.alive and m.voter_id not in but]
            named = {(m.node.leader, m.node.term) for m in members}
            if len(named) == 1 and (leader := named.pop()[0]) is not None:
                found = self.members[leader]
                if found in members and found.node.is_open:
                    return found
            self.run(0.01, but=but)
        raise AssertionError("no leader")
