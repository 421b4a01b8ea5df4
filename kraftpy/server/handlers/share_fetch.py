"""What a share fetch leases and answers, and how it waits for records (KIP-932).

The rules are in `share`, which begins them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kraftpy.core.leases import Acquired, Demand
from kraftpy.core.leases.sessions import Key, ShareSession
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import ShareFetchRequest, ShareFetchResponse
from kraftpy.server.coordination.led_table import LedTable
from kraftpy.server.handlers.share_rights import led_partition
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

PartitionData = ShareFetchResponse.PartitionData
AcquiredRecords = ShareFetchResponse.AcquiredRecords

RECORD_LIMIT = 1
"""The acquire mode in which `max_records` isn't passed (KIP-1206)."""


class _Leased(NamedTuple):
    table: LedTable
    acquired: list[Acquired]


class ShareFetch:
    """One fetch of a session: leases, and if it may, waits and tries again.

    `answers` has what is to be told of partitions.
    """

    __slots__ = (
        "_broker",
        "_ctx",
        "_demand",
        "_expired",
        "_leased",
        "_left_bytes",
        "_left_records",
        "_min_bytes",
        "_ready",
        "_session",
        "_size_bytes",
        "_turn",
        "_wait_ms",
        "_watched",
        "_woken",
        "answers",
    )

    def __init__(
        self,
        broker: Broker,
        ctx: RequestContext,
        request: ShareFetchRequest,
        session: ShareSession,
    ) -> None:
        self._broker = broker
        self._ctx = ctx
        self._session = session
        self._left_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        self._left_records = request.max_records
        self._min_bytes = min(request.min_bytes, self._left_bytes)
        self._wait_ms = request.max_wait_ms
        self._expired = self._wait_ms <= 0
        self._demand = Demand(
            request.max_records, request.batch_size, request.share_acquire_mode == RECORD_LIMIT
        )
        self._size_bytes = 0
        self._leased: list[_Leased] = []
        # What is waited for, and what of that may have something now.
        self._watched: dict[LedTable, Key] = {}
        self._woken: dict[Key, None] = {}
        self._ready: dict[Key, int] = {}
        self._turn: asyncio.Future[None] | None = None
        self.answers: dict[Key, Any] = {}

    async def run(self) -> None:
        """Returns when there is enough to answer, or the time is over."""
        if self._left_records <= 0 or self._left_bytes <= 0:
            return
        timer = None
        if not self._expired:
            loop, ctx = self._broker.loop, self._ctx
            ctx.patience_s = ctx.session.patience_s(self._wait_ms, loop.time())
            timer = loop.call_later(ctx.patience_s, self._expire)
        try:
            keys: Iterable[Key] = self._session.in_turn()
            while True:
                is_last = self._expired
                await self._look_at(keys)
                if is_last or self._is_over():
                    break
                if not (self._woken or self._expired):
                    self._turn = self._broker.loop.create_future()
                    await self._turn
                keys, self._woken = self._woken, {}
                if self._expired:
                    keys = self._session.in_turn()
        finally:
            if timer is not None:
                timer.cancel()
            for table in self._watched:
                table.fetches.remove(self._wake)

    def _is_over(self) -> bool:
        return (
            bool(self.answers)
            or self._broker.leases.stopped
            or self._session.ended
            or not self._session.partitions
        )

    # -- waiting

    def _wake(self, table: LedTable) -> None:
        self._woken[self._watched[table]] = None
        self._go_on()

    def _expire(self) -> None:
        self._expired = True
        self._go_on()

    def _go_on(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def _watch(self, key: Key, table: LedTable) -> None:
        if not self._expired and table not in self._watched:
            table.fetches.add(self._wake)
            self._watched[table] = key

    # -- looking

    async def _look_at(self, keys: Iterable[Key]) -> None:
        pace = Pace()
        if self._min_bytes > 1 and not self._expired:
            for key in keys:
                self._peek(key)
                await pace.keep()
            if sum(self._ready.values()) < self._min_bytes:
                return
            keys = self._session.in_turn()
        for key in keys:
            while self._left_records > 0 and self._left_bytes > 0 and not self._session.ended:
                goes_on = self._lease(key)
                await pace.keep()
                if not goes_on:
                    break

    def _table(self, key: Key) -> LedTable:
        """Raises KafkaError."""
        partition = led_partition(self._broker, self._ctx, key)
        table = self._broker.leases.table(self._session.group, partition)
        # First of all, so that whatever comes from this look on wakes the fetch.
        self._watch(key, table)
        return table

    def _peek(self, key: Key) -> None:
        try:
            self._ready[key] = self._table(key).ready_bytes(self._left_bytes)
        except KafkaError as failure:
            self._fail(key, failure)
            self._ready[key] = self._min_bytes  # there is no use in waiting

    def _lease(self, key: Key) -> bool:
        """Takes of a partition what there is; whether there may be more."""
        try:
            table = self._table(key)
            dealt = table.deal(
                self._session.member,
                self._demand._replace(max_records=self._left_records),
                self._left_bytes,
                min_one=not self._size_bytes,
            )
        except KafkaError as failure:
            self._fail(key, failure)
            return False
        acquired = dealt.acquired
        if acquired:
            self._session.leased_from[table] = None
            self._leased.append(_Leased(table, acquired))
            self._left_records -= sum([last - first + 1 for first, last, _ in acquired])
            self._left_bytes -= dealt.size_bytes
            self._size_bytes += dealt.size_bytes
            self.answers[key] = PartitionData(
                key[1], records=dealt.records, acquired_records=_told(acquired)
            )
        return dealt.goes_on

    def _fail(self, key: Key, failure: KafkaError) -> None:
        if failure.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return  # clients know no such error of a partition, and later there may be room
        self._ctx.errors[failure.code] += 1
        self.answers[key] = PartitionData(
            key[1], failure.code, failure.message, records=[], acquired_records=[]
        )

    # -- answering

    def take_back_if_too_much(self) -> None:
        """Gives back what would be over the client's quota; else it's counted (KIP-219)."""
        used = self._ctx.used
        if used is None or not self._leased or used.may_send(self._size_bytes):
            return
        for table, acquired in self._leased:
            table.take_back(self._session.member, acquired)
        self.answers = {key: each for key, each in self.answers.items() if each.error_code}


def _told(acquired: Iterable[Acquired]) -> list[Any]:
    return [AcquiredRecords(first, last, deliveries) for first, last, deliveries in acquired]
