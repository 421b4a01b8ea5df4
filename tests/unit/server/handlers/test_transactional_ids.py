"""Requests about transactions, in all their versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from kraftpy.server.handlers import transactional_ids as handlers
from tests.unit.server.coordination.fake_transactions import ID, FakeHost, leading, topic

Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction


class Client:
    """A broker's handlers, called as a client of a version would."""

    def __init__(self) -> None:
        self.host: FakeHost = leading()
        self.groups_error: E | None = None
        self.overlapped: list[int] = []
        self.broker: Any = SimpleNamespace(
            transactions=self.host.coordinator,
            groups=self,
            metadata=self.host.metadata,
            now_ms=self.host.now_ms,
        )

    async def index_of(self, group_id: str) -> int:
        if self.groups_error is not None:
            raise KafkaError(self.groups_error)
        return len(group_id)

    def context(self, version: int) -> Any:
        return SimpleNamespace(
            api_version=version,
            answer_full=False,
            many=False,
            session=SimpleNamespace(view=None),
            let_overlap=lambda: self.overlapped.append(version),
        )

    async def init(self, version: int = 4, name: str = ID, **fields: Any) -> tuple[E, int, int]:
        request = InitProducerIdRequest(name, 60_000, **fields)
        answer = await handlers.init_transactional_id(self.broker, self.context(version), request)
        return E(answer.error_code), answer.producer_id, answer.producer_epoch

    async def add(
        self, version: int, topics: dict[str, list[int]], epoch: int = 0, **fields: Any
    ) -> dict[tuple[str, int], E]:
        named = [Topic(name, indexes) for name, indexes in topics.items()]
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=1000,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=named,
            )
        else:
            asked = Transaction(ID, 1000, epoch, topics=named, **fields)
            request = AddPartitionsToTxnRequest(transactions=[asked])
        answer = await handlers.add_partitions_to_txn(self.broker, self.context(version), request)
        results = answer.results_by_topic_v3_and_below
        if version >= 4:
            (result,) = answer.results_by_transaction
            assert result.transactional_id == ID
            results = result.topic_results
        return {
            (each.name, partition.partition_index): E(partition.partition_error_code)
            for each in results
            for partition in each.results_by_partition
        }

    async def end(self, version: int, epoch: int = 0) -> tuple[E, int, int]:
        request = EndTxnRequest(ID, 1000, epoch, committed=True)
        answer = await handlers.end_txn(self.broker, self.context(version), request)
        return E(answer.error_code), answer.producer_id, answer.producer_epoch

    async def add_offsets(self, version: int, epoch: int = 0) -> E:
        request = AddOffsetsToTxnRequest(ID, 1000, epoch, "group")
        answer = await handlers.add_offsets_to_txn(self.broker, self.context(version), request)
        return E(answer.error_code)

    async def listed(self, **filters: Any) -> tuple[list[str], list[str]]:
        request = ListTransactionsRequest(**filters)
        answer = await handlers.list_transactions(self.broker, self.context(2), request)
        assert answer.error_code == E.NONE
        names = [each.transactional_id for each in answer.transaction_states]
        return sorted(names), answer.unknown_state_filters


async def test_init_producer_id() -> None:
    client = Client()
    assert await client.init() == (E.NONE, 1000, 0)
    assert await client.init(producer_id=1000, producer_epoch=0) == (E.NONE, 1000, 1)
    fenced = {"producer_id": 1000, "producer_epoch": 7}
    assert await client.init(**fenced) == (E.PRODUCER_FENCED, -1, -1)
    assert await client.init(3, **fenced) == (E.INVALID_PRODUCER_EPOCH, -1, -1)
    for half in ({"producer_id": 1000}, {"producer_epoch": 0}):
        assert await client.init(**half) == (E.INVALID_REQUEST, -1, -1)
    assert await client.init(name="") == (E.INVALID_REQUEST, -1, -1)
    client.host.replicas.led.clear()
    client.host.coordinator.refresh()
    assert await client.init() == (E.NOT_COORDINATOR, -1, -1)


@pytest.mark.parametrize("version", [0, 1, 3, 4, 5])
async def test_partitions_are_added_all_or_none(version: int) -> None:
    client = Client()
    a0, a1, a9, b0 = ("a", 0), ("a", 1), ("a", 9), ("b", 0)
    added = await client.add(version, {"a": [0]})
    assert added == {a0: E.INVALID_PRODUCER_ID_MAPPING}
    await client.init()
    added = await client.add(version, {"a": [0, 9], "b": [0]})
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert added == {a0: E.OPERATION_NOT_ATTEMPTED, a9: unknown, b0: unknown}
    assert client.host.state() == "Empty"
    assert await client.add(version, {"a": [0, 1]}) == {a0: E.NONE, a1: E.NONE}
    found = client.host.coordinator.describe(ID)
    assert found.partitions == {a0, a1}
    assert found.client_version == (2 if version >= 4 else 0)
    fenced = await client.add(version, {"a": [0]}, epoch=1)
    assert fenced == {a0: E.INVALID_PRODUCER_EPOCH if version < 2 else E.PRODUCER_FENCED}


async def test_brokers_may_only_ask() -> None:
    client = Client()
    await client.init()
    await client.add(3, {"a": [0]})
    asked = await client.add(4, {"a": [0, 1], "gone": [0]}, verify_only=True)
    abortable = E.TRANSACTION_ABORTABLE
    assert asked == {("a", 0): E.NONE, ("a", 1): abortable, ("gone", 0): abortable}
    assert client.overlapped == [4]  # a broker speaks for many
    assert client.host.coordinator.describe(ID).partitions == {("a", 0)}


@pytest.mark.parametrize(
    ("partitions", "together"),
    [
        ([1] * 250, [100, 100, 50]),
        ([400] * 5, [2, 2, 1]),
        ([5_000, 1, 5_000, 5_000, 1, 1], [1, 1, 1, 1, 2]),
        ([], []),
    ],
)
def test_few_of_very_many_partitions_are_judged_together(
    partitions: list[int], together: list[int]
) -> None:
    asked = [Transaction(ID, topics=[Topic("t", list(range(count)))]) for count in partitions]
    parts = list(handlers._together(asked))
    assert [len(some) for some in parts] == together
    assert [each for some in parts for each in some] == asked


async def test_many_are_answered_in_their_order() -> None:
    client = Client()
    await client.init()
    asked = [
        Transaction(f"{ID}{number}", 1000, 0, True, [Topic("t", list(range(600)))])
        for number in range(5)
    ]
    answer = await handlers.add_partitions_to_txn(
        client.broker, client.context(4), AddPartitionsToTxnRequest(transactions=asked)
    )
    results = answer.results_by_transaction
    assert [each.transactional_id for each in results] == [each.transactional_id for each in asked]
    assert [len(each.topic_results[0].results_by_partition) for each in results] == [600] * 5


async def test_the_partition_of_a_groups_offsets_is_added() -> None:
    client = Client()
    await client.init()
    assert await client.add_offsets(3) is E.NONE
    assert client.host.coordinator.describe(ID).partitions == {("__consumer_offsets", 5)}
    assert await client.add_offsets(1, epoch=1) is E.INVALID_PRODUCER_EPOCH
    assert await client.add_offsets(2, epoch=1) is E.PRODUCER_FENCED
    client.groups_error = E.COORDINATOR_NOT_AVAILABLE
    assert await client.add_offsets(3) is E.COORDINATOR_NOT_AVAILABLE


async def test_the_end() -> None:
    client = Client()
    await client.init()
    await client.add(3, {"a": [0]})
    assert await client.end(1, epoch=1) == (E.INVALID_PRODUCER_EPOCH, -1, -1)
    assert await client.end(2, epoch=1) == (E.PRODUCER_FENCED, -1, -1)
    assert (await client.end(3))[0] is E.NONE
    await client.host.reach("CompleteCommit")
    await client.add(4, {"a": [0]})
    assert await client.end(5) == (E.NONE, 1000, 1)


async def test_what_there_is() -> None:
    client = Client()
    await client.init()
    await client.init(name="idle-1")
    await client.init(name="other")
    client.host.metadata.topics["c"] = topic(1)
    await client.add(3, {"a": [1, 0], "c": [0]})
    request = DescribeTransactionsRequest([ID, "idle-1", ID, "nobody", ""])
    answer = await handlers.describe_transactions(client.broker, client.context(0), request)
    described = {each.transactional_id: each for each in answer.transaction_states}
    assert len(answer.transaction_states) == 4
    assert described["nobody"].error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert described[""].error_code == E.INVALID_REQUEST
    assert described["idle-1"].transaction_state == "Empty"
    assert described["idle-1"].transaction_start_time_ms == -1
    found = described[ID]
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == (
        "Ongoing",
        1000,
        0,
    )
    assert [(each.topic, each.partitions) for each in found.topics] == [("a", [0, 1]), ("c", [0])]
    assert await client.listed() == (["idle-1", "other", ID], [])
    assert await client.listed(state_filters=["Ongoing", "what"]) == ([ID], ["what"])
    assert await client.listed(state_filters=["what"]) == ([], ["what"])
    assert await client.listed(producer_id_filters=[1001]) == (["idle-1"], [])
    assert await client.listed(duration_filter=60_000) == ([], [])
    client.host.ahead_ms = 60_001
    assert await client.listed(duration_filter=60_000) == ([ID], [])
    assert await client.listed(transactional_id_pattern="idle-.*") == (["idle-1"], [])
    request_bad = ListTransactionsRequest(transactional_id_pattern="(")
    refused = await handlers.list_transactions(client.broker, client.context(2), request_bad)
    assert refused.error_code == E.INVALID_REGULAR_EXPRESSION
