"""A man in the middle: sees every frame between a broker and a controller and may change it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

TO_CONTROLLER, TO_BROKER = "to controller", "to broker"

Tamper = Callable[[str, int, bytes], list[bytes] | None]
"""(direction, number of the frame in it from 0, frame) -> frames to send on; None: cut the line."""


def pass_on(direction: str, number: int, frame: bytes) -> list[bytes]:
    return [frame]


class Proxy:
    def __init__(self, target_port: int, tamper: Tamper = pass_on) -> None:
        self.tamper = tamper
        self.connections = 0
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        for direction, source, target in (
            (TO_CONTROLLER, reader, back),
            (TO_BROKER, there, writer),
        ):
            task = asyncio.ensure_future(self._pump(direction, source, target, (writer, back)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        direction: str,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        number = 0
        try:
            while True:
                (length,) = struct.unpack(">I", await source.readexactly(4))
                frames = self.tamper(direction, number, await source.readexactly(length))
                number += 1
                if frames is None:
                    return
                for frame in frames:
                    target.write(struct.pack(">I", len(frame)) + frame)
                await target.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for writer in both:
                writer.close()
