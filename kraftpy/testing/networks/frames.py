"""The program between clients and nodes: it has some requests arrive seconds late.

`python -m kraftpy.testing.networks.frames` listens for each broker that clients hear of. It passes
everything on, and writes its own addresses into the answers that name brokers, so that clients stay
with it.

Rules:

* A request is late like one whose connection broke when it was on its way: the client's connection
  ends as soon as the request is there, and what waits on it is never answered. The client sends it
  again, or gives up. Seconds later the request arrives, and nobody hears what comes of it.
* Requests of other kinds are never late. EndTxn is from version 5 on: in the earlier ones, a late
  one ends the next transaction, by Kafka's design (KIP-890).
* It ends with its stdin.

stdin and stdout are lines of JSON: {"bootstrap": "HOST:PORT,..."}, where the brokers are, answered
with {"bootstrap": "..."}, where clients are to begin; {"late": share of requests, "seed": number,
"seconds": [least, most]}, {"late": 0}, and {}, each answered with how many were held back so far
and how many of them have arrived: {"held": number, "delivered": number}.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_request_header, decode_response, encode_response
from kraftpy.protocol.errors import DecodeError
from kraftpy.testing.networks.program import SIZE_BYTES, framed, obey, read_frame

_HOST = "127.0.0.1"
_ANSWER_S = 5.0
_LIMIT_BYTES = 1 << 20
_FIRST_VERSIONS: dict[int, int] = {ApiKey.PRODUCE: 3, ApiKey.END_TXN: 5}
_NAMES_BROKERS: set[int] = {ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER}

_Address = tuple[str, int]


class Frames:
    """All connections of the clients of one cluster."""

    def __init__(self) -> None:
        self.held = 0
        self.delivered = 0
        self._share = 0.0
        self._seconds = (0.0, 0.0)
        self._rng = random.Random(0)  # noqa: S311 - has to be repeatable
        self._ports: dict[_Address, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out a line of stdin."""
        if "bootstrap" in order:
            found = [each.rpartition(":") for each in order["bootstrap"].split(",")]
            ports = [await self.port_of((host, int(port))) for host, _, port in found]
            return {"bootstrap": ",".join(f"{_HOST}:{port}" for port in ports)}
        self._share = order.get("late", self._share)
        if "seed" in order:
            self._rng.seed(order["seed"])
            self._seconds = order["seconds"]
        return {"held": self.held, "delivered": self.delivered}

    async def port_of(self, address: _Address) -> int:
        """Where this listens for a broker."""
        if address not in self._ports:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await _Connection(self, address, reader, writer).run()

            server = await asyncio.start_server(serve, _HOST, 0, limit=_LIMIT_BYTES)
            # Another answer may have named the broker meanwhile.
            self._ports.setdefault(address, server.sockets[0].getsockname()[1])
        return self._ports[address]

    def is_late(self, api_key: int, version: int) -> bool:
        """Whether this request is to be."""
        first = _FIRST_VERSIONS.get(api_key)
        return first is not None and version >= first and self._rng.random() < self._share

    def deliver(self, frame: bytes, reader: asyncio.StreamReader, writer: Any) -> None:
        """Has a request arrive later, over the connection to the broker that is left over."""
        self.held += 1
        task = asyncio.get_running_loop().create_task(self._deliver(frame, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, frame: bytes, reader: asyncio.StreamReader, writer: Any) -> None:
        await asyncio.sleep(self._rng.uniform(*self._seconds))
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(frame)
            await writer.drain()
            self.delivered += 1
            async with asyncio.timeout(_ANSWER_S):
                while await reader.read(_LIMIT_BYTES):
                    continue  # what isn't read when it closes would take the request with it
        writer.close()


class _Connection:
    """A client's connection, through to its broker."""

    def __init__(
        self,
        frames: Frames,
        address: _Address,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._frames = frames
        self._address = address
        self._client = reader, writer
        self._asked: dict[int, tuple[int, int]] = {}
        """Questions that name brokers in their answers: correlation id -> (API, version)"""

    async def run(self) -> None:
        reader, writer = self._client
        try:
            there, broker = await asyncio.open_connection(*self._address, limit=_LIMIT_BYTES)
        except OSError:
            writer.close()
            return
        answering = asyncio.ensure_future(self._answer(there, writer))
        kept = False
        try:
            while True:
                frame = await read_frame(reader)
                if self._is_late(frame):
                    kept = True
                    break
                broker.write(frame)
                await broker.drain()
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                await answering
            writer.close()
            if not kept:
                broker.close()
        self._frames.deliver(frame, there, broker)

    def _is_late(self, frame: bytes) -> bool:
        try:
            header, _ = decode_request_header(memoryview(frame)[SIZE_BYTES:])
        except DecodeError:
            return False  # the broker is to say so
        if header.api_key in _NAMES_BROKERS:
            self._asked[header.correlation_id] = header.api_key, header.api_version
        return self._frames.is_late(header.api_key, header.api_version)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                correlation_id = int.from_bytes(frame[SIZE_BYTES : SIZE_BYTES + 4], "big")
                asked = self._asked.pop(correlation_id, None)
                writer.write(frame if asked is None else await self._renamed(frame, *asked))
                await writer.drain()
        finally:
            writer.close()

    async def _renamed(self, frame: bytes, api_key: int, version: int) -> bytes:
        """An answer with this program's addresses for those of the brokers."""
        number, response = decode_response(api_key, version, memoryview(frame)[SIZE_BYTES:])
        for each in _brokers_of(response):
            if each.port > 0:
                each.port = await self._frames.port_of((each.host, each.port))
                each.host = _HOST
        return framed(encode_response(api_key, version, number, response))


def _brokers_of(response: Any) -> Iterator[Any]:
    """Whatever in an answer has a host and a port."""
    if hasattr(response, "host"):
        yield response
    for name in ("brokers", "coordinators"):
        yield from getattr(response, name, ())


async def _main() -> None:
    await obey(Frames().answer)


if __name__ == "__main__":
    asyncio.run(_main())
