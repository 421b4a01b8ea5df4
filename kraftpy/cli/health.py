"""`kraftpy cluster health`: whether everything is up and in sync.

A broker that is down takes part in most partitions, so what is wrong is told by topic;
`--partitions` has each of them, and JSON always.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_UNHEALTHY,
    echo_json,
    echo_table,
    output_option,
    run_client,
    styled,
    timeout_option,
)
from kraftpy.client.cluster_admin import (
    ClusterAdmin,
    ClusterInfo,
    PartitionName,
    QuorumInfo,
    QuorumReplica,
    Reassignment,
    ReplicatedPartition,
)
from kraftpy.protocol.errors import KafkaError
from kraftpy.wording import counted

# A voter that the leader has not heard of for so long is reported; it answers every 0.1 s or so.
VOTER_SILENT_MS = 5_000
_RUNS_SHOWN = 6


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


@click.command()
@click.option("--partitions", "each_partition", is_flag=True, help="A row for each partition.")
@brokers_option
@timeout_option
@output_option
def health(each_partition: bool, brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Check that everything is up and in sync; ends with exit code 5 if something is not.

    Looks for a quorum without a leader or with a silent voter, brokers that are down, and
    partitions without a leader, with fewer replicas in sync than min.insync.replicas asks for
    (acks=all fails), or with any replica out of sync. A partition counts once, under
    the worst of that.
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
            _echo_health(found, known, len(partitions), len(moving), each_partition=each_partition)
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
        ago = quorum_row(quorum, voter)["last_seen_ms_ago"]
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


def _echo_health(
    found: _Health, known: ClusterInfo, partitions: int, moving: int, *, each_partition: bool
) -> None:
    what = f"{counted(len(known.brokers), 'broker')}, {counted(partitions, 'partition')}"
    if moving:
        what += f", {moving} of them being moved"
    verdict = styled("healthy", fg="green") if found.healthy else styled("not healthy", fg="red")
    click.echo(f"{verdict}: {what}")
    for problem in found.quorum:
        click.echo(f"  quorum: {problem}")
    for broker_id in found.fenced:
        click.echo(f"  broker {broker_id} is down, or has yet to catch up")
    problems = (
        ("offline", found.offline),
        ("under min ISR", found.under_min_isr),
        ("under-replicated", found.under_replicated),
    )
    if not any(some for _, some in problems):
        return
    if each_partition:
        echo_table(
            ("PROBLEM", "TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "ELR"),
            [_partition_row(problem, each) for problem, some in problems for each in some],
        )
    else:
        echo_table(
            ("PROBLEM", "TOPIC", "COUNT", "PARTITIONS", "NOT IN SYNC"),
            [row for problem, some in problems for row in topic_rows(problem, some)],
        )


def topic_rows(problem: str, partitions: Sequence[ReplicatedPartition]) -> list[Sequence[object]]:
    """A row for each topic: how many partitions have the problem, which, and who isn't in sync."""
    by_topic: dict[str, list[ReplicatedPartition]] = {}
    for each in partitions:
        by_topic.setdefault(each.topic, []).append(each)
    return [
        (
            problem,
            topic,
            len(some),
            ranges_text([each.index for each in some]),
            ids_text(sorted({r for each in some for r in each.replicas if r not in each.isr})),
        )
        for topic, some in by_topic.items()
    ]


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-3,7`: numbers with those between two of them left out where all are there."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs]
    if len(parts) > _RUNS_SHOWN:
        parts = [*parts[:_RUNS_SHOWN], "..."]
    return ",".join(parts)


def ids_text(ids: Iterable[int]) -> str:
    """`1,2`, or `-` for none."""
    return ",".join(map(str, ids)) or "-"


def _partition_row(problem: str, each: ReplicatedPartition) -> Sequence[object]:
    return (
        problem,
        each.topic,
        each.index,
        each.leader if each.leader >= 0 else "none",
        ids_text(each.replicas),
        ids_text(each.isr),
        ids_text(each.elr),
    )


def quorum_row(described: QuorumInfo, replica: QuorumReplica) -> dict[str, Any]:
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
