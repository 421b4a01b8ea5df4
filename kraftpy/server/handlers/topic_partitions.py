"""DescribeTopicPartitions (KIP-966): topics page by page, with the replicas that may lead.

Rules: topics come in the order of their names, all of them if none are named. A page ends after
`response_partition_limit` partitions, at most `PARTITIONS_PER_PAGE_MAX`, in the middle of a topic
if need be; the next cursor says where the next page begins. Topics that came or went in between
are no error: the cursor is a place in the order of names, not a snapshot.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING

from kraftpy.core.metadata import NO_LEADER, PartitionState, Topic
from kraftpy.core.metadata.topic_commands import topic_name_error
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kraftpy.server.cluster.operations import NOT_ASKED, topic_operations
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, distinct, in_parts

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

PARTITIONS_PER_PAGE_MAX = 2000

Described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
DescribedPartition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, long=True)
async def describe_topic_partitions(
    broker: Broker, ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """One page of topics with their partitions."""
    first_name, first_index = "", 0
    if request.cursor is not None:
        first_name, first_index = request.cursor.topic_name, request.cursor.partition_index
        if first_index < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition is 0 or more")
    left = max(1, min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
    named = await distinct(topic.name for topic in request.topics)
    sorted_parts = [
        sorted(name for name in some if name >= first_name)
        async for some in in_parts(named or list(broker.metadata.topics))
    ]
    response = DescribeTopicPartitionsResponse()
    view = ctx.session.view
    operations = topic_operations(view, asked=True)
    pace = Pace()
    for name in merge(*sorted_parts):
        await pace.keep()
        if view is not None and not view.may(Operation.DESCRIBE, Resource.TOPIC, name):
            if named:
                broker.audit.denied(view, Operation.DESCRIBE, Resource.TOPIC, name)
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                response.topics.append(
                    Described(error, name, topic_authorized_operations=NOT_ASKED)
                )
            continue
        topic = broker.metadata.topics.get(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        begin = first_index if name == first_name else 0
        end = min(begin + left, len(topic.partitions))
        if left:
            response.topics.append(_described(broker, topic, begin, end, operations(name)))
        if end < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(name, end)
            break
        left -= max(0, end - begin)
    return response


def _unknown(name: str) -> Described:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_name_error(name) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    return Described(error, name, topic_authorized_operations=NOT_ASKED)


def _described(broker: Broker, topic: Topic, begin: int, end: int, operations: int) -> Described:
    avoided = broker.avoided
    return Described(
        ErrorCode.NONE,
        topic.name,
        topic.id,
        topic.internal,
        [
            _partition(broker, avoided, index, topic.partitions[index])
            for index in range(begin, end)
        ],
        operations,
    )


def _partition(
    broker: Broker, avoided: frozenset[int], index: int, state: PartitionState
) -> DescribedPartition:
    leader = NO_LEADER if state.leader in avoided else state.leader
    return DescribedPartition(
        ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
        index,
        leader,
        state.leader_epoch,
        list(state.replicas),
        list(state.isr),
        list(state.elr),
        list(state.last_known_elr),
        [replica for replica in state.replicas if not broker.is_alive(replica)],
    )
