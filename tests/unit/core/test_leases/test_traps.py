"""The traps of leases, by their numbers in the design."""

from __future__ import annotations

from kraftpy.core.leases import Acquired, LeaseTable, StateBatch
from kraftpy.protocol.errors import ErrorCode
from tests.unit.core.test_leases.driver import (
    ACCEPT,
    LIMITS,
    LOCK_MS,
    REJECT,
    RELEASE,
    Leases,
)


def test_trap_1_a_deadline_while_an_accept_is_being_written() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    assert leases.say(0, 9, ACCEPT) is ErrorCode.NONE
    change = leases.take()
    leases.now_ms = LOCK_MS + 1
    assert leases.table.expire(leases.now_ms) == 0
    assert leases.acquire("ben") == []
    assert leases.table.close_session("ann") == 0
    assert leases.acquire("ben") == []
    leases.table.committed(change.number)
    assert leases.all() == []
    assert leases.table.start_offset == 10


def test_trap_2_a_write_that_failed_is_rolled_back() -> None:
    for kind in (ACCEPT, RELEASE, REJECT):
        leases = Leases((0, 9))
        leases.acquire()
        assert leases.say(0, 4, kind) is ErrorCode.NONE
        leases.table.failed(leases.take().number, LOCK_MS - 1)
        assert leases.all() == ["0-9 Acquired 1 ann"]
        assert leases.table.next_deadline() == LOCK_MS
        leases.done(0, 4, ACCEPT)
        assert leases.table.start_offset == 5


def test_trap_2_a_write_that_failed_too_late_makes_it_available() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    assert leases.say(0, 4, ACCEPT) is ErrorCode.NONE
    leases.table.failed(leases.take().number, LOCK_MS)
    assert leases.all() == ["0-4 Available 1", "5-9 Acquired 1 ann"]
    assert leases.acquire("ben") == [Acquired(0, 4, 2)]


def test_trap_2_a_lease_that_is_rolled_back_is_timed_out_like_others() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.say(0, 9, ACCEPT)
    change = leases.take()
    assert leases.table.expire(LOCK_MS) == 0
    assert leases.table.next_deadline() is None
    leases.table.failed(change.number, LOCK_MS - 5)  # the clock was set
    assert leases.table.next_deadline() == LOCK_MS
    assert leases.table.expire(LOCK_MS) == 10


def test_trap_2_what_cannot_be_archived_is_not_dealt_once_more() -> None:
    leases = Leases((0, 0), written=[StateBatch(0, 0, 0, 4)])
    assert leases.acquire() == [Acquired(0, 0, 5)]
    assert leases.table.expire(LOCK_MS) == 1
    leases.now_ms = LOCK_MS
    for _ in range(3):
        leases.table.failed(leases.take().number, leases.now_ms)
        assert leases.all() == ["0 Available 5"]
        assert leases.acquire("ben") == []
    assert leases.write().start_offset == 1


def test_trap_3_gaps_between_persisted_runs_are_dealt() -> None:
    written = [StateBatch(3, 4, 2, 1), StateBatch(7, 7, 0, 2)]
    leases = Leases((0, 9), written=written)
    assert leases.all() == ["0-2 Available", "3-4 Acknowledged", "5-6 Available", "7 Available 2"]
    assert leases.table.end_offset == 8
    assert leases.acquire() == [
        Acquired(0, 2, 1),
        Acquired(5, 6, 1),
        Acquired(7, 7, 3),
        Acquired(8, 9, 1),
    ]


def test_trap_4_the_start_offset_within_a_batch() -> None:
    leases = Leases((0, 9), start=4)
    assert leases.acquire(most=2, is_strict=True) == [Acquired(4, 5, 1)]
    leases.done(4, 5, ACCEPT)
    assert leases.acquire() == [Acquired(6, 9, 1)]
    assert leases.table.start_offset == 6


def test_trap_5_released_then_compacted() -> None:
    leases = Leases((0, 4), (5, 9))
    leases.acquire()
    leases.done(5, 9, ACCEPT)
    leases.done(0, 4, RELEASE)
    leases.log = [leases.log[1]]
    assert leases.table.start_offset == 0
    assert leases.acquire("ben") == []
    assert leases.table.start_offset == leases.table.end_offset == 10


def test_trap_5_compacted_while_others_have_what_lies_around() -> None:
    leases = Leases((0, 2), (3, 5), (6, 9))
    leases.acquire()
    leases.done(3, 5, RELEASE)
    del leases.log[1]
    assert leases.acquire("ben") == []
    assert leases.all() == ["0-2 Acquired 1 ann", "3-5 Archived", "6-9 Acquired 1 ann"]


def test_trap_6_the_log_start_passes_what_is_acquired() -> None:
    leases = Leases((0, 9), (10, 19))
    leases.acquire(most=10, is_strict=True)
    leases.done(3, 4, ACCEPT)
    leases.say(7, 9, ACCEPT)
    change = leases.take()
    leases.table.advance_log_start(8)
    assert leases.all() == ["8-9 Acquired 1 ann to be Acknowledged"]
    assert leases.table.finished_count == 0
    assert leases.say(0, 2, ACCEPT) is ErrorCode.NONE
    leases.table.committed(change.number)
    assert leases.table.start_offset == 10
    leases.table.advance_log_start(15)
    assert (leases.table.start_offset, leases.table.end_offset) == (15, 15)
    assert leases.acquire() == [Acquired(15, 19, 1)]


def test_trap_6_a_change_from_before_the_log_start_moved_fails() -> None:
    leases = Leases((0, 9))
    leases.acquire()
    leases.say(0, 9, RELEASE)
    change = leases.take()
    leases.table.advance_log_start(6)
    leases.table.failed(change.number, 0)
    assert leases.all() == ["6-9 Acquired 1 ann"]


def _deal_until_archived(poison: int, count: int) -> tuple[list[int], list[int]]:
    """A member dies of one record, again and again: what was accepted, sizes."""
    table = LeaseTable(LIMITS, 0)
    leases = Leases((0, count - 1))
    leases.table = table
    accepted: list[int] = []
    sizes: list[int] = []
    while table.start_offset < count:
        acquired = leases.acquire()
        assert acquired
        sizes.append(sum(last - first + 1 for first, last, _ in acquired))
        if any(first <= poison <= last for first, last, _ in acquired):
            leases.now_ms += LOCK_MS
            table.expire(leases.now_ms)
            leases.write()
            continue
        for first, last, _ in acquired:
            leases.done(first, last, ACCEPT)
            accepted += range(first, last + 1)
    return accepted, sizes


def test_trap_9_one_poison_record_archives_itself_alone() -> None:
    for poison in (0, 77, 499):
        accepted, sizes = _deal_until_archived(poison, 500)
        assert sorted({*range(500)} - {*accepted}) == [poison]
        assert len(accepted) == 499
        # Thrice with all others, then with half of those that are left.
        assert sizes[:4] == [500, 500, 500, 250]
        assert max(sizes[4:]) <= 125


def test_trap_9_what_is_dealt_with_care_has_nothing_beside_it() -> None:
    written = [StateBatch(0, 9, 0, 1), StateBatch(10, 19, 0, 3), StateBatch(20, 29, 0, 4)]
    leases = Leases((0, 99), written=written)
    assert leases.acquire() == [Acquired(0, 9, 2)]
    assert leases.acquire() == [Acquired(10, 14, 4)]
    assert leases.acquire() == [Acquired(15, 17, 4)]
    leases.table.close_session("ann")
    leases.write()
    assert leases.acquire() == [Acquired(0, 9, 3)]
