"""Leases under seeds, and that each invariant of theirs can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.core.leases import Change, LeaseTable, RecordState, StateBatch
from kraftpy.core.leases.dealing import Dealer
from kraftpy.core.leases.runs import ACQUIRED, ARCHIVED, AVAILABLE, IN_TRANSITION
from kraftpy.core.leases.state import ShareStateMachine
from kraftpy.core.producers import ProducerStateManager
from tests.simulation.__main__ import replay
from tests.simulation.guards import assert_caught
from tests.simulation.leasing_world import LeasingWorld, simulate_leases
from tests.simulation.world import play

SEEDS = range(1, 11)
# Where to look first; a change of the rules or of the simulation moves these.
KNOWN_SEEDS = {
    "lease_twice": 1,
    "a deadline while an accept is written": 6,
    "ack_unpersisted": 1,
    "gap_skipped": 6,
    "count_forgotten": 6,
    "what a session leaves behind is not counted": 6,
    "stale_leader_writes": 142,
}
WRITTEN_ANEW = 60
DAMAGED_SEED = 8250
"""Both replicas of a partition are damaged, and min.insync.replicas asks for both."""
SEARCH_MAX = 60

Removal = tuple[object, str, Callable[..., Any]]


@pytest.mark.parametrize("block", range(2))
def test_no_seed_breaks_an_invariant_of_leases(block: int) -> None:
    held = accepted = altered = 0
    for seed in SEEDS[block::2]:
        world = LeasingWorld(seed)
        outcome = play(world)
        assert outcome.violation is None, f"{outcome.violation}\n{replay(seed, leases=True)}"
        held += world.leasing.hold
        accepted += world.leasing.accepted
        altered += world.leasing.alterations
    assert held > len(SEEDS) / 8  # of so many all was looked at
    assert accepted > 200
    assert altered


def test_what_is_damaged_everywhere_is_leased_all_the_same() -> None:
    """The replicas hand the lead to each other, and leases end with it; but seldom."""
    outcome = simulate_leases(DAMAGED_SEED)
    assert outcome.violation is None, outcome.violation


def test_what_was_deleted_before_a_replica_began_may_be_written_again() -> None:
    """As in Apache Kafka: the replica knows of no producer what it wrote before (rule 26)."""
    for seed in (WRITTEN_ANEW, *range(1, SEARCH_MAX)):
        world = LeasingWorld(seed)
        assert play(world).violation is None
        if world.invariants.written_anew:
            return
    pytest.fail(f"that happens in none of {SEARCH_MAX} seeds")


def test_a_leader_that_takes_retries_for_news_is_caught() -> None:
    removal = (ProducerStateManager, "check", lambda *_: None), "twice"
    assert_caught(removal, simulate_leases, (WRITTEN_ANEW, *range(1, SEARCH_MAX)))


def test_a_seed_with_leases_is_one_run() -> None:
    assert simulate_leases(3) == simulate_leases(3)


def _lease_shortly(self: Any, of: LeaseTable, *rest: Any) -> None:
    """A lease is over soon."""
    *others, deadline_ms = rest
    _init(self, of, *others, deadline_ms - of.limits.lock_ms + 10)


def _expire_all(self: LeaseTable, now_ms: int) -> int:
    """What is being written is timed out, too."""
    runs = self._runs
    for index in range(len(runs) - 1, -1, -1):
        if runs.states[index] >= IN_TRANSITION and 0 < runs.deadlines[index] <= now_ms:
            runs.put(runs.firsts[index], runs.last_of(index), AVAILABLE, runs.deliveries[index])
            break
    return _expire(self, now_ms)


def _write_no_accepts(self: LeaseTable) -> Change | None:
    """What is accepted isn't written."""
    change = _take_change(self)
    if change is None:
        return None
    batches = tuple(each for each in change.batches if each.state != RecordState.ACKNOWLEDGED)
    return change._replace(start_offset=self.start_offset, batches=batches)


def _write_no_counts(self: LeaseTable) -> Change | None:
    """What is released is written as if nobody had had it."""
    change = _take_change(self)
    if change is None:
        return None
    batches = (StateBatch(*each[:3], 0) if not each.state else each for each in change.batches)
    return change._replace(batches=tuple(batches))


def _close_uncounted(self: LeaseTable, member: str) -> int:
    """What a session leaves behind counts as not delivered."""
    runs = self._runs
    for index in runs.having(ACQUIRED):
        if runs.members[index] == member:
            runs.deliveries[index] -= 1
    return _close(self, member)


def _load_without_gaps(self: LeaseTable, first: int, last: int, *rest: Any) -> None:
    """The next leader takes for finished what nobody has written of."""
    if first > self._runs.end:
        self._runs.append(first - 1, ARCHIVED)
    _load(self, first, last, *rest)


def _write_for_anybody(
    self: ShareStateMachine, token: object, key: Any, write: Any, now_ms: int
) -> Any:
    """Whoever leads."""
    state = self._states.get(key)
    if state is not None:
        state.leader_epoch = min(state.leader_epoch, write.leader_epoch)
    return _write(self, token, key, write, now_ms)


_init = Dealer.__init__
_expire, _take_change, _load = LeaseTable.expire, LeaseTable.take_change, LeaseTable._load
_close, _write = LeaseTable.close_session, ShareStateMachine.write

REMOVALS: dict[str, tuple[Removal, str]] = {
    "lease_twice": ((Dealer, "__init__", _lease_shortly), "has it"),
    "a deadline while an accept is written": ((LeaseTable, "expire", _expire_all), "deals"),
    "ack_unpersisted": ((LeaseTable, "take_change", _write_no_accepts), "it isn't written"),
    "gap_skipped": ((LeaseTable, "_load", _load_without_gaps), "begins"),
    "count_forgotten": ((LeaseTable, "take_change", _write_no_counts), "and it was released"),
    "what a session leaves behind is not counted": (
        (LeaseTable, "close_session", _close_uncounted),
        "time anew",
    ),
    "stale_leader_writes": (
        (ShareStateMachine, "write", _write_for_anybody),
        "behind leader epoch",
    ),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_without_a_rule_some_seed_fails(name: str) -> None:
    seeds = KNOWN_SEEDS[name], *range(1, SEARCH_MAX)
    assert_caught(REMOVALS[name], simulate_leases, seeds)
