"""Answers that may be long: built in slices, counted while they are built, ended at a limit.

An answer can be a thousand times its request, and a request can ask for everything there is. Rules
(docs/architecture.md, decision 10):

* A handler that is registered with `long=True` gives arrays that may be long as `elements`: each
  element is made when it is encoded and is garbage behind that, so only bytes pile up.
* An answer is encoded for SLICE_MAX_S at a time; between two slices the loop serves others, and of
  several answers one goes on in each turn of the loop. Most answers end within their first slice
  and never wait.
* Handlers that work through much keep a `Pace`: all of them together have SLICE_MAX_S of a turn of
  the loop, however many there are, and those of little to do don't wait for all who have much.
* What an answer has so far counts in `queued.max.response.bytes`. While that is used up no answer
  goes on behind its first slice; of those that do there are BUILDERS_MAX at a time, and they may
  pass it together by as many times ANSWER_MAX_BYTES.
* An answer has at most ANSWER_MAX_BYTES, and half of `queued.max.response.bytes` at most. Names
  that don't fit any more are answered with INVALID_REQUEST each, which clients don't try again;
  where that has no place the whole answer is that error, or the connection is closed with a line
  in the log. Stock clients take 100 MB (librdkafka's `receive.message.max.bytes`) or more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Hashable,
    Iterable,
)
from contextvars import Context, copy_context
from itertools import islice
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from kraftpy.protocol import codec
from kraftpy.protocol.elements import Asked
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.storage.segment import FileSlice

if TYPE_CHECKING:
    from collections import Counter

    from kraftpy.server.network.connection import Connection
    from kraftpy.server.network.quota_use import Used
    from kraftpy.server.network.sending import Part

SLICE_MAX_S = 0.005
SHORT_MAX_S = 0.0005
ANSWER_MAX_BYTES = 64 * 1024 * 1024
BUILDERS_MAX = 4
# The most that refusals of what doesn't fit may add.
REFUSALS_MAX_BYTES = 16 * 1024 * 1024
# So many pieces are looked at together: few enough that joining them is no slice of its own.
_PIECES_MAX = 256
_CHUNK_BYTES = 64 * 1024
TOGETHER_MAX = 1_000

_SIZE = Struct(">i").pack

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Turns:
    """Lets one of those who wait go on in each turn of the loop, first come, first served."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Returns when it is the caller's turn; others have been served meanwhile."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        # It stays in the queue for this turn, so that nobody else begins in it.
        turn = self._waiting[0]
        if not turn.done():
            turn.set_result(None)
        asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)


class _Place(asyncio.Future[None]):
    """Where a task waits for a slice. It is run at once when it has one, not in the next turn.

    So as many go on in a turn as its slice has time for.
    """

    _waiter: tuple[Callable[[Any], object], Context | None] | None = None

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        self._waiter = fn, context  # the task, and nobody else

    def run(self) -> None:
        """Has the task go on, up to where it waits again, unless it was cancelled."""
        if not self.done():
            self.set_result(None)
            if self._waiter is not None:
                wake, context = self._waiter
                (context or copy_context()).run(wake, self)

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and self._waiter is not None:
            wake, context = self._waiter
            self.get_loop().call_soon(wake, self, context=context)
        return cancelled


_Task = asyncio.Task[Any]
_Queue = OrderedDict[_Place, _Task]


class _Slice:
    """What all tasks of a loop that keep pace have of one of its turns, together.

    It begins with the first of them that works in that turn. Who is at work when it is over waits
    for a later turn, first come, first served. Those who have had less than SHORT_MAX_S, most
    requests among them, wait in a queue of their own, in which nobody goes on for longer than that;
    while there are others, each queue has half of a slice.
    """

    __slots__ = ("_had_s", "_long", "_short", "ends_s", "has_begun")

    def __init__(self) -> None:
        self._short: _Queue = OrderedDict()
        self._long: _Queue = OrderedDict()
        self._had_s: WeakKeyDictionary[_Task, float] = WeakKeyDictionary()
        self.has_begun = False
        self.ends_s = 0.0

    def begin(self) -> None:
        """Begins; there is no other before the loop's next turn."""
        self.has_begun = True
        self.ends_s = perf_counter() + SLICE_MAX_S
        asyncio.get_running_loop().call_soon(self._next_turn)

    async def wait(self) -> None:
        """Returns in the slice of a later turn; others have been served meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        queue = self._short if self._had_s.get(task, 0.0) < SHORT_MAX_S else self._long
        place = _Place()
        queue[place] = task
        try:
            await place
        finally:
            queue.pop(place, None)

    def _next_turn(self) -> None:
        self.has_begun = False
        queues = [queue for queue in (self._short, self._long) if queue]
        if queues:
            self.begin()
        for queue in queues:
            self._serve(queue, SLICE_MAX_S / len(queues))

    def _serve(self, queue: _Queue, share_s: float) -> None:
        """Has those go on who wait longest, as many as the time is enough for; one at least."""
        most_s = SHORT_MAX_S if queue is self._short else SLICE_MAX_S
        now_s = perf_counter()
        until_s = now_s + share_s
        while queue:
            self.ends_s = min(until_s, now_s + most_s)
            place, task = queue.popitem(last=False)
            place.run()
            began_s, now_s = now_s, perf_counter()
            self._had_s[task] = self._had_s.get(task, 0.0) + now_s - began_s
            if now_s >= until_s:
                break
        self.ends_s = until_s


_slices: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slice] = WeakKeyDictionary()


class Pace:
    """Keeps a handler that works through many things from holding up the loop.

    However many a task has of it, and however many tasks have one, they share a slice in each turn
    of the loop.
    """

    __slots__ = ("_slice",)

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        found = _slices.get(loop)
        if found is None:
            found = _slices[loop] = _Slice()
        self._slice = found
        if not found.has_begun:
            found.begin()

    async def keep(self) -> None:
        """Lets others have the loop if the slice of this turn is over."""
        its = self._slice
        if not its.has_begun:
            its.begin()
        elif perf_counter() >= its.ends_s:
            await its.wait()


def at_once(work: Generator[None, None, T]) -> T:
    """What `work` returns; it yields where it could be interrupted."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)


async def in_slices(work: Generator[None, None, T]) -> T:
    """The same, with others having the loop in between."""
    pace = Pace()
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)
        await pace.keep()


async def in_parts(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """Many items, some at a time, with others having the loop in between."""
    pace = Pace()
    iterator = iter(items)
    while some := list(islice(iterator, TOGETHER_MAX)):
        await pace.keep()
        yield some


async def distinct(items: Iterable[K]) -> list[K]:
    """Each of many items once, in their order."""
    found: dict[K, None] = {}
    async for some in in_parts(items):
        found.update(dict.fromkeys(some))
    return list(found)


async def counted(items: Iterable[K]) -> tuple[list[K], set[K]]:
    """Each of many items once, in their order, and those that come more than once."""
    once: dict[K, None] = {}
    again: set[K] = set()
    async for some in in_parts(items):
        for item in some:
            if item in once:
                again.add(item)
            else:
                once[item] = None
    return list(once), again


class LongAnswer:
    """The frame of one answer under construction."""

    __slots__ = (
        "_asked",
        "_connection",
        "_encoding",
        "_limit_bytes",
        "_pieces",
        "_reserved_bytes",
        "_size_bytes",
        "_used",
        "parts",
    )

    def __init__(
        self,
        connection: Connection,
        key: int,
        version: int,
        correlation_id: int,
        response: Any,
        asked: Asked,
        errors: Counter[int],
        used: Used | None = None,
    ) -> None:
        self._connection = connection
        self._asked = asked
        self._used = used
        self._limit_bytes = min(ANSWER_MAX_BYTES, connection.answer_memory.limit_bytes // 2)
        self._pieces: list[Any] = []
        self._size_bytes = 0
        self._reserved_bytes = 0
        self.parts: list[Part] = []
        self._encoding = codec.encode_response_in_slices(
            key, version, correlation_id, response, self._pieces.append, errors
        )

    def advance(self) -> bool:
        """Goes on for a slice; whether the answer is whole. Raises what its elements raise.

        Raises KafkaError with INVALID_REQUEST if it is too large.
        """
        began_s = perf_counter()
        try:
            return self._advance(began_s + SLICE_MAX_S)
        finally:
            if self._used is not None:
                self._used.encode(perf_counter() - began_s)

    def _advance(self, deadline_s: float) -> bool:
        pieces = self._pieces
        for _ in self._encoding:
            if len(pieces) >= _PIECES_MAX:
                self._collect()
            if perf_counter() >= deadline_s:
                self._collect()
                return False
        self._collect()
        size = _SIZE(self._size_bytes)
        only = self.parts[0] if len(self.parts) == 1 else None
        if isinstance(only, bytearray) and len(only) < _CHUNK_BYTES:
            self.parts[0] = size + only
        else:
            self.parts.insert(0, size)
        return True

    def _collect(self) -> None:
        pieces = self._pieces
        self._size_bytes += sum(map(len, pieces))
        if self._size_bytes >= self._limit_bytes:
            self._asked.answer_full = True
            if self._size_bytes >= self._limit_bytes + REFUSALS_MAX_BYTES:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"the answer would have more than {self._limit_bytes} bytes: ask for less at "
                    "a time",
                )
        joined: list[Any] = []
        for piece in pieces:
            if len(piece) >= _CHUNK_BYTES or isinstance(piece, FileSlice):
                self._add(joined)
                joined = []
                self.parts.append(piece)
            else:
                joined.append(piece)
        self._add(joined)
        pieces.clear()

    def _add(self, pieces: list[bytes]) -> None:
        if not pieces:
            return
        joined = b"".join(pieces)
        last = self.parts[-1] if self.parts else None
        if isinstance(last, bytearray) and len(last) < _CHUNK_BYTES:
            last += joined
        else:
            self.parts.append(bytearray(joined))

    def count_in(self) -> None:
        """Counts what the answer has so far in the memory of answers."""
        more = self._size_bytes - self._reserved_bytes
        self._reserved_bytes += more
        self._connection.answer_memory.reserve(more)

    def release(self) -> None:
        """Counts it no more: it belongs to its connection now, or to nobody."""
        self._connection.answer_memory.release(self._reserved_bytes)
        self._reserved_bytes = 0


class AnswerBuilders:
    """Ends answers that weren't whole after their first slice."""

    __slots__ = ("_places", "turns")

    def __init__(self) -> None:
        self.turns = Turns()
        self._places = asyncio.Semaphore(BUILDERS_MAX)

    async def finish(self, connection: Connection, answer: LongAnswer) -> None:
        """Returns when it is whole. The caller releases it, whatever comes of it."""
        answer.count_in()
        async with self._places:
            await connection.answer_memory.room(connection)
            await self.turns.next()
            while not answer.advance():
                answer.count_in()
                await self.turns.next()
            answer.count_in()
