"""`kraftpy offsets`: offsets of groups, brought from ZooKeeper and back (seed 002).

Rules, the same in both directions, so that a command can be run again and again:

* What is there already is left as it is; a later offset is kept unless --overwrite says otherwise.
* What is replaced is what was read: a group that commits meanwhile is not set back.
* Groups that are in use where the offsets are to go are skipped, as are offsets that make no sense
  there. Each one is reported with its reason, and the command ends with exit code 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    TEXT,
    Failure,
    echo_json,
    echo_table,
    output_option,
    run_client,
    timeout_option,
)
from kraftpy.cli.offset_spec import known_offsets
from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.group_info import GroupInfo
from kraftpy.client.offsets import EARLIEST, LATEST, OffsetAndMetadata, Partition
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.cli.zookeeper import ZooKeeper

_F = TypeVar("_F", bound=Callable[..., Any])

DONE, PLANNED, UNCHANGED, KEPT, SKIPPED = "done", "planned", "unchanged", "kept", "skipped"


@dataclass(frozen=True, slots=True)
class _Row:
    """What becomes of one offset: `old` is where it goes to, `new` where it comes from."""

    group: str
    topic: str
    partition: str
    old: int | None
    new: int | None
    status: str
    reason: str = ""
    metadata: str = ""
    """The text that was committed beside `old`, which stays: ZooKeeper has none."""


@click.group()
def command() -> None:
    """Bring committed offsets from ZooKeeper, where Kafka's first consumers kept them, and back."""


def _zookeeper_options(function: _F) -> _F:
    for option in (
        click.option("--dry-run", is_flag=True, help="Show what would be written."),
        click.option("--overwrite", is_flag=True, help="Replace later offsets by earlier ones."),
        click.option(
            "-t",
            "--topic",
            "topics",
            type=TEXT,
            multiple=True,
            metavar="TOPIC",
            help="Only of this topic. Repeatable.",
        ),
        click.option(
            "-g",
            "--group",
            "groups",
            type=TEXT,
            multiple=True,
            metavar="GROUP",
            help="Only of this group. Repeatable.",
        ),
        click.option(
            "--zookeeper",
            "hosts",
            type=TEXT,
            required=True,
            metavar="HOST:PORT[,...][/CHROOT]",
            help="ZooKeeper, with the path of the old cluster if it has one.",
        ),
    ):
        function = option(function)
    return function


@command.command(name="import")
@_zookeeper_options
@brokers_option
@timeout_option
@output_option
def import_offsets(
    hosts: str,
    groups: Sequence[str],
    topics: Sequence[str],
    overwrite: bool,
    dry_run: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Commit the offsets that old consumers keep in ZooKeeper.

    \b
    kraftpy offsets import --zookeeper zk1:2181/kafka --dry-run
    kraftpy offsets import --zookeeper zk1:2181/kafka -g kitchen

    Stop the old consumers first, or run it again when they have stopped; then start the new ones.
    An offset that is older than the oldest record becomes the oldest record's.
    """
    with _zookeeper(hosts, timeout_ms) as zookeeper:
        names = _chosen(zookeeper.groups(), groups, "ZooKeeper")
        stored = list(zookeeper.offsets(names, lambda topic: not topics or topic in topics))
        running = zookeeper.consumers(names)
    rows: list[_Row] = []
    good: dict[str, dict[Partition, int]] = {}
    for (group, topic, node), value, _ in stored:
        partition, offset, reason = _parsed(node, value)
        if reason:
            rows.append(_Row(group, topic, node, None, None, SKIPPED, reason))
        else:
            good.setdefault(group, {})[topic, partition] = offset

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            log_ends = await _log_ends(cluster, {name for each in good.values() for name in each})
            for group, offsets in good.items():
                planned = await _plan_import(admin, group, offsets, log_ends, overwrite)
                rows.extend(planned if dry_run else await _commit(admin, group, planned))

    run_client(run())
    for group, count in running.items():
        click.echo(
            f"kraftpy: {counted(count, 'consumer')} of group {group!r} still run on ZooKeeper: run "
            "this again when they have stopped",
            err=True,
        )
    _report(rows, output)


def _parsed(node: str, value: bytes) -> tuple[int, int, str]:
    """(partition, offset, "") of a node, or why it has none."""
    if re.fullmatch("[0-9]+-[0-9]+", node):
        return 0, 0, "a partition of Kafka 0.7, whose offsets counted bytes of another log"
    if not _is_partition(node):
        return 0, 0, f"{node!r} is no partition"
    text = value.decode(errors="backslashreplace").strip()
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) >= 2**63:
        return 0, 0, f"{text!r} is no offset"
    return int(node), int(text), ""


def _is_partition(node: str) -> bool:
    return re.fullmatch("0|[1-9][0-9]{0,9}", node) is not None


_LogEnds = dict[Partition, tuple[int, int] | str]


async def _log_ends(cluster: Cluster, partitions: Iterable[Partition]) -> _LogEnds:
    """Start and end of the log of each partition, or why there are none."""
    names = sorted(partitions)
    await cluster.refresh(sorted({topic for topic, _ in names}))
    found: _LogEnds = {}
    for topic, number in names:
        known = cluster.topics.get(topic)
        if known is None:
            found[topic, number] = f"no such topic; `kraftpy topic create {topic}` makes it"
        elif number not in known.partitions:
            found[topic, number] = f"the topic has {counted(len(known.partitions), 'partition')}"
        elif known.partitions[number].leader < 0:
            found[topic, number] = "no broker leads the partition"
    there = [name for name in names if name not in found]
    starts = await known_offsets(cluster, there, EARLIEST)
    ends = await known_offsets(cluster, there, LATEST)
    for name in there:
        if name in starts and name in ends:
            found[name] = starts[name], ends[name]
        else:
            found[name] = "the partition's leader does not answer"
    return found


async def _plan_import(
    admin: GroupAdmin,
    group: str,
    offsets: Mapping[Partition, int],
    log_ends: _LogEnds,
    overwrite: bool,
) -> list[_Row]:
    problem = ""
    committed: Mapping[Partition, CommittedOffset] = {}
    try:
        info = await _described(admin, group)
        if info is not None and info.members:
            problem = f"the group is in use: stop its {counted(len(info.members), 'member')} first"
        committed = await admin.committed(group)
    except KafkaError as error:
        problem = str(error)
    rows = []
    for name, offset in sorted(offsets.items()):
        old = committed[name].offset if name in committed else None
        text = committed[name].metadata if name in committed else ""
        row = _Row(group, name[0], str(name[1]), old, offset, SKIPPED, metadata=text)
        log = log_ends[name]
        if isinstance(log, str):
            row = replace(row, reason=log)
        elif offset > log[1]:
            row = replace(row, reason=f"the log ends at {log[1]}: are the records here yet?")
        else:
            row = _compared(replace(row, new=max(offset, log[0])), overwrite)
            if row.status == PLANNED and problem:
                row = replace(row, status=SKIPPED, reason=problem)
        rows.append(row)
    return rows


def _compared(row: _Row, overwrite: bool) -> _Row:
    """The row with its status by what is there already."""
    assert row.new is not None
    if row.old == row.new:
        return replace(row, status=UNCHANGED)
    if row.old is not None and row.old > row.new and not overwrite:
        return replace(row, status=KEPT, reason="what is there is later; --overwrite replaces it")
    return replace(row, status=PLANNED)


async def _described(admin: GroupAdmin, group: str) -> GroupInfo | None:
    try:
        return await admin.describe_group(group)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


async def _commit(admin: GroupAdmin, group: str, rows: Sequence[_Row]) -> list[_Row]:
    planned = {(row.topic, int(row.partition)): row for row in rows if row.status == PLANNED}
    errors: Mapping[Partition, KafkaError]
    try:
        errors = await admin.commit(
            group,
            {
                name: OffsetAndMetadata(row.new, row.metadata)
                for name, row in planned.items()
                if row.new is not None
            },
            {name: -1 if row.old is None else row.old for name, row in planned.items()},
        )
    except KafkaError as error:  # other groups may have another coordinator, which answers
        errors = dict.fromkeys(planned, error)
    return [_settled(row, errors.get((row.topic, int(row.partition)))) for row in rows]


def _settled(row: _Row, error: KafkaError | str | None) -> _Row:
    """A row after the attempt to write what was planned."""
    if row.status != PLANNED:
        return row
    if error is None:
        return replace(row, status=DONE)
    return replace(row, status=SKIPPED, reason=str(error))


# -- export


@command.command(name="export")
@_zookeeper_options
@brokers_option
@timeout_option
@output_option
def export_offsets(
    hosts: str,
    groups: Sequence[str],
    topics: Sequence[str],
    overwrite: bool,
    dry_run: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Write committed offsets to ZooKeeper, for old consumers to go on from.

    \b
    kraftpy offsets export --zookeeper zk1:2181/kafka -g kitchen --dry-run

    Stop the new consumers first, or run it again when they have stopped; then start the old ones.
    """
    committed: dict[str, dict[Partition, int]] = {}
    in_use: dict[str, int] = {}

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            there = [group.id for group in await admin.list_groups()]
            for group in _chosen(there, groups, "the cluster"):
                info = await _described(admin, group)
                if info is not None and info.members:
                    in_use[group] = len(info.members)
                offsets = (await admin.committed(group)).items()
                committed[group] = {
                    name: each.offset for name, each in offsets if not topics or name[0] in topics
                }

    with _zookeeper(hosts, timeout_ms) as zookeeper:
        run_client(run())
        rows = _plan_export(zookeeper, committed, overwrite)
        if not dry_run:
            rows = _write(zookeeper, rows)
    for group, count in in_use.items():
        click.echo(
            f"kraftpy: group {group!r} is in use: run this again when its "
            f"{counted(count, 'member')} stopped",
            err=True,
        )
    _report([row for row, _ in rows], output)


_Versioned = tuple[_Row, int | None]
"""A row and the version of the node that it replaces."""


def _plan_export(
    zookeeper: ZooKeeper, committed: Mapping[str, Mapping[Partition, int]], overwrite: bool
) -> list[_Versioned]:
    from kraftpy.cli.zookeeper import name_problem, running_text

    problems = {group: problem for group in committed if (problem := name_problem(group))}
    names = [group for group in committed if group not in problems]
    problems |= {group: running_text(n) for group, n in zookeeper.consumers(names).items()}
    topics = {topic for offsets in committed.values() for topic, _ in offsets}
    stored = {each.place: each for each in zookeeper.offsets(names, topics.__contains__)}
    rows: list[_Versioned] = []
    for group, offsets in committed.items():
        for (topic, number), offset in offsets.items():
            row = _Row(group, topic, str(number), None, offset, SKIPPED)
            there = stored.get((group, topic, str(number)))
            if there is not None:
                _, old, reason = _parsed(str(number), there.value)
                row = replace(row, old=None if reason else old)
                if reason and not overwrite:
                    row = replace(row, reason=f"{reason}; --overwrite replaces it")
                    rows.append((row, None))
                    continue
            row = _compared(row, overwrite)
            if row.status == PLANNED and group in problems:
                row = replace(row, status=SKIPPED, reason=problems[group])
            rows.append((row, None if there is None else there.version))
    return rows


def _write(zookeeper: ZooKeeper, rows: Sequence[_Versioned]) -> list[_Versioned]:
    new: dict[tuple[str, str, str], bytes] = {}
    changed: dict[tuple[str, str, str], tuple[bytes, int]] = {}
    for row, version in rows:
        if row.status == PLANNED:
            place, value = (row.group, row.topic, row.partition), b"%d" % (row.new or 0)
            if version is None:
                new[place] = value
            else:
                changed[place] = value, version
    refused = zookeeper.create(new) | zookeeper.replace(changed)
    return [
        (_settled(row, refused.get((row.group, row.topic, row.partition))), version)
        for row, version in rows
    ]


# -- both


def _zookeeper(hosts: str, timeout_ms: int) -> ZooKeeper:
    from kraftpy.cli.zookeeper import ZooKeeper, hosts_problem

    if problem := hosts_problem(hosts):
        raise click.BadParameter(problem, param_hint="'--zookeeper'")
    return ZooKeeper(hosts, timeout_ms=timeout_ms)


def _chosen(there: Sequence[str], groups: Sequence[str], where: str) -> Sequence[str]:
    """The groups that were asked for, by default all; a `Failure` for one that there is not."""
    for group in groups:
        if group not in there:
            raise Failure(f"there is no group {group!r} in {where}", EXIT_BROKER_ERROR)
    return list(dict.fromkeys(groups)) or there


def _report(rows: Sequence[_Row], output: str) -> None:
    rows = sorted(rows, key=lambda row: (row.group, row.topic, _number(row.partition)))
    if output == "json":
        echo_json([_as_json(row) for row in rows])
    elif rows:
        echo_table(
            ("GROUP", "TOPIC", "PARTITION", "FROM", "TO", "STATUS", "REASON"),
            [
                (
                    row.group,
                    row.topic,
                    row.partition,
                    "-" if row.old is None else row.old,
                    "-" if row.new is None else row.new,
                    row.status,
                    row.reason,
                )
                for row in rows
            ],
        )
    counts = Counter(row.status for row in rows)
    if output == "table":
        said = [
            f"{counts[each]} {each}"
            for each in (DONE, PLANNED, UNCHANGED, KEPT, SKIPPED)
            if counts[each]
        ]
        click.echo(", ".join(said) or "there are no offsets", err=True)
    if counts[SKIPPED]:
        raise click.exceptions.Exit(EXIT_BROKER_ERROR)


def _number(partition: str) -> tuple[int, str]:
    return (int(partition), "") if _is_partition(partition) else (10**10, partition)


def _as_json(row: _Row) -> dict[str, Any]:
    partition = int(row.partition) if _is_partition(row.partition) else row.partition
    document = {
        "group": row.group,
        "topic": row.topic,
        "partition": partition,
        "from": row.old,
        "to": row.new,
        "status": row.status,
    }
    return document | ({"reason": row.reason} if row.reason else {})
