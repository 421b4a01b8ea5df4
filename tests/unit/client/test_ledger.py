"""Slices of a partition: what is fetched, handed out, done and claimed."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kraftpy.client.ledger import WHOLE, Claim, Dues, Lane, Ledger, as_ranges, slices_of
from kraftpy.client.spans import Spans, contains, intersect, join, subtract
from kraftpy.protocol.key_hash import HASH_MAX

LOW: Spans = [(0, 1 << 62)]
HIGH: Spans = [(1 << 62, 1 << 63)]


def hand_out(ledger: Ledger, lane: Lane, hashes: dict[int, int], end: int) -> list[int]:
    """All that a fetch of a lane brought, as if it had been waited for."""
    end = ledger.fetched(lane, end, 1000)
    readers = ledger.readers(lane)
    found = [
        offset
        for offset, hash_ in sorted(hashes.items())
        if lane.position <= offset < end and ledger.hand_out(hash_, offset, readers)
    ]
    ledger.advance(readers, end)
    return found


def ranges(ledger: Ledger) -> list[tuple[Spans, list[tuple[int, int]]]]:
    return [(due.slices, due.ranges) for due in ledger.dues().accounts]


# -- the draft's example, by value


@pytest.mark.parametrize("explicit", [False, True])
def test_commits_amend_the_gaps_between_claims(explicit: bool) -> None:
    """Offsets 40 to 50 with 43-45 and 48-49 done: 41-42, 46-47 and 50 are claimed.

    The draft's stable offset is the last one done, ours the next one to read.
    """
    ledger = Ledger(explicit=explicit)
    claims = [Claim(0, HASH_MAX, 43, 45), Claim(0, HASH_MAX, 48, 49)]
    ledger.add(list(WHOLE), 41, claims)
    lane = ledger.turn()
    assert lane == Lane(WHOLE, 41, None)
    found = hand_out(ledger, lane, dict.fromkeys(range(40, 51), 7), 51)
    assert found == [41, 42, 46, 47, 50]
    if explicit:
        assert ranges(ledger) == []
        for offset in (47, 41, 50, 46, 42):
            assert ledger.done(offset)
        assert not ledger.done(47)
    assert ranges(ledger) == [(WHOLE, [(41, 42), (46, 47), (50, 50)])]


def test_what_is_done_out_of_order_is_claimed_around_what_isn_t() -> None:
    ledger = Ledger(explicit=True)
    ledger.add(LOW, 0)
    hand_out(ledger, ledger.turn(), {1: 5, 3: 5, 4: HASH_MAX, 6: 5, 8: 5}, 10)
    assert ranges(ledger) == [(LOW, [(0, 0), (2, 2), (4, 5), (7, 7), (9, 9)])]
    ledger.answered(ledger.dues(), 0)
    assert ranges(ledger) == []
    for offset in (6, 3, 8):
        assert ledger.done(offset)
    assert ranges(ledger) == [(LOW, [(3, 3), (6, 6), (8, 8)])]
    ledger.answered(ledger.dues(), 1)
    assert ledger.done(1)
    assert ranges(ledger) == [(LOW, [(1, 1)])]


# -- lanes


def test_the_kept_lane_doesn_t_skip_the_taken_slice() -> None:
    """One slice was read up to 100; another comes that its owner had read up to 40."""
    hashes = {offset: 5 if offset % 2 else HASH_MAX for offset in range(150)}
    ledger = Ledger()
    ledger.add(LOW, 0)
    hand_out(ledger, ledger.turn(), hashes, 100)
    ledger.answered(ledger.dues(), 0)
    ledger.add(HIGH, 0, [Claim(1 << 62, HASH_MAX, 0, 39)])
    seen: list[int] = []
    lanes = []
    for _ in range(8):
        lane = ledger.turn()
        lanes.append((lane.slices, lane.position))
        seen += hand_out(ledger, lane, hashes, min(lane.position + 30, 150))
    assert [offset for offset in seen if offset % 2 == 0] == list(range(40, 150, 2))
    assert [offset for offset in seen if offset % 2] == list(range(101, 150, 2))
    assert {position for slices, position in lanes if slices == LOW} >= {100, 130}
    assert {position for slices, position in lanes if slices == HIGH} >= {40, 70}
    assert ledger.turn() == Lane(WHOLE, 150, None), "merged when equal"
    ledger.answered(ledger.dues(), 0)
    assert ranges(ledger) == []
    assert hand_out(ledger, ledger.turn(), {150: 5, 151: HASH_MAX}, 152) == [150, 151]
    assert ranges(ledger) == [(WHOLE, [(150, 151)])]
    assert ledger.position == 152


def test_a_lane_ends_where_the_next_one_begins() -> None:
    ledger = Ledger()
    ledger.add(LOW, 10)
    ledger.add(HIGH, 4)
    lane = next(lane for lane in (ledger.turn(), ledger.turn()) if lane.position == 4)
    assert lane == Lane(HIGH, 4, 10)
    assert ledger.fetched(lane, 30, 100) == 10
    assert ledger.turn() == Lane(WHOLE, 10, None)


def test_a_lane_at_the_log_s_end_keeps_none_waiting() -> None:
    ledger = Ledger()
    ledger.add(LOW, 100)
    ledger.add(HIGH, 0)
    low = next(lane for lane in (ledger.turn(), ledger.turn()) if lane.position == 100)
    ledger.fetched(low, 100, 100)
    assert [ledger.turn().position for _ in range(4)] == [0, 0, 0, 0]
    ledger.fetched(ledger.turn(), 10, 120)
    assert {ledger.turn().position for _ in range(4)} == {10, 100}


def test_what_is_fetched_for_a_slice_that_went_is_not_handed_out() -> None:
    ledger = Ledger()
    ledger.add(list(WHOLE), 0)
    lane = ledger.turn()
    end = ledger.fetched(lane, 10, 10)
    ledger.remove(HIGH)
    readers = ledger.readers(lane)
    assert ledger.hand_out(5, 3, readers)
    assert not ledger.hand_out(HASH_MAX, 4, readers)
    ledger.advance(readers, end)
    assert ranges(ledger) == [(LOW, [(0, 9)])]


def test_what_is_fetched_for_a_slice_that_came_back_is_not_handed_out() -> None:
    """Another member had it meanwhile."""
    ledger = Ledger()
    ledger.add(list(WHOLE), 0)
    lane = ledger.turn()
    ledger.fetched(lane, 10, 50)
    ledger.remove(HIGH)
    ledger.add(HIGH, 0, [Claim(1 << 62, HASH_MAX, 0, 5)])
    readers = ledger.readers(lane)
    assert not ledger.hand_out(HASH_MAX, 3, readers)
    late = Lane(list(WHOLE), 20, None)
    ledger.fetched(late, 30, 50)
    assert not ledger.hand_out(HASH_MAX, 22, ledger.readers(late)), "6 to 19 come before"


def test_what_is_open_of_a_slice_that_went_holds_up_nothing() -> None:
    ledger = Ledger(explicit=True)
    ledger.add(list(WHOLE), 0)
    assert hand_out(ledger, ledger.turn(), {1: 5, 2: HASH_MAX}, 4) == [1, 2]
    ledger.remove(HIGH)
    assert not ledger.done(2)
    assert ledger.done(1)
    assert ranges(ledger) == [(LOW, [(0, 3)])]


# -- the group's word


def test_all_below_the_stable_offset_is_done() -> None:
    """Too old, the coordinator says, and where it is."""
    ledger = Ledger(explicit=True)
    ledger.add(LOW, 0)
    hand_out(ledger, ledger.turn(), {1: 5, 12: 5}, 20)
    ledger.answered(Dues(0, []), 10)
    assert not ledger.done(1)
    assert ranges(ledger) == [(LOW, [(10, 11), (13, 19)])]
    ledger.answered(Dues(0, []), 50)
    assert ledger.turn().position == ledger.position == 50


def test_who_seeks_back_reads_again_and_claims_nothing_by_an_answer_that_was_under_way() -> None:
    ledger = Ledger()
    ledger.add(LOW, 0)
    hashes = dict.fromkeys(range(20), 5)
    hand_out(ledger, ledger.turn(), hashes, 20)
    under_way = ledger.dues()
    ledger.seek(7)
    ledger.answered(under_way, 0)
    assert hand_out(ledger, ledger.turn(), hashes, 9) == [7, 8]
    ledger.answered(ledger.dues(), 20)
    assert hand_out(ledger, ledger.turn(), hashes, 12) == [9, 10, 11]


def test_who_seeks_on_has_done_with_what_lies_between() -> None:
    ledger = Ledger()
    ledger.add(LOW, 5)
    ledger.seek(30)
    assert ranges(ledger) == [(LOW, [(5, 29)])]


def test_out_of_order_what_is_claimed_by_its_offset_is_nobody_s_to_do() -> None:
    ledger = Ledger(explicit=True)
    ledger.add(LOW, 0)
    hand_out(ledger, ledger.turn(), dict.fromkeys(range(20), 5), 20)
    assert ledger.done(15)
    ledger.answered(ledger.dues(), 0)
    ledger.answered(ledger.dues_below(10), 10)
    assert ledger.done_below == 10
    assert not ledger.done(9)
    assert [offset for offset in range(20) if ledger.done(offset)] == [
        *range(10, 15),
        *range(16, 20),
    ]


def test_what_the_log_lost_counts_as_done() -> None:
    ledger = Ledger(explicit=True)
    ledger.add(LOW, 0)
    hand_out(ledger, ledger.turn(), {3: 5}, 5)
    ledger.skip_to(30, 30)
    assert ledger.turn().position == 30
    assert ranges(ledger) == [(LOW, [(0, 29)])]


def test_of_a_log_that_was_cut_what_lay_beyond_is_read_again() -> None:
    """An account that lies before the cut goes on where it is."""
    ledger = Ledger()
    ledger.add(LOW, 0)
    hashes = {offset: 5 if offset % 2 else HASH_MAX for offset in range(40)}
    hand_out(ledger, ledger.turn(), hashes, 40)
    under_way = ledger.dues()
    ledger.add(HIGH, 10)
    ledger.fall_back(25)
    ledger.answered(under_way, 0)
    seen: list[int] = []
    for _ in range(6):
        seen += hand_out(ledger, ledger.turn(), hashes, 40)
    assert sorted(seen) == [*range(10, 25, 2), *range(25, 40)]


@pytest.mark.parametrize("bad", [[(-1, 5)], [(5, 4)], [(0, HASH_MAX + 1)], [(0, 5), (5, 9)]])
def test_slices_that_can_t_be_are_refused(bad: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="slice"):
        slices_of(bad)


def test_slices_as_users_write_and_read_them() -> None:
    assert slices_of([]) == slices_of([(0, HASH_MAX)]) == WHOLE
    assert as_ranges(slices_of([])) == []
    assert as_ranges(slices_of([(9, 20), (0, 5)])) == [(0, 5), (9, 20)]


# -- a log of few hashes, and all that can happen to who reads it


class Reading(RuleBasedStateMachine):
    """Eight hashes, a record at each offset, one reader who may have any of them."""

    hashes = 8

    @initialize(explicit=st.booleans())
    def start(self, explicit: bool) -> None:
        self.explicit = explicit
        self.ledger = Ledger(explicit=explicit)
        self.done: dict[int, set[int]] = {hash_: set() for hash_ in range(self.hashes)}
        self.has: Spans = []
        self.chunks: list[tuple[Lane, int]] = []
        self.lanes: list[Lane] = []
        self.handed: dict[int, list[int]] = {hash_: [] for hash_ in range(self.hashes)}
        self.open: set[int] = set()
        self.end = 60

    def hash_of(self, offset: int) -> int:
        return offset * 5 % self.hashes

    def stable(self) -> int:
        return min(
            next(offset for offset in range(self.end + 2) if offset not in done)
            for done in self.done.values()
        )

    @rule(begin=st.integers(0, 7), count=st.integers(1, 8))
    def take(self, begin: int, count: int) -> None:
        new = subtract([(begin, min(begin + count, self.hashes))], self.has)
        claims = [
            Claim(hash_, hash_, offset, offset)
            for hash_, done in self.done.items()
            for offset in sorted(done)
        ]
        for low, high in new:
            for hash_ in range(low, high):
                self.handed[hash_] = []
        if new:
            self.ledger.add(new, self.stable(), claims)
            self.has = join([*self.has, *new])

    @rule(begin=st.integers(0, 7), count=st.integers(1, 8))
    def give(self, begin: int, count: int) -> None:
        gone = intersect(self.has, [(begin, min(begin + count, self.hashes))])
        self.ledger.remove(gone)
        self.has = subtract(self.has, gone)
        self.open = {o for o in self.open if contains(self.has, self.hash_of(o))}

    @precondition(lambda self: self.has)
    @rule()
    def ask(self) -> None:
        self.lanes.append(self.ledger.turn())

    @precondition(lambda self: self.lanes)
    @rule(count=st.integers(0, 25), which=st.integers(0, 9))
    def be_answered(self, count: int, which: int) -> None:
        lane = self.lanes.pop(which % len(self.lanes))
        end = self.ledger.fetched(lane, min(lane.position + count, self.end), self.end)
        if end > lane.position:
            self.chunks.append((lane, end))

    @precondition(lambda self: self.chunks)
    @rule(most=st.integers(1, 30))
    def poll(self, most: int) -> None:
        lane, end = self.chunks[0]
        readers = self.ledger.readers(lane)
        for offset in range(lane.position, end):
            hash_ = self.hash_of(offset)
            if most == 0:
                self.ledger.advance(readers, offset)
                return
            if self.ledger.hand_out(hash_, offset, readers):
                most -= 1
                assert contains(self.has, hash_)
                assert offset not in self.done[hash_], "claimed, and handed out again"
                assert not self.handed[hash_] or self.handed[hash_][-1] < offset, "out of order"
                missing = set(range(offset)) - self.done[hash_] - set(self.handed[hash_])
                assert not [o for o in missing if self.hash_of(o) == hash_], "skipped"
                self.handed[hash_].append(offset)
                if self.explicit:
                    self.open.add(offset)
        self.ledger.advance(readers, end)
        self.chunks.pop(0)

    @rule()
    def lose_what_was_fetched(self) -> None:
        self.chunks.clear()
        self.ledger.rewind()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.open)))
        assert self.ledger.done(offset)
        self.open.remove(offset)

    @rule()
    def commit(self) -> None:
        dues = self.ledger.dues()
        for due in dues.accounts:
            for first, last in due.ranges:
                for low, high in due.slices:
                    for hash_ in range(low, min(high, self.hashes)):
                        for offset in range(first, last + 1):
                            if self.hash_of(offset) == hash_:
                                assert offset in self.handed[hash_]
                                assert offset not in self.open
                            assert offset not in self.done[hash_], "claimed twice"
                            self.done[hash_].add(offset)
        self.ledger.answered(dues, self.stable())

    @invariant()
    def slices_are_known(self) -> None:
        assert self.ledger.slices == self.has

    def teardown(self) -> None:
        """Left alone it reads to the end and claims all."""
        if not hasattr(self, "ledger") or not self.has:
            return
        self.chunks.clear()
        self.ledger.rewind()
        for _ in range(60):
            self.ask()
            self.be_answered(20, len(self.lanes) - 1)
            while self.chunks:
                self.poll(100)
            for offset in sorted(self.open):
                self.ledger.done(offset)
            self.open.clear()
            self.commit()
        for low, high in self.has:
            for hash_ in range(low, high):
                assert set(range(self.end)) <= self.done[hash_]


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def test_whether_its_own_slices_lie_behind_what_is_claimed() -> None:
    """Then waiting for what lies below would be waiting for itself."""
    ledger = Ledger()
    low, high = [(0, 100)], [(100, 200)]
    ledger.add(low, 40)
    ledger.advance_to(50)
    assert ledger.is_lowest(ledger.dues())
    ledger.add(high, 10)
    assert not ledger.is_lowest(ledger.dues())
    ledger.advance_to(50)
    assert ledger.is_lowest(ledger.dues())
