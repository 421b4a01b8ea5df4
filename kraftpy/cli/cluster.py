"""`kraftpy cluster`: who belongs to a cluster, whether it is healthy, who leads.

Every command asks any broker and works from any machine. What moves replicas is in `reassign`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
    topic_failure,
)
from kraftpy.cli.health import health, quorum_row
from kraftpy.cli.reassign import decommission, reassign
from kraftpy.client.cluster_admin import (
    PREFERRED_ELECTION,
    UNCLEAN_ELECTION,
    ClusterAdmin,
    MetadataLevel,
    PartitionName,
    sizes_by_broker,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted, size_text, time_text


@click.group()
def command() -> None:
    """Show a cluster, check its health, move replicas and leaderships."""


command.add_command(reassign)
command.add_command(decommission)
command.add_command(health)


@command.command()
@brokers_option
@timeout_option
@output_option
def info(brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Say which cluster this is and how large it is."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            known = await admin.describe_cluster()
            quorum = await admin.describe_quorum()
            partitions = await admin.describe_partitions()
        topics = len({name.topic for name in partitions})
        up = [broker.id for broker in known.brokers.values() if not broker.fenced]
        voters = [voter.id for voter in quorum.voters]
        if output == "json":
            echo_json(
                {
                    "cluster": known.id,
                    "controller": quorum.leader_id,
                    "controller_epoch": quorum.leader_epoch,
                    "voters": voters,
                    "brokers": list(known.brokers),
                    "brokers_up": up,
                    "topics": topics,
                    "partitions": len(partitions),
                }
            )
            return
        click.echo(f"cluster     {known.id}")
        click.echo(f"controller  {quorum.leader_id} (epoch {quorum.leader_epoch})")
        click.echo(f"voters      {_ids(voters)}")
        click.echo(f"brokers     {_ids(known.brokers)} ({len(up)} of {len(known.brokers)} up)")
        click.echo(f"topics      {topics} with {counted(len(partitions), 'partition')}")

    run_client(run())


@command.command()
@brokers_option
@timeout_option
@output_option
def brokers(brokers: Brokers, timeout_ms: int, output: str) -> None:
    """List the brokers, also those that are down, with what they lead and store."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            known = await admin.describe_cluster()
            partitions = (await admin.describe_partitions()).values()
            up = [broker.id for broker in known.brokers.values() if not broker.fenced]
            sizes = await sizes_by_broker(admin, up)
        # Who may see no topic gets an empty answer, as where there is none.
        seen = bool(partitions or sizes)
        rows: list[dict[str, Any]] = [
            {
                "broker": broker.id,
                "address": f"{broker.host}:{broker.port}",
                "rack": broker.rack,
                "registered_ms": broker.registered_ms,
                "metrics": broker.metrics,
                "state": "fenced" if broker.fenced else "up",
                "leads": sum(p.leader == broker.id for p in partitions) if seen else None,
                "replicas": sum(broker.id in p.replicas for p in partitions) if seen else None,
                "bytes": sum(sizes[broker.id].values()) if broker.id in sizes else None,
            }
            for broker in known.brokers.values()
        ]
        if output == "json":
            echo_json(rows)
            return
        echo_table(
            (
                *("BROKER", "ADDRESS", "METRICS", "RACK", "REGISTERED", "STATE"),
                *("LEADS", "REPLICAS", "SIZE"),
            ),
            [
                (
                    row["broker"],
                    row["address"],
                    row["metrics"] or "-",
                    row["rack"] or "-",
                    "-" if row["registered_ms"] is None else time_text(row["registered_ms"]),
                    row["state"],
                    "-" if row["leads"] is None else row["leads"],
                    "-" if row["replicas"] is None else row["replicas"],
                    "-" if row["bytes"] is None else size_text(row["bytes"]),
                )
                for row in rows
            ],
        )

    run_client(run())


@command.command()
@click.option(
    "--transfer",
    "voter_id",
    type=click.IntRange(0, 2**31 - 1),
    metavar="VOTER",
    help="First have this voter lead.",
)
@brokers_option
@timeout_option
@output_option
def quorum(voter_id: int | None, brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Show the metadata quorum: who leads, who votes, who follows, and how far each of them is.

    LAG counts log entries, SEEN and CAUGHT UP say how long ago the leader heard of a node and how
    long ago that node had all of the leader's log.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            if voter_id is not None:
                await admin.transfer_quorum(voter_id)
            described = await admin.describe_quorum()
            level = await admin.metadata_level()
            next_level = None if level is None else await _next_level(admin, level)
        rows = [quorum_row(described, each) for each in described.voters]
        rows += [quorum_row(described, each) for each in described.observers]
        if output == "json":
            echo_json(
                {
                    "leader": described.leader_id,
                    "epoch": described.leader_epoch,
                    "high_watermark": described.high_watermark,
                    "metadata_level": None if level is None else level.current,
                    "next_metadata_level": next_level,
                    "nodes": rows,
                }
            )
            return
        echo_table(
            ("NODE", "ROLE", "LOG END", "LAG", "SEEN", "CAUGHT UP", "ADDRESS"),
            [
                (
                    row["node"],
                    row["role"],
                    "-" if row["lag"] is None else row["log_end_offset"],
                    "-" if row["lag"] is None else row["lag"],
                    _ago(row["last_seen_ms_ago"]),
                    _ago(row["caught_up_ms_ago"]),
                    row["address"] or "-",
                )
                for row in rows
            ],
        )
        if level is not None:
            line = f"metadata level {level.current}"
            if next_level is not None:
                line += f"; all nodes know {next_level}: kraftpy cluster raise-level"
            click.echo(line)

    run_client(run())


async def _next_level(admin: ClusterAdmin, level: MetadataLevel) -> int | None:
    """The level that could be reached now, if there is one above that in use."""
    if level.current == level.newest:
        return None
    try:
        await admin.raise_metadata_level(level.newest, validate_only=True)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        return None
    return level.newest


@command.command()
@brokers_option
@timeout_option
@output_option
def raise_level(brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Let everything into the metadata that this release knows, once all nodes run it.

    There is no way back: nodes of the release before stop with a sentence from then on. It is
    refused while a voter or a registered broker is down or runs a release without it.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            level = await admin.metadata_level()
            if level is None:
                raise Failure("this cluster has no metadata level", EXIT_BROKER_ERROR)
            await admin.raise_metadata_level(level.newest)
        if output == "json":
            echo_json({"metadata_level": level.newest, "raised_from": level.current})
        elif level.current == level.newest:
            click.echo(f"the metadata level is {level.newest} already")
        else:
            click.echo(f"the metadata level is {level.newest} now, it was {level.current}")

    run_client(run())


def _ago(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "never"
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds // 1000} s"


# -- elections


@command.command()
@click.option(
    "-t",
    "--topic",
    "topics",
    type=TEXT,
    multiple=True,
    metavar="TOPIC",
    help="Only for this topic. Repeatable.  [default: all]",
)
@click.option(
    "-p",
    "--partition",
    "indexes",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Only for this partition of the one topic given. Repeatable.",
)
@click.option(
    "--unclean",
    is_flag=True,
    help="Where nobody leads, let any replica: records that it lacks are lost.",
)
@brokers_option
@timeout_option
@output_option
def elect(
    topics: Sequence[str],
    indexes: Sequence[int],
    unclean: bool,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Give partitions their preferred leader: the first of their replicas.

    \b
    kraftpy cluster elect
    kraftpy cluster elect -t orders -p 3 --unclean
    """
    if indexes and len(topics) != 1:
        raise click.UsageError("-p goes with exactly one -t")
    if unclean and not topics:
        raise click.UsageError("--unclean loses records: name the topics with -t")

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            names: list[PartitionName] | None = None
            if topics:
                names = [PartitionName(topics[0], index) for index in indexes]
                names = names or await _partitions_of(admin, topics)
            election_type = UNCLEAN_ELECTION if unclean else PREFERRED_ELECTION
            _report_elections(await admin.elect_leaders(election_type, names), output)

    run_client(run())


async def _partitions_of(admin: ClusterAdmin, topics: Sequence[str]) -> list[PartitionName]:
    names: list[PartitionName] = []
    for topic in dict.fromkeys(topics):
        try:
            names += await admin.describe_partitions([topic])
        except KafkaError as error:
            raise topic_failure(topic, error) from None
    return names


def _report_elections(results: Mapping[PartitionName, KafkaError | None], output: str) -> None:
    rows: list[dict[str, Any]] = []
    failed = 0
    for name, error in sorted(results.items()):
        row: dict[str, Any] = {"topic": name.topic, "partition": name.partition}
        if error is None:
            row["status"] = "elected"
        elif error.code is ErrorCode.ELECTION_NOT_NEEDED:
            row["status"] = "not needed"
        else:
            row |= {"error": error.code.name, "message": error.message}
            failed += 1
        rows.append(row)
    if output == "json":
        echo_json(rows)
    elif rows:
        echo_table(
            ("TOPIC", "PARTITION", "ELECTION"),
            [
                (row["topic"], row["partition"], row.get("status") or f"failed: {row['message']}")
                for row in rows
            ],
        )
    else:
        click.echo("every partition has its preferred leader", err=True)
    if failed:
        raise Failure(f"{failed} of {counted(len(rows), 'election')} failed", EXIT_BROKER_ERROR)


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))
