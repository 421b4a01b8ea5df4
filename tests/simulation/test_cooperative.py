"""Members that share partitions under seeds, and that each invariant of theirs can fail."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from kraftpy.core.groups import claimed_commits
from kraftpy.core.groups.individual.commits import Claims
from kraftpy.core.groups.individual.coverage import Coverage
from kraftpy.core.groups.individual.pending import PendingClaims
from kraftpy.core.groups.individual.plan import Plan
from kraftpy.protocol.key_hash import HASH_MAX
from tests.consistency.broken_shares import write_first
from tests.simulation import members
from tests.simulation.__main__ import replay
from tests.simulation.cooperative_world import (
    KEYS,
    CooperativeWorld,
    hash_of,
    simulate_cooperative,
)
from tests.simulation.guards import assert_caught
from tests.simulation.invariants import Violation
from tests.simulation.log import Batch, header_of, stamped
from tests.simulation.members import Claimer
from tests.simulation.replica import Name
from tests.simulation.world import play

SEEDS = range(1, 9)
SEARCH_MAX = 60

Removal = tuple[object, str, Any]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", range(2))
def test_no_seed_breaks_an_invariant_of_claims(block: int) -> None:
    held = claimed = replays = committed = aborted = 0
    for seed in SEEDS[block::2]:
        world = CooperativeWorld(seed)
        outcome = play(world)
        assert outcome.violation is None, f"{outcome.violation}\n{replay(seed, cooperative=True)}"
        held += world.cooperative.hold
        claimed += world.cooperative.claimed
        replays += world.cooperative.replays
        committed += world.cooperative.pending.committed
        aborted += world.cooperative.pending.aborted
    assert held > len(SEEDS) / 4  # of so many all was looked at
    assert claimed > 100
    assert replays > 100
    assert committed > 10
    assert aborted


def test_a_seed_with_shared_partitions_is_one_run() -> None:
    assert simulate_cooperative(7) == simulate_cooperative(7)


def _records_with_tombstones(self: Plan, *args: Any) -> Any:
    """Tombstones of what is passed come with the stable offset, and not behind it."""
    records = _records(self, *args)
    gone = [
        key
        for key in self._touched
        if (was := self._old.having(key)) is not None and was[0] == key[2]
    ]
    there = {record[3:6] for record in records}
    more = [
        type(records[0])(*args[0], *key, None) if records else None
        for key in gone
        if key not in there and self._new.having(key) is None
    ]
    return records + [each for each in more if each is not None]


def _stable_is_max(self: Coverage, offset: int) -> int:
    """As far as any slice is done."""
    lasts = [last + 1 for _, _, first, last in self if first <= offset <= last]
    return max(lasts, default=offset)


def _put_what_is_passed(self: Claims, *args: Any) -> None:
    """Claims that touch are one while the log is read, also where the first is passed."""
    with patch.object(Claims, "stable_offset", lambda *_: -1):
        _put(self, *args)


def _hand_out_anyway(self: Any) -> bool:
    """Who was replaced goes on."""
    return bool(self.up)


def _end_all(self: PendingClaims, producer_id: int, topic_id: bytes, *, committed: bool) -> None:
    """Whatever the marker says."""
    _end(self, producer_id, topic_id, committed=True)


def _nothing_is_pending(self: Claims, group_id: str) -> dict[Any, Any]:
    """Who requires stable offsets is told what there is."""
    return {}


def _first_is_enough(self: Claims, producer_id: int, records: Any) -> None:
    """Of what a transaction claims one record is kept."""
    _replay_in(self, producer_id, list(records)[:1])


_records, _put = Plan.records, Claims._put
_end, _replay_in = PendingClaims.end, Claims.replay_in

REMOVALS: dict[str, tuple[Removal, str]] = {
    "tombstones come first": ((Plan, "records", _records_with_tombstones), "a tombstone of"),
    "the stable offset is the fastest slice's": (
        (Coverage, "stable_from", _stable_is_max),
        "nobody has processed",
    ),
    "what is passed is read": ((Claims, "_put", _put_what_is_passed), "lacks"),
    "a reset's offset comes first": (
        (claimed_commits, "_write_after", write_first),
        "there are claims yet",
    ),
    "aborted claims count": ((PendingClaims, "end", _end_all), "nobody has processed"),
    "pending claims are handed out": (
        (Claims, "pending_slices", _nothing_is_pending),
        "which has claimed it, is open",
    ),
    "a transaction counts in part": ((Claims, "replay_in", _first_is_enough), "lacks"),
    "who was replaced hands out": (
        (members.Shared, "may_hand_out", property(_hand_out_anyway)),
        "has its hash, too",
    ),
}


# Where to look first; a change of the rules or of the simulation moves these.
KNOWN_SEEDS = {
    "tombstones come first": 3,
    "the stable offset is the fastest slice's": 1,
    "what is passed is read": 9,
    "a reset's offset comes first": 8,
    "aborted claims count": 6,
    "pending claims are handed out": 20,
    "a transaction counts in part": 6,
    "who was replaced hands out": 15,
}
APART_SEEDS = 1, 17
UNDELETED_SEEDS = 4825, 5165
"""A leader that alone knew of a deletion goes, before who passed it over could claim that."""
LATE_RESET_SEED = 8649
"""Who resets an offset gives up waiting before the broker, which stands still, hears of it."""
DAMAGED_SEED = 6677
"""All replicas of the offsets are damaged, and min.insync.replicas asks for all of them."""


@pytest.mark.parametrize("name", REMOVALS)
def test_without_a_rule_some_seed_fails(name: str) -> None:
    seeds = KNOWN_SEEDS[name], *range(1, SEARCH_MAX)
    assert_caught(REMOVALS[name], simulate_cooperative, seeds)


def test_the_claims_are_led_elsewhere_for_a_time() -> None:
    """Scenario twin_apart: plain commits and the group go on; claims wait, and none is lost."""
    apart = set[int]()
    for seed in (*APART_SEEDS, *range(1, SEARCH_MAX)):
        world = CooperativeWorld(seed)
        outcome = play(world)
        assert outcome.violation is None, f"{outcome.violation}\n{replay(seed, cooperative=True)}"
        if world.cooperative.apart and world.cooperative.hold and world.cooperative.claimed:
            apart.add(seed)
            if len(apart) == 2:
                return
    pytest.fail("nowhere were the claims led by another broker than the offsets")


@pytest.mark.parametrize("seed", UNDELETED_SEEDS)
def test_what_was_deleted_comes_again_with_a_leader_that_has_not_heard_of_it(seed: int) -> None:
    outcome = simulate_cooperative(seed)
    assert outcome.violation is None, f"{outcome.violation}\n{replay(seed, cooperative=True)}"


def test_damaged_offsets_are_had_anew_once_fewer_replicas_are_asked_for() -> None:
    outcome = simulate_cooperative(DAMAGED_SEED)
    assert outcome.violation is None, outcome.violation


def test_a_reset_that_nobody_waits_for_any_more_is_waited_for_in_the_end() -> None:
    outcome = simulate_cooperative(LATE_RESET_SEED)
    assert outcome.violation is None, outcome.violation


def test_a_key_is_handed_out_in_order_but_for_what_was_deleted() -> None:
    values = [(0, count * KEYS) for count in range(4)]  # All have one key.

    def world_with_records() -> tuple[CooperativeWorld, Claimer, Name]:
        world = CooperativeWorld(1)
        name = world.data_names[0]
        member = Claimer(world, "group", 1)
        world.invariants.batches[name].append(Batch(stamped(header_of(4), 0, 0), tuple(values)))
        world.cooperative.handed_out(member, name, 0, values[0])
        return world, member, name

    world, member, name = world_with_records()
    world.cooperative.skipped(member, name, [(0, HASH_MAX + 1)], 2)
    world.cooperative.handed_out(member, name, 3, values[3])
    world.cooperative.handed_out(member, name, 1, values[1])  # A leader has it yet.
    with pytest.raises(Violation, match="for the first time"):
        world.cooperative.handed_out(member, name, 2, values[2])

    world, member, name = world_with_records()
    own_hash = hash_of(values[0])
    world.cooperative.skipped(member, name, [(0, own_hash)], 2)  # Of another's slices.
    world.cooperative.handed_out(member, name, 3, values[3])
    with pytest.raises(Violation, match="for the first time"):
        world.cooperative.handed_out(member, name, 1, values[1])
