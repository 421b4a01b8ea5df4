"""`kraftpy topic`: create, list, describe, alter, trim and delete topics.

A command that takes several names tries each one and says what became of it; it ends with the exit
code of the first that failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    MAX_PARTITIONS,
    MAX_REPLICAS,
    TEXT,
    Failure,
    Scope,
    change_each,
    echo_json,
    echo_table,
    output_option,
    parse_key_values,
    run_client,
    timeout_option,
    topic_failure,
)
from kraftpy.cli.group_offsets import partitions_in
from kraftpy.cli.offset_spec import OffsetSpec, Position, known_offsets, resolve
from kraftpy.client.admin import Admin, ConfigValue
from kraftpy.client.cluster import Cluster, TopicInfo
from kraftpy.client.cluster_admin import ClusterAdmin, PartitionName, sizes_by_broker
from kraftpy.client.offsets import EARLIEST, LATEST, Partition, list_offsets
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted, size_text

_BEYOND_SHOWN = 4


@click.group()
def command() -> None:
    """Create, list, describe, alter, trim and delete topics."""


@command.command()
@click.argument("names", type=TEXT, nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1, MAX_PARTITIONS),
    help="Number of partitions.  [default: the broker's num.partitions]",
)
@click.option(
    "-r",
    "--replicas",
    type=click.IntRange(1, MAX_REPLICAS),
    help="Copies of each partition.  [default: the broker's default.replication.factor]",
)
@click.option(
    "-c",
    "--config",
    "configs",
    type=TEXT,
    multiple=True,
    metavar="KEY=VALUE",
    help="A topic setting. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Accept a topic that is there already.")
@brokers_option
@timeout_option
@output_option
def create(
    names: Sequence[str],
    partitions: int | None,
    replicas: int | None,
    configs: Sequence[str],
    if_not_exists: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Create topics.

    \b
    kraftpy topic create orders -p 6 -c retention.ms=86400000
    """
    values = dict(parse_key_values(configs, "'-c' / '--config'"))

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = Admin(cluster, timeout_ms=timeout_ms)

            async def create_one(name: str) -> str:
                try:
                    await admin.create_topic(
                        name,
                        partitions=partitions or -1,
                        replication_factor=replicas or -1,
                        configs=values,
                    )
                except KafkaError as error:
                    if if_not_exists and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                        return "kept"
                    raise
                return "created"

            await change_each("topic", names, create_one, topic_failure, output)

    run_client(run())


@command.command(name="list")
@click.argument("patterns", type=TEXT, nargs=-1, metavar="[PATTERN]...")
@click.option("-i", "--internal", is_flag=True, help="Also the cluster's own topics.")
@click.option("-s", "--size", is_flag=True, help="Also how large they are on disk.")
@click.option("--unhealthy", is_flag=True, help="Only those with something wrong.")
@brokers_option
@timeout_option
@output_option
def list_topics(
    patterns: Sequence[str],
    internal: bool,
    size: bool,
    unhealthy: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """List topics, all or those whose names match a pattern as a shell's.

    HEALTH counts partitions that nobody leads ("offline") and those that lack replicas in sync.
    SIZE is that of one copy, of the brokers that answer, TOTAL that of all copies there; - is
    what none of them has told.

    \b
    kraftpy topic list
    kraftpy topic list 'orders-*' --size
    kraftpy topic list --unhealthy -i
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            topics = await admin.describe_topics()
            found = [
                topic
                for topic in topics
                if (internal or not topic.internal)
                and (not patterns or any(fnmatchcase(topic.name, each) for each in patterns))
            ]
            shown = [topic for topic in found if not unhealthy or any(_wrong(topic))]
            sizes: dict[int, dict[PartitionName, int]] = {}
            if size and shown:
                sizes = await sizes_by_broker(admin, sorted(cluster.brokers))
        if output == "json":
            echo_json([_listed_as_json(topic, sizes if size else None) for topic in shown])
        elif shown:
            header = ["TOPIC", "PARTITIONS", "REPLICAS", "HEALTH"]
            echo_table(
                [*header, "SIZE", "TOTAL"] if size else header,
                [_listed_row(topic, sizes if size else None) for topic in shown],
            )
        elif found:
            what = "every topic that matches" if patterns else "every topic"
            click.echo(f"{what} is healthy", err=True)
        elif patterns:
            click.echo("no such topic", err=True)
        else:
            click.echo(
                "no topics yet, or none that you may see: `kraftpy topic create NAME` makes one",
                err=True,
            )

    run_client(run())


def _wrong(topic: TopicInfo) -> tuple[int, int]:
    """How many partitions have no leader, and how many of the others lack a replica in sync."""
    partitions = topic.partitions.values()
    offline = sum(each.leader < 0 for each in partitions)
    lacking = sum(each.leader >= 0 and not {*each.replicas} <= {*each.isr} for each in partitions)
    return offline, lacking


def _sizes(
    topic: TopicInfo, sizes: Mapping[int, Mapping[PartitionName, int]]
) -> tuple[int | None, int | None]:
    """Bytes of the leaders' copies, and of all of them.

    None for what nobody has told: of one copy where a partition has none at brokers that answer.
    """
    one: list[int | None] = []
    total: list[int] = []
    for each in topic.partitions.values():
        name = PartitionName(topic.name, each.id)
        copies = {broker: there[name] for broker, there in sizes.items() if name in there}
        one.append(copies.get(each.leader, max(copies.values(), default=None)))
        total += copies.values()
    known = [size for size in one if size is not None]
    return sum(known) if len(known) == len(one) else None, sum(total) if total else None


def _listed_row(
    topic: TopicInfo, sizes: Mapping[int, Mapping[PartitionName, int]] | None
) -> Sequence[object]:
    wrong = zip(_wrong(topic), ("offline", "under-replicated"), strict=True)
    health = ", ".join(f"{count} {what}" for count, what in wrong if count) or "ok"
    row = (topic.name, len(topic.partitions), _replicas(topic), health)
    if sizes is None:
        return row
    return *row, *("-" if size is None else size_text(size) for size in _sizes(topic, sizes))


def _listed_as_json(
    topic: TopicInfo, sizes: Mapping[int, Mapping[PartitionName, int]] | None
) -> dict[str, Any]:
    offline, lacking = _wrong(topic)
    row: dict[str, Any] = {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replicas": _replicas(topic),
        "internal": topic.internal,
        "offline": offline,
        "under_replicated": lacking,
    }
    if sizes is not None:
        row["bytes"], row["bytes_total"] = _sizes(topic, sizes)
    return row


def _replicas(topic: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


@command.command()
@click.argument("names", type=TEXT, nargs=-1, required=True, metavar="TOPIC...")
@brokers_option
@timeout_option
@output_option
def describe(names: Sequence[str], brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Show a topic's partitions, offsets and configuration.

    START is the offset of the oldest record, END the one that the next record gets (the high
    watermark). The table lists the configuration that differs from the defaults, JSON all of it.
    """

    async def run() -> None:
        described = []
        async with brokers.connect(timeout_ms) as cluster:
            admin = Admin(cluster, timeout_ms=timeout_ms)
            for name in names:
                try:
                    described.append(await _describe(cluster, admin, name))
                except KafkaError as error:
                    raise topic_failure(name, error) from None
        if output == "json":
            echo_json([_as_json(*topic) for topic in described])
            return
        for index, topic in enumerate(described):
            if index:
                click.echo()
            _echo_topic(*topic)

    run_client(run())


_Offsets = dict[int, tuple[int | None, int | None]]


async def _describe(
    cluster: Cluster, admin: Admin, name: str
) -> tuple[TopicInfo, _Offsets, list[ConfigValue]]:
    (topic,) = await admin.describe_topics([name])
    with_leader = [(name, p.id) for p in topic.partitions.values() if p.leader >= 0]
    starts = await known_offsets(cluster, with_leader, EARLIEST)
    ends = await known_offsets(cluster, with_leader, LATEST)
    offsets = {p: (starts.get((name, p)), ends.get((name, p))) for p in topic.partitions}
    return topic, offsets, await admin.describe_configs(name)


def _as_json(topic: TopicInfo, offsets: _Offsets, configs: list[ConfigValue]) -> dict[str, Any]:
    import uuid

    return {
        "topic": topic.name,
        "id": str(uuid.UUID(bytes=topic.id)),
        "internal": topic.internal,
        "partitions": [
            {
                "partition": p.id,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": p.replicas,
                "isr": p.isr,
                "start_offset": offsets[p.id][0],
                "end_offset": offsets[p.id][1],
            }
            for p in topic.partitions.values()
        ],
        "configs": {c.name: {"value": c.value, "source": c.source} for c in configs},
    }


def _echo_topic(topic: TopicInfo, offsets: _Offsets, configs: list[ConfigValue]) -> None:
    click.echo(
        f"{topic.name}: {counted(len(topic.partitions), 'partition')}, "
        f"replication factor {_replicas(topic)}" + (", internal" if topic.internal else "")
    )
    for config in configs:
        if config.source != "default":
            click.echo(f"  {config.name}={config.value}  ({config.source})")

    def shown(offset: int | None) -> object:
        return "-" if offset is None else offset

    rows = [
        (
            p.id,
            p.leader if p.leader >= 0 else "none",
            p.leader_epoch,
            ",".join(map(str, p.replicas)),
            ",".join(map(str, p.isr)),
            shown(offsets[p.id][0]),
            shown(offsets[p.id][1]),
        )
        for p in topic.partitions.values()
    ]
    echo_table(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"), rows)


@command.command()
@click.argument("name", type=TEXT, metavar="TOPIC")
@click.option(
    "-p", "--partitions", type=click.IntRange(1, MAX_PARTITIONS), help="Raise their number to this."
)
@click.option(
    "-c",
    "--config",
    "configs",
    type=TEXT,
    multiple=True,
    metavar="KEY=VALUE",
    help="A topic setting. Repeatable.",
)
@click.option(
    "-d",
    "--delete-config",
    "deleted",
    type=TEXT,
    multiple=True,
    metavar="KEY",
    help="Return to the default. Repeatable.",
)
@brokers_option
@timeout_option
@output_option
def alter(
    name: str,
    partitions: int | None,
    configs: Sequence[str],
    deleted: Sequence[str],
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Change a topic's configuration, or add partitions.

    Keys of existing records stay in the partitions they are in; with more partitions new records of
    the same key may go elsewhere.
    """
    values = dict(parse_key_values(configs, "'-c' / '--config'"))
    if not (values or deleted or partitions):
        raise click.UsageError("nothing to change: give -c KEY=VALUE, -d KEY or -p PARTITIONS")

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = Admin(cluster, timeout_ms=timeout_ms)

            async def alter_one(name: str) -> str:
                if values or deleted:
                    await admin.alter_configs(name, values=values, delete=deleted)
                if partitions:
                    await admin.create_partitions(name, partitions)
                return "altered"

            await change_each("topic", [name], alter_one, topic_failure, output)

    run_client(run())


_TRIM_HELP = """\b
Where to (--to), for each partition:
  end           all that is there is deleted
  -10           all but the last 10
  42            what is below offset 42
  @1700000000000, @2023-11-14T22:13:20Z
                what is older than that: milliseconds since 1970, or ISO 8601
                (local time unless it names a zone)
"""


@command.command(epilog=_TRIM_HELP)
@click.argument("name", type=TEXT, metavar="TOPIC")
@click.option(
    "--to", "position", type=Position(), required=True, metavar="OFFSET", help="See below."
)
@click.option(
    "-p",
    "--partition",
    "numbers",
    type=click.IntRange(0, MAX_PARTITIONS),
    multiple=True,
    metavar="N",
    help="Only this partition. Repeatable.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@brokers_option
@timeout_option
@output_option
def trim(
    name: str,
    position: OffsetSpec,
    numbers: Sequence[int],
    dry_run: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Delete the oldest records of a topic, without asking.

    \b
    kraftpy topic trim orders --to @2026-01-31T12:00:00Z --dry-run
    kraftpy topic trim orders --to -1000 -p 3
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            try:
                names = await partitions_in(cluster, [Scope(name, tuple(numbers))])
                starts = await list_offsets(cluster, dict.fromkeys(names, EARLIEST))
                ends = await list_offsets(cluster, dict.fromkeys(names, LATEST))
                if position.kind == "exact":
                    _check_not_beyond(names, position.value, starts, ends)
                wanted, _ = await resolve(cluster, names, position)
                plan = {each: min(max(wanted[each], starts[each]), ends[each]) for each in names}
                if not dry_run:
                    admin = Admin(cluster, timeout_ms=timeout_ms)
                    change = {n: to for n, to in plan.items() if to > starts[n]}
                    plan |= await admin.delete_records(change)
            except KafkaError as error:
                raise topic_failure(name, error) from None
        rows = [
            {
                "topic": name,
                "partition": each[1],
                "from": starts[each],
                "to": to,
                "offsets": to - starts[each],
            }
            for each, to in plan.items()
        ]
        if output == "json":
            echo_json(rows)
            return
        echo_table(("TOPIC", "PARTITION", "FROM", "TO", "OFFSETS"), [[*r.values()] for r in rows])
        if dry_run:
            click.echo("nothing was deleted: run it without --dry-run to trim", err=True)

    run_client(run())


def _check_not_beyond(
    names: Sequence[Partition],
    offset: int,
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> None:
    """Refuses what would delete all of a partition without being called so, as brokers do."""
    beyond = [each for each in names if offset > ends[each]]
    if beyond:
        shown = [f"{t}-{p} ({starts[t, p]} to {ends[t, p]})" for t, p in beyond[:_BEYOND_SHOWN]]
        if len(beyond) > _BEYOND_SHOWN:
            shown.append(f"{len(beyond) - _BEYOND_SHOWN} more")
        raise Failure(
            f"{ErrorCode.OFFSET_OUT_OF_RANGE.name}: {offset} is behind the end of "
            f"{', '.join(shown)}; nothing was deleted. -p takes one partition, `--to end` all that "
            "is there",
            EXIT_BROKER_ERROR,
        )


@command.command()
@click.argument("names", type=TEXT, nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--force-internal",
    is_flag=True,
    help="Also topics of the cluster's own: all that groups have committed goes with "
    "__consumer_offsets.",
)
@brokers_option
@timeout_option
@output_option
def delete(
    names: Sequence[str], force_internal: bool, brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Delete topics and all their records, without asking."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = Admin(cluster, timeout_ms=timeout_ms)

            async def delete_one(name: str) -> str:
                await admin.delete_topic(name, force_internal=force_internal)
                return "deleted"

            await change_each("topic", names, delete_one, topic_failure, output)

    run_client(run())
