"""Transactions through kraftpy's own client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from kraftpy.client.consumer import Consumer
from kraftpy.client.coordinator import GroupMetadata
from kraftpy.client.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets
from kraftpy.client.transactional_producer import (
    ProducerFencedError,
    TransactionalProducer,
    TransactionError,
)
from kraftpy.testing.consistency.clients import (
    TIMEOUT_S,
    TRANSACTION_TIMEOUT_MS,
    GoneError,
    Member,
    Place,
    Records,
    UnknownError,
    key_of,
)
from kraftpy.testing.consistency.clients.own import Session, group_metadata_of

_T = TypeVar("_T")
_BATCH_MAX = 2_000
_POLL_MS = 10
_UNDER_WAY_S = 0.01
_FETCH_WAIT_MS = 20
_PATIENCE_S = 2 * TIMEOUT_S


class _Transactor:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._session = Session(bootstrap)
        self._id = transactional_id
        self._producer = self._session.run(self._open())

    async def _open(self) -> TransactionalProducer[bytes, bytes]:
        return TransactionalProducer(
            self._session.cluster,
            self._id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_block_ms=int(1000 * _PATIENCE_S),
            delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=1,
        )

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self._session.run(work, 2 * _PATIENCE_S)
        except TransactionError as error:
            raise UnknownError(repr(error)) from error
        except UnknownError as error:
            if isinstance(error.__cause__, ProducerFencedError):
                raise GoneError(str(error)) from error
            raise

    def take_over(self) -> None:
        self._run(self._take_over())

    async def _take_over(self) -> None:
        await self._producer.begin_transaction()
        await self._producer.abort_transaction()

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def append(self, place: Place, values: Sequence[str]) -> None:
        async def append() -> None:
            topic, partition = place
            deliveries = [
                await self._producer.send(topic, value.encode(), partition=partition)
                for value in values
            ]
            for delivery in deliveries:
                await delivery

        self._run(append())

    def throw(self, place: Place, value: str) -> None:
        async def throw() -> None:
            topic, partition = place
            await self._producer.send(topic, value.encode(), partition=partition)
            await asyncio.sleep(_UNDER_WAY_S)

        self._run(throw())

    def send_offsets(self, offsets: Mapping[Place, int], group: str) -> None:
        self._send_offsets(offsets, GroupMetadata(group))

    def send_offsets_of(self, member: Member, offsets: Mapping[Place, int], group: str) -> None:
        self._send_offsets(offsets, group_metadata_of(member))

    def _send_offsets(self, offsets: Mapping[Place, int], group: GroupMetadata) -> None:
        self._run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        if self._producer.in_transaction:  # closing the producer would abort it
            self._session.close()
        else:
            self._session.close(self._producer.close(flush=False))


class _Committed:
    def __init__(self, bootstrap: str, positions: Mapping[Place, int]) -> None:
        self._session = Session(bootstrap)
        self._found: Records = {}
        self._consumer = self._session.run(self._open(positions))

    async def _open(self, positions: Mapping[Place, int]) -> Consumer[bytes, bytes]:
        consumer = Consumer(
            self._session.cluster,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=_FETCH_WAIT_MS,
        )
        consumer.assign(list(positions))
        for place, offset in positions.items():
            consumer.seek(place, offset)
        return consumer

    def catch_up(self, places: Sequence[Place]) -> Records:
        wanted = {place: end for place, (_, end) in self.bounds(places).items()}
        deadline = time.monotonic() + _PATIENCE_S

        async def follow() -> None:
            while any([await self._consumer.position(each) < wanted[each] for each in wanted]):
                if time.monotonic() > deadline:
                    raise ConnectionError("not at the end in time")
                for record in await self._consumer.poll(_POLL_MS, max_records=_BATCH_MAX):
                    self._found.setdefault(key_of((record.topic, record.partition)), []).append(
                        (record.offset, (record.value or b"").decode())
                    )

        self._session.run(follow(), 2 * _PATIENCE_S)
        found, self._found = self._found, {}
        return found

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        async def bounds() -> dict[Place, tuple[int, int]]:
            starts, ends = [
                await list_offsets(
                    self._session.cluster, dict.fromkeys(places, when), isolation=READ_COMMITTED
                )
                for when in (EARLIEST, LATEST)
            ]
            return {place: (starts[place], ends[place]) for place in places}

        return self._session.run(bounds())

    def close(self) -> None:
        self._session.close(self._consumer.close())


def stable(bootstrap: str, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
    """The end of what is committed, and the end of logs, the latter found first.

    Where nothing is open, the first is the second one once nothing is written any more.
    """
    session = Session(bootstrap)

    async def ask() -> dict[Place, tuple[int, int]]:
        wanted = dict.fromkeys(places, LATEST)
        ends = await list_offsets(session.cluster, wanted)
        stables = await list_offsets(session.cluster, wanted, isolation=READ_COMMITTED)
        return {place: (min(stables[place], ends[place]), ends[place]) for place in places}

    try:
        return session.run(ask())
    finally:
        session.close()


class _Own:
    transactor = staticmethod(_Transactor)
    committed = staticmethod(_Committed)


ADAPTER = _Own()
