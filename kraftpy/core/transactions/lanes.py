"""What a transactional id has under way: requests that wait, and the write that comes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftpy.core.transactions import rules
from kraftpy.core.transactions.rules import Answer, Verdict
from kraftpy.core.transactions.states import Cause, Transaction, TransactionState, may_follow

RETRY_MIN_MS: Final = 10

Judge = Callable[[Transaction | None, int], Verdict]


class Request:
    """A request that is judged when its turn comes; the machine's own have no token."""

    __slots__ = ("is_parked", "judge", "token", "wait_ms")

    def __init__(self, token: object, judge: Judge, wait_ms: int) -> None:
        self.token = token
        self.judge = judge
        self.wait_ms = wait_ms
        self.is_parked = False


class Lane:
    """An id with something under way; `is_overdue`: a write that clients wait for no more.

    `cause` is of the transaction's end, if that is what is being written.
    """

    __slots__ = ("cause", "is_overdue", "is_writing", "markers_written", "retry_ms", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.is_writing = False
        self.is_overdue = False
        self.markers_written = False
        self.retry_ms = RETRY_MIN_MS
        self.cause = Cause.PRODUCER

    @property
    def is_unused(self) -> bool:
        return not (self.waiting or self.is_writing or self.markers_written)


class Batch:
    """What becomes of an id in one write: each step from the one before."""

    __slots__ = ("answers", "current", "fencing", "steps")

    def __init__(self, current: Transaction | None) -> None:
        self.current = current
        self.steps: list[Transaction] = []
        self.answers: list[tuple[Request, Answer]] = []
        self.fencing: list[Request] = []

    def add(self, transaction: Transaction, now_ms: int) -> None:
        """Goes on to this state, and beyond if there are no markers to wait for."""
        before = self.current
        assert before is None or may_follow(before, transaction), (before, transaction)
        is_open = transaction.state is TransactionState.ONGOING
        if self.steps and is_open and self.steps[-1].state is TransactionState.ONGOING:
            self.steps.pop()
        self.steps.append(transaction)
        self.current = transaction
        if transaction.state.is_preparing and not transaction.partitions:
            self.add(rules.complete(transaction, now_ms), now_ms)
