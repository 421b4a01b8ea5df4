"""What leaders ask coordinators, here and elsewhere, and what producers are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.connection import ConnectionLostError
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kraftpy.server.coordination import transaction_questions
from kraftpy.server.coordination.transaction_coordinator import TRANSACTIONS_TOPIC
from kraftpy.server.coordination.transaction_questions import TransactionQuestions
from tests.unit.server.coordination.fake_transactions import (
    ID,
    LOCAL,
    PARTITIONS,
    REMOTE,
    FakeHost,
    topic,
)

PRODUCER = (1000, 0)
OLD, WITH_ABORTABLE, NEW = 9, 11, 12


class AskingHost(FakeHost):
    """`asked` has the requests to broker 2, which answers what is in `said`, and NONE then."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self.transactions = self.coordinator
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.said: list[E | Exception] = []
        self.leaves_out: set[int] = set()
        self.questions = TransactionQuestions(self)

    async def request(self, node_id: int, lane: object, message: Any, *, timeout_ms: int) -> Any:
        assert node_id == 2
        self.asked.append(message)
        await asyncio.sleep(0)
        said = self.said.pop(0) if self.said else E.NONE
        if isinstance(said, Exception):
            raise said
        kinds = AddPartitionsToTxnResponse
        return kinds(
            results_by_transaction=[
                kinds.AddPartitionsToTxnResult(
                    each.transactional_id,
                    [
                        kinds.AddPartitionsToTxnTopicResult(
                            named.name,
                            [
                                kinds.AddPartitionsToTxnPartitionResult(index, said)
                                for index in named.partitions
                                if index not in self.leaves_out
                            ],
                        )
                        for named in each.topics
                    ],
                )
                for each in message.transactions
            ]
        )

    async def admit(self, version: int, partition: tuple[str, int] = LOCAL) -> E:
        return (await self.questions.admit(ID, PRODUCER, [partition], version))[partition]


def here() -> AskingHost:
    host = AskingHost()
    host.lead()
    return host


def elsewhere() -> AskingHost:
    host = AskingHost()
    host.metadata.topics[TRANSACTIONS_TOPIC] = topic(*[2] * PARTITIONS)
    return host


async def test_the_coordinator_is_here() -> None:
    host = here()
    assert await host.admit(OLD) is E.INVALID_PRODUCER_ID_MAPPING
    await host.open()
    assert await host.admit(OLD) is E.NONE
    assert await host.admit(OLD, ("b", 0)) is E.INVALID_TXN_STATE
    assert await host.admit(WITH_ABORTABLE, ("b", 0)) is E.TRANSACTION_ABORTABLE
    assert await host.admit(NEW, ("b", 0)) is E.NONE
    assert host.coordinator.describe(ID).partitions == {LOCAL, REMOTE, ("b", 0)}
    host.replicas.led.clear()
    host.coordinator.refresh()
    assert await host.admit(OLD) is E.NOT_ENOUGH_REPLICAS


async def test_what_is_asked_together_is_one_request() -> None:
    host = elsewhere()
    asks = [
        host.questions.admit(name, (1, epoch), partitions, version)
        for name, epoch, version, partitions in (
            ("t", 0, NEW, [LOCAL]),
            ("t", 0, NEW, [REMOTE, LOCAL]),
            ("u", 0, OLD, [LOCAL]),
            ("t", 1, NEW, [LOCAL]),
        )
    ]
    one = {LOCAL: E.NONE}
    assert await asyncio.gather(*asks) == [one, {REMOTE: E.NONE, **one}, one, one]
    first, second = host.asked
    assert [
        (each.transactional_id, each.producer_epoch, each.verify_only)
        for each in first.transactions
    ] == [("t", 0, False), ("u", 0, True)]
    assert [each.partitions for each in first.transactions[0].topics] == [[0, 1]]
    assert [each.producer_epoch for each in second.transactions] == [1]


@pytest.mark.parametrize(
    ("said", "old", "with_abortable", "new"),
    [
        (E.NONE, E.NONE, E.NONE, E.NONE),
        (E.PRODUCER_FENCED, *[E.INVALID_PRODUCER_EPOCH] * 3),
        (E.NOT_COORDINATOR, *[E.NOT_ENOUGH_REPLICAS] * 3),
        (E.COORDINATOR_LOAD_IN_PROGRESS, *[E.NOT_ENOUGH_REPLICAS] * 3),
        (ConnectionLostError("gone"), *[E.NOT_ENOUGH_REPLICAS] * 3),
        (KafkaError(E.UNSUPPORTED_VERSION), *[E.NOT_ENOUGH_REPLICAS] * 3),
        (
            E.TRANSACTION_ABORTABLE,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_ABORTABLE,
            E.TRANSACTION_ABORTABLE,
        ),
        (E.INVALID_PRODUCER_ID_MAPPING, *[E.INVALID_PRODUCER_ID_MAPPING] * 3),
    ],
)
async def test_what_producers_are_told(
    said: E | Exception, old: E, with_abortable: E, new: E
) -> None:
    for version, told in ((OLD, old), (WITH_ABORTABLE, with_abortable), (NEW, new)):
        host = elsewhere()
        host.said = [said]
        assert await host.admit(version) is told
        assert host.asked[0].transactions[0].verify_only is (version < NEW)


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (E.NONE, 3, E.NONE),
        (E.PRODUCER_FENCED, 3, E.INVALID_PRODUCER_EPOCH),
        (E.NOT_COORDINATOR, 3, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.COORDINATOR_LOAD_IN_PROGRESS, 4, E.COORDINATOR_LOAD_IN_PROGRESS),
        (ConnectionLostError("gone"), 3, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.CONCURRENT_TRANSACTIONS, 4, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.TRANSACTION_ABORTABLE, 3, E.INVALID_TXN_STATE),
        (E.TRANSACTION_ABORTABLE, 4, E.TRANSACTION_ABORTABLE),
    ],
)
async def test_what_is_told_of_offsets(said: E | Exception, version: int, told: E) -> None:
    host = elsewhere()
    host.said = [said]
    answers = await host.questions.admit_offsets(ID, PRODUCER, [LOCAL], version)
    assert answers == {LOCAL: told}
    assert host.asked[0].transactions[0].verify_only


async def test_markers_that_are_out_are_waited_for_by_those_who_can() -> None:
    host = elsewhere()
    host.said = [E.CONCURRENT_TRANSACTIONS] * 3
    assert await host.admit(NEW) is E.NONE
    assert len(host.asked) == 4
    host.said = [E.CONCURRENT_TRANSACTIONS] * 1000
    assert await host.admit(NEW) is E.CONCURRENT_TRANSACTIONS
    assert 8 < len(host.asked) < 20
    asked = len(host.asked)
    assert await host.admit(WITH_ABORTABLE) is E.NOT_ENOUGH_REPLICAS
    assert len(host.asked) == asked + 1


async def test_old_producers_may_go_unasked() -> None:
    host = AskingHost(**{"transaction.partition.verification.enable": "false"})
    assert await host.admit(WITH_ABORTABLE) is E.NONE
    assert await host.admit(NEW) is E.NOT_ENOUGH_REPLICAS, "nobody coordinates"


async def test_an_answer_that_leaves_something_out() -> None:
    host = elsewhere()
    host.leaves_out = {1}
    errors = await asyncio.gather(host.admit(NEW), host.admit(NEW, REMOTE))
    assert errors == [E.NONE, E.NOT_ENOUGH_REPLICAS]


async def test_nobody_to_ask() -> None:
    host = elsewhere()
    host.metadata.topics[TRANSACTIONS_TOPIC] = topic(*[-1] * PARTITIONS)
    assert await host.admit(NEW) is E.NOT_ENOUGH_REPLICAS
    del host.metadata.topics[TRANSACTIONS_TOPIC]
    assert await host.admit(NEW) is E.NOT_ENOUGH_REPLICAS
    assert host.asked == []


async def test_so_many_questions_are_open_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_questions, "OPEN_MAX", 3)
    host = elsewhere()
    errors = await asyncio.gather(*(host.admit(NEW, ("a", index)) for index in range(5)))
    assert errors == [E.NONE] * 3 + [E.NOT_ENOUGH_REPLICAS] * 2
    assert host.questions.answers == {E.NONE: 3, E.COORDINATOR_NOT_AVAILABLE: 2}
    assert await host.admit(NEW) is E.NONE


async def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_questions, "REQUEST_MAX", 2)
    host = elsewhere()
    asks = [host.questions.admit(f"t-{n}", (1, 0), [LOCAL], NEW) for n in range(5)]
    assert await asyncio.gather(*asks) == [{LOCAL: E.NONE}] * 5
    assert [len(each.transactions) for each in host.asked] == [2, 2, 1]


async def test_a_coordinator_here_may_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody has to be waited for, and for so many in a turn of the loop."""
    monkeypatch.setattr(transaction_questions, "AT_ONCE_MAX", 3)
    host = here()
    producer = await host.open()
    asks = [host.questions.admit(ID, producer, [("b", index)], NEW) for index in range(5)]
    assert [each.done() for each in asks] == [True] * 3 + [False] * 2
    assert host.coordinator.describe(ID).partitions >= {("b", 0), ("b", 1), ("b", 2)}
    assert await asyncio.gather(*asks) == [{("b", index): E.NONE} for index in range(5)]
    assert host.questions.admit(ID, producer, [("b", 5)], NEW).done()


async def test_replicas_are_waited_for() -> None:
    host = here()
    producer = await host.open()
    host.replicas.holds = True
    first = host.questions.admit(ID, producer, [("b", 0)], NEW)
    while not host.replicas.held:
        await asyncio.sleep(0)
    second = host.questions.admit(ID, producer, [("b", 1)], NEW)
    assert not first.done()
    assert not second.done()
    host.replicas.holds = False
    for future, offset in host.replicas.held:
        future.set_result(offset)
    assert await asyncio.gather(first, second) == [{("b", 0): E.NONE}, {("b", 1): E.NONE}]


async def test_who_asked_may_leave() -> None:
    host = elsewhere()
    asked = host.questions.admit(ID, PRODUCER, [LOCAL], NEW)
    await asyncio.sleep(0)
    asked.cancel()
    assert await host.admit(NEW) is E.NONE
    assert host.questions.answers == {E.NONE: 2}
