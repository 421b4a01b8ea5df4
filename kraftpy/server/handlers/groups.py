"""Consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup,
OffsetCommit, OffsetFetch, OffsetDelete, DescribeGroups, ListGroups, DeleteGroups.

This module turns versions into one form and errors into the place where each response has them; the
rules are in `kraftpy.core.groups`. A request about one group fails as Kafka's does: with the error
at the top, per group, or on every partition, whatever the version has.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.core.groups import Client, OffsetRow, refused_offset
from kraftpy.core.groups.commits import commit_error_response
from kraftpy.core.groups.consumer.state import ConsumerGroupState
from kraftpy.core.groups.describing import (
    CLASSIC_GROUP_TYPE,
    CONSUMER_GROUP_TYPE,
    SHARE_GROUP_TYPE,
)
from kraftpy.core.groups.group import GroupState
from kraftpy.core.groups.individual.requests import ManyClaims
from kraftpy.core.metadata.records import OFFSETS_TOPIC
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import ACCEPT_INDIVIDUAL_COMMIT_TAG, WANT_RANGES_TAG, is_set
from kraftpy.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
)
from kraftpy.server.cluster.operations import group_operations
from kraftpy.server.coordination.offset_forwarding import forwarded
from kraftpy.server.coordination.runtime import answer_of
from kraftpy.server.handlers.claim_parts import commit_claims
from kraftpy.server.handlers.claims import (
    TagsOf,
    generation_tag,
    no_tags,
    row_maker,
    with_acceptance,
)
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, at_once, distinct, in_parts, in_slices

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

# Of a committed offset: what its record takes in the log beside the group's and the topic's names.
COMMIT_RECORD_MIN_BYTES = 40

_DELETED_TOGETHER = 100
# A request takes out so many members at a time; the other members rejoin once all the same, as
# that takes longer.
_LEAVING_TOGETHER = 1_000

_STATES = {each.value.lower() for each in (*GroupState, *ConsumerGroupState)}
_TYPES = {CLASSIC_GROUP_TYPE, CONSUMER_GROUP_TYPE, SHARE_GROUP_TYPE}

_FIRST_BATCHED_LEAVE = 3
_FIRST_DESCRIBE_WITH_NOT_FOUND = 6
_FIRST_FETCH_WITH_TOP_ERROR = 2
_FIRST_FETCH_OF_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10  # OffsetCommit and OffsetFetch (KIP-848)

Offsets = list[tuple[str, list[OffsetRow]]]
_Leaving = LeaveGroupRequest.MemberIdentity
Wanted = list[tuple[str, list[int]]]


@handles(ApiKey.JOIN_GROUP)
def join_group(
    broker: Broker, ctx: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """Enters a group and waits for the next generation."""
    ctx.patience_s = math.inf  # others may take their time
    try:
        response = broker.groups.join_group(client_of(ctx), request)
    except KafkaError as error:
        response = JoinGroupResponse(error_code=error.code, member_id=request.member_id)
    if is_set(request, ACCEPT_INDIVIDUAL_COMMIT_TAG):
        return with_acceptance(broker, response)
    return response


def client_of(ctx: RequestContext) -> Client:
    """Who asks, as groups show it."""
    view, may_describe = ctx.session.view, None
    if view is not None:
        may_describe = partial(view.may, Operation.DESCRIBE, Resource.TOPIC)
    return Client(ctx.api_version, ctx.client_id or "", f"/{ctx.session.host}", may_describe)


@handles(ApiKey.SYNC_GROUP)
def sync_group(
    broker: Broker, ctx: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    """Brings (the leader) and fetches the assignment of a generation."""
    ctx.patience_s = math.inf
    try:
        return broker.groups.sync_group(request)
    except KafkaError as error:
        return SyncGroupResponse(error_code=error.code)


@handles(ApiKey.HEARTBEAT)
def heartbeat(broker: Broker, ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keeps a member's session alive; tells it of a rebalance."""
    try:
        error = broker.groups.heartbeat(request)
    except KafkaError as raised:
        error = raised.code
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Its session starts afresh when the load is done; an error would make it rejoin.
            error = ErrorCode.NONE
    return HeartbeatResponse(error_code=error)


@handles(ApiKey.LEAVE_GROUP)
async def leave_group(
    broker: Broker, ctx: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    """Takes members out of a group: one up to version 2, any number since."""
    if ctx.api_version < _FIRST_BATCHED_LEAVE:
        identity = LeaveGroupRequest.MemberIdentity(member_id=request.member_id)
        request = LeaveGroupRequest(group_id=request.group_id, members=[identity])
    response = LeaveGroupResponse()
    pace = Pace()
    for members in _parts_of(request.members):
        await pace.keep()
        part = await _leave(broker, LeaveGroupRequest(request.group_id, members=members))
        if part.error_code:
            return part
        response.members += part.members
    if ctx.api_version < _FIRST_BATCHED_LEAVE and not response.error_code and response.members:
        response.error_code = response.members[0].error_code
    return response


def _parts_of(members: list[_Leaving]) -> Iterable[list[_Leaving]]:
    for start in range(0, max(1, len(members)), _LEAVING_TOGETHER):
        yield members[start : start + _LEAVING_TOGETHER]


async def _leave(broker: Broker, request: LeaveGroupRequest) -> LeaveGroupResponse:
    try:
        response = broker.groups.leave_group(request)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    return await answer_of(response)


@handles(ApiKey.OFFSET_COMMIT)
@forwarded
def offset_commit(
    broker: Broker, ctx: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commits offsets, all in one batch."""
    if ctx.api_version >= _FIRST_WITH_TOPIC_IDS:
        for topic in request.topics:
            topic.name = _name_of(broker, topic.topic_id)
    try:
        if ctx.many and exceeds_a_batch(broker, request):
            return _refuse_commit(request)
        return broker.groups.commit_offsets(ctx.api_version, request)
    except ManyClaims:
        return commit_claims(broker, ctx, request)
    except KafkaError as error:
        return commit_error_response(request, error.code)


def exceeds_a_batch(broker: Broker, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> bool:
    """Whether the commit's records can't be one batch of the offsets log, however small they are.

    It would be refused all the same, once they had been made.
    """
    count = sum(len(topic.partitions) for topic in request.topics)
    return count * COMMIT_RECORD_MIN_BYTES > broker.topic_config(OFFSETS_TOPIC).max_message_bytes


def _refuse_commit(request: OffsetCommitRequest) -> OffsetCommitResponse:
    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    kinds = OffsetCommitResponse
    return kinds(
        topics=elements(
            request.topics,
            lambda topic: kinds.OffsetCommitResponseTopic(
                topic.name,
                partitions=elements(
                    topic.partitions,
                    lambda each: kinds.OffsetCommitResponsePartition(each.partition_index, error),
                ),
            ),
        )
    )


@handles(ApiKey.OFFSET_FETCH, long=True)
@forwarded
def offset_fetch(
    broker: Broker, ctx: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """The last committed offsets of one group, or of several since version 8."""
    if ctx.api_version >= _FIRST_FETCH_OF_GROUPS:
        work = _fetch_groups(broker, ctx, request)
    else:
        work = _fetch_one(broker, ctx, request)
    return in_slices(work) if ctx.many else at_once(work)


def _fetch_one(
    broker: Broker, ctx: RequestContext, request: OffsetFetchRequest
) -> Generator[None, None, OffsetFetchResponse]:
    wanted = yield from _wanted_offsets(request.topics)
    try:
        found = _read(broker, ctx, wanted, request.group_id, stable=request.require_stable)
        return OffsetFetchResponse(topics=elements(found, _fetched))
    except KafkaError as error:
        if ctx.api_version >= _FIRST_FETCH_WITH_TOP_ERROR:
            return OffsetFetchResponse(error_code=error.code)
        refused: Offsets = [
            (name, [refused_offset(index, error.code) for index in indexes])
            for name, indexes in wanted or ()
        ]
        return OffsetFetchResponse(topics=elements(refused, _fetched))


def _fetch_groups(
    broker: Broker, ctx: RequestContext, request: OffsetFetchRequest
) -> Generator[None, None, OffsetFetchResponse]:
    # In the request itself: what is passed on to other brokers goes by it.
    request.groups = yield from _once(request.groups)
    groups = []
    for group in request.groups:
        wants = is_set(request, WANT_RANGES_TAG)
        groups.append((yield from _fetch_group(broker, ctx, group, request.require_stable, wants)))
        yield
    return OffsetFetchResponse(groups=groups)


def _read(
    broker: Broker,
    ctx: RequestContext,
    wanted: Wanted | None,
    group_id: str,
    *member: Any,
    stable: bool,
    wants_ranges: bool = False,
) -> Offsets:
    """A group's offsets, by topic, as they are when they are encoded. Raises KafkaError.

    They are read together; of many topics each for itself, so a commit may come in between.
    """
    fetch = partial(broker.groups.fetch_offsets, require_stable=stable, wants_ranges=wants_ranges)
    if wanted is None or not ctx.many:
        return elements(fetch(group_id, wanted, *member), lambda found: found)
    fetch(group_id, [], *member)
    return elements(wanted, lambda topic: fetch(group_id, [topic])()[0])


def _wanted_offsets(
    topics: Sequence[OffsetFetchRequest.OffsetFetchRequestTopic]
    | Sequence[OffsetFetchRequest.OffsetFetchRequestTopics]
    | None,
) -> Generator[None, None, Wanted | None]:
    """The partitions asked for, each once; None asks for all of the group's."""
    if topics is None:
        return None
    if len(topics) == 1:
        return [(topics[0].name, list(dict.fromkeys(topics[0].partition_indexes)))]
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        yield
    once: Wanted = []
    for name, indexes in wanted.items():
        once.append((name, list(indexes)))
        yield
    return once


def _once(
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup],
) -> Generator[None, None, list[OffsetFetchRequest.OffsetFetchRequestGroup]]:
    """Each group once, asked for all that was asked for it; as the first member that asked."""
    if len(groups) < 2:
        return groups
    once: dict[str, OffsetFetchRequest.OffsetFetchRequestGroup] = {}
    for group in groups:
        yield
        first = once.setdefault(group.group_id, group)
        if group is first or first.topics is None:
            continue
        if group.topics is None:
            first.topics = None
        else:
            first.topics.extend(group.topics)
    return list(once.values())


def _fetched(found: tuple[str, list[OffsetRow]]) -> OffsetFetchResponse.OffsetFetchResponseTopic:
    name, rows = found
    return OffsetFetchResponse.OffsetFetchResponseTopic(
        name,
        elements(rows, lambda row: OffsetFetchResponse.OffsetFetchResponsePartition(*row)),
    )


def _fetch_group(
    broker: Broker,
    ctx: RequestContext,
    request: OffsetFetchRequest.OffsetFetchRequestGroup,
    stable: bool,
    wants_ranges: bool,
) -> Generator[None, None, OffsetFetchResponse.OffsetFetchResponseGroup]:
    by_id = ctx.api_version >= _FIRST_WITH_TOPIC_IDS
    topics = request.topics
    unknown: dict[bytes, dict[int, None]] = {}
    if by_id and topics is not None:
        named = []
        for topic in topics:
            yield
            topic.name = _name_of(broker, topic.topic_id)
            if topic.name:
                named.append(topic)
            else:
                asked = unknown.setdefault(topic.topic_id, {})
                asked.update(dict.fromkeys(topic.partition_indexes))
        topics = named
    wanted = yield from _wanted_offsets(topics)
    refused = []
    for topic_id, indexes in unknown.items():
        yield
        error = ErrorCode.UNKNOWN_TOPIC_ID
        refused.append((topic_id, [refused_offset(index, error) for index in indexes]))
    response = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=request.group_id)
    member = request.member_id, request.member_epoch
    try:
        offsets = _read(
            broker,
            ctx,
            wanted,
            request.group_id,
            *member,
            stable=stable,
            wants_ranges=wants_ranges,
        )
        tags: TagsOf = no_tags
        if wants_ranges:
            tags = broker.groups.claims_of(request.group_id)
            response._tags = generation_tag(broker, request.group_id)
    except KafkaError as error:
        response.error_code = error.code
        return response

    def read() -> Offsets:
        if ctx.answer_full:
            response.error_code = ErrorCode.INVALID_REQUEST  # it comes behind the topics
            return []
        return offsets

    if by_id:
        by_id_of = partial(_fetched_by_id, broker, tags)
        response.topics = elements(lambda: _with_ids(broker, read()) + refused, by_id_of)
    else:
        response.topics = elements(read, partial(_fetched_of_group, tags))
    return response


def _name_of(broker: Broker, topic_id: bytes) -> str:
    """The topic's name, "" if nobody has that id."""
    topic = broker.metadata.topics_by_id.get(topic_id)
    return "" if topic is None else topic.name


def _with_ids(broker: Broker, offsets: Offsets) -> list[tuple[bytes, list[OffsetRow]]]:
    """By topic id; what is kept for a topic that is gone has none, and is about to go as well."""
    named = ((broker.metadata.topics.get(name), rows) for name, rows in offsets)
    return [(topic.id, rows) for topic, rows in named if topic is not None]


def _fetched_by_id(
    broker: Broker, tags: TagsOf, found: tuple[bytes, list[OffsetRow]]
) -> OffsetFetchResponse.OffsetFetchResponseTopics:
    topic_id, rows = found
    return OffsetFetchResponse.OffsetFetchResponseTopics(
        topic_id=topic_id,
        partitions=elements(rows, row_maker(tags, lambda: _name_of(broker, topic_id))),
    )


def _fetched_of_group(
    tags: TagsOf, found: tuple[str, list[OffsetRow]]
) -> OffsetFetchResponse.OffsetFetchResponseTopics:
    name, rows = found
    return OffsetFetchResponse.OffsetFetchResponseTopics(
        name=name, partitions=elements(rows, row_maker(tags, lambda: name))
    )


@handles(ApiKey.OFFSET_DELETE)
@forwarded
def offset_delete(
    broker: Broker, ctx: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    """Deletes committed offsets of topics that the group does not read (KIP-496)."""
    try:
        return broker.groups.delete_offsets(request)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)


@handles(ApiKey.DESCRIBE_GROUPS, long=True)
async def describe_groups(
    broker: Broker, ctx: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """State, members and assignments of groups, each once."""
    names = await distinct(request.groups)
    operations = group_operations(ctx.session.view, request.include_authorized_operations)
    describe = partial(_describe, broker, ctx.api_version, operations)
    return DescribeGroupsResponse(groups=elements(names, describe, ctx, _refuse_group))


def _describe(
    broker: Broker, version: int, operations: Callable[[str], int], group_id: str
) -> DescribeGroupsResponse.DescribedGroup:
    try:
        group = broker.groups.describe_group(group_id)
    except KafkaError as error:
        return DescribeGroupsResponse.DescribedGroup(error_code=error.code, group_id=group_id)
    if (
        version >= _FIRST_DESCRIBE_WITH_NOT_FOUND
        and group.group_state == GroupState.DEAD.value
        and not group.error_code
    ):
        group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        group.error_message = f"there is no classic group {group.group_id!r}"
    if not group.error_code:
        group.authorized_operations = operations(group_id)
    return group


def _refuse_group(group_id: str) -> DescribeGroupsResponse.DescribedGroup:
    """It doesn't fit into the answer."""
    return DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.INVALID_REQUEST, group_id=group_id
    )


@handles(ApiKey.LIST_GROUPS, long=True)
async def list_groups(
    broker: Broker, ctx: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    """The groups that this broker coordinates."""
    groups: list[ListGroupsResponse.ListedGroup] = []
    states = await _that_may_fit(request.states_filter, _STATES)
    types = await _that_may_fit(request.types_filter, _TYPES)
    pace = Pace()
    view = ctx.session.view
    if view is not None and view.may_cluster(Operation.DESCRIBE):
        view = None
    try:
        for some in broker.groups.list_groups(states, types):
            for each in some:
                if view is None or view.may(Operation.DESCRIBE, Resource.GROUP, each.group_id):
                    groups.append(each)
            await pace.keep()
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=groups)


async def _that_may_fit(names: Iterable[str], known: Collection[str]) -> list[str]:
    """The names that are known, in small letters; one stands for all others."""
    found: set[str] = set()
    async for some in in_parts(names):
        found.update(each.lower() if each.lower() in known else "" for each in some)
    return list(found)


@handles(ApiKey.DELETE_GROUPS, long=True)
async def delete_groups(
    broker: Broker, ctx: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Deletes empty groups with all their offsets (KIP-229)."""
    names = await distinct(request.groups_names)
    errors: list[ErrorCode] = []
    for start in range(0, len(names), _DELETED_TOGETHER):
        some = names[start : start + _DELETED_TOGETHER]
        errors += await asyncio.gather(*_deletions(broker, some))

    def result(number: int) -> DeleteGroupsResponse.DeletableGroupResult:
        name, error = names[number], errors[number]
        return DeleteGroupsResponse.DeletableGroupResult(
            name, error, error.message if error else None
        )

    return DeleteGroupsResponse(results=elements(range(len(names)), result))


def _deletions(broker: Broker, names: Iterable[str]) -> Iterable[asyncio.Future[ErrorCode]]:
    for name in names:
        future: asyncio.Future[ErrorCode] = broker.loop.create_future()
        try:
            result = broker.share_groups.delete_group(name)
        except KafkaError as error:
            result = error.code
        if isinstance(result, ErrorCode):
            future.set_result(result)
            yield future
        else:
            yield result
