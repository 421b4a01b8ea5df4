"""What programs beside the nodes have in common: orders on stdin, frames of Kafka's protocol."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

SIZE_BYTES = 4
_FRAME_BYTES_MAX = 100 << 20

Answer = dict[str, Any]


async def obey(answer: Callable[[dict[str, Any]], Answer | Awaitable[Answer]]) -> None:
    """Answers each line of stdin, an order as JSON, by a line of stdout; ends with stdin."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        answered = answer(json.loads(line))
        if inspect.isawaitable(answered):
            answered = await answered
        sys.stdout.write(json.dumps(answered) + "\n")
        sys.stdout.flush()
    os._exit(0)  # the connections end with the process


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """A request or an answer as it is, its size in front. Raises OSError, IncompleteReadError."""
    size = await reader.readexactly(SIZE_BYTES)
    length = int.from_bytes(size, "big")
    if length > _FRAME_BYTES_MAX:
        raise ConnectionError(f"a frame of {length} bytes")
    return size + await reader.readexactly(length)


def framed(parts: list[Any]) -> bytes:
    """The pieces of a request or an answer in one, its size in front."""
    frame = b"".join(map(bytes, parts))
    return len(frame).to_bytes(SIZE_BYTES, "big") + frame
