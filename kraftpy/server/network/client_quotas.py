"""Holds clients to their quotas at one broker (KIP-13, KIP-124, KIP-219).

`core.quotas` says which quota counts for whom and what is over it. Rules:

* Who is over a quota is answered at once, with the time to wait; then its connection takes no
  request for so long. What it has sent meanwhile stays bytes, answers that are due still leave.
* The bytes of a Produce's batches count when it comes, so that nothing that is pipelined behind one
  that is too much is taken; those of acks=0, too. A fetch gets ten seconds' worth at most; what
  would be over the quota is answered with nothing, and not counted.
* 100 of `request_percentage` are the whole event loop. Only those who have one are clocked: from
  when a request is taken until its handler is done, and while a long answer is encoded, for which
  the next request waits. For acks=0 time doesn't count: there is no answer to tell of it.
* Brokers are exempt: their principals, fetches of replicas, and what only brokers ask.
* While nobody has a quota, requests pay nothing: their handlers stand in the dispatcher's table as
  they are, and those behind quotas take their places when there are some, for connections that are
  there, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from kraftpy.core.quotas import FULL_WINDOWS_S, QuotaTable
from kraftpy.core.security.principals import USER
from kraftpy.protocol.api import ApiKey
from kraftpy.server.network.dispatch import Dispatcher, Handler, HandlerSpec, RequestContext
from kraftpy.server.network.long_answers import in_parts
from kraftpy.server.network.quota_use import Clock, QuotaUse, Used

if TYPE_CHECKING:
    import asyncio

    from kraftpy.protocol.messages import FetchRequest, ProduceRequest

_OF_BROKERS: Final = frozenset({ApiKey.ENVELOPE, ApiKey.WRITE_TXN_MARKERS})
_FETCHES: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
_OF_REPLICAS: Final = frozenset({ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH})
_OF_BROKERS_FROM: Final = 4
"""The first version of AddPartitionsToTxn that only brokers send."""


class ClientQuotas:
    """What clients have used at this broker, and the handlers that count it.

    `clock` is that of `Connection.taken_s`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        handlers: Mapping[ApiKey, HandlerSpec],
        clock: Clock = perf_counter,
    ) -> None:
        self.use = QuotaUse(clock)
        self._dispatcher = dispatcher
        self._handlers = handlers
        self._behind_quotas = {
            key: HandlerSpec(
                _Counting(self.use, key, spec.function).handle, spec.concurrent, spec.long
            )
            for key, spec in handlers.items()
        }
        self._in_force = False

    def changed(self, quotas: QuotaTable) -> None:
        """There are other quotas, in this table."""
        ledgers = self.use.producer, self.use.consumer, self.use.requests
        for ledger in ledgers:
            ledger.replace(quotas)
        in_force = not all(ledger.is_empty for ledger in ledgers)
        if in_force != self._in_force:
            self._in_force = in_force
            self._dispatcher.use(self._behind_quotas if in_force else self._handlers)


class _Counting:
    """The handler of one API, which counts for who has a quota."""

    __slots__ = ("_handler", "_key", "_use")

    def __init__(self, use: QuotaUse, key: ApiKey, handler: Handler) -> None:
        self._use = use
        self._key = key
        self._handler = handler

    def handle(self, broker: Any, ctx: RequestContext, request: Any) -> Any:
        """As the handler does."""
        session, key, use = ctx.session, self._key, self._use
        if (
            session.connection is None
            or session.principal.type != USER
            or _is_of_broker(key, ctx.api_version, request)
        ):
            return self._handler(broker, ctx, request)
        user, client_id = session.principal.name, ctx.client_id
        clocked = use.requests.limit(user, client_id) is not None
        limit = None
        if key is ApiKey.PRODUCE:
            limit = use.producer.limit(user, client_id)
        elif key in _FETCHES:
            limit = use.consumer.limit(user, client_id)
        if limit is None and not clocked:
            return self._handler(broker, ctx, request)
        used = ctx.used = Used(use, session, client_id, clocked=clocked)
        if limit is not None:
            if key in _FETCHES:
                used.fetches = True
                request.max_bytes = min(request.max_bytes, max(1, int(limit * FULL_WINDOWS_S)))
            elif ctx.many:
                return _Later(self._produce_many(used, broker, ctx, request), used)
            else:
                used.produce(_size_of(request))
        if clocked and not ctx.many:
            # It was decoded since, or since the request before it in the same piece was handled.
            began_s = max(session.connection.taken_s, use.clocked_until_s)
        else:
            began_s = used.now_s
        try:
            result = self._handler(broker, ctx, request)
        except BaseException:
            used.took(began_s)
            used.failed()
            raise
        used.took(began_s)
        return _Later(result, used) if isinstance(result, Awaitable) else used.answered(result)

    async def _produce_many(
        self, used: Used, broker: Any, ctx: RequestContext, request: ProduceRequest
    ) -> Any:
        size_bytes = 0
        async for some in in_parts(
            data.records for topic in request.topic_data for data in topic.partition_data
        ):
            size_bytes += sum(len(records or ()) for records in some)
        used.produce(size_bytes)
        result = self._handler(broker, ctx, request)
        return await result if isinstance(result, Awaitable) else result


class _Later(Coroutine[Any, Any, Any]):
    """An answer that is still to come; clocks how long what makes it has the loop."""

    __slots__ = ("_awaited", "_steps", "_used")

    def __init__(self, awaited: Awaitable[Any], used: Used) -> None:
        self._awaited = awaited
        self._steps: Any = awaited if isinstance(awaited, Coroutine) else awaited.__await__()
        self._used = used

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # what is asked of a generator it does

    def __iter__(self) -> _Later:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Goes on until it waits for something, or is done: StopIteration with the answer."""
        return self._step(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        """The same, with an error."""
        if not isinstance(self._awaited, Coroutine):
            self._cancel()
        return self._step(self._steps.throw, *error)

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        used = self._used
        began_s = used.now_s
        try:
            waits_for = step(*values)
        except StopIteration as end:
            used.took(began_s)
            raise StopIteration(used.answered(end.value)) from None
        except BaseException:
            used.took(began_s)
            used.failed()
            raise
        used.took(began_s)
        return waits_for

    def close(self) -> None:
        """Nobody waits for it."""
        self._steps.close()
        if not isinstance(self._awaited, Coroutine):
            self._cancel()

    def _cancel(self) -> None:
        cast("asyncio.Future[Any]", self._awaited).cancel()


def _is_of_broker(key: ApiKey, version: int, request: Any) -> bool:
    if key is ApiKey.FETCH:
        return _is_of_replica(request)
    if key in _OF_REPLICAS:
        return bool(request.replica_id >= 0)
    return key in _OF_BROKERS or (
        key is ApiKey.ADD_PARTITIONS_TO_TXN and version >= _OF_BROKERS_FROM
    )


def _is_of_replica(request: FetchRequest) -> bool:
    state = request.replica_state
    return (request.replica_id if state is None else state.replica_id) >= 0


def _size_of(request: ProduceRequest) -> int:
    return sum(
        len(data.records or ()) for topic in request.topic_data for data in topic.partition_data
    )
