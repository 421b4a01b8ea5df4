"""Quotas of clients in the metadata: which are kept, and what each entity is answered."""

from __future__ import annotations

import math
from typing import Any

import pytest
from metadata_cluster import Cluster, packed, restored
from metadata_invariants import check

from kraftpy.core.metadata import LaterReleaseError, QuotasChanged, quota_commands, snapshots
from kraftpy.core.metadata.levels import QUOTAS_AND_TOKENS
from kraftpy.core.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    NAME_LENGTH_MAX,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    entity_of,
)
from kraftpy.protocol.errors import ErrorCode

ALICE = (("user", "alice"),)
DEFAULT = (("user", None),)
BOTH = (("client-id", "app"), ("user", "alice"))

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST


def entity(parts: Any, *values: tuple[str, float | None]) -> dict[str, Any]:
    return {"parts": [list(each) for each in parts], "values": [list(each) for each in values]}


def alter(*entities: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "alter_client_quotas", "entities": list(entities), **fields}


def errors(cluster: Cluster, *entities: dict[str, Any]) -> list[ErrorCode]:
    result = cluster.apply(alter(*entities))
    assert result.error is NONE, result
    return [ErrorCode(each["error"]) for each in result.value["entities"]]


def test_a_quota_is_set_changed_and_removed() -> None:
    cluster = Cluster()
    result = cluster.apply(
        alter(
            entity(ALICE, (PRODUCER_BYTE_RATE, 1024), (REQUEST_PERCENTAGE, 12.5)),
            entity(reversed(BOTH), (CONSUMER_BYTE_RATE, 1.0)),
        )
    )
    assert result.changes == (QuotasChanged((ALICE, BOTH)),)
    assert cluster.state.quotas.get(ALICE) == {PRODUCER_BYTE_RATE: 1024, REQUEST_PERCENTAGE: 12.5}
    assert cluster.state.quotas.get(BOTH) == {CONSUMER_BYTE_RATE: 1}
    check(cluster.state)
    changed = entity(ALICE, (PRODUCER_BYTE_RATE, None), (CONSUMER_BYTE_RATE, 7.0))
    cluster.apply(alter(changed))
    assert cluster.state.quotas.get(ALICE) == {CONSUMER_BYTE_RATE: 7, REQUEST_PERCENTAGE: 12.5}
    gone = entity(ALICE, (REQUEST_PERCENTAGE, None), (CONSUMER_BYTE_RATE, None))
    assert cluster.apply(alter(gone)).changes == (QuotasChanged((ALICE,)),)
    assert dict(cluster.state.quotas.items()) == {BOTH: {CONSUMER_BYTE_RATE: 1}}
    check(cluster.state)


def test_what_is_already_so_is_no_change() -> None:
    cluster = Cluster()
    cluster.apply(alter(entity(ALICE, (PRODUCER_BYTE_RATE, 1.0))))
    again = alter(
        entity(ALICE, (PRODUCER_BYTE_RATE, 1)),
        entity(DEFAULT, (PRODUCER_BYTE_RATE, None)),
        entity(BOTH),
    )
    result = cluster.apply(again)
    assert result.changes == ()
    assert [each["error"] for each in result.value["entities"]] == [0, 0, 0]


@pytest.mark.parametrize(
    ("parts", "key", "value"),
    [
        *(((ALICE), PRODUCER_BYTE_RATE, value) for value in (math.nan, math.inf, 0, -1, 0.5)),
        (ALICE, REQUEST_PERCENTAGE, math.nan),
        (ALICE, CONNECTION_CREATION_RATE, 1),
        (ALICE, "other", 1),
        (ALICE, "other", None),
        ((("ip", "10.0.0.1"),), PRODUCER_BYTE_RATE, 1),
        ((("ip", "example.com"),), CONNECTION_CREATION_RATE, 1),
        ((("ip", None), ("user", None)), CONNECTION_CREATION_RATE, 1),
        ((), PRODUCER_BYTE_RATE, 1),
        ((("group", "g"),), PRODUCER_BYTE_RATE, 1),
        ((("user", "n" * (NAME_LENGTH_MAX + 1)),), PRODUCER_BYTE_RATE, 1),
    ],
)
def test_trap_20_what_is_no_quota_is_refused_alone(parts: Any, key: str, value: Any) -> None:
    """Trap 20 of security, quotas: NaN, inf, 0, -1, 0.5; and what is wrong takes nothing along."""
    cluster = Cluster()
    wrong = entity(parts, (REQUEST_PERCENTAGE, 3.0), (key, value))
    right = entity(DEFAULT, (REQUEST_PERCENTAGE, 2.0))
    assert errors(cluster, wrong, right) == [INVALID, NONE]
    assert dict(cluster.state.quotas.items()) == {DEFAULT: {REQUEST_PERCENTAGE: 2.0}}


def test_an_entity_and_a_key_come_once() -> None:
    cluster = Cluster()
    twice = entity(ALICE, (PRODUCER_BYTE_RATE, 1.0), (PRODUCER_BYTE_RATE, 2.0))
    assert errors(cluster, twice) == [INVALID]
    assert not len(cluster.state.quotas)
    one, other = (entity(ALICE, (PRODUCER_BYTE_RATE, value)) for value in (1.0, 2.0))
    assert errors(cluster, one, other) == [NONE, INVALID]
    assert cluster.state.quotas.get(ALICE) == {PRODUCER_BYTE_RATE: 1.0}


def test_so_many_can_have_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_commands, "QUOTA_ENTITIES_MAX", 2)
    cluster = Cluster()
    quota = (PRODUCER_BYTE_RATE, 1.0)
    names = [(("user", name),) for name in "abc"]
    many = [entity(each, quota) for each in names]
    assert errors(cluster, *many) == [NONE, NONE, ErrorCode.POLICY_VIOLATION]
    assert errors(cluster, many[2]) == [ErrorCode.POLICY_VIOLATION]
    other = entity(names[0], (PRODUCER_BYTE_RATE, 5.0))
    assert errors(cluster, other) == [NONE], "who has some may have others"
    gone = entity(names[1], (PRODUCER_BYTE_RATE, None))
    assert errors(cluster, gone, many[2]) == [NONE, NONE]
    assert [each for each, _ in cluster.state.quotas.in_order()] == [names[0], names[2]]


def test_validate_only_changes_nothing() -> None:
    cluster = Cluster()
    quota = (PRODUCER_BYTE_RATE, 1.0)
    result = cluster.apply(
        alter(entity(ALICE, quota), entity((), quota), validate_only=True),
    )
    assert [each["error"] for each in result.value["entities"]] == [NONE, INVALID]
    assert result.changes == ()
    assert not len(cluster.state.quotas)


def test_a_snapshot_keeps_them_and_equal_states_are_equal_bytes() -> None:
    quotas = [
        entity(ALICE, (PRODUCER_BYTE_RATE, 1.0), (REQUEST_PERCENTAGE, 0.5)),
        entity(BOTH, (CONSUMER_BYTE_RATE, 2.0)),
        entity(DEFAULT, (CONSUMER_BYTE_RATE, 3.0)),
        entity([("ip", "::ffff:10.0.0.1")], (CONNECTION_CREATION_RATE, 4.0)),
    ]
    one, other = Cluster(), Cluster()
    one.apply(alter(*quotas))
    other.apply(alter(*reversed(quotas)))
    assert packed(one.state) == packed(other.state)
    again = restored(one.state)
    assert packed(again) == packed(one.state)
    assert again.quotas.get(entity_of([("ip", "10.0.0.1")])) == {CONNECTION_CREATION_RATE: 4}
    check(again)


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        ([["user", "a"]], {}),
        ([["user", "a"]], {PRODUCER_BYTE_RATE: math.nan}),
        ([["user", "a"]], {CONNECTION_CREATION_RATE: 1.0}),
        ([["user", b"a"]], {PRODUCER_BYTE_RATE: 1.0}),
        ([["user", "a"], ["client-id", "b"]], {PRODUCER_BYTE_RATE: 1.0}),
        ([["ip", "0:0::1"]], {CONNECTION_CREATION_RATE: 1.0}),
    ],
)
def test_a_damaged_quota_in_a_snapshot_is_found(parts: Any, values: Any) -> None:
    cluster = Cluster()
    damaged = cluster.state.snapshot() | {"quotas": [[parts, values]]}
    with pytest.raises(ValueError, match=r"\w"):
        snapshots.load(type(cluster.state)(), damaged)


def test_below_its_level_there_is_nothing_of_them() -> None:
    cluster = Cluster(level=QUOTAS_AND_TOKENS - 1)
    assert "quotas" not in cluster.state.snapshot()
    why = cluster.state.why_not("alter_client_quotas", dict)
    assert why is not None
    assert f"it takes {QUOTAS_AND_TOKENS}" in why
    with pytest.raises(LaterReleaseError):
        cluster.apply(alter())
