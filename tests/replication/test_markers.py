"""Markers that end transactions (WriteTxnMarkers), on a leader with a real log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import (
    EndTxnMarker,
    build_batch,
    read_end_txn_marker,
    split_batches,
)
from kraftpy.server.coordination import marker_writes
from kraftpy.server.handlers.markers import write_txn_markers
from kraftpy.server.replication.markers import Marker, append_markers
from kraftpy.server.replication.partition import Partition
from kraftpy.storage.files import Files
from tests.replication.scripted import (
    BROKER_EPOCH,
    EPOCH,
    FOLLOWER,
    LEADER,
    NOW_MS,
    Broker,
    Test,
    run_scripted,
)
from tests.unit.storage.support import SMALL, TOPIC_ID, FaultyFiles, Store, contents, with_config

OK = ErrorCode.NONE
Run = Callable[[Test], None]
Wanted = messages.WriteTxnMarkersRequest.WritableTxnMarker
Topic = messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic


class CountingFiles(Files):
    def __init__(self) -> None:
        self.writes = 0

    def write(self, fd: int, data: Any) -> int:  # type: ignore[override]
        self.writes += 1
        return super().write(fd, data)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "data", files=CountingFiles())
    yield store
    store.close()


@pytest.fixture
def run(store: Store) -> Run:
    return lambda test: run_scripted(store, test)


def data_of(
    producer_id: int, sequence: int = 0, *, epoch: int = 0, transactional: bool = True
) -> bytearray:
    return bytearray(
        build_batch(
            [(NOW_MS, None, b"x", [])],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def write(partition: Partition, producer_id: int, sequence: int = 0, *, epoch: int = 0) -> None:
    """In a transaction that the coordinator was asked about."""
    token = partition.admission.ask(producer_id, epoch, 1)
    partition.admission.vouch(token)
    records = memoryview(data_of(producer_id, sequence, epoch=epoch))
    partition.append(records, NOW_MS, named=True, token=token)
    partition.admission.settle(token)


def marker(
    producer_id: int,
    *partitions: int,
    epoch: int = 0,
    committed: bool = False,
    coordinator: int = 0,
    version: int = 1,
    topic: str = "t",
) -> Wanted:
    named = [Topic(topic, list(partitions or [0]))]
    return Wanted(producer_id, epoch, committed, named, coordinator, version)


async def ask(
    broker: Broker, *markers: Wanted, let_overlap: Callable[[], None] = lambda: None
) -> dict[tuple[int, str, int], ErrorCode]:
    """The answers by producer, topic and partition."""
    ctx: Any = SimpleNamespace(answer_full=False, let_overlap=let_overlap)
    request = messages.WriteTxnMarkersRequest(list(markers))
    host: Any = broker
    response = await write_txn_markers(host, ctx, request)
    return {
        (result.producer_id, topic.name, each.partition_index): ErrorCode(each.error_code)
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
    }


def ends(partition: Partition) -> list[tuple[int, int, EndTxnMarker | None]]:
    """Offset, producer and content of each marker in the log."""
    data = contents(partition.log)
    return [
        (header.base_offset, header.producer_id, read_end_txn_marker(data, position))
        for position, header in split_batches(data)
        if header.is_control
    ]


def led(broker: Broker, *isr: int) -> Partition:
    broker.alive(LEADER, 1)
    broker.alive(FOLLOWER, BROKER_EPOCH)
    broker.lead(*isr)
    return broker.replicas.led_by_id(TOPIC_ID, 0)


def follow(partition: Partition, offset: int) -> None:
    """The follower has fetched up to there."""
    partition.check_fetch(FOLLOWER, BROKER_EPOCH, EPOCH)
    now_ms = int(asyncio.get_running_loop().time() * 1000)
    partition.fetched(FOLLOWER, BROKER_EPOCH, offset, 0, now_ms)


def test_markers_end_transactions_in_one_write(run: Run, store: Store) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER)
        for producer_id in (7, 8):
            write(partition, producer_id)
        assert partition.last_stable_offset == 0
        files = store.files
        assert isinstance(files, CountingFiles)
        before = files.writes
        answers = await ask(broker, marker(7), marker(8, committed=True, coordinator=3), marker(9))
        assert files.writes == before + 1
        assert answers == {(producer_id, "t", 0): OK for producer_id in (7, 8, 9)}
        assert ends(partition) == [
            (2, 7, EndTxnMarker(False, 0)),
            (3, 8, EndTxnMarker(True, 3)),
            (4, 9, EndTxnMarker(False, 0)),
        ]
        assert partition.last_stable_offset == partition.high_watermark == 5
        assert [txn[:4] for txn in partition.log.aborted_transactions(0, 5)] == [(7, 0, 2, 1)]
        for _, header in split_batches(contents(partition.log)):
            assert header.partition_leader_epoch == EPOCH
        partition.count_received()
        assert (partition.numbers.batches, partition.numbers.received_records) == (5, 5)

    run(test)


def test_two_markers_of_one_producer_are_judged_one_after_the_other(run: Run) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER)
        write(partition, 7, epoch=1)
        outcomes = append_markers(
            partition,
            [
                Marker(7, 1, EndTxnMarker(True, 0), 1),
                Marker(7, 1, EndTxnMarker(True, 0), 1),
                Marker(8, 0, EndTxnMarker(True, 0), 1),
                Marker(7, 0, EndTxnMarker(True, 0), 1),
            ],
            NOW_MS,
        )
        assert outcomes[:3] == [2, 3, 3]  # the second one is there, whatever it waits for
        assert isinstance(outcomes[3], KafkaError)
        assert [producer_id for _, producer_id, _ in ends(partition)] == [7, 8]

    run(test)


def test_a_marker_is_answered_when_it_is_committed(run: Run) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER, FOLLOWER)
        write(partition, 7)
        asked = asyncio.ensure_future(ask(broker, marker(7)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        follow(partition, 1)
        assert len(ends(partition)) == 1
        # It is sent again: the log has it, and nobody knows yet whether it stays.
        again = asyncio.ensure_future(ask(broker, marker(7)))
        done, _ = await asyncio.wait([asked, again], timeout=0.05)
        assert not done
        assert partition.last_stable_offset == 0
        assert len(ends(partition)) == 1
        follow(partition, 2)
        assert await asked == await again == {(7, "t", 0): OK}
        assert partition.last_stable_offset == 2
        assert await ask(broker, marker(7)) == {(7, "t", 0): OK}
        assert len(ends(partition)) == 1

    run(test)


def test_what_waits_to_be_committed_holds_up_no_other_request(run: Run) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER, FOLLOWER)
        write(partition, 7)
        written: list[int] = []
        asked = asyncio.ensure_future(
            ask(broker, marker(7), let_overlap=lambda: written.append(len(ends(partition))))
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert written == [1]  # in the log first: markers keep their order
        assert not asked.done()
        follow(partition, 2)
        assert await asked == {(7, "t", 0): OK}

    run(test)


def test_what_is_not_committed_in_time_may_be_later(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_writes, "COMMIT_TIMEOUT_S", 0.02)

    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER, FOLLOWER)
        write(partition, 7)
        assert await ask(broker, marker(7)) == {(7, "t", 0): ErrorCode.REQUEST_TIMED_OUT}
        follow(partition, 2)
        assert partition.last_stable_offset == 2

    run(test)


def test_who_is_deposed_while_it_waits_does_not_know(run: Run) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER, FOLLOWER)
        write(partition, 7)
        asked = asyncio.ensure_future(ask(broker, marker(7)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        partition.resign()
        assert await asked == {(7, "t", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}

    run(test)


def test_each_partition_is_answered_by_itself(run: Run) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER)
        write(partition, 7, epoch=2)
        answers = await ask(
            broker,
            marker(7, 0, 0, 3, epoch=1),
            marker(8),
            marker(9, topic="x"),
            marker(-1),
            marker(10, epoch=-1),
            marker(11, coordinator=-1),
        )
        assert answers == {
            (7, "t", 0): ErrorCode.INVALID_PRODUCER_EPOCH,
            (7, "t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (8, "t", 0): OK,
            (9, "x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (-1, "t", 0): ErrorCode.INVALID_REQUEST,
            (10, "t", 0): ErrorCode.INVALID_REQUEST,
            (11, "t", 0): ErrorCode.INVALID_REQUEST,
        }
        assert [producer_id for _, producer_id, _ in ends(partition)] == [8]
        assert await ask(broker) == {}
        assert await ask(broker, Wanted(7, 1, True, [], 0, 1)) == {}

    run(test)


def test_too_few_replicas_take_no_marker(run: Run) -> None:
    async def test(broker: Broker) -> None:
        broker.topic_config = with_config(SMALL, min_insync_replicas=2)
        partition = led(broker, LEADER, FOLLOWER)
        write(partition, 7)
        broker.lead(LEADER, epoch=EPOCH + 1)
        assert await ask(broker, marker(7)) == {(7, "t", 0): ErrorCode.NOT_ENOUGH_REPLICAS}
        assert ends(partition) == []

    run(test)


def test_a_disk_that_fails_is_no_marker(run: Run, store: Store) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER)
        write(partition, 7)
        assert await ask(broker, marker(8)) == {(8, "t", 0): OK}
        segment: Any = partition.log.segments[-1]
        segment._files = FaultyFiles(0, kinds=("write",))
        answers = await ask(broker, marker(7), marker(8))
        assert answers == {(7, "t", 0): ErrorCode.KAFKA_STORAGE_ERROR, (8, "t", 0): OK}
        segment._files = store.files
        assert partition.last_stable_offset == 0
        assert await ask(broker, marker(7)) == {(7, "t", 0): OK}
        assert partition.last_stable_offset == 3

    run(test)


def test_an_operator_ends_a_transaction_that_nobody_else_will(run: Run) -> None:
    """kafka-transactions abort: the producer's own epoch, no version, any coordinator's epoch."""

    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER)
        write(partition, 7, epoch=4)
        by_coordinator = marker(7, epoch=4, version=2)
        assert await ask(broker, by_coordinator) == {(7, "t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
        assert await ask(broker, marker(7, epoch=4, version=0)) == {(7, "t", 0): OK}
        assert partition.last_stable_offset == partition.log.log_end_offset == 2

    run(test)


def test_a_marker_voids_what_was_asked_before_it(run: Run) -> None:
    """docs/rules.md, rule 99: also if it wrote nothing, and in another leadership."""

    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER)
        for version in (0, 1):
            token = partition.admission.ask(7, 0, 1)
            partition.admission.vouch(token)
            await ask(broker, marker(7, version=version))
            with pytest.raises(KafkaError) as caught:
                partition.append(memoryview(data_of(7)), NOW_MS, named=True, token=token)
            assert caught.value.code is ErrorCode.INVALID_TXN_STATE
        token = partition.admission.ask(7, 0, 1)
        partition.admission.vouch(token)
        broker.lead(LEADER, epoch=EPOCH + 1)
        with pytest.raises(KafkaError) as caught:
            partition.append(memoryview(data_of(7)), NOW_MS, named=True, token=token)
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE
        write(partition, 7)
        assert partition.last_stable_offset == 1

    run(test)


def test_a_transactional_batch_says_whose_it_is(run: Run) -> None:
    async def test(broker: Broker) -> None:
        partition = led(broker, LEADER)
        write(partition, 7)
        with pytest.raises(KafkaError) as caught:
            partition.append(memoryview(data_of(7, 1)), NOW_MS)
        assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        partition.append(memoryview(data_of(7, 1)), NOW_MS, named=True)
        # The same batch again is acknowledged, and one that isn't transactional is none of it.
        assert partition.append(memoryview(data_of(7, 1)), NOW_MS, named=True).base_offset == 1
        with pytest.raises(KafkaError) as caught:
            partition.append(memoryview(data_of(7, 2, transactional=False)), NOW_MS)
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE

    run(test)
