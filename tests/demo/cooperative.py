"""`make cooperative`: one partition, read by one process, by eight, and by eight one of which dies.

2,400 records of 300 keys, each of which takes five milliseconds to work on, are written to a topic
of one partition. One consumer needs twelve seconds. Eight share the partition: each has an eighth
of the keys, and all of a key's records are one member's, in order. Then one of them is killed with
-9 while it works, and the others take its keys over. What was processed is compared with what was
written: exit code 1 if a record is missing, a key's records came out of order, or eight weren't
quicker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.producer import Producer
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.key_hash import SLOTS
from kraftpy.testing import Broker, BrokerError
from kraftpy.wording import counted
from tests.demo.cooperating import SESSION_MS, WORK_S
from tests.demo.processed import Processed, Work
from tests.demo.progress import say

RECORDS = 2_400
KEYS = 300
MEMBERS = 8
QUICKER_AT_LEAST = 3.0
"""Eight times is what there is; on a machine that is busy members wait for its processors, too."""
TIMEOUT_S = 60.0
_LOOK_EVERY_S = 0.05
_SHOWN = 6
"""How often, in the time that it should take, it is said how far the work is."""


class CooperativeError(Exception):
    """Something didn't happen in time."""


def keys_of(count: int) -> list[bytes]:
    """The keys of so many records, mixed."""
    return [b"key-%d" % (number * 7919 % KEYS) for number in range(count)]


class Member:
    """A process that reads."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.slots: list[tuple[int, int]] = []
        self.killed = False
        self.failed = False

    async def follow(self, work: Work) -> None:
        """Takes in what it says, until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed in the middle of that
            what, *fields = line.split()
            if what == b"shares":
                self.slots = [parse_slots(each) for each in fields]
            else:
                offset, key, begin_ns, end_ns = fields
                work.add(Processed(self.number, int(offset), key, int(begin_ns), int(end_ns)))
        self.failed = not self.killed and await self.process.wait() != 0


def parse_slots(text: bytes) -> tuple[int, int]:
    first, _, last = text.partition(b"-")
    return int(first), int(last)


def shared_evenly(shares: Sequence[Sequence[tuple[int, int]]]) -> bool:
    """Whether these tile a partition, and nobody has more than one slot more than another."""
    pieces = sorted(piece for slots in shares for piece in slots)
    expected = 0
    for first, last in pieces:
        if first != expected:
            return False
        expected = last + 1
    sizes = [sum(last - first + 1 for first, last in slots) for slots in shares]
    return expected == SLOTS and max(sizes) - min(sizes) <= 1


class Team:
    """Processes of one group on one topic, and all that they have processed."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.members: list[Member] = []
        self.work = Work()
        self.admin = GroupAdmin(cluster)
        self._cluster = cluster
        self._topic = topic
        self._written = 0

    async def start(self, bootstrap: str, count: int) -> None:
        """Has so many processes join, until the partition is shared out."""
        command = [sys.executable, "-m", "tests.demo.cooperating", bootstrap, *[self._topic] * 2]
        for number in range(count):
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            self.members.append(Member(number, process))
        self._following = [asyncio.create_task(member.follow(self.work)) for member in self.members]
        await self.until(self.is_shared_evenly, "shared out")

    def is_shared_evenly(self) -> bool:
        return shared_evenly([member.slots for member in self.members if not member.killed])

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if any(member.failed for member in self.members):
                raise CooperativeError("a member ended by itself; what it said is above")
            if time.monotonic() > deadline:
                raise CooperativeError(f"not {what} after {TIMEOUT_S:.0f} s")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def process(self, kill_at: int | None = None) -> float:
        """Writes records and has them processed; the seconds that took.

        When so many of them have been, one member is killed.
        """
        start, end = self._written, self._written + RECORDS
        began_ns = time.monotonic_ns()
        async with Producer(self._cluster) as producer:
            for key in keys_of(RECORDS):
                await producer.send(self._topic, b"x" * 20, key=key, partition=0)
        self._written = end
        showing = asyncio.create_task(self._show_progress(start, began_ns))
        try:
            if kill_at is not None:
                await self.until(lambda: self.work.count >= start + kill_at, "so far")
                victim = self.members[MEMBERS // 2]
                victim.killed = True
                victim.process.kill()
                say(f"  {_seconds(began_ns):4.1f} s  kill -9 of member {victim.number}")
            await self.until(lambda: all(n in self.work for n in range(start, end)), "all done")
            await self._until_stable(end)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        return (self.work.end_ns(range(start, end)) - began_ns) / 1e9

    async def _show_progress(self, start: int, began_ns: int) -> None:
        """S climbs, the offset below which the group has done all; ranges are what is above."""
        while True:
            await asyncio.sleep(RECORDS * WORK_S / len(self.members) / _SHOWN)
            with contextlib.suppress(KafkaError, ConnectionError):
                stable, ranges = await self._stable()
                done = self.work.count - start
                say(
                    f"  {_seconds(began_ns):4.1f} s  {done:5,} done; S = {stable:,}, and"
                    f" {counted(ranges, 'range')} above"
                )

    async def _stable(self) -> tuple[int, int]:
        found = (await self.admin.committed(self._topic, ranges=True)).get((self._topic, 0))
        return (0, 0) if found is None else (found.offset, len(found.ranges))

    async def _until_stable(self, end: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while (await self._stable())[0] != end:
            if time.monotonic() > deadline:
                raise CooperativeError(f"not all is committed after {TIMEOUT_S:.0f} s")
            await asyncio.sleep(_LOOK_EVERY_S)

    def show_shares(self) -> None:
        """Whose which keys are, and how many records each has processed."""
        for member in self.members:
            if member.killed:
                say(f"  member {member.number}  dead, after {self.work.count_of(member.number):,}")
                continue
            part = sum(last - first + 1 for first, last in member.slots) / SLOTS
            text = ", ".join(f"{first}-{last}" for first, last in member.slots)
            count = self.work.count_of(member.number)
            say(f"  member {member.number}  {part:5.1%} of the keys: slots {text}; {count:,} done")

    def problems(self) -> list[str]:
        rounds = self._written // RECORDS
        return self.work.problems(keys_of(RECORDS) * rounds)

    async def end(self) -> None:
        """Has all members leave."""
        for member in self.members:
            assert member.process.stdin is not None
            member.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.gather(*self._following)

    def kill(self) -> None:
        """Ends whatever is left."""
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.process.kill()


def _seconds(since_ns: int) -> float:
    return (time.monotonic_ns() - since_ns) / 1e9


@asynccontextmanager
async def team(cluster: Cluster, bootstrap: str, topic: str, count: int) -> AsyncIterator[Team]:
    found = Team(cluster, topic)
    try:
        await found.admin.create_topic(
            topic, partitions=1, replication_factor=1, configs={"accept.range.fetch": "true"}
        )
        await found.start(bootstrap, count)
        yield found
        await found.end()
    finally:
        found.kill()


def verdict(problems: Sequence[str], alone_s: float, together_s: float) -> list[str]:
    """In words, what isn't as it has to be."""
    quicker = alone_s / together_s
    slow = f"{MEMBERS} members were {quicker:.1f} times as fast as one, not {QUICKER_AT_LEAST:.0f}"
    return [*problems, *([slow] if quicker < QUICKER_AT_LEAST else [])]


async def run(bootstrap: str) -> bool:
    say(
        f"one partition, {RECORDS:,} records of {KEYS} keys, {WORK_S * 1000:.0f} ms of work each; "
        "S is the offset below which all is done"
    )
    async with Cluster(bootstrap) as cluster:
        say("one consumer")
        async with team(cluster, bootstrap, "alone", 1) as alone:
            alone_s = await alone.process()
        say(f"{alone_s:6.1f} s  {RECORDS / alone_s:,.0f} records/s")
        say(f"{MEMBERS} consumers, each a process")
        async with team(cluster, bootstrap, "together", MEMBERS) as together:
            together_s = await together.process()
            together.show_shares()
            quicker = alone_s / together_s
            say(
                f"{together_s:6.1f} s  {RECORDS / together_s:,.0f} records/s,"
                f" {quicker:.1f} times as fast"
            )
            say(f"as many again; one is killed, its session ends {SESSION_MS / 1000:.0f} s later")
            killed_s = await together.process(kill_at=RECORDS // 4)
            await together.until(together.is_shared_evenly, "shared out again")
            together.show_shares()
            repeats = together.work.repeats
        say(f"{killed_s:6.1f} s  {RECORDS / killed_s:,.0f} records/s, with one killed on the way")
    problems = [*alone.problems(), *together.problems()]
    if not problems:
        say(
            f"all {3 * RECORDS:,} records were processed, each key's in order, by one member at a "
            f"time; {counted(repeats, 'record')} twice, which the dead one hadn't committed"
        )
    found = verdict(problems, alone_s, together_s)
    for each in found[:10]:
        say(f"WRONG: {each}")
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cooperative", description=__doc__)
    parser.parse_args()
    started = time.monotonic()
    try:
        with Broker(
            group_min_session_timeout_ms=SESSION_MS, group_initial_rebalance_delay_ms=0
        ) as broker:
            good = asyncio.run(run(broker.bootstrap))
    except (CooperativeError, BrokerError, KafkaError, OSError) as error:
        say(f"it failed: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    say(f"the whole took {time.monotonic() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
