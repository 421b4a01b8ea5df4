"""The line of a group whose coordinator assigns partitions: one write in flight at a time.

Whatever else may change the group waits until the write has landed, and is judged by what is in the
log then. So nothing is decided on what could still fail. The line is bounded in length, and in
time: when the write takes too long all who wait are sent away (COORDINATOR_NOT_AVAILABLE), and so
is whoever comes before it has landed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kraftpy.core.coordination import Committed, Failed
from kraftpy.core.groups.config import WAITING_REQUESTS_MAX
from kraftpy.core.groups.effects import Outbox, Write
from kraftpy.core.groups.records import CoordinatorRecord
from kraftpy.protocol.errors import ErrorCode

Operation = Callable[[int], None]
Refuse = Callable[[ErrorCode], None]


class Line:
    """`write` is the one in flight, `overdue` says that its requests were told not to wait."""

    __slots__ = ("overdue", "waiting", "write")

    def __init__(self) -> None:
        self.write: Write | None = None
        self.overdue = False
        self.waiting: deque[tuple[Operation, Refuse]] = deque()

    def submit(self, operation: Operation, refuse: Refuse, now_ms: int) -> None:
        """Runs an operation once nothing is in flight, at `now_ms` if nothing is.

        `refuse` is called instead if it can't be run.
        """
        if self.write is None:
            operation(now_ms)
        elif self.overdue or len(self.waiting) >= WAITING_REQUESTS_MAX:
            refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self.waiting.append((operation, refuse))

    def go_on(self, now_ms: int) -> None:
        """The write's fate is known, its requests are answered: the next ones have their turn."""
        self.write = None
        self.overdue = False
        while self.waiting and self.write is None:
            operation, _ = self.waiting.popleft()
            operation(now_ms)

    def give_up(self) -> None:
        """The write takes too long: nobody waits behind it any more."""
        self.overdue = True
        self.send_away(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def send_away(self, error: ErrorCode) -> None:
        """Tells all who wait that their turn doesn't come."""
        while self.waiting:
            _, refuse = self.waiting.popleft()
            refuse(error)


L = TypeVar("L", bound=Line)


class Lines(Generic[L]):
    """The lines of the groups of a kind; who has none has nothing in flight, and no deadlines.

    `new` makes one for a group. Who inherits says what else happens when a write has landed.
    """

    def __init__(self, outbox: Outbox, new: Callable[[str], L]) -> None:
        self._out = outbox
        self._new_line = new
        self._live: dict[str, L] = {}

    def submit(self, group_id: str, operation: Operation, refuse: Refuse, now_ms: int) -> None:
        """Runs an operation on the group once nothing that may change it is in flight.

        The operation is given the time, and may `write` once. `refuse` is called instead if it
        can't be run.
        """
        live = self._live.get(group_id)
        if live is None:
            operation(now_ms)
        else:
            live.submit(operation, refuse, now_ms)

    def write(
        self,
        group_id: str,
        records: Sequence[CoordinatorRecord],
        on_committed: Committed,
        on_failed: Failed,
    ) -> None:
        """Writes what changes the group; only from within an operation."""
        live = self._live_of(group_id)
        assert live.write is None
        live.write = self._out.write(records, (group_id,), on_committed, on_failed)

    def overdue(self, write: Write) -> None:
        """The write takes too long: nobody waits behind it any more."""
        for group_id in write.keys:
            live = self._live.get(group_id)
            if live is not None and live.write is write:
                live.give_up()

    def close(self, error: ErrorCode) -> None:
        """Another coordinator takes over: everybody who waits is told."""
        for live in self._live.values():
            live.send_away(error)

    def _live_of(self, group_id: str) -> L:
        live = self._live.get(group_id)
        if live is None:
            live = self._live[group_id] = self._new_line(group_id)
        return live
