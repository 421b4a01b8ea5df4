"""Offset requests that reach another broker than the group's coordinator are passed on to it.

So a simple client may send OffsetCommit, OffsetFetch and OffsetDelete to any broker
(docs/offsets.md). FindCoordinator still names the better way.

Rules that it keeps:

* Only what this broker's own coordinator answered with NOT_COORDINATOR is passed on; a broker that
  coordinates the group, the only one of a cluster for instance, has nothing to do with all this.
* A request is passed on once, in an Envelope with the principal and the address of who sent it
  (KIP-590, `handlers.envelope`), as whom the other broker carries it out. What came in one is
  answered with NOT_COORDINATOR if need be: two brokers that take each other for the coordinator
  make no loop.
* Below the metadata level 5 there may be brokers that know no envelopes. There a request goes on
  as it is, on connections that are marked by `FORWARDED_CLIENT_ID`; from that level on, which all
  brokers know, the mark is a client id like any other.
* A commit or deletion that was sent is never sent again: it may have been done, and others may have
  committed since. A broken connection is answered with COORDINATOR_NOT_AVAILABLE, upon which
  clients try again. What could not be sent, and reads, are tried until
  `offsets.commit.timeout.ms` is over.
* The request keeps its version, because versions differ in meaning and not only in form.
* Reads don't wait behind commits: each other broker has one connection for either (`peers`), with
  at most `MAX_IN_FLIGHT` requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container
from functools import wraps
from ipaddress import ip_address
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.core.security.acls import address
from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.extensions import FORWARDED_CLIENT_ID
from kraftpy.protocol.messages import (
    DefaultPrincipalData,
    EnvelopeRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kraftpy.server.coordination.peers import COMMITS, READS, Lane, Peers

if TYPE_CHECKING:
    from kraftpy.server.network.dispatch import Handler, RequestContext

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1000
# The coordinator gives up on a commit after `offsets.commit.timeout.ms`; its answer is on its way.
ANSWER_GRACE_S = 1.0
PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.1

_MISDIRECTED = frozenset({ErrorCode.NOT_COORDINATOR})
_UNSERVED = _MISDIRECTED | {ErrorCode.COORDINATOR_NOT_AVAILABLE}

Serve = Callable[[Any], Any]


class Groups(Protocol):
    """The coordinator of this broker (`kraftpy.server.coordination.group_coordinator`)."""

    async def coordinator_of(
        self, group_id: str, load_deadline_s: float, *, allow_empty: bool = False
    ) -> int:
        """The node id of the group's coordinator; raises KafkaError."""


class ForwardingHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def peers(self) -> Peers: ...
    @property
    def metadata(self) -> MetadataState: ...


class Forwards(Protocol):
    """What the handlers of offset requests serve: the broker."""

    @property
    def offset_forwarding(self) -> OffsetForwarding: ...
    @property
    def metadata(self) -> MetadataState: ...


def forwarded(handler: Handler) -> Handler:
    """Decorates the handler of an offset request, which answers for the groups of this broker."""

    @wraps(handler)
    def handle(broker: Forwards, ctx: RequestContext, request: Any) -> Any:
        answer = handler(broker, ctx, request)
        if ctx.session.passed_on or (
            ctx.client_id == FORWARDED_CLIENT_ID and broker.metadata.level < SECURITY
        ):
            # Different clients share the connection; answers still keep the order of requests.
            ctx.may_overlap = True
            return answer
        if isinstance(answer, asyncio.Future):  # of a commit or deletion that this broker makes
            return answer
        if isinstance(answer, CoroutineType):
            return broker.offset_forwarding.relay_later(
                ctx, request, answer, lambda request: handler(broker, ctx, request)
            )
        if not _has_error(answer, _MISDIRECTED):
            return answer
        return broker.offset_forwarding.relay(
            ctx, request, answer, lambda request: handler(broker, ctx, request)
        )

    return handle


class _Undone(Exception):
    """The coordinator did not answer; `final`: and the request must not be sent again."""

    def __init__(self, code: ErrorCode, *, final: bool) -> None:
        super().__init__(code)
        self.code = code
        self.final = final


class OffsetForwarding:
    """Passes offset requests of this broker's clients on; see the module."""

    def __init__(self, host: ForwardingHost) -> None:
        self._host = host
        self._in_flight: Counter[tuple[int, Lane]] = Counter()
        self._problems: dict[tuple[int, Lane], str] = {}

    @property
    def _closed(self) -> bool:
        """Nothing is passed on any more; what is under way is answered with an error."""
        return self._host.peers.closed

    async def relay_later(
        self, ctx: RequestContext, request: Any, coming: Awaitable[Any], serve: Serve
    ) -> Any:
        """The same for an answer that this broker makes in slices."""
        answer = await coming
        if not _has_error(answer, _MISDIRECTED):
            return answer
        return await self.relay(ctx, request, answer, serve)

    async def relay(self, ctx: RequestContext, request: Any, answer: Any, serve: Serve) -> Any:
        """The coordinator's answer to a request that this broker answered with NOT_COORDINATOR.

        `serve(request)` tries this broker again, which may have become the coordinator. Errors are
        part of the answer.
        """
        loop = self._host.loop
        deadline_s = loop.time() + self._timeout_s
        pause_s = PAUSE_MIN_S
        attempt = self._ask_for_groups if _has_groups(answer) else self._ask_for_group
        while True:
            answer, is_final = await attempt(ctx, request, answer, serve, deadline_s)
            if is_final or self._closed or loop.time() + pause_s > deadline_s:
                return answer
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    @property
    def _timeout_s(self) -> float:
        return self._host.config.offsets_commit_timeout_ms / 1000

    # -- one attempt: the answer, and whether that is it

    async def _ask_for_group(
        self, ctx: RequestContext, request: Any, answer: Any, serve: Serve, deadline_s: float
    ) -> tuple[Any, bool]:
        try:
            node_id = await self._find(request.group_id, deadline_s)
        except KafkaError as error:
            return _refused(answer, error.code), error.code not in _UNSERVED
        return await self._ask(node_id, ctx, request, answer, serve)

    async def _ask_for_groups(
        self,
        ctx: RequestContext,
        request: OffsetFetchRequest,
        answer: OffsetFetchResponse,
        serve: Serve,
        deadline_s: float,
    ) -> tuple[OffsetFetchResponse, bool]:
        """The same for those groups of an OffsetFetch that have no answer yet."""
        places: dict[int, list[int]] = {}
        for place, group in enumerate(answer.groups):
            if group.error_code not in _UNSERVED:
                continue
            try:
                node_id = await self._find(group.group_id, deadline_s)
            except KafkaError as error:
                group.error_code = error.code
            else:
                places.setdefault(node_id, []).append(place)

        async def ask(node_id: int) -> None:
            part = OffsetFetchRequest(
                groups=[request.groups[place] for place in places[node_id]],
                require_stable=request.require_stable,
                _tags=request._tags,
            )
            unserved = OffsetFetchResponse(groups=[answer.groups[p] for p in places[node_id]])
            found, _ = await self._ask(node_id, ctx, part, unserved, serve)
            for place, group in zip(places[node_id], found.groups, strict=True):
                answer.groups[place] = group

        await asyncio.gather(*map(ask, places))
        return answer, not _has_error(answer, _UNSERVED)

    async def _find(self, group_id: str, deadline_s: float) -> int:
        return await self._host.groups.coordinator_of(group_id, deadline_s, allow_empty=True)

    async def _ask(
        self, node_id: int, ctx: RequestContext, request: Any, unserved: Any, serve: Serve
    ) -> tuple[Any, bool]:
        if node_id == self._host.node_id:
            served = serve(request)
            if isinstance(served, Awaitable):
                return await served, True
            return served, not _has_error(served, _MISDIRECTED)
        try:
            answer = await self._send(node_id, ctx, request)
        except _Undone as undone:
            return _refused(unserved, undone.code), undone.final
        if _group_ids(answer) != _group_ids(unserved):
            log.error("broker %d answers for other groups than it was asked about", node_id)
            return _refused(unserved, ErrorCode.COORDINATOR_NOT_AVAILABLE), True
        return answer, not (_is_read(request) and _has_error(answer, _UNSERVED))

    # -- the connections

    async def _send(self, node_id: int, ctx: RequestContext, request: Any) -> Any:
        if self._closed:
            raise _Undone(ErrorCode.COORDINATOR_NOT_AVAILABLE, final=True)
        lane = READS if _is_read(request) else COMMITS
        peer = node_id, lane
        if self._in_flight[peer] >= MAX_IN_FLIGHT:
            raise _Undone(ErrorCode.COORDINATOR_NOT_AVAILABLE, final=True)
        self._in_flight[peer] += 1
        try:
            connection = await self._host.peers.connection(node_id, lane)
            # Its software may be of another release; what it doesn't know, it hangs up upon.
            version = ctx.api_version
            if not connection.serves(request.API_KEY, version):
                raise _Undone(ErrorCode.NOT_COORDINATOR, final=True)
            answered: asyncio.Future[Any] = self._host.loop.create_future()
            if self._host.metadata.level >= SECURITY and connection.serves(ApiKey.ENVELOPE, 0):
                connection.post(
                    enclosed(ctx, request),
                    0,
                    lambda answer: _settle(answered, _taken_out(answer, request.API_KEY, version)),
                )
            else:
                connection.post(request, version, lambda answer: _settle(answered, answer))
        except (ConnectionLostError, KafkaError) as error:
            self._note(peer, str(error))
            raise _Undone(ErrorCode.COORDINATOR_NOT_AVAILABLE, final=False) from error
        else:
            return await self._answer(peer, connection, answered)
        finally:
            self._in_flight[peer] -= 1

    async def _answer(
        self, peer: tuple[int, Lane], connection: Connection, answered: asyncio.Future[Any]
    ) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s + ANSWER_GRACE_S):
                answer = await answered
        except KafkaError as error:  # the other broker wants nothing of it
            self._note(peer, error.message or error.code.name)
            raise _Undone(ErrorCode.COORDINATOR_NOT_AVAILABLE, final=True) from error
        except (ConnectionLostError, TimeoutError) as error:
            # Answers come in order: whatever waits behind this one waits in vain, too.
            await connection.close()
            self._note(peer, str(error) or "no answer in time")
            may_repeat = peer[1] is READS
            raise _Undone(ErrorCode.COORDINATOR_NOT_AVAILABLE, final=not may_repeat) from error
        self._problems.pop(peer, None)
        return answer

    def _note(self, peer: tuple[int, Lane], problem: str) -> None:
        if problem != self._problems.get(peer):
            self._problems[peer] = problem
            log.info("can't pass offset requests on to broker %d: %s", peer[0], problem)


def enclosed(ctx: RequestContext, request: Any) -> EnvelopeRequest:
    """A client's request in an envelope."""
    session = ctx.session
    parts = codec.encode_request(request.API_KEY, ctx.api_version, 0, ctx.client_id, request)
    principal = DefaultPrincipalData(*session.principal, False)
    return EnvelopeRequest(
        b"".join(parts),
        codec.encode_versioned("DefaultPrincipalData", 0, principal),
        ip_address(address(session.host)).packed,
    )


def _taken_out(answer: Any, key: int, version: int) -> Any:
    """What was in the envelope of an answer, or why there is nothing."""
    if isinstance(answer, ConnectionLostError):
        return answer
    if answer.error_code or answer.response_data is None:
        code = ErrorCode(answer.error_code)
        return KafkaError(code, f"it doesn't take the envelope: {code.name}")
    try:
        return codec.decode_response(key, version, answer.response_data)[1]
    except DecodeError as error:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _settle(answered: asyncio.Future[Any], answer: Any) -> None:
    if answered.done():
        return
    if isinstance(answer, (ConnectionLostError, KafkaError)):
        answered.set_exception(answer)
    else:
        answered.set_result(answer)


# -- where the four forms of an answer have their error


def _is_read(request: Any) -> bool:
    return isinstance(request, OffsetFetchRequest)


def _has_groups(answer: Any) -> bool:
    """Whether each group has an error of its own (OffsetFetch since version 8)."""
    return isinstance(answer, OffsetFetchResponse) and bool(answer.groups)


def _group_ids(answer: Any) -> list[str]:
    return [group.group_id for group in answer.groups] if _has_groups(answer) else []


def _has_error(answer: Any, codes: Container[ErrorCode]) -> bool:
    """Whether the group, or one of several, is answered with one of these errors."""
    if _has_groups(answer):
        return any(group.error_code in codes for group in answer.groups)
    if getattr(answer, "error_code", ErrorCode.NONE) in codes:
        return True
    # Such an error is the same for all partitions of an OffsetCommit, or an OffsetFetch 1.
    if not answer.topics or not answer.topics[0].partitions:
        return False
    return answer.topics[0].partitions[0].error_code in codes


def _refused(answer: Any, code: ErrorCode) -> Any:
    """The answer with this error in the place of those that say the group isn't served."""
    places = [answer, *getattr(answer, "groups", ())]
    places += [partition for topic in answer.topics for partition in topic.partitions]
    for place in places:
        if getattr(place, "error_code", ErrorCode.NONE) in _UNSERVED:
            place.error_code = code
    return answer
