"""How fast numbers grow, and when they rise: Kafka's auto commits are five seconds apart."""

from __future__ import annotations

from itertools import count

import pytest

from kraftpy.page.rates import RATE_S, SAMPLES_MAX, SPAN_MIN_S, UNKNOWN, WINDOW_S, Growth


def grown(values: list[int], interval_s: float = 2.0) -> Growth:
    growth = Growth()
    for index, value in enumerate(values):
        growth.add(100 + index * interval_s, {"x": value})
    return growth


def test_one_answer_has_no_rate() -> None:
    assert Growth().trend("x") == UNKNOWN
    assert Growth().rates() == {}
    assert grown([5]).rate("x") is None
    assert grown([5]).rates() == {}


def test_a_rate_is_that_of_the_last_seconds() -> None:
    assert grown([0, 20]).rate("x") == 10
    # For twenty seconds nothing, then 50 a second.
    assert grown([0] * 10 + [100 * n for n in range(int(RATE_S / 2) + 1)]).rate("x") == 50


def test_an_answer_that_took_long_counts_however_old_the_one_before_is() -> None:
    assert grown([0, 100, 400], interval_s=RATE_S + 5).rate("x") == 20


def test_what_fell_has_a_slope_and_no_rate() -> None:
    growth = grown([100, 80])
    assert growth.rate("x") is None
    assert growth.rates() == {}
    assert growth.trend("x").per_s == -10


def test_what_is_not_known_now_or_was_not_before_has_no_rate() -> None:
    growth = Growth()
    growth.add(1, {"old": 1, "both": 1})
    growth.add(2, {"new": 1, "both": 4})
    assert growth.rate("old") is growth.rate("new") is None
    assert growth.rates() == {"both": 3}


def test_two_answers_of_one_moment_divide_by_nothing() -> None:
    growth = Growth()
    growth.add(1, {"x": 1})
    growth.add(1, {"x": 2})
    assert growth.rate("x") is None


def test_lag_that_grows_all_the_time_rises() -> None:
    assert grown([10 * n for n in range(11)]).trend("x").rises


def test_it_is_told_by_answers_that_lie_apart() -> None:
    some = int(SPAN_MIN_S / 2)
    assert not grown([10 * n for n in range(some)]).trend("x").rises
    assert grown([10 * n for n in range(some + 1)]).trend("x").rises


@pytest.mark.parametrize("seconds", [2, 5, 9])
def test_what_goes_up_and_down_with_commits_does_not_rise(seconds: int) -> None:
    # 100 a second come; every some seconds a commit takes them away.
    growth = Growth()
    for now in range(60):
        growth.add(now, {"x": 100 * (now % seconds)})
        assert not growth.trend("x").rises, now


def test_a_reader_that_is_too_slow_is_found_between_commits() -> None:
    # 100 a second come and 40 are read, which is committed every five seconds.
    growth = Growth()
    for now in range(60):
        growth.add(now, {"x": 100 * now - 40 * 5 * (now // 5)})
    assert growth.trend("x").rises


def test_it_stops_rising_when_readers_keep_up_again() -> None:
    growth = grown([10 * n for n in range(12)] + [110] * int(WINDOW_S / 2))
    assert not growth.trend("x").rises
    assert growth.trend("x").per_s == 0


def test_two_answers_alone_are_no_rise() -> None:
    assert not grown([0, 100], interval_s=SPAN_MIN_S + 1).trend("x").rises


def test_old_answers_go() -> None:
    growth = Growth()
    for now in count():
        growth.add(now / 100, {"x": now})
        if now > 10 * SAMPLES_MAX:
            break
    assert len(growth._answers) == SAMPLES_MAX
    growth.add(now / 100 + WINDOW_S + 1, {"x": 0})
    assert len(growth._answers) == 1
