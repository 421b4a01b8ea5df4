"""A connection: versions, pipelining, and every way in which it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .peer import HANG_UP, SILENCE, Peer, running


@asynccontextmanager
async def connected(peer: Peer, **options: Any) -> AsyncIterator[Connection]:
    async with running(peer):
        connection = await Connection.open("127.0.0.1", peer.port, **options)
        try:
            yield connection
        finally:
            await connection.close()


def test_takes_the_highest_version_that_both_know() -> None:
    peer = Peer({"t": 1})
    peer.versions[ApiKey.METADATA] = (0, 7)
    peer.versions[ApiKey.FETCH] = (4, 99)

    async def run() -> None:
        async with connected(peer) as connection:
            assert connection.version(ApiKey.METADATA) == 7
            assert connection.version(ApiKey.FETCH) == 12
            response = await connection.request(
                messages.MetadataRequest(topics=None), timeout_ms=5000
            )
            assert [topic.name for topic in response.topics] == ["t"]
        assert peer.requests[-1][:2] == (ApiKey.METADATA, 7)

    asyncio.run(run())


def test_says_which_versions_do_not_meet() -> None:
    peer = Peer()
    peer.versions[ApiKey.FETCH] = (13, 16)
    del peer.versions[ApiKey.CREATE_TOPICS]

    async def run() -> None:
        async with connected(peer) as connection:
            with pytest.raises(KafkaError, match="FETCH 13 to 16, this client knows 4 to 12"):
                connection.version(ApiKey.FETCH)
            with pytest.raises(KafkaError, match="does not serve CREATE_TOPICS") as caught:
                connection.version(ApiKey.CREATE_TOPICS)
            assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION

    asyncio.run(run())


def test_asks_an_old_broker_with_version_0() -> None:
    peer = Peer()
    peer.versions[ApiKey.API_VERSIONS] = (0, 2)

    async def run() -> None:
        async with connected(peer) as connection:
            assert connection.version(ApiKey.METADATA) == 12
        assert [(key, version) for key, version, _ in peer.requests] == [
            (ApiKey.API_VERSIONS, 3),
            (ApiKey.API_VERSIONS, 0),
        ]

    asyncio.run(run())


def test_many_requests_in_flight_get_their_own_answers() -> None:
    peer = Peer({f"t{n}": n + 1 for n in range(20)})

    async def run() -> None:
        kinds = messages.MetadataRequest
        async with connected(peer) as connection:
            responses = await asyncio.gather(
                *(
                    connection.request(
                        kinds(topics=[kinds.MetadataRequestTopic(name=f"t{n}")]), timeout_ms=5000
                    )
                    for n in range(20)
                )
            )
        assert [len(r.topics[0].partitions) for r in responses] == list(range(1, 21))

    asyncio.run(run())


def test_a_cancelled_request_does_not_disturb_the_next() -> None:
    peer = Peer({"t": 1})

    async def run() -> None:
        async with connected(peer) as connection:
            first = asyncio.ensure_future(
                connection.request(messages.MetadataRequest(topics=[]), timeout_ms=5000)
            )
            await asyncio.sleep(0)
            first.cancel()
            response = await connection.request(
                messages.MetadataRequest(topics=None), timeout_ms=5000
            )
            assert len(response.topics) == 1

    asyncio.run(run())


def test_hanging_up_fails_all_that_wait() -> None:
    peer = Peer()
    peer.answers[ApiKey.METADATA] = lambda request: HANG_UP

    async def run() -> None:
        async with connected(peer) as connection:
            results = await asyncio.gather(
                *(
                    connection.request(messages.MetadataRequest(topics=[]), timeout_ms=5000)
                    for _ in range(3)
                ),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [ConnectionLostError] * 3
            assert "closed the connection" in str(results[0])
            assert connection.closed
            with pytest.raises(ConnectionLostError, match="is closed"):
                await connection.request(messages.MetadataRequest(topics=[]), timeout_ms=5000)

    asyncio.run(run())


def test_no_answer_in_time_ends_the_connection() -> None:
    peer = Peer()
    peer.answers[ApiKey.METADATA] = lambda request: SILENCE

    async def run() -> None:
        async with connected(peer) as connection:
            with pytest.raises(ConnectionLostError, match="did not answer METADATA within 50 ms"):
                await connection.request(messages.MetadataRequest(topics=[]), timeout_ms=50)
            assert connection.closed

    asyncio.run(run())


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\x7f\xff\xff\xff", "a response of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "a response of -1 bytes"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x63", "API_VERSIONS: "),
        (b"\x00\x00\x00\x05\x00\x00\x00\x01\x07", "API_VERSIONS: "),
    ],
)
def test_bytes_that_are_no_response_end_the_connection(raw: bytes, complaint: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10_000)
        writer.write(raw)
        await reader.read()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLostError, match=complaint):
            await Connection.open("127.0.0.1", port, timeout_ms=5000)
        server.close()

    asyncio.run(run())


def test_nobody_there() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionLostError, match=f"127.0.0.1:{port}: connection refused"):
            await Connection.open("127.0.0.1", port)

    asyncio.run(run())
