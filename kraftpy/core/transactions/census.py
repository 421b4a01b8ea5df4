"""Counts transactional ids by what becomes of them: a part at a time, as there may be many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kraftpy.core.transactions.states import Transaction, TransactionState


def is_late(transaction: Transaction, now_ms: int) -> bool:
    """Whether it should be over by its timeout, and isn't.

    Its abort can't be written, or its markers can't.
    """
    return not transaction.state.is_idle and (
        now_ms - transaction.start_ms > transaction.timeout_ms
    )


class Census:
    """How many ids are in which state, how many transactions are late, and since when the one
    waits for its markers that was decided first (None if none does).
    """

    def __init__(self) -> None:
        # An id that is dead isn't there.
        self.states: Counter[TransactionState] = Counter(
            {each: 0 for each in TransactionState if each is not TransactionState.DEAD}
        )
        self.late = 0
        self.decided_ms: int | None = None

    def count(self, transactions: Iterable[Transaction], now_ms: int) -> None:
        """Adds these; times are in milliseconds since 1970."""
        for each in transactions:
            self.states[each.state] += 1
            if each.state.is_idle:
                continue
            self.late += is_late(each, now_ms)
            if each.state.is_preparing:
                self.decided_ms = min(each.update_ms, self.decided_ms or each.update_ms)
