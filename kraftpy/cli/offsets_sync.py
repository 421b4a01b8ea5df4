"""`kraftpy offsets sync`: a group whose members are switched one by one (seeds 002 and 004).

Old consumers go on with their offsets in ZooKeeper, new ones with those here, and this carries each
commit to the other side, as consumers did with `dual.commit.enabled`. Rules:

* The further offset wins, whichever side has it: whoever committed it has done all before it. So
  no offset goes back (rule 341).
* What is replaced is what was read. A commit that comes between is left as it is, and looked at
  again in the next round.
* What can't be carried (the offset is beyond the log, the topic isn't there, members of the group
  commit here by themselves) is left on both sides, and told once.
* A side that is away is waited for, once both have answered: nothing is kept here but what was
  told, so a round begins from what both sides say.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_UNREACHABLE,
    Failure,
    Seconds,
    echo_json,
    output_option,
    run_client,
    timeout_option,
)
from kraftpy.cli.offset_rows import (
    DONE,
    PLANNED,
    SKIPPED,
    UNCHANGED,
    Row,
    Versioned,
    as_json,
    commit,
    connection,
    described,
    logs_of,
    parsed,
    report,
    write,
    zookeeper_options,
)
from kraftpy.client.cluster import Cluster, NoBrokerError, is_retriable
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.offsets import Partition
from kraftpy.protocol.errors import KafkaError
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.cli.zookeeper import StoredOffset, ZooKeeper

HERE, ZOOKEEPER = "here", "ZooKeeper"
# Of a round that ends the command: what others changed meanwhile is looked at again.
_TRIES = 3
_OUTAGE_PAUSE_S = 1.0

_Place = tuple[str, str, str]


@click.command()
@zookeeper_options
@click.option(
    "--every",
    "every_ms",
    type=Seconds(),
    default=1,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait before the next round.",
)
@click.option("--once", is_flag=True, help="Carry what there is, and end.")
@brokers_option
@timeout_option
@output_option
def sync(
    hosts: str,
    groups: Sequence[str],
    topics: Sequence[str],
    dry_run: bool,
    every_ms: int,
    once: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Keep offsets in ZooKeeper and here in step, until SIGTERM or Ctrl-C.

    \b
    kraftpy offsets sync --zookeeper zk1:2181/kafka -g kitchen
    kraftpy offsets sync --zookeeper zk1:2181/kafka -g kitchen --once

    For groups whose members are switched one by one, there or back: stop one, have what it
    committed carried (a round, or --once), start it anew. The further offset wins; without -g all
    groups are meant that ZooKeeper knows.
    """
    connection(hosts, timeout_ms)
    work = _Sync(groups, topics, dry_run)
    run_client(
        _run(work, hosts, brokers, timeout_ms, None if once or dry_run else every_ms, output)
    )


async def _run(
    work: _Sync,
    hosts: str,
    brokers: Brokers,
    timeout_ms: int,
    every_ms: int | None,
    output: str,
) -> None:
    teller = _Teller(output)
    stop = asyncio.Event()
    if every_ms is not None:
        _hear(stop)
    reached = False
    while not stop.is_set():
        try:
            async with _session(hosts, timeout_ms) as zookeeper, brokers.connect(timeout_ms) as to:
                admin = GroupAdmin(to, timeout_ms=timeout_ms)
                if every_ms is None:
                    report(await _once(work, zookeeper, to, admin), output)
                    return
                while not stop.is_set():
                    teller.tell(await work.round(zookeeper, to, admin))
                    reached = True
                    await _wait(stop, every_ms / 1000)
        except (Failure, ConnectionError, KafkaError) as error:
            if not reached or not _is_outage(error):
                raise
            teller.tell_outage(error)
            await _wait(stop, max(every_ms or 0, _OUTAGE_PAUSE_S * 1000) / 1000)
    teller.sum_up()


@contextlib.asynccontextmanager
async def _session(hosts: str, timeout_ms: int) -> AsyncIterator[ZooKeeper]:
    zookeeper = connection(hosts, timeout_ms)
    await asyncio.to_thread(zookeeper.__enter__)
    try:
        yield zookeeper
    finally:
        await asyncio.to_thread(zookeeper.__exit__, None, None, None)


async def _once(
    work: _Sync, zookeeper: ZooKeeper, cluster: Cluster, admin: GroupAdmin
) -> list[Row]:
    done: dict[_Place, Row] = {}
    for _ in range(_TRIES):
        rows = await work.round(zookeeper, cluster, admin)
        done |= {_place(row): row for row in rows if row.status == DONE}
        if not work.was_refused:
            break
    return [done.get(_place(row), row) if row.status == UNCHANGED else row for row in rows]


def _hear(stop: asyncio.Event) -> None:
    """The first signal lets the round under way end; the second ends the command at once."""
    loop = asyncio.get_running_loop()

    def hear() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def _is_outage(error: Exception) -> bool:
    if isinstance(error, Failure):
        return error.code == EXIT_UNREACHABLE
    # A new client has reached nobody yet, but this command has.
    return isinstance(error, NoBrokerError) or is_retriable(error)


def _place(row: Row) -> _Place:
    return row.group, row.topic, row.partition


# -- a round


@dataclass(slots=True)
class _Sync:
    """What is to be carried; `was_refused` if the last round couldn't write all that it planned."""

    groups: Sequence[str]
    topics: Sequence[str]
    dry_run: bool
    was_refused: bool = False
    _checked: bool = False

    async def round(self, zookeeper: ZooKeeper, cluster: Cluster, admin: GroupAdmin) -> list[Row]:
        """Reads both sides and carries what is further; a row for each offset of either."""
        there, stored = await asyncio.to_thread(self._stored, zookeeper)
        names = list(dict.fromkeys(self.groups)) or there
        rows: list[Versioned] = []
        for group in names:
            found = await self._planned(admin, group, stored.get(group, []))
            if not found and not self._checked and group not in there:
                raise Failure(
                    f"there is no group {group!r} in ZooKeeper, nor here", EXIT_BROKER_ERROR
                )
            rows += found
        self._checked = True
        await self._hold_to_logs(cluster, admin, rows)
        if self.dry_run:
            return [row for row, _ in rows]
        return await self._carry(zookeeper, admin, names, rows)

    def _stored(self, zookeeper: ZooKeeper) -> tuple[list[str], dict[str, list[StoredOffset]]]:
        there = zookeeper.groups()
        stored: dict[str, list[StoredOffset]] = {}
        for each in zookeeper.offsets(self.groups or there, self._is_wanted):
            stored.setdefault(each.place[0], []).append(each)
        return there, stored

    def _is_wanted(self, topic: str) -> bool:
        return not self.topics or topic in self.topics

    async def _planned(
        self, admin: GroupAdmin, group: str, stored: Sequence[StoredOffset]
    ) -> list[Versioned]:
        """A row for each offset of a group, by which side is further, and its node's version."""
        problem = ""
        committed: Mapping[Partition, CommittedOffset] = {}
        try:
            committed = await admin.committed(group)
        except KafkaError as error:
            if error.code.retriable:
                raise
            problem = str(error)
        rows: list[Versioned] = []
        seen = set()
        for (_, topic, node), value, version in stored:
            number, offset, reason = parsed(node, value)
            here = None if reason else committed.get((topic, number))
            row = Row(group, topic, node, None if here is None else here.offset, offset, PLANNED)
            if reason or problem:
                row = replace(row, old=None, new=None, status=SKIPPED, reason=reason or problem)
                seen.add((topic, node))
            else:
                row = _directed(row, "" if here is None else here.metadata)
                seen.add((topic, str(number)))
            rows.append((row, version))
        for (topic, number), each in committed.items():
            if self._is_wanted(topic) and (topic, str(number)) not in seen:
                row = Row(group, topic, str(number), None, each.offset, PLANNED, where=ZOOKEEPER)
                rows.append((_nameable(row), None))
        return rows

    async def _hold_to_logs(
        self, cluster: Cluster, admin: GroupAdmin, rows: list[Versioned]
    ) -> None:
        """Takes back what can't be committed here: offsets that are in no log, groups in use."""
        wanted = {(row.topic, int(row.partition)) for row, _ in rows if _is_due(row, HERE)}
        logs = await logs_of(cluster, wanted) if wanted else {}
        problems: dict[str, str] = {}
        for place, (row, version) in enumerate(rows):
            if not _is_due(row, HERE):
                continue
            if row.group not in problems:
                problems[row.group] = await _in_use(admin, row.group)
            log = logs[row.topic, int(row.partition)]
            rows[place] = _held(row, log, problems[row.group]), version

    async def _carry(
        self,
        zookeeper: ZooKeeper,
        admin: GroupAdmin,
        groups: Sequence[str],
        rows: Sequence[Versioned],
    ) -> list[Row]:
        there = [each for each in rows if _is_due(each[0], ZOOKEEPER)]
        done = [row for row, _ in await asyncio.to_thread(write, zookeeper, there)]
        for group in groups:
            due = [row for row, _ in rows if row.group == group and _is_due(row, HERE)]
            if due:
                done += await commit(admin, group, due)
        self.was_refused = any(row.status == SKIPPED for row in done)
        return done + [row for row, _ in rows if row.status != PLANNED]


def _held(row: Row, log: tuple[int, int] | str, problem: str) -> Row:
    """A row that is to be committed here, as the partition's log and its group allow it."""
    assert row.new is not None
    if isinstance(log, str):
        return replace(row, status=SKIPPED, reason=log)
    start, end = log
    if row.new > end:
        reason = f"the log ends at {end}: are the records here yet?"
        return replace(row, status=SKIPPED, reason=reason)
    if problem:
        return replace(row, status=SKIPPED, reason=problem)
    # Where retention has been, a new consumer would begin by a rule of its own.
    return replace(row, new=max(row.new, start))


def _is_due(row: Row, where: str) -> bool:
    return row.status == PLANNED and row.where == where


def _directed(row: Row, metadata: str) -> Row:
    """A row with what is here as `old` and what ZooKeeper has as `new`, the way it is to go."""
    here, there = row.old, row.new
    assert there is not None
    if here is None or here < there:
        return replace(row, where=HERE, metadata=metadata)
    if here == there:
        return replace(row, status=UNCHANGED)
    return replace(row, old=there, new=here, where=ZOOKEEPER)


def _nameable(row: Row) -> Row:
    from kraftpy.cli.zookeeper import name_problem

    problem = name_problem(row.group)
    return replace(row, status=SKIPPED, reason=problem) if problem else row


async def _in_use(admin: GroupAdmin, group: str) -> str:
    """Why nobody but its members may commit for a group; empty if it has none."""
    try:
        info = await described(admin, group)
    except KafkaError as error:
        if error.code.retriable:
            raise
        return str(error)
    if info is None or not info.members:
        return ""
    return (
        f"the group has {counted(len(info.members), 'member')} here, and only they may commit for"
        " it: stop them until the old consumers have stopped"
    )


# -- what is said


@dataclass(slots=True)
class _Teller:
    """Says what rounds did, as they do it and in the end."""

    output: str
    _began: float = field(default_factory=time.monotonic)
    _rounds: int = 0
    _carried: dict[str, int] = field(default_factory=lambda: {HERE: 0, ZOOKEEPER: 0})
    _skipped: dict[_Place, str] = field(default_factory=dict)
    _told: dict[_Place, str] = field(default_factory=dict)
    _left: dict[_Place, int] = field(default_factory=dict)
    _gone_back: set[str] = field(default_factory=set)
    _is_out: bool = False

    def tell(self, rows: Sequence[Row]) -> None:
        """What a round did, and what it left if the one before left it for the same reason."""
        self._rounds += 1
        if self._is_out:
            self._is_out = False
            click.echo("kraftpy: both sides answer again", err=True)
        done = [row for row in rows if row.status == DONE]
        for row in done:
            self._carried[row.where] += 1
        if self.output == "json":
            for row in done:
                echo_json(as_json(row))
        elif done:
            click.echo(f"carried {_ways(done)}")
        for text in (*self._set_back(done), *self._left_over(rows)):
            click.echo(f"kraftpy: {text}", err=True)
        self._left = {
            _place(row): row.new
            for row in rows
            if row.new is not None and row.status in (DONE, UNCHANGED)
        }

    def _set_back(self, done: Sequence[Row]) -> Iterator[str]:
        """Of each group once: that somebody has gone back, which wasn't let stand."""
        for row in done:
            before = self._left.get(_place(row))
            if row.old is None or before is None or row.old >= before:
                continue
            if row.group not in self._gone_back:
                self._gone_back.add(row.group)
                side = "here" if row.where == HERE else "in ZooKeeper"
                yield (
                    f"group {row.group!r} went back from {before} to {row.old} {side} in"
                    f" {row.topic}-{row.partition}; the further offset, {row.new}, stands. To reset"
                    " the group, stop its members and this, `kraftpy group seek` it, and type"
                    f" `kraftpy offsets export --overwrite -g {row.group}`"
                )

    def _left_over(self, rows: Sequence[Row]) -> Iterator[str]:
        skipped = {_place(row): row.reason for row in rows if row.status == SKIPPED}
        for place, reason in skipped.items():
            if self._skipped.get(place) == reason != self._told.get(place):
                self._told[place] = reason
                group, topic, partition = place
                yield f"group {group!r}, {topic}-{partition} is left: {reason}"
        self._told = {place: reason for place, reason in self._told.items() if place in skipped}
        self._skipped = skipped

    def tell_outage(self, error: Exception) -> None:
        """Says once that a side is away."""
        if not self._is_out:
            self._is_out = True
            text = error.format_message() if isinstance(error, Failure) else str(error)
            click.echo(f"kraftpy: {text}. Waiting for it", err=True)

    def sum_up(self) -> None:
        """The last thing that is said."""
        if self.output == "json":
            echo_json(
                {
                    "rounds": self._rounds,
                    "here": self._carried[HERE],
                    "zookeeper": self._carried[ZOOKEEPER],
                    "skipped": len(self._skipped),
                }
            )
            return
        click.echo(
            f"{counted(self._rounds, 'round')} in {time.monotonic() - self._began:.1f} s:"
            f" {counted(self._carried[HERE], 'offset')} carried here,"
            f" {self._carried[ZOOKEEPER]:,} to ZooKeeper, {len(self._skipped):,} left"
        )


def _ways(rows: Sequence[Row]) -> str:
    here = sum(row.where == HERE for row in rows)
    said = [counted(here, "offset") + " here"] * (here > 0)
    if there := len(rows) - here:
        said.append(counted(there, "offset") + " to ZooKeeper")
    return ", ".join(said)
