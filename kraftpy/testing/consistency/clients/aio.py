"""aiokafka, as a member of a group with the classic protocol: it plays no other part.

Its listener runs beside the program, in the midst of processing: a lock has it wait from a poll to
the next one, by when what was handed out is committed, as its documentation advises.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from kraftpy.testing.consistency import secured
from kraftpy.testing.consistency.clients import (
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    GoneError,
    Place,
    Records,
    UnknownError,
    Watch,
    key_of,
    values_of,
)

_BATCH_MAX = 2_000  # so that a history has room for one in a line
_T = TypeVar("_T")


class _Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: _Member, watch: Watch) -> None:
        self._member = member
        self._watch = watch

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        member = self._member
        if not member.closing:  # it takes nothing any more
            self._watch.assigned(_keys(assigned), member.epoch, member.member_id)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        async with self._member.handed_out:
            if not self._member.closing:
                self._watch.revoked(_keys(revoked))


class _Member:
    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, watch: Watch) -> None:
        assert protocol == RangePartitionAssignor.name, "the only one here that all clients have"
        self.closing = False
        self.handed_out = asyncio.Lock()
        self._watch = watch
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        try:
            self._run(self._open(bootstrap, group, topic))
        except UnknownError:
            self._end()
            raise

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(2 * TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise GoneError("no answer in time") from None
        except KafkaError as error:
            raise UnknownError(repr(error)) from None

    async def _open(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            metadata_max_age_ms=2_000,
            **secured.keywords(),
        )
        self._consumer.subscribe([topic], listener=_Listener(self, self._watch))
        await self._consumer.start()

    @property
    def epoch(self) -> int:
        return int(self._consumer._coordinator.generation)

    @property
    def member_id(self) -> str:
        return str(self._consumer._coordinator.member_id)

    def poll(self, timeout_s: float) -> Records:
        try:
            found = self._run(self._poll(timeout_s))
        except UnknownError as error:
            raise GoneError(str(error)) from None
        return values_of(found)

    async def _poll(self, timeout_s: float) -> Any:
        self._take_back()
        found = await self._consumer.getmany(
            timeout_ms=int(timeout_s * 1000), max_records=_BATCH_MAX
        )
        await self.handed_out.acquire()
        return found

    def _take_back(self) -> None:
        if self.handed_out.locked():
            self.handed_out.release()

    def commit(self, place: Place, offset: int) -> None:
        self._run(self._consumer.commit({TopicPartition(*place): offset}))

    def close(self) -> None:
        try:
            self._run(self._close())
        finally:
            self._end()

    def _end(self) -> None:
        """No task of it goes on, however far it has come: the group hears no heartbeat any more."""
        self.closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _close(self) -> None:
        """It leaves without a word to its listener, and others hear of it before `stop` is back."""
        self._take_back()
        self.closing = True
        self._watch.revoked(_keys(self._consumer.assignment()))
        await self._consumer.stop()


def _keys(partitions: Iterable[TopicPartition]) -> list[str]:
    return [key_of((each.topic, each.partition)) for each in partitions]


class _AioKafka:
    member = staticmethod(_Member)


ADAPTER = _AioKafka()
