"""What the page asks of transactions: of brokers that may have very many, or say nothing."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from kraftpy.page.model import TRANSACTIONS_TOPIC, Broker, Node, Topic
from kraftpy.page.transactions import DESCRIBED_MAX, OLDEST_MAX, ask_transactions
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

NODE = Node(
    1,
    brokers={id_: Broker(id_, 7, "host", 9090, None, id_ == 3, False) for id_ in (1, 2, 3)},
    topics={TRANSACTIONS_TOPIC: Topic(TRANSACTIONS_TOPIC, True, 2, [])},
)
Known = dict[str, tuple[str, int]]
"""State and for how many seconds it is open, by transactional id."""


class Cluster:
    """Brokers with these transactions, all with a timeout of a minute."""

    def __init__(self, brokers: dict[int, Known | Exception]) -> None:
        self._brokers = brokers
        self.asked: list[tuple[int, Any]] = []

    async def request(self, request: Any, *, node_id: int) -> Any:
        self.asked.append((node_id, request))
        known = self._brokers[node_id]
        if isinstance(known, Exception):
            raise known
        if isinstance(request, ListTransactionsRequest):
            return self._listed(request, known)
        return self._described(request, known)

    def _listed(self, request: ListTransactionsRequest, known: Known) -> ListTransactionsResponse:
        return ListTransactionsResponse(
            transaction_states=[
                ListTransactionsResponse.TransactionState(name, 5, state)
                for name, (state, seconds) in known.items()
                if state in request.state_filters and 1000 * seconds > request.duration_filter
            ]
        )

    def _described(
        self, request: DescribeTransactionsRequest, known: Known
    ) -> DescribeTransactionsResponse:
        kind = DescribeTransactionsResponse
        states = []
        for name in request.transactional_ids:
            if name == "gone":
                states.append(
                    kind.TransactionState(
                        error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name
                    )
                )
                continue
            state, seconds = known[name]
            start_ms = int(1000 * (time.time() - seconds))
            topics = [kind.TopicData("a", [0, 1]), kind.TopicData("b", [0])]
            states.append(kind.TransactionState(0, name, state, 60_000, start_ms, 5, 0, topics))
        return kind(transaction_states=states)


async def ask(**brokers: Known | Exception) -> tuple[Any, Cluster]:
    cluster = Cluster({int(name[1:]): known for name, known in brokers.items()})
    return await ask_transactions(cast("Any", cluster), NODE), cluster


async def test_brokers_add_up_and_the_oldest_comes_first() -> None:
    found, cluster = await ask(
        b1={"a": ("Ongoing", 30), "b": ("Ongoing", 1), "c": ("CompleteCommit", 900)},
        b2={"d": ("PrepareAbort", 61), "gone": ("Ongoing", 20)},
    )
    assert (found.open, found.preparing, found.late, found.silent) == (3, 1, 1, frozenset())
    assert [(each.id, each.state, each.coordinator) for each in found.oldest] == [
        ("d", "PrepareAbort", 2),
        ("a", "Ongoing", 1),
    ]
    assert {(each.partitions, each.timeout_ms) for each in found.oldest} == {(3, 60_000)}
    assert 30_000 <= found.oldest[1].open_ms < 40_000
    assert {node for node, _ in cluster.asked} == {1, 2}


async def test_a_broker_that_says_nothing_is_said_to() -> None:
    found, _ = await ask(b1=ConnectionError("gone"), b2={"d": ("Ongoing", 1)})
    assert (found.open, found.silent) == (1, frozenset({1}))


async def test_where_there_was_no_transaction_nobody_is_asked() -> None:
    cluster = Cluster({})
    found = await ask_transactions(cast("Any", cluster), Node(1, brokers=NODE.brokers))
    assert (found.open, found.preparing, found.oldest) == (0, 0, ())
    assert cluster.asked == []


@pytest.mark.parametrize("old", [0, 5, DESCRIBED_MAX + 1])
async def test_however_many_there_are_so_many_are_described(old: int) -> None:
    """Those that are open for longest, if there are more than may be looked at."""
    many = {f"t-{number}": ("Ongoing", 20) for number in range(3 * DESCRIBED_MAX)}
    many |= {f"old-{number}": ("Ongoing", 700) for number in range(old)}
    found, cluster = await ask(b1=many, b2={})
    assert found.open == len(many)
    oldest = [each.id for each in found.oldest]
    assert len(oldest) == min(old or len(many), OLDEST_MAX)
    assert all(name.startswith("old") for name in oldest) == bool(old)
    described = [
        len(each.transactional_ids)
        for _, each in cluster.asked
        if isinstance(each, DescribeTransactionsRequest)
    ]
    assert sum(described) <= DESCRIBED_MAX
