"""Commands on ACLs: what is kept, what filters find, and the version that others name."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, packed, restored
from metadata_invariants import check

from kraftpy.core.metadata import RIGHTS_CHANGED, AclsChanged, acl_commands, snapshots
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.core.security.acls import Acl
from kraftpy.protocol.errors import ErrorCode

READ_A = Acl(2, "a", 3, "User:alice", "*", 3, 3)
WRITE_A = READ_A._replace(operation=4)
READ_P = READ_A._replace(name="p", pattern=4)


def create(*acls: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "create_acls", "acls": [list(acl) for acl in acls], **fields}


def delete(*filters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "delete_acls", "filters": [list(each) for each in filters], **fields}


def errors(cluster: Cluster, command: dict[str, Any]) -> list[ErrorCode]:
    result = cluster.apply(command)
    assert result.error is ErrorCode.NONE
    (answers,) = result.value.values()
    return [ErrorCode(each["error"]) for each in answers]


def test_what_is_created_is_kept_and_the_version_is_that_of_the_command() -> None:
    cluster = Cluster(1)
    assert cluster.state.acls.version == 0
    result = cluster.ok(create(READ_A, WRITE_A, READ_A))
    assert result.changes == (AclsChanged(added=(READ_A, WRITE_A)),)
    assert set(cluster.state.acls) == {READ_A, WRITE_A}
    assert cluster.state.acls.version == cluster.state.applied_index
    check(cluster.state)
    again = restored(cluster.state)
    assert packed(again) == packed(cluster.state)
    assert set(again.acls) == {READ_A, WRITE_A}
    assert again.acls.version == cluster.state.acls.version


def test_what_is_there_already_is_no_change() -> None:
    cluster = Cluster(1)
    cluster.ok(create(READ_A))
    version = cluster.state.acls.version
    result = cluster.ok(create(READ_A))
    assert result.changes == ()
    assert cluster.state.acls.version == version


def test_each_item_is_judged_by_itself_and_kept_in_one_form() -> None:
    cluster = Cluster(1)
    wrong = READ_A._replace(host="example.com")
    ipv6 = READ_A._replace(host="0:0:0:0:0:0:0:1")
    assert errors(cluster, create(wrong, ipv6)) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert set(cluster.state.acls) == {READ_A._replace(host="::1")}
    assert errors(cluster, delete(ipv6, (0, None, 1, None, None, 1, 1))) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert set(cluster.state.acls) == set()


def test_filters_find_what_is_there_when_they_are_carried_out() -> None:
    cluster = Cluster(1)
    cluster.ok(create(READ_A, WRITE_A, READ_P))
    result = cluster.ok(delete((2, "pq", 2, None, None, 1, 1), (2, None, 1, None, None, 3, 1)))
    assert [[Acl(*acl) for acl in each["acls"]] for each in result.value["filters"]] == [
        [READ_P],
        [READ_A],
    ]
    assert result.changes == (AclsChanged(deleted=(READ_P, READ_A)),)
    assert cluster.state.acls.version == cluster.state.applied_index
    assert set(cluster.state.acls) == {WRITE_A}
    version = cluster.state.acls.version
    assert cluster.ok(delete((2, "nothing", 3, None, None, 1, 1))).changes == ()
    assert cluster.state.acls.version == version


def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_commands, "ACLS_MAX", 2)
    monkeypatch.setattr(acl_commands, "ACLS_DELETED_MAX", 1)
    cluster = Cluster(1)
    assert errors(cluster, create(READ_A, WRITE_A, READ_P, READ_A)) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NONE,
    ]
    everything = (1, None, 1, None, None, 1, 1)
    assert errors(cluster, delete(READ_A, everything)) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert set(cluster.state.acls) == {WRITE_A}


@pytest.mark.parametrize(
    "command",
    [
        {"type": "create_topics", "topics": [new_topic("t")], "seed": 0},
        {"type": "delete_topics", "topics": [{"name": "t"}]},
        {"type": "alter_configs", "resources": []},
        {"type": "unregister_broker", "broker_id": 1},
        create(WRITE_A),
        delete(READ_A),
    ],
    ids=lambda command: str(command["type"]),
)
def test_trap_16_a_right_that_is_gone_changes_nothing(command: dict[str, Any]) -> None:
    """A broker that lags behind names the version that it decided by."""
    cluster = Cluster(1)
    cluster.ok(create(READ_A))
    lagging = cluster.state.acls.version
    cluster.ok(create(READ_P))
    error, message = cluster.error({**command, "allowed_under": lagging})
    assert error is RIGHTS_CHANGED
    assert f"version {lagging} of the ACLs" in message
    now = {**command, "allowed_under": cluster.state.acls.version}
    assert cluster.apply(now).error is ErrorCode.NONE


def test_below_its_level_a_snapshot_has_none() -> None:
    snapshot = Cluster(1, level=SECURITY - 1).state.snapshot()
    assert "acls" not in snapshot


def test_a_damaged_acl_in_a_snapshot_is_found() -> None:
    cluster = Cluster(1)
    cluster.ok(create(READ_A))
    for wrong in (READ_A._replace(name=""), READ_A._replace(host="0:0:0:0:0:0:0:1")):
        damaged = cluster.state.snapshot() | {"acls": [list(wrong)]}
        with pytest.raises(ValueError, match="damaged"):
            snapshots.load(type(cluster.state)(), damaged)
