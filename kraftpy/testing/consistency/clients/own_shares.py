"""Members that share partitions, through kraftpy's own client."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kraftpy.client.claims import read_progress
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.group import GroupTimes
from kraftpy.client.offsets import Partition
from kraftpy.client.transactional_producer import TransactionalProducer, TransactionError
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.key_hash import key_hash, slot_of
from kraftpy.testing.consistency.checkers.pieces import WHOLE
from kraftpy.testing.consistency.checkers.shares import record_key_of
from kraftpy.testing.consistency.clients import (
    HEARTBEAT_INTERVAL_MS,
    NO_OFFSET,
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    Handed,
    Place,
    ShareWatch,
    Slices,
    key_of,
)
from kraftpy.testing.consistency.clients.own import OfGroup, OwnSender, Session

_TIMEOUT_MS = int(TIMEOUT_S * 1000)
_LEAVING_MS = 2_000
_STILL_S = 0.05
_Shares = Mapping[Partition, Sequence[tuple[int, int]]]


def _record_key(value: str) -> bytes | None:
    return record_key_of(value).encode() or None


class _Sender(OwnSender):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, _record_key)


def _slices(shares: _Shares) -> Slices:
    return {
        key_of(name): [[slot_of(low), slot_of(high)] for low, high in ranges] or WHOLE
        for name, ranges in shares.items()
    }


class _Listener(RebalanceListener):
    """Notes slices at once, and of each generation that there is one."""

    def __init__(self, consumer: Consumer[bytes, bytes], watch: ShareWatch) -> None:
        self._consumer = consumer
        self._watch = watch
        self._had: set[str] = set()
        self._noted = -1

    def _note(self, slices: Slices) -> None:
        generation = self._consumer.generation
        self._noted = generation.id
        new = [key for key in slices if key not in self._had]
        self._had.update(new)
        self._watch.assigned(new, slices, generation.id, generation.member_id)

    async def shares_assigned(self, shares: _Shares) -> None:
        self._note(_slices(shares))

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        if self._consumer.generation.id != self._noted:
            self._note({})

    def _gone(self, shares: _Shares) -> list[str]:
        """The partitions that go altogether."""
        left = self._consumer.shares
        gone = [key_of(name) for name in shares if left.get(name) == list(shares[name])]
        self._had.difference_update(gone)
        return gone

    async def shares_revoked(self, shares: _Shares) -> None:
        slices = _slices(shares)
        answered = self._watch.revoking()
        if answered is not None:
            try:
                await self._consumer.commit(timeout_ms=_LEAVING_MS)
            except (ConnectionError, KafkaError) as error:
                answered(repr(error))
            else:
                answered("")
        self._watch.revoked(self._gone(shares), slices)

    async def shares_lost(self, shares: _Shares) -> None:
        gone = [key_of(name) for name in shares]
        self._had.difference_update(gone)
        self._watch.lost(gone, _slices(shares))

    async def revoked(self, partitions: Sequence[Partition]) -> None:
        pass  # shares_revoked has said it


class _Member:
    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        assignor: str,
        watch: ShareWatch,
        *,
        explicit: bool,
        transactional_id: str = "",
    ) -> None:
        self._session = Session(bootstrap)
        self._explicit = explicit
        self._transactional_id = transactional_id
        self._producer: TransactionalProducer[bytes, bytes] | None = None
        self._consumer = self._session.run(self._open(group, topic, assignor, watch))

    async def _open(
        self, group: str, topic: str, assignor: str, watch: ShareWatch
    ) -> Consumer[bytes, bytes]:
        consumer = Consumer(
            self._session.cluster,
            group_id=group,
            assignors=[assignor],
            times=GroupTimes(SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            explicit_done=self._explicit,
        )
        consumer.subscribe([topic], listener=_Listener(consumer, watch))
        if self._transactional_id:
            # What is pending holds up who has the slices next, for as long as a session at most.
            self._producer = TransactionalProducer(
                self._session.cluster,
                self._transactional_id,
                transaction_timeout_ms=SESSION_TIMEOUT_MS,
                max_block_ms=_TIMEOUT_MS,
            )
        return consumer

    @property
    def epoch(self) -> int:
        return self._consumer.generation.id

    def poll(self, timeout_s: float, most: int) -> list[Handed]:
        async def poll() -> list[ConsumerRecord[bytes, bytes]]:
            return await self._consumer.poll(int(timeout_s * 1000), max_records=most)

        handed = []
        for record in self._session.run(poll(), 6 * TIMEOUT_S):
            key = key_of((record.topic, record.partition))
            slot = slot_of(key_hash(record.key, record.offset))
            record_key = (record.key or b"").decode()
            handed.append(Handed(key, record.offset, record_key, slot, record))
        return handed

    def done(self, record: Handed) -> None:
        async def done() -> None:
            self._consumer.done(record.raw)

        if self._explicit:
            self._session.run(done())

    def claim(self) -> None:
        if self._producer is None:
            self._session.run(self._consumer.commit())
        else:
            self._session.run(self._claim_in_transaction(self._producer), 4 * TIMEOUT_S)

    async def _claim_in_transaction(self, producer: TransactionalProducer[bytes, bytes]) -> None:
        """What isn't committed with it is claimed with the next one."""
        try:
            async with producer.transaction():
                metadata = self._consumer.group_metadata
                await producer.send_offsets_to_transaction(None, metadata)
        except TransactionError as error:
            raise ConnectionError(repr(error)) from error

    def stand_still(self, duration_s: float, called: Callable[[], bool]) -> None:
        deadline = time.monotonic() + duration_s

        async def stand_still() -> None:
            while time.monotonic() < deadline and not called():
                time.sleep(_STILL_S)  # noqa: ASYNC251 - the loop is to stand still

        self._session.run(stand_still(), duration_s + 2 * TIMEOUT_S)

    def close(self) -> None:
        self._session.close(self._close())

    async def _close(self) -> None:
        try:
            if self._producer is not None:
                await self._producer.close()
        finally:
            await self._consumer.close()


class _Progress(OfGroup):
    def read(self, place: Place) -> tuple[int, list[list[int]]]:
        async def read() -> Any:
            return await read_progress(self._coordinator, [place], timeout_ms=_TIMEOUT_MS)

        found = self._session.run(read()).get(place)
        if found is None:
            return NO_OFFSET, []
        return found.stable, [
            [slot_of(claim.low), slot_of(claim.high), claim.first, claim.last]
            for claim in found.claims
        ]


class _Own:
    sender = staticmethod(_Sender)
    member = staticmethod(_Member)
    progress = staticmethod(_Progress)


ADAPTER = _Own()
