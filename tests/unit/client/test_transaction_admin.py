"""What an operator's client asks about transactions, and how it reads the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import pytest

from kraftpy.client import cluster as cluster_module
from kraftpy.client.cluster import Cluster
from kraftpy.client.transaction_admin import (
    ActiveProducer,
    HangingTransaction,
    ListedTransaction,
    TransactionAdmin,
    TransactionInfo,
)
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .peer import HANG_UP, Peer, running

VERSIONS = {
    ApiKey.FIND_COORDINATOR: (0, 3),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.WRITE_TXN_MARKERS: (1, 1),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
}
LIST = messages.ListTransactionsResponse
DESCRIBED = messages.DescribeTransactionsResponse
PRODUCERS = messages.DescribeProducersResponse
NOW_MS = 10_000_000
MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between attempts are short."""
    monkeypatch.setattr(cluster_module, "RETRY_BACKOFF_MS", 1)


@pytest.fixture
def peer() -> Peer:
    peer = Peer({"t": 2})
    peer.versions |= VERSIONS

    def find(request: Any) -> Any:
        assert request.key_type == 1
        return messages.FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=peer.port)

    peer.answers[ApiKey.FIND_COORDINATOR] = find
    peer.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request: configs({})
    return peer


def ask(peer: Peer, work: Callable[[TransactionAdmin], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with running(peer), Cluster(peer.bootstrap, request_timeout_ms=5000) as cluster:
            return await work(TransactionAdmin(cluster, timeout_ms=5000))

    return asyncio.run(run())


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    """One answer after the other; one that is a function is called with the request."""
    left = list(answers)

    def answer(request: Any) -> Any:
        this = left.pop(0)
        return this(request) if callable(this) else this

    return answer


def listed(*ids: str, producer_id: int = 5) -> Any:
    return LIST(
        transaction_states=[LIST.TransactionState(each, producer_id, "Ongoing") for each in ids]
    )


def described(
    partitions: Iterable[int] = (), *, error: int = 0, epoch: int = 3, state: str = "Ongoing"
) -> Any:
    return DESCRIBED(
        transaction_states=[
            DESCRIBED.TransactionState(
                error_code=error,
                transactional_id="mine",
                transaction_state=state,
                transaction_timeout_ms=60_000,
                transaction_start_time_ms=77,
                producer_id=5,
                producer_epoch=epoch,
                topics=[DESCRIBED.TopicData("t", list(partitions))] if partitions else [],
            )
        ]
    )


def active(
    producer_id: int, start: int = -1, *, epoch: int = 3, at_ms: int = 0, coordinator: int = -1
) -> Any:
    return PRODUCERS.ProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=8,
        last_timestamp=at_ms,
        coordinator_epoch=coordinator,
        current_txn_start_offset=start,
    )


def producers(by_partition: Mapping[int, list[Any]], error: int = 0) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        return PRODUCERS(
            topics=[
                PRODUCERS.TopicResponse(
                    name=topic.name,
                    partitions=[
                        PRODUCERS.PartitionResponse(
                            partition_index=number,
                            error_code=error,
                            active_producers=by_partition.get(number, []),
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    return answer


def configs(values: Mapping[str, str]) -> Any:
    kinds = messages.DescribeConfigsResponse
    entries = [
        kinds.DescribeConfigsResourceResult(name=name, value=value)
        for name, value in values.items()
    ]
    return kinds(
        results=[kinds.DescribeConfigsResult(resource_type=4, resource_name="1", configs=entries)]
    )


# -- coordinators


def test_transactions_are_listed_by_id(peer: Peer) -> None:
    peer.answers[ApiKey.LIST_TRANSACTIONS] = in_turn(
        LIST(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), HANG_UP, listed("b", "a")
    )

    def work(admin: TransactionAdmin) -> Awaitable[Any]:
        return admin.list_transactions(states=["Ongoing"], producer_ids=[5], open_for_ms=9)

    assert ask(peer, work) == [
        ListedTransaction("a", 1, 5, "Ongoing"),
        ListedTransaction("b", 1, 5, "Ongoing"),
    ]
    *_, request = peer.asked(ApiKey.LIST_TRANSACTIONS)
    assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [5])
    assert request.duration_filter == 9


def test_a_filter_that_a_broker_does_not_know_is_refused_not_forgotten(peer: Peer) -> None:
    peer.versions[ApiKey.LIST_TRANSACTIONS] = (0, 0)
    peer.answers[ApiKey.LIST_TRANSACTIONS] = lambda request: listed("a")
    with pytest.raises(KafkaError, match="how long transactions are open"):
        ask(peer, lambda admin: admin.list_transactions(open_for_ms=9))
    assert len(ask(peer, lambda admin: admin.list_transactions())) == 1


def test_a_transaction_is_described_by_its_coordinator(peer: Peer) -> None:
    peer.answers[ApiKey.DESCRIBE_TRANSACTIONS] = in_turn(
        described(error=ErrorCode.NOT_COORDINATOR), described([1, 0])
    )
    found = ask(peer, lambda admin: admin.describe_transaction("mine"))
    partitions = (("t", 0), ("t", 1))
    assert found == TransactionInfo("mine", 1, 5, 3, "Ongoing", 60_000, 77, partitions)
    assert len(peer.asked(ApiKey.FIND_COORDINATOR)) == 2


def test_terminating_takes_the_id_over(peer: Peer) -> None:
    kinds = messages.InitProducerIdResponse
    peer.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda request: described()
    peer.answers[ApiKey.INIT_PRODUCER_ID] = in_turn(
        kinds(error_code=ErrorCode.CONCURRENT_TRANSACTIONS), kinds(producer_id=5, producer_epoch=4)
    )
    ask(peer, lambda admin: admin.terminate("mine"))
    requests = peer.asked(ApiKey.INIT_PRODUCER_ID)
    assert [(r.transactional_id, r.producer_id) for r in requests] == [("mine", -1)] * 2


def test_terminating_makes_no_id(peer: Peer) -> None:
    answer = described(error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    peer.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda request: answer
    with pytest.raises(KafkaError) as caught:
        ask(peer, lambda admin: admin.terminate("mine"))
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert not peer.asked(ApiKey.INIT_PRODUCER_ID)


# -- partitions


def test_who_writes_to_a_partition(peer: Peer) -> None:
    there = {1: [active(5, 40, coordinator=2), active(6)]}
    moved = producers({}, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    peer.answers[ApiKey.DESCRIBE_PRODUCERS] = in_turn(moved, producers(there))
    assert ask(peer, lambda admin: admin.describe_producers(("t", 1))) == [
        ActiveProducer(5, 3, 8, 0, 2, 40),
        ActiveProducer(6, 3, 8, 0, -1, -1),
    ]


def test_a_topic_that_is_not_there_has_no_producers(peer: Peer) -> None:
    with pytest.raises(KafkaError) as caught:
        ask(peer, lambda admin: admin.describe_producers(("missing", 0)))
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_the_transaction_that_begins_there_is_aborted(peer: Peer) -> None:
    kinds = messages.WriteTxnMarkersResponse

    def written(code: int) -> Any:
        partition = kinds.WritableTxnMarkerPartitionResult(1, code)
        topic = kinds.WritableTxnMarkerTopicResult("t", [partition])
        return kinds([kinds.WritableTxnMarkerResult(5, [topic])])

    there = {1: [active(6, 41), active(5, 40, coordinator=2), active(7, 7)]}
    peer.answers[ApiKey.DESCRIBE_PRODUCERS] = producers(there)
    peer.answers[ApiKey.WRITE_TXN_MARKERS] = in_turn(
        written(ErrorCode.NOT_LEADER_OR_FOLLOWER), written(0), written(0)
    )
    assert ask(peer, lambda admin: admin.abort(("t", 1), 40)).producer_id == 5
    ask(peer, lambda admin: admin.abort(("t", 1), 7))
    _, again, other = peer.asked(ApiKey.WRITE_TXN_MARKERS)
    (marker,) = again.markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 3, 2)
    assert marker.transaction_result is False
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [1])]
    assert other.markers[0].coordinator_epoch == 0  # none ended a transaction there before
    with pytest.raises(KafkaError, match="begins at offset 8"):
        ask(peer, lambda admin: admin.abort(("t", 1), 8))
    assert len(peer.asked(ApiKey.WRITE_TXN_MARKERS)) == 3


# -- transactions that hang


def hanging(peer: Peer, open_for_ms: int | None = None) -> list[HangingTransaction]:
    found: list[HangingTransaction] = ask(
        peer, lambda admin: admin.hanging(now_ms=NOW_MS, open_for_ms=open_for_ms)
    )
    return found


@pytest.mark.parametrize(
    ("owner", "hangs"),
    [
        (described([0, 1]), False),
        (described([0, 1], epoch=4), False),
        (described([0, 1], epoch=2), True),  # no marker of an older epoch is taken
        (described([0]), True),
        (described([], state="Empty"), True),
        (described(error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), True),
        (None, True),
    ],
)
def test_a_transaction_hangs_where_its_coordinator_does_not_know_it(
    peer: Peer, owner: Any, hangs: bool
) -> None:
    peer.answers[ApiKey.DESCRIBE_PRODUCERS] = producers({1: [active(5, 40), active(6)]})
    answer = listed() if owner is None else listed("mine")
    peer.answers[ApiKey.LIST_TRANSACTIONS] = lambda request: answer
    peer.answers[ApiKey.DESCRIBE_TRANSACTIONS] = lambda request: owner
    found = hanging(peer, open_for_ms=0)
    assert [(each.partition, each.producer.transaction_start) for each in found] == (
        [(("t", 1), 40)] if hangs else []
    )
    if found:
        known = owner is not None and not owner.transaction_states[0].error_code
        assert found[0].id == ("mine" if known else None)
    (request,) = peer.asked(ApiKey.LIST_TRANSACTIONS)
    assert request.producer_id_filters == [5]


@pytest.mark.parametrize(
    ("values", "longest_ms"),
    [({}, 15 * MINUTE_MS), ({"transaction.max.timeout.ms": "120000"}, 2 * MINUTE_MS)],
)
def test_what_may_still_be_ended_does_not_hang(
    peer: Peer, values: dict[str, str], longest_ms: int
) -> None:
    peer.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request: configs(values)
    peer.answers[ApiKey.LIST_TRANSACTIONS] = lambda request: listed()
    limit_ms = NOW_MS - longest_ms - 5 * MINUTE_MS
    there = {0: [active(5, 40, at_ms=limit_ms)], 1: [active(6, 41, at_ms=limit_ms - 1)]}
    peer.answers[ApiKey.DESCRIBE_PRODUCERS] = producers(there)
    assert [each.producer.producer_id for each in hanging(peer)] == [6]


def test_coordinators_are_not_asked_when_nothing_is_open(peer: Peer) -> None:
    peer.answers[ApiKey.DESCRIBE_PRODUCERS] = producers({0: [active(5)], 1: []})
    assert hanging(peer) == []
    assert not peer.asked(ApiKey.LIST_TRANSACTIONS)
