"""The program between clients and brokers: what it passes on, what is late, whom clients meet."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import (
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from kraftpy.testing.process import LineProcess

from .conftest import TIMEOUT_S

LATE_S = 0.3


class Program:
    """The program itself, as runs start it."""

    def __init__(self, errors: Path) -> None:
        command = [sys.executable, "-m", "kraftpy.testing.networks.frames"]
        with errors.open("wb") as stderr:
            self._process = LineProcess(command, stderr)

    def tell(self, **order: Any) -> dict[str, Any]:
        self._process.write_line(json.dumps(order))
        answer: dict[str, Any] = json.loads(self._process.read_line(TIMEOUT_S))
        return answer

    def close(self) -> None:
        self._process.end()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path / "errors")
    yield made
    made.close()


class Broker:
    """Notes what arrives, and answers everything by its address, as Metadata does."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[tuple[int, int, float]] = asyncio.Queue()
        self.port = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        while True:
            try:
                frame = await read_frame(reader)
            except asyncio.IncompleteReadError:
                writer.close()
                return
            header, _ = decode_request_header(frame)
            now = asyncio.get_running_loop().time()
            self.arrived.put_nowait((header.api_key, header.correlation_id, now))
            if header.api_key == ApiKey.METADATA:
                kinds = messages.MetadataResponse
                brokers = [
                    kinds.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
                ]
                answer = b"".join(
                    map(
                        bytes,
                        encode_response(
                            header.api_key,
                            header.api_version,
                            header.correlation_id,
                            kinds(brokers=brokers),
                        ),
                    )
                )
            else:
                answer = header.correlation_id.to_bytes(4, "big") + b"done"
            writer.write(len(answer).to_bytes(4, "big") + answer)

    async def next(self) -> tuple[int, int, float]:
        return await asyncio.wait_for(self.arrived.get(), TIMEOUT_S)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def request(api: ApiKey, version: int, number: int) -> bytes:
    message = messages.MetadataRequest() if api is ApiKey.METADATA else None
    if message is None:
        frame = int(api).to_bytes(2, "big") + version.to_bytes(2, "big")
        frame += number.to_bytes(4, "big") + b"\xff\xff" + bytes(8)
    else:
        frame = b"".join(map(bytes, encode_request(api, version, number, "me", message)))
    return len(frame).to_bytes(4, "big") + frame


@asynccontextmanager
async def in_between(program: Program, share: float) -> AsyncIterator[tuple[Broker, int]]:
    """A broker, and the port on which it is reached through the program, which ends with it."""
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    answer = program.tell(bootstrap=f"127.0.0.1:{broker.port}")
    program.tell(late=share, seed=1, seconds=[LATE_S, LATE_S])
    yield broker, int(answer["bootstrap"].rpartition(":")[2])
    program.close()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*broker.tasks)
    server.close()


async def test_what_is_not_late_passes(program: Program) -> None:
    async with in_between(program, 0.0) as (broker, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(3):
            writer.write(request(ApiKey.PRODUCE, 9, number))
            assert await read_frame(reader) == number.to_bytes(4, "big") + b"done"
            assert (await broker.next())[:2] == (ApiKey.PRODUCE, number)
        assert program.tell() == {"held": 0, "delivered": 0}
        writer.close()


@pytest.mark.parametrize(("api", "version"), [(ApiKey.PRODUCE, 9), (ApiKey.END_TXN, 5)])
async def test_a_late_request_arrives_when_its_connection_is_gone(
    program: Program, api: ApiKey, version: int
) -> None:
    async with in_between(program, 1.0) as (broker, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = asyncio.get_running_loop().time()
        writer.write(request(api, version, 7))
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""  # it ends, unanswered
        assert program.tell(late=0)["held"] == 1
        reader, again = await asyncio.open_connection("127.0.0.1", port)
        again.write(request(api, version, 8))
        await read_frame(reader)
        found = [await broker.next(), await broker.next()]
        assert [number for _, number, _ in found] == [8, 7]  # after its retry
        assert found[1][2] - began >= LATE_S
        assert program.tell()["delivered"] == 1
        for each in (writer, again):
            each.close()


@pytest.mark.parametrize(
    ("api", "version"), [(ApiKey.END_TXN, 4), (ApiKey.FETCH, 12), (ApiKey.ADD_OFFSETS_TO_TXN, 4)]
)
async def test_others_are_never_late(program: Program, api: ApiKey, version: int) -> None:
    async with in_between(program, 1.0) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(api, version, 7))
        await read_frame(reader)
        assert program.tell()["held"] == 0
        writer.close()


@pytest.mark.parametrize("version", [4, 12])
async def test_clients_stay_with_it(program: Program, version: int) -> None:
    async with in_between(program, 1.0) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(ApiKey.METADATA, version, 5))
        number, response = decode_response(ApiKey.METADATA, version, await read_frame(reader))
        assert number == 5
        assert [(each.host, each.port) for each in response.brokers] == [("127.0.0.1", port)]
        writer.close()
