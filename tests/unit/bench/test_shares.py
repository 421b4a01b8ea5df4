"""When deliveries of a share group flow again, of the times of its acknowledgements."""

from __future__ import annotations

import pytest

from tests.bench.shares import until_flowing


@pytest.mark.parametrize(
    ("acknowledged", "seconds"),
    [
        ([12.0, 12.1, 12.2], 2.0),
        ([10.1, 10.2, 13.0, 13.1], 3.0),  # some answers were on their way
        ([10.25, 10.3, 10.35], 0.25),
    ],
)
def test_deliveries_flow_behind_the_longest_pause(
    acknowledged: list[float], seconds: float
) -> None:
    assert until_flowing(acknowledged, 10.0) == pytest.approx(seconds)
