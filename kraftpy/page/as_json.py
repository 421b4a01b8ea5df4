"""The same as JSON: `/status.json`, with `?topic=NAME` or `?group=NAME` one of them in full.

Names are those of `kraftpy ... -o json` where it tells the same; null is what isn't known. Lists of
topics and groups have `LISTED` entries at most: `topics_page` and `groups_page` (from 1 on) choose
which, `topics_total` and `groups_total` say how many there are, `q` looks for a part of the name.
A list that the cluster hasn't been asked for yet is null; `problems` of the parts say why.
"""

from __future__ import annotations

from typing import Any

from kraftpy.page.model import (
    Disks,
    Group,
    GroupDetail,
    Level,
    Node,
    Partition,
    Topic,
    TopicDetail,
    Trouble,
    problems,
    total_lag,
)
from kraftpy.page.view import Status, View
from kraftpy.page.watch import Seen

LISTED = 1000
TROUBLED = 1000


def status_json(status: Status, view: View) -> dict[str, Any]:
    """The cluster."""
    node, disks, groups = status.node, status.known_disks, status.known_groups
    found = problems(node, status.known_quorum, disks)
    topics = [topic for topic in node.topics.values() if view.matches(topic.name)]
    listed_groups = [g for g in groups.groups.values() if view.matches(g.id)] if groups else []
    some_topics, _ = view.cut("topics", topics, LISTED)
    some_groups, _ = view.cut("groups", listed_groups, LISTED)
    return {
        "cluster": node.cluster,
        "healthy": not found,
        "problems": [
            {"level": "serious" if each.level is Level.BAD else "warning", "text": each.text}
            for each in found
        ],
        "node": _node(node),
        "parts": {
            "quorum": _part(status.quorum),
            "disks": _part(status.disks),
            "groups": _part(status.groups),
        },
        "brokers": [_broker(id_, node, disks) for id_ in node.brokers],
        "quorum": _quorum(status),
        "partitions": {
            "total": node.partition_count,
            "offline": node.count(Trouble.OFFLINE),
            "under_min_isr": node.count(Trouble.UNDER_MIN_ISR),
            "under_replicated": node.count(Trouble.UNDER_REPLICATED),
            "moving": node.count(Trouble.MOVING),
            "in_trouble": _in_trouble(node),
        },
        "topics_total": len(topics),
        "topics": [_topic(each, disks) for each in some_topics],
        "groups_total": None if groups is None else len(listed_groups),
        "groups": None if groups is None else [_group(each) for each in some_groups],
        "groups_lag": (
            None if groups is None else total_lag({g.id: g.lag for g in groups.groups.values()})
        ),
        "events": [
            {
                "time_ms": each.time_ms,
                "node": each.node,
                "level": each.level,
                "event": each.name,
                "text": each.text,
            }
            for each in node.events
        ],
    }


def topic_json(topic: Topic, seen: Seen, disks: Disks | None) -> dict[str, Any]:
    """One topic."""
    detail: TopicDetail | None = seen.value
    return {
        **_topic(topic, disks),
        "min_insync_replicas": topic.min_isr,
        "settings": None if detail is None else detail.settings,
        "part": _part(seen),
        "partitions": [
            {
                **_partition(topic, each),
                "start": None if detail is None else detail.starts.get(each.number),
                "end": None if detail is None else detail.ends.get(each.number),
                "bytes": (
                    None
                    if disks is None
                    else disks.size_of((topic.name, each.number), [each.leader, *each.isr])
                ),
            }
            for each in topic.partitions
        ],
    }


def group_json(name: str, seen: Seen) -> dict[str, Any]:
    """One group."""
    detail: GroupDetail | None = seen.value
    if detail is None:
        return {"group": name, "part": _part(seen)}
    return {
        "group": detail.id,
        "type": detail.type,
        "state": detail.state,
        "assignor": detail.assignor,
        "epoch": detail.epoch,
        "coordinator": detail.coordinator,
        "lag": total_lag(detail.topics),
        "topics": detail.topics,
        "part": _part(seen),
        "members": [
            {
                "member": each.id,
                "instance": each.instance_id,
                "client": each.client_id,
                "host": each.host,
                "partitions": each.partitions,
            }
            for each in detail.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.offset,
                "end": each.end,
                "lag": each.lag,
                "member": each.member,
            }
            for each in detail.positions
        ],
    }


def _part(seen: Seen) -> dict[str, Any]:
    known = seen.value is not None
    return {"age_s": round(seen.age_s, 3) if known else None, "problem": seen.problem or None}


def _node(node: Node) -> dict[str, Any]:
    broker, controller = node.broker, node.controller
    return {
        "node": node.id,
        "roles": node.roles,
        "silent": list(node.silent),
        "broker_state": None if broker is None else broker.state,
        "quorum_heard_ms_ago": None if broker is None else broker.heard_ms,
        "controller_role": None if controller is None else controller.role,
        "has_quorum": node.has_quorum,
        "metadata_index": node.index,
    }


def _broker(broker_id: int, node: Node, disks: Disks | None) -> dict[str, Any]:
    broker = node.brokers[broker_id]
    folders = None if disks is None else disks.folders.get(broker_id)
    partitions = [each for topic in node.topics.values() for each in topic.partitions]
    return {
        "broker": broker.id,
        "address": f"{broker.host}:{broker.port}",
        "rack": broker.rack,
        "epoch": broker.epoch,
        "state": ("fenced" if broker.fenced else "shutting down" if broker.shutting_down else "up"),
        "answers": None if disks is None or broker.fenced else broker_id not in disks.silent,
        "leads": sum(each.leader == broker_id for each in partitions),
        "replicas": sum(broker_id in each.replicas for each in partitions),
        "folders": (
            None
            if folders is None
            else [
                {
                    "path": each.path,
                    "bytes": each.used_bytes,
                    "free_bytes": each.free_bytes,
                    "total_bytes": each.total_bytes,
                }
                for each in folders
            ]
        ),
    }


def _quorum(status: Status) -> dict[str, Any] | None:
    quorum = status.known_quorum
    if quorum is None:
        return None
    return {
        "leader": quorum.leader,
        "epoch": quorum.term,
        "high_watermark": quorum.committed,
        "told_by": quorum.told_by,
        "voters": [
            {
                "node": each.id,
                "role": each.role,
                "address": each.address,
                "lag": each.lag,
                "last_seen_ms_ago": each.heard_ms,
            }
            for each in quorum.voters
        ],
    }


def _in_trouble(node: Node) -> list[dict[str, Any]]:
    found = sorted(
        (each.trouble(topic.min_isr), topic.name, each)
        for topic in node.topics.values()
        if topic.worst < Trouble.MOVING
        for each in topic.partitions
        if each.trouble(topic.min_isr) < Trouble.MOVING
    )
    return [
        {"topic": name, **_partition(node.topics[name], each)} for _, name, each in found[:TROUBLED]
    ]


def _partition(topic: Topic, partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.number,
        "state": partition.trouble(topic.min_isr).text,
        "leader": partition.leader if partition.leader >= 0 else None,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
    }


def _topic(topic: Topic, disks: Disks | None) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "internal": topic.internal,
        "partitions_total": len(topic.partitions),
        "in_trouble": {
            trouble.text: count
            for trouble, count in sorted(topic.counts.items())
            if trouble is not Trouble.NONE
        },
        "replicas": topic.replicas,
        "in_sync": topic.in_sync,
        "leaders": topic.leaders,
        "bytes": None if disks is None else disks.topics.get(topic.name),
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "type": group.type,
        "state": group.state,
        "members": group.members,
        "coordinator": group.coordinator,
        "lag": group.lag,
        "topics": group.topics,
    }
