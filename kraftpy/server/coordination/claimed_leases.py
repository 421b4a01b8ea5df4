"""Leases of cooperative groups on the partitions that this broker leads (seed 001).

`core.leases.claimed` decides; here claims are read for it, deadlines are kept, and whoever waits is
woken. Rules (docs/rules.md, rules 334 to 337):

* A table is opened when somebody first fetches, with what the group's coordinator has, and given
  up with its partition's leadership, or when nobody has fetched for longer than a session. Leases
  aren't kept anywhere else: the next leader deals again what isn't claimed.
* Without an offset of the group, or with one beyond the log's end, nothing can be dealt:
  OFFSET_OUT_OF_RANGE, upon which members commit a first one.
* Generations are the coordinator's to tell: who comes with a later one waits until it's asked, and
  is refused if it knows none so late. Who comes with a former one is refused at once, and it's
  asked, too: a group that was deleted begins anew. Of a group of which it knows none, the highest
  that anybody came with is believed.
* There are so many of them at most; those that nobody misses give way (`led_tables`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from kraftpy.core.leases import Acquired, ClaimedTable, ReadBatch
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import Cooperation
from kraftpy.server.coordination.claims_reading import ClaimsHost, read_progress
from kraftpy.server.coordination.lease_reads import LeaseRead
from kraftpy.server.coordination.led_table import NOTHING, Dealt
from kraftpy.server.coordination.led_tables import LedTables, TableKey
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.waiters import FetchWaiters

log = logging.getLogger(__name__)

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0


class ClaimedHost(ClaimsHost, Protocol):
    """What a table needs of its broker."""

    @property
    def in_touch(self) -> bool: ...
    def monotonic_ms(self) -> int: ...


class LedClaims:
    """The leases of a group on a partition. `closed` is the error of its end."""

    def __init__(
        self,
        host: ClaimedHost,
        key: TableKey,
        partition: Partition,
        on_close: Callable[[LedClaims], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self.fetches: FetchWaiters[LedClaims] = FetchWaiters()
        self.closed: ErrorCode | None = None
        self._host = host
        self._on_close = on_close
        self._leader_epoch = partition.leader_epoch
        self._table: ClaimedTable | None = None
        self._claimed = -1  # the highest generation that somebody came with, to be asked for
        self._reads = 0
        self._answered = 0  # up to which of the reads
        self._due = 0  # up to which they have to be
        self._patience_ms = 0
        self._used_ms = host.monotonic_ms()
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        partition.fetches.add(self._partition_moved)

    def __str__(self) -> str:
        return f"{self.key.group} on {self.partition}"

    # -- claims

    @property
    def _must_read(self) -> bool:
        table = self._table
        return table is None or table.needs_claims or self._answered < self._due

    def _read_if_due(self) -> None:
        if self._reading is None and self._must_read:
            self._reading = self._host.loop.create_task(self._read())

    async def _read(self) -> None:
        """Reads claims until all that is known to be due is read."""
        pause_s, told = RETRY_MIN_S, False
        try:
            while self.closed is None and self._must_read:
                try:
                    await self._read_once()
                except KafkaError as error:
                    if not error.code.retriable:
                        self.close(error.code)
                        return
                    if not told:
                        told = True
                        log.info("the claims of %s can't be read yet: %s", self, error.code.name)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_MAX_S)
        finally:
            self._reading = None

    async def _read_once(self) -> None:
        table, partition = self._table, self.partition
        claimed, self._claimed = self._claimed, -1
        self._reads += 1
        number = self._reads
        if table is not None:
            table.ask()
        try:
            stable, claims, known = await read_progress(
                self._host, self.key.group, partition.topic, partition.index
            )
        except KafkaError:
            self._claimed = max(self._claimed, claimed)
            raise
        self._answered = number
        if self.closed is not None:
            return
        if stable < 0:
            self.close(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif stable > partition.log.log_end_offset:
            # Whoever is cut off from the quorum doesn't say so: a newer leader may well have it.
            beyond = ErrorCode.OFFSET_OUT_OF_RANGE
            self.close(beyond if self._host.in_touch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            believed = claimed if known < 0 else min(claimed, known)
            if table is None:
                self._table = ClaimedTable(stable, claims, believed)
            else:
                table.learn(stable, claims)
                if believed > table.generation:
                    table.begin(believed)
                elif 0 <= known < table.generation:
                    table.begin(known)
            self._wake()

    # -- what members do

    @property
    def reads(self) -> int:
        """How often it has begun to ask the coordinator."""
        return self._reads

    def enter(self, cooperation: Cooperation, came: int) -> bool:
        """A member is here since there were so many `reads`; whether it may be dealt something.

        Raises KafkaError: ILLEGAL_GENERATION.
        """
        generation, table = cooperation.generation, self._table
        is_in = table is not None and generation == table.generation
        if not is_in:
            self._ask_for(generation, came)
        self._used_ms = self._host.monotonic_ms()
        self._patience_ms = max(self._patience_ms, cooperation.session_timeout_ms)
        self._read_if_due()
        self._set_timer()
        return is_in

    def _ask_for(self, generation: int, came: int) -> None:
        """Has the coordinator asked whether it knows this generation. Raises KafkaError."""
        table = self._table
        if table is not None and generation < table.generation:
            self._due = self._reads + 1
            self._read_if_due()
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if self._answered > came:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if self._reads == came:  # else it's asked already
            self._claimed = max(self._claimed, generation)
            self._due = max(self._due, came + 1)

    def done(self, member: str, ranges: Sequence[tuple[int, int]]) -> None:
        """The member has claimed these. Raises KafkaError."""
        if self._table is None:
            return  # what was claimed before that is read when it's opened
        error = self._table.done(member, ranges, self._host.monotonic_ms())
        if error:
            raise KafkaError(error)

    def lease(
        self, cooperation: Cooperation, offset: int, max_bytes: int, upper: int, *, min_one: bool
    ) -> Dealt:
        """Deals a member what it may have, or again what it hasn't got. Raises KafkaError."""
        table = self._table
        if table is None:
            return NOTHING
        held = table.held(cooperation.member, offset)
        asked = held[0][0] if held else table.next_available(upper)
        if asked is None:
            return NOTHING
        read, batches = self._batches(asked, max_bytes, upper, min_one=min_one)
        now_ms, timeout_ms = self._host.monotonic_ms(), cooperation.session_timeout_ms
        if held:
            acquired = _within(held, batches)
            ranges = [each[:2] for each in acquired]
            table.renew(cooperation.member, ranges, timeout_ms, now_ms)
        else:
            acquired = table.lease(cooperation.member, asked, batches, upper, timeout_ms, now_ms)
        self._set_timer()
        if not acquired:
            if read is not None and read.failure is not None:
                raise read.failure
            return NOTHING
        records = [] if read is None else read.records(acquired)
        return Dealt(acquired, records, sum(map(len, records)))

    def _batches(
        self, asked: int, max_bytes: int, upper: int, *, min_one: bool
    ) -> tuple[LeaseRead | None, Iterator[ReadBatch]]:
        """What the log has from here on; what it has deleted meanwhile is a batch, too."""
        partition = self.partition
        start = partition.log.log_start_offset
        at = max(asked, start)
        partition.numbers.reads += 1
        result = partition.log.read(at, max_bytes, upper_offset=upper, min_one=min_one)
        if result.slices:
            read = LeaseRead(result.slices)
            return read, iter(read)
        return None, iter([ReadBatch(asked, start - 1)] if asked < start else [])

    def take_back(self, member: str, acquired: Sequence[Acquired]) -> None:
        """The member won't be told of what it was dealt just now."""
        if self._table is not None:
            self._table.take_back(member, acquired)
            self._wake()

    # -- time

    def _set_timer(self) -> None:
        deadline_ms = None if self._table is None else self._table.next_deadline()
        if deadline_ms is None:
            deadline_ms = self._used_ms + self._patience_ms
        at_s = deadline_ms / 1000
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return  # it is set anew when that time has come
            self._timer.cancel()
        self._timer = self._host.loop.call_at(at_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._host.monotonic_ms()
        if self._table is not None:
            self._table.expire(now_ms)
        if self._has_leases or self.fetches.waiting:
            self._used_ms = now_ms
        if self._used_ms + self._patience_ms <= now_ms:
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        self._read_if_due()
        self._set_timer()

    @property
    def _has_leases(self) -> bool:
        return self._table is not None and not self._table.is_quiet

    # -- the partition, and the end

    def _wake(self) -> None:
        if self.fetches.waiting:
            self.fetches.wake_soon(self, self._host.loop)

    def _partition_moved(self, partition: Partition) -> None:
        leads = partition.leadership is not None and partition.leader_epoch == self._leader_epoch
        if partition.closed or not leads:
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost, and nobody misses it, if it is given up."""
        return self._table is not None and not self._has_leases and not self.fetches.waiting

    def give_way(self) -> None:
        """Gives it up for another."""
        self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def close(self, error: ErrorCode) -> None:
        """Gives it up; fetches that wait hear this error."""
        if self.closed is not None:
            return
        self.closed = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.partition.fetches.remove(self._partition_moved)
        self._table = None
        self._on_close(self)
        self._wake()

    async def stop(self) -> None:
        """The broker stops: ends what is under way."""
        self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class ClaimedLeases:
    """The tables of a broker."""

    def __init__(self, host: ClaimedHost) -> None:
        self._host = host
        self._tables: LedTables[LedClaims] = LedTables()

    def __len__(self) -> int:
        return len(self._tables)

    def table(self, group: str, led: Partition) -> LedClaims:
        """The group's leases on a partition that is led here; they are opened if they aren't.

        Raises COORDINATOR_NOT_AVAILABLE if there are too many, or the broker stops.
        """
        key = TableKey(group, led.topic_id, led.index)
        table = self._tables.find(key)
        if table is None:
            forget = self._tables.forget
            table = self._tables.open(key, lambda: LedClaims(self._host, key, led, forget))
        return table

    async def close(self) -> None:
        """Gives up all that there is, and opens nothing any more."""
        await self._tables.stop()


def _within(held: Sequence[tuple[int, int]], batches: Iterator[ReadBatch]) -> list[Acquired]:
    """What of a member's leases lies in these batches, or before the last of them."""
    end = max((batch.last for batch in batches), default=-1)
    return [Acquired(first, min(last, end), 1) for first, last in held if first <= end]
