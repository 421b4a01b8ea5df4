"""`kraftpy transaction`: transactional producers, and transactions that nobody ends (KIP-664)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_UNHEALTHY,
    TEXT,
    Failure,
    Scope,
    Seconds,
    change_each,
    echo_json,
    echo_table,
    output_option,
    rights_hint,
    run_client,
    scope_option,
    timeout_option,
    topic_failure,
)
from kraftpy.cli.group_offsets import partitions_in
from kraftpy.client.offsets import Partition
from kraftpy.client.transaction_admin import STATES, TransactionAdmin
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import time_text


@click.group()
def command() -> None:
    """List, describe and terminate transactions, and find and abort those that hang."""


def transaction_failure(transactional_id: str, error: KafkaError) -> Failure:
    """An error about a transactional id, with what to type next where that is known."""
    if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        text = (
            f"transactional id {transactional_id!r} does not exist. `kraftpy transaction list` "
            "shows what there is"
        )
    else:
        hint = rights_hint(error, {"--transactional-id": transactional_id})
        text = f"transactional id {transactional_id!r}: {error}{hint}"
    return Failure(text, EXIT_BROKER_ERROR)


@command.command(name="list")
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only those in this state. Repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="ID",
    help="Only the one of this producer id. Repeatable.",
)
@click.option(
    "--open-for",
    "open_for_ms",
    type=Seconds(),
    metavar="SECONDS",
    help="Only those whose transaction is open for longer.",
)
@brokers_option
@timeout_option
@output_option
def list_transactions(
    states: Sequence[str],
    producer_ids: Sequence[int],
    open_for_ms: int | None,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """List transactional ids, with the broker that coordinates each."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = TransactionAdmin(cluster, timeout_ms=timeout_ms)
            listed = await admin.list_transactions(
                states=states, producer_ids=producer_ids, open_for_ms=open_for_ms
            )
        if output == "json":
            echo_json(
                [
                    {
                        "id": each.id,
                        "coordinator": each.coordinator,
                        "producer_id": each.producer_id,
                        "state": each.state,
                    }
                    for each in listed
                ]
            )
        elif listed:
            rows = [(each.id, each.coordinator, each.producer_id, each.state) for each in listed]
            echo_table(("ID", "COORDINATOR", "PRODUCER", "STATE"), rows)
        else:
            asked = states or producer_ids or open_for_ms is not None
            click.echo("no such transactions" if asked else "no transactions yet", err=True)

    run_client(run())


@command.command()
@click.argument("transactional_id", type=TEXT, metavar="ID")
@brokers_option
@timeout_option
@output_option
def describe(transactional_id: str, brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Show what the coordinator knows of a transactional id."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = TransactionAdmin(cluster, timeout_ms=timeout_ms)
            try:
                found = await admin.describe_transaction(transactional_id)
            except KafkaError as error:
                raise transaction_failure(transactional_id, error) from None
        if output == "json":
            echo_json(
                {
                    "id": found.id,
                    "coordinator": found.coordinator,
                    "producer_id": found.producer_id,
                    "producer_epoch": found.producer_epoch,
                    "state": found.state,
                    "timeout_ms": found.timeout_ms,
                    "start_ms": None if found.start_ms < 0 else found.start_ms,
                    "partitions": [
                        {"topic": topic, "partition": number} for topic, number in found.partitions
                    ],
                }
            )
            return
        for name, value in (
            ("id", found.id),
            ("state", found.state),
            ("coordinator", f"broker {found.coordinator}"),
            ("producer", f"{found.producer_id}, epoch {found.producer_epoch}"),
            ("timeout", f"{found.timeout_ms} ms"),
            ("began", time_text(found.start_ms)),
            ("partitions", ", ".join(map(_name, found.partitions)) or "-"),
        ):
            click.echo(f"{name:<13}{value}")

    run_client(run())


@command.command()
@scope_option("Of this topic. Repeatable.", required=True)
@click.option(
    "--broker",
    "broker_id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="As this broker's replicas know them.  [default: the leaders]",
)
@brokers_option
@timeout_option
@output_option
def producers(
    scopes: Sequence[Scope], broker_id: int | None, brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Show who writes to partitions, idempotent or in transactions.

    OPEN SINCE is the offset where a producer's open transaction begins: readers of committed
    records don't get past it. EPOCH is the producer's, COORDINATOR EPOCH that of its last marker.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = TransactionAdmin(cluster, timeout_ms=timeout_ms)
            found = [
                (partition, producer)
                for partition in await partitions_in(cluster, scopes)
                for producer in await admin.describe_producers(partition, broker_id=broker_id)
            ]
        if output == "json":
            echo_json(
                [
                    {
                        "topic": topic,
                        "partition": number,
                        "producer_id": each.producer_id,
                        "producer_epoch": each.producer_epoch,
                        "last_sequence": each.last_sequence,
                        "last_timestamp_ms": each.last_timestamp_ms,
                        "coordinator_epoch": _known(each.coordinator_epoch),
                        "open_since": _known(each.transaction_start),
                    }
                    for (topic, number), each in found
                ]
            )
        elif found:
            rows = [
                (
                    *partition,
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    time_text(each.last_timestamp_ms),
                    "-" if each.coordinator_epoch < 0 else each.coordinator_epoch,
                    "-" if each.transaction_start < 0 else each.transaction_start,
                )
                for partition, each in found
            ]
            header = ("TOPIC", "PARTITION", "PRODUCER", "EPOCH", "SEQUENCE", "LAST RECORD")
            echo_table((*header, "COORDINATOR EPOCH", "OPEN SINCE"), rows)
        else:
            click.echo("nobody writes there with a producer id", err=True)

    run_client(run())


@command.command()
@scope_option("Only in this topic. Repeatable.")
@click.option(
    "--open-for",
    "open_for_ms",
    type=Seconds(),
    metavar="SECONDS",
    help="Look at those whose last record is older.  "
    "[default: the brokers' transaction.max.timeout.ms and five minutes]",
)
@brokers_option
@timeout_option
@output_option
def hanging(
    scopes: Sequence[Scope], open_for_ms: int | None, brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Find transactions that are open in a partition and unknown to their coordinator.

    Nobody will end them, and readers of committed records don't get past them; `abort` does. The
    exit code is 5 if there are any.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = TransactionAdmin(cluster, timeout_ms=timeout_ms)
            partitions = await partitions_in(cluster, scopes) if scopes else None
            now_ms = int(time.time() * 1000)
            found = await admin.hanging(partitions, now_ms=now_ms, open_for_ms=open_for_ms)
        if output == "json":
            echo_json(
                [
                    {
                        "topic": each.partition[0],
                        "partition": each.partition[1],
                        "open_since": each.producer.transaction_start,
                        "producer_id": each.producer.producer_id,
                        "producer_epoch": each.producer.producer_epoch,
                        "last_timestamp_ms": each.producer.last_timestamp_ms,
                        "id": each.id,
                    }
                    for each in found
                ]
            )
        elif found:
            rows = [
                (
                    *each.partition,
                    each.producer.transaction_start,
                    each.producer.producer_id,
                    each.producer.producer_epoch,
                    time_text(each.producer.last_timestamp_ms),
                    each.id or "-",
                )
                for each in found
            ]
            header = ("TOPIC", "PARTITION", "OPEN SINCE", "PRODUCER", "EPOCH", "LAST RECORD", "ID")
            echo_table(header, rows)
            (topic, number), start = found[0].partition, found[0].producer.transaction_start
            click.echo(
                f"kraftpy: `kraftpy transaction abort {topic} {number} {start}` ends the first one",
                err=True,
            )
        else:
            click.echo("no transaction hangs", err=True)
        if found:
            raise click.exceptions.Exit(EXIT_UNHEALTHY)

    run_client(run())


@command.command()
@click.argument("topic", type=TEXT)
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("start_offset", type=click.IntRange(min=0))
@brokers_option
@timeout_option
@output_option
def abort(
    topic: str, partition: int, start_offset: int, brokers: Brokers, timeout_ms: int, output: str
) -> None:
    """Abort the transaction that begins at an offset of a partition, there alone, without asking.

    For one that `hanging` shows. What its coordinator still knows of is for `terminate`.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = TransactionAdmin(cluster, timeout_ms=timeout_ms)
            await partitions_in(cluster, [Scope(topic, (partition,))])
            try:
                producer = await admin.abort((topic, partition), start_offset)
            except KafkaError as error:
                if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise Failure(
                        f"{error.message}. `kraftpy transaction producers -t {topic}:{partition}` "
                        "shows what is open",
                        EXIT_BROKER_ERROR,
                    ) from None
                raise topic_failure(topic, error) from None
        if output == "json":
            echo_json(
                {
                    "topic": topic,
                    "partition": partition,
                    "open_since": start_offset,
                    "producer_id": producer.producer_id,
                    "status": "aborted",
                }
            )
        else:
            click.echo(f"aborted the transaction of producer {producer.producer_id}")

    run_client(run())


@command.command()
@click.argument("ids", type=TEXT, nargs=-1, required=True, metavar="ID...")
@brokers_option
@timeout_option
@output_option
def terminate(ids: Sequence[str], brokers: Brokers, timeout_ms: int, output: str) -> None:
    """Fence the producers of transactional ids and abort what they have open, without asking."""

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = TransactionAdmin(cluster, timeout_ms=timeout_ms)

            async def terminate_one(transactional_id: str) -> str:
                await admin.terminate(transactional_id)
                return "terminated"

            await change_each("transaction", ids, terminate_one, transaction_failure, output)

    run_client(run())


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _known(value: int) -> int | None:
    return None if value < 0 else value
