"""What a machine asks its shell to do, and in which order.

Rules:

* Persist before reply. The shell first appends each write as one record batch, in the order given,
  then sends the replies and the messages. A write's own outcome goes back through
  `Machine.committed` or `failed`, which give the effects that follow from it.
* A token is whatever the shell passed in with a request (an asyncio future, in a test a string).
  The machine keeps it while the request is parked, gives it back exactly once, and never looks
  inside.
* A message is for another broker. It may get lost, and what is asked for while the machine is
  closed does: a machine that needs an answer asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from kraftpy.protocol.errors import ErrorCode

R = TypeVar("R")

Committed = Callable[[int], None]
Failed = Callable[[ErrorCode, int], None]

PRIMARY = 0
"""The first of a coordinator's logs, and of most the only one."""


class Write(Generic[R]):
    """Records of one atomic batch of one log, and what to do once their fate is known.

    `keys` are whom they concern: groups, say. `log` is the number of the coordinator's log.
    `offset` is where the batch begins that they are in, once that is committed.
    `settled` says that the requests behind it have been answered, by a failure or a timeout; the
    records still count if they commit later.
    """

    __slots__ = ("keys", "log", "offset", "on_committed", "on_failed", "records", "settled")

    def __init__(
        self,
        records: Sequence[R],
        keys: tuple[str, ...],
        on_committed: Committed,
        on_failed: Failed,
        log: int = PRIMARY,
    ) -> None:
        self.records = records
        self.keys = keys
        self.on_committed = on_committed
        self.on_failed = on_failed
        self.log = log
        self.offset = -1
        self.settled = False


def together(writes: Sequence[Write[R]]) -> Write[R]:
    """One write with the records of these, of one log: for its codec. Nobody hears of its fate."""
    records = [record for write in writes for record in write.records]
    return Write(records, (), lambda _: None, lambda *_: None, writes[0].log)


class Effects(NamedTuple, Generic[R]):
    """Batches to append, then (token, response) pairs to send, and messages to other brokers."""

    writes: Sequence[Write[R]]
    replies: Sequence[tuple[object, object]]
    messages: Sequence[object] = ()


class Outbox(Generic[R]):
    """Collects the effects of one call of the machine."""

    def __init__(self) -> None:
        self._writes: list[Write[R]] = []
        self._replies: list[tuple[object, object]] = []
        self._messages: list[object] = []
        # By key; None: of those without one.
        self._in_flight: dict[str | None, list[Write[R]]] = {}

    def reply(self, token: object, response: object) -> None:
        self._replies.append((token, response))

    def send(self, message: object) -> None:
        self._messages.append(message)

    def write(
        self,
        records: Sequence[R],
        keys: tuple[str, ...],
        on_committed: Committed,
        on_failed: Failed,
        log: int = PRIMARY,
    ) -> Write[R]:
        """Asks for an append; the write counts as in flight until `landed`."""
        write = self.expect(records, keys, on_committed, on_failed, log)
        self._writes.append(write)
        return write

    def expect(
        self,
        records: Sequence[R],
        keys: tuple[str, ...],
        on_committed: Committed,
        on_failed: Failed,
        log: int = PRIMARY,
    ) -> Write[R]:
        """The same for a batch that the shell appends of its own."""
        write = Write(records, keys, on_committed, on_failed, log)
        for key in keys or (None,):
            self._in_flight.setdefault(key, []).append(write)
        return write

    def landed(self, write: Write[R]) -> None:
        """The write's fate is known: it is not in flight any more."""
        for key in write.keys or (None,):
            writes = self._in_flight[key]
            writes.remove(write)
            if not writes:
                del self._in_flight[key]

    def in_flight(self, key: str) -> Sequence[Write[R]]:
        """The key's writes whose fate is not known yet, oldest first."""
        return self._in_flight.get(key, ())

    def all_in_flight(self) -> list[Write[R]]:
        """Every write whose fate is not known yet, each once."""
        writes = {id(w): w for of_key in self._in_flight.values() for w in of_key}
        return list(writes.values())

    def take(self) -> Effects[R]:
        """Hands over what was collected since the last call."""
        messages = self._messages
        effects = Effects(self._writes, self._replies, messages)
        self._writes, self._replies = [], []
        if messages:
            self._messages = []
        return effects
