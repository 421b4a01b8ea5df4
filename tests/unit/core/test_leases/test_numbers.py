"""What tables count: every record that is leased, isn't any more, or won't be again, once."""

from __future__ import annotations

from kraftpy.core.leases import Acknowledgement, Demand, LeaseLimits, LeaseTable, ReadBatch
from kraftpy.core.leases.numbers import LeaseNumbers
from kraftpy.core.leases.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE, IN_TRANSITION
from kraftpy.protocol.errors import ErrorCode

LIMITS = LeaseLimits(100, 2, 1_000)
ALL = Demand(100, 0, is_strict=False)
LOG = [ReadBatch(0, 9), ReadBatch(10, 10, is_dead=True), ReadBatch(11, 19)]
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


def kept(table: LeaseTable) -> None:
    change = table.take_change()
    assert change is not None
    table.committed(change.number)


def test_a_record_is_counted_by_what_became_of_it() -> None:
    numbers = LeaseNumbers()
    table = LeaseTable(LIMITS._replace(max_deliveries=3), 0, numbers=numbers)
    acquired = table.acquire("ann", 0, LOG, 20, ALL, 0)
    assert numbers.acquired == 19
    said = [Acknowledgement(2, 7, [ACCEPT, RELEASE, RELEASE, REJECT, GAP, RENEW])]
    assert table.acknowledge("ann", said, 0) is ErrorCode.NONE
    assert table.records_by_state() == {
        ACQUIRED: 14,
        IN_TRANSITION | ACKNOWLEDGED: 1,
        IN_TRANSITION | AVAILABLE: 2,
        IN_TRANSITION | ARCHIVED: 2,
        ARCHIVED: 1,
    }
    kept(table)
    assert table.records_by_state() == {ACQUIRED: 14, ACKNOWLEDGED: 1, AVAILABLE: 2, ARCHIVED: 3}
    assert table.close_session("ann") == 14
    kept(table)
    assert table.acquire("ben", 0, LOG, 20, ALL, 0)[0] == (0, 1, 2)
    assert numbers.acquired == 19 + 14 + 2
    table.take_back("ben", [acquired[-1]])
    table.limits = LIMITS
    assert table.expire(1_000) == 7
    kept(table)
    assert numbers.released == {
        "released": 2,
        "timed_out": 7,
        "session_ended": 14,
        "not_sent": 9,
    }
    assert numbers.archived == {"rejected": 1, "gap": 1, "delivery_limit": 7, "not_in_log": 1}


def test_who_gives_a_record_up_is_told_apart() -> None:
    numbers = LeaseNumbers()
    table = LeaseTable(LIMITS, 0, numbers=numbers)
    for last in (9, 0):
        table.acquire("ann", 0, LOG, 20, ALL, 0)
        said = [Acknowledgement(0, last, [RELEASE])]
        assert table.acknowledge("ann", said, 0) is ErrorCode.NONE
        kept(table)
    assert (numbers.released["released"], numbers.archived["delivery_limit"]) == (11, 1)
    assert table.expire(1_000) == 9 + 9  # the latter for the first time
    kept(table)
    assert (numbers.released["timed_out"], numbers.archived["delivery_limit"]) == (18, 10)
    table.advance_log_start(15)
    assert numbers.archived["not_in_log"] == 1 + 4


def test_a_table_is_full_when_nothing_new_is_leased() -> None:
    table = LeaseTable(LIMITS._replace(max_record_locks=10), 0)
    assert not table.is_full
    table.acquire("ann", 0, LOG[:1], 20, ALL, 0)
    assert table.is_full
    assert table.acknowledge("ann", [Acknowledgement(0, 0, [ACCEPT])], 0) is ErrorCode.NONE
    kept(table)
    assert not table.is_full
