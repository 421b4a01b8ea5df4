"""Offsets between ZooKeeper and brokers: what becomes of each one, planned, written and shown.

`import`, `export` and `sync` have this in common. What is replaced is what was read, on either
side: who commits meanwhile is not set back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.common import EXIT_BROKER_ERROR, TEXT, Failure, echo_json, echo_table
from kraftpy.cli.offset_spec import known_offsets
from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.group_info import GroupInfo
from kraftpy.client.offsets import EARLIEST, LATEST, OffsetAndMetadata, Partition
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.cli.zookeeper import ZooKeeper

_F = TypeVar("_F", bound=Callable[..., Any])

DONE, PLANNED, UNCHANGED, KEPT, SKIPPED = "done", "planned", "unchanged", "kept", "skipped"


@dataclass(frozen=True, slots=True)
class Row:
    """What becomes of one offset: `old` is where it goes to, `new` where it comes from."""

    group: str
    topic: str
    partition: str
    old: int | None
    new: int | None
    status: str
    reason: str = ""
    where: str = ""
    """Which side it goes to, where both are written."""
    metadata: str = ""
    """The text that was committed beside `old`, which stays: ZooKeeper has none."""


# -- options


overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace later offsets by earlier ones."
)


def zookeeper_options(function: _F) -> _F:
    """--zookeeper, -g, -t and --dry-run."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Show what would be written."),
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


def connection(hosts: str, timeout_ms: int) -> ZooKeeper:
    """A session that `with` begins; a usage error for an address that is none."""
    from kraftpy.cli.zookeeper import ZooKeeper, hosts_problem

    if problem := hosts_problem(hosts):
        raise click.BadParameter(problem, param_hint="'--zookeeper'")
    return ZooKeeper(hosts, timeout_ms=timeout_ms)


def chosen(there: Sequence[str], groups: Sequence[str], where: str) -> Sequence[str]:
    """The groups that were asked for, by default all; a `Failure` for one that there is not."""
    for group in groups:
        if group not in there:
            raise Failure(f"there is no group {group!r} in {where}", EXIT_BROKER_ERROR)
    return list(dict.fromkeys(groups)) or there


# -- what is there


def parsed(node: str, value: bytes) -> tuple[int, int, str]:
    """(partition, offset, "") of a node, or why it has none."""
    if re.fullmatch("[0-9]+-[0-9]+", node):
        return 0, 0, "a partition of Kafka 0.7, whose offsets counted bytes of another log"
    if not is_partition(node):
        return 0, 0, f"{node!r} is no partition"
    text = value.decode(errors="backslashreplace").strip()
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) >= 2**63:
        return 0, 0, f"{text!r} is no offset"
    return int(node), int(text), ""


def is_partition(node: str) -> bool:
    """Whether a node has the name of a partition."""
    return re.fullmatch("0|[1-9][0-9]{0,9}", node) is not None


LogEnds = dict[Partition, tuple[int, int] | str]


async def logs_of(cluster: Cluster, partitions: Iterable[Partition]) -> LogEnds:
    """Start and end of the log of each partition, or why there are none."""
    names = sorted(partitions)
    await cluster.refresh(sorted({topic for topic, _ in names}))
    found: LogEnds = {}
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


# -- what becomes of it


def compared(row: Row, overwrite: bool) -> Row:
    """The row with its status by what is there already."""
    assert row.new is not None
    if row.old == row.new:
        return replace(row, status=UNCHANGED)
    if row.old is not None and row.old > row.new and not overwrite:
        return replace(row, status=KEPT, reason="what is there is later; --overwrite replaces it")
    return replace(row, status=PLANNED)


async def described(admin: GroupAdmin, group: str) -> GroupInfo | None:
    """The group, None if there is none."""
    try:
        return await admin.describe_group(group)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


async def commit(admin: GroupAdmin, group: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of a group after an attempt to commit what was planned."""
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
    return [settled(row, errors.get((row.topic, int(row.partition)))) for row in rows]


def settled(row: Row, error: KafkaError | str | None) -> Row:
    """A row after the attempt to write what was planned."""
    if row.status != PLANNED:
        return row
    if error is None:
        return replace(row, status=DONE)
    return replace(row, status=SKIPPED, reason=str(error))


Versioned = tuple[Row, int | None]
"""A row and the version of the node that it replaces."""


def write(zookeeper: ZooKeeper, rows: Sequence[Versioned]) -> list[Versioned]:
    """Rows after an attempt to write to ZooKeeper what was planned."""
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
        (settled(row, refused.get((row.group, row.topic, row.partition))), version)
        for row, version in rows
    ]


def report(rows: Sequence[Row], output: str) -> None:
    """Shows rows, sorted; ends the command with exit code 1 if some were skipped."""
    rows = sorted(rows, key=lambda row: (row.group, row.topic, _number(row.partition)))
    if output == "json":
        echo_json([as_json(row) for row in rows])
    elif rows:
        both = any(row.where for row in rows)
        echo_table(
            ("GROUP", "TOPIC", "PARTITION", *["WHERE"] * both, "FROM", "TO", "STATUS", "REASON"),
            [
                (
                    row.group,
                    row.topic,
                    row.partition,
                    *[row.where or "-"] * both,
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
    return (int(partition), "") if is_partition(partition) else (10**10, partition)


def as_json(row: Row) -> dict[str, Any]:
    """The row as programs get it."""
    partition = int(row.partition) if is_partition(row.partition) else row.partition
    document: dict[str, Any] = {
        "group": row.group,
        "topic": row.topic,
        "partition": partition,
        "from": row.old,
        "to": row.new,
        "status": row.status,
    }
    if row.where:
        document["where"] = row.where
    return document | ({"reason": row.reason} if row.reason else {})
