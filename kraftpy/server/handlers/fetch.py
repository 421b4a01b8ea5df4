"""Fetch (KIP-74, KIP-98, KIP-227, KIP-320, KIP-516): the other hot path.

Answers carry slices of segment files, no bytes: whole batches, up to the partition's and the
request's limits, at least one batch for the first partition that has any (KIP-74). Versions from 13
name topics by id. A request whose data is less than `min_bytes` waits, woken by the partitions it
asks for, for at most `max_wait_ms`; an error or a moved leader ends the wait at once.

Consumers see records below the high watermark, below the last stable offset with read_committed,
then with the list of aborted transactions of the range. From version 11 on they may read from a
follower too, and the leader names the one in their rack if `replica.selector.class` says so
(KIP-392). Followers' own fetches are `server.replication.follower_fetch`'s; what versions 17
and 18 let a follower say (its directory, the high watermark that it knows) isn't asked for there.
Versions 0 to 3 are `converted_fetch`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import TYPE_CHECKING

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import FetchRequest, FetchResponse
from kraftpy.server.handlers.consumer_fetch import TOGETHER_MAX, Fetch, LongFetch
from kraftpy.server.handlers.converted_fetch import ConvertedFetch
from kraftpy.server.handlers.cooperative_fetch import (
    CooperativeFetch,
    cooperation_of,
    fetch_cooperatively,
)
from kraftpy.server.handlers.range_fetch import RangeFetch, note_key_ranges, read_key_ranges
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import in_parts
from kraftpy.server.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION_ID,
    FetchPartition,
    FetchSession,
    Key,
)
from kraftpy.server.replication.follower_fetch import fetch_for_follower

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

FIRST_VERSION_WITH_BATCHES = 4
TOPIC_ID_VERSION = 13


class Kinds(NamedTuple):
    """How consumers' fetches are served: one, one of many partitions, one of keys, an old one, one
    of a member that is leased batches."""

    one: type[Fetch]
    long: type[LongFetch]
    ranged: type[RangeFetch]
    converted: type[ConvertedFetch]
    cooperative: type[CooperativeFetch]


OPEN = Kinds(Fetch, LongFetch, RangeFetch, ConvertedFetch, CooperativeFetch)
"""Where nobody needs rights; `authorization.fetches` has the others."""


def fetch_as(
    broker: Broker, ctx: RequestContext, request: FetchRequest, kinds: Kinds = OPEN
) -> FetchResponse | Awaitable[FetchResponse]:
    """Reads what is there; waits if that is too little."""
    if ctx.api_version < FIRST_VERSION_WITH_BATCHES:
        return _fetch_converted(broker, ctx, request, kinds)
    state = request.replica_state
    is_replica = (request.replica_id if state is None else state.replica_id) >= 0
    by_id = ctx.api_version >= TOPIC_ID_VERSION
    if request._tags is not None:
        try:
            if (cooperation := cooperation_of(broker, request)) is not None:
                if is_replica:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)  # it has all records
                topics, kind = _one_by_one(request), kinds.cooperative
                return fetch_cooperatively(broker, ctx, request, cooperation, topics, by_id, kind)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
    if is_replica:
        return fetch_for_follower(broker, ctx, request)
    if ctx.many:
        return _fetch_many(broker, ctx, request, by_id, kinds)
    ranged: dict[Key, bytes] = {}
    wanted = _wanted(broker, request.topics, by_id, ranged)
    if ranged:
        return _fetch_in_ranges(broker, ctx, request, wanted, by_id, ranged, kinds)
    if len(wanted) > TOGETHER_MAX:
        wanted = list({each.key: each for each in wanted}.values())  # the last counts, as in Kafka
    try:
        session, incremental = _session(broker, ctx, request, wanted, by_id)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if session is not None and session.ranged:
        return kinds.ranged(broker, ctx, request, session, wanted, incremental, by_id).run()
    if len(wanted if session is None else session.partitions) <= TOGETHER_MAX:
        return kinds.one(broker, ctx, request, session, wanted, incremental, by_id).start()
    return kinds.long(broker, ctx, request, session, wanted, incremental, by_id).run()


fetch = handles(ApiKey.FETCH)(fetch_as)


async def _fetch_converted(
    broker: Broker, ctx: RequestContext, request: FetchRequest, kinds: Kinds
) -> FetchResponse:
    once: dict[Key, FetchPartition] = {}
    async for some in _one_by_one(request):
        once.update({each.key: each for each in _wanted(broker, some, False, {})})
    wanted = list(once.values())
    return await kinds.converted(broker, ctx, request, None, wanted, False, False).run()


def _one_by_one(request: FetchRequest) -> AsyncIterator[list[FetchRequest.FetchTopic]]:
    return in_parts(
        FetchRequest.FetchTopic(topic.topic, topic.topic_id, [partition])
        for topic in request.topics
        for partition in topic.partitions
    )


async def _fetch_many(
    broker: Broker, ctx: RequestContext, request: FetchRequest, by_id: bool, kinds: Kinds
) -> FetchResponse:
    once: dict[Key, FetchPartition] = {}
    ranged: dict[Key, bytes] = {}
    async for some in _one_by_one(request):
        once.update({each.key: each for each in _wanted(broker, some, by_id, ranged)})
    wanted = list(once.values())
    if ranged:
        return await _fetch_in_ranges(broker, ctx, request, wanted, by_id, ranged, kinds)
    try:
        session, incremental = _session(broker, ctx, request, wanted, by_id)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    kind = kinds.ranged if session is not None and session.ranged else kinds.long
    return await kind(broker, ctx, request, session, wanted, incremental, by_id).run()


async def _fetch_in_ranges(
    broker: Broker,
    ctx: RequestContext,
    request: FetchRequest,
    wanted: list[FetchPartition],
    by_id: bool,
    ranged: dict[Key, bytes],
    kinds: Kinds,
) -> FetchResponse:
    wanted = list({each.key: each for each in wanted}.values())
    try:
        await read_key_ranges(wanted, ranged)
        session, incremental = _session(broker, ctx, request, wanted, by_id)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    return await kinds.ranged(broker, ctx, request, session, wanted, incremental, by_id).run()


def _wanted(
    broker: Broker,
    topics: Iterable[FetchRequest.FetchTopic],
    by_id: bool,
    ranged: dict[Key, bytes],
) -> list[FetchPartition]:
    """What is asked of each partition; `ranged` gets what says the slices that are wanted."""
    return [
        FetchPartition(
            topic.topic_id if by_id else topic.topic,
            p.partition,
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
            None
            if p._tags is None
            else note_key_ranges(
                broker,
                (topic.topic_id if by_id else topic.topic, p.partition),
                p._tags,
                ranged,
            ),
        )
        for topic in topics
        for p in topic.partitions
    ]


def _session(
    broker: Broker,
    ctx: RequestContext,
    request: FetchRequest,
    wanted: list[FetchPartition],
    by_id: bool,
) -> tuple[FetchSession | None, bool]:
    """The request's session if it has one, and whether the answer is incremental (KIP-227)."""
    sessions, now_ms = broker.fetch_sessions, broker.now_ms()
    session_id, epoch = request.session_id, request.session_epoch
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session_id != NO_SESSION_ID:
            sessions.close(session_id)
        if epoch == FINAL_EPOCH:
            return None, False
        created = sessions.create(wanted, ctx.session.peer, now_ms)
        if created is not None:
            created.principal = ctx.session.principal
        return created, False
    session = sessions.resume(session_id, epoch, ctx.session.peer, now_ms)
    if session.by_id != by_id:
        raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    forgotten = [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    sessions.update(session, wanted, forgotten, now_ms)
    return session, True
