"""What clients use of their quotas at a broker, and how long they are held back for it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kraftpy.core.quotas import (
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    QuotaTable,
)
from kraftpy.core.security.principals import BROKER, Principal
from kraftpy.protocol import codec
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.network import quota_use
from kraftpy.server.network.client_quotas import ClientQuotas
from kraftpy.server.network.connection import Connection
from kraftpy.server.network.dispatch import Dispatcher, HandlerSpec, RequestContext
from tests.server.wire import Wire, fetch_request, produce_request
from tests.unit.server.network.gates import door, log_in, versions, who_am_i
from tests.unit.server.network.test_connection import Peer, connected
from tests.waiting import until

EVERYBODY: Entity = (("user", None),)
LATER_S = 1000.0
"""So late that nothing comes of it in a test."""


class Clock:
    """Stands still but for what a test has it do."""

    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A connection, its dispatcher, and quotas; what handlers do is the test's."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.handled: list[tuple[ApiKey, Any]] = []
        self.answers: dict[ApiKey, Callable[[RequestContext, Any], Any]] = {
            ApiKey.PRODUCE: lambda _, request: m.ProduceResponse() if request.acks else None,
            ApiKey.FETCH: self._fetch,
            ApiKey.HEARTBEAT: lambda *_: m.HeartbeatResponse(),
            ApiKey.METADATA: lambda *_: m.MetadataResponse(),
            ApiKey.ENVELOPE: lambda *_: m.EnvelopeResponse(),
        }
        self.found_bytes = 0
        self.sent_bytes: list[int] = []
        self.table = {
            key: HandlerSpec(self._handler(key), key is ApiKey.PRODUCE, key is ApiKey.METADATA)
            for key in self.answers
        }
        self.dispatcher = Dispatcher(self, self.table)
        self.quotas = ClientQuotas(self.dispatcher, self.table, self.clock)
        self.limits = QuotaTable()
        self.peer = Peer()
        self.peer.dispatch = self._dispatch  # type: ignore[method-assign]

    def _handler(self, key: ApiKey) -> Callable[[Any, RequestContext, Any], Any]:
        def handle(_: Any, ctx: RequestContext, request: Any) -> Any:
            self.handled.append((key, request))
            return self.answers[key](ctx, request)

        return handle

    def _fetch(self, ctx: RequestContext, request: m.FetchRequest) -> m.FetchResponse:
        size_bytes = min(self.found_bytes, request.max_bytes)
        if ctx.used is None or ctx.used.may_send(size_bytes):
            self.sent_bytes.append(size_bytes)
        return m.FetchResponse()

    def _dispatch(self, connection: Connection, frame: memoryview) -> int:
        connection.taken_s = self.clock.now_s
        return self.dispatcher.dispatch(connection, frame)

    def limit(self, entity: Entity = EVERYBODY, **values: float) -> None:
        self.limits.set(entity, values)
        self.quotas.changed(self.limits)

    def passes(self, seconds: float) -> None:
        """Time, in which a connection that had to wait so long may go on."""
        self.clock.now_s += seconds
        muted = self.peer.connection._muted
        if muted is not None and muted.when() - asyncio.get_running_loop().time() <= seconds:
            muted.cancel()
            self.peer.connection._unmute()

    async def send(self, key: ApiKey, version: int, request: Any, client_id: str = "app") -> None:
        parts = codec.encode_request(key, version, 7, client_id, request)
        body = b"".join(parts)
        await self.peer.send(struct.pack(">i", len(body)) + body)

    async def receive(self, key: ApiKey, version: int) -> Any:
        (size,) = struct.unpack(">i", await self.peer.receive(4))
        return codec.decode_response(key, version, await self.peer.receive(size))[1]

    async def call(self, key: ApiKey, version: int, request: Any, client_id: str = "app") -> Any:
        await self.send(key, version, request, client_id)
        return await self.receive(key, version)

    async def produce(self, size_bytes: int, acks: int = 1, client_id: str = "app") -> int:
        """For how long the client is told to wait."""
        request = produce_request("t", bytes(size_bytes), acks=acks)
        answer = await self.call(ApiKey.PRODUCE, 9, request, client_id)
        return int(answer.throttle_time_ms)

    async def fetch(self, version: int = 12, **more: Any) -> int:
        request = fetch_request("t", 0, **more)
        return int((await self.call(ApiKey.FETCH, version, request)).throttle_time_ms)

    async def beat(self) -> int:
        answer = await self.call(ApiKey.HEARTBEAT, 3, m.HeartbeatRequest("g"))
        return int(answer.throttle_time_ms)

    @property
    def muted(self) -> bool:
        return self.peer.connection.muted


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    async with connected(made.peer):
        yield made


async def test_bytes_of_a_produce_count_and_who_is_over_waits_once_it_is_answered() -> None:
    async with bench() as made:
        made.limit(producer_byte_rate=1000.0)
        assert await made.produce(10_000) == 0
        assert await made.produce(5_000) == 5_000
        assert made.muted
        await made.send(ApiKey.PRODUCE, 9, produce_request("t", b"more"))
        await asyncio.sleep(0.01)
        assert len(made.handled) == 2
        made.passes(5.0)
        assert (await made.receive(ApiKey.PRODUCE, 9)).throttle_time_ms > 0
        numbers = made.quotas.use.numbers[PRODUCER_BYTE_RATE]
        assert (numbers.count, round(numbers.seconds)) == (2, 10)


async def test_bytes_count_without_acknowledgements_and_time_does_not() -> None:
    async with bench() as made:
        made.limit(producer_byte_rate=1000.0, request_percentage=1.0)

        def slow(_: Any, request: m.ProduceRequest) -> m.ProduceResponse | None:
            made.clock.now_s += 1.0
            return m.ProduceResponse() if request.acks else None

        made.answers[ApiKey.PRODUCE] = slow
        await made.send(ApiKey.PRODUCE, 9, produce_request("t", bytes(9_000), acks=0))
        await until(lambda: len(made.handled) == 1)
        assert len(made.quotas.use.requests) == 0
        assert not made.muted
        await made.send(ApiKey.PRODUCE, 9, produce_request("t", bytes(9_000), acks=0))
        await until(lambda: made.muted)
        assert len(made.quotas.use.requests) == 0


async def test_a_fetch_over_the_quota_is_empty_and_does_not_count() -> None:
    async with bench() as made:
        made.limit(consumer_byte_rate=1000.0)
        made.found_bytes = 8_000
        assert await made.fetch() == 0
        assert await made.fetch() == 6_000
        assert made.sent_bytes == [8_000]
        made.passes(6.0)
        # Had it been counted there would be 6 more seconds to wait.
        made.found_bytes = 2_000
        assert await made.fetch() == 0
        assert made.sent_bytes == [8_000, 2_000]


async def test_a_fetch_gets_what_ten_seconds_allow_and_no_more() -> None:
    async with bench() as made:
        made.limit(consumer_byte_rate=100.0)
        made.found_bytes = 50_000
        assert await made.fetch() == 0
        assert made.sent_bytes == [1_000]


async def test_replicas_brokers_and_what_only_brokers_ask_are_exempt() -> None:
    async with bench() as made:
        made.limit(consumer_byte_rate=1.0, producer_byte_rate=1.0, request_percentage=0.001)
        made.found_bytes = 5_000
        request = fetch_request("t", 0)
        request.replica_id = 2
        for version in (12, 12):
            assert (await made.call(ApiKey.FETCH, version, request)).throttle_time_ms == 0
        await made.call(ApiKey.ENVELOPE, 0, m.EnvelopeRequest(b"", b"", bytes(4)))
        assert made.sent_bytes == [5_000, 5_000]
        made.peer.connection.session.principal = Principal(BROKER, "2")
        assert await made.produce(1_000_000) == 0
        assert not made.muted


async def test_quotas_take_effect_on_connections_that_are_there() -> None:
    async with bench() as made:
        assert await made.produce(1_000_000) == 0
        made.limit(producer_byte_rate=1000.0)
        assert await made.produce(11_000) == 1_000
        made.passes(1.0)
        made.limit(producer_byte_rate=1e9)
        assert await made.produce(1_000_000) == 0
        made.limit()
        assert await made.produce(1_000_000) == 0


async def test_while_nobody_has_a_quota_handlers_stand_as_they_are() -> None:
    async with bench() as made:
        functions = {key: spec.function for key, spec in made.table.items()}

        def in_use() -> dict[ApiKey, Any]:
            return {key: made.dispatcher.handler(key) for key in made.table}

        assert in_use() == functions
        made.limit((("ip", None),), connection_creation_rate=1.0)
        made.limit(controller_mutation_rate=1.0)
        assert in_use() == functions
        made.limit((("client-id", "x"),), request_percentage=1.0)
        assert not in_use().items() & functions.items()
        assert await made.beat() == 0
        made.limit((("client-id", "x"),))
        assert in_use() == functions
        assert await made.beat() == 0


async def test_who_has_a_percentage_is_clocked_and_waits_a_second_at_most() -> None:
    async with bench() as made:
        made.limit((("client-id", "app"),), request_percentage=10.0)

        def slow(*_: Any) -> m.HeartbeatResponse:
            made.clock.now_s += 0.5
            return m.HeartbeatResponse()

        made.answers[ApiKey.HEARTBEAT] = slow
        assert await made.beat() == 0  # 0.5 of 10 seconds
        made.passes(0.0)
        for _ in range(6):
            made.clock.now_s += 0.01
            last_ms = await made.beat()
            made.passes(1.0)
        assert last_ms == 1_000
        before = len(made.quotas.use.requests)
        request = m.HeartbeatRequest("g")
        await made.call(ApiKey.HEARTBEAT, 3, request, client_id="another")
        assert len(made.quotas.use.requests) == before == 1


async def test_an_answer_that_comes_later_is_clocked_while_it_has_the_loop() -> None:
    async with bench() as made:
        made.limit(request_percentage=10.0)
        goes_on = asyncio.get_running_loop().create_future()

        async def later(*_: Any) -> m.HeartbeatResponse:
            made.clock.now_s += 0.6
            await goes_on
            made.clock.now_s += 0.7
            return m.HeartbeatResponse()

        made.answers[ApiKey.HEARTBEAT] = later
        await made.send(ApiKey.HEARTBEAT, 3, m.HeartbeatRequest("g"))
        await until(lambda: bool(made.handled))
        await asyncio.sleep(0)
        made.clock.now_s += 0.3  # others have the loop
        goes_on.set_result(None)
        answer = await made.receive(ApiKey.HEARTBEAT, 3)
        assert answer.throttle_time_ms == 1_000
        assert made.quotas.use.requests._rates.popitem()[1].total(
            made.clock.now_s
        ) == pytest.approx(130)


async def test_encoding_a_long_answer_counts_for_the_next_request() -> None:
    async with bench() as made:
        made.limit(request_percentage=0.001)

        def slow_to_encode(*_: Any) -> m.MetadataResponse:
            brokers = elements(
                range(2_000),
                lambda number: m.MetadataResponse.MetadataResponseBroker(number, "h", 1),
            )
            return m.MetadataResponse(brokers=brokers)

        made.answers[ApiKey.METADATA] = slow_to_encode
        await made.call(ApiKey.METADATA, 9, m.MetadataRequest())
        (rate,) = made.quotas.use.requests._rates.values()
        assert rate.total(made.clock.now_s) > 0.01  # in percent of a second


async def test_what_fails_has_had_its_time_too() -> None:
    async with bench() as made:
        made.limit(request_percentage=1.0)

        def fail(*_: Any) -> None:
            made.clock.now_s += 2.0
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

        async def fail_later(*_: Any) -> None:
            fail()

        for failing in (fail, fail_later):
            made.answers[ApiKey.HEARTBEAT] = failing
            answer = await made.call(ApiKey.HEARTBEAT, 3, m.HeartbeatRequest("g"))
            assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            assert made.muted
            made.passes(1.0)


async def test_a_client_that_leaves_ends_what_waits_for_it() -> None:
    async with bench() as made:
        made.limit(consumer_byte_rate=1.0, request_percentage=1.0)
        waits = asyncio.get_running_loop().create_future()
        made.answers[ApiKey.FETCH] = lambda *_: waits
        await made.send(ApiKey.FETCH, 12, fetch_request("t", 0))
        await until(lambda: bool(made.handled))
        made.peer.connection.close(None)
        await until(waits.cancelled)


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as made:
        monkeypatch.setattr(quota_use, "WAIT_MAX_S", 60.0)
        made.limit(producer_byte_rate=1.0)
        assert await made.produce(1_000_000) == 60_000


async def test_a_quota_of_a_user_counts_from_the_login_on() -> None:
    """Before it nobody is held back, or a flood of connections would hold back every login."""
    async with door() as opened:
        quotas = ClientQuotas(opened.dispatcher, opened.dispatcher._table)
        limits = QuotaTable()
        for name in ("alice", "ANONYMOUS"):
            limits.set((("user", name),), {REQUEST_PERCENTAGE: 1e-9})
        quotas.changed(limits)
        throttled = quotas.use.numbers[REQUEST_PERCENTAGE]

        def talk(wire: Wire) -> tuple[int, int, int]:
            versions(wire)
            before = throttled.count
            log_in(wire, "PLAIN")
            between = throttled.count
            assert who_am_i(wire) == "User:alice"
            return before, between, throttled.count

        assert await opened.talk(talk) == (0, 0, 1)
