"""`kraftpy cluster`: who belongs to a cluster, whether it is healthy, who leads.

Every command asks any broker and works from any machine. What moves replicas is in `reassign`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_UNHEALTHY,
    TEXT,
    Failure,
    echo_json,
    echo_table,
    output_option,
    run_client,
    timeout_option,
    topic_failure,
)
from kraftpy.cli.reassign import decommission, reassign
from kraftpy.client.cluster_admin import (
    PREFERRED_ELECTION,
    UNCLEAN_ELECTION,
    ClusterAdmin,
    ClusterInfo,
    MetadataLevel,
    PartitionName,
    QuorumInfo,
    QuorumReplica,
    Reassignment,
    ReplicatedPartition,
    sizes_by_broker,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted, size_text

# A voter that the leader has not heard of for so long is reported; it answers every 0.1 s or so.
VOTER_SILENT_MS = 5_000


@click.group()
def command() -> None:
    """Show a cluster, check its health, move replicas and leaderships."""


command.add_command(reassign)
command.add_command(decommission)


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
        rows: list[dict[str, Any]] = [
            {
                "broker": broker.id,
                "address": f"{broker.host}:{broker.port}",
                "rack": broker.rack,
                "state": "fenced" if broker.fenced else "up",
                "leads": sum(each.leader == broker.id for each in partitions),
                "replicas": sum(broker.id in each.replicas for each in partitions),
                "bytes": sum(sizes[broker.id].values()) if broker.id in sizes else None,
            }
            for broker in known.brokers.values()
        ]
        if output == "json":
            echo_json(rows)
            return
        echo_table(
            ("BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "SIZE"),
            [
                (
                    row["broker"],
                    row["address"],
                    row["rack"] or "-",
                    row["state"],
                    row["leads"],
                    row["replicas"],
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
        rows = [_quorum_row(described, each) for each in described.voters]
        rows += [_quorum_row(described, each) for each in described.observers]
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


def _quorum_row(described: QuorumInfo, replica: QuorumReplica) -> dict[str, Any]:
    leader = next((each for each in described.voters if each.id == described.leader_id), replica)
    role = "observer"
    if replica in described.voters:
        role = "leader" if replica.id == described.leader_id else "voter"
    known = replica.log_end_offset >= 0
    return {
        "node": replica.id,
        "role": role,
        "log_end_offset": replica.log_end_offset if known else None,
        "lag": max(0, leader.log_end_offset - replica.log_end_offset) if known else None,
        "last_seen_ms_ago": _ms_before(leader.last_fetch_ms, replica.last_fetch_ms),
        "caught_up_ms_ago": _ms_before(leader.last_fetch_ms, replica.last_caught_up_ms),
        "address": described.addresses.get(replica.id) if role != "observer" else None,
    }


def _ms_before(now_ms: int, then_ms: int) -> int | None:
    """By the leader's clock, whose `now_ms` is when it last heard of itself; None for never."""
    return None if then_ms < 0 else max(0, now_ms - then_ms)


def _ago(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "never"
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds // 1000} s"


# -- health


@dataclass(frozen=True, slots=True)
class _Health:
    """What was found wrong; everything is empty in a healthy cluster."""

    quorum: list[str]
    fenced: list[int]
    offline: list[ReplicatedPartition]
    under_min_isr: list[ReplicatedPartition]
    under_replicated: list[ReplicatedPartition]

    @property
    def healthy(self) -> bool:
        return not (
            self.quorum
            or self.fenced
            or self.offline
            or self.under_min_isr
            or self.under_replicated
        )


@command.command()
@brokers_option
@timeout_option
@output_option
def health(brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Check that everything is up and in sync; ends with exit code 5 if something is not.

    Looks for a quorum without a leader or with a silent voter, brokers that are down, and
    partitions without a leader, with fewer replicas in sync than min.insync.replicas asks for
    (acks=all fails), or with any replica out of sync. A partition is listed once.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            known = await admin.describe_cluster()
            partitions = await admin.describe_partitions()
            moving = await admin.list_reassignments()
            minimums = await admin.topic_configs(
                sorted({name.topic for name in partitions}), ["min.insync.replicas"]
            )
            described: QuorumInfo | KafkaError
            try:
                described = await admin.describe_quorum()
            except KafkaError as error:
                described = error
        found = _judge(known, described, partitions, moving, minimums)
        if output == "json":
            echo_json(_health_as_json(found, known, len(partitions), len(moving)))
        else:
            _echo_health(found, known, len(partitions), len(moving))
        if not found.healthy:
            raise click.exceptions.Exit(EXIT_UNHEALTHY)

    run_client(run())


def _judge(
    known: ClusterInfo,
    quorum: QuorumInfo | KafkaError,
    partitions: Mapping[PartitionName, ReplicatedPartition],
    moving: Mapping[PartitionName, Reassignment],
    configs: Mapping[str, Mapping[str, str]],
) -> _Health:
    fenced = [broker.id for broker in known.brokers.values() if broker.fenced]
    found = _Health(_quorum_problems(quorum), fenced, [], [], [])
    for name, partition in partitions.items():
        adding = moving[name].adding if name in moving else ()
        replicas = [each for each in partition.replicas if each not in adding]
        minimum = int(configs.get(name.topic, {}).get("min.insync.replicas", 1))
        if partition.leader < 0:
            found.offline.append(partition)
        elif len(partition.isr) < min(minimum, len(partition.replicas)):
            found.under_min_isr.append(partition)
        elif not set(replicas) <= set(partition.isr):
            found.under_replicated.append(partition)
    return found


def _quorum_problems(quorum: QuorumInfo | KafkaError) -> list[str]:
    if isinstance(quorum, KafkaError):
        return [f"no controller answers, so nothing can be changed: {quorum.message}"]
    problems = []
    for voter in quorum.voters:
        ago = _quorum_row(quorum, voter)["last_seen_ms_ago"]
        if ago is None:
            problems.append(
                f"voter {voter.id} has not been heard of since {quorum.leader_id} leads"
            )
        elif ago > VOTER_SILENT_MS:
            problems.append(f"voter {voter.id} has not been heard of for {ago // 1000} s")
    return problems


def _health_as_json(
    found: _Health, known: ClusterInfo, partitions: int, moving: int
) -> dict[str, Any]:
    def listed(some: Iterable[ReplicatedPartition]) -> list[dict[str, Any]]:
        return [
            {
                "topic": each.topic,
                "partition": each.index,
                "leader": each.leader,
                "replicas": each.replicas,
                "isr": each.isr,
                "elr": each.elr,
            }
            for each in some
        ]

    return {
        "healthy": found.healthy,
        "quorum": found.quorum,
        "brokers": list(known.brokers),
        "fenced": found.fenced,
        "partitions": partitions,
        "offline": listed(found.offline),
        "under_min_isr": listed(found.under_min_isr),
        "under_replicated": listed(found.under_replicated),
        "reassigning": moving,
    }


def _echo_health(found: _Health, known: ClusterInfo, partitions: int, moving: int) -> None:
    what = f"{counted(len(known.brokers), 'broker')}, {counted(partitions, 'partition')}"
    if moving:
        what += f", {moving} of them being moved"
    click.echo(f"{'healthy' if found.healthy else 'not healthy'}: {what}")
    for problem in found.quorum:
        click.echo(f"  quorum: {problem}")
    for broker_id in found.fenced:
        click.echo(f"  broker {broker_id} is down, or has yet to catch up")
    rows = [
        (
            problem,
            each.topic,
            each.index,
            each.leader if each.leader >= 0 else "none",
            _ids(each.replicas),
            _ids(each.isr) or "-",
            _ids(each.elr) or "-",
        )
        for problem, some in (
            ("offline", found.offline),
            ("under min ISR", found.under_min_isr),
            ("under-replicated", found.under_replicated),
        )
        for each in some
    ]
    if rows:
        echo_table(("PROBLEM", "TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "ELR"), rows)


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
        raise Failure(f"{failed} of {len(rows)} elections failed", EXIT_BROKER_ERROR)


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))
