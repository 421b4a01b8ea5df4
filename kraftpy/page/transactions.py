"""The open transactions of the cluster, and those that are open for longest.

Each broker is asked for the transactions that it coordinates and that aren't over. Those of them
that last for the first of `OPEN_FOR_MS` or more are described, `DESCRIBED_MAX` of one broker at
most. Where there are more, only those are that last for the next one, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from kraftpy.client.cluster import Cluster, check
from kraftpy.page.asking import FAILURES, pieces
from kraftpy.page.model import TRANSACTIONS_TOPIC, Node, Transaction, Transactions
from kraftpy.protocol import messages

OPEN = "Ongoing"
STATES = (OPEN, "PrepareCommit", "PrepareAbort")
OPEN_FOR_MS = (10_000, 60_000, 600_000)
DESCRIBED_MAX = 200
"""Transactions of one broker that are looked at."""
OLDEST_MAX = 20
"""Transactions that are kept."""


async def ask_transactions(client: Cluster, node: Node) -> Transactions:
    """What the brokers say that are up; nobody is asked while there can be no transaction."""
    if TRANSACTIONS_TOPIC not in node.topics:
        return Transactions(0, 0, 0, (), frozenset())
    ids = [broker.id for broker in node.brokers.values() if not broker.fenced]
    answers = await asyncio.gather(*(_Coordinator(client, id_).ask() for id_ in ids))
    known = [answer for answer in answers if answer is not None]
    described = [each for answer in known for each in answer.described]
    described.sort(key=lambda each: -each.open_ms)
    return Transactions(
        sum(answer.open for answer in known),
        sum(answer.preparing for answer in known),
        sum(each.is_late for each in described),
        tuple(described[:OLDEST_MAX]),
        frozenset(id_ for id_, answer in zip(ids, answers, strict=True) if answer is None),
    )


class _Coordinator:
    """What one broker says of the transactions that it coordinates."""

    def __init__(self, client: Cluster, broker_id: int) -> None:
        self.open = self.preparing = 0
        self.described: list[Transaction] = []
        self._id = broker_id
        self._client = client

    async def ask(self) -> _Coordinator | None:
        """Itself, None if the broker doesn't answer."""
        try:
            for listed in await self._list(-1):
                if listed.transaction_state == OPEN:
                    self.open += 1
                else:
                    self.preparing += 1
            if self.open or self.preparing:
                await self._describe(await self._longest())
        except FAILURES:
            return None
        return self

    async def _list(self, open_for_ms: int) -> Sequence[Any]:
        request = messages.ListTransactionsRequest(
            state_filters=list(STATES), duration_filter=open_for_ms
        )
        response = await self._client.request(request, node_id=self._id)
        check(response.error_code)
        found: Sequence[Any] = response.transaction_states
        return found

    async def _longest(self) -> list[str]:
        names: list[str] = []
        for open_for_ms in OPEN_FOR_MS:
            longer = [each.transactional_id for each in await self._list(open_for_ms)]
            if names and not longer:
                break
            names = longer
            if len(names) <= DESCRIBED_MAX:
                break
        return names[:DESCRIBED_MAX]

    async def _describe(self, names: Sequence[str]) -> None:
        for some in pieces(names):
            request = messages.DescribeTransactionsRequest(transactional_ids=list(some))
            response = await self._client.request(request, node_id=self._id)
            now_ms = int(time.time() * 1000)
            self.described += [
                Transaction(
                    each.transactional_id,
                    each.transaction_state,
                    self._id,
                    max(now_ms - each.transaction_start_time_ms, 0),
                    each.transaction_timeout_ms,
                    sum(len(topic.partitions) for topic in each.topics),
                )
                for each in response.transaction_states
                # It may be over since it was listed.
                if not each.error_code and each.transaction_state in STATES
            ]
