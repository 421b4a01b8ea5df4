"""What the node's own processes say of themselves and of the cluster, over the exporter's channel.

This is all that the page needs to say whether the cluster works, and it needs no network: it is
there while the broker starts, on a controller alone, and without a quorum. The metadata is asked
for again only when it has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kraftpy.metrics import frames as kinds
from kraftpy.metrics.channel import Frame, Source, SourceUnavailable
from kraftpy.metrics.events import EVENTS
from kraftpy.page.model import (
    Broker,
    BrokerProcess,
    ControllerProcess,
    Event,
    Node,
    Partition,
    Topic,
)

TIMEOUT_S = 1.0
METADATA_TIMEOUT_S = 5.0


def ask_node(node_id: int, sources: Sequence[Source], before: Node | None) -> Node:
    """The node as it is now; `before` is what was found last time. Blocks for up to 6 s."""
    said: dict[str, dict[str, Any]] = {}
    for source in sources:
        try:
            ((kind, payload),) = source.ask(kinds.NODE, TIMEOUT_S)
        except SourceUnavailable:
            continue
        assert kind == kinds.NODE
        said[source.name] = payload
    node = Node(
        node_id,
        next((each["cluster"] for each in said.values() if each["cluster"]), None),
        _broker(said.get("broker")),
        _controller(said.get("controller")),
        tuple(source.name for source in sources if source.name not in said),
        events=_events(sources, said, before.events if before is not None else ()),
    )
    return _with_metadata(node, sources, said, before)


def _with_metadata(
    node: Node, sources: Sequence[Source], said: dict[str, dict[str, Any]], before: Node | None
) -> Node:
    """The metadata of whoever has most of it, and the old one if nobody answers."""
    known = [source for source in sources if source.name in said]
    best = max(known, key=lambda source: int(said[source.name]["index"]), default=None)
    if before is not None and (best is None or said[best.name]["index"] <= before.index):
        return replace(
            node,
            cluster=node.cluster or before.cluster,
            index=before.index,
            brokers=before.brokers,
            topics=before.topics,
        )
    if best is None:
        return node
    try:
        answer = best.ask("metadata", METADATA_TIMEOUT_S)
    except SourceUnavailable:
        if before is None:
            return node
        return replace(node, index=before.index, brokers=before.brokers, topics=before.topics)
    brokers, topics = _metadata(answer)
    return replace(node, index=said[best.name]["index"], brokers=brokers, topics=topics)


def _metadata(answer: Sequence[Frame]) -> tuple[dict[int, Broker], dict[str, Topic]]:
    brokers: dict[int, Broker] = {}
    topics: dict[str, tuple[bool, int, list[Partition]]] = {}
    for kind, payload in answer:
        if kind == kinds.BROKERS:
            brokers |= {row[0]: Broker(*row) for row in payload}
        elif kind == kinds.TOPICS:
            for name, internal, min_isr, rows in payload:
                _, _, partitions = topics.setdefault(name, (internal, min_isr, []))
                partitions += [Partition(*row) for row in rows]
    return dict(sorted(brokers.items())), {
        name: Topic(name, *topics[name]) for name in sorted(topics)
    }


def _events(
    sources: Sequence[Source], said: dict[str, dict[str, Any]], before: tuple[Event, ...]
) -> tuple[Event, ...]:
    """The last events of all processes, the latest first; asked for if there are new ones."""
    found: list[Event] = []
    for source in sources:
        old = [each for each in before if each.process == source.name]
        last = max((each.number for each in old), default=0)
        try:
            is_new = source.name in said and said[source.name]["last_event"] != last
            answer = source.ask(EVENTS, TIMEOUT_S) if is_new else None
        except SourceUnavailable:
            answer = None
        found += old if answer is None else _events_of(source.name, answer)
    return tuple(sorted(found, key=lambda each: (each.time_ms, each.number), reverse=True))


def _events_of(process: str, answer: Sequence[Frame]) -> list[Event]:
    return [
        Event(time_ms, process, number, level, name, _shown(fields))
        for _, rows in answer
        for number, time_ms, level, _, name, fields in rows
    ]


def _shown(fields: dict[str, Any]) -> dict[str, str]:
    """The fields of an event as text."""
    shown = {}
    for key, value in fields.items():
        if isinstance(value, list):
            shown[key] = ", ".join(map(str, value))
        elif isinstance(value, float):
            shown[key] = f"{value:.3f}"
        else:
            shown[key] = "none" if value is None else str(value)
    return shown


def _broker(said: dict[str, Any] | None) -> BrokerProcess | None:
    if said is None:
        return None
    address = said["address"]
    return BrokerProcess(
        said["state"],
        said["in_touch"],
        said["heard_ms"],
        said["leader"],
        None if address is None else (address[0], address[1]),
    )


def _controller(said: dict[str, Any] | None) -> ControllerProcess | None:
    if said is None:
        return None
    return ControllerProcess(
        said["role"],
        said["leader"],
        said["term"],
        said["committed"],
        {id_: f"{host}:{port}" for id_, host, port in said["voters"]},
        [(id_, end, ago) for id_, end, ago in said["progress"]],
    )
