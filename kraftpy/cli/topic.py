"""`kraftpy topic`: create, list, describe, alter and delete topics.

A command that takes several names tries each one and says what became of it; it ends with the exit
code of the first that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    MAX_PARTITIONS,
    MAX_REPLICAS,
    TEXT,
    change_each,
    echo_json,
    echo_table,
    output_option,
    parse_key_values,
    run_client,
    timeout_option,
    topic_failure,
)
from kraftpy.cli.offset_spec import known_offsets
from kraftpy.client.admin import Admin, ConfigValue
from kraftpy.client.cluster import Cluster, TopicInfo
from kraftpy.client.offsets import EARLIEST, LATEST
from kraftpy.protocol.errors import ErrorCode, KafkaError


@click.group()
def command() -> None:
    """Create, list, describe, alter and delete topics."""


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
@click.option("-i", "--internal", is_flag=True, help="Also the cluster's own topics.")
@brokers_option
@timeout_option
@output_option
def list_topics(internal: bool, brokers: Brokers, timeout_ms: int, output: str) -> None:
    """List topics."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            topics = await Admin(cluster, timeout_ms=timeout_ms).describe_topics()
        shown = [topic for topic in topics if internal or not topic.internal]
        if output == "json":
            echo_json(
                [
                    {
                        "topic": topic.name,
                        "partitions": len(topic.partitions),
                        "replicas": _replicas(topic),
                        "internal": topic.internal,
                    }
                    for topic in shown
                ]
            )
        elif shown:
            rows = [(topic.name, len(topic.partitions), _replicas(topic)) for topic in shown]
            echo_table(("TOPIC", "PARTITIONS", "REPLICAS"), rows)
        else:
            click.echo("no topics yet: `kraftpy topic create NAME` makes one", err=True)

    run_client(run())


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
    count = len(topic.partitions)
    click.echo(
        f"{topic.name}: {count} partition{'' if count == 1 else 's'}, "
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
