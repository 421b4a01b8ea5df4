"""The share coordinator of one partition of `__share_group_state` (KIP-932), deterministic.

It keeps, for the leaders of partitions, what became of leased records. `core.coordination.machine`
is its contract with the shell, `share_state` says how writes add up. Rules:

* A write needs an initialization before it. A smaller state epoch, of before offsets were altered,
  is refused, and so is a smaller leader epoch. A read notes the epoch of the leader that reads
  before it is answered: what an older leader wrote is in the answer, and what comes of it later is
  refused.
* To initialize with the state epoch that there is changes nothing: it is a retry, and its partition
  may have been written since.
* A share-partition has one write in flight at a time. What comes meanwhile waits, at most
  `QUEUE_MAX`, and is judged when it lands: what can be written then is one batch.
* After so many updates a snapshot is written, and of a partition that has some but gets no more
  after a while. Below the oldest snapshot that counts nothing of the log is needed; one counts when
  it is committed, and until its successor is. One that many records of others have come behind is
  written anew, or the log would have to be kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from kraftpy.core.coordination import (
    Effects,
    Loaded,
    Outbox,
    Write,
    plain_batch,
    plain_records,
    write_error,
)
from kraftpy.core.coordination.deadlines import Deadlines
from kraftpy.core.leases.share_state import ShareState, Summary
from kraftpy.core.leases.state_memory import ShareMemory, size_bytes
from kraftpy.core.leases.state_records import (
    NO_OFFSET,
    ShareKey,
    ShareRecord,
    Snapshot,
    Update,
    are_sound,
    decode_record,
    encode_record,
)
from kraftpy.core.leases.terms import StateBatch
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import Buffer

QUEUE_MAX = 64

# A leader has at most so many records out (group.share.partition.max.record.locks). To take in that
# many takes 5 ms (`make bench ARGS=leases`), which is the longest that others have to wait.
BATCHES_MAX = 4_000
# What a share-partition may have of them, with those that a start offset has yet to pass.
RUNS_MAX = 4 * BATCHES_MAX

ANY_EPOCH = -1
"""An epoch that isn't looked at."""

NO_LEADER_EPOCH = -1

# So many snapshots of partitions that get no more updates are written in one go.
COLD_TOGETHER = 100

# A snapshot is written anew once so many records are behind it, and some for each share-partition.
OUTDATED_AFTER_MIN = 1_000
_OUTDATED_AFTER_EACH = 4


class ShareStateConfig(NamedTuple):
    """After so many updates a snapshot is written, after such a time one of what gets no more."""

    updates_per_snapshot: int
    cold_snapshot_interval_ms: int


class StateAnswer(NamedTuple):
    """What every request hears; the rest is that of a read."""

    error: ErrorCode
    state_epoch: int = 0
    start_offset: int = NO_OFFSET
    batches: tuple[StateBatch, ...] = ()


class StateWrite(NamedTuple):
    """What a leader writes; start offset -1: that stays as it is."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    finished_count: int
    batches: Sequence[StateBatch]


UNKNOWN = Summary(0, 0, NO_OFFSET, -1)
"""What is told of a share-partition that there isn't."""

_OK = StateAnswer(ErrorCode.NONE)

Value: TypeAlias = Snapshot | Update | None


class _Batch:
    """What becomes of a share-partition in one write: each record after the one before."""

    def __init__(self, state: ShareState | None, now_ms: int, config: ShareStateConfig) -> None:
        self.now_ms = now_ms
        self.records: list[Value] = []
        self.now: Summary | None = None
        """What it is after these records, None: there is none."""
        self.epoch = 0
        self._batches = 0
        self._updates = 0
        self._config = config
        self._before = state
        if state is not None:
            self.now = state.summary()
            self.epoch = state.epoch
            self._updates = state.updates

    def is_full(self, more: int) -> bool:
        """Whether so many batches of offsets are too many, with those that there are."""
        runs = 0 if self._before is None else len(self._before)
        together = self._batches + more
        return runs + together > RUNS_MAX or (self._batches > 0 and together > BATCHES_MAX)

    def change(self, write: StateWrite) -> None:
        """Writes what has changed, or a snapshot with it when that is due."""
        now = self.now
        assert now is not None
        update = Update(self.epoch, *write[1:4], tuple(write.batches))
        self._batches += len(update.batches)
        self.records.append(update)
        if self._updates >= self._config.updates_per_snapshot:
            state = self._after()
            self.epoch, self._updates = self.epoch + 1, 0
            self.records[-1] = state.snapshot(self.now_ms, self.epoch)
            self.now = state.summary()
            return
        self._updates += 1
        is_late = write.start_offset != NO_OFFSET and write.start_offset < now.start_offset
        self.now = Summary(
            now.state_epoch,
            max(now.leader_epoch, write.leader_epoch),
            max(now.start_offset, write.start_offset),
            now.finished_count if is_late else write.finished_count,
        )

    def begin(self, snapshot: Snapshot | None) -> None:
        """Writes a new state, or that there is none any more."""
        self.records.append(snapshot)
        self._updates = 0
        if snapshot is None:
            self.now = None
        else:
            self.now, self.epoch = ShareState(snapshot).summary(), snapshot.epoch

    def _after(self) -> ShareState:
        """The state after these records, to change by itself."""
        state = None if self._before is None else self._before.copy()
        for record in self.records:
            if isinstance(record, Snapshot):
                state = ShareState(record)
            elif isinstance(record, Update):
                assert state is not None
                state.apply(record)
        assert state is not None
        return state


Judge = Callable[[_Batch], ErrorCode]


def _end(batch: _Batch) -> ErrorCode:
    """Nothing is kept any more."""
    if batch.now is not None:
        batch.begin(None)
    return ErrorCode.NONE


class _Request(NamedTuple):
    """`token`: None if nobody waits for the answer."""

    token: object
    judge: Judge
    is_read: bool


class _Lane:
    """A share-partition with something under way."""

    __slots__ = ("is_writing", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Request] = []
        self.is_writing = False


class ShareStateMachine:
    """See the module."""

    def __init__(self, config: ShareStateConfig, memory: ShareMemory) -> None:
        self._config = config
        self._memory = memory
        self._memory_bytes = 0
        self._is_loaded = False
        self._states: dict[ShareKey, ShareState] = {}
        self._snapshots_at: dict[ShareKey, int] = {}
        self._end_offset = 0
        self._lanes: dict[ShareKey, _Lane] = {}
        self._cold: Deadlines[ShareKey] = Deadlines()
        self._out: Outbox[ShareRecord] = Outbox()

    def __len__(self) -> int:
        """How many share-partitions there are."""
        return len(self._states)

    # -- loading

    def load(self, record: ShareRecord, offset: int) -> bool:
        """Takes in one record of the log, oldest first; False for what can't be used."""
        key, value = record
        self._end_offset = offset + 1
        before_bytes = size_bytes(key, self._states.get(key))
        is_sound = self._replay(key, value, offset)
        self._take_memory(size_bytes(key, self._states.get(key)) - before_bytes)
        return is_sound

    def _replay(self, key: ShareKey, value: Value, offset: int) -> bool:
        if isinstance(value, Update):
            state = self._states.get(key)
            if state is None or value.epoch != state.epoch:
                return False
            state.apply(value)
        elif value is None:
            self._states.pop(key, None)
            self._snapshots_at.pop(key, None)
        else:
            before = self._states.get(key)
            self._states[key] = state = ShareState(value)
            self._snapshots_at[key] = offset
            if before is not None and before.leader_epoch > state.leader_epoch:
                state.leader_epoch = before.leader_epoch
        return True

    def _take_memory(self, more_bytes: int) -> None:
        self._memory_bytes += more_bytes
        if self._is_loaded:
            self._memory.used_bytes += more_bytes

    def finish_load(self, now_ms: int) -> Effects[ShareRecord]:
        self._is_loaded = True
        self._memory.used_bytes += self._memory_bytes
        for key in self._states:
            self._watch(key, now_ms)
        return self._out.take()

    # -- requests: each is answered with a `StateAnswer`

    def initialize(
        self, token: object, key: ShareKey, state_epoch: int, start_offset: int, now_ms: int
    ) -> Effects[ShareRecord]:
        """InitializeShareGroupState, also with the next state epoch to alter offsets."""

        def judge(batch: _Batch) -> ErrorCode:
            known = batch.now
            leader_epoch = NO_LEADER_EPOCH
            if known is not None:
                if state_epoch == known.state_epoch:
                    return ErrorCode.NONE
                if state_epoch < known.state_epoch:
                    return ErrorCode.FENCED_STATE_EPOCH
                leader_epoch = known.leader_epoch
            elif not self._memory.has_room(is_new=True):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            epoch = 0 if known is None else batch.epoch + 1
            times = batch.now_ms, batch.now_ms
            # Nothing above an offset that was set by hand is done; of another nobody knows.
            finished = -1 if start_offset == NO_OFFSET else 0
            batch.begin(
                Snapshot(epoch, state_epoch, leader_epoch, start_offset, finished, *times, ())
            )
            return ErrorCode.NONE

        return self._submit(key, _Request(token, judge, is_read=False), now_ms)

    def write(
        self, token: object, key: ShareKey, write: StateWrite, now_ms: int
    ) -> Effects[ShareRecord]:
        """WriteShareGroupState."""

        def judge(batch: _Batch) -> ErrorCode:
            known = batch.now
            if known is None or len(write.batches) > BATCHES_MAX or not are_sound(write.batches):
                return ErrorCode.INVALID_REQUEST
            if write.leader_epoch != ANY_EPOCH and write.leader_epoch < known.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if write.state_epoch != ANY_EPOCH and write.state_epoch < known.state_epoch:
                return ErrorCode.FENCED_STATE_EPOCH
            has_room = not write.batches or self._memory.has_room(is_new=False)
            if batch.is_full(len(write.batches)) or not has_room:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            batch.change(write)
            return ErrorCode.NONE

        return self._submit(key, _Request(token, judge, is_read=False), now_ms)

    def read(
        self, token: object, key: ShareKey, leader_epoch: int, now_ms: int
    ) -> Effects[ShareRecord]:
        """ReadShareGroupState of a leader, which is noted."""

        def judge(batch: _Batch) -> ErrorCode:
            known = batch.now
            if known is None:
                return ErrorCode.INVALID_REQUEST
            if leader_epoch < known.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if leader_epoch > known.leader_epoch:
                state_epoch, _, start, finished = known
                batch.change(StateWrite(state_epoch, leader_epoch, start, finished, ()))
            return ErrorCode.NONE

        return self._submit(key, _Request(token, judge, is_read=True), now_ms)

    def delete(self, token: object, key: ShareKey, now_ms: int) -> Effects[ShareRecord]:
        """DeleteShareGroupState; it is no error if there is none."""

        return self._submit(key, _Request(token, _end, is_read=False), now_ms)

    def drop(self, keys: Iterable[ShareKey], now_ms: int) -> tuple[int, Effects[ShareRecord]]:
        """The same of many, for nobody; and how many there were."""
        known = [key for key in keys if key in self._states]
        for key in known:
            self._take_in(key, _Request(None, _end, is_read=False), now_ms)
        return len(known), self._out.take()

    def summary(self, key: ShareKey) -> Summary:
        """ReadShareGroupStateSummary, of what is committed."""
        state = self._states.get(key)
        return UNKNOWN if state is None else state.summary()

    def keys(self) -> Iterator[ShareKey]:
        """All share-partitions."""
        return iter(self._states)

    # -- deciding and writing

    def _submit(self, key: ShareKey, request: _Request, now_ms: int) -> Effects[ShareRecord]:
        self._take_in(key, request, now_ms)
        return self._out.take()

    def _take_in(self, key: ShareKey, request: _Request, now_ms: int) -> None:
        lane = self._lanes.setdefault(key, _Lane())
        if len(lane.waiting) >= QUEUE_MAX and request.token is not None:
            self._tell(request, StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            lane.waiting.append(request)
            if not lane.is_writing:
                self._decide(key, lane, now_ms)

    def _tell(self, request: _Request, answer: StateAnswer) -> None:
        if request.token is not None:
            self._out.reply(request.token, answer)

    def _decide(self, key: ShareKey, lane: _Lane, now_ms: int) -> None:
        """Judges all that waits, and writes what follows."""
        requests, lane.waiting = lane.waiting, []
        batch = _Batch(self._states.get(key), now_ms, self._config)
        allowed: list[_Request] = []
        for request in requests:
            if error := request.judge(batch):
                self._tell(request, StateAnswer(error))
            else:
                allowed.append(request)
        if batch.records:
            self._write(key, lane, batch.records, allowed)
            return
        self._answer(key, allowed)
        del self._lanes[key]

    def _write(
        self, key: ShareKey, lane: _Lane, values: Iterable[Value], requests: Sequence[_Request]
    ) -> None:
        lane.is_writing = True

        def committed(now_ms: int) -> None:
            for record in write.records:
                self.load(record, write.offset)
            self._watch(key, now_ms)
            if not write.settled:
                self._answer(key, requests)
            self._go_on(key, lane, now_ms)

        def failed(error: ErrorCode, now_ms: int) -> None:
            for request in requests:
                self._tell(request, StateAnswer(write_error(error)))

        records = tuple(ShareRecord(key, value) for value in values)
        write = self._out.write(records, (), committed, failed)

    def _answer(self, key: ShareKey, requests: Iterable[_Request]) -> None:
        for request in requests:
            answer = _OK
            if request.is_read:
                state = self._states.get(key)
                if state is None:  # what waited behind it has deleted that
                    answer = StateAnswer(ErrorCode.INVALID_REQUEST)
                else:
                    epoch, start = state.state_epoch, state.start_offset
                    answer = StateAnswer(ErrorCode.NONE, epoch, start, state.batches())
            self._tell(request, answer)

    def _go_on(self, key: ShareKey, lane: _Lane, now_ms: int) -> None:
        lane.is_writing = False
        if lane.waiting:
            self._decide(key, lane, now_ms)
        else:
            del self._lanes[key]

    def committed(self, write: Write[ShareRecord], now_ms: int) -> Effects[ShareRecord]:
        self._out.landed(write)
        write.on_committed(now_ms)
        return self._out.take()

    def failed(
        self, write: Write[ShareRecord], error: ErrorCode, now_ms: int
    ) -> Effects[ShareRecord]:
        self._out.landed(write)
        self._settle(write, error, now_ms)
        key = write.records[0].key
        self._watch(key, now_ms)
        self._go_on(key, self._lanes[key], now_ms)
        return self._out.take()

    def timed_out(self, write: Write[ShareRecord], now_ms: int) -> Effects[ShareRecord]:
        self._settle(write, ErrorCode.REQUEST_TIMED_OUT, now_ms)
        return self._out.take()

    def _settle(self, write: Write[ShareRecord], error: ErrorCode, now_ms: int) -> None:
        if not write.settled:
            write.settled = True
            write.on_failed(error, now_ms)

    # -- snapshots without an update, and what of the log isn't needed

    def needed_from(self) -> int:
        """Below this offset nothing of the log is needed any more."""
        return min(self._snapshots_at.values(), default=self._end_offset)

    def outdated(self) -> list[ShareKey]:
        """Those whose snapshots hold back a log that could be much shorter."""
        after = OUTDATED_AFTER_MIN + _OUTDATED_AFTER_EACH * len(self._states)
        before = self._end_offset - after
        return [key for key, offset in self._snapshots_at.items() if offset < before]

    def renew(self, keys: Iterable[ShareKey], now_ms: int) -> tuple[int, Effects[ShareRecord]]:
        """Writes snapshots of these, but those with a write under way; and of how many."""
        known = [key for key in keys if key in self._states and key not in self._lanes]
        for key in known:
            self._write_snapshot(key, now_ms)
        return len(known), self._out.take()

    def _write_snapshot(self, key: ShareKey, now_ms: int) -> None:
        lane = self._lanes[key] = _Lane()
        state = self._states[key]
        self._write(key, lane, [state.snapshot(now_ms, state.epoch + 1)], ())

    def _watch(self, key: ShareKey, now_ms: int) -> None:
        state = self._states.get(key)
        if state is None or not state.updates:
            self._cold.cancel(key)
        else:
            self._cold.set(key, now_ms + self._config.cold_snapshot_interval_ms)

    def next_deadline(self) -> int | None:
        return self._cold.next()

    def handle_timers(self, now_ms: int) -> Effects[ShareRecord]:
        for _ in range(COLD_TOGETHER):
            key = self._cold.pop_due(now_ms)
            if key is None:
                break
            if key not in self._lanes:  # else it is watched anew when that has landed
                self._write_snapshot(key, now_ms)
        return self._out.take()

    def shift_deadlines(self, delta_ms: int) -> None:
        self._cold.shift(delta_ms)

    def close(self, error: ErrorCode, now_ms: int) -> Effects[ShareRecord]:
        if self._is_loaded:
            self._memory.used_bytes -= self._memory_bytes
        for write in self._out.all_in_flight():
            self._settle(write, error, now_ms)
        for lane in self._lanes.values():
            for request in lane.waiting:
                self._tell(request, StateAnswer(error))
        return self._out.take()._replace(writes=[])


class ShareStateCodec:
    """`core.coordination.Codec` of share-partitions."""

    def encode(self, write: Write[ShareRecord], now_ms: int) -> bytes:
        return plain_batch(write, encode_record, now_ms)

    def replay(self, batches: Buffer, machine: ShareStateMachine, loaded: Loaded) -> None:
        for offset, record in plain_records(batches, decode_record, loaded):
            if not machine.load(record, offset):
                loaded.records -= 1
                loaded.skipped += 1
