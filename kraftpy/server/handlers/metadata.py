"""Metadata (KIP-516 topic ids): who is there, which topics, who leads.

The address of this broker is the one that the client connected to, unless `advertised.listeners`
says otherwise (docs/protocol.md): no listener dance on a laptop. A topic that doesn't exist is
created on the way if both the client and `auto.create.topics.enable` allow it, and the answer has
it. The broker's own topics aren't: with a topic's defaults they would lose what is committed in
them. What is named more than once is answered once, as Kafka does.

While COOPERATIVE_FEATURE is in use, a client that asks by ACCEPT_RANGE_FETCH_TAG is told of each
topic whether parts of its partitions may be read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import TYPE_CHECKING

from kraftpy.core.metadata import NO_LEADER, PartitionState, Topic
from kraftpy.core.metadata.records import INTERNAL_TOPICS
from kraftpy.core.metadata.topic_commands import topic_name_error
from kraftpy.core.security.acls import CLUSTER_NAME, Operation, Resource
from kraftpy.core.security.authorizer import View
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import ACCEPT_RANGE_FETCH_TAG, COOPERATIVE_FEATURE, NO, YES, is_set
from kraftpy.protocol.messages import MetadataRequest, MetadataResponse
from kraftpy.server.cluster.operations import NOT_ASKED, cluster_operations, topic_operations
from kraftpy.server.handlers.auto_creation import auto_create_topics
from kraftpy.server.handlers.mutation_quotas import Mutations
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import note_need
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, distinct

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

NO_ID = bytes(16)
CREATED_TOGETHER_MAX = 100
FIRST_VERSION_WITH_EMPTY_MEANING_NONE = 1
FIRST_VERSION_WITH_IDS = 12

TopicAnswer = MetadataResponse.MetadataResponseTopic


@handles(ApiKey.METADATA, long=True)
async def metadata(
    broker: Broker, ctx: RequestContext, request: MetadataRequest
) -> MetadataResponse:
    """Brokers, controller, and the topics asked for (all of them if none are named)."""
    topics = request.topics
    everything = topics is None or (
        not topics and ctx.api_version < FIRST_VERSION_WITH_EMPTY_MEANING_NONE
    )
    view = ctx.session.view
    operations = topic_operations(view, request.include_topic_authorized_operations)
    in_parts = broker.metadata.features.get(COOPERATIVE_FEATURE)
    asked = in_parts and is_set(request, ACCEPT_RANGE_FETCH_TAG)
    describe = partial(_describe_with_range_fetch if asked else _describe, broker, operations)
    mutations: Mutations | None = None
    if everything or topics is None:
        known = list(broker.metadata.topics.values())
        if view is not None:
            known = await _visible(view, known)
        answers = elements(known, describe, ctx, _refuse_topic)
    else:
        wanted = await distinct((each.name, each.topic_id) for each in topics)
        errors: dict[str, ErrorCode] = {}
        if request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
            names = (name for name, _ in wanted if name is not None)
            mutations = Mutations(broker, ctx)
            errors = await _create_missing(broker, ctx, names, mutations)
        look_up = partial(_look_up, broker, ctx.api_version, operations, errors, describe)
        if view is not None:
            look_up = partial(_look_up_by_rights, broker, view, look_up)
        answers = elements(wanted, look_up, ctx, _refuse)
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node.node_id, node.host, node.port, node.rack)
            for node in broker.nodes_for_metadata(ctx)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id(),
        topics=answers,
        cluster_authorized_operations=cluster_operations(
            view, request.include_cluster_authorized_operations
        ),
    )
    if mutations is not None:
        mutations.answered(response)
    return response


async def _visible(view: View, topics: Iterable[Topic]) -> list[Topic]:
    """Those that the client may know of."""
    found = []
    pace = Pace()
    for topic in topics:
        await pace.keep()
        if view.may(Operation.DESCRIBE, Resource.TOPIC, topic.name):
            found.append(topic)
    return found


async def _create_missing(
    broker: Broker, ctx: RequestContext, names: Iterable[str], mutations: Mutations
) -> dict[str, ErrorCode]:
    """Creates topics; why not, for those that it doesn't create."""
    view = ctx.session.view
    refused: dict[str, ErrorCode] = {}
    missing: dict[str, None] = {}
    pace = Pace()
    for name in names:
        await pace.keep()
        if (
            name not in broker.metadata.topics
            and name not in INTERNAL_TOPICS
            and topic_name_error(name) is None
        ):
            if view is not None and not _may_create(ctx, view, name):
                if view.may(Operation.DESCRIBE, Resource.TOPIC, name):
                    broker.audit.denied(view, Operation.CREATE, Resource.TOPIC, name)
                refused[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            missing[name] = None
            if len(missing) == CREATED_TOGETHER_MAX:
                break  # clients ask again for the others
    if not missing:
        return refused
    return refused | await auto_create_topics(broker, mutations, list(missing))


def _may_create(ctx: RequestContext, view: View, name: str) -> bool:
    """Whether the client's mention of a topic may create it."""
    if not view.may(Operation.DESCRIBE, Resource.TOPIC, name):
        return False
    for need in (
        (Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME),
        (Operation.CREATE, Resource.TOPIC, name),
    ):
        if view.may(*need):
            note_need(ctx, need)
            return True
    return False


_Wanted = tuple[str | None, bytes]


def _look_up_by_rights(
    broker: Broker, view: View, look_up: Callable[[_Wanted], TopicAnswer], wanted: _Wanted
) -> TopicAnswer:
    """Of what the client may not know of nothing but what it has said."""
    name, topic_id = wanted
    known = name
    if topic_id != NO_ID or name is None:
        topic = broker.metadata.topics_by_id.get(topic_id)
        known = None if topic is None else topic.name
    if known is None or view.may(Operation.DESCRIBE, Resource.TOPIC, known):
        return look_up(wanted)
    broker.audit.denied(view, Operation.DESCRIBE, Resource.TOPIC, known)
    return TopicAnswer(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=name,
        topic_id=topic_id,
        topic_authorized_operations=NOT_ASKED,
    )


def _look_up(
    broker: Broker,
    version: int,
    operations: Callable[[str], int],
    errors: dict[str, ErrorCode],
    describe: Callable[[Topic], TopicAnswer],
    wanted: _Wanted,
) -> TopicAnswer:
    name, topic_id = wanted
    by_id = topic_id != NO_ID
    # Versions 10 and 11 have a place for an id, and for no name, but Kafka takes neither there.
    if name is None if not by_id else version < FIRST_VERSION_WITH_IDS:
        return _refuse(wanted)
    if by_id or name is None:
        topic = broker.metadata.topics_by_id.get(topic_id)
        if topic is None:
            return TopicAnswer(
                ErrorCode.UNKNOWN_TOPIC_ID,
                name=None,
                topic_id=topic_id,
                topic_authorized_operations=operations(""),
            )
        return describe(topic)
    topic = broker.metadata.topics.get(name)
    if topic is not None:
        return describe(topic)
    error = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic_name_error(name) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    return TopicAnswer(error, name=name, topic_authorized_operations=operations(name))


def _refuse(wanted: _Wanted) -> TopicAnswer:
    """It makes no sense, or doesn't fit into the answer."""
    name, topic_id = wanted
    return TopicAnswer(
        ErrorCode.INVALID_REQUEST,
        name=name,
        topic_id=topic_id,
        topic_authorized_operations=NOT_ASKED,
    )


def _refuse_topic(topic: Topic) -> TopicAnswer:
    return _refuse((topic.name, topic.id))


def _describe(broker: Broker, operations: Callable[[str], int], topic: Topic) -> TopicAnswer:
    return TopicAnswer(
        ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=elements(
            list(topic.partitions.items()), partial(_partition, broker, broker.avoided)
        ),
        topic_authorized_operations=operations(topic.name),
    )


def _describe_with_range_fetch(
    broker: Broker, operations: Callable[[str], int], topic: Topic
) -> TopicAnswer:
    answer = _describe(broker, operations, topic)
    accepts = broker.topic_config(topic.name).accept_range_fetch
    answer._tags = {ACCEPT_RANGE_FETCH_TAG: YES if accepts else NO}
    return answer


def _partition(
    broker: Broker, avoided: Container[int], partition: tuple[int, PartitionState]
) -> MetadataResponse.MetadataResponsePartition:
    index, state = partition
    # Better ask again, or somebody else, than go there.
    leader = NO_LEADER if state.leader in avoided else state.leader
    return MetadataResponse.MetadataResponsePartition(
        ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        index,
        leader,
        state.leader_epoch,
        list(state.replicas),
        list(state.isr),
        [node for node in state.replicas if not broker.is_alive(node)],
    )
