"""Requests of many elements: counted before they are built, and decoded in slices.

A byte of a request may become an object of hundreds. Rules (docs/architecture.md, decision 10):

* An array has at most ARRAY_MAX elements: a cluster doesn't have more partitions, so there are no
  more names or ids to ask for. All arrays of a request together have at most ELEMENTS_MAX. What
  has more closes the connection with a line in the log, before the array is built.
* Only requests above LONG_REQUEST_BYTES are counted: smaller ones have no more elements than
  bytes, and are decoded by code that doesn't count.
* Long ones of few elements (FEW_ELEMENTS of the decoders) are handled at once, as short ones are.
* A request that isn't decoded within its first slice goes on between other work, one at a time,
  and only while `queued.max.request.bytes` has room. What it has become counts there until it is
  answered.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata.topic_commands import CLUSTER_PARTITIONS_MAX
from kraftpy.protocol import codec
from kraftpy.protocol.errors import DecodeError
from kraftpy.server.network.long_answers import SLICE_MAX_S, Turns

if TYPE_CHECKING:
    from kraftpy.server.network.connection import Connection

LONG_REQUEST_BYTES = 64 * 1024
ARRAY_MAX = CLUSTER_PARTITIONS_MAX
ELEMENTS_MAX = 2 * ARRAY_MAX
# What an element takes when it is decoded, and a little of what its handler makes of it.
_ELEMENT_BYTES = 400


class LongRequest:
    """One request while it is decoded and handled; `frame` isn't kept."""

    __slots__ = ("_connection", "_decoding", "_reserved_bytes", "elements", "request")

    def __init__(
        self, connection: Connection, key: int, version: int, frame: memoryview, position: int
    ) -> None:
        self._connection = connection
        self._reserved_bytes = 0
        self.elements = 0
        self.request: Any = None
        # The frame lies in a buffer that others will use; batches are stamped where they lie.
        copy = memoryview(bytearray(frame))
        self._decoding = codec.decode_request_in_slices(key, version, copy, position, self._count)

    def _count(self, field: str, count: int) -> None:
        self.elements += count
        if count > ARRAY_MAX:
            raise DecodeError(
                f"{field} has {count} elements, more than the {ARRAY_MAX} partitions that a "
                "cluster can have"
            )
        if self.elements > ELEMENTS_MAX:
            raise DecodeError(f"more than {ELEMENTS_MAX} elements with those of {field}")

    def advance(self) -> bool:
        """Goes on for a slice; whether `request` is there. Raises DecodeError."""
        deadline_s = perf_counter() + SLICE_MAX_S
        while perf_counter() < deadline_s:
            try:
                next(self._decoding)
            except StopIteration as end:
                self.request = end.value
                return True
        return False

    def count_in(self) -> None:
        """Counts in the memory of requests what it has become so far."""
        more = self.elements * _ELEMENT_BYTES - self._reserved_bytes
        self._reserved_bytes += more
        self._connection.request_memory.reserve(more)

    def release(self) -> None:
        """Counts it no more."""
        self._connection.request_memory.release(self._reserved_bytes)
        self._reserved_bytes = 0
        self.request = None


class LongRequests:
    """Decodes what took longer than its first slice, one request at a time."""

    __slots__ = ("_lock", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._lock = asyncio.Lock()

    async def finish(self, connection: Connection, long: LongRequest) -> None:
        """Returns when it is decoded. The caller releases it. Raises DecodeError."""
        async with self._lock:
            await connection.request_memory.room(connection)
            while long.request is None and not long.advance():
                long.count_in()
                await self._turns.next()
            long.count_in()
