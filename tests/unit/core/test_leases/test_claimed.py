"""Leases of cooperative groups: the example of seed 001 by value, and what may go wrong."""

from __future__ import annotations

import random

import pytest

from kraftpy.core.leases import ClaimedTable, ReadBatch, claimed
from kraftpy.core.leases.claimed import Range
from kraftpy.core.leases.judging import ACKNOWLEDGEMENTS_MAX
from kraftpy.core.leases.runs import Runs
from kraftpy.protocol.errors import ErrorCode

LOCK_MS = 30_000
NO_END = 1 << 40


class Group:
    """A table over a log of batches, and the claims that its members have committed."""

    def __init__(self, *batches: Range, stable: int = 0, claims: list[Range] | None = None) -> None:
        self.log = [ReadBatch(*each) for each in batches]
        self.stable = stable
        self.claims = claims or []
        self.now_ms = 0
        self.table = ClaimedTable(stable, self.claims, generation=1)

    def fetch(
        self, member: str, offset: int, *, most: int = 1, end: int = NO_END
    ) -> list[tuple[int, int]]:
        """What the member is answered, if so many batches fit."""
        held = self.table.held(member, offset)
        if held:
            self.table.renew(member, held, LOCK_MS, self.now_ms)
            return held
        asked = self.table.next_available(end)
        if asked is None:
            return []
        batches = [each for each in self.log if each.last >= asked][:most]
        dealt = self.table.lease(member, asked, batches, end, LOCK_MS, self.now_ms)
        return [each[:2] for each in dealt]

    def claim(self, first: int, last: int) -> None:
        """What the coordinator has from now on."""
        self.claims.append((first, last))
        done = {offset for each in self.claims for offset in range(each[0], each[1] + 1)}
        while self.stable in done:
            self.stable += 1

    def done(self, member: str, *ranges: Range) -> ErrorCode:
        """The member commits and says so."""
        for each in ranges:
            self.claim(*each)
        return self.table.done(member, ranges, self.now_ms)

    def read_claims(self) -> None:
        self.table.ask()
        self.table.learn(self.stable, self.claims)

    def all(self) -> list[str]:
        return [
            f"{run.first}-{run.last} {run.state.name} {run.member}".strip()
            for run in self.table.runs()
        ]


def test_the_example_of_the_draft_by_value() -> None:
    """Of 40 to 49 the first who comes gets 40 to 44; the next one asks for 40, too, and gets 45."""
    group = Group((40, 44), (45, 49), stable=40)
    assert group.fetch("ann", 40) == [(40, 44)]
    assert group.table.end_offset == 45
    assert group.fetch("ben", 40) == [(45, 49)]
    # "2. The same consumer is retrying the fetch": the marker stays.
    assert group.fetch("ben", 40) == [(45, 49)]
    assert group.table.end_offset == 50
    assert group.done("ben", (45, 49)) is ErrorCode.NONE
    # "Someone else will take care of 40 to 44 eventually", "3. session timeout".
    assert group.fetch("ben", 50) == []
    group.now_ms = LOCK_MS
    assert group.table.expire(group.now_ms) == 5
    assert group.fetch("ben", 50) == []
    group.read_claims()
    assert group.fetch("ben", 50) == [(40, 44)]
    assert group.done("ben", (40, 44)) is ErrorCode.NONE
    assert group.table.start_offset == 50
    # "1. The consumer is zombie".
    group.table.begin(2)


def test_what_was_committed_and_not_said_isn_t_dealt_again() -> None:
    group = Group((0, 9), (10, 19))
    group.fetch("ann", 0)
    group.claim(0, 3)
    group.claim(8, 9)
    group.now_ms = LOCK_MS
    group.table.expire(group.now_ms)
    assert group.table.needs_claims
    assert group.fetch("ben", 0) == [(10, 19)], "what is in doubt isn't dealt"
    group.read_claims()
    assert not group.table.needs_claims
    assert group.fetch("ben", 20) == [(4, 7)]


def test_what_is_said_while_claims_are_read_counts() -> None:
    group = Group((0, 9), (10, 19))
    group.fetch("ann", 0)
    group.fetch("ben", 0)
    group.now_ms = LOCK_MS - 1
    group.table.renew("ben", [(10, 19)], LOCK_MS, group.now_ms)
    group.now_ms = LOCK_MS
    group.table.expire(group.now_ms)
    group.table.ask()
    stable, claims = group.stable, list(group.claims)
    group.done("ben", (10, 19))
    group.table.learn(stable, claims)
    assert group.all() == ["0-9 AVAILABLE", "10-19 ACKNOWLEDGED"]


def test_what_gets_into_doubt_while_claims_are_read_stays_in_doubt() -> None:
    group = Group((0, 9), (10, 19))
    group.fetch("ann", 0)
    group.now_ms = 1
    group.fetch("ben", 0)
    group.now_ms = LOCK_MS
    group.table.expire(group.now_ms)
    group.table.ask()
    group.now_ms += 1
    group.claim(10, 14)
    group.table.expire(group.now_ms)
    group.table.learn(0, [])
    assert group.table.needs_claims
    assert group.fetch("cat", 0, most=2) == [(0, 9)]
    group.read_claims()
    assert group.fetch("cat", 20, most=2) == [(15, 19)]


def test_a_new_generation_reads_what_is_claimed_and_leases_stay() -> None:
    group = Group((0, 9), (10, 19), (20, 29))
    group.fetch("ann", 0)
    group.fetch("ben", 0)
    group.done("ann", (0, 9))
    group.table.begin(2)
    assert group.fetch("ann", 10) == []
    group.stable, group.claims = 5, []  # somebody has set it back
    group.read_claims()
    assert group.fetch("ann", 10) == [(5, 9)]
    assert group.fetch("ben", 10) == [(10, 19)]
    assert group.fetch("cat", 0) == [(20, 29)]


def test_markers_and_gaps_are_in_somebody_s_lease() -> None:
    group = Group((12, 14), (18, 18), (19, 25), stable=3)
    assert group.fetch("ann", 3, most=2) == [(3, 18)]
    assert group.done("ann", (3, 18)) is ErrorCode.NONE
    assert group.table.start_offset == 19
    assert group.fetch("ann", 19, end=25) == [], "not all of it may be read yet"


def test_a_batch_that_begins_below_the_start_is_dealt_from_there() -> None:
    group = Group((0, 9), stable=4, claims=[(6, 7)])
    assert group.fetch("ann", 4) == [(4, 5), (8, 9)]


def test_what_is_said_of_others_records_is_refused_as_a_whole() -> None:
    group = Group((0, 9), (10, 19), (20, 29))
    group.fetch("ann", 0)
    group.fetch("ben", 0)
    before = group.all()
    for ranges, error in [
        ([(0, 4), (10, 12)], ErrorCode.INVALID_RECORD_STATE),
        ([(0, 4), (20, 20)], ErrorCode.INVALID_REQUEST),
        ([(5, 9), (0, 4)], ErrorCode.INVALID_REQUEST),
        ([(4, 0)], ErrorCode.INVALID_REQUEST),
        ([(-5, 3)], ErrorCode.INVALID_REQUEST),
        ([(0, 4), (4, 6)], ErrorCode.INVALID_REQUEST),
        ([(0, 1 << 62)], ErrorCode.INVALID_REQUEST),
        ([(0, 0)] * (ACKNOWLEDGEMENTS_MAX + 1), ErrorCode.INVALID_REQUEST),
    ]:
        assert group.table.done("ann", ranges, 0) is error, ranges[:2]
        assert group.all() == before
    group.now_ms = LOCK_MS
    group.table.expire(group.now_ms)
    assert group.table.done("ann", [(0, 9)], group.now_ms) is ErrorCode.INVALID_RECORD_STATE


def test_all_that_there_is_said_done_often_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group((0, 9), claims=[(each, each) for each in range(1, 100, 2)])
    looked_at: list[int] = []
    between = Runs.between

    def counted(runs: Runs, first: int, last: int) -> range:
        found = between(runs, first, last)
        looked_at.extend(found)
        return found

    monkeypatch.setattr(Runs, "between", counted)
    error = group.table.done("ann", [(0, 98)] * 1000, 0)
    assert error is ErrorCode.INVALID_REQUEST
    assert len(looked_at) <= 100


def test_twice_done_is_done() -> None:
    group = Group((0, 9), (10, 19))
    group.fetch("ann", 0, most=2)
    for _ in range(2):
        assert group.done("ann", (10, 12)) is ErrorCode.NONE
    assert group.done("ann", (0, 9), (11, 19)) is ErrorCode.NONE
    assert group.done("ann", (0, 9)) is ErrorCode.NONE
    assert group.table.start_offset == 20


def test_it_is_dealt_as_often_as_need_be() -> None:
    group = Group((0, 9))
    for turn in range(70_000 // 7):
        assert group.fetch(f"m{turn % 3}", 0) == [(0, 9)]
        group.now_ms += LOCK_MS
        group.table.expire(group.now_ms)
        group.read_claims()
    assert group.all() == ["0-9 AVAILABLE"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimed, "RUNS_MAX", 8)
    group = Group(*((at, at + 9) for at in range(0, 200, 10)))
    group.fetch("ann", 0, most=2)
    for offset in range(1, 16, 2):
        assert group.done("ann", (offset, offset)) is ErrorCode.NONE
    assert len(group.table.runs()) == 17
    assert group.fetch("ben", 0) == [], "nothing new while there is so much in pieces"
    assert group.table.done("ann", [(17, 17)], 0) is ErrorCode.MAX_INDIVIDUAL_COMMIT_REACHED
    group.claim(0, 19)
    group.now_ms = LOCK_MS
    group.table.expire(group.now_ms)
    group.read_claims()
    assert group.fetch("ben", 0) == [(20, 29)]


@pytest.mark.parametrize("seed", range(20))
def test_no_offset_has_two_leases_and_nothing_claimed_is_dealt(seed: int) -> None:
    chosen = random.Random(seed)
    batches: list[Range] = []
    at = 0
    for _ in range(30):
        at += chosen.choice([0, 0, 1, 3])
        size = chosen.randrange(1, 8)
        batches.append((at, at + size - 1))
        at += size
    group = Group(*batches)
    holders: dict[int, tuple[str, int]] = {}
    told: set[int] = set()
    arrived: dict[str, int] = {}
    asked: tuple[int, list[Range]] | None = None
    for _ in range(400):
        group.now_ms += chosen.randrange(LOCK_MS // 4)
        member = chosen.choice("abcd")
        match chosen.randrange(6):
            case 0 | 1:
                group.table.expire(group.now_ms)
                found = group.fetch(member, arrived.get(member, 0), most=chosen.randrange(1, 3))
                for first, last in found:
                    arrived[member] = max(arrived.get(member, 0), last + 1)
                    for offset in range(first, last + 1):
                        other, until = holders.get(offset, (member, 0))
                        assert other == member or until <= group.now_ms, (offset, other)
                        assert offset not in told
                        holders[offset] = member, group.now_ms + LOCK_MS
            case 2 | 3:
                own = group.table.held(member, 0)
                if own and (own[0][0] > 0 or chosen.random() < 0.5):
                    first, last = chosen.choice(own)
                    last = chosen.randrange(first, last + 1)
                    group.claim(first, last)
                    if chosen.random() < 0.7:
                        error = group.table.done(member, [(first, last)], group.now_ms)
                        assert error is ErrorCode.NONE
                        told |= set(range(first, last + 1))
            case 4:
                group.table.ask()
                asked = group.stable, list(group.claims)
            case 5 if asked is not None:
                group.table.learn(*asked)
                asked = None
                claimed_now = {o for first, last in group.claims for o in range(first, last + 1)}
                table = group.table
                assert all(offset in claimed_now for offset in range(table.start_offset))
    for _ in range(200):
        group.now_ms += LOCK_MS
        group.table.expire(group.now_ms)
        group.read_claims()
        for first, last in group.fetch("z", 0, most=3):
            group.done("z", (first, last))
    assert group.table.start_offset == group.stable == at
