"""The replicas of a broker and their ISRs, with real logs and a quorum that is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftpy.metrics.instruments import TIMED_EVERY
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch, stamp_batch
from kraftpy.server.replication import isr_proposals
from kraftpy.server.replication.partition import Partition
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
from tests.unit.client.peer import batch
from tests.unit.storage.support import SMALL, TOPIC_ID, Store, with_config


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[Test], None]]:
    store = Store(tmp_path / "data")

    def runner(test: Test) -> None:
        run_scripted(store, test)

    yield runner
    store.close()


def test_who_fetched_all_before_it_was_let_in_joins_when_it_is(run: Callable[[Test], None]) -> None:
    """An idle partition is not named in a fetch again: waiting for one takes half a lag time."""

    async def test(broker: Broker) -> None:
        broker.alive(LEADER, 1)
        broker.lead(LEADER)
        partition = broker.replicas.led_by_id(TOPIC_ID, 0)
        partition.check_fetch(FOLLOWER, BROKER_EPOCH, EPOCH)
        partition.fetched(FOLLOWER, BROKER_EPOCH, 0, 0, broker.replicas.monotonic_ms())
        broker.alive(FOLLOWER, BROKER_EPOCH)
        command = await broker.proposed.get()
        (proposal,) = command.topics[0].partitions
        assert [each.broker_id for each in proposal.isr] == [LEADER, FOLLOWER]

    run(test)


def test_looking_for_replicas_that_lag_holds_nobody_up(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Partition] = []
    monkeypatch.setattr(isr_proposals, "PARTITIONS_AT_ONCE", 2)
    monkeypatch.setattr(Partition, "propose_isr", lambda each, now_ms: looked_at.append(each))

    async def test(broker: Broker) -> None:
        broker.lead(LEADER, FOLLOWER, count=5)
        broker.replicas.tick()
        most = 0
        while len(looked_at) < 5:
            before = len(looked_at)
            await asyncio.sleep(0)
            most = max(most, len(looked_at) - before)
        assert most == 2
        assert set(looked_at) == set(broker.replicas)

    run(test)


def test_who_steps_down_and_up_again_remembers_what_it_proposed(
    run: Callable[[Test], None],
) -> None:
    """docs/rules.md, rule 7: the quorum may have carried it out, or may yet do so."""

    async def test(broker: Broker) -> None:
        broker.alive(LEADER, 1)
        broker.alive(FOLLOWER, BROKER_EPOCH)
        broker.lead(LEADER)
        partition = broker.replicas.led_by_id(TOPIC_ID, 0)
        partition.check_fetch(FOLLOWER, BROKER_EPOCH, EPOCH)
        partition.fetched(FOLLOWER, BROKER_EPOCH, 0, 0, broker.replicas.monotonic_ms())
        await broker.proposed.get()
        broker.replicas.resign()
        broker.replicas.resume(broker, lambda name: SMALL)  # type: ignore[arg-type]
        assert partition.leadership is not None
        assert partition.leadership.maximal_isr == {LEADER, FOLLOWER}
        records = memoryview(bytearray(batch(0, b"x")))
        partition.append(records, NOW_MS)
        assert partition.high_watermark == 0
        partition.fetched(FOLLOWER, BROKER_EPOCH, 1, 0, broker.replicas.monotonic_ms())
        assert partition.high_watermark == 1

    run(test)


def test_received_is_what_was_appended_as_leader(run: Callable[[Test], None]) -> None:
    async def test(broker: Broker) -> None:
        def append() -> None:
            partition.append(memoryview(bytearray(records)), NOW_MS)

        broker.lead(LEADER)
        partition = broker.replicas.led_by_id(TOPIC_ID, 0)
        numbers, records = partition.numbers, batch(0, b"x", b"y")
        append()
        assert (numbers.batches, numbers.received_records) == (0, 0)
        for _ in range(2):
            partition.count_received()
            assert (numbers.batches, numbers.received_records) == (1, 2)
            assert numbers.received_bytes == len(records) == partition.log.size_bytes
        append()
        partition.resign()
        assert numbers.received_records == 4
        of_another_leader = bytearray(batch(4, b"z"))
        stamp_batch(of_another_leader, 0, 4, EPOCH + 1)
        assert partition.log.append_as_follower(of_another_leader, EPOCH + 1)
        broker.lead(LEADER, epoch=EPOCH + 2)
        append()
        partition.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert (numbers.batches, numbers.received_records) == (3, 6)
        assert numbers.received_bytes == 3 * len(records)

    run(test)


def test_one_append_of_so_many_is_timed_and_each_is_counted(run: Callable[[Test], None]) -> None:
    async def test(broker: Broker) -> None:
        broker.lead(LEADER)
        partition = broker.replicas.led_by_id(TOPIC_ID, 0)
        records, numbers = batch(0, b"x", b"y", b"z"), partition.numbers
        for _ in range(2 * TIMED_EVERY):
            partition.append(memoryview(bytearray(records)), NOW_MS)
        partition.count_received()
        assert numbers.batches == 2 * TIMED_EVERY
        assert numbers.received_bytes == 2 * TIMED_EVERY * len(records)
        assert numbers.received_records == 6 * TIMED_EVERY
        assert broker.replicas.traffic.appends.count == 2

    run(test)


def test_a_batch_sent_again_waits_for_no_flush_that_nobody_asked_for(
    run: Callable[[Test], None],
) -> None:
    """A log that was cut was flushed beyond its end; what it got since waits for flush.messages."""

    async def test(broker: Broker) -> None:
        broker.topic_config = with_config(SMALL, flush_messages=3)
        broker.lead(LEADER)
        partition = broker.replicas.led_by_id(TOPIC_ID, 0)
        partition.append(memoryview(bytearray(batch(0, b"1", b"2", b"3"))), NOW_MS)
        partition.log.flush()
        partition.resign()
        partition.log.truncate_to(0)
        broker.lead(LEADER, epoch=EPOCH + 1)
        again = build_batch([(1, None, b"1", [])], producer_id=1, producer_epoch=0, base_sequence=0)
        for _ in range(2):
            assert not partition.append(memoryview(bytearray(again)), NOW_MS).flush_pending
        assert partition.log.log_end_offset == 1

    run(test)


def test_deletions_are_waited_for_until_the_replicas_that_are_up_have_heard(
    run: Callable[[Test], None],
) -> None:
    async def test(broker: Broker) -> None:
        broker.alive(LEADER, 1)
        broker.alive(FOLLOWER, BROKER_EPOCH)
        broker.lead(LEADER, FOLLOWER)
        partition = broker.replicas.led_by_id(TOPIC_ID, 0)
        partition.append(memoryview(bytearray(batch(0, b"1", b"2", b"3"))), NOW_MS)
        told: list[ErrorCode] = []
        partition.delete_records_before(2)
        partition.when_deleted(2, told.append)
        for start in (0, 2):
            assert not told
            partition.fetched(FOLLOWER, BROKER_EPOCH, 3, start, broker.replicas.monotonic_ms())
        assert told == [ErrorCode.NONE]
        partition.delete_records_before(3)
        partition.when_deleted(3, told.append)
        assert len(told) == 1
        broker.replicas.broker_changed(FOLLOWER, None)
        assert told == [ErrorCode.NONE] * 2
        broker.alive(FOLLOWER, BROKER_EPOCH)
        partition.when_deleted(3, told.append)
        partition.resign()
        assert told[2:] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    run(test)


def test_a_log_is_settled_when_all_that_is_in_it_now_is_committed(
    run: Callable[[Test], None],
) -> None:
    """Whoever reads it then knows what a reader before it, of this epoch too, has under way."""

    async def test(broker: Broker) -> None:
        broker.alive(LEADER, 1)
        broker.alive(FOLLOWER, BROKER_EPOCH)
        broker.lead(LEADER, FOLLOWER)
        partition = broker.replicas.led_by_id(TOPIC_ID, 0)
        settled: list[bool] = []
        broker.replicas.when_settled("t", 0, settled.append)
        assert settled == [True]
        appended = broker.replicas.append_records("t", 0, bytes(batch(0, b"a", b"b")))
        broker.replicas.when_settled("t", 0, settled.append)
        assert (settled, appended.done()) == ([True], False)
        partition.check_fetch(FOLLOWER, BROKER_EPOCH, EPOCH)
        partition.fetched(FOLLOWER, BROKER_EPOCH, 2, 0, broker.replicas.monotonic_ms())
        assert (settled, appended.done()) == ([True, True], True)

    run(test)
