"""The levels of features: when they begin, how they change, what a snapshot has of them."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, packed, restored

from kraftpy.core.metadata import TRANSACTIONS, FeatureChanged, LaterReleaseError, LevelRaised
from kraftpy.core.metadata.levels import TRANSACTION_VERSION
from kraftpy.protocol.errors import ErrorCode


def raised() -> Cluster:
    cluster = Cluster(1, level=0)
    cluster.ok({"type": "raise_level", "level": TRANSACTIONS})
    return cluster


def update(**levels: int) -> dict[str, Any]:
    features = [{"name": name, "level": level} for name, level in levels.items()]
    return {"type": "update_features", "features": features}


def transaction_version(level: int) -> dict[str, Any]:
    return update(**{TRANSACTION_VERSION: level})


@pytest.mark.parametrize("before", range(TRANSACTIONS))
def test_the_newest_protocol_of_transactions_is_in_use_once_all_nodes_know_it(before: int) -> None:
    cluster = Cluster(1, level=0)
    if before:
        cluster.ok({"type": "raise_level", "level": before})
    assert cluster.state.features == {}
    result = cluster.ok({"type": "raise_level", "level": TRANSACTIONS})
    assert cluster.state.features == {TRANSACTION_VERSION: 2}
    changed = FeatureChanged(TRANSACTION_VERSION, 0, 2)
    assert result.changes == (LevelRaised(TRANSACTIONS), changed)


@pytest.mark.parametrize("lowered", [0, 1])
def test_what_an_operator_has_lowered_stays_so(lowered: int) -> None:
    cluster = raised()
    cluster.ok(transaction_version(lowered))
    expected = {TRANSACTION_VERSION: lowered} if lowered else {}
    cluster.ok({"type": "raise_level", "level": TRANSACTIONS})
    assert cluster.state.features == expected
    assert restored(cluster.state).features == expected


def test_a_feature_has_the_level_that_it_was_given_last() -> None:
    cluster = raised()
    result = cluster.ok(transaction_version(0))
    assert result.changes == (FeatureChanged(TRANSACTION_VERSION, 2, 0),)
    assert cluster.ok(transaction_version(0)).changes == ()
    both = transaction_version(1)["features"] + transaction_version(2)["features"]
    result = cluster.ok({"type": "update_features", "features": both})
    assert result.changes == (FeatureChanged(TRANSACTION_VERSION, 0, 2),)


def test_several_change_together() -> None:
    cluster = raised()
    cluster.ok(update(b=1, a=3))
    assert cluster.state.features == {TRANSACTION_VERSION: 2, "a": 3, "b": 1}
    assert cluster.state.snapshot()["features"] == {"a": 3, "b": 1, TRANSACTION_VERSION: 2}
    assert list(cluster.state.snapshot()["features"]) == sorted(cluster.state.features)
    assert packed(restored(cluster.state)) == packed(cluster.state)


def test_before_their_level_there_are_none() -> None:
    cluster = Cluster(1, level=0)
    cluster.ok({"type": "raise_level", "level": TRANSACTIONS - 1})
    assert "features" not in cluster.state.snapshot()
    assert f"it takes {TRANSACTIONS}" in str(cluster.state.why_not("update_features", dict))
    with pytest.raises(LaterReleaseError, match=f"of level {TRANSACTIONS} at index"):
        cluster.state.apply(cluster.state.applied_index + 1, transaction_version(0))


@pytest.mark.parametrize(
    "features",
    [
        None,
        [{"name": "a"}],
        [{"name": "a", "level": -1}],
        [{"name": "a", "level": 2**15}],
        [{"name": "a" * 256, "level": 1}],
        [{"name": "a", "level": 1}] * 101,
    ],
)
def test_what_is_no_level_of_a_feature_changes_nothing(features: Any) -> None:
    error, _ = raised().error({"type": "update_features", "features": features})
    assert error is ErrorCode.INVALID_REQUEST
