"""What a client hears of a handler that fails: an error, or nothing more; never a success.

And how requests are counted that come together.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections import Counter
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.server.network.connection import Slot
from kraftpy.server.network.dispatch import NOTED_MAX, Dispatcher, HandlerSpec
from kraftpy.server.network.session import Session


class Connection:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.closed = False
        self.reason = ""
        self.sent = b""
        self.session = Session("PLAINTEXT", peer=("127.0.0.1", 1), local=("127.0.0.1", 9092))
        self.peer = self.session.peer
        self.taken_s = perf_counter() - 1.0
        self.last_route = self.client_id = None

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason

    def respond(self, parts: list[Any]) -> None:
        self.sent += b"".join(parts)


def frame(key: ApiKey, version: int, request: object) -> memoryview:
    return memoryview(bytearray(b"".join(codec.encode_request(key, version, 1, "c", request))))


def handle(dispatcher: Dispatcher, connection: Any, *frames: memoryview) -> None:
    """What a connection does with frames that come together."""
    dispatcher.handled(connection, sum(dispatcher.dispatch(connection, each) for each in frames))


def test_what_has_a_handler_is_advertised_and_nothing_else() -> None:
    assert set(ADVERTISED) == set(HANDLERS)


def test_requests_that_come_together_are_timed_together_and_all_are_counted() -> None:
    def refuse(_: object) -> ErrorCode:
        return ErrorCode.UNKNOWN_MEMBER_ID

    broker: Any = SimpleNamespace(
        groups=SimpleNamespace(heartbeat=refuse, fetch_offsets=lambda *_: 1 / 0)
    )
    dispatcher, connection = Dispatcher(broker, HANDLERS), Connection()
    beat = frame(ApiKey.HEARTBEAT, 3, messages.HeartbeatRequest("g"))
    fails = frame(ApiKey.OFFSET_FETCH, 7, messages.OffsetFetchRequest("g", None))
    handle(dispatcher, connection, beat, beat, beat, fails, beat)
    beats, failed = dispatcher.numbers[ApiKey.HEARTBEAT], dispatcher.numbers[ApiKey.OFFSET_FETCH]
    assert (beats.duration.count, failed.duration.count) == (4, 1)
    assert beats.duration.sum == pytest.approx(4 * failed.duration.sum)
    assert failed.duration.sum > 1.0
    assert beats.errors == {ErrorCode.UNKNOWN_MEMBER_ID: 4}
    assert failed.errors == {ErrorCode.UNKNOWN_SERVER_ERROR: 1}
    handle(dispatcher, connection)
    handle(dispatcher, connection, beat, fails, fails, beat)
    handle(dispatcher, connection, fails)
    assert dispatcher.numbers[ApiKey.HEARTBEAT] is beats
    assert (beats.duration.count, failed.duration.count) == (6, 4)
    for count in range(NOTED_MAX):
        handle(dispatcher, connection, beat)
        assert (beats.duration.count == 6) == (count < NOTED_MAX - 1)
    assert beats.duration.count == 6 + NOTED_MAX
    assert failed.duration.count == 4


def test_connections_that_ask_for_other_things_are_counted_each_by_its_own() -> None:
    broker: Any = SimpleNamespace(
        groups=SimpleNamespace(heartbeat=lambda _: ErrorCode.NONE, fetch_offsets=lambda *_: 1 / 0)
    )
    dispatcher = Dispatcher(broker, HANDLERS)
    beat = frame(ApiKey.HEARTBEAT, 3, messages.HeartbeatRequest("g"))
    fails = frame(ApiKey.OFFSET_FETCH, 7, messages.OffsetFetchRequest("g", None))
    unknown = memoryview(bytearray(b"\x7f\xff" + bytes(10)))
    one, other = Connection(), Connection()
    for _ in range(3):
        handle(dispatcher, one, beat, beat)
        handle(dispatcher, other, fails, unknown)
        assert "isn't supported" in other.reason
    counts = {key: each.duration.count for key, each in dispatcher.numbers.items()}
    assert counts == {ApiKey.HEARTBEAT: 6, ApiKey.OFFSET_FETCH: 3}


def test_each_kind_of_slow_request_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    broker: Any = SimpleNamespace(
        groups=SimpleNamespace(heartbeat=lambda _: ErrorCode.NONE, fetch_offsets=lambda *_: 1 / 0)
    )
    dispatcher, connection = Dispatcher(broker, HANDLERS), Connection()
    dispatcher.slow.set_limit(500)
    beat = frame(ApiKey.HEARTBEAT, 3, messages.HeartbeatRequest("g"))
    fails = frame(ApiKey.OFFSET_FETCH, 7, messages.OffsetFetchRequest("g", None))
    told = []
    for together in ([beat, beat, fails, beat], [beat], [fails]):
        caplog.clear()
        handle(dispatcher, connection, *together)
        lines = [each.getMessage() for each in caplog.records]
        lines = [line for line in lines if line.startswith("slow-request ")]
        assert all(" client=c " in line for line in lines)
        told.append([line.split()[1] for line in lines])
    assert told == [
        ["api=Heartbeat", "api=OffsetFetch"],
        ["api=Heartbeat"],
        ["api=OffsetFetch"],
    ]


@pytest.mark.parametrize("version", [7, 8])
def test_a_failure_is_no_empty_success(version: int) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    broker: Any = SimpleNamespace(groups=SimpleNamespace(fetch_offsets=fail))
    kinds = messages.OffsetFetchRequest
    group = kinds.OffsetFetchRequestGroup("g")
    request = kinds("g", None) if version == 7 else kinds(groups=[group])
    connection: Any = Connection()
    Dispatcher(broker, HANDLERS).dispatch(connection, frame(ApiKey.OFFSET_FETCH, version, request))
    if version == 7:
        assert not connection.reason
        _, response = codec.decode_response(
            ApiKey.OFFSET_FETCH, version, memoryview(connection.sent)[4:]
        )
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    else:  # errors are each group's there
        assert not connection.sent
        assert "OFFSET_FETCH failed" in connection.reason


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH])
def test_the_hot_paths_are_not_looked_through(key: ApiKey) -> None:
    """Their handlers count the errors of partitions: else they'd be counted twice."""
    broker: Any = SimpleNamespace()
    route = Dispatcher(broker, HANDLERS)._find_route(key, ADVERTISED[key][1])
    assert route is not None
    answer = route.response_class()
    failed = SimpleNamespace(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    parts = [SimpleNamespace(partitions=[failed], partition_responses=[failed])]
    answer.responses = parts
    if route.count_errors is not None:
        route.count_errors(answer, route.numbers.errors)
    assert not route.numbers.errors
    # Such an answer would be counted if its parts were looked at.
    counted: Counter[int] = Counter()
    count = codec.error_counter(type(answer).__name__, ADVERTISED[key][1], 1)
    assert count is not None
    count(answer, counted)
    assert counted == {ErrorCode.NOT_LEADER_OR_FOLLOWER: 1}


async def test_who_leaves_at_once_leaves_no_coroutine_behind() -> None:
    """Python warns of one that nobody has begun to wait for, on the stderr of the broker."""
    connection: Any = Connection()
    connection.defer = connection.let_overlap = Slot
    begun = []

    async def find(*_: object) -> None:
        begun.append(True)

    spec = HandlerSpec(find, concurrent=False, long=True)
    dispatcher = Dispatcher(None, {ApiKey.FIND_COORDINATOR: spec})
    request = frame(ApiKey.FIND_COORDINATOR, 4, messages.FindCoordinatorRequest())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        dispatcher.dispatch(connection, request)
        (waiting,) = dispatcher._tasks
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)
        assert connection.closed
        assert not dispatcher.waiting
        del waiting
        gc.collect()
    assert not begun
    # What other tests have left to the collector has warnings of its own.
    assert not [each for each in found if issubclass(each.category, RuntimeWarning)]
