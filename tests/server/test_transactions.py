"""Requests about transactions over the wire: what they are answered, and what is in the logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.core.transactions.records import TRANSACTIONAL_ID_MAX_BYTES
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from tests.server.test_produce import batch
from tests.server.test_transactional_batches import latest
from tests.server.wire import Wire, produce_request
from tests.waiting import wait_until

Producer = tuple[int, int]

TIMEOUT_MS = 60_000


class Id:
    """One transactional id, as a client of the first version uses it."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.name = name
        self._wire = wire
        self.producer = -1, -1

    def find(self, version: int = 4) -> E:
        request = m.FindCoordinatorRequest(
            key=self.name, key_type=1, coordinator_keys=[self.name] if version >= 4 else []
        )
        answer = self._wire.call(ApiKey.FIND_COORDINATOR, version, request)
        found = answer.coordinators[0] if version >= 4 else answer
        return E(found.error_code)

    def init(
        self, version: int = 4, timeout_ms: int = TIMEOUT_MS, producer: Producer = (-1, -1)
    ) -> E:
        """Again and again while the coordinator is away, as clients do."""
        request = m.InitProducerIdRequest(self.name, timeout_ms, *producer)
        answer = self._wire.call(ApiKey.INIT_PRODUCER_ID, version, request)
        if answer.error_code == E.NONE:
            self.producer = answer.producer_id, answer.producer_epoch
        return E(answer.error_code)

    def begin(self) -> Id:
        assert self.find() is E.NONE
        assert self.init() is E.NONE
        return self

    def add(self, *partitions: tuple[str, int], producer: Producer | None = None) -> list[E]:
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        producer_id, epoch = producer or self.producer
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic(name, [index]) for name, index in partitions],
        )
        answer = self._wire.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        return [
            E(each.partition_error_code)
            for topic_result in answer.results_by_topic_v3_and_below
            for each in topic_result.results_by_partition
        ]

    def end(self, *, commit: bool = True, producer: Producer | None = None) -> E:
        request = m.EndTxnRequest(self.name, *(producer or self.producer), committed=commit)
        return E(self._wire.call(ApiKey.END_TXN, 3, request).error_code)

    def write(
        self, topic: str, sequence: int = 0, *, version: int = 9, producer: Producer | None = None
    ) -> E:
        producer_id, epoch = producer or self.producer
        sent = batch(
            b"x",
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_request(topic, sent, acks=-1)
        request.transactional_id = self.name
        answer = self._wire.call(ApiKey.PRODUCE, version, request).responses[0]
        return E(answer.partition_responses[0].error_code)

    def described(self) -> Any:
        request = m.DescribeTransactionsRequest([self.name])
        answer = self._wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
        return answer.transaction_states[0]

    def wait_ended(self) -> None:
        wait_until(
            lambda: self.described().transaction_state.startswith(("Complete", "Empty")), "its end"
        )


@pytest.fixture
def transactional(wire: Wire, request: pytest.FixtureRequest) -> Id:
    return Id(wire, f"id-{request.node.name}")


def test_a_transaction(transactional: Id, wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    transactional.begin()
    assert transactional.add((topic, 0)) == [E.NONE]
    assert transactional.write(topic) is E.NONE
    assert transactional.write(topic, 1) is E.NONE
    found = transactional.described()
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", TIMEOUT_MS)
    assert (found.producer_id, found.producer_epoch) == transactional.producer
    assert [(each.topic, each.partitions) for each in found.topics] == [(topic, [0])]
    assert latest(wire, topic) == 0
    assert transactional.end() is E.NONE
    transactional.wait_ended()
    assert transactional.described().transaction_state == "CompleteCommit"
    assert latest(wire, topic) == 3
    # What comes late is of no transaction, until the next one has the partition.
    assert transactional.write(topic, 2) is E.INVALID_TXN_STATE
    assert transactional.end() is E.NONE  # a retry
    assert transactional.end(commit=False) is E.INVALID_TXN_STATE


def test_a_batch_of_no_transaction_is_refused(
    transactional: Id, wire: Wire, new_topic: Callable[..., str]
) -> None:
    topic, other = new_topic(), new_topic()
    transactional.begin()
    assert transactional.write(topic) is E.INVALID_TXN_STATE
    assert transactional.write(topic, version=11) is E.TRANSACTION_ABORTABLE
    assert transactional.add((other, 0)) == [E.NONE]
    assert transactional.write(topic) is E.INVALID_TXN_STATE
    assert transactional.write(other) is E.NONE
    assert transactional.end() is E.NONE
    transactional.wait_ended()
    assert (latest(wire, topic), latest(wire, other)) == (0, 2)


def test_ids_and_epochs_of_others(transactional: Id, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    transactional.begin()
    producer_id, epoch = transactional.producer
    another, later = (producer_id + 1000, epoch), (producer_id, epoch + 1)
    for wrong, error, epoch_error in (
        (another, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
        (later, E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH),
    ):
        assert transactional.add((topic, 0), producer=wrong) == [error]
        assert transactional.end(producer=wrong) is error
        assert transactional.write(topic, producer=wrong) is epoch_error
    assert transactional.init(producer=later) is E.PRODUCER_FENCED
    assert transactional.init(version=3, producer=later) is E.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    "name",
    ["", "x" * (TRANSACTIONAL_ID_MAX_BYTES + 1), "ü" * TRANSACTIONAL_ID_MAX_BYTES],
    ids=["empty", "long", "long text"],
)
def test_names_that_no_id_can_have(wire: Wire, new_topic: Callable[..., str], name: str) -> None:
    topic = new_topic()
    Id(wire, "somebody").begin()  # now there are coordinators
    nobody = Id(wire, name)
    nobody.producer = 1, 0
    assert nobody.find() is E.INVALID_REQUEST
    assert nobody.init() is E.INVALID_REQUEST
    assert nobody.add((topic, 0)) == [E.INVALID_REQUEST]
    assert nobody.end() is E.INVALID_REQUEST
    assert nobody.write(topic) is E.INVALID_REQUEST
    assert nobody.described().error_code == E.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_timeouts_that_nobody_may_ask_for(transactional: Id, timeout_ms: int) -> None:
    assert transactional.find() is E.NONE
    assert transactional.init(timeout_ms=timeout_ms) is E.INVALID_TRANSACTION_TIMEOUT
