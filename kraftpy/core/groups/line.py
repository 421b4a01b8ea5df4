"""The line of a group whose coordinator assigns partitions: one write in flight at a time.

Whatever else may change the group waits until the write has landed, and is judged by what is in the
log then. So nothing is decided on what could still fail. The line is bounded in length, and in
time: when the write takes too long all who wait are sent away (COORDINATOR_NOT_AVAILABLE), and so
is whoever comes before it has landed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kraftpy.core.groups.config import WAITING_REQUESTS_MAX
from kraftpy.core.groups.effects import Write
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
