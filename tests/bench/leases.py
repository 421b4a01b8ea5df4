"""`make bench ARGS=leases`: what a table of leases takes of CPU and memory.

2,000 records are leased and every second one is accepted, so that no two runs touch that are alike:
that is the longest table that there can be with `group.share.partition.max.record.locks` as it is.
There one run is acquired, acknowledged and written at a time.

Besides, what takes longest at once, on a table with as many record locks as there may be: nobody
else is served by a broker meanwhile (decision 10).
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from kraftpy.core.leases import (
    Acknowledgement,
    ClaimedTable,
    Demand,
    LeaseLimits,
    LeaseTable,
    ReadBatch,
)
from kraftpy.core.leases.claimed import RUNS_MAX
from kraftpy.core.leases.share_state import ShareState
from kraftpy.core.leases.state_records import Snapshot, Update
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.extensions import DONE_MAX
from tests.bench.figures import Values

ACQUIRE = "leases: acquire a run"
ACKNOWLEDGE = "leases: acknowledge a run"
WRITTEN = "leases: a change is written"
ACQUIRE_ALL = "leases: acquire 2,000 single records at once"
ACKNOWLEDGE_ALL = "leases: acknowledge 2,000 single records at once"
TYPES_ALL = "leases: acknowledge 4,000 records, each with a type of its own"
WRITTEN_ALL = "leases: a change of 4,000 batches is written"
STATE_ALL = "share coordinator: takes in 4,000 batches"
CLAIMS_READ = "claims: 10,000 single ones are read"
CLAIMS_LEASED = "claims: 10,000 single records between them are leased"
CLAIMS_DONE = "claims: 1,000 of these leases are said done"
MEMORY = "leases: 2,000, every second one finished"

LOCKS = 2_000
CLAIMS = RUNS_MAX // 2
_LIMITS = LeaseLimits(LOCKS, 5, 30_000)
_ALL = Demand(LOCKS, 0, is_strict=False)
_ONE = Demand(1, 0, is_strict=True)
_LOG = [ReadBatch(0, LOCKS - 1)]


def _say(table: LeaseTable, kind: int, offset: int) -> None:
    error = table.acknowledge("member", [Acknowledgement(offset, offset, (kind,))], 0)
    assert not error
    change = table.take_change()
    assert change is not None
    table.committed(change.number)


def holey() -> LeaseTable:
    """A table with as many runs as it can have."""
    table = LeaseTable(_LIMITS, 0)
    table.acquire("member", 0, _LOG, LOCKS, _ALL, 0)
    for offset in range(1, LOCKS, 2):
        _say(table, AcknowledgeType.ACCEPT, offset)
    assert len(table.runs()) == LOCKS
    return table


def round_of() -> dict[str, float]:
    """One round: µs for a run, and KiB."""
    tracemalloc.start()
    table = holey()
    kib = tracemalloc.get_traced_memory()[0] / 1024
    tracemalloc.stop()
    for offset in range(0, LOCKS, 2):
        _say(table, AcknowledgeType.RELEASE, offset)
    acquire_s = acknowledge_s = written_s = 0.0
    clock = time.thread_time
    for _ in range(LOCKS // 2):
        started_at = clock()
        asked = table.next_available(LOCKS)
        assert asked is not None
        acquired = table.acquire("member", asked, _LOG, LOCKS, _ONE, 0)
        acquire_s += clock() - started_at
        assert len(acquired) == 1
    for offset in range(LOCKS - 2, -1, -2):
        started_at = clock()
        said = [Acknowledgement(offset, offset, (AcknowledgeType.ACCEPT,))]
        table.acknowledge("member", said, 0)
        change = table.take_change()
        asked_at = clock()
        assert change is not None
        table.committed(change.number)
        written_s += clock() - asked_at
        acknowledge_s += asked_at - started_at
    assert table.start_offset == LOCKS
    runs = LOCKS // 2
    return {
        ACQUIRE: acquire_s / runs * 1e6,
        ACKNOWLEDGE: acknowledge_s / runs * 1e6,
        WRITTEN: written_s / runs * 1e6,
        MEMORY: kib,
    }


def _all(count: int) -> LeaseTable:
    """A table with all records leased to one member."""
    table = LeaseTable(_LIMITS._replace(max_record_locks=count), 0)
    demand = _ALL._replace(max_records=count)
    table.acquire("member", 0, [ReadBatch(0, count - 1)], count, demand, 0)
    return table


def _longest() -> dict[str, float]:
    """What takes longest, ms."""
    took: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started_at = time.thread_time()
        done = work()
        took[name] = (time.thread_time() - started_at) * 1e3
        return done

    table, single = _all(2 * LOCKS), range(0, 2 * LOCKS, 2)
    for offset in range(1, 2 * LOCKS, 2):
        _say(table, AcknowledgeType.ACCEPT, offset)
    given_back = [Acknowledgement(offset, offset, (AcknowledgeType.RELEASE,)) for offset in single]
    error = timed(ACKNOWLEDGE_ALL, lambda: table.acknowledge("member", given_back, 0))
    change = table.take_change()
    assert not error
    assert change is not None
    table.committed(change.number)
    log = [ReadBatch(0, 2 * LOCKS - 1)]
    acquired = timed(ACQUIRE_ALL, lambda: table.acquire("member", 0, log, 2 * LOCKS, _ALL, 0))
    assert len(acquired) == LOCKS
    table = _all(2 * LOCKS)
    types = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE) * LOCKS
    said = [Acknowledgement(0, 2 * LOCKS - 1, tuple(map(int, types)))]
    error = timed(TYPES_ALL, lambda: table.acknowledge("member", said, 0))
    change = table.take_change()
    assert not error
    assert change is not None
    timed(WRITTEN_ALL, lambda: table.committed(change.number))
    state = ShareState(Snapshot(0, 0, 0, 0, 0, 0, 0, change.batches[1:]))
    update = Update(0, 0, -1, 0, tuple(each._replace(deliveries=2) for each in change.batches))
    timed(STATE_ALL, lambda: state.apply(update))
    end = 2 * CLAIMS
    claims = [(offset, offset) for offset in range(1, end, 2)]
    claimed = ClaimedTable(0)
    timed(CLAIMS_READ, lambda: claimed.learn(0, claims))
    log = [ReadBatch(0, end - 1)]
    acquired = timed(CLAIMS_LEASED, lambda: claimed.lease("member", 0, log, end, 30_000, 0))
    assert len(acquired) == CLAIMS
    done = [each[:2] for each in acquired[:: CLAIMS // DONE_MAX]]
    error = timed(CLAIMS_DONE, lambda: claimed.done("member", done, 0))
    assert not error
    return took


def run(rounds: int) -> Values:
    """All figures of so many rounds."""
    values: Values = {}
    for _ in range(rounds):
        for name, value in (round_of() | _longest()).items():
            values.setdefault(name, []).append(value)
    return values
