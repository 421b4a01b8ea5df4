"""The same as JSON: `/status.json`, with `?topic=NAME` or `?group=NAME` one of them in full.

Names are those of `kraftpy ... -o json` where it tells the same; null is what isn't known. `q`
looks for a part of the names of topics and groups. A list ends where the answer would become too
large: then `next` has the queries for what follows (`topics_from=500`), and `..._total` says how
many there are. `parts` says how old what was asked of other brokers is, and what went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kraftpy.page.model import (
    Disks,
    Group,
    GroupDetail,
    Level,
    Member,
    Node,
    Partition,
    Position,
    Slice,
    Topic,
    TopicDetail,
    Transactions,
    Trouble,
    problems,
    ranked,
    total_lag,
)
from kraftpy.page.rates import Trend
from kraftpy.page.view import Status, View
from kraftpy.page.watch import Seen

T = TypeVar("T")

LIST_MAX_BYTES = 250_000
TOPICS_OF_GROUP = 20


def status_json(status: Status, view: View) -> dict[str, Any]:
    """The cluster."""
    node, disks, groups = status.node, status.known_disks, status.known_groups
    found = problems(node, status.known_quorum, disks, status.known_transactions)
    topics = [topic for topic in node.topics.values() if view.matches(topic.name)]
    listed = [group for group in groups.groups.values() if view.matches(group.id)] if groups else []
    lists = _Lists(view)
    troubled = node.troubled(Trouble.UNDER_REPLICATED)
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
            "transactions": _part(status.transactions),
            "ends": _part(status.ends),
        },
        "brokers": _brokers(node, disks),
        "quorum": _quorum(status),
        "partitions": {
            "total": node.partition_count,
            "offline": node.count(Trouble.OFFLINE),
            "under_min_isr": node.count(Trouble.UNDER_MIN_ISR),
            "under_replicated": node.count(Trouble.UNDER_REPLICATED),
            "moving": node.count(Trouble.MOVING),
            "in_trouble": lists.some(
                "troubled", troubled, lambda each: {"topic": each[0].name, **_partition(*each)}
            ),
        },
        "records_per_s": _rate(sum(status.record_rates.values())) if status.record_rates else None,
        "bytes_per_s": _rate(sum(status.byte_rates.values())) if status.byte_rates else None,
        "topics_total": len(topics),
        "topics": lists.some("topics", topics, lambda each: _topic(each, status)),
        "groups_total": None if groups is None else len(listed),
        "groups": None if groups is None else lists.some("groups", listed, _group),
        "groups_lag": (
            None if groups is None else total_lag({g.id: g.lag for g in groups.groups.values()})
        ),
        "transactions": _transactions(status.known_transactions),
        "events": [
            {
                "time_ms": each.time_ms,
                "process": each.process,
                "level": each.level,
                "event": each.name,
                "fields": each.fields,
            }
            for each in node.events
        ],
        "next": lists.next,
    }


def _transactions(known: Transactions | None) -> dict[str, Any] | None:
    if known is None:
        return None
    return {
        "open": known.open,
        "preparing": known.preparing,
        "late": known.late,
        "silent": sorted(known.silent),
        "oldest": [
            {
                "id": each.id,
                "state": each.state,
                "coordinator": each.coordinator,
                "open_ms": each.open_ms,
                "timeout_ms": each.timeout_ms,
                "partitions": each.partitions,
            }
            for each in known.oldest
        ],
    }


class _Lists:
    """Cuts lists to what one answer may have; `next` has what to ask for the rest."""

    def __init__(self, view: View) -> None:
        self.next: list[str] = []
        self._view = view

    def some(
        self, name: str, rows: Sequence[T], as_json: Callable[[T], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        left = LIST_MAX_BYTES
        start = self._view.start(name)
        for row in rows[start:]:
            value = as_json(row)
            left -= len(json.dumps(value))
            if left < 0 and found:
                self.next.append(f"{name}_from={start + len(found)}")
                break
            found.append(value)
        return found


def topic_json(topic: Topic, seen: Seen, status: Status, view: View) -> dict[str, Any]:
    """One topic."""
    detail: TopicDetail | None = seen.value
    disks = status.known_disks
    lists = _Lists(view)

    def partition(each: Partition) -> dict[str, Any]:
        size_bytes = None
        if disks is not None:
            size_bytes = disks.size_of((topic.name, each.number), [each.leader, *each.isr])
        return {
            **_partition(topic, each),
            "start": None if detail is None else detail.starts.get(each.number),
            "end": None if detail is None else detail.ends.get(each.number),
            "bytes": size_bytes,
        }

    return {
        **_topic(topic, status),
        "min_insync_replicas": topic.min_isr,
        "settings": None if detail is None else detail.settings,
        "part": _part(seen),
        "partitions": lists.some("partitions", topic.partitions, partition),
        "next": lists.next,
    }


def group_json(name: str, seen: Seen, view: View) -> dict[str, Any]:
    """One group."""
    detail: GroupDetail | None = seen.value
    if detail is None:
        return {"group": name, "part": _part(seen)}
    lists = _Lists(view)
    return {
        "group": detail.id,
        "type": detail.type,
        "state": detail.state,
        "assignor": detail.assignor,
        "epoch": detail.epoch,
        "coordinator": detail.coordinator,
        "lag": total_lag(detail.topics),
        **_trend(detail.trend),
        "part": _part(seen),
        "members_total": len(detail.members),
        "members": lists.some("members", detail.members, _member),
        "partitions_total": len(detail.positions),
        "partitions": lists.some("partitions", detail.positions, _position),
        "shares_total": len(detail.shares),
        "shares": lists.some("shares", detail.shares, _share),
        "next": lists.next,
    }


def _trend(trend: Trend) -> dict[str, Any]:
    return {"lag_per_s": _rate(trend.per_s), "lag_rises": trend.rises}


def _member(member: Member) -> dict[str, Any]:
    return {
        "member": member.id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "partitions": sum(map(len, member.partitions.values())),
    }


def _position(position: Position) -> dict[str, Any]:
    return {
        "topic": position.topic,
        "partition": position.partition,
        "offset": position.offset,
        "end": position.end,
        "lag": position.lag,
        "done_above": position.done_above,
        "member": position.member,
    }


def _share(share: Slice) -> dict[str, Any]:
    return {
        "topic": share.topic,
        "partition": share.partition,
        "first_slot": share.first_slot,
        "last_slot": share.last_slot,
        "member": share.member,
        "draining": share.draining,
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


def _brokers(node: Node, disks: Disks | None) -> list[dict[str, Any]]:
    leads, replicas = node.seats()
    return [
        {
            "broker": each.id,
            "address": f"{each.host}:{each.port}",
            "rack": each.rack,
            "epoch": each.epoch,
            "state": each.state,
            "answers": None if disks is None or each.fenced else each.id not in disks.silent,
            "leads": leads[each.id],
            "replicas": replicas[each.id],
            "folders": _folders(disks, each.id),
        }
        for each in node.brokers.values()
    ]


def _folders(disks: Disks | None, broker_id: int) -> list[dict[str, Any]] | None:
    folders = None if disks is None else disks.folders.get(broker_id)
    if folders is None:
        return None
    return [
        {
            "path": each.path,
            "bytes": each.used_bytes,
            "free_bytes": each.free_bytes,
            "total_bytes": each.total_bytes,
        }
        for each in folders
    ]


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


def _partition(topic: Topic, partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.number,
        "state": partition.trouble(topic.min_isr).key,
        "leader": partition.leader if partition.leader >= 0 else None,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
    }


def _topic(topic: Topic, status: Status) -> dict[str, Any]:
    disks = status.known_disks
    return {
        "topic": topic.name,
        "internal": topic.internal,
        "partitions_total": len(topic.partitions),
        "in_trouble": {
            trouble.key: count
            for trouble, count in sorted(topic.counts.items())
            if trouble is not Trouble.NONE
        },
        "replicas": topic.replicas,
        "in_sync": topic.in_sync,
        "leaders": topic.leaders,
        "bytes": None if disks is None else disks.topics.get(topic.name),
        "records_per_s": _rate(status.record_rates.get(topic.name)),
        "bytes_per_s": _rate(status.byte_rates.get(topic.name)),
    }


def _rate(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 1)


def _group(group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "type": group.type,
        "state": group.state,
        "members": group.members,
        "coordinator": group.coordinator,
        "lag": group.lag,
        **_trend(group.trend),
        "topics_total": None if group.topics is None else len(group.topics),
        "topics": None if group.topics is None else dict(ranked(group.topics)[:TOPICS_OF_GROUP]),
    }
