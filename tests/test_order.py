"""The order of the tests, and that each worker finds the same."""

from __future__ import annotations

from tests.order import _LONGEST, _ROOT, _WAITING, in_order, rotated

WAITING = [_ROOT / "server" / f"test_{each}.py" for each in "abcd"]
WORKING = [_ROOT / "unit" / "core" / f"test_{each}.py" for each in "abcdefgh"]


def test_modules_that_wait_are_spread_evenly() -> None:
    order = in_order({*WORKING, *WAITING})
    assert [order.index(module) for module in WAITING] == [0, 3, 6, 9]
    assert [module for module in order if module in WORKING] == WORKING


def test_the_longest_come_first() -> None:
    waiting = [module for module in _LONGEST if module.is_relative_to(_ROOT / "consistency")]
    others = [_ROOT / "consistency" / f"test_{each}.py" for each in "az"]
    order = in_order([*others, *WORKING, *waiting])
    assert order[0] == waiting[1]
    assert [module for module in order if module not in WORKING] == [*sorted(waiting), *others]
    alone = [module for module in _LONGEST if module not in waiting]
    assert in_order([*WORKING, *alone]) == [*sorted(alone), *WORKING]


def test_one_kind_alone_stays_in_its_order() -> None:
    assert in_order(reversed(WORKING)) == WORKING
    assert in_order(reversed(WAITING)) == WAITING
    assert in_order([]) == []


def test_what_is_named_is_there() -> None:
    assert all(module.is_file() for module in _LONGEST)
    assert all((_ROOT / folder).is_dir() for folder in _WAITING)


def test_workers_begin_at_other_places_and_find_the_same() -> None:
    found = ["".join(rotated("abcdefg", worker, 3)) for worker in range(3)]
    assert found == ["abcdefg", "cdefgab", "efgabcd"]
    assert rotated("", 2, 3) == []
