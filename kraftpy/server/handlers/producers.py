"""DescribeProducers 0 (KIP-664): what a replica knows of producers, and since when they write.

Any replica answers, as it was asked: an operator may want to know of each. A partition that is
named twice is answered once. Where there are ACLs, READ of the topic is asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kraftpy.core.metadata.topic_commands import topic_name_error
from kraftpy.core.producers import ProducerState
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import DescribeProducersRequest, DescribeProducersResponse
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

Topic = DescribeProducersResponse.TopicResponse
Described = DescribeProducersResponse.PartitionResponse
Producer = DescribeProducersResponse.ProducerState


@handles(ApiKey.DESCRIBE_PRODUCERS, long=True)
async def describe_producers(
    broker: Broker, ctx: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The producers of the partitions that are named, idempotent ones and others."""
    wanted: dict[str, dict[int, None]] = {}
    pace = Pace()
    for topic in request.topics:
        await pace.keep()
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))

    def of_topic(item: tuple[str, dict[int, None]]) -> Topic:
        name, indexes = item
        return Topic(name, elements(list(indexes), partial(_describe, broker, name), ctx, _refuse))

    return DescribeProducersResponse(topics=elements(list(wanted.items()), of_topic))


def _refuse(index: int) -> Described:
    """It doesn't fit into the answer."""
    return Described(index, ErrorCode.INVALID_REQUEST, "ask for fewer partitions at a time")


def _describe(broker: Broker, topic: str, index: int) -> Described:
    partition = broker.replicas.replica(topic, index)
    if partition is not None:
        return Described(
            index, active_producers=elements(partition.log.producers.active(), _producer)
        )
    if (wrong := topic_name_error(topic)) is not None:
        return Described(index, ErrorCode.INVALID_TOPIC_EXCEPTION, wrong)
    return Described(index, broker.missing_partition_error(topic, index))


def _producer(item: tuple[int, ProducerState]) -> Producer:
    producer_id, state = item
    return Producer(
        producer_id,
        state.epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.txn_first_offset,
    )
