"""Streams: a consumer's records for several tasks, each partition's in one of them at a time.

Rules:

* A partition belongs to one stream of its topic, or of the filter that allows it: when it's
  assigned, to the one that has the fewest. There it stays while this consumer keeps it.
* A record counts as processed when its stream is asked for the next one, or told to `commit`. None
  that a stream still has in its hands is committed by anybody.
* Before partitions are given up, streams are waited for that have a record of them in their hands,
  half a session's time at most. If one takes longer, the next owner processes that record, too.
* One step of the consumer at a time does all that isn't the user's: it runs in a task of its own,
  whoever of the streams needed it, and while it divides partitions anew none is handed out. Its
  errors are raised in the streams that wait for it.
* While any stream is asked for records, the consumer counts as alive.

Source: createMessageStreams and KafkaStream of Kafka's first consumer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.intake import Intake
from kraftpy.client.offsets import Partition
from kraftpy.client.reading import Held, Reading
from kraftpy.client.serializing import K, V
from kraftpy.client.topic_filter import TopicFilter

_STEP_EVERY_S = 0.05
_WAIT_S = 1.0


class RecordStream(Generic[K, V]):
    """Records of some of a consumer's partitions, for one task: `async for record in stream`.

    It ends when the consumer is closed or unsubscribes.
    """

    def __init__(self, streams: Streams, intake: Intake) -> None:
        self._streams = streams
        self._intake = intake
        self._held: tuple[Partition, Held] | None = None

    def __aiter__(self) -> RecordStream[K, V]:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        """The next record; what it gave before counts as processed from here on."""
        return await self._streams.next(self)

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions whose records come here now."""
        return frozenset(self._intake.partitions)

    async def commit(self) -> None:
        """Counts the last record as processed, and commits what all streams have processed.

        Raises what `Consumer.commit` does.
        """
        self._streams.finish(self)
        await self._streams.commit()


def counts_of(topics: Mapping[str, int] | TopicFilter, count: int) -> dict[str | None, int]:
    """How many streams of which topic are wanted, None standing for all. Raises ValueError."""
    counts: dict[str | None, int] = {}
    if isinstance(topics, TopicFilter):
        counts[None] = count
    else:
        counts.update(topics.items())
    if not counts:
        raise ValueError('streams of no topic: name some, as in streams({"orders": 2})')
    for topic, number in counts.items():
        if number < 1:
            shown = "TopicFilter(…), 2" if topic is None else f"{{{topic!r}: 2}}"
            raise ValueError(
                f"{number} streams read nothing: ask for 1 or more, as in streams({shown})"
            )
    return counts


class Streams:
    """The streams of one consumer; `advance`, `wait` and `commit` are the consumer's."""

    def __init__(
        self,
        reading: Reading,
        *,
        advance: Callable[[], Awaitable[None]],
        wait: Callable[[float], Awaitable[None]],
        wake: Callable[[], None],
        commit: Callable[[], Awaitable[None]],
    ) -> None:
        self.commit = commit
        self._reading = reading
        self._advance = advance
        self._wait = wait
        self._wake = wake
        self._streams: dict[str | None, list[RecordStream[Any, Any]]] = {}
        self._asking: set[RecordStream[Any, Any]] = set()
        self._step: asyncio.Task[None] | None = None
        self._step_due_at = 0.0
        self._dealing = False
        self._finished = asyncio.Event()
        self._ended = False
        reading.deal = self._deal

    def make(self, counts: Mapping[str | None, int]) -> Mapping[str | None, list[Any]]:
        """Makes so many streams of each topic; None stands for all topics."""
        for topic, count in counts.items():
            streams: list[RecordStream[Any, Any]] = [
                RecordStream(self, self._reading.add_intake()) for _ in range(count)
            ]
            self._streams[topic] = streams
        return self._streams

    def _deal(self, name: Partition) -> Intake:
        streams: Sequence[RecordStream[Any, Any]] = self._streams.get(
            name[0], self._streams.get(None, ())
        )
        return min((each._intake for each in streams), key=lambda intake: len(intake.partitions))

    # -- records

    async def next(self, stream: RecordStream[Any, Any]) -> ConsumerRecord[Any, Any]:
        """The next record of a stream."""
        self.finish(stream)
        if self._step is not None and self._step.done():
            self._end_step(self._step)
        if time.monotonic() >= self._step_due_at:
            self._begin_step()
            await asyncio.sleep(0)  # A stream that never waits holds up neither it nor the others.
        self._asking.add(stream)
        first = True
        try:
            while not self._ended:
                step = self._step
                if not self._dealing:
                    records = stream._intake.fetched.take(1, self._reading.positions)
                    if records:
                        self._hold(stream, records[0])
                        return records[0]
                if first and step is not None:
                    self._wake()  # It may be waiting, and there may be something to fetch.
                first = False
                step = self._begin_step()
                await asyncio.wait([step])
                self._end_step(step)
        finally:
            self._asking.discard(stream)
        raise StopAsyncIteration

    def _hold(self, stream: RecordStream[Any, Any], record: ConsumerRecord[Any, Any]) -> None:
        name = (record.topic, record.partition)
        held = Held(record.offset)
        stream._held = (name, held)
        self._reading.held[name] = held

    def finish(self, stream: RecordStream[Any, Any]) -> None:
        """What a stream has in its hands is processed."""
        if stream._held is None:
            return
        name, held = stream._held
        stream._held = None
        if self._reading.held.get(name) is held:
            self._reading.finish(name)
        self._finished.set()

    # -- steps

    def _begin_step(self) -> asyncio.Task[None]:
        """The step that is under way, or a new one."""
        if self._step is None:
            self._step_due_at = time.monotonic() + _STEP_EVERY_S
            self._step = asyncio.create_task(self._take_step())
        return self._step

    def _end_step(self, step: asyncio.Task[None]) -> None:
        """Raises what went wrong in a step, for each that has waited for it."""
        if self._step is step:
            self._step = None
        step.result()

    async def _take_step(self) -> None:
        self._dealing = True
        try:
            await self._advance()
        finally:
            self._dealing = False
        if self._asking and not any(stream._intake.fetched for stream in self._asking):
            await self._wait(_WAIT_S)

    async def settle(self, partitions: Iterable[Partition], timeout_s: float) -> None:
        """Waits until no stream has a record of these partitions in its hands, or time is up."""
        names = set(partitions)
        try:
            async with asyncio.timeout(timeout_s):
                while not self._ended and self._reading.held.keys() & names:
                    self._finished.clear()
                    await self._finished.wait()
        except TimeoutError:
            return

    async def end(self) -> None:
        """Ends all streams; what they have in their hands isn't processed."""
        self._ended = True
        self._finished.set()
        step, self._step = self._step, None
        if step is not None and step is not asyncio.current_task():
            while not step.done():
                self._wake()
                await asyncio.wait([step], timeout=_STEP_EVERY_S)
            if not step.cancelled():
                step.exception()
        await self._reading.no_streams()
