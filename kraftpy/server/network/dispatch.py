"""From frames to handlers and back: which API versions exist here, and how a request is answered.

Rules that it keeps:

* It is handed the handlers, and what they serve, and knows neither.
* An API is advertised from the moment it has a handler (docs/protocol.md), in the version range of
  `kraftpy.protocol.api`. A request for anything else closes the connection, as Kafka does, except
  ApiVersions of an unknown version, which gets error 35 in a v0 body (KIP-511).
* Bytes that don't decode close the connection with one log line. A handler that fails gets its
  Kafka error into the response where the schema has a place for it, else closes the connection.
* A handler returns the response, None (no answer is due: acks=0), or an awaitable of the response.
* Answers that may be long are built in slices (`server.network.long_answers`), and requests of many
  elements are decoded in slices (`server.network.long_requests`).
* Requests that came together are timed together, from when they came until all of them have been
  handled: their answers leave together.
* What is done for metrics of single requests is what small requests pay for (`make bench
  ARGS=metrics` has the price), most of it for code that isn't in the processor's caches. So times
  are only noted then, and counted by hundreds, or when somebody asks for `numbers`.
* Errors are counted in answers, but those of single partitions of Produce, Fetch and ShareFetch:
  their handlers count one when it happens, which costs nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kraftpy.events import emit
from kraftpy.metrics.instruments import ApiNumbers
from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ADVERTISED, REQUEST_NAMES, RESPONSE_NAMES, ApiKey, advertised
from kraftpy.protocol.decoding import FEW_ELEMENTS, ManyElements
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import ApiVersionsResponse
from kraftpy.server.network.connection import CORK_MAX_BYTES
from kraftpy.server.network.long_answers import AnswerBuilders, LongAnswer, Pace
from kraftpy.server.network.long_requests import LONG_REQUEST_BYTES, LongRequest, LongRequests
from kraftpy.server.network.produce_size import is_large_by_records
from kraftpy.server.network.prompt_future import PromptFuture, when_done
from kraftpy.server.network.slow_requests import SlowRequests
from kraftpy.storage.segment import FileSlice

if TYPE_CHECKING:
    from kraftpy.server.network.connection import Connection, Slot
    from kraftpy.server.network.quota_use import Used
    from kraftpy.server.network.sending import Part
    from kraftpy.server.network.session import Session

log = logging.getLogger(__name__)

Handler = Callable[[Any, "RequestContext", Any], Any]
"""Its first argument is what the dispatcher serves: the broker."""

# Decoded, a request of many small structs takes over forty times its size in memory. Only the
# records of a Produce, which stay bytes, may be as large as socket.request.max.bytes.
SMALL_REQUEST_MAX_BYTES = 8 * 1024 * 1024

# So many times are noted before they are counted.
NOTED_MAX = 256
# Of one answer so many topics, partitions and so on, each, are looked at for their errors.
_PARTS_COUNTED_MAX = 1000
_PARTS_COUNTED_BY_HANDLERS = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH})
# To keep pace takes 2 µs, a twentieth of what these take.
_SOON_BUILT = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT})
_WITH_SLICES = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})

_SIZE = Struct(">i").pack


class RequestContext:
    """What a handler may know of a request besides its body; `session`: of who asks.

    The handler may set `may_overlap`: whether later requests of the connection may be taken before
    the answer that it promised; None stands for what `HandlerSpec` says of its API. It may call
    `let_overlap` once they may. It may set `patience_s`, too: how long the client is willing to
    wait. It counts in `errors` what isn't the error of the whole request. `answer_full` is for
    `elements`; `many`: the request has more than FEW_ELEMENTS, and its handler should let others
    have the loop in between. `needs`, if an authorizer was asked for it, is what the commands that
    come of the request are allowed by: operation, type and name of each resource. `used`, if its
    client has a quota that the request counts for, is what it takes of that.
    """

    __slots__ = (
        "answer_full",
        "api_key",
        "api_version",
        "client_id",
        "correlation_id",
        "errors",
        "let_overlap",
        "many",
        "may_overlap",
        "needs",
        "patience_s",
        "session",
        "used",
    )

    let_overlap: Callable[[], None]
    needs: dict[tuple[int, int, str], None]

    def __init__(
        self,
        header: codec.RequestHeader,
        session: Session,
        errors: Counter[int],
    ) -> None:
        self.errors = errors
        self.answer_full = False
        self.many = False
        self.api_key = header.api_key
        self.api_version = header.api_version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id
        self.session = session
        self.used: Used | None = None
        self.may_overlap: bool | None = None
        self.patience_s = 0.0


class HandlerSpec:
    """How an API is handled; `concurrent` requests may overlap on one connection.

    The answers of a `long` one are built in slices (`server.network.long_answers`).
    """

    __slots__ = ("concurrent", "function", "long")

    def __init__(self, function: Handler, concurrent: bool, long: bool) -> None:
        self.function = function
        self.concurrent = concurrent
        self.long = long


class _Route:
    """What is needed to answer one (api, version); `has_slices`: of files, in answers."""

    __slots__ = (
        "concurrent",
        "count_errors",
        "function",
        "has_slices",
        "key",
        "long",
        "numbers",
        "response_class",
        "version",
    )

    def __init__(self, key: ApiKey, version: int, spec: HandlerSpec, numbers: ApiNumbers) -> None:
        self.numbers = numbers
        self.key = key
        self.version = version
        self.function = spec.function
        self.concurrent = spec.concurrent
        self.long = spec.long
        self.has_slices = key in _WITH_SLICES
        self.response_class: type = getattr(messages, RESPONSE_NAMES[key])
        parts_max = 0 if key in _PARTS_COUNTED_BY_HANDLERS else _PARTS_COUNTED_MAX
        self.count_errors = codec.error_counter(RESPONSE_NAMES[key], version, parts_max)


class _Frame:
    """An answer that is encoded and counted already."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class Dispatcher:
    """Answers the frames of all connections of one broker, by the handlers in `table`."""

    def __init__(self, broker: object, table: Mapping[ApiKey, HandlerSpec]) -> None:
        self._broker = broker
        self._table = table
        self._advertised = [
            ApiVersionsResponse.ApiVersion(key, low, high)
            for key, (low, high) in advertised(table).items()
        ]
        self._routes: dict[tuple[int, int], _Route] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._builders = AnswerBuilders()
        self._long_requests = LongRequests(self._builders.turns)
        # What came together: of which kind, how many, and how long that took.
        self._noted: list[tuple[_Route, int, float]] = []
        self._other_routes: list[_Route] = []  # answered now, not as the connection's last
        self._numbers: dict[ApiKey, ApiNumbers] = {}
        self.slow = SlowRequests()

    def dispatch(self, connection: Connection, frame: memoryview) -> int:
        """Handles one request frame; never raises. After the last that came with it: `handled`.

        Returns how many requests like the connection's last have been answered: 1 or 0.
        """
        try:
            header, position = codec.decode_request_header(frame)
            key = header.api_key, header.api_version
            route = self._routes.get(key) or self._find_route(*key)
            if route is None:
                self._refuse(connection, header)
                return 0
            if len(frame) > SMALL_REQUEST_MAX_BYTES and _is_too_large(route, frame, position):
                connection.close(
                    f"a {route.key.name} request of {len(frame)} bytes; "
                    f"only records may have more than {SMALL_REQUEST_MAX_BYTES}"
                )
                return 0
            if len(frame) > LONG_REQUEST_BYTES:
                request = self._decode_long(connection, route, header, frame, position)
                if request is None:
                    return 0
            else:
                request = codec.decode_request(*key, frame, position)
        except DecodeError as error:
            connection.close(f"a request that can't be decoded: {error}")
            return 0
        context = RequestContext(
            header,
            connection.session,
            route.numbers.errors,
        )
        try:
            result = route.function(self._broker, context, request)
            if route.long:
                if not self._answer_long(connection, route, context, result):
                    return 0
            elif type(result) is route.response_class:
                connection.respond(_encode(route, header.correlation_id, result))
                if route.count_errors is not None:
                    route.count_errors(result, route.numbers.errors)
            elif result is not None:
                self._defer(connection, route, context, result)
                return 0
        except Exception as error:
            self._answer_failure(connection, route, header.correlation_id, error, None)
        if route is connection.last_route:
            return 1
        self._other_routes.append(route)
        connection.client_id = header.client_id
        return 0

    def handled(self, connection: Connection, repeated: int) -> None:
        """All that came together has been handled: notes how long it took.

        `repeated`: the sum of what `dispatch` has returned for these requests.
        """
        others = self._other_routes
        if not repeated and not others:
            return
        took_s = perf_counter() - connection.taken_s
        noted = self._noted
        before = len(noted)
        if repeated:
            noted.append((connection.last_route, repeated, took_s))
        if others:
            noted.extend((route, 1, took_s) for route in others)
            connection.last_route = others[-1]
            others.clear()
        if took_s > self.slow.limit_s:
            for slow in {route: None for route, _, _ in noted[before:]}:
                self.slow.tell(slow, connection, took_s)
        if len(noted) >= NOTED_MAX:
            self._count()

    def _count(self) -> None:
        """Counts what has been noted."""
        for route, requests, took_s in self._noted:
            route.numbers.duration.observe(took_s, requests)
        self._noted.clear()

    @property
    def numbers(self) -> dict[ApiKey, ApiNumbers]:
        """Of each API that has been asked for, with all requests that `handled` knows of."""
        self._count()
        return self._numbers

    def use(self, table: Mapping[ApiKey, HandlerSpec]) -> None:
        """Has these handlers, of the same APIs, take requests from now on."""
        self._table = table
        self._routes.clear()

    def handler(self, key: ApiKey) -> Handler:
        """What answers such requests, for one that came in another's envelope."""
        return self._table[key].function

    def _find_route(self, key: int, version: int) -> _Route | None:
        try:
            api = ApiKey(key)
        except ValueError:
            return None
        spec = self._table.get(api)
        if spec is None:
            return None
        low, high = ADVERTISED[api]
        if not low <= version <= high:
            return None
        numbers = self._numbers.setdefault(api, ApiNumbers())
        route = self._routes[key, version] = _Route(api, version, spec, numbers)
        return route

    def api_versions(self, error: ErrorCode) -> ApiVersionsResponse:
        """What is answered here, in which versions."""
        return ApiVersionsResponse(error_code=error, api_keys=self._advertised)

    def _refuse(self, connection: Connection, header: codec.RequestHeader) -> None:
        """Answers a request of an API or version that isn't here."""
        if header.api_key != ApiKey.API_VERSIONS:
            connection.client_id = header.client_id
            connection.close(f"API {header.api_key} version {header.api_version} isn't supported")
            return
        route = self._find_route(ApiKey.API_VERSIONS, 0)
        assert route is not None
        response = self.api_versions(ErrorCode.UNSUPPORTED_VERSION)
        connection.respond(_encode(route, header.correlation_id, response))

    def _decode_long(
        self,
        connection: Connection,
        route: _Route,
        header: codec.RequestHeader,
        frame: memoryview,
        position: int,
    ) -> Any:
        """The request, or None: it has many elements and is answered later.

        Raises DecodeError.
        """
        if route.key is ApiKey.PRODUCE:  # most are long by their records, which aren't copied
            with suppress(ManyElements):
                return codec.decode_request_of_few(route.key, route.version, frame, position)
        long = LongRequest(connection, route.key, route.version, frame, position)
        if long.advance() and long.elements <= FEW_ELEMENTS:
            return long.request
        context = RequestContext(
            header,
            connection.session,
            route.numbers.errors,
        )
        answer = self._serve_long(connection, route, context, long)
        self._defer(connection, route, context, answer, in_turn=True)
        return None

    async def _serve_long(
        self, connection: Connection, route: _Route, context: RequestContext, long: LongRequest
    ) -> _Frame | None:
        """The frame of the answer to a long request, if one is due."""
        try:
            await self._long_requests.finish(connection, long)
            await asyncio.sleep(0)  # decoding, handling and encoding have slices of their own
            context.many = True
            result = route.function(self._broker, context, long.request)
            if result is not None and type(result) is not route.response_class:
                result = await result
            if result is None:
                return None
            await asyncio.sleep(0)
            frame = await self._build(connection, route, context, result)
            await asyncio.sleep(0)
            del result  # to free what was made of so many takes long, and so does the request
            await asyncio.sleep(0)
            return frame
        except DecodeError as error:
            connection.close(f"a request that can't be decoded: {error}")
            return None
        finally:
            long.release()

    def _answer_long(
        self, connection: Connection, route: _Route, context: RequestContext, result: Any
    ) -> bool:
        """Answers with what `elements` may be in; False if the answer comes later.

        `result` is a response or an awaitable of one.
        """
        if type(result) is not route.response_class:
            later = self._build_later(connection, route, context, result)
            self._defer(connection, route, context, later, inner=result)
            return False
        answer = _long_answer(connection, route, context, result)
        if answer.advance():
            connection.respond(answer.parts)
            return True
        self._defer(connection, route, context, self._finish(connection, answer))
        return False

    async def _build_later(
        self,
        connection: Connection,
        route: _Route,
        context: RequestContext,
        result: Awaitable[Any],
    ) -> _Frame | None:
        response = await result
        if response is None:
            return None
        return await self._build(connection, route, context, response)

    async def _build(
        self, connection: Connection, route: _Route, context: RequestContext, response: Any
    ) -> _Frame:
        """The frame of `response`."""
        if route.key not in _SOON_BUILT:
            await Pace().keep()  # answers of many connections may be built in the same turn
        answer = _long_answer(connection, route, context, response)
        if answer.advance():
            return _Frame(answer.parts)
        return await self._finish(connection, answer)

    async def _finish(self, connection: Connection, answer: LongAnswer) -> _Frame:
        """The frame of an answer that wasn't whole after its first slice."""
        try:
            await self._builders.finish(connection, answer)
            return _Frame(answer.parts)
        finally:
            answer.release()

    def _defer(
        self,
        connection: Connection,
        route: _Route,
        context: RequestContext,
        awaitable: Awaitable[Any],
        *,
        in_turn: bool = False,
        inner: Awaitable[Any] | None = None,
    ) -> None:
        """Answers when `awaitable` is done; `in_turn`: nothing behind it is taken before that.

        `inner` is what `awaitable` waits for.
        """
        came_s = connection.taken_s
        correlation_id = context.correlation_id
        future = asyncio.ensure_future(awaitable)
        may_overlap = route.concurrent if context.may_overlap is None else context.may_overlap
        slot = connection.defer(may_overlap and not in_turn)
        context.let_overlap = partial(connection.let_overlap, slot)
        slot.on_abandon = future.cancel
        self._tasks.add(future)
        route.numbers.waiting += 1

        def done(future: asyncio.Future[Any]) -> None:
            self._tasks.discard(future)
            route.numbers.waiting -= 1
            if future.cancelled():
                if isinstance(inner, Coroutine):
                    inner.close()  # nobody has begun to wait for it if the client left at once
                connection.close("a request was given up while the broker stops")
                return
            try:
                result = future.result()
                if type(result) is _Frame:
                    connection.complete(slot, result.parts)
                    self._answered_late(route, context, came_s)
                    return
                parts = None if result is None else _encode(route, correlation_id, result)
            except Exception as error:
                self._answer_failure(connection, route, correlation_id, error, slot)
                self._answered_late(route, context, came_s)
                return
            # Who gives a result at once may be in the midst of another request.
            connection.complete(slot, parts, later=isinstance(future, PromptFuture))
            self._answered_late(route, context, came_s)
            if result is not None and route.count_errors is not None:
                route.count_errors(result, route.numbers.errors)

        when_done(future, done)

    def _answered_late(self, route: _Route, context: RequestContext, came_s: float) -> None:
        took_s = perf_counter() - came_s
        # It isn't slow if its client was willing to wait.
        if took_s > self.slow.limit_s + context.patience_s:
            self.slow.tell(route, context, took_s)
        self._noted.append((route, 1, took_s))
        if len(self._noted) >= NOTED_MAX:
            self._count()

    def _answer_failure(
        self,
        connection: Connection,
        route: _Route,
        correlation_id: int,
        error: Exception,
        slot: Slot | None,
    ) -> None:
        """Turns a handler's exception into the response's own error field, or hangs up."""
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            self._tell_defect(connection, route, error)
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        route.numbers.errors[code] += 1
        if connection.closed:
            return
        response = _error_response(route, code, message)
        if response is None:
            connection.close(f"{route.key.name} failed: {code.name}: {message or code.message}")
            return
        parts = _encode(route, correlation_id, response)
        if slot is None:
            connection.respond(parts)
        else:
            connection.complete(slot, parts)

    def _tell_defect(self, connection: Connection, route: _Route, error: Exception) -> None:
        if emit(
            log,
            logging.ERROR,
            "request-failed",
            peer=connection.peer,
            client=connection.client_id,
            api=REQUEST_NAMES[route.key].removesuffix("Request"),
            version=route.version,
            reason=repr(error),
        ):
            log.error("%s v%d failed", route.key.name, route.version, exc_info=error)

    @property
    def waiting(self) -> int:
        """Requests that are being handled."""
        return len(self._tasks)


def _is_too_large(route: _Route, frame: memoryview, position: int) -> bool:
    return route.key is not ApiKey.PRODUCE or not is_large_by_records(
        frame, position, route.version, SMALL_REQUEST_MAX_BYTES
    )


def _long_answer(
    connection: Connection, route: _Route, context: RequestContext, response: Any
) -> LongAnswer:
    return LongAnswer(
        connection,
        route.key,
        route.version,
        context.correlation_id,
        response,
        context,
        route.numbers.errors,
        context.used,
    )


def _encode(route: _Route, correlation_id: int, response: Any) -> list[Part]:
    """The response's frame with its size in front, joined where that is cheaper than not."""
    parts: list[Part] = codec.encode_response(route.key, route.version, correlation_id, response)
    if not route.has_slices:
        body = b"".join(parts)  # type: ignore[arg-type]
        size_bytes = len(body)
        front = _SIZE(size_bytes)
        return [front + body] if size_bytes < CORK_MAX_BYTES else [front, body]
    size_bytes = 0
    joinable = True
    for part in parts:
        size_bytes += len(part)
        if isinstance(part, FileSlice):
            joinable = False
    parts.insert(0, _SIZE(size_bytes))
    if joinable and size_bytes < CORK_MAX_BYTES:
        return [b"".join(parts)]  # type: ignore[arg-type]
    return parts


def _error_response(route: _Route, code: ErrorCode, message: str | None) -> Any:
    """A response that says only `code`, or None if this version has no place for that."""
    response = route.response_class()
    if not hasattr(response, "error_code"):
        return None
    success = _encode(route, 0, response)
    response.error_code = code
    if hasattr(response, "error_message"):
        response.error_message = message or code.message
    return None if _encode(route, 0, response) == success else response
