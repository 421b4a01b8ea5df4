"""Opens batches that would hold up the event loop: in a helper process, one at a time, in turn.

Rules that it keeps (docs/architecture.md, decisions 4 and 10):

* What is opened on the event loop takes a millisecond or two; `record_policy` says what does.
* The process starts with the first such batch and ends when none came for IDLE_S. One that dies in
  the middle is replaced, once; a batch that ends two of them is refused.
* Of batches that are read from logs for this, READ_MAX are in memory at a time, however many wait,
  and what is sent is opened in between. Who waits may leave: its place is taken until it's done.
* The bytes of others that wait count as request memory; who sent them sends nothing more meanwhile
  (`RequestContext.may_overlap`), so a connection has one request here at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.key_index import RECORD_BYTES, KeyIndex, KeyRanges
from kraftpy.protocol.record_rules import InvalidRecords, RecordError, RecordRules
from kraftpy.server.replication.opening_process import SIZES, Fields

log = logging.getLogger(__name__)

IDLE_S: Final = 30.0
READ_MAX: Final = 4
_TRIES: Final = 2

T = TypeVar("T")


class BatchOpener:
    """The broker's side of the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn = asyncio.Lock()
        self._places = asyncio.Semaphore(READ_MAX)
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    async def conform(self, batch: bytes | bytearray, rules: RecordRules) -> memoryview:
        """`record_rules.conform`; raises KafkaError for everything that may be wrong."""
        _, data = await self._ask({"conform": rules}, batch)
        return memoryview(bytearray(data))

    async def read_and_open(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What comes of this, which reads a batch and has it opened here."""
        await self._places.acquire()
        working = self._loop.create_task(work())
        working.add_done_callback(self._leave_place)
        return await asyncio.shield(working)

    def _leave_place(self, done: asyncio.Task[Any]) -> None:
        self._places.release()
        if not done.cancelled():
            done.exception()  # it is for who waits, and that one may have left

    async def find_timestamp(
        self, batch: bytes, timestamp_ms: int, min_offset: int, max_size_bytes: int
    ) -> tuple[int, int] | None:
        """`records.find_timestamp`. Raises KafkaError."""
        job = {"find": [timestamp_ms, min_offset, max_size_bytes]}
        return _pair((await self._ask(job, batch))[0]["found"])

    async def max_timestamp_of(self, batch: bytes, max_size_bytes: int) -> tuple[int, int] | None:
        """`records.max_timestamp_of`. Raises KafkaError."""
        return _pair((await self._ask({"newest": max_size_bytes}, batch))[0]["found"])

    async def key_index(
        self, batch: bytes, max_size_bytes: int, keep_max_bytes: int
    ) -> tuple[KeyIndex, bytes]:
        """`key_index.key_index` of the batch, and its records uncompressed.

        They're left out if they lie in the batch as they are, or are more than `keep_max_bytes`.
        Raises KafkaError.
        """
        fields, data = await self._ask({"index": [max_size_bytes, keep_max_bytes]}, batch)
        end = fields["count"] * RECORD_BYTES
        return KeyIndex.from_bytes(data[:end]), data[end:]

    async def cut(self, batch: bytes, ranges: KeyRanges, max_size_bytes: int) -> bytes:
        """The batch cut to these slices, at least one record of which it has. Raises KafkaError."""
        return (await self._ask({"cut": [ranges, max_size_bytes]}, batch))[1]

    async def upconvert(self, messages: bytes, max_size_bytes: int) -> memoryview:
        """`legacy.upconvert`; raises KafkaError for everything that may be wrong."""
        _, data = await self._ask({"upconvert": max_size_bytes}, messages)
        return memoryview(bytearray(data))

    async def downconvert(
        self, batch: bytes, magic: int, first_offset: int, max_size_bytes: int
    ) -> tuple[bytes, int]:
        """`downconversion.downconvert` of the batch. Raises KafkaError."""
        job = {"downconvert": [magic, first_offset, max_size_bytes]}
        fields, data = await self._ask(job, batch)
        return data, fields["count"]

    async def _ask(self, job: dict[str, Any], batch: bytes | bytearray) -> tuple[Fields, bytes]:
        text = json.dumps(job).encode()
        # The caller may leave; half a result would then be taken for that of the next job.
        fields, data = await asyncio.shield(self._ask_in_turn(text, batch))
        if (code := fields.get("code")) is None:
            return fields, data
        if "records" in fields:
            errors = [RecordError(index, message) for index, message in fields["records"]]
            raise InvalidRecords(ErrorCode(code), errors)
        raise KafkaError(ErrorCode(code), fields["message"])

    async def _ask_in_turn(self, text: bytes, batch: bytes | bytearray) -> tuple[Fields, bytes]:
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                for _ in range(_TRIES):
                    if self._closed:
                        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker stops")
                    try:
                        process = self._process or await self._start()
                        return await _exchange(process, text, batch)
                    except (OSError, asyncio.IncompleteReadError) as error:
                        log.error("the process that opens batches has failed: %s", error)
                        await self._kill()
            finally:
                self._idle = self._loop.call_later(IDLE_S, self._end)
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "the batch couldn't be opened: the process for it failed twice; the broker's log has "
            "what it said last",
        )

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "kraftpy.server.replication.opening_process",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self._process

    def _end(self) -> None:
        """It has had nothing to do."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    async def close(self) -> None:
        """The broker stops: what still waits fails."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        await self._kill()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                process.kill()
            await process.wait()


async def _exchange(
    process: asyncio.subprocess.Process, text: bytes, batch: bytes | bytearray
) -> tuple[Fields, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdin.is_closing():  # uvloop has noticed its end
        raise ConnectionResetError
    process.stdin.writelines((SIZES.pack(len(text), len(batch)) + text, batch))
    await process.stdin.drain()
    text_size, batch_size = SIZES.unpack(await process.stdout.readexactly(SIZES.size))
    fields = json.loads(await process.stdout.readexactly(text_size))
    return fields, await process.stdout.readexactly(batch_size)


def _pair(found: list[int] | None) -> tuple[int, int] | None:
    return None if found is None else (found[0], found[1])
