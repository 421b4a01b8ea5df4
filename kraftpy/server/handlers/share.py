"""ShareFetch and ShareAcknowledge (KIP-932, KIP-1206, KIP-1222), of members of share groups.

Rules:

* Both are of a session (`core.leases.sessions`), whose epoch they share. What begins one can't
  acknowledge anything. What ends one says what there is to be said, and gives the rest back.
* Acknowledgements are judged when a request comes, a partition's as a whole, and answered when what
  they say is kept; a fetch leases records meanwhile, or waits for some. When it's woken, nothing is
  judged a second time.
* Who may say RENEW says so (`is_renew_ack`), and fetches nothing with that.
* Records are whole batches, as slices of files; `acquired_records` says which of them are the
  member's. A fetch that got something, or an error, is answered at once.
* Which member ids a group has isn't looked at, as in Kafka: whoever may read the group is one.
* Who finds no room for another session hears so when it would have waited for records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from kraftpy.core.leases import Acknowledgement
from kraftpy.core.leases.judging import ACKNOWLEDGEMENTS_MAX
from kraftpy.core.leases.sessions import FINAL_EPOCH, INITIAL_EPOCH, Key, ShareSession
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kraftpy.server.cluster.features import require_share_groups
from kraftpy.server.handlers.leader_hints import naming_leaders_of_shares
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.share_fetch import ShareFetch
from kraftpy.server.handlers.share_rights import led_partition
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, in_slices

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

MEMBER_ID_MAX: Final = 36
ANSWER_WITHIN_S: Final = 20.0
"""What isn't known to be kept by then is answered with REQUEST_TIMED_OUT; it may be kept yet."""

Said = dict[Key, ErrorCode | asyncio.Future[ErrorCode]]
"""What became of the acknowledgements of each partition, or will be known to have."""


@handles(ApiKey.SHARE_FETCH)
async def share_fetch(
    broker: Broker, ctx: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse:
    """Leases records to a member, as many as it wants and waits for."""
    group, member = _who(broker, request.group_id, request.member_id)
    if request.is_renew_ack and (
        request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms
    ):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "who renews leases fetches nothing with that: max_bytes, min_bytes, max_records and "
            "max_wait_ms have to be 0",
        )
    named = await _named(request.topics)
    sessions, connection = broker.leases.sessions, ctx.session.peer
    epoch = request.share_session_epoch
    fetch: ShareFetch | None = None
    if epoch == INITIAL_EPOCH:
        if any(named.values()):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "what begins a session has nothing to acknowledge yet"
            )
        session = await _begun(broker, ctx, group, member, named, request.max_wait_ms)
    elif epoch == FINAL_EPOCH:
        session = sessions.find(group, member)
    else:
        session = sessions.resume(group, member, epoch, connection)
    said = await _acknowledge(broker, ctx, session, named, may_renew=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        broker.leases.end(session)
    else:
        if epoch != INITIAL_EPOCH:
            forgotten = [
                (topic.topic_id, index)
                for topic in request.forgotten_topics_data
                for index in topic.partitions
            ]
            broker.leases.update(session, named, forgotten)
        fetch = ShareFetch(broker, ctx, request, session)
        await fetch.run()
    await _settled(said)
    if fetch is not None:
        fetch.take_back_if_too_much()
    response = ShareFetchResponse(acquisition_lock_timeout_ms=_lock_ms(broker, group))
    kinds = ShareFetchResponse
    answers = {} if fetch is None else fetch.answers
    for key, error in said.items():
        data = answers.get(key)
        if data is None:
            data = answers[key] = kinds.PartitionData(key[1], records=[], acquired_records=[])
        code = _known(error)
        if code:
            ctx.errors[code] += 1
            data.acknowledge_error_code = code
            data.acknowledge_error_message = code.message
    _put(response, answers, kinds.ShareFetchableTopicResponse)
    await in_slices(naming_leaders_of_shares(broker, ctx, response, kinds))
    return response


@handles(ApiKey.SHARE_ACKNOWLEDGE)
async def share_acknowledge(
    broker: Broker, ctx: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Takes what a member says of its records."""
    group, member = _who(broker, request.group_id, request.member_id)
    named = await _named(request.topics)
    epoch = request.share_session_epoch
    if epoch == INITIAL_EPOCH:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    if epoch == FINAL_EPOCH:
        session = broker.leases.sessions.find(group, member)
    else:
        session = broker.leases.sessions.resume(group, member, epoch, ctx.session.peer)
    said = await _acknowledge(broker, ctx, session, named, may_renew=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        broker.leases.end(session)
    await _settled(said)
    kinds = ShareAcknowledgeResponse
    answers: dict[Key, Any] = {}
    for key, error in said.items():
        code = _known(error)
        message = code.message if code else None
        answers[key] = kinds.PartitionData(key[1], code, message)
    response = kinds(acquisition_lock_timeout_ms=_lock_ms(broker, group))
    _put(response, answers, kinds.ShareAcknowledgeTopicResponse)
    await in_slices(naming_leaders_of_shares(broker, ctx, response, kinds))
    return response


# -- requests


def _who(broker: Broker, group: str | None, member: str | None) -> tuple[str, str]:
    """The group and its member. Raises KafkaError."""
    require_share_groups(broker.metadata)
    if not group:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "there is no group id")
    if not member or len(member) > MEMBER_ID_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a member id has 1 to {MEMBER_ID_MAX} characters"
        )
    return group, member


async def _named(topics: Iterable[Any]) -> dict[Key, list[Any]]:
    """The partitions of a request, with the acknowledgements of each."""
    found: dict[Key, list[Any]] = {}
    pace = Pace()
    for topic in topics:
        for each in topic.partitions:
            key = topic.topic_id, each.partition_index
            before = found.get(key)
            if before is None:
                found[key] = each.acknowledgement_batches
            else:
                before.extend(each.acknowledgement_batches)
            await pace.keep()
    return found


async def _begun(
    broker: Broker,
    ctx: RequestContext,
    group: str,
    member: str,
    named: Iterable[Key],
    max_wait_ms: int,
) -> ShareSession:
    """Raises SHARE_SESSION_LIMIT_REACHED, but not at once: clients ask again at once."""
    try:
        return broker.leases.begin(group, member, list(named), ctx.session.peer)
    except KafkaError:
        ctx.patience_s = ctx.session.patience_s(max_wait_ms, broker.loop.time())
        await asyncio.sleep(max(ctx.patience_s, 0))
        raise


# -- acknowledgements


async def _acknowledge(
    broker: Broker,
    ctx: RequestContext,
    session: ShareSession,
    named: dict[Key, list[Any]],
    *,
    may_renew: bool,
) -> Said:
    """Has all partitions' acknowledgements judged."""
    said: Said = {}
    pace = Pace()
    for key, batches in named.items():
        if batches:
            said[key] = _judge(broker, ctx, session, key, batches, may_renew)
            await pace.keep()
    return said


def _judge(
    broker: Broker,
    ctx: RequestContext,
    session: ShareSession,
    key: Key,
    batches: list[Any],
    may_renew: bool,
) -> ErrorCode | asyncio.Future[ErrorCode]:
    try:
        partition = led_partition(broker, ctx, key)
    except KafkaError as failure:
        return failure.code
    if len(batches) > ACKNOWLEDGEMENTS_MAX:  # before each is looked at
        return ErrorCode.INVALID_REQUEST
    if any(AcknowledgeType.RENEW in each.acknowledge_types for each in batches):
        if not may_renew:
            return ErrorCode.INVALID_REQUEST
        if not broker.leases.settings(session.group).may_renew:
            return ErrorCode.INVALID_RECORD_STATE
    table = broker.leases.open_table(session.group, partition)
    if table is None:  # what isn't leased can't be acknowledged
        return ErrorCode.INVALID_RECORD_STATE
    return table.acknowledge(
        session.member,
        [
            Acknowledgement(each.first_offset, each.last_offset, each.acknowledge_types)
            for each in batches
        ],
    )


async def _settled(said: Said) -> None:
    """Returns when it is known what became of them, or hasn't been for too long."""
    futures = [each for each in said.values() if isinstance(each, asyncio.Future)]
    if futures:
        await asyncio.wait(futures, timeout=ANSWER_WITHIN_S)


def _known(said: ErrorCode | asyncio.Future[ErrorCode]) -> ErrorCode:
    if not isinstance(said, asyncio.Future):
        return said
    return said.result() if said.done() else ErrorCode.REQUEST_TIMED_OUT


# -- answers


def _lock_ms(broker: Broker, group: str) -> int:
    return broker.leases.settings(group).limits.lock_ms


def _put(response: Any, answers: dict[Key, Any], kind: Callable[..., Any]) -> None:
    """Puts partitions' answers into the response, by topic."""
    topics: dict[bytes, Any] = {}
    for (topic_id, _), data in answers.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = kind(topic_id, [])
            response.responses.append(topic)
        topic.partitions.append(data)
