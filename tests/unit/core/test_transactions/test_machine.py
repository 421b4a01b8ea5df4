"""The coordinator of one partition: writes, markers, waiting, time, the end."""

from __future__ import annotations

import tracemalloc

import pytest

from kraftpy.core.transactions.machine import DUE_TOGETHER, FENCE_WAIT_MS, QUEUE_MAX
from kraftpy.core.transactions.memory import ID_BYTES, OPEN_BYTES, PARTITION_BYTES, size_bytes
from kraftpy.core.transactions.records import TransactionRecord, decode_record, encode_record
from kraftpy.core.transactions.states import Cause
from kraftpy.protocol.errors import ErrorCode as E

from .driver import EXPIRATION_MS, P0, P1, P2, TIMEOUT_MS, WAIT_MS, Driver, labels

PRODUCER = (1000, 0)


def waiting() -> Driver:
    """A transaction whose markers are out."""
    driver = Driver()
    driver.opened(version=2)
    driver.end(PRODUCER, version=2)
    return driver


# -- markers


def test_prepare_first() -> None:
    """Nobody writes a marker before the decision is committed (the driver looks into the log)."""
    driver = Driver()
    driver.opened()
    driver.commits = False
    token = driver.end(PRODUCER)
    assert driver.markers == []
    assert token not in driver.replies
    driver.commit()
    assert len(driver.markers) == 1
    assert driver.error(token) is E.NONE


def test_all_markers() -> None:
    """The end is written when somebody says that all markers are, and says so of this end."""
    driver = waiting()
    (markers,) = driver.markers
    for wrong in (
        markers._replace(producer_epoch=0),
        markers._replace(producer_id=7),
        markers._replace(transactional_id="other"),
    ):
        driver.write_markers(wrong)
    assert driver.state() == "PrepareCommit"
    driver.write_markers(markers)
    assert driver.state() == "CompleteCommit"
    written = len(driver.log)
    driver.write_markers(markers)
    assert len(driver.log) == written


def test_the_end_is_written_once() -> None:
    driver = waiting()
    (markers,) = driver.markers
    driver.commits = False
    driver.write_markers(markers, markers)
    assert len(driver.in_flight) == 1
    driver.commit()
    assert driver.in_flight == []


def test_end_while_preparing() -> None:
    """EndTxn again while markers are out: nobody may be told that it is done."""
    driver = waiting()
    tokens = [driver.end((1000, epoch), commit=c, version=2) for epoch in (0, 1) for c in (0, 1)]
    driver.advance(WAIT_MS - 1)
    assert not any(token in driver.replies for token in tokens)
    driver.advance(1)
    assert {driver.error(token) for token in tokens} == {E.CONCURRENT_TRANSACTIONS}
    late = driver.end(PRODUCER, version=2)
    driver.write_markers()
    assert driver.producer(late) == (1000, 1)


def test_markers_are_asked_for_again_by_the_next_coordinator() -> None:
    driver = waiting()
    (before,) = driver.markers
    driver.move()
    (after,) = driver.markers
    assert after == before._replace(coordinator_epoch=1)


def test_markers_say_who_wanted_the_end_and_when() -> None:
    driver = Driver()
    began_ms = driver.now_ms
    producer = driver.opened()
    driver.advance(TIMEOUT_MS)
    driver.write_markers(markers := driver.markers.pop())
    assert (markers.cause, markers.is_commit) == (Cause.TIMEOUT, False)
    assert (markers.start_ms, markers.decided_ms) == (began_ms, began_ms + TIMEOUT_MS)
    producer = driver.opened(epoch=5)
    token = driver.init()
    driver.write_markers(markers := driver.markers.pop())
    assert (markers.cause, markers.is_commit) == (Cause.FENCE, False)
    producer = driver.producer(token)
    driver.add(producer, P0)
    driver.end(producer, commit=False)
    driver.write_markers(markers := driver.markers.pop())
    assert (markers.cause, markers.is_commit) == (Cause.PRODUCER, False)


def test_who_wanted_an_end_that_could_not_be_written_is_forgotten() -> None:
    driver = Driver()
    producer = driver.opened()
    driver.commits = False
    driver.init()
    driver.fail()
    driver.end(producer, commit=False)
    driver.commit()
    assert [markers.cause for markers in driver.markers] == [Cause.PRODUCER]


def test_kafka_may_leave_a_decision_without_partitions() -> None:
    driver = Driver()
    driver.init()
    driver.end(PRODUCER, commit=False, version=2)
    assert labels(driver) == ["Empty", "PrepareAbort", "CompleteAbort"]
    driver.log.pop()
    driver.move()
    assert driver.state() == "CompleteAbort"
    assert driver.markers == []


# -- one write at a time


def test_what_comes_meanwhile_is_one_record() -> None:
    driver = Driver()
    driver.init()
    driver.commits = False
    tokens = [driver.add(PRODUCER, each, version=2, from_broker=True) for each in (P0, P1, P2)]
    assert len(driver.in_flight) == 1
    driver.commit()
    assert [driver.error(token) for token in tokens[:1]] == [E.NONE]
    assert tokens[1] not in driver.replies
    (write,) = driver.in_flight
    assert len(write.records) == 1
    driver.commit()
    last = driver.last()
    assert last is not None
    assert last.partitions == {P0, P1, P2}
    assert [driver.error(token) for token in tokens] == [E.NONE] * 3


def test_the_next_transaction_rides_in_the_batch_of_the_end() -> None:
    driver = waiting()
    token = driver.add((1000, 1), P1, version=2)
    driver.commits = False
    driver.write_markers()
    (write,) = driver.in_flight
    assert [r.transaction.state.label for r in write.records if r.transaction] == [
        "CompleteCommit",
        "Ongoing",
    ]
    assert token not in driver.replies
    driver.commit()
    assert driver.error(token) is E.NONE
    last = driver.last()
    assert last is not None
    assert last.partitions == {P1}


def test_brokers_hear_at_once_that_markers_are_out() -> None:
    driver = waiting()
    token = driver.add((1000, 1), P1, version=2, from_broker=True)
    assert driver.error(token) is E.CONCURRENT_TRANSACTIONS


def test_late_end() -> None:
    """Late requests of an ended transaction don't touch the next one of a client of version 2."""
    driver = waiting()
    driver.write_markers()
    driver.add((1000, 1), P0, version=2)
    for committed in (True, False):
        late = driver.end(PRODUCER, commit=committed, version=2)
        assert driver.error(late) is E.PRODUCER_FENCED
    assert driver.error(driver.add(PRODUCER, P1, version=2)) is E.PRODUCER_FENCED
    assert driver.state() == "Ongoing"


def test_so_many_wait_for_an_id_and_no_more() -> None:
    driver = Driver(commits=False)
    driver.init()
    tokens = [driver.add(PRODUCER, ("a", n)) for n in range(QUEUE_MAX + 3)]
    refused = [token for token in tokens if token in driver.replies]
    assert refused == tokens[QUEUE_MAX:]
    assert {driver.error(token) for token in refused} == {E.CONCURRENT_TRANSACTIONS}
    driver.commit()
    driver.commit()
    assert {driver.error(token) for token in tokens[:QUEUE_MAX]} == {E.NONE}
    assert driver.machine._lanes == {}


def test_waits_end_when_they_are_due_however_many_come() -> None:
    driver = waiting()
    first = driver.add((1000, 1), P1, version=2)
    for _ in range(5):
        driver.advance(WAIT_MS // 5)
        driver.add((1000, 1), P1, version=2)
    assert driver.error(first) is E.CONCURRENT_TRANSACTIONS


def test_an_init_waits_for_longer() -> None:
    driver = Driver()
    driver.opened()
    token = driver.init()
    driver.advance(FENCE_WAIT_MS - 1)
    assert token not in driver.replies
    driver.advance(1)
    assert driver.error(token) is E.CONCURRENT_TRANSACTIONS
    again = driver.init()
    driver.write_markers()
    assert driver.producer(again) == (1000, 2)


# -- writes that fail


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_write_that_failed_never_was(error: E, told: E) -> None:
    driver = Driver()
    driver.opened()
    driver.commits = False
    tokens = [driver.end(PRODUCER), driver.add(PRODUCER, P1)]
    driver.fail(error)
    assert driver.error(tokens[0]) is told
    assert driver.state() == "Ongoing"
    driver.commit()
    assert driver.error(tokens[1]) is E.NONE


def test_a_fence_that_failed_takes_no_epoch() -> None:
    """KAFKA-19367."""
    driver = Driver()
    driver.opened()
    driver.commits = False
    for _ in range(3):
        token = driver.init()
        driver.fail()
        assert driver.error(token) is E.COORDINATOR_NOT_AVAILABLE
    driver.commits = True
    token = driver.init()
    assert driver.markers[0].producer_epoch == 1
    driver.write_markers()
    assert driver.producer(token) == (1000, 2)


def test_who_waited_too_long_for_a_fence_is_answered_once() -> None:
    driver = Driver()
    driver.opened()
    driver.commits = False
    token = driver.init()
    driver.advance(FENCE_WAIT_MS)
    assert driver.error(token) is E.CONCURRENT_TRANSACTIONS
    driver.fail()
    assert driver.state() == "Ongoing"


def test_an_end_that_cant_be_written_is_tried_again() -> None:
    driver = waiting()
    driver.commits = False
    driver.write_markers()
    token = driver.add((1000, 1), P1, version=2)
    for _ in range(4):
        driver.fail()
        assert driver.in_flight == []
        driver.advance(1_000)
    assert driver.error(token) is E.COORDINATOR_NOT_AVAILABLE
    driver.commit()
    assert driver.state() == "CompleteCommit"
    assert driver.machine.next_deadline() is None


def test_whoever_waits_too_long_is_told_and_the_write_counts_all_the_same() -> None:
    driver = Driver()
    driver.opened()
    driver.commits = False
    tokens = [driver.end(PRODUCER), driver.add(PRODUCER, P1)]
    driver.time_out()
    tokens.append(driver.add(PRODUCER, P1))
    assert {driver.error(token) for token in tokens} == {E.COORDINATOR_NOT_AVAILABLE}
    assert driver.in_flight, "the id is busy until it lands"
    driver.commit()
    assert len(driver.markers) == 1
    driver.commits = True
    driver.write_markers()
    assert driver.error(driver.end(PRODUCER)) is E.NONE


# -- time


def test_a_transaction_that_lasts_too_long_is_aborted() -> None:
    driver = Driver()
    driver.opened(version=2)
    driver.advance(TIMEOUT_MS - 1)
    assert driver.state() == "Ongoing"
    driver.advance(1)
    (markers,) = driver.markers
    assert (markers.producer_epoch, markers.is_commit) == (1, False)
    driver.write_markers()
    assert driver.error(driver.end(PRODUCER, version=2)) is E.INVALID_TXN_STATE
    assert driver.producer(driver.end(PRODUCER, commit=False, version=2)) == (1000, 1)
    assert driver.producer(driver.init(PRODUCER)) == (1000, 1), "its owner may go on"


def test_the_timeout_is_that_of_the_transaction_not_of_its_coordinator() -> None:
    driver = Driver()
    driver.opened()
    driver.advance(TIMEOUT_MS // 2)
    driver.move()
    driver.add(PRODUCER, P1)
    driver.advance(TIMEOUT_MS // 2)
    assert driver.state() == "PrepareAbort"


def test_the_timeout_meets_a_write() -> None:
    driver = Driver()
    driver.opened()
    driver.commits = False
    token = driver.add(PRODUCER, P1)
    driver.advance(TIMEOUT_MS)
    driver.commit()
    driver.advance(0)
    driver.fail()
    driver.advance(1_000)
    driver.commit()
    assert driver.error(token) is E.NONE
    assert driver.state() == "PrepareAbort"
    driver = Driver()
    driver.opened()
    driver.commits = False
    driver.end(PRODUCER)
    driver.advance(TIMEOUT_MS)
    driver.commit()
    assert driver.state() == "PrepareCommit"
    assert driver.in_flight == []


def test_a_timeout_waits_for_a_producer_id() -> None:
    driver = Driver()
    driver.opened(epoch=32766)
    driver.next_producer_id = None
    driver.advance(TIMEOUT_MS)
    assert driver.state() == "Ongoing"
    driver.next_producer_id = 2000
    driver.advance(1_000)
    driver.write_markers()
    assert driver.producer(driver.init()) == (2000, 1)


def test_a_clock_that_is_set_ends_nothing() -> None:
    driver = waiting()
    driver.opened(key="other")
    token = driver.add((1000, 1), P1, version=2)
    driver.now_ms += 86_400_000
    driver.machine.shift_deadlines(86_400_000)
    driver.advance(WAIT_MS - 1)
    assert token not in driver.replies
    driver.advance(TIMEOUT_MS - WAIT_MS)
    assert driver.state("other") == "Ongoing"
    driver.advance(1)
    assert driver.state("other") == "PrepareAbort"


def test_what_nobody_uses_is_forgotten() -> None:
    driver = Driver()
    driver.opened(key="open", version=2)
    driver.init(key="idle")
    driver.advance(EXPIRATION_MS - 1)
    driver.init(key="young")

    def expire() -> int:
        count, effects = driver.machine.expire(driver.machine.transactional_ids(), driver.now_ms)
        driver.carry_out(effects)
        return count

    assert expire() == 0
    driver.advance(1)
    assert driver.state("open") == "PrepareAbort", "open for too long, and not at its end"
    driver.commits = False
    assert expire() == 1
    again = driver.init(key="idle")
    assert expire() == 0
    driver.commit()
    assert driver.last("idle") is None
    driver.commit()
    assert driver.producer(again) == (1003, 0)
    assert labels(driver, "idle") == ["Empty", "tombstone", "Empty"]


def test_what_is_decided_is_not_forgotten_before_its_end() -> None:
    driver = waiting()
    driver.advance(2 * EXPIRATION_MS)
    count, _ = driver.machine.expire(["t"], driver.now_ms)
    assert count == 0
    driver.write_markers()
    assert driver.state() == "CompleteCommit"


# -- memory


def test_ids_that_are_left_take_so_much_and_no_more() -> None:
    driver = Driver(limit_bytes=200 * (ID_BYTES + 4))
    tokens = [driver.init(key=f"{number:04}") for number in range(1_000)]
    errors = [driver.error(token) for token in tokens]
    assert errors == [E.NONE] * 100 + [E.COORDINATOR_NOT_AVAILABLE] * 900
    assert len(driver.machine) == 100
    assert driver.machine._lanes == {}
    assert driver.memory.used_bytes == 100 * (ID_BYTES + 4)
    assert driver.producer(driver.init(key="0000")) == (1000, 1), "who is in stays in"
    driver.move()
    assert driver.memory.used_bytes == 100 * (ID_BYTES + 4)
    # And writes, until transactions, too, have taken what there is.
    adds = [driver.add((1000 + n, 1 - bool(n)), P0, key=f"{n:04}") for n in range(100)]
    errors = [driver.error(token) for token in adds]
    in_all = 100 * (ID_BYTES + 4) // (OPEN_BYTES + PARTITION_BYTES)
    assert errors == [E.NONE] * in_all + [E.COORDINATOR_NOT_AVAILABLE] * (100 - in_all)
    driver.advance(TIMEOUT_MS)
    driver.write_markers()
    assert driver.memory.used_bytes == 100 * (ID_BYTES + 4)
    driver.advance(EXPIRATION_MS)
    _, effects = driver.machine.expire(driver.machine.transactional_ids(), driver.now_ms)
    driver.carry_out(effects)
    assert driver.memory.used_bytes == 0


def test_a_load_that_is_given_up_takes_nothing() -> None:
    driver = Driver()
    driver.opened()
    used_bytes = driver.memory.used_bytes
    abandoned = driver._new_machine()
    for record in driver.log:
        abandoned.load(record)
    assert driver.memory.used_bytes == used_bytes
    abandoned.finish_load(driver.now_ms)
    assert driver.memory.used_bytes == 2 * used_bytes
    abandoned.close(E.NOT_COORDINATOR, driver.now_ms)
    assert driver.memory.used_bytes == used_bytes


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_an_id_takes_no_more_than_is_counted(count: int) -> None:
    driver = Driver()
    driver.opened(*[("some-topic", number) for number in range(count or 1)])
    if not count:
        driver.end(PRODUCER)
        driver.write_markers()
    last = driver.last()
    encoded = [
        encode_record(TransactionRecord(f"some-transactional-id-{number:05}", last))
        for number in range(500)
    ]
    machine = Driver().machine
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for key, value in encoded:
        record = decode_record(key, value)
        assert record is not None
        machine.load(record)
    machine.finish_load(driver.now_ms)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken / 500 < size_bytes("some-transactional-id-00000", last)


def test_of_very_many_that_are_overdue_so_many_are_aborted_in_one_go() -> None:
    driver = Driver()
    for number in range(2 * DUE_TOGETHER + 1):
        driver.opened(key=f"id-{number}")
    driver.now_ms += TIMEOUT_MS
    aborted = []
    while driver.machine.next_deadline() is not None:
        driver.carry_out(driver.machine.handle_timers(driver.now_ms))
        aborted.append(len(driver.markers))
    assert aborted == [DUE_TOGETHER, 2 * DUE_TOGETHER, 2 * DUE_TOGETHER + 1]


def test_of_very_many_that_were_loaded_so_many_are_seen_to_in_one_go() -> None:
    driver = Driver()
    for number in range(2 * DUE_TOGETHER + 2):
        key = f"id-{number}"
        producer = driver.opened(key=key)
        if number:
            driver.end(producer, key=key)
    driver.move()
    asked = [len(driver.markers)]
    # Who ends a transaction that isn't seen to yet has its markers asked for once, and no timeout.
    driver.end((1000, 0), key="id-0")
    assert driver.markers[-1].transactional_id == "id-0"
    while driver.machine.next_deadline() == 0:
        driver.carry_out(driver.machine.handle_timers(driver.now_ms))
        asked.append(len(driver.markers))
    assert asked == [DUE_TOGETHER, 2 * DUE_TOGETHER + 1, 2 * DUE_TOGETHER + 2]
    assert len({each.transactional_id for each in driver.markers}) == asked[-1]
    assert driver.machine.next_deadline() is None


def test_of_very_many_that_were_loaded_open_each_has_its_timeout() -> None:
    driver = Driver()
    for number in range(2 * DUE_TOGETHER + 2):
        driver.opened(key=f"id-{number}")
    driver.move()
    driver.advance(TIMEOUT_MS - 1)
    assert not driver.markers
    driver.advance(1)
    assert len(driver.markers) == 2 * DUE_TOGETHER + 2


def test_deadlines_of_ended_transactions_are_not_kept() -> None:
    driver = Driver()
    driver.init()
    for epoch in range(5_000):
        driver.add((1000, epoch), P0, version=2)
        driver.end((1000, epoch), version=2)
        driver.write_markers()
        driver.log.clear()
        driver.batches.clear()
    assert driver.state() == "CompleteCommit"
    assert len(driver.machine._timeouts._heap) < 1_100


# -- the end


def test_everybody_is_answered_at_the_end() -> None:
    driver = waiting()
    parked = driver.add((1000, 1), P1, version=2)
    driver.commits = False
    written = driver.init(key="other")
    queued = driver.init(key="other")
    driver.move()
    for token in (parked, written, queued):
        assert driver.error(token) is E.NOT_COORDINATOR
