"""The transactional producer: what it makes sure of, whatever becomes of its requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.batches import EncodedRecords
from kraftpy.client.transactional_producer import (
    OutcomeUnknownError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalProducer,
)
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import RECORD_BATCH_OVERHEAD, build_batch, read_batch_header

from .transaction_peer import PID, Fault, TransactionPeer, refused_once
from .transactional_work import GROUP, OFFSETS, STORED, is_first, produce, write_all

pytestmark = pytest.mark.usefixtures("quick")

ALL_STEPS = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.PRODUCE,
    ApiKey.END_TXN,
)
ONLY_FIRST = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)


def of_both_versions(*rows: tuple[Any, ...]) -> list[Any]:
    """These parameters with a broker of each version, as far as it is asked for that."""
    found = []
    for second in (False, True):
        for row in rows:
            if second and row[0] in ONLY_FIRST:
                continue
            names = [each.name for each in row]
            name = "-".join(["second" if second else "first", *names])
            found.append(pytest.param(second, *row, id=name))
    return found


# -- without faults


def test_the_protocol_is_that_of_the_feature(peer: TransactionPeer) -> None:
    async def work(producer: TransactionalProducer) -> None:
        await write_all(producer, b"a")

    produce(peer, work)
    versions = {key: version for key, version, _ in peer.requests}
    first = is_first(peer)
    for key in ONLY_FIRST:
        assert (key in versions) == first
    assert versions[ApiKey.PRODUCE] == (11 if first else 12)
    assert versions[ApiKey.END_TXN] == (4 if first else 5)
    assert versions[ApiKey.TXN_OFFSET_COMMIT] == (4 if first else 5)
    assert (peer.committed(), peer.group_offsets) == ([b"a", b"a"], STORED)
    (commit,) = peer.asked(ApiKey.TXN_OFFSET_COMMIT)
    assert (commit.generation_id, commit.member_id, commit.group_instance_id) == (3, "m", "i")
    assert {request.transactional_id for request in peer.asked(ApiKey.PRODUCE)} == {"mine"}


def test_partitions_are_announced_once_in_a_transaction() -> None:
    peer = TransactionPeer({"t": 2}, second_version=False)

    async def work(producer: TransactionalProducer) -> None:
        for _ in range(2):
            async with producer.transaction():
                for number in range(4):
                    await producer.send("t", b"v", partition=number % 2)
                    await producer.flush()
                for _ in range(2):
                    await producer.send_offsets_to_transaction(OFFSETS, GROUP)

    produce(peer, work)
    added = [
        (topic.name, number)
        for request in peer.asked(ApiKey.ADD_PARTITIONS_TO_TXN)
        for topic in request.v3_and_below_topics
        for number in topic.partitions
    ]
    assert sorted(added) == [("t", 0), ("t", 0), ("t", 1), ("t", 1)]
    assert len(peer.asked(ApiKey.ADD_OFFSETS_TO_TXN)) == 2
    # The epoch lasts, and so do its sequence numbers.
    headers = [read_batch_header(raw) for raw in peer.raw_batches]
    assert {header.producer_epoch for header in headers} == {0}
    assert sorted(header.base_sequence for header in headers) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_in_the_second_version_each_transaction_has_an_epoch() -> None:
    peer = TransactionPeer({"t": 1})

    async def work(producer: TransactionalProducer) -> None:
        for _ in range(3):
            async with producer.transaction():
                await producer.send("t", b"v")

    produce(peer, work)
    headers = [read_batch_header(raw) for raw in peer.raw_batches]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [
        (PID, 0, 0),
        (PID, 1, 0),
        (PID, 2, 0),
    ]
    assert len(peer.asked(ApiKey.INIT_PRODUCER_ID)) == 1


def test_a_transaction_without_anything_in_it_ends_here_alone(peer: TransactionPeer) -> None:
    async def work(producer: TransactionalProducer) -> None:
        async with producer.transaction():
            await producer.send_offsets_to_transaction({}, GROUP)
        await producer.begin_transaction()
        delivery = await producer.send("t", b"never", partition=0)
        # It is dropped before the sender has had a turn.
        await producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            await delivery

    produce(peer, work)
    assert not peer.asked(ApiKey.END_TXN)
    assert not peer.asked(ApiKey.PRODUCE)


def test_records_that_are_encoded_already_are_part_of_it(peer: TransactionPeer) -> None:
    data = build_batch([(5, None, b"e", [])])[RECORD_BATCH_OVERHEAD:]

    async def work(producer: TransactionalProducer) -> None:
        async with producer.transaction():
            await producer.send_encoded("t", 0, EncodedRecords(data, 1, 5))

    produce(peer, work)
    assert peer.committed() == [b"e"]


def test_outside_of_a_transaction_nothing_can_be_done(peer: TransactionPeer) -> None:
    async def work(producer: TransactionalProducer) -> None:
        for attempt in (
            lambda: producer.send("t", b"v"),
            lambda: producer.send_offsets_to_transaction(OFFSETS, GROUP),
            producer.commit_transaction,
            producer.abort_transaction,
        ):
            with pytest.raises(RuntimeError, match="no transaction is open"):
                await attempt()
        await producer.begin_transaction()
        with pytest.raises(RuntimeError, match="commit or abort it first"):
            await producer.begin_transaction()

    produce(peer, work)
    assert not peer.asked(ApiKey.PRODUCE)


def test_while_one_task_ends_a_transaction_others_add_nothing(peer: TransactionPeer) -> None:
    """Else that would be in the next one, which may be aborted."""

    async def work(producer: TransactionalProducer) -> None:
        refused: list[str] = []

        async def go_on() -> None:
            while True:
                try:
                    await producer.send("t", b"b", partition=1)
                except RuntimeError as error:
                    refused.append(str(error))
                    return

        for _ in range(3):
            await producer.begin_transaction()
            other = asyncio.create_task(go_on())
            delivery = await producer.send("t", b"a", partition=0)
            await producer.commit_transaction()
            assert (await delivery).offset >= 0
            await other
        assert [each.partition(":")[0] for each in refused] == [
            "the transaction is being committed"
        ] * 3

    produce(peer, work)


def test_a_transaction_is_begun_by_one_task(peer: TransactionPeer) -> None:
    async def work(producer: TransactionalProducer) -> None:
        said = await asyncio.gather(
            producer.begin_transaction(), producer.begin_transaction(), return_exceptions=True
        )
        assert said[0] is None
        assert str(said[1]) == "the transaction is being begun by another task"
        await producer.send("t", b"a")
        await producer.commit_transaction()

    produce(peer, work)
    assert len(peer.asked(ApiKey.INIT_PRODUCER_ID)) == 1


def test_a_producer_that_is_closed_aborts(peer: TransactionPeer) -> None:
    async def work(producer: TransactionalProducer) -> None:
        await producer.begin_transaction()
        await (await producer.send("t", b"v"))

    produce(peer, work)
    assert [request.committed for request in peer.asked(ApiKey.END_TXN)] == [False]
    assert (peer.committed(), peer.open_runs()) == ([], 0)


def test_an_exception_aborts_and_goes_on(peer: TransactionPeer) -> None:
    async def work(producer: TransactionalProducer) -> None:
        async def fail() -> None:
            async with producer.transaction():
                await (await producer.send("t", b"never"))
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail()
        await write_all(producer, b"a")

    produce(peer, work)
    assert (peer.committed(), peer.open_runs()) == ([b"a", b"a"], 0)


# -- what passes


RETRIABLE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
PASSING: list[tuple[ApiKey, Fault | ErrorCode]] = [
    *((key, code) for key in ALL_STEPS if key != ApiKey.PRODUCE for code in RETRIABLE),
    (ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ApiKey.PRODUCE, ErrorCode.CONCURRENT_TRANSACTIONS),
    *((key, fault) for key in (*ALL_STEPS, ApiKey.FIND_COORDINATOR) for fault in Fault),
]
# The first one takes the id from whoever has it when it comes: from this producer, if it is late.
PASSING.remove((ApiKey.INIT_PRODUCER_ID, Fault.LATE))


@pytest.mark.parametrize(("second", "key", "fault"), of_both_versions(*PASSING))
def test_what_passes_is_tried_again(second: bool, key: ApiKey, fault: Fault | ErrorCode) -> None:
    peer = TransactionPeer({"t": 2}, second_version=second)
    peer.fail(key, fault, None)

    async def work(producer: TransactionalProducer) -> None:
        await write_all(producer, b"a")
        await write_all(producer, b"b")

    produce(peer, work)
    assert len(peer.asked(key)) >= 2
    assert sorted(peer.committed()) == [b"a", b"a", b"b", b"b"]
    assert (peer.group_offsets, peer.open_runs()) == (STORED, 0)
    if fault in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        assert len(peer.asked(ApiKey.FIND_COORDINATOR)) >= 3  # one is the group's


def test_what_ends_the_transaction_before_takes_its_time(peer: TransactionPeer) -> None:
    peer.busy = lambda: 3

    async def work(producer: TransactionalProducer) -> None:
        for number in range(5):
            await write_all(producer, b"%d" % number)

    produce(peer, work)
    assert sorted(peer.committed()) == sorted(b"%d" % n for n in range(5) for _ in range(2))
    assert len(peer.asked(ApiKey.INIT_PRODUCER_ID)) == 1


@pytest.mark.parametrize(
    "key", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN], ids=lambda key: key.name
)
def test_what_may_come_late_meets_a_new_epoch_in_the_first_version(key: ApiKey) -> None:
    """A late EndTxn would end the next transaction, a late AddPartitions begin one."""
    peer = TransactionPeer({"t": 1}, second_version=False)
    peer.fail(key, Fault.LATE, None)
    peer.late_by = lambda: 6  # behind the next transaction's partition and its record

    async def work(producer: TransactionalProducer) -> None:
        async with producer.transaction():
            await producer.send("t", b"a")
        async with producer.transaction():
            await (await producer.send("t", b"b"))
            for _ in range(4):
                await producer.send_offsets_to_transaction(OFFSETS, GROUP)
            assert peer.committed() == [b"a"]

    produce(peer, work)
    assert peer.committed() == [b"a", b"b"]
    first, again = peer.asked(ApiKey.INIT_PRODUCER_ID)
    assert (first.producer_id, again.producer_id, again.producer_epoch) == (-1, PID, 0)
    assert peer.ids["mine"].state == "CompleteCommit"


# -- what doesn't


@pytest.mark.parametrize(("second", "key"), of_both_versions(*((key,) for key in ALL_STEPS)))
def test_a_producer_that_is_fenced_does_nothing_more(second: bool, key: ApiKey) -> None:
    peer = TransactionPeer({"t": 2}, second_version=second)
    peer.fail(key, ErrorCode.PRODUCER_FENCED)
    if key == ApiKey.PRODUCE:  # who produces hears it from the coordinator
        peer.fail(ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED)

    async def work(producer: TransactionalProducer) -> None:
        with pytest.raises(KafkaError) as caught:
            await write_all(producer, b"never")
        assert caught.value.code is ErrorCode.PRODUCER_FENCED
        asked = len(peer.requests)
        for attempt in (producer.begin_transaction, producer.commit_transaction):
            with pytest.raises(ProducerFencedError, match="close this producer"):
                await attempt()
        with pytest.raises(ProducerFencedError):
            await producer.send("t", b"v")
        assert len(peer.requests) == asked

    produce(peer, work)
    assert peer.committed() == []


FAILING = [
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (ApiKey.PRODUCE, ErrorCode.UNKNOWN_PRODUCER_ID),
    (ApiKey.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ApiKey.PRODUCE, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.PRODUCE, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE),
    (ApiKey.END_TXN, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE),
]


@pytest.mark.parametrize(("second", "key", "code"), of_both_versions(*FAILING))
def test_what_fails_aborts_and_the_next_transaction_goes_on(
    second: bool, key: ApiKey, code: ErrorCode
) -> None:
    peer = TransactionPeer({"t": 2}, second_version=second)
    peer.fail(key, *refused_once(code))

    async def work(producer: TransactionalProducer) -> None:
        with pytest.raises(KafkaError) as caught:
            await write_all(producer, b"never")
        assert caught.value.code is code
        assert [request.committed for request in peer.asked(ApiKey.END_TXN)][-1] is False
        await write_all(producer, b"then")

    produce(peer, work)
    assert (peer.committed(), peer.open_runs()) == ([b"then", b"then"], 0)
    again = peer.asked(ApiKey.INIT_PRODUCER_ID)[1:]
    if is_first(peer) and key != ApiKey.END_TXN:
        assert [(request.producer_id, request.producer_epoch) for request in again] == [(PID, 0)]
    elif not is_first(peer):
        assert not again


def test_behind_a_record_that_failed_nothing_is_sent(peer: TransactionPeer) -> None:
    peer.fail(ApiKey.PRODUCE, *refused_once(ErrorCode.MESSAGE_TOO_LARGE))
    small = build_batch([(5, None, b"small", [])])[RECORD_BATCH_OVERHEAD:]

    async def work(producer: TransactionalProducer) -> None:
        await producer.begin_transaction()
        first = await producer.send("t", b"large", partition=0)
        second = await producer.send_encoded("t", 0, EncodedRecords(small, 1, 5))
        for delivery in (first, second):
            with pytest.raises(KafkaError) as caught:
                await delivery
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        for attempt in (lambda: producer.send("t", b"more"), producer.commit_transaction):
            with pytest.raises(KafkaError) as caught:
                await attempt()
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        await producer.abort_transaction()

    produce(peer, work)
    assert len(peer.asked(ApiKey.PRODUCE)) == 1


def test_what_an_old_broker_cannot_continue_ends(peer: TransactionPeer) -> None:
    """Without naming its epoch it would fence whoever has replaced it."""
    peer.versions[ApiKey.INIT_PRODUCER_ID] = (0, 2)
    peer.features = {}
    peer.fail(ApiKey.PRODUCE, *refused_once(ErrorCode.MESSAGE_TOO_LARGE))

    async def work(producer: TransactionalProducer) -> None:
        with pytest.raises(KafkaError):
            await write_all(producer, b"never")
        with pytest.raises(KafkaError, match="begin anew"):
            await producer.begin_transaction()

    produce(peer, work)
    assert len(peer.asked(ApiKey.INIT_PRODUCER_ID)) == 1


# -- ends that nobody answers


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNANSWERED], ids=lambda fault: fault.name)
def test_a_commit_that_nobody_answers_is_in_doubt(peer: TransactionPeer, fault: Fault) -> None:
    def unanswered(key: ApiKey, request: object) -> Fault | None:
        return fault if key == ApiKey.END_TXN else None

    async def work(producer: TransactionalProducer) -> None:
        peer.fault = unanswered
        with pytest.raises(OutcomeUnknownError, match="committed or not"):
            await write_all(producer, b"a")
        assert not producer.in_transaction
        peer.fault = lambda key, request: None
        await write_all(producer, b"b")

    produce(peer, work, max_block_ms=400)
    known = peer.asked(ApiKey.INIT_PRODUCER_ID)[1:]
    assert known
    assert {(request.producer_id, request.producer_epoch) for request in known} == {(PID, 0)}
    carried_out = fault is Fault.UNANSWERED
    assert sorted(peer.committed()) == [b"a", b"a"] * carried_out + [b"b", b"b"]
    assert peer.open_runs() == 0


def test_an_abort_that_nobody_answers_is_done_by_the_next_transaction(
    peer: TransactionPeer,
) -> None:
    async def work(producer: TransactionalProducer) -> None:
        await producer.begin_transaction()
        await (await producer.send("t", b"never"))
        peer.fail(ApiKey.END_TXN, Fault.LOST)
        with pytest.raises(ConnectionError):
            await producer.abort_transaction()
        peer.fault = lambda key, request: None
        assert peer.open_runs() == 1
        await write_all(producer, b"a")

    produce(peer, work, max_block_ms=400)
    assert (peer.committed(), peer.open_runs()) == ([b"a", b"a"], 0)


@pytest.mark.parametrize(
    "code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE], ids=lambda code: code.name
)
def test_a_repeated_commit_that_is_refused_is_in_doubt(
    peer: TransactionPeer, code: ErrorCode
) -> None:
    """The first one may have been carried out before whatever led to the refusal."""
    peer.fail(ApiKey.END_TXN, Fault.UNANSWERED, code)

    async def work(producer: TransactionalProducer) -> None:
        with pytest.raises(OutcomeUnknownError):
            await write_all(producer, b"a")
        peer.fault = lambda key, request: None
        if code is ErrorCode.PRODUCER_FENCED:
            with pytest.raises(ProducerFencedError):
                await producer.begin_transaction()
        else:
            await write_all(producer, b"b")

    produce(peer, work)
    fenced = code is ErrorCode.PRODUCER_FENCED
    assert peer.committed() == ([b"a", b"a"] if fenced else [b"a", b"b", b"a", b"b"])


def test_a_commit_that_failed_unexpectedly_is_in_doubt(peer: TransactionPeer) -> None:
    peer.fail(ApiKey.END_TXN, *refused_once(ErrorCode.UNKNOWN_SERVER_ERROR))

    async def work(producer: TransactionalProducer) -> None:
        with pytest.raises(OutcomeUnknownError):
            await write_all(producer, b"a")
        await write_all(producer, b"b")

    produce(peer, work)
    assert peer.committed() == [b"b", b"b"]


def test_a_commit_that_cannot_be_sent_is_none(peer: TransactionPeer) -> None:
    async def work(producer: TransactionalProducer) -> None:
        await producer.begin_transaction()
        await (await producer.send("t", b"never"))
        peer.fail(ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        producer._transactions._route.forget()
        with pytest.raises(KafkaError) as caught:
            await producer.commit_transaction()
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        peer.fault = lambda key, request: None
        await write_all(producer, b"a")

    produce(peer, work, max_block_ms=400)
    assert (peer.committed(), peer.open_runs()) == ([b"a", b"a"], 0)


def test_a_commit_that_is_cancelled_is_settled_by_the_next_transaction(
    peer: TransactionPeer,
) -> None:
    async def work(producer: TransactionalProducer) -> None:
        await producer.begin_transaction()
        await (await producer.send("t", b"a"))
        peer.fail(ApiKey.END_TXN, ErrorCode.CONCURRENT_TRANSACTIONS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.commit_transaction()
        assert not producer.in_transaction
        peer.fault = lambda key, request: None
        await write_all(producer, b"b")

    produce(peer, work)
    assert peer.committed() == [b"b", b"b"]
