"""Transactions of one partition's producers: markers, their fences, the last stable offset."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.core.producers import ProducerStateManager
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import BatchHeader
from tests.unit.core.producer_batches import (
    ACCEPT,
    DAY,
    FENCED,
    NOW,
    OLD_EPOCH,
    OUT_OF_ORDER,
    PID,
    batch,
    end_transaction,
    marker,
    state_after,
    verdict,
    verdict_on_marker,
)


def test_an_open_transaction_does_not_expire():
    state = state_after(batch(0, transactional=True, offset=3))
    assert state.expire(NOW + 10 * DAY) == 0
    assert state.last_stable_offset(100) == 3
    end_transaction(state, 4)
    assert state.expire(NOW + 10 * DAY) == 1


def test_truncation_of_a_marker_is_noticed():
    """The data survives the cut, the end of its transaction does not."""
    state = state_after(batch(0, transactional=True, offset=5))
    before_marker = state.snapshot()
    end_transaction(state, 6)
    for restarted in (False, True):
        if restarted:
            data, state = state.snapshot(), ProducerStateManager()
            state.load(data, 7, NOW)
            assert state.last_stable_offset(7) == 7
        assert state.truncate(7)
        if restarted:
            assert not state.truncate(6)
    state.load(before_marker, 6, NOW)
    assert state.last_stable_offset(6) == 5


def test_a_transaction_is_transactional_to_its_end():
    state = state_after(batch(0, transactional=True))
    assert verdict(state, batch(1, transactional=True)) is ACCEPT
    assert verdict(state, batch(1)) is ErrorCode.INVALID_TXN_STATE
    end_transaction(state, 1)
    assert verdict(state, batch(1)) is ACCEPT


APPEND, IS_THERE = True, False
OPEN = [batch(0, epoch=3, transactional=True)]


@pytest.mark.parametrize(
    ("epoch", "coordinator", "version", "of_open", "of_ended"),
    [
        # The producer has epoch 3; the last marker came from a coordinator of epoch 9.
        (2, 9, 1, OLD_EPOCH, OLD_EPOCH),
        (2, 9, 2, OLD_EPOCH, OLD_EPOCH),
        (3, 9, 0, APPEND, IS_THERE),
        (3, 9, 1, APPEND, IS_THERE),
        (3, 10, 1, APPEND, APPEND),  # who is deposed hears of it
        (4, 9, 1, APPEND, APPEND),  # fences, also where nothing was written
        # What is open has the marker's epoch: it's the next transaction (KAFKA-19999).
        (3, 9, 2, OLD_EPOCH, IS_THERE),
        (3, 10, 2, OLD_EPOCH, APPEND),
        (4, 9, 2, APPEND, APPEND),
        (3, 8, 1, FENCED, FENCED),
        (4, 8, 2, FENCED, FENCED),
        (2, 8, 2, OLD_EPOCH, OLD_EPOCH),
    ],
)
def test_marker_again(epoch, coordinator, version, of_open, of_ended):
    """Markers are fenced by epoch and coordinator, and a retry isn't written twice."""
    ended = state_after(*OPEN)
    end_transaction(ended, 1, epoch=3, coordinator=9)
    opened = ProducerStateManager()
    opened.load(ended.snapshot(), 2, NOW)
    opened.update(batch(1, epoch=3, offset=2, transactional=True), NOW)
    for committed in (True, False):
        for state, expected in ((opened, of_open), (ended, of_ended)):
            found = verdict_on_marker(state, epoch, coordinator, version, committed=committed)
            assert found is expected
    assert verdict_on_marker(ended, 0, 0, version, producer_id=5) is APPEND


def test_the_last_epoch_is_ended_by_itself():
    """As in Kafka: no marker can have a later one, and what is open must not stay so."""
    state = state_after(batch(0, epoch=2**15 - 1, transactional=True))
    for version in (0, 1, 2):
        assert verdict_on_marker(state, 2**15 - 1, 0, version) is APPEND
    end_transaction(state, 1, epoch=2**15 - 1)
    assert verdict_on_marker(state, 2**15 - 1, 0, 2) is IS_THERE


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_that_is_there_changes_nothing(committed):
    """So a coordinator may be told that it is, whatever became of the answer to the first one."""
    state = state_after(*OPEN)
    end_transaction(state, 1, epoch=3, coordinator=9)
    before = state.snapshot()
    assert verdict_on_marker(state, 3, 9, 1, committed=committed) is IS_THERE
    assert end_transaction(state, 2, epoch=3, coordinator=9, committed=committed) is None
    assert state.snapshot() == before
    assert state.last_stable_offset(3) == 0  # the first one isn't committed yet


def test_of_a_coordinators_own_batch_only_the_epoch_counts():
    """Offsets in a transaction have no sequence: the coordinator knows what it writes."""
    own = batch(-1, 2, epoch=3, transactional=True)
    state = state_after(*OPEN)
    assert verdict(state, own) is ACCEPT
    state.update(batch(-1, 2, epoch=3, transactional=True, offset=1), NOW)
    assert verdict(state, own) is ACCEPT
    assert verdict(state, batch(-1, epoch=2, transactional=True)) is OLD_EPOCH
    assert verdict(state, batch(-1, epoch=4, transactional=True)) is ACCEPT
    assert verdict(state, batch(-1, epoch=3)) is ErrorCode.INVALID_TXN_STATE
    assert verdict(state, batch(1, epoch=3, transactional=True)) is ACCEPT
    state.update(batch(-1, epoch=4, transactional=True, offset=3), NOW)
    assert verdict(state, own) is OLD_EPOCH
    assert state.has_open(PID, 4)
    again = ProducerStateManager()
    again.load(state.snapshot(), 4, NOW)
    assert again.snapshot() == state.snapshot()
    assert verdict(again, batch(-1, epoch=4, transactional=True)) is ACCEPT


def test_what_is_known_of_a_producer():
    state = state_after(batch(7, 3, epoch=2, offset=20, transactional=True, timestamp=99))
    ((producer_id, found),) = state.active()
    assert (producer_id, found.epoch, found.last_sequence, found.last_timestamp) == (PID, 2, 9, 99)
    assert (found.coordinator_epoch, found.txn_first_offset) == (-1, 20)
    assert state.has_open(PID, 2)
    assert not state.has_open(PID, 3)
    assert not state.has_open(PID + 1, 2)
    end_transaction(state, 23, epoch=3, coordinator=4)
    assert (found.epoch, found.last_sequence, found.coordinator_epoch) == (3, -1, 4)
    assert found.txn_first_offset == -1
    assert not state.has_open(PID, 2)
    assert state.epoch_of(PID, NOW) == 3
    assert state.epoch_of(PID, NOW + DAY) is None
    assert state.epoch_of(PID + 1, NOW) is None


def test_what_an_ended_transaction_wrote_is_no_success_of_the_next_one():
    """librdkafka: an abort purged 1, though it had arrived, and the next message is 1, too."""
    first, again = (batch(each, transactional=True, offset=each) for each in (0, 1))
    state = state_after(first, again)
    assert verdict(state, again) == (1, 1, 77)
    end_transaction(state, 2)
    assert verdict(state, again) is ErrorCode.INVALID_TXN_STATE
    state.update(batch(2, transactional=True, offset=3), NOW)
    assert verdict(state, again) is ErrorCode.INVALID_TXN_STATE
    assert verdict(state, batch(2, transactional=True)) == (3, 3, 77)


def test_nor_is_what_it_wrote_before_the_window():
    batches = [batch(number, transactional=True, offset=number) for number in range(7)]
    state = state_after(*batches)
    assert verdict(state, batch(1, transactional=True)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    end_transaction(state, 7)
    assert verdict(state, batch(1, transactional=True)) is ErrorCode.INVALID_TXN_STATE


def test_a_marker_with_a_higher_epoch_fences_the_producer():
    """KIP-890: the epoch rises with each transaction; the next one begins with sequence 0."""
    state = state_after(batch(0, 2, epoch=3, transactional=True))
    end_transaction(state, 2, epoch=4)
    assert verdict(state, batch(2, epoch=3, transactional=True)) is OLD_EPOCH
    assert verdict(state, batch(2, epoch=4, transactional=True)) is OUT_OF_ORDER
    assert verdict(state, batch(0, epoch=4, transactional=True)) is ACCEPT


def test_a_marker_without_data_ends_nothing():
    state = ProducerStateManager()
    assert end_transaction(state, 0, committed=False) is None
    assert state.update(emptied(marker(1)[0]), NOW) is None
    assert state.last_stable_offset(2) == 2


def emptied(header: BatchHeader) -> BatchHeader:
    """As the cleaner leaves a marker whose transaction is gone."""
    header.records_count = 0
    return header


def test_an_emptied_marker_still_fences():
    state = state_after(batch(0, epoch=3, transactional=True))
    end_transaction(state, 1, epoch=3, coordinator=9)
    state.update(emptied(marker(2, epoch=4)[0]), NOW)
    assert verdict(state, batch(1, epoch=3, transactional=True)) is OLD_EPOCH
    assert verdict(state, batch(0, epoch=4, transactional=True)) is ACCEPT
    unknown, _ = marker(3, epoch=9)  # of a type that nobody knows yet
    state.update(unknown, NOW)
    assert verdict(state, batch(0, epoch=4, transactional=True)) is ACCEPT


def test_the_last_stable_offset_waits_for_the_marker_to_be_replicated():
    state = state_after(batch(0, transactional=True, offset=10))
    assert state.last_stable_offset(8) == 8
    assert state.last_stable_offset(11) == 10
    end_transaction(state, 11)
    assert state.last_stable_offset(11) == 10
    state.advance_high_watermark(11)
    assert state.last_stable_offset(11) == 10
    state.advance_high_watermark(12)
    assert state.last_stable_offset(12) == 12


def test_the_last_stable_offset_is_not_below_the_log_start():
    state = state_after(batch(0, transactional=True, offset=10))
    assert state.last_stable_offset(50) == 10
    state.advance_log_start(30)
    assert state.last_stable_offset(50) == 30
    assert state.last_stable_offset(20) == 20


def test_the_oldest_transaction_hangs_when_its_producer_has_not_written_for_long():
    state = state_after(batch(0, timestamp=77))
    assert not state.is_hanging(1000)
    state.update(batch(1, transactional=True, offset=10, timestamp=80), NOW)
    state.update(batch(0, producer_id=7, transactional=True, offset=11, timestamp=20), NOW)
    assert not state.is_hanging(80)
    assert state.is_hanging(81)
    state.update(batch(2, transactional=True, offset=12, timestamp=90), NOW)
    assert not state.is_hanging(81)
    end_transaction(state, 13)
    assert state.is_hanging(81)
    end_transaction(state, 14, producer_id=7)
    assert not state.is_hanging(1000)


def test_without_a_time_nobody_knows_whether_a_transaction_hangs():
    assert not state_after(batch(0, transactional=True, timestamp=-1)).is_hanging(1000)


def test_a_marker_below_the_watermark_holds_nothing_back_when_it_is_read_again():
    state = ProducerStateManager()
    state.advance_high_watermark(20)
    state.update(batch(0, transactional=True, offset=10), NOW)
    end_transaction(state, 11)
    assert state.last_stable_offset(20) == 20
    state.truncate(11)  # an unclean leader has another history, in which nothing is committed yet
    state.update(batch(0, transactional=True, offset=10), NOW)
    end_transaction(state, 11)
    assert state.last_stable_offset(11) == 10


def test_a_snapshot_tells_no_transactions_that_have_ended():
    """So one beyond the high watermark is of no use where there may be any."""
    state = state_after(batch(0, offset=3))
    assert state.snapshot_limit is None
    end_transaction(state, 4)
    state.advance_high_watermark(2)
    again = ProducerStateManager()
    again.advance_high_watermark(2)
    again.load(state.snapshot(), 5, NOW)
    assert again.snapshot_limit == state.snapshot_limit == 2
    again.clear()
    assert len(again) == 0
    assert again.snapshot_limit is None


events = st.lists(
    st.tuples(
        st.sampled_from(["data", "data", "commit", "abort", "restart", "replicate"]),
        st.integers(0, 3),
        st.integers(1, 3),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=200)
@given(events)
def test_last_stable_offset_and_ended_transactions_match_a_scan_of_the_log(events):
    state = ProducerStateManager()
    transactions: list[dict] = []  # first, last (None: open), committed, producer
    sequences = [0] * 4
    end_offset = high_watermark = stable = 0
    for kind, producer, count in events:
        open_one = next(
            (t for t in transactions if t["producer"] == producer and t["last"] is None), None
        )
        if kind == "data":
            state.update(
                batch(
                    sequences[producer],
                    count,
                    producer_id=producer,
                    offset=end_offset,
                    transactional=True,
                ),
                NOW,
            )
            if open_one is None:
                transactions.append({"producer": producer, "first": end_offset, "last": None})
            sequences[producer] += count
            end_offset += count
        elif kind in ("commit", "abort"):
            completed = end_transaction(
                state, end_offset, producer_id=producer, committed=kind == "commit"
            )
            assert (completed is None) == (open_one is None)
            if open_one is not None:
                open_one.update(last=end_offset, committed=kind == "commit")
                still_open = [t["first"] for t in transactions if t["last"] is None]
                assert completed == (
                    producer,
                    open_one["first"],
                    end_offset,
                    min([*still_open, end_offset + 1]),
                    kind == "commit",
                )
            end_offset += 1
        elif kind == "replicate":
            high_watermark = min(end_offset, high_watermark + count)
            state.advance_high_watermark(high_watermark)
        else:
            data, state = state.snapshot(), ProducerStateManager()
            state.load(data, end_offset, NOW)
            high_watermark = end_offset  # else the log is read, see `snapshot_limit`
            state.advance_high_watermark(high_watermark)
        unstable = [
            t["first"] for t in transactions if t["last"] is None or t["last"] >= high_watermark
        ]
        stable = min([*unstable, high_watermark])
        assert state.last_stable_offset(high_watermark) == stable
