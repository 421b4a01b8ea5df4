"""Long answers: built between other work, counted until the client has them, ended at a limit."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.server.network import long_answers
from kraftpy.server.network.dispatch import Dispatcher
from kraftpy.server.network.listener import Listener, bind
from tests.waiting import until

DEADLINE_S = 20.0
KIB = 1024


class Groups:
    """Groups of `size_bytes` each."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.described: list[str] = []

    def describe_group(self, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        if group_id == "elsewhere":
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        self.described.append(group_id)
        return DescribeGroupsResponse.DescribedGroup(
            group_id=group_id, group_state="Stable", protocol_data="x" * self.size_bytes
        )

    def list_groups(
        self, states: Sequence[str], types: Sequence[str]
    ) -> Iterator[list[ListGroupsResponse.ListedGroup]]:
        for number in range(100):
            yield [ListGroupsResponse.ListedGroup(f"g{number}", "x" * self.size_bytes)]


class Served:
    """A listener whose groups have `size_bytes`."""

    def __init__(self, size_bytes: int, **properties: str) -> None:
        self.groups = Groups(size_bytes)
        self.dispatcher = Dispatcher(SimpleNamespace(groups=self.groups), HANDLERS)
        config = BrokerConfig.from_properties(
            {key.replace("_", "."): value for key, value in properties.items()}
        )
        self.listener = Listener(
            asyncio.get_running_loop(), config, self.dispatcher, on_disconnect=lambda _: None
        )
        self.memory = self.listener._answer_memory
        listening = bind("127.0.0.1", 0)
        self.address = listening.getsockname()
        self.listener.start(listening, "PLAINTEXT")

    @asynccontextmanager
    async def client(self) -> Any:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, self.address)
            yield sock


@asynccontextmanager
async def serving(size_bytes: int, **properties: str) -> Any:
    served = Served(size_bytes, **properties)
    try:
        yield served
    finally:
        served.listener.drain()
        await served.listener.stop(0)


async def send(sock: socket.socket, key: ApiKey, version: int, request: Any) -> None:
    body = b"".join(codec.encode_request(key, version, 1, "c", request))
    await asyncio.get_running_loop().sock_sendall(sock, struct.pack(">i", len(body)) + body)


async def receive(sock: socket.socket, key: ApiKey, version: int) -> Any:
    """The next answer; None if the connection ends."""
    head = await receive_bytes(sock, 4)
    body = head and await receive_bytes(sock, struct.unpack(">i", head)[0])
    return codec.decode_response(key, version, body)[1] if body else None


async def receive_bytes(sock: socket.socket, size_bytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        while len(data) < size_bytes:
            piece = await loop.sock_recv(sock, size_bytes - len(data))
            if not piece:
                return b""
            data += piece
    return bytes(data)


def names(count: int) -> list[str]:
    return [f"g{number}" for number in range(count)]


async def describe(sock: socket.socket, group_ids: list[str]) -> None:
    await send(sock, ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(group_ids))


async def described(sock: socket.socket) -> Any:
    return await receive(sock, ApiKey.DESCRIBE_GROUPS, 5)


async def test_a_name_that_is_repeated_is_answered_once() -> None:
    async with serving(10) as served, served.client() as sock:
        await describe(sock, ["a", "b", "a", "elsewhere", "a"] * 1000)
        answer = await described(sock)
        assert [g.group_id for g in answer.groups] == ["a", "b", "elsewhere"]
        assert served.groups.described == ["a", "b"]


async def test_the_loop_serves_others_while_an_answer_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_answers, "SLICE_MAX_S", 0.0)

    async with serving(10) as served, served.client() as sock, served.client() as other:
        await describe(sock, names(2000))
        await until(lambda: len(served.groups.described) > 0)
        await describe(other, ["other"])
        assert [g.group_id for g in (await described(other)).groups] == ["other"]
        assert len(served.groups.described) < 2000
        answer = await described(sock)
        assert [g.group_id for g in answer.groups] == names(2000)
        assert served.memory.used_bytes == 0
        errors = served.dispatcher.numbers[ApiKey.DESCRIBE_GROUPS].errors
        assert not errors


async def test_answers_that_are_not_read_count_until_they_are_or_their_client_is_gone() -> None:
    async with serving(20 * KIB) as served:
        async with served.client() as sock:
            await describe(sock, names(1000))
            await until(lambda: served.memory.used_bytes > 10_000 * KIB)
            assert served.memory.used_bytes < 21_000 * KIB
            assert len((await described(sock)).groups) == 1000
            await until(lambda: served.memory.used_bytes == 0)
            await describe(sock, names(1000))
            await until(lambda: served.memory.used_bytes > 10_000 * KIB)
        await until(lambda: served.memory.used_bytes == 0)


async def test_names_that_do_not_fit_are_refused_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "ANSWER_MAX_BYTES", 1024 * KIB)

    async with serving(20 * KIB) as served, served.client() as sock:
        await describe(sock, [*names(1000)])
        answer = await described(sock)
        errors = [group.error_code for group in answer.groups]
        whole = errors.count(ErrorCode.NONE)
        assert 50 <= whole <= 160
        assert errors == [ErrorCode.NONE] * whole + [ErrorCode.INVALID_REQUEST] * (1000 - whole)
        assert [group.group_id for group in answer.groups] == names(1000)
        counted = served.dispatcher.numbers[ApiKey.DESCRIBE_GROUPS].errors
        assert counted == {ErrorCode.INVALID_REQUEST: 1000 - whole}


async def test_half_of_the_limit_of_all_is_that_of_one() -> None:
    limits = {"queued.max.response.bytes": str(2048 * KIB)}
    async with serving(20 * KIB, **limits) as served, served.client() as sock:
        await describe(sock, names(1000))
        answer = await described(sock)
        assert sum(1 for group in answer.groups if not group.error_code) <= 160


async def test_an_answer_that_is_too_large_without_names_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_answers, "ANSWER_MAX_BYTES", 100 * KIB)
    monkeypatch.setattr(long_answers, "REFUSALS_MAX_BYTES", 100 * KIB)

    async with serving(30 * KIB) as served, served.client() as sock:
        await send(sock, ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
        answer = await receive(sock, ApiKey.LIST_GROUPS, 4)
        assert (answer.error_code, answer.groups) == (ErrorCode.INVALID_REQUEST, [])
        assert served.memory.used_bytes == 0


async def test_without_a_place_for_an_error_the_connection_is_closed_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_answers, "ANSWER_MAX_BYTES", 100 * KIB)
    monkeypatch.setattr(long_answers, "REFUSALS_MAX_BYTES", 1 * KIB)

    async with serving(30 * KIB) as served, served.client() as sock:
        await describe(sock, names(1000))
        assert await described(sock) is None
        await until(lambda: served.memory.used_bytes == 0)
    assert "ask for less at a time" in caplog.text


async def test_a_long_answer_waits_for_memory_and_who_does_not_read_gives_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kraftpy.server.network.listener.SWEEP_INTERVAL_S", 0.05)
    monkeypatch.setattr("kraftpy.server.network.listener.MEMORY_STALL_MAX_S", 0.5)
    monkeypatch.setattr(long_answers, "SLICE_MAX_S", 0.0)

    limits = {"queued.max.response.bytes": str(16_000 * KIB)}
    async with (
        serving(30 * KIB, **limits) as served,
        served.client() as first,
        served.client() as second,
        served.client() as third,
    ):
        for sock in first, second:  # of 7.5 MB, some of which the system's buffers take
            await describe(sock, names(250))
        await until(lambda: len(served.groups.described) == 500)
        served.memory.reserve(16_000 * KIB)
        await describe(third, names(250))
        answer = asyncio.ensure_future(described(third))
        await until(lambda: served.listener.connections == 1)
        assert not answer.done()
        assert len(served.groups.described) < 510
        served.memory.release(16_000 * KIB)
        assert len((await answer).groups) == 250
        assert await described(first) is None
    (told,) = caplog.messages  # of one peer, for one cause, within a second
    assert "doesn't read its answers" in told


async def test_small_answers_behind_one_that_waits_are_bounded_too() -> None:
    async with serving(10 * KIB) as served, served.client() as sock:
        connections = served.listener._connections
        await describe(sock, ["first"])
        await described(sock)
        (connection,) = connections
        slot = connection.defer(concurrent=True)
        for _ in range(1000):
            await describe(sock, ["g"])
        await until(lambda: served.memory.used_bytes >= 1024 * KIB)
        before = len(served.groups.described)
        assert before < 110
        connection.complete(slot, None)
        for _ in range(1000):
            assert await described(sock) is not None
        assert len(served.groups.described) == 1001
        await until(lambda: served.memory.used_bytes == 0)


async def test_those_that_come_again_are_told_and_the_others_keep_their_order() -> None:
    items = [*range(2_500), 7, 2_400, 7]
    assert await long_answers.counted(iter(items)) == (list(range(2_500)), {7, 2_400})


async def test_what_a_task_does_in_several_steps_is_one_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(long_answers, "perf_counter", lambda: now_s[0])
    slices_s: list[float] = []

    async def work() -> None:
        began_s = now_s[0]
        for _ in range(5):
            pace = long_answers.Pace()
            now_s[0] += long_answers.SLICE_MAX_S / 2
            turns = served
            await pace.keep()
            if served > turns:
                slices_s.append(now_s[0] - began_s)
                began_s = now_s[0]

    served = 0

    async def others() -> None:
        nonlocal served
        while True:
            served += 1
            await asyncio.sleep(0)

    serving_others = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    await asyncio.ensure_future(work())
    serving_others.cancel()
    assert slices_s == pytest.approx([long_answers.SLICE_MAX_S] * 2)
