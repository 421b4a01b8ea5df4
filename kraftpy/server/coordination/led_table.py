"""The leases of a share group on a partition that is led here: opened, written, timed, told.

`core.leases` decides; here it is carried out. Rules (docs/rules.md, rules 287 to 289, 359):

* A table is opened with what the share coordinator keeps, which notes this leader's epoch; where
  nobody has begun yet it begins where the group's configuration says, and that is written before
  anything is dealt. All tables of a broker wait for their turn to be opened (`openings`). Of what
  nothing is kept it's asked ever more rarely, and until it is open a table gives way to others.
* It is of one leader epoch. When that is over, or the coordinator knows a newer one, or another
  state epoch, or nothing of it at all, the table is given up, and all that waits for it is told.
* What is to be written in a turn of the loop is one write. It's tried again for as long as nobody
  knows what became of it: neither may it count as failed, nor may a table that is opened anew come
  before it.
* Whoever waits for records is woken by whatever may have some for them: appends, watermarks, the
  log's start, which lets go of what somebody has, what is given back, what is written, a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from kraftpy.core.config.leasing import EARLIEST, LeaseSettings
from kraftpy.core.leases import (
    Acknowledgement,
    Acquired,
    Change,
    Demand,
    LeaseTable,
)
from kraftpy.core.leases.found import NOTHING_ABORTED, Aborted
from kraftpy.core.leases.numbers import LeaseNumbers
from kraftpy.core.leases.runs import ARCHIVED
from kraftpy.events import emit
from kraftpy.frozen import NamedTuple
from kraftpy.metrics.instruments import REQUEST_BUCKETS, Histogram
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.lease_reads import LeaseRead
from kraftpy.server.coordination.led_tables import TableKey
from kraftpy.server.coordination.openings import Openings
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.timestamp_search import finish_search
from kraftpy.server.replication.waiters import FetchWaiters
from kraftpy.storage.segment import FileSlice

if TYPE_CHECKING:
    from kraftpy.server.coordination.share_persister import SharePersister
    from kraftpy.server.replication.opening import BatchOpener

log = logging.getLogger(__name__)

NO_OFFSET = -1
WRITES_MAX = 4
"""So many writes of a table are on their way at a time; what comes meanwhile is one."""

RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0
# Members are told of a partition when something is kept of it: who comes before may wait.
NOT_KEPT_MIN_S = 1.0
NOT_KEPT_MAX_S = 10.0

# What says that this leader, or its state, is of the past.
_FENCED = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})
# What says that nothing is kept of the group here, any more or yet.
_NOT_KEPT = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class Dealt(NamedTuple):
    """What a member got; `goes_on`: if it got nothing, there may yet be something behind that."""

    acquired: list[Acquired]
    records: list[memoryview | FileSlice]
    size_bytes: int
    goes_on: bool = False


NOTHING = Dealt([], [], 0)


class LeaseMeters:
    """What all tables of a broker count, for its metrics; `writes` is what each took in seconds."""

    __slots__ = ("records", "writes")

    def __init__(self) -> None:
        self.records = LeaseNumbers()
        self.writes = Histogram(REQUEST_BUCKETS)


class TableHost(Protocol):
    """What a table needs of its broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def share_persister(self) -> SharePersister: ...
    @property
    def opener(self) -> BatchOpener: ...
    def monotonic_ms(self) -> int: ...
    def now_ms(self) -> int: ...


def _spread(pause_s: float, key: TableKey) -> float:
    """About so long, each table a little otherwise: many that came together come apart."""
    return pause_s * (0.75 + crc32(b"%b %d" % (key.topic_id, key.partition)) % 512 / 1024)


class LedTable:
    """See the module. `closed` is the error of its end; `fetches` are those that wait for it."""

    def __init__(
        self,
        host: TableHost,
        key: TableKey,
        partition: Partition,
        settings: Callable[[], LeaseSettings],
        meters: LeaseMeters,
        openings: Openings,
        on_close: Callable[[LedTable], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self.fetches: FetchWaiters[LedTable] = FetchWaiters()
        self.closed: ErrorCode | None = None
        self.retiring = False
        self._host = host
        self._loop = host.loop
        self._settings = settings
        self._meters = meters
        self._openings = openings
        self._opening = False
        self._pause_s = 0.0  # the last one between two attempts to open it
        self._on_close = on_close
        self._leader_epoch = partition.leader_epoch
        self._state_epoch = 0
        self._table: LeaseTable | None = None
        self._told: list[asyncio.Future[ErrorCode]] = []  # of what isn't on its way yet
        self._writing: dict[int, list[asyncio.Future[ErrorCode]]] = {}
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        partition.fetches.add(self._partition_moved)
        partition.log.start_watchers[self._wake] = None
        openings.add(self)

    def __str__(self) -> str:
        return f"{self.key.group} on {self.partition}"

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- opening

    @property
    def is_open(self) -> bool:
        """Whether it can deal, and take acknowledgements."""
        return self._table is not None and not self.retiring

    def open_now(self) -> asyncio.Task[None]:
        """Begins an attempt to open it: it is its turn."""
        self._opening = True
        return self._start(self._open())

    async def _open(self) -> None:
        error = await self._try_to_open()
        self._opening = False
        if error is ErrorCode.NONE or self.closed is not None:
            return
        if error in _FENCED:
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        least_s, most_s = RETRY_MIN_S, RETRY_MAX_S
        if error in _NOT_KEPT:
            least_s, most_s = NOT_KEPT_MIN_S, NOT_KEPT_MAX_S
        elif not self._pause_s:
            log.info("the leases of %s can't be read yet: %s", self, error.name)
        self._pause_s = min(max(2 * self._pause_s, least_s), most_s)
        self._timer = self._loop.call_later(_spread(self._pause_s, self.key), self._open_again)

    def _open_again(self) -> None:
        self._timer = None
        if self._pause_s >= RETRY_MAX_S and not self.fetches.waiting:
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # nobody asks any more
        else:
            self._openings.add(self)

    async def _try_to_open(self) -> ErrorCode:
        key, limits, numbers = self.key, self._settings().limits, self._meters.records
        state = await self._host.share_persister.read(*key, leader_epoch=self._leader_epoch)
        if self.closed is not None or state.error:
            return state.error
        self._state_epoch = state.state_epoch
        if state.start_offset != NO_OFFSET:
            self._opened(LeaseTable(limits, state.start_offset, state.batches, numbers=numbers))
            return ErrorCode.NONE
        try:
            start = await self._first_offset()
            table = LeaseTable(limits, start, is_new=True, numbers=numbers)
        except KafkaError as failure:
            return failure.code
        change = table.take_change()
        assert change is not None
        error = await self._write_once(change)
        if error is ErrorCode.NONE and self.closed is None:
            table.committed(change.number)
            self._opened(table)
        return error

    async def _first_offset(self) -> int:
        """Where a group begins that hasn't. Raises KafkaError."""
        partition, starts_at = self.partition, self._settings().starts_at
        partition.check_settled()
        if starts_at == EARLIEST:
            return partition.log.log_start_offset
        if isinstance(starts_at, int):
            search = partition.log.search_timestamp(max(self._host.now_ms() - starts_at, 0))
            found = await finish_search(search, partition, self._host.opener)
            if found is not None:
                return found.offset
        return partition.high_watermark

    def _opened(self, table: LeaseTable) -> None:
        self._table = table
        self._wake()

    # -- what there is

    @property
    def runs_count(self) -> int:
        """In how many runs the records are that somebody was leased."""
        return 0 if self._table is None else self._table.runs_count

    def records_by_state(self) -> dict[int, int]:
        """How many of them are in each state, or wait to be in it."""
        return {} if self._table is None else self._table.records_by_state()

    @property
    def is_full(self) -> bool:
        """Whether nothing new is leased until what is there is done."""
        return self._table is not None and self._table.is_full

    # -- what members do

    def ready_bytes(self, max_bytes: int) -> int:
        """How many bytes there may be for a member, up to so many. Raises KafkaError."""
        table = self._looked_at()
        if table is None:
            return 0
        upper = self._upper_offset()
        asked = table.next_available(upper)
        if asked is None:
            return 0
        return self.partition.log.read(asked, max_bytes, upper_offset=upper).size_bytes

    def deal(self, member: str, demand: Demand, max_bytes: int, *, min_one: bool) -> Dealt:
        """Leases a member what it may have. Raises KafkaError."""
        table = self._looked_at()
        if table is None:
            return NOTHING
        partition, upper = self.partition, self._upper_offset()
        asked = table.next_available(upper)
        if asked is None:
            return NOTHING
        partition.numbers.reads += 1
        result = partition.log.read(asked, max_bytes, upper_offset=upper, min_one=min_one)
        if not result.slices:
            return NOTHING
        aborted = NOTHING_ABORTED
        if partition.log.has_aborted and self._settings().reads_committed:
            aborted = Aborted(partition.log.aborted_transactions(asked, result.next_offset))
        read = LeaseRead(result.slices, aborted)
        acquired = table.acquire(member, asked, read, upper, demand, self._host.monotonic_ms())
        self._changed()
        if not acquired:
            if read.failure is not None:
                raise read.failure
            return NOTHING._replace(goes_on=table.next_available(upper) not in (None, asked))
        records = read.records(acquired)
        return Dealt(acquired, records, sum(map(len, records)))

    def take_back(self, member: str, acquired: Sequence[Acquired]) -> None:
        """The member won't be told of what it was dealt just now."""
        if self._table is not None:
            self._table.take_back(member, acquired)
            self._wake()

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement]
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Judges what a member says; what is to be written is answered when it is."""
        table = self._table
        if table is None:  # nothing was dealt in this leader's time
            return self.closed or ErrorCode.INVALID_RECORD_STATE
        error = table.acknowledge(member, acknowledgements, self._host.monotonic_ms())
        if error:
            return error
        if not table.has_change:
            self._changed()
            return ErrorCode.NONE
        told: asyncio.Future[ErrorCode] = self._loop.create_future()
        self._told.append(told)
        self._changed()
        return told

    def release(self, member: str) -> None:
        """The member's session is over: what it has is for others."""
        if self._table is not None and self._table.close_session(member):
            self._changed()

    def _looked_at(self) -> LeaseTable | None:
        """The table as the group's configuration and the log are now, if there is one yet."""
        table = self._table
        if table is None or not self.is_open:
            return None
        table.limits = self._settings().limits
        table.advance_log_start(self.partition.log.log_start_offset)
        return table

    def _upper_offset(self) -> int:
        partition = self.partition
        if self._settings().reads_committed:
            return partition.last_stable_offset
        return partition.high_watermark

    # -- writing

    def _changed(self) -> None:
        """Something may be to be written, or have another deadline."""
        table = self._table
        if table is None:
            return
        if table.has_change and not self._flush_due and len(self._writing) < WRITES_MAX:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        self._set_timer(table)

    def _flush(self) -> None:
        self._flush_due = False
        table = self._table
        if table is None:
            return
        change = table.take_change()
        if change is not None:
            self._writing[change.number], self._told = self._told, []
            self._start(self._write(change))

    async def _write(self, change: Change) -> None:
        """Writes until it is known what became of it."""
        pause_s = RETRY_MIN_S
        began_s = self._loop.time()
        error = await self._write_once(change)
        while self.closed is None and _may_pass(error):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            if self.closed is None:
                error = await self._write_once(change)
        if self.closed is None:
            self._meters.writes.observe(self._loop.time() - began_s)
            self._written(change, error)

    async def _write_once(self, change: Change) -> ErrorCode:
        return await self._host.share_persister.write(
            *self.key,
            state_epoch=self._state_epoch,
            leader_epoch=self._leader_epoch,
            start_offset=change.start_offset,
            finished_count=change.finished_count,
            batches=change.batches,
        )

    def _written(self, change: Change, error: ErrorCode) -> None:
        table = self._table
        assert table is not None
        if error in _FENCED:
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if error in _NOT_KEPT:
            self.close(ErrorCode.INVALID_RECORD_STATE)
            return
        if error:
            log.warning("what became of leases of %s isn't kept: %s", self, error.name)
            table.failed(change.number, self._host.monotonic_ms())
        else:
            table.committed(change.number)
            self._tell_given_up(change, table.limits.max_deliveries)
        _tell(self._writing.pop(change.number), error)
        self._changed()
        self._wake()
        self._look_whether_quiet()

    def _tell_given_up(self, change: Change, most: int) -> None:
        """Says so of records that nobody accepted in as many deliveries as there may be."""
        archived = [each for each in change.batches if each.state == ARCHIVED]
        if those := [each for each in archived if each.deliveries >= most]:
            emit(
                log,
                logging.WARNING,
                "share-records-archived",
                group=self.key.group,
                partition=str(self.partition),
                first=those[0].first,
                last=those[-1].last,
                records=sum([last - first + 1 for first, last, _, _ in those]),
                deliveries=those[0].deliveries,
            )

    # -- time

    def _set_timer(self, table: LeaseTable) -> None:
        deadline_ms = table.next_deadline()
        timer = self._timer
        if deadline_ms is None:
            return
        at_s = deadline_ms / 1000
        if timer is not None:
            if timer.when() <= at_s:
                return  # it is set anew when that time has come
            timer.cancel()
        self._timer = self._loop.call_at(at_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        table = self._table
        if table is None:
            return
        table.expire(self._host.monotonic_ms())
        self._changed()

    # -- the partition, and the end

    def _wake(self) -> None:
        if self.fetches.waiting:
            self.fetches.wake_soon(self, self._loop)

    def _partition_moved(self, _: Partition) -> None:
        """There may be more to read, or another role."""
        if self._is_over():
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.fetches.waiting:
            self.fetches.wake(self)

    def _is_over(self) -> bool:
        partition = self.partition
        return (
            partition.closed
            or partition.leadership is None
            or partition.leader_epoch != self._leader_epoch
        )

    def retire(self) -> None:
        """Nobody of the group is here any more: it is given up when nothing is on its way.

        So offsets may be altered or deleted elsewhere, and whoever comes next reads them anew.
        """
        self.retiring = True
        self._look_whether_quiet()

    def _look_whether_quiet(self) -> None:
        if self.retiring and (self._table is None or not (self._writing or self._table.has_change)):
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost, and nobody misses it, if it is given up."""
        table = self._table
        if table is None:
            return not self._opening
        return table.is_quiet and not self.fetches.waiting

    def give_way(self) -> None:
        """Closes it without waking who waits: they would want a place for it again at once."""
        self.fetches.waiting.clear()
        self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def close(self, error: ErrorCode) -> None:
        """Gives it up; what was acknowledged and isn't known to be written hears this error."""
        if self.closed is not None:
            return
        self.closed = error
        self._openings.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.partition.fetches.remove(self._partition_moved)
        self.partition.log.start_watchers.pop(self._wake, None)
        told, self._told = self._told, []
        for each in self._writing.values():
            told += each
        self._writing.clear()
        self._table = None
        _tell(told, error)
        self._on_close(self)
        self._wake()

    async def stop(self) -> None:
        """The broker stops: ends what is under way."""
        self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _may_pass(error: ErrorCode) -> bool:
    """Whether a write may have been done, or can be yet."""
    if error in _FENCED or error in _NOT_KEPT:
        return False
    return error.retriable or error is ErrorCode.UNKNOWN_SERVER_ERROR


def _tell(told: list[asyncio.Future[ErrorCode]], error: ErrorCode) -> None:
    for each in told:
        if not each.done():
            each.set_result(error)
