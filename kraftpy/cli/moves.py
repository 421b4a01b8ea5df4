"""How replicas move: starting, throttling, watching; for the commands in `reassign`.

Rules: what was started goes on without the command that started it. A throttle is taken off by the
command that sees the last move end. A topic's twin moves with it, and is throttled and waited for
with it; nobody asks for it by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import click

from kraftpy.cli.common import EXIT_BROKER_ERROR, Failure
from kraftpy.client.admin import BROKER_RESOURCE
from kraftpy.client.cluster_admin import (
    ClusterAdmin,
    PartitionName,
    Reassignment,
    ReplicatedPartition,
    sizes_by_broker,
)
from kraftpy.wording import counted, size_text

Plan = dict[PartitionName, tuple[int, ...]]

POLL_MIN_S, _POLL_MAX_S = 0.1, 2.0
# For partitions that neither move nor are where they should be: a broker may be behind for a while.
_GIVE_UP_S = 5.0
_LEADER_RATE, _FOLLOWER_RATE = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
)
_LEADER_REPLICAS, _FOLLOWER_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


async def current_targets(admin: ClusterAdmin) -> Plan:
    """The replicas that each partition has, or will have when the move under way is done."""
    moving = await admin.list_reassignments()
    return {
        name: moving[name].target if name in moving else partition.replicas
        for name, partition in (await admin.describe_partitions()).items()
    }


def twin_of(name: PartitionName) -> PartitionName | None:
    """What moves along with a partition, if there is such a topic."""
    from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC, OFFSETS_TOPIC

    if name.topic != OFFSETS_TOPIC:
        return None
    return name._replace(topic=INDIVIDUAL_OFFSETS_TOPIC)


async def start_moves(
    admin: ClusterAdmin, plan: Plan, before: Plan, throttle_bytes: int | None
) -> Plan:
    """Begins to move the partitions of a plan; a `Failure` after saying which ones were refused.

    Returns what moves then: the plan, and what moves along.
    """
    whole = plan | {
        twin: plan[name] for name in plan if (twin := twin_of(name)) is not None and twin in before
    }
    if throttle_bytes and plan:
        await _set_throttle(admin, whole, before, throttle_bytes)
    errors = await admin.alter_reassignments(plan) if plan else {}
    refused = {name: error for name, error in errors.items() if error is not None}
    for name, error in refused.items():
        click.echo(f"kraftpy: {name}: {error.message}", err=True)
    if refused:
        await clear_throttle_if_idle(admin)
        were = "was" if len(refused) == 1 else "were"
        text = f"{len(refused)} of {counted(len(plan), 'partition')} {were} refused"
        if others := len(plan) - len(refused):
            text += f"; {counted(others, 'other')} move{'s' if others == 1 else ''}"
        raise Failure(text, EXIT_BROKER_ERROR)
    return whole


# -- watching


async def watch_moves(admin: ClusterAdmin, targets: Plan) -> None:
    """Says on stderr how a plan gets on until it is done; then takes throttles off."""
    try:
        await _wait_done(admin, targets)
    except asyncio.CancelledError:
        click.echo(
            "kraftpy: the move goes on; `kraftpy cluster reassign --watch` watches it again, and "
            "takes a throttle off when it is done",
            err=True,
        )
        raise
    await clear_throttle_if_idle(admin)


async def _wait_done(admin: ClusterAdmin, targets: Plan) -> None:
    pause_s = POLL_MIN_S
    idle_since = time.monotonic()
    said = ""
    progress = _Progress(admin, targets)
    while True:
        partitions = await admin.describe_partitions()
        moving = await admin.list_reassignments()
        left = {
            name: target
            for name, target in targets.items()
            if name in partitions and not _is_at(partitions[name], moving.get(name), target)
        }
        line = await progress.line(left, moving)
        if targets and line != said:
            click.echo(line, err=True)
            said = line
        if not left:
            return
        now = time.monotonic()
        if any(name in moving for name in left):
            idle_since = now
        elif now - idle_since > _GIVE_UP_S:
            raise Failure(
                f"{', '.join(map(str, left))}: not where the plan wants it, and no longer being "
                "moved: it was cancelled, or another plan took its place",
                EXIT_BROKER_ERROR,
            )
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_MAX_S)


def _is_at(
    partition: ReplicatedPartition, moving: Reassignment | None, target: tuple[int, ...]
) -> bool:
    return moving is None and partition.replicas == target


class _Progress:
    """How far a plan is; the sizes of what is done are remembered from when it was under way."""

    def __init__(self, admin: ClusterAdmin, targets: Plan) -> None:
        self._admin = admin
        self._targets = targets
        self._sizes: dict[PartitionName, int] = {}

    async def line(self, left: Plan, moving: Mapping[PartitionName, Reassignment]) -> str:
        moved = len(self._targets) - len(left)
        line = f"{moved} of {counted(len(self._targets), 'partition')} moved"
        current = {name: moving[name] for name in left if name in moving}
        copied = await bytes_copied(self._admin, current)
        self._sizes |= {name: size for name, (_, size) in copied.items()}
        total = sum(self._sizes.values())
        if total:
            missing = sum(size - done for done, size in copied.values())
            line += f", {size_text(total - missing)} of {size_text(total)}"
        return line


async def bytes_copied(
    admin: ClusterAdmin, moving: Mapping[PartitionName, Reassignment]
) -> dict[PartitionName, tuple[int, int]]:
    """(bytes that the new replicas have, bytes that they will have) of each partition."""
    brokers = {broker for each in moving.values() for broker in each.replicas}
    sizes = await sizes_by_broker(admin, sorted(brokers))
    copied = {}
    for name, each in moving.items():
        old = [broker for broker in each.replicas if broker not in each.adding]
        whole = max((sizes.get(broker, {}).get(name, 0) for broker in old), default=0)
        done = sum(min(whole, sizes.get(broker, {}).get(name, 0)) for broker in each.adding)
        copied[name] = done, whole * len(each.adding)
    return copied


# -- throttles


async def _set_throttle(admin: ClusterAdmin, plan: Plan, before: Plan, throttle_bytes: int) -> None:
    """What moves, and nothing else, is sent and received at this rate at most (KIP-73)."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for name, target in plan.items():
        old = before.get(name, ())
        leaders.setdefault(name.topic, []).extend(f"{name.partition}:{each}" for each in old)
        followers.setdefault(name.topic, []).extend(
            f"{name.partition}:{each}" for each in target if each not in old
        )
    for topic in leaders:
        await admin.alter_configs(
            topic,
            values={
                _LEADER_REPLICAS: ",".join(leaders[topic]),
                _FOLLOWER_REPLICAS: ",".join(followers[topic]),
            },
        )
    rate = str(throttle_bytes)
    for broker_id in sorted(
        {each for name in plan for each in (*before.get(name, ()), *plan[name])}
    ):
        await admin.alter_configs(
            str(broker_id),
            values={_LEADER_RATE: rate, _FOLLOWER_RATE: rate},
            resource_type=BROKER_RESOURCE,
        )


async def clear_throttle_if_idle(admin: ClusterAdmin) -> None:
    """Takes the throttles of all topics and brokers off, unless something is still being moved."""
    if await admin.list_reassignments():
        return
    topics = {name.topic for name in await admin.describe_partitions()}
    keys = (_LEADER_REPLICAS, _FOLLOWER_REPLICAS)
    throttled = [
        topic
        for topic, values in (await admin.topic_configs(sorted(topics), keys)).items()
        if any(values.values())
    ]
    if not throttled:
        return
    for topic in throttled:
        await admin.alter_configs(topic, delete=keys)
    for broker_id in (await admin.describe_cluster()).brokers:
        await admin.alter_configs(
            str(broker_id), delete=(_LEADER_RATE, _FOLLOWER_RATE), resource_type=BROKER_RESOURCE
        )
