"""What a group machine asks its shell to do, and in which order.

Rules:

* Persist before reply. The shell first appends each write as one record batch, in the order given,
  then sends the replies. A write's own outcome goes back through `GroupMachine.committed` or
  `failed`, which give the effects that follow from it.
* A token is whatever the shell passed in with a request (an asyncio future, in a test a string).
  The machine keeps it while the request is parked, gives it back exactly once, and never looks
  inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kraftpy.core.groups.records import CoordinatorRecord
from kraftpy.protocol.errors import ErrorCode

Committed = Callable[[int], None]
Failed = Callable[[ErrorCode, int], None]


class Write:
    """Records of one atomic batch, and what to do once their fate is known.

    `settled` says that the requests behind it have been answered, by a failure or a timeout; the
    records still count if they commit later.
    """

    __slots__ = ("group_ids", "on_committed", "on_failed", "records", "settled")

    def __init__(
        self,
        records: Sequence[CoordinatorRecord],
        group_ids: tuple[str, ...],
        on_committed: Committed,
        on_failed: Failed,
    ) -> None:
        self.records = records
        self.group_ids = group_ids
        self.on_committed = on_committed
        self.on_failed = on_failed
        self.settled = False


class Effects(NamedTuple):
    """Batches to append, then (token, response message) pairs to send."""

    writes: list[Write]
    replies: list[tuple[object, object]]


class Outbox:
    """Collects the effects of one call of the machine."""

    def __init__(self) -> None:
        self._writes: list[Write] = []
        self._replies: list[tuple[object, object]] = []
        self._in_flight: dict[str, list[Write]] = {}

    def reply(self, token: object, response: object) -> None:
        self._replies.append((token, response))

    def write(
        self,
        records: Sequence[CoordinatorRecord],
        group_ids: tuple[str, ...],
        on_committed: Committed,
        on_failed: Failed,
    ) -> Write:
        """Asks for an append; the write counts as in flight until `landed`."""
        write = Write(records, group_ids, on_committed, on_failed)
        self._writes.append(write)
        for group_id in group_ids:
            self._in_flight.setdefault(group_id, []).append(write)
        return write

    def landed(self, write: Write) -> None:
        """The write's fate is known: it is not in flight any more."""
        for group_id in write.group_ids:
            writes = self._in_flight[group_id]
            writes.remove(write)
            if not writes:
                del self._in_flight[group_id]

    def in_flight(self, group_id: str) -> Sequence[Write]:
        """The group's writes whose fate is not known yet, oldest first."""
        return self._in_flight.get(group_id, ())

    def all_in_flight(self) -> list[Write]:
        """Every write whose fate is not known yet, each once."""
        writes = {id(w): w for of_group in self._in_flight.values() for w in of_group}
        return list(writes.values())

    def take(self) -> Effects:
        """Hands over what was collected since the last call."""
        effects = Effects(self._writes, self._replies)
        self._writes, self._replies = [], []
        return effects
