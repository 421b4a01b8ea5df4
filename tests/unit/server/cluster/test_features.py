"""Which features are offered."""

from __future__ import annotations

import pytest

from kraftpy.core.metadata import LEVEL, MetadataState
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE
from kraftpy.server.cluster import features


def metadata(level: int) -> MetadataState:
    state = MetadataState()
    if level:
        state.apply(1, {"type": "raise_level", "level": level})
    return state


def test_nobody_hears_of_cooperative_consumption_before_it_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "COOPERATIVE_MAX", 0)
    assert COOPERATIVE_FEATURE not in features.supported()
    assert COOPERATIVE_FEATURE not in features.levels_in_use(metadata(LEVEL))


@pytest.mark.parametrize(("level", "in_use"), [(0, 0), (3, 0), (4, 1), (LEVEL, 1)])
def test_it_is_in_use_from_its_metadata_level_on(
    level: int, in_use: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "COOPERATIVE_MAX", 1)
    assert features.supported()[COOPERATIVE_FEATURE] == (0, 1)
    assert features.levels_in_use(metadata(level))[COOPERATIVE_FEATURE] == in_use
