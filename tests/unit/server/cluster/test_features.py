"""Which features are offered."""

from __future__ import annotations

import pytest

from kraftpy.core.metadata import LEVEL, MetadataState
from kraftpy.core.metadata.levels import SHARE_GROUPS, SHARE_VERSION
from kraftpy.protocol.errors import ErrorCode, KafkaError
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


@pytest.mark.parametrize("level", [0, SHARE_GROUPS - 1, SHARE_GROUPS, LEVEL])
def test_share_groups_are_there_once_every_node_knows_them(level: int) -> None:
    state = metadata(level)
    there = level >= SHARE_GROUPS
    assert features.supported()[SHARE_VERSION] == (0, 1)
    assert features.levels_in_use(state)[SHARE_VERSION] == int(there)
    assert features.has_share_groups(state) is there


def test_without_share_groups_nobody_hears_of_their_apis() -> None:
    state = metadata(LEVEL)
    assert not features.hidden_apis(state)
    features.require_share_groups(state)
    lowered = {"type": "update_features", "features": [{"name": SHARE_VERSION, "level": 0}]}
    state.apply(2, lowered)
    assert {76, 79, 83, 87, 90, 92} <= features.hidden_apis(state)
    assert not {75, 80, 82, 88, 89, 93} & features.hidden_apis(state)
    with pytest.raises(KafkaError, match=r"share\.version") as refused:
        features.require_share_groups(state)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
