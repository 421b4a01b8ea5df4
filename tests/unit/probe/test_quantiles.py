"""Percentiles from counts in steps of 2 %."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.probe.quantiles import Quantiles

DURATIONS = st.floats(0.000_05, 1000)


@given(st.lists(DURATIONS, min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_percentile_is_at_most_two_percent_too_high(durations: list[float], share: float) -> None:
    quantiles = Quantiles()
    for each in durations:
        quantiles.observe(each)
    rank = max(1, -int(-share * len(durations) // 1))
    true = sorted(durations)[rank - 1]
    found = quantiles.at(share)
    assert found is not None
    assert true <= found * 1.000_001
    assert found <= true * 1.021
    assert quantiles.max_s == max(durations)
    assert quantiles.count == len(durations)


def test_without_durations_there_is_none_and_extremes_take_no_room() -> None:
    quantiles = Quantiles()
    assert quantiles.at(0.5) is None
    for exponent in range(-30, 30):
        quantiles.observe(10.0**exponent)
    assert len(quantiles._counts) < 1100
    assert quantiles.at(1) is not None
