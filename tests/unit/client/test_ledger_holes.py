"""Without auto commit: what is claimed of a partition though the user commits nothing of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from kraftpy.client.ledger import WHOLE, Claim, Dues, Ledger
from kraftpy.client.spans import Spans
from kraftpy.protocol.key_hash import HASH_MAX

from .test_ledger import HIGH, LOW, Reading, hand_out

OURS, THEIRS = 5, HASH_MAX
"""Hashes of `LOW`, and of `HIGH`."""


def holes(ledger: Ledger) -> list[tuple[Spans, list[tuple[int, int]]]]:
    return [(due.slices, due.ranges) for due in ledger.holes().accounts]


def read(ledger: Ledger, ours: set[int], end: int) -> list[int]:
    """Reads on in a log whose other records are others'."""
    hashes = {offset: OURS if offset in ours else THEIRS for offset in range(end)}
    return hand_out(ledger, ledger.turn(), hashes, end)


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(holes=True)
    made.add(LOW, 0)
    return made


def test_nothing_but_others_records_is_one(ledger: Ledger) -> None:
    assert holes(ledger) == []
    assert read(ledger, set(), 50) == []
    assert holes(ledger) == [(LOW, [(0, 49)])]
    ledger.answered(ledger.holes(), 0)
    assert holes(ledger) == []
    read(ledger, set(), 60)
    assert holes(ledger) == [(LOW, [(50, 59)])]


def test_it_ends_at_the_first_record_that_isn_t_committed(ledger: Ledger) -> None:
    assert read(ledger, {20, 30}, 50) == [20, 30]
    assert holes(ledger) == [(LOW, [(0, 19)])]
    ledger.answered(ledger.holes(), 0)
    assert holes(ledger) == []
    ledger.answered(ledger.dues(), 0)
    assert holes(ledger) == []
    read(ledger, set(), 90)
    assert holes(ledger) == [(LOW, [(50, 89)])]


def test_what_comes_while_a_commit_is_under_way_isn_t_committed(ledger: Ledger) -> None:
    read(ledger, {20}, 50)
    under_way = ledger.dues()
    assert read(ledger, {20, 60, 70}, 90) == [60, 70]
    assert holes(ledger) == [(LOW, [(0, 19)])]
    ledger.answered(under_way, 0)
    assert holes(ledger) == [(LOW, [(50, 59)])]


def test_a_commit_that_fails_changes_nothing(ledger: Ledger) -> None:
    read(ledger, {20}, 50)
    ledger.dues()
    assert holes(ledger) == [(LOW, [(0, 19)])]


def test_what_is_committed_up_to_an_offset(ledger: Ledger) -> None:
    read(ledger, {20, 30, 40}, 50)
    ledger.answered(ledger.dues_below(31), 0)
    assert holes(ledger) == [(LOW, [(31, 39)])]
    ledger.answered(ledger.dues_below(41), 0)
    assert holes(ledger) == [(LOW, [(41, 49)])]


def test_out_of_order_what_is_done_isn_t_committed() -> None:
    ledger = Ledger(explicit=True, holes=True)
    ledger.add(LOW, 0)
    read(ledger, {10, 20, 30}, 50)
    ledger.done(20)
    ledger.done(10)
    assert holes(ledger) == [(LOW, [(0, 9)])]
    committed = ledger.dues()
    ledger.done(30)
    ledger.answered(committed, 0)
    # 20 is claimed, with what lies around it.
    assert holes(ledger) == []
    assert [due.ranges for due in ledger.dues().accounts] == [[(30, 30)]]
    ledger.answered(ledger.dues(), 0)
    read(ledger, set(), 60)
    assert holes(ledger) == [(LOW, [(50, 59)])]


def test_what_others_have_claimed_lies_within(ledger: Ledger) -> None:
    ledger = Ledger(holes=True)
    ledger.add(LOW, 10, [Claim(0, (1 << 62) - 1, 20, 29)])
    assert read(ledger, {12, 25, 40}, 50) == [12, 40]
    ledger.answered(ledger.dues_below(13), 0)
    assert holes(ledger) == [(LOW, [(13, 19), (30, 39)])]


def test_slices_that_went_hold_nothing_up() -> None:
    ledger = Ledger(holes=True)
    ledger.add(list(WHOLE), 0)
    hand_out(ledger, ledger.turn(), {10: THEIRS, 20: OURS}, 50)
    assert holes(ledger) == [(WHOLE, [(0, 9)])]
    ledger.remove(HIGH)
    assert holes(ledger) == [(LOW, [(0, 19)])]


def test_what_was_passed_over_may_have_records(ledger: Ledger) -> None:
    read(ledger, set(), 10)
    ledger.seek(30)
    assert read(ledger, set(), 50) == []
    assert holes(ledger) == [(LOW, [(0, 9)])]
    ledger.answered(ledger.dues(), 0)
    read(ledger, set(), 60)
    assert holes(ledger) == [(LOW, [(50, 59)])]


def test_what_is_read_again_is_not_committed(ledger: Ledger) -> None:
    read(ledger, {20, 30}, 50)
    ledger.seek(25)
    assert holes(ledger) == [(LOW, [(0, 19)])]
    assert read(ledger, {20, 30}, 50) == [30]
    ledger.answered(ledger.dues_below(21), 0)
    assert holes(ledger) == [(LOW, [(21, 29)])]


def test_what_the_log_lost_is_nobody_s(ledger: Ledger) -> None:
    read(ledger, {3, 40}, 50)
    ledger.skip_to(30, 30)
    assert holes(ledger) == [(LOW, [(0, 39)])]


def test_of_a_log_that_was_cut_what_lay_beyond_is_read_again(ledger: Ledger) -> None:
    read(ledger, {20, 30}, 50)
    ledger.fall_back(25)
    assert holes(ledger) == [(LOW, [(0, 19)])]
    read(ledger, {20}, 50)
    ledger.answered(ledger.dues_below(21), 0)
    assert holes(ledger) == [(LOW, [(21, 49)])]


def test_what_was_read_without_a_ledger_may_have_records(ledger: Ledger) -> None:
    ledger.advance_to(40)
    read(ledger, set(), 60)
    assert holes(ledger) == []
    ledger.reached(40)
    assert holes(ledger) == [(LOW, [(40, 59)])]


def test_of_very_many_records_only_the_first_are_known(ledger: Ledger) -> None:
    many = set(range(0, 10_000, 2))
    read(ledger, many, 20_000)
    assert holes(ledger) == []
    for committed in (1, 101, 3_001):
        ledger.answered(ledger.dues_below(committed), 0)
        assert holes(ledger) == [(LOW, [(committed, committed)])]
        ledger.answered(ledger.holes(), 0)
    ledger.answered(ledger.dues_below(8_001), 0)
    assert holes(ledger) == [], "where records lie isn't known here"
    ledger.answered(ledger.dues_below(9_999), 0)
    assert holes(ledger) == [(LOW, [(9_999, 19_999)])]


class ReadingByHand(Reading):
    """The same, and holes are claimed now and then; commits may be answered late."""

    @initialize(explicit=st.booleans())
    def start(self, explicit: bool) -> None:
        super().start(explicit)
        self.ledger = Ledger(explicit=explicit, holes=True)
        self.under_way: list[tuple[Dues, bool]] = []

    @rule(begin=st.integers(0, 7), count=st.integers(1, 8))
    def take(self, begin: int, count: int) -> None:
        super().take(begin, count)
        self.under_way.clear()

    @rule(begin=st.integers(0, 7), count=st.integers(1, 8))
    def give(self, begin: int, count: int) -> None:
        super().give(begin, count)
        self.under_way.clear()

    @rule()
    def begin_commit(self) -> None:
        self.under_way.append((self.ledger.dues(), False))

    @rule()
    def begin_claiming_holes(self) -> None:
        self.under_way.append((self.ledger.holes(), True))

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 3))
    def hear(self, which: int) -> None:
        dues, are_holes = self.under_way.pop(which % len(self.under_way))
        for due in dues.accounts:
            for low, high in due.slices:
                for hash_ in range(low, min(high, self.hashes)):
                    for first, last in due.ranges:
                        mine = {o for o in range(first, last + 1) if self.hash_of(o) == hash_}
                        assert not are_holes or mine <= self.done[hash_], "nobody committed it"
                        self.done[hash_].update(range(first, last + 1))
        self.ledger.answered(dues, self.stable())

    def teardown(self) -> None:
        if not hasattr(self, "ledger") or not self.has:
            return
        self.under_way.clear()
        super().teardown()


TestReadingByHand = ReadingByHand.TestCase
TestReadingByHand.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
