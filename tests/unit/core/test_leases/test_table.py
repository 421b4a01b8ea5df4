"""Each event of a table of leases, by value."""

from __future__ import annotations

import sys

import pytest

from kraftpy.core.leases import (
    Acknowledgement,
    Acquired,
    Demand,
    LeaseLimits,
    LeaseTable,
    ReadBatch,
    StateBatch,
)
from kraftpy.core.leases.runs import Runs
from kraftpy.protocol.errors import ErrorCode
from tests.unit.core.test_leases.driver import (
    ACCEPT,
    GAP,
    LIMITS,
    LOCK_MS,
    NO_END,
    REJECT,
    RELEASE,
    RENEW,
    Leases,
)

INVALID_RECORD_STATE, INVALID_REQUEST = (
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.INVALID_REQUEST,
)

# -- acquire


def test_acquiring_counts_a_delivery_and_moves_the_end() -> None:
    leases = Leases((0, 4), (5, 9))
    assert leases.acquire() == [Acquired(0, 9, 1)]
    assert leases.all() == ["0-9 Acquired 1 ann"]
    assert (leases.table.start_offset, leases.table.end_offset) == (0, 10)
    assert leases.table.next_available(10) is None
    assert leases.table.next_available(11) == 10


def test_a_record_has_one_lease() -> None:
    leases = Leases((0, 9))
    assert leases.acquire("ann", 4, is_strict=True) == [Acquired(0, 3, 1)]
    assert leases.acquire("ben") == [Acquired(4, 9, 1)]
    assert leases.acquire("cid") == []


def test_a_batch_is_dealt_whole_if_it_begins_within_what_is_wanted() -> None:
    leases = Leases((0, 4), (5, 9), (10, 14))
    assert leases.acquire(most=6) == [Acquired(0, 9, 1)]


def test_nobody_gets_more_than_is_wanted_where_that_is_strict() -> None:
    leases = Leases((0, 4), (5, 9), (10, 14))
    assert leases.acquire(most=6, is_strict=True) == [Acquired(0, 5, 1)]
    assert leases.acquire(most=6, is_strict=True) == [Acquired(6, 11, 1)]


@pytest.mark.parametrize("is_strict", [False, True])
def test_what_is_told_is_cut(is_strict: bool) -> None:
    leases = Leases((0, 9))
    assert leases.acquire(batch_size=4, is_strict=is_strict) == [
        Acquired(0, 3, 1),
        Acquired(4, 7, 1),
        Acquired(8, 9, 1),
    ]
    assert leases.all() == ["0-9 Acquired 1 ann"]


def test_nothing_is_dealt_beyond_the_watermark() -> None:
    leases = Leases((0, 4), (5, 9))
    assert leases.acquire(end=9) == [Acquired(0, 4, 1)]
    assert leases.acquire(end=5) == []


def test_a_full_table_deals_what_is_available_only() -> None:
    leases = Leases((0, 199), (200, 399), limits=LIMITS._replace(max_record_locks=100))
    assert leases.acquire() == [Acquired(0, 99, 1)]
    assert leases.acquire("ben") == []
    leases.done(40, 49, RELEASE)
    leases.done(60, 99, ACCEPT)
    assert leases.acquire("ben") == [Acquired(40, 49, 2)]
    leases.done(0, 39, ACCEPT)
    assert leases.acquire("ben") == [Acquired(100, 139, 1)]


def test_other_limits_count_from_then_on() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.done(0, 9, RELEASE)
    leases.acquire()
    leases.done(0, 9, RELEASE)
    leases.table.limits = LIMITS._replace(max_deliveries=2)
    assert leases.table.next_available(10) == 0
    assert leases.acquire() == []
    assert leases.all() == ["0-9 Available 2 to be Archived"]
    assert leases.write()[1:] == (10, 0, ())
    assert leases.table.start_offset == 10


# -- accept, release, reject, gap, renew


def test_what_is_accepted_leaves_from_the_start_on() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    change = leases.done(4, 6, ACCEPT)
    assert change[1:] == (0, 3, (StateBatch(4, 6, 2, 1),))
    assert leases.all() == ["0-3 Acquired 1 ann", "4-6 Acknowledged", "7-9 Acquired 1 ann"]
    assert leases.table.finished_count == 3
    change = leases.done(0, 3, ACCEPT)
    assert change[1:] == (7, 0, ())
    assert leases.all() == ["7-9 Acquired 1 ann"]
    assert leases.table.finished_count == 0


def test_what_is_released_is_dealt_again() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    assert leases.done(3, 5, RELEASE).batches == (StateBatch(3, 5, 0, 1),)
    assert leases.all() == ["0-2 Acquired 1 ann", "3-5 Available 1", "6-9 Acquired 1 ann"]
    assert leases.acquire("ben") == [Acquired(3, 5, 2)]


def test_what_is_released_after_its_last_delivery_is_archived() -> None:
    leases = Leases((0, 0))
    for delivery in range(1, 5):
        assert leases.acquire() == [Acquired(0, 0, delivery)]
        assert leases.done(0, 0, RELEASE).batches == (StateBatch(0, 0, 0, delivery),)
    assert leases.acquire() == [Acquired(0, 0, 5)]
    assert leases.say(0, 0, RELEASE) is ErrorCode.NONE
    assert leases.all() == ["0 Acquired 5 ann to be Archived"]
    assert leases.write()[1:] == (1, 0, ())
    assert leases.all() == []


@pytest.mark.parametrize("kind", [REJECT, GAP])
def test_what_is_rejected_or_was_not_there_is_archived(kind: int) -> None:
    leases = Leases((0, 9))
    leases.acquire()
    assert leases.done(3, 5, kind).batches == (StateBatch(3, 5, 4, 1),)
    assert leases.all()[1] == "3-5 Archived"


def test_who_renews_has_time_anew() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.now_ms = LOCK_MS - 1
    assert leases.say(2, 3, RENEW) is ErrorCode.NONE
    assert leases.table.take_change() is None
    assert leases.table.expire(LOCK_MS) == 8
    leases.write()
    assert leases.all() == ["0-1 Available 1", "2-3 Acquired 1 ann", "4-9 Available 1"]
    assert leases.table.next_deadline() == 2 * LOCK_MS - 1


def test_each_offset_may_be_told_of_by_itself() -> None:
    leases = Leases((0, 5))
    leases.acquire()
    change = leases.done(0, 5, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW, GAP)
    assert change[1:] == (
        2,
        2,
        (StateBatch(2, 2, 0, 1), StateBatch(3, 3, 4, 1), StateBatch(5, 5, 4, 1)),
    )
    assert leases.all() == ["2 Available 1", "3 Archived", "4 Acquired 1 ann", "5 Archived"]


# -- how acknowledgements are judged


def test_one_bad_offset_refuses_all() -> None:
    leases = Leases((0, 9))
    leases.acquire(most=5, is_strict=True)
    leases.acquire("ben")
    before = leases.all()
    assert leases.say(3, 6, ACCEPT) is INVALID_RECORD_STATE
    both = [Acknowledgement(0, 1, [ACCEPT]), Acknowledgement(9, 10, [ACCEPT])]
    assert leases.table.acknowledge("ann", both, 0) is INVALID_REQUEST
    both[1] = Acknowledgement(9, 9, [ACCEPT])
    assert leases.table.acknowledge("ann", both, 0) is INVALID_RECORD_STATE
    assert leases.all() == before
    assert leases.table.take_change() is None


def test_nothing_is_acknowledged_twice() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    assert leases.say(3, 5, ACCEPT) is ErrorCode.NONE
    assert leases.say(5, 5, ACCEPT) is INVALID_RECORD_STATE
    leases.write()
    assert leases.say(5, 5, RELEASE) is INVALID_RECORD_STATE


def test_below_the_start_all_is_well() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.done(0, 4, ACCEPT)
    assert leases.say(0, 4, RELEASE) is ErrorCode.NONE
    assert leases.say(1, 2, ACCEPT, member="nobody") is ErrorCode.NONE
    assert leases.table.take_change() is None
    assert leases.done(3, 6, REJECT, REJECT, ACCEPT, ACCEPT).start_offset == 7


@pytest.mark.parametrize(
    "bad",
    [
        [Acknowledgement(5, 4, [ACCEPT])],
        [Acknowledgement(4, 5, [ACCEPT]), Acknowledgement(3, 3, [ACCEPT])],
        [Acknowledgement(4, 5, [ACCEPT]), Acknowledgement(5, 6, [ACCEPT])],
        [Acknowledgement(4, 6, [ACCEPT, ACCEPT])],
        [Acknowledgement(4, 6, [])],
        [Acknowledgement(4, 4, [5])],
        [Acknowledgement(4, 4, [-1])],
        [Acknowledgement(-2, -1, [ACCEPT])],
        [Acknowledgement(0, 1 << 62, [ACCEPT])],
        [Acknowledgement(offset, offset, [ACCEPT]) for offset in range(1_000_000)],
    ],
)
def test_what_makes_no_sense_is_refused(bad: list[Acknowledgement]) -> None:
    leases = Leases((0, 9))
    leases.acquire()
    assert leases.table.acknowledge("ann", bad, 0) is INVALID_REQUEST
    assert leases.all() == ["0-9 Acquired 1 ann"]


# -- deadlines, sessions, the log


def test_what_is_not_answered_in_time_is_dealt_again() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    assert leases.table.next_deadline() == LOCK_MS
    assert leases.table.expire(LOCK_MS - 1) == 0
    assert leases.table.expire(LOCK_MS) == 10
    assert leases.acquire("ben") == []
    assert leases.write().batches == (StateBatch(0, 9, 0, 1),)
    assert leases.acquire("ben") == [Acquired(0, 9, 2)]
    assert leases.say(0, 0, ACCEPT) is INVALID_RECORD_STATE


def test_what_a_session_leaves_behind_is_dealt_again_and_was_delivered() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.done(0, 4, RELEASE)
    leases.acquire("ben", 3, is_strict=True)
    assert leases.table.close_session("ann") == 5
    assert leases.table.close_session("ben") == 3
    assert leases.table.close_session("ben") == 0
    assert leases.write().batches == (StateBatch(0, 2, 0, 2), StateBatch(5, 9, 0, 1))
    assert leases.all() == ["0-2 Available 2", "3-9 Available 1"]


def test_a_record_that_kills_its_readers_is_archived_after_its_last_delivery() -> None:
    leases = Leases((0, 0))
    for number in range(1, 6):
        assert leases.acquire() == [Acquired(0, 0, number)]
        assert leases.table.close_session("ann") == 1
        leases.write()
    assert leases.acquire() == []
    assert leases.table.start_offset == 1


def test_a_session_keeps_what_it_has_said_of_its_records() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.say(0, 4, ACCEPT)
    assert leases.table.close_session("ann") == 5
    assert leases.write().start_offset == 5
    assert leases.all() == ["5-9 Available 1"]


def test_a_gap_between_batches_is_archived() -> None:
    leases = Leases((2, 4), (8, 9), start=0)
    assert leases.acquire() == [Acquired(2, 4, 1), Acquired(8, 9, 1)]
    assert leases.all() == ["2-4 Acquired 1 ann", "5-7 Archived", "8-9 Acquired 1 ann"]
    assert leases.done(2, 4, ACCEPT)[1:] == (8, 0, ())


def test_markers_and_what_was_aborted_are_archived() -> None:
    leases = Leases((0, 1), ReadBatch(2, 5, is_dead=True), ReadBatch(6, 6, is_dead=True), (7, 8))
    assert leases.acquire() == [Acquired(0, 1, 1), Acquired(7, 8, 1)]
    assert leases.all() == ["0-1 Acquired 1 ann", "2-6 Archived", "7-8 Acquired 1 ann"]


# -- the first start, the next leader


def test_the_first_start_is_written_before_anything_is_dealt() -> None:
    table = LeaseTable(LIMITS, 70, is_new=True)
    change = table.take_change()
    assert change is not None
    assert change[1:] == (70, 0, ())
    table.committed(change.number)
    assert table.take_change() is None
    assert table.next_available(71) == 70


def test_what_was_written_is_there_and_leaves_if_it_is_finished() -> None:
    written = [StateBatch(10, 12, 2, 1), StateBatch(13, 13, 4, 5), StateBatch(16, 17, 0, 2)]
    leases = Leases(start=10, written=written)
    assert leases.table.start_offset == 14
    assert leases.all() == ["14-15 Available", "16-17 Available 2"]


def test_a_change_does_not_pass_what_another_one_waits_for() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.say(0, 4, ACCEPT)
    first = leases.take()
    leases.say(5, 9, ACCEPT)
    second = leases.take()
    assert first[1:] == (5, 0, ())
    assert second[1:] == (0, 5, (StateBatch(5, 9, 2, 1),))
    leases.table.committed(second.number)
    assert leases.table.start_offset == 0
    leases.table.failed(first.number, 0)
    assert leases.all() == ["0-4 Acquired 1 ann", "5-9 Acknowledged"]


def test_two_thousand_leases_of_which_every_second_is_finished_take_little_memory() -> None:
    table = LeaseTable(LIMITS, 0)
    table.acquire("ann", 0, [ReadBatch(0, 1_999)], NO_END, Demand(2_000, 0, is_strict=False), 0)
    every_second = [Acknowledgement(offset, offset, [ACCEPT]) for offset in range(1, 2_000, 2)]
    assert table.acknowledge("ann", every_second, 0) is ErrorCode.NONE
    change = table.take_change()
    assert change is not None
    table.committed(change.number)
    runs = table._runs
    assert len(runs) == 2_000
    columns = [getattr(runs, name) for name in Runs.__slots__ if name != "end"]
    assert sum(sys.getsizeof(column) for column in columns) <= 80_000


def test_limits_say_from_when_on_a_run_is_dealt_with_care() -> None:
    assert [LeaseLimits(1, most, 1).careful_from for most in range(2, 11)] == [
        2,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
    ]


def test_what_overlapping_changes_say_of_the_start_is_said_once_more_when_they_are_written() -> (
    None
):
    """Neither knows whether the other one will be: the coordinator would count wrongly for good."""
    leases = Leases((0, 9))
    leases.acquire()
    leases.say(0, 4, ACCEPT)
    first = leases.take()
    leases.say(5, 9, ACCEPT)
    second = leases.take()
    assert (first.start_offset, first.finished_count) == (5, 0)
    assert (second.start_offset, second.finished_count) == (0, 5)
    leases.table.committed(first.number)
    assert not leases.table.has_change
    leases.table.committed(second.number)
    last = leases.write()
    assert (last.start_offset, last.finished_count, last.batches) == (10, 0, ())
    assert not leases.table.has_change
    assert leases.table.is_quiet
