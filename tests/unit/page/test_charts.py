"""Scales of plots, for whatever numbers there are."""

from __future__ import annotations

import pytest

from kraftpy.page.charts import chart, line, linear


@pytest.mark.parametrize("least", [5e-324, 1e-310, 1e-301])
def test_the_smallest_numbers_are_drawn_as_zero(least: float) -> None:
    for values in ([0.0, least], [0.0, -least], [-least, least]):
        scale = linear(max(values), min(values))
        assert (scale.low, scale.top) == (0, 1)
        assert {round(scale.y(value), 6) for value in values} == {100}
        assert "nan" not in chart("", "", scale, line(values, scale, "p50"), (), "")
    assert linear(1, -least) == linear(1)
    assert linear(0, -1) == linear(least, -1)


def test_small_numbers_have_scales_of_their_own() -> None:
    for value in (2e-300, 3e-250, 7e-9):
        assert 0 <= linear(value).y(value) < 50
