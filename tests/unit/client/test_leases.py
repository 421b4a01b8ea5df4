"""What a member keeps of leases: what arrives twice, is over, is done in any order, and is told."""

from __future__ import annotations

import time

import pytest

from kraftpy.client import leases as module
from kraftpy.client.leases import Leased, LeaseLedger
from kraftpy.client.ledger import Claim, Dues
from kraftpy.protocol.key_hash import HASH_MAX

SOON_S = 1000.0


class Member:
    """One that is leased ranges, of which all offsets have records but those in `gaps`."""

    def __init__(self, stable: int = 0, **options: bool) -> None:
        self.ledger = LeaseLedger(**options)
        self.ledger.add([], stable)
        self.gaps: set[int] = set()

    def acquire(self, *ranges: tuple[int, int], for_s: float = SOON_S) -> Leased | None:
        return self.ledger.acquired(ranges, time.monotonic() + for_s)

    def take(self, leased: Leased | None, most: int = 1 << 30) -> list[int]:
        """What is handed out of a lease, as `FetchedRecords` does it."""
        assert leased is not None
        readers = self.ledger.readers(leased)
        end, taken = leased.spans[-1][1], list[int]()
        offsets = [o for begin, stop in leased.spans for o in range(begin, stop)]
        for offset in offsets:
            if offset in self.gaps or offset < leased.handed_to:
                continue
            if len(taken) >= most:
                end = offset
                break
            if self.ledger.hand_out(7, offset, readers):
                taken.append(offset)
        self.ledger.advance(readers, end)
        return taken

    def due(self) -> list[tuple[int, int]]:
        return _ranges(self.ledger.dues())

    def commit(self, stable: int) -> None:
        self.ledger.answered(self.ledger.dues(), stable)


def _ranges(dues: Dues) -> list[tuple[int, int]]:
    return [each for due in dues.accounts for each in due.ranges]


def test_claims_first_and_then_the_leader_is_told() -> None:
    ann = Member(40)
    assert ann.ledger.turn().position == 40
    leased = ann.acquire((40, 44))
    assert ann.ledger.turn().position == 45
    assert ann.due() == []
    assert ann.take(leased, 3) == [40, 41, 42]
    assert ann.due() == [(40, 42)]
    assert ann.ledger.to_tell == [], "it isn't claimed yet"
    ann.commit(43)
    assert ann.due() == []
    assert ann.ledger.to_tell == [(40, 42)]
    ann.ledger.told([(40, 41)])
    assert ann.ledger.to_tell == [(42, 42)]


def test_what_is_done_out_of_order_is_claimed_in_pieces() -> None:
    ann = Member(explicit=True)
    ann.gaps = {3}
    ann.take(ann.acquire((0, 9)))
    assert ann.due() == [(3, 3)]
    for offset in (8, 4, 0):
        assert ann.ledger.done(offset)
    assert not ann.ledger.done(4)
    assert not ann.ledger.done(77)
    assert ann.due() == [(0, 0), (3, 4), (8, 8)]
    ann.commit(1)
    ann.ledger.done(1)
    assert ann.due() == [(1, 1)]


def test_what_comes_again_is_handed_out_once() -> None:
    ann = Member()
    first = ann.acquire((0, 9))
    assert ann.take(first, 4) == [0, 1, 2, 3]
    ann.ledger.answer_lost()
    assert ann.ledger.turn().position == 0
    lost = ann.acquire((0, 9), (20, 24))
    assert ann.take(first) == [4, 5, 6, 7, 8, 9]
    assert ann.take(lost) == [20, 21, 22, 23, 24]
    assert ann.acquire((0, 9), (20, 24)) is None
    ann.commit(10)
    assert ann.acquire((5, 9)) is None
    assert ann.ledger.to_tell == [(0, 9), (20, 24)]


def test_what_was_fetched_ahead_and_is_gone_comes_again() -> None:
    ann = Member()
    first = ann.acquire((0, 9))
    ann.take(first, 4)
    ann.ledger.rewind()
    assert ann.take(first) == []
    assert ann.ledger.turn().position == 0
    assert ann.take(ann.acquire((0, 9))) == [4, 5, 6, 7, 8, 9]


def test_a_lease_that_is_over_isn_t_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = Member()
    now_s = time.monotonic()
    leased = ann.acquire((0, 9), for_s=5.0)
    other = ann.acquire((20, 29), for_s=60.0)
    assert ann.take(leased, 4) == [0, 1, 2, 3]
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + 6.0)
    assert ann.take(leased) == []
    assert ann.take(other, 1) == [20]
    assert ann.due() == [(0, 3), (20, 20)], "what wasn't handed out isn't done"
    assert ann.ledger.turn().position == 0
    assert ann.take(ann.acquire((0, 9))) == [4, 5, 6, 7, 8, 9]


def test_a_record_that_can_t_be_read_isn_t_done_when_the_lease_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ann = Member()
    now_s = time.monotonic()
    leased = ann.acquire((0, 9), for_s=5.0)
    assert ann.take(leased, 3) == [0, 1, 2]
    readers = ann.ledger.readers(leased)
    assert ann.ledger.hand_out(7, 3, readers)
    ann.ledger.take_back(3, readers)
    ann.ledger.advance(readers, 3)
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + 6.0)
    assert ann.take(leased) == []
    assert ann.due() == [(0, 2)]


def test_what_comes_again_lasts_as_long_as_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = Member()
    now_s = time.monotonic()
    leased = ann.acquire((0, 9), for_s=5.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + 4.0)
    ann.acquire((0, 9), for_s=5.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + 8.0)
    assert len(ann.take(leased)) == 10


def test_a_lease_without_records_is_claimed_by_itself() -> None:
    ann = Member(holes=True)
    ann.gaps = {5}
    ann.take(ann.acquire((0, 4)))
    ann.take(ann.acquire((5, 5)))
    assert _ranges(ann.ledger.holes()) == [(5, 5)]
    ann.ledger.answered(ann.ledger.holes(), -1)
    assert _ranges(ann.ledger.holes()) == []
    assert ann.due() == [(0, 4)]
    assert _ranges(ann.ledger.dues_below(3)) == [(0, 2)]


def test_what_was_claimed_of_a_key_isn_t_handed_out() -> None:
    ann = Member()
    claims = [Claim(0, 7, 2, 3), Claim(8, HASH_MAX, 5, 6), Claim(0, HASH_MAX, 8, 8)]
    ann.ledger.add([], 0, claims)
    assert ann.take(ann.acquire((0, 6))) == [0, 1, 4, 5, 6]
    assert ann.due() == [(0, 6)]
