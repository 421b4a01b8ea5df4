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


@pytest.mark.parametrize(("level", "in_use"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (LEVEL, 2)])
def test_it_is_in_use_from_its_metadata_level_on(level: int, in_use: int) -> None:
    assert features.supported()[COOPERATIVE_FEATURE] == (0, 2)
    assert features.levels_in_use(metadata(level))[COOPERATIVE_FEATURE] == in_use


def test_cooperative_fetches_come_with_a_metadata_level_of_theirs() -> None:
    assert [features.metadata_level_for(COOPERATIVE_FEATURE, each) for each in range(3)] == [
        4,
        4,
        8,
    ]
    assert features.metadata_level_for("transaction.version", 2) == 2
    state = metadata(7)
    assert not features.has_cooperative_fetches(state)
    state.apply(2, {"type": "raise_level", "level": 8})
    assert features.has_cooperative_fetches(state)


def test_who_has_turned_sharing_off_isn_t_given_cooperative_fetches_by_a_level() -> None:
    state = metadata(7)
    lowered = {"type": "update_features", "features": [{"name": COOPERATIVE_FEATURE, "level": 0}]}
    state.apply(2, lowered)
    state.apply(3, {"type": "raise_level", "level": 8})
    assert COOPERATIVE_FEATURE not in state.features


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
