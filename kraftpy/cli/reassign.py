"""`kraftpy cluster reassign` and `decommission`: replicas move from broker to broker.

A plan is what Kafka's kafka-reassign-partitions reads and writes:

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}

`moves` has what happens to a plan then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import IO, Any

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
from kraftpy.cli.moves import (
    POLL_MIN_S,
    Plan,
    bytes_copied,
    clear_throttle_if_idle,
    current_targets,
    start_moves,
    twin_of,
    watch_moves,
)
from kraftpy.client.cluster_admin import ClusterAdmin, PartitionName
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.wording import counted, size_text

_BROKER_ID_MAX = 2**31 - 1


class _BrokerIds(click.ParamType):  # type: ignore[type-arg]
    """Ids of brokers, comma-separated."""

    name = "ids"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() for part in parts):
            self.fail(f"{value!r} is not a list of broker ids, like 1,2,3", param, ctx)
        ids = tuple(dict.fromkeys(map(int, parts)))
        if max(ids) > _BROKER_ID_MAX:
            self.fail(f"{max(ids)} is no broker id", param, ctx)
        return ids


def _throttle_option(function: Any) -> Any:
    return click.option(
        "--throttle",
        "throttle_bytes",
        type=click.IntRange(1, 2**63 - 1),
        metavar="BYTES/S",
        help="Let each broker send and receive moving replicas no faster.",
    )(function)


@click.command()
@click.argument("plan_file", metavar="[PLAN]", type=click.File("rb"), required=False)
@click.option(
    "-t",
    "--topic",
    "topics",
    type=TEXT,
    multiple=True,
    metavar="TOPIC",
    help="Make a plan for this topic. Repeatable.",
)
@click.option(
    "--brokers",
    "broker_ids",
    type=_BrokerIds(),
    metavar="ID,...",
    help="Spread the topics (by default all) over these.  [default: all that are up]",
)
@click.option(
    "-r", "--replicas", type=click.IntRange(1, 2**15 - 1), help="Copies of each partition."
)
@click.option("--dry-run", is_flag=True, help="Show the plan, as a PLAN file with -o json.")
@click.option("--watch", is_flag=True, help="Show how it goes until it is done.")
@click.option("--cancel", is_flag=True, help="Take back what is under way (of PLAN or TOPIC).")
@click.option("--list", "show_list", is_flag=True, help="List what is under way.")
@_throttle_option
@brokers_option
@timeout_option
@output_option
def reassign(
    plan_file: IO[bytes] | None,
    topics: Sequence[str],
    broker_ids: tuple[int, ...] | None,
    replicas: int | None,
    dry_run: bool,
    watch: bool,
    cancel: bool,
    show_list: bool,
    throttle_bytes: int | None,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Move replicas: as a PLAN file says, or so that topics lie evenly on brokers and racks.

    \b
    kraftpy cluster reassign plan.json --throttle 50000000 --watch
    kraftpy cluster reassign -t orders --brokers 2,3,4 --dry-run
    kraftpy cluster reassign -t orders --replicas 3
    kraftpy cluster reassign --list

    --watch by itself watches what is under way, and takes a throttle off when that is done.
    """
    making = bool(topics or broker_ids or replicas) and not cancel
    if show_list + cancel + (plan_file is not None and not cancel) + making > 1:
        raise click.UsageError("give one of PLAN, -t / --brokers / --replicas, --cancel and --list")
    if cancel and (broker_ids or replicas or (plan_file is not None and topics)):
        raise click.UsageError("--cancel goes with a PLAN or with -t")
    if replicas and not topics:
        raise click.UsageError("--replicas changes topics: name them with -t")
    if not (plan_file or making or cancel or show_list or watch):
        raise click.UsageError("nothing to do: give a PLAN, -t TOPIC or --brokers; or --list")
    if (dry_run or throttle_bytes) and not (plan_file or making):
        raise click.UsageError("--dry-run and --throttle go with a PLAN or -t / --brokers")
    given = None if plan_file is None else _parse_plan(plan_file.read())

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            if show_list:
                await _list(admin, output)
            elif cancel:
                await _cancel(admin, given, topics, output)
            elif given is None and not making:
                await _watch_all(admin, output)
            else:
                plan = given or await _make_plan(admin, topics, broker_ids, replicas)
                await _carry_out(admin, plan, dry_run, throttle_bytes, watch, output)

    run_client(run())


# -- plans


def _parse_plan(text: bytes) -> Plan:
    """The plan in a file; a usage error says where it is wrong."""
    plan: Plan = {}
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError('it is no object that has "partitions"')
        if document.get("version", 1) != 1:
            raise ValueError(f"version {document['version']!r} is not 1")
        for each in document["partitions"]:
            name = PartitionName(each["topic"], each["partition"])
            ids = tuple(each["replicas"])
            if not isinstance(name.topic, str) or not _are_ids((name.partition, *ids)):
                raise ValueError(f"{each} is not a topic, a partition and replicas")
            if any(folder != "any" for folder in each.get("log_dirs", ())):
                raise ValueError(
                    f"{name} has log_dirs: a broker chooses the folder by itself, leave them out"
                )
            if name in plan:
                raise ValueError(f"{name} comes twice")
            plan[name] = ids
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise click.BadParameter(
            f"it is no plan ({reason}); `kraftpy cluster reassign -t TOPIC --dry-run -o json` "
            "writes one",
            param_hint="'PLAN'",
        ) from None
    if not plan:
        raise click.BadParameter("it has no partitions", param_hint="'PLAN'")
    return plan


def _are_ids(values: Iterable[object]) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _BROKER_ID_MAX
        for value in values
    )


def _plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "version": 1,
        "partitions": [
            {"topic": name.topic, "partition": name.partition, "replicas": replicas}
            for name, replicas in plan.items()
        ],
    }


async def _make_plan(
    admin: ClusterAdmin,
    topics: Sequence[str],
    broker_ids: tuple[int, ...] | None,
    replicas: int | None,
) -> Plan:
    """A plan that spreads topics over brokers."""
    from kraftpy.core.metadata.planning import PlanError, spread
    from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC

    known = (await admin.describe_cluster()).brokers
    for broker_id in broker_ids or ():
        if broker_id not in known:
            raise _unknown_broker(broker_id)
    racks = {
        broker.id: broker.rack
        for broker in known.values()
        if (broker.id in broker_ids if broker_ids else not broker.fenced)
    }
    current = await current_targets(admin)
    for topic in topics:
        if not any(name.topic == topic for name in current):
            raise topic_failure(topic, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    wanted = topics or {name.topic for name in current} - {INDIVIDUAL_OFFSETS_TOPIC}
    chosen = {name: old for name, old in current.items() if name.topic in wanted}
    try:
        return spread(chosen, racks, replicas)
    except PlanError as error:
        raise Failure(str(error), EXIT_BROKER_ERROR) from None


# -- carrying a plan out


async def _carry_out(
    admin: ClusterAdmin,
    plan: Plan,
    dry_run: bool,
    throttle_bytes: int | None,
    watch: bool,
    output: str,
) -> None:
    before = await current_targets(admin)
    if dry_run:
        _show_plan(plan, before, output)
        return
    await _check_known(admin, plan, before)
    started = await start_moves(admin, plan, before, throttle_bytes)
    if watch and started:
        await watch_moves(admin, started)
    word = "moved" if watch else "started"
    if output == "json":
        echo_json(
            [
                {
                    "topic": name.topic,
                    "partition": name.partition,
                    "from": before.get(name, ()),
                    "to": replicas,
                    "status": word,
                }
                for name, replicas in plan.items()
            ]
        )
    elif plan:
        click.echo(f"{word} {counted(len(plan), 'partition')}")
    else:
        click.echo("nothing has to move", err=True)


async def _check_known(admin: ClusterAdmin, plan: Plan, before: Plan) -> None:
    known = (await admin.describe_cluster()).brokers
    for name, replicas in plan.items():
        if name not in before:
            raise Failure(f"there is no partition {name}", EXIT_BROKER_ERROR)
        for broker_id in replicas:
            if broker_id not in known:
                raise _unknown_broker(broker_id)


def _show_plan(plan: Plan, before: Plan, output: str) -> None:
    if output == "json":
        echo_json(_plan_document(plan))
    elif plan:
        rows = [
            (name.topic, name.partition, _ids(before.get(name, ())), _ids(replicas))
            for name, replicas in plan.items()
        ]
        echo_table(("TOPIC", "PARTITION", "FROM", "TO"), rows)
    else:
        click.echo("nothing has to move", err=True)


async def _cancel(
    admin: ClusterAdmin, plan: Plan | None, topics: Sequence[str], output: str
) -> None:
    moving = await admin.list_reassignments()
    chosen = [
        name
        for name in moving
        if (plan is None or name in plan) and (not topics or name.topic in topics)
    ]
    along = {twin_of(name) for name in chosen}
    chosen = [name for name in chosen if name not in along]
    errors = await admin.alter_reassignments(dict.fromkeys(chosen)) if chosen else {}
    # One that was done in the meantime has nothing to be cancelled any more.
    failed = {
        name: error
        for name, error in errors.items()
        if error is not None and error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    }
    for name, error in failed.items():
        click.echo(f"kraftpy: {name}: {error.message}", err=True)
    await clear_throttle_if_idle(admin)
    if output == "json":
        echo_json(
            [
                {"topic": name.topic, "partition": name.partition, "status": "cancelled"}
                for name in chosen
                if name not in failed
            ]
        )
    elif chosen:
        click.echo(f"cancelled {len(chosen) - len(failed)} of {len(chosen)}")
    else:
        click.echo("nothing is being moved", err=True)
    if failed:
        raise Failure(f"{len(failed)} could not be cancelled", EXIT_BROKER_ERROR)


async def _watch_all(admin: ClusterAdmin, output: str) -> None:
    moving = await admin.list_reassignments()
    await watch_moves(admin, {name: each.target for name, each in moving.items()})
    if output == "json":
        echo_json(
            [
                {
                    "topic": name.topic,
                    "partition": name.partition,
                    "to": each.target,
                    "status": "moved",
                }
                for name, each in moving.items()
            ]
        )
    elif moving:
        click.echo(f"moved {counted(len(moving), 'partition')}")
    else:
        click.echo("nothing is being moved", err=True)


async def _list(admin: ClusterAdmin, output: str) -> None:
    moving = await admin.list_reassignments()
    copied = await bytes_copied(admin, moving)
    if output == "json":
        echo_json(
            [
                {
                    "topic": name.topic,
                    "partition": name.partition,
                    "replicas": each.replicas,
                    "adding": each.adding,
                    "removing": each.removing,
                    "bytes_copied": copied[name][0],
                    "bytes_to_copy": copied[name][1],
                }
                for name, each in moving.items()
            ]
        )
    elif moving:
        rows = [
            (
                name.topic,
                name.partition,
                _ids(each.replicas),
                _ids(each.adding) or "-",
                _ids(each.removing) or "-",
                f"{size_text(copied[name][0])} of {size_text(copied[name][1])}",
            )
            for name, each in moving.items()
        ]
        echo_table(("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "COPIED"), rows)
    else:
        click.echo("nothing is being moved", err=True)


# -- decommission


@click.command()
@click.argument("broker_id", metavar="BROKER", type=click.IntRange(0, _BROKER_ID_MAX))
@click.option("--dry-run", is_flag=True, help="Show what would move, as a PLAN file with -o json.")
@_throttle_option
@brokers_option
@timeout_option
@output_option
def decommission(
    broker_id: int,
    dry_run: bool,
    throttle_bytes: int | None,
    brokers: Brokers,
    timeout_ms: int,
    output: str,
) -> None:
    """Free a broker of all its replicas, wait until it is stopped, and forget it.

    The replicas go to the other brokers that are up, on other racks than the copies that stay.
    Interrupted, the command takes up where it was when it is run again.
    """

    async def run() -> None:
        async with brokers.connect(timeout_ms) as cluster:
            admin = ClusterAdmin(cluster, timeout_ms=timeout_ms)
            if broker_id not in (await admin.describe_cluster()).brokers:
                raise _unknown_broker(broker_id)
            if dry_run:
                plan = await _drain_plan(admin, broker_id)
                _show_plan(plan, await current_targets(admin), output)
                return
            if any(voter.id == broker_id for voter in (await admin.describe_quorum()).voters):
                click.echo(
                    f"kraftpy: node {broker_id} also votes in the metadata quorum: when its broker "
                    "is gone, run its controller alone (process.roles=controller)",
                    err=True,
                )
            moved = await _free(admin, broker_id, throttle_bytes)
            await admin.unregister_broker(broker_id)
        if output == "json":
            echo_json({"broker": broker_id, "status": "unregistered", "partitions_moved": moved})
        else:
            click.echo(f"unregistered broker {broker_id}")

    run_client(run())


async def _free(admin: ClusterAdmin, broker_id: int, throttle_bytes: int | None) -> int:
    """Moves everything away and waits for the broker's end; how many partitions moved.

    While the broker is up, new topics may get to it: what is there when it stops moves, too.
    """
    moved = 0
    asked = False
    while True:
        plan = await _drain_plan(admin, broker_id)
        moves = await _moves_from(admin, broker_id)
        if plan:
            moves |= await start_moves(admin, plan, await current_targets(admin), throttle_bytes)
            moved += len(plan)
        if moves:
            await watch_moves(admin, moves)
            continue
        broker = (await admin.describe_cluster()).brokers.get(broker_id)
        if broker is None or broker.fenced:
            if await _drain_plan(admin, broker_id):
                continue
            return moved
        if not asked:
            click.echo(
                f"broker {broker_id} holds nothing any more: stop it now, and it is forgotten",
                err=True,
            )
            asked = True
        await asyncio.sleep(POLL_MIN_S)


async def _moves_from(admin: ClusterAdmin, broker_id: int) -> Plan:
    """Where those go that are on their way from a broker: begun before, or along with another."""
    moving = await admin.list_reassignments()
    return {name: each.target for name, each in moving.items() if broker_id in each.removing}


async def _drain_plan(admin: ClusterAdmin, broker_id: int) -> Plan:
    """A plan that takes everything from a broker."""
    from kraftpy.core.metadata.planning import PlanError, drain
    from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC

    racks = {
        broker.id: broker.rack
        for broker in (await admin.describe_cluster()).brokers.values()
        if not broker.fenced and broker.id != broker_id
    }
    try:
        plan = drain(await current_targets(admin), racks, {broker_id})
    except PlanError as error:
        raise Failure(str(error), EXIT_BROKER_ERROR) from None
    # It moves with the topic that it is the twin of.
    plan = {name: new for name, new in plan.items() if name.topic != INDIVIDUAL_OFFSETS_TOPIC}
    partitions = await admin.describe_partitions()
    stuck = [str(name) for name in plan if name in partitions and partitions[name].leader < 0]
    if stuck:
        raise Failure(
            f"{', '.join(stuck)}: no replica is up that could be copied. Start its brokers "
            "first, or delete the topic",
            EXIT_BROKER_ERROR,
        )
    return plan


def _unknown_broker(broker_id: int) -> Failure:
    return Failure(
        f"there is no broker {broker_id}. `kraftpy cluster brokers` shows those that there are",
        EXIT_BROKER_ERROR,
    )


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))
