"""What `make cooperative` judges by."""

from __future__ import annotations

from collections import Counter

import pytest

from kraftpy.protocol.key_hash import SLOTS
from tests.demo.cooperating import slots_of
from tests.demo.cooperative import (
    KEYS,
    MEMBERS,
    RECORDS,
    keys_of,
    parse_slots,
    shared_evenly,
    verdict,
)
from tests.demo.processed import Processed, Work

A, B = b"a", b"b"


def work(*processed: tuple[int, int, bytes, int, int]) -> Work:
    found = Work()
    for each in processed:
        found.add(Processed(*each))
    return found


def test_each_key_in_order_is_right_whoever_has_it() -> None:
    done = work((0, 0, A, 0, 5), (1, 1, B, 1, 4), (0, 2, A, 5, 9), (1, 3, B, 4, 8))
    assert done.problems([A, B, A, B]) == []
    assert (done.count, done.repeats, done.count_of(1)) == (4, 0, 2)
    assert done.end_ns(range(4)) == 9


def test_what_a_dead_member_had_not_committed_comes_again_in_order() -> None:
    done = work((0, 0, A, 0, 5), (0, 1, A, 5, 9), (1, 0, A, 20, 25), (1, 1, A, 25, 29))
    assert done.problems([A, A]) == []
    assert done.repeats == 2
    assert done.end_ns(range(2)) == 9


@pytest.mark.parametrize(
    ("done", "problem"),
    [
        ([(0, 0, A, 0, 5)], "1 records are missing, such as that at 1"),
        ([(0, 1, A, 0, 5), (0, 0, A, 5, 9)], "b'a': 0 came behind 1"),
        ([(0, 0, A, 0, 5), (1, 1, A, 3, 8)], "b'a': two members at once, at 0 and 1"),
        ([(0, 0, A, 0, 5), (0, 1, B, 5, 9)], "nobody wrote b'b' at 1"),
    ],
)
def test_what_is_wrong(done: list[tuple[int, int, bytes, int, int]], problem: str) -> None:
    assert problem in work(*done).problems([A, A])


def test_shares() -> None:
    assert slots_of([]) == [(0, SLOTS - 1)]
    assert parse_slots(b"8192-16383") == (8192, 16383)
    half = SLOTS // 2
    assert shared_evenly([[(0, half - 1)], [(half, SLOTS - 1)]])
    assert shared_evenly([[(0, SLOTS - 1)]])
    assert not shared_evenly([[(0, half - 1)], []])
    assert not shared_evenly([[(0, half)], [(half, SLOTS - 1)]])
    assert not shared_evenly([[(0, 99)], [(100, SLOTS - 1)]])


def test_the_verdict() -> None:
    assert verdict([], 12.0, 1.6) == []
    assert verdict(["lost"], 12.0, 1.6) == ["lost"]
    (slow,) = verdict([], 12.0, 6.0)
    assert "2.0 times" in slow


def test_the_keys_are_as_many_as_it_says() -> None:
    counts = Counter(keys_of(RECORDS))
    assert len(counts) == KEYS
    assert set(counts.values()) == {RECORDS // KEYS}
    assert MEMBERS == 8
