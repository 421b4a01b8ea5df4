"""The checker of the queue workload: values and order over one shared index."""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.testing.consistency.checkers.log_index import LogIndex
from kraftpy.testing.consistency.checkers.queue_order import SessionOrder
from kraftpy.testing.consistency.checkers.queue_values import value_verdicts
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Verdict


class QueueChecker:
    """`idempotence`: whether the producers were set to it, which promises more."""

    def __init__(self, *, idempotence: bool) -> None:
        self.index = LogIndex()
        self._idempotence = idempotence
        self._order = SessionOrder(self.index, idempotence=idempotence)

    def observe(self, operation: Operation) -> None:
        self.index.observe(operation)
        self._order.observe(operation)

    def verdicts(self) -> Iterator[Verdict]:
        yield from value_verdicts(self.index, idempotence=self._idempotence)
        yield from self._order.verdicts()
