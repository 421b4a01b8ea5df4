"""`kraftpy offsets`: offsets of groups, brought from ZooKeeper and back (seed 002).

Rules, the same in both directions, so that a command can be run again and again:

* What is there already is left as it is; a later offset is kept unless --overwrite says otherwise.
* What is replaced is what was read: a group that commits meanwhile is not set back.
* Groups that are in use where the offsets are to go are skipped, as are offsets that make no sense
  there. Each one is reported with its reason, and the command ends with exit code 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import output_option, run_client, timeout_option
from kraftpy.cli.offset_rows import (
    PLANNED,
    SKIPPED,
    LogEnds,
    Row,
    Versioned,
    chosen,
    commit,
    compared,
    connection,
    described,
    logs_of,
    overwrite_option,
    parsed,
    report,
    write,
    zookeeper_options,
)
from kraftpy.cli.offsets_sync import sync
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.offsets import Partition
from kraftpy.protocol.errors import KafkaError
from kraftpy.wording import counted

if TYPE_CHECKING:
    from kraftpy.cli.zookeeper import ZooKeeper


@click.group()
def command() -> None:
    """Bring committed offsets from ZooKeeper, where Kafka's first consumers kept them, and back."""


@command.command(name="import")
@zookeeper_options
@overwrite_option
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
    with connection(hosts, timeout_ms) as zookeeper:
        names = chosen(zookeeper.groups(), groups, "ZooKeeper")
        stored = list(zookeeper.offsets(names, lambda topic: not topics or topic in topics))
        running = zookeeper.consumers(names)
    rows: list[Row] = []
    good: dict[str, dict[Partition, int]] = {}
    for (group, topic, node), value, _ in stored:
        partition, offset, reason = parsed(node, value)
        if reason:
            rows.append(Row(group, topic, node, None, None, SKIPPED, reason))
        else:
            good.setdefault(group, {})[topic, partition] = offset

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            log_ends = await logs_of(cluster, {name for each in good.values() for name in each})
            for group, offsets in good.items():
                planned = await _plan_import(admin, group, offsets, log_ends, overwrite)
                rows.extend(planned if dry_run else await commit(admin, group, planned))

    run_client(run())
    for group, count in running.items():
        click.echo(
            f"kraftpy: {counted(count, 'consumer')} of group {group!r} still run on ZooKeeper: run "
            "this again when they have stopped",
            err=True,
        )
    report(rows, output)


async def _plan_import(
    admin: GroupAdmin,
    group: str,
    offsets: Mapping[Partition, int],
    log_ends: LogEnds,
    overwrite: bool,
) -> list[Row]:
    problem = ""
    committed: Mapping[Partition, CommittedOffset] = {}
    try:
        info = await described(admin, group)
        if info is not None and info.members:
            problem = f"the group is in use: stop its {counted(len(info.members), 'member')} first"
        committed = await admin.committed(group)
    except KafkaError as error:
        problem = str(error)
    rows = []
    for name, offset in sorted(offsets.items()):
        old = committed[name].offset if name in committed else None
        text = committed[name].metadata if name in committed else ""
        row = Row(group, name[0], str(name[1]), old, offset, SKIPPED, metadata=text)
        log = log_ends[name]
        if isinstance(log, str):
            row = replace(row, reason=log)
        elif offset > log[1]:
            row = replace(row, reason=f"the log ends at {log[1]}: are the records here yet?")
        else:
            row = compared(replace(row, new=max(offset, log[0])), overwrite)
            if row.status == PLANNED and problem:
                row = replace(row, status=SKIPPED, reason=problem)
        rows.append(row)
    return rows


# -- export


@command.command(name="export")
@zookeeper_options
@overwrite_option
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
            for group in chosen(there, groups, "the cluster"):
                info = await described(admin, group)
                if info is not None and info.members:
                    in_use[group] = len(info.members)
                offsets = (await admin.committed(group)).items()
                committed[group] = {
                    name: each.offset for name, each in offsets if not topics or name[0] in topics
                }

    with connection(hosts, timeout_ms) as zookeeper:
        run_client(run())
        rows = _plan_export(zookeeper, committed, overwrite)
        if not dry_run:
            rows = write(zookeeper, rows)
    for group, count in in_use.items():
        click.echo(
            f"kraftpy: group {group!r} is in use: run this again when its "
            f"{counted(count, 'member')} stopped",
            err=True,
        )
    report([row for row, _ in rows], output)


def _plan_export(
    zookeeper: ZooKeeper, committed: Mapping[str, Mapping[Partition, int]], overwrite: bool
) -> list[Versioned]:
    from kraftpy.cli.zookeeper import name_problem, running_text

    problems = {group: problem for group in committed if (problem := name_problem(group))}
    names = [group for group in committed if group not in problems]
    problems |= {group: running_text(n) for group, n in zookeeper.consumers(names).items()}
    topics = {topic for offsets in committed.values() for topic, _ in offsets}
    stored = {each.place: each for each in zookeeper.offsets(names, topics.__contains__)}
    rows: list[Versioned] = []
    for group, offsets in committed.items():
        for (topic, number), offset in offsets.items():
            row = Row(group, topic, str(number), None, offset, SKIPPED)
            there = stored.get((group, topic, str(number)))
            if there is not None:
                _, old, reason = parsed(str(number), there.value)
                row = replace(row, old=None if reason else old)
                if reason and not overwrite:
                    row = replace(row, reason=f"{reason}; --overwrite replaces it")
                    rows.append((row, None))
                    continue
            row = compared(row, overwrite)
            if row.status == PLANNED and group in problems:
                row = replace(row, status=SKIPPED, reason=problems[group])
            rows.append((row, None if there is None else there.version))
    return rows


command.add_command(sync)
