"""Counters of one partition: the smallest machine that does all that a machine may.

* One write of a key is in flight at a time; what comes meanwhile waits and is judged when it has
  landed. So a counter's values in the log are those of an order of additions.
* A counter has a limit in the second log, if there is one. A write that takes part in neither is
  refused at once.
* Each counter has a mirror, `mirror:KEY`, at whichever broker coordinates that. A message says what
  it is to be at least, again and again until that is confirmed; a machine that has just been loaded
  begins anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kraftpy.core.coordination import Effects, Loaded, Outbox, Write
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import (
    Buffer,
    RecordInput,
    batch_data,
    build_batch,
    read_records,
    split_batches,
)

COUNTS, LIMITS = 0, 1
MIRROR = "mirror:"
REPEAT_MS = 100

Change = Callable[[int], int]


class Entry(NamedTuple):
    """A record of either log."""

    key: str
    value: int


class Answer(NamedTuple):
    """What every request hears; the value is -1 with an error."""

    error: ErrorCode
    value: int = -1


class Mirror(NamedTuple):
    """A message: the counter's mirror is to have this value at least, says who leads since then."""

    key: str
    value: int
    leader_epoch: int


class _Wait(NamedTuple):
    key: str
    value: int
    deadline_ms: int


class CounterMachine:
    """See the module; `kraftpy.core.coordination.machine` is its contract."""

    def __init__(self, leader_epoch: int) -> None:
        self._leader_epoch = leader_epoch
        self.values: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._queued: dict[str, deque[tuple[object, Change]]] = {}
        self._waits: dict[object, _Wait] = {}
        self._unconfirmed: dict[str, int] = {}
        self._repeat_ms: int | None = None
        self._out: Outbox[Entry] = Outbox()

    def replay(self, log: int, entry: Entry) -> None:
        if log == LIMITS:
            self._limits[entry.key] = entry.value
            return
        self.values[entry.key] = entry.value
        if not entry.key.startswith(MIRROR):
            self._unconfirmed[entry.key] = entry.value

    def finish_load(self, now_ms: int) -> Effects[Entry]:
        self._send(self._unconfirmed, now_ms)
        return self._out.take()

    # -- requests

    def get(self, key: str) -> int:
        return self.values.get(key, 0)

    def add(self, token: object, key: str, amount: int, now_ms: int) -> Effects[Entry]:
        """Answered with the new value once that is committed."""
        return self._change(token, key, lambda value: value + amount)

    def raise_to(self, token: object, key: str, least: int, now_ms: int) -> Effects[Entry]:
        """The same; does nothing to a counter that has the value already."""
        return self._change(token, key, lambda value: max(value, least))

    def limit(self, token: object, key: str, most: int) -> Effects[Entry]:
        """From when it is committed on, the counter doesn't go above this."""
        self._write(token, Entry(key, most), LIMITS)
        return self._out.take()

    def wait(
        self, token: object, key: str, value: int, timeout_ms: int, now_ms: int
    ) -> Effects[Entry]:
        """Answered when the counter has this value at least."""
        self._waits[token] = _Wait(key, value, now_ms + timeout_ms)
        self._wake()
        return self._out.take()

    def abandon(self, token: object) -> Effects[Entry]:
        """Whoever waited is gone."""
        self._waits.pop(token, None)
        return self._out.take()

    def confirm(self, token: object, message: Mirror) -> Effects[Entry]:
        """The mirror has got this; what an earlier machine was told counts for nothing."""
        is_own = message.leader_epoch == self._leader_epoch
        if is_own and self._unconfirmed.get(message.key) == message.value:
            del self._unconfirmed[message.key]
        self._out.reply(token, Answer(ErrorCode.NONE, message.value))
        return self._out.take()

    def forget_all(self, prefix: str) -> Effects[Entry]:
        """Sets all counters of this prefix back."""
        for key in [key for key, value in self.values.items() if key.startswith(prefix) and value]:
            self._submit(None, key, lambda value: 0)
        return self._out.take()

    def _change(self, token: object, key: str, change: Change) -> Effects[Entry]:
        self._submit(token, key, change)
        return self._out.take()

    def _submit(self, token: object, key: str, change: Change) -> None:
        if any(write.log == COUNTS for write in self._out.in_flight(key)):
            self._queued.setdefault(key, deque()).append((token, change))
            return
        value = change(self.get(key))
        if value > self._limits.get(key, value):
            self._out.reply(token, Answer(ErrorCode.POLICY_VIOLATION))
        elif value == self.get(key):
            self._out.reply(token, Answer(ErrorCode.NONE, value))
        else:
            self._write(token, Entry(key, value), COUNTS)

    def _write(self, token: object, entry: Entry, log: int) -> None:
        def reply(answer: Answer) -> None:
            if token is not None:
                self._out.reply(token, answer)

        self._out.write(
            [entry],
            (entry.key,),
            lambda now_ms: reply(Answer(ErrorCode.NONE, entry.value)),
            lambda error, now_ms: reply(Answer(error)),
            log,
        )

    # -- outcomes

    def committed(self, write: Write[Entry], now_ms: int) -> Effects[Entry]:
        for entry in write.records:
            self.replay(write.log, entry)
            if entry.key in self._unconfirmed:
                self._send([entry.key], now_ms)
        self._out.landed(write)
        if not write.settled:
            write.settled = True
            write.on_committed(now_ms)
        self._wake()
        return self._next(write)

    def failed(self, write: Write[Entry], error: ErrorCode, now_ms: int) -> Effects[Entry]:
        self._out.landed(write)
        self._settle(write, error, now_ms)
        return self._next(write)

    def timed_out(self, write: Write[Entry], now_ms: int) -> Effects[Entry]:
        self._settle(write, ErrorCode.REQUEST_TIMED_OUT, now_ms)
        return self._out.take()

    def _settle(self, write: Write[Entry], error: ErrorCode, now_ms: int) -> None:
        if not write.settled:
            write.settled = True
            write.on_failed(error, now_ms)

    def _next(self, write: Write[Entry]) -> Effects[Entry]:
        (key,) = write.keys
        queued = self._queued.pop(key, ())
        for token, change in queued:
            self._submit(token, key, change)
        return self._out.take()

    def _wake(self) -> None:
        for token, wait in list(self._waits.items()):
            if self.get(wait.key) >= wait.value:
                del self._waits[token]
                self._out.reply(token, Answer(ErrorCode.NONE, self.get(wait.key)))

    def _send(self, keys: Iterable[str], now_ms: int) -> None:
        for key in keys:
            self._out.send(Mirror(key, self._unconfirmed[key], self._leader_epoch))
        if self._repeat_ms is None and self._unconfirmed:
            self._repeat_ms = now_ms + REPEAT_MS

    # -- time

    def next_deadline(self) -> int | None:
        deadlines = [wait.deadline_ms for wait in self._waits.values()]
        return min(
            [*deadlines, *([] if self._repeat_ms is None else [self._repeat_ms])], default=None
        )

    def handle_timers(self, now_ms: int) -> Effects[Entry]:
        for token, wait in list(self._waits.items()):
            if wait.deadline_ms <= now_ms:
                del self._waits[token]
                self._out.reply(token, Answer(ErrorCode.REQUEST_TIMED_OUT))
        if self._repeat_ms is not None and self._repeat_ms <= now_ms:
            self._repeat_ms = None
            self._send(self._unconfirmed, now_ms)
        return self._out.take()

    def shift_deadlines(self, delta_ms: int) -> None:
        self._waits = {
            token: wait._replace(deadline_ms=wait.deadline_ms + delta_ms)
            for token, wait in self._waits.items()
        }
        if self._repeat_ms is not None:
            self._repeat_ms += delta_ms

    def close(self, error: ErrorCode, now_ms: int) -> Effects[Entry]:
        for write in self._out.all_in_flight():
            self._settle(write, error, now_ms)
        for queued in self._queued.values():
            for token, _ in queued:
                self._out.reply(token, Answer(error))
        for token in self._waits:
            self._out.reply(token, Answer(error))
        return self._out.take()._replace(writes=[], messages=[])


class CounterCodec:
    """The format of either log: a key's last record counts."""

    def __init__(self, log: int) -> None:
        self._log = log

    def encode(self, write: Write[Entry], now_ms: int) -> bytes:
        records: list[RecordInput] = [
            (now_ms, entry.key.encode(), entry.value.to_bytes(8, "big"), [])
            for entry in write.records
        ]
        return build_batch(records)

    def replay(self, batches: Buffer, machine: CounterMachine, loaded: Loaded) -> None:
        for position, header in split_batches(batches):
            for record in read_records(header, batch_data(header, batches, position)):
                assert record.key is not None
                assert record.value is not None
                entry = Entry(record.key.decode(), int.from_bytes(record.value, "big"))
                machine.replay(self._log, entry)
                loaded.records += 1
