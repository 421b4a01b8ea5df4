"""Who leads instead, in answers to requests that came to the wrong broker (KIP-951).

A client that is told needs no Metadata request between the error and its next try. Versions of
Produce and Fetch that have no place for it leave it out when they are encoded.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import FetchResponse, ProduceResponse
from kraftpy.server.network.addresses import Node, node_for

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker
    from kraftpy.server.network.dispatch import RequestContext

WRONG_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def name_leaders_of_produce(broker: Broker, ctx: RequestContext, response: ProduceResponse) -> None:
    """Adds to each partition with such an error who leads it, and where those brokers are."""
    leaders: set[int] = set()
    for topic in response.responses:
        for answer in topic.partition_responses:
            found = _leader(broker, topic.name, answer.index, answer.error_code)
            if found is not None:
                answer.current_leader = ProduceResponse.LeaderIdAndEpoch(*found)
                leaders.add(found[0])
    response.node_endpoints = [
        ProduceResponse.NodeEndpoint(node.node_id, node.host, node.port, node.rack)
        for node in _nodes(broker, ctx, leaders)
    ]


def naming_leaders_of_fetch(
    broker: Broker, ctx: RequestContext, response: FetchResponse
) -> Generator[None, None, None]:
    """The same for a Fetch; yields where it could be interrupted."""
    leaders: set[int] = set()
    for topic in response.responses:
        known = broker.metadata.topics_by_id.get(topic.topic_id)
        name = topic.topic or (known.name if known is not None else "")
        for data in topic.partitions:
            found = _leader(broker, name, data.partition_index, data.error_code)
            if found is not None:
                data.current_leader = FetchResponse.LeaderIdAndEpoch(*found)
                leaders.add(found[0])
            yield
    response.node_endpoints = [
        FetchResponse.NodeEndpoint(node.node_id, node.host, node.port, node.rack)
        for node in _nodes(broker, ctx, leaders)
    ]


def naming_leaders_of_shares(
    broker: Broker, ctx: RequestContext, response: Any, kinds: Any
) -> Generator[None, None, None]:
    """The same for a ShareFetch or ShareAcknowledge, of whose response's class are `kinds`."""
    leaders: set[int] = set()
    for topic in response.responses:
        known = broker.metadata.topics_by_id.get(topic.topic_id)
        for data in topic.partitions:
            said = data.error_code or getattr(data, "acknowledge_error_code", 0)
            if said not in WRONG_LEADER:
                continue
            found = (
                None if known is None else _leader(broker, known.name, data.partition_index, said)
            )
            data.current_leader = kinds.LeaderIdAndEpoch(*(found or (-1, -1)))
            if found is not None:
                leaders.add(found[0])
            yield
    if leaders:
        response.node_endpoints = [
            kinds.NodeEndpoint(node.node_id, node.host, node.port, node.rack)
            for node in _nodes(broker, ctx, leaders)
        ]


def _leader(broker: Broker, topic: str, index: int, error: int) -> tuple[int, int] | None:
    """(leader, leader epoch) of a partition that `error` says is led elsewhere."""
    if error not in WRONG_LEADER:
        return None
    known = broker.metadata.topics.get(topic)
    state = None if known is None else known.partitions.get(index)
    if state is None or not broker.is_alive(state.leader) or state.leader in broker.avoided:
        return None
    return state.leader, state.leader_epoch


def _nodes(broker: Broker, ctx: RequestContext, ids: set[int]) -> list[Node]:
    return [node_for(broker.metadata.brokers[id_], ctx, broker.config) for id_ in sorted(ids)]
