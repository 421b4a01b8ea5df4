"""`kraftpy group offsets`: what groups have committed, shown and forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    TEXT,
    Failure,
    Scope,
    echo_json,
    echo_table,
    group_failure,
    output_option,
    run_client,
    scope_option,
    timeout_option,
    topic_failure,
)
from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.group_info import SHARE
from kraftpy.client.offsets import Partition
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import numbers_text


@click.group()
def offsets() -> None:
    """Show or delete the offsets that a group has committed; `seek` changes them."""


@offsets.command()
@click.argument("name", type=TEXT, metavar="GROUP")
@scope_option("Only of this topic. Repeatable.")
@brokers_option
@timeout_option
@output_option
def show(
    name: str, scopes: Sequence[Scope], brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Show the offsets that a group has committed; of a share group, where it begins.

    EPOCH is the leader epoch of the last record read, if the consumer named it.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            committed = await admin.committed(name)
            if not committed:
                try:
                    if (await admin.describe_group(name)).type == SHARE:
                        committed = await _share_starts(admin, name)
                except KafkaError as error:
                    raise group_failure(name, error) from None
        shown = [each for each in committed.items() if in_scope(each[0], scopes)]
        if output == "json":
            echo_json(
                [
                    {
                        "group": name,
                        "topic": topic,
                        "partition": partition,
                        "offset": each.offset,
                        "leader_epoch": None if each.leader_epoch < 0 else each.leader_epoch,
                        "metadata": each.metadata,
                    }
                    for (topic, partition), each in shown
                ]
            )
        elif shown:
            rows = [
                (
                    *name,
                    each.offset,
                    each.leader_epoch if each.leader_epoch >= 0 else "-",
                    each.metadata,
                )
                for name, each in shown
            ]
            echo_table(("TOPIC", "PARTITION", "OFFSET", "EPOCH", "METADATA"), rows)
        else:
            click.echo(f"group {name!r} has committed nothing there", err=True)

    run_client(run())


@offsets.command()
@click.argument("name", type=TEXT, metavar="GROUP")
@scope_option("Forget the offsets of this topic. Repeatable.", required=True)
@brokers_option
@timeout_option
@output_option
def delete(
    name: str, scopes: Sequence[Scope], brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Forget a group's offsets of topics that it does not read.

    Of a share group, which must have no members, all that it has done of whole topics.

    \b
    kraftpy group offsets delete kitchen -t orders -t payments:0,1
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = GroupAdmin(cluster, timeout_ms=timeout_ms)
            partitions = await partitions_in(cluster, scopes)
            results: Mapping[Partition, KafkaError | None]
            try:
                committed = await admin.committed(name)
                if not committed and (await admin.describe_group(name)).type == SHARE:
                    committed, results = await _delete_share_offsets(
                        admin, name, scopes, partitions
                    )
                else:
                    results = await admin.delete_offsets(name, partitions)
            except KafkaError as error:
                raise group_failure(name, error) from None
        rows: list[dict[str, Any]] = []
        for partition, refused in sorted(results.items()):
            row: dict[str, Any] = {"topic": partition[0], "partition": partition[1]}
            if refused is not None:
                row |= {"error": refused.code.name, "message": refused.message}
            else:
                row["status"] = "deleted" if partition in committed else "none"
            rows.append(row)
        if output == "json":
            echo_json(rows)
        else:
            cells = [(r["topic"], r["partition"], r.get("status") or r["message"]) for r in rows]
            echo_table(("TOPIC", "PARTITION", "OFFSET"), cells)
        _raise_refusals(name, [each for each in results.values() if each is not None])

    run_client(run())


async def _share_starts(admin: GroupAdmin, name: str) -> dict[Partition, CommittedOffset]:
    starts = await admin.share_offsets(name)
    return {
        each: CommittedOffset(start.offset, start.leader_epoch, "")
        for each, start in starts.items()
    }


async def _delete_share_offsets(
    admin: GroupAdmin, name: str, scopes: Sequence[Scope], partitions: Sequence[Partition]
) -> tuple[dict[Partition, CommittedOffset], dict[Partition, KafkaError | None]]:
    """Where the group began, and what became of that."""
    for scope in scopes:
        if scope.partitions:
            raise click.UsageError(
                f"{name!r} is a share group, which forgets whole topics: -t {scope.topic}"
            )
    starts = await _share_starts(admin, name)
    known = {topic for topic, _ in starts}.intersection(scope.topic for scope in scopes)
    results = await admin.delete_share_offsets(name, known) if known else {}
    return starts, {each: results.get(each[0]) for each in partitions}


def _raise_refusals(name: str, errors: Sequence[KafkaError]) -> None:
    if any(error.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for error in errors):
        raise Failure(
            f"group {name!r} reads it: stop its members first. `kraftpy group describe {name}` "
            "shows where they run",
            EXIT_BROKER_ERROR,
        )
    if errors:
        raise Failure(f"{len(errors)} could not be deleted", EXIT_BROKER_ERROR)


def in_scope(name: Partition, scopes: Sequence[Scope]) -> bool:
    """Whether a partition belongs to one of some scopes; no scopes are everything."""
    topic, number = name
    return not scopes or any(
        scope.topic == topic and (not scope.partitions or number in scope.partitions)
        for scope in scopes
    )


async def partitions_in(cluster: Cluster, scopes: Sequence[Scope]) -> list[Partition]:
    """The partitions of some scopes; a `Failure` names the topic or partition that there is not."""
    found = set[Partition]()
    for topic, numbers in scopes:
        try:
            there = (await cluster.topic(topic)).partitions
        except KafkaError as error:
            raise topic_failure(topic, error) from None
        for number in numbers:
            if number not in there:
                raise Failure(
                    f"topic {topic!r} has no partition {number}, only {numbers_text(max(there))}",
                    EXIT_BROKER_ERROR,
                )
        found.update((topic, number) for number in numbers or there)
    return sorted(found)
