"""Changing the configuration of topics and brokers."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic

from kraftpy.core.metadata import ConfigChanged, MetadataState, ResourceType
from kraftpy.protocol.errors import ErrorCode

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def alter(*resources: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "alter_configs", "resources": list(resources), **fields}


def topic_ops(*ops: list[Any], name: str = "t") -> dict[str, Any]:
    return {"type": 2, "name": name, "ops": list(ops)}


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(1)
    cluster.create(new_topic("t", configs={"retention.ms": "5", "flush.messages": "1"}))
    return cluster


def test_single_keys_are_set_and_deleted(cluster: Cluster) -> None:
    result = cluster.ok(
        alter(topic_ops(["retention.ms", SET, "9"], ["flush.messages", DELETE, None]))
    )
    assert cluster.state.config(2, "t") == {"retention.ms": "9"}
    assert result.changes == (ConfigChanged(ResourceType.TOPIC, "t"),)
    cluster.ok(alter(topic_ops(["retention.ms", DELETE, None])))
    assert cluster.state.config(2, "t") == {}
    assert not cluster.state.configs


def test_a_change_without_effect_is_no_change(cluster: Cluster) -> None:
    assert cluster.ok(alter(topic_ops(["retention.ms", SET, "5"]))).changes == ()
    assert cluster.ok(alter(topic_ops(["preallocate", DELETE, None]))).changes == ()


def test_lists_are_appended_to_and_subtracted_from(cluster: Cluster) -> None:
    key = "cleanup.policy"
    cluster.ok(alter(topic_ops([key, APPEND, "compact"])))
    assert cluster.state.config(2, "t")[key] == "delete,compact"
    cluster.ok(alter(topic_ops([key, APPEND, "compact"])))
    assert cluster.state.config(2, "t")[key] == "delete,compact"
    cluster.ok(alter(topic_ops([key, SUBTRACT, "delete"])))
    assert cluster.state.config(2, "t")[key] == "compact"
    cluster.ok(alter(topic_ops([key, SUBTRACT, "compact"])))
    assert cluster.state.config(2, "t")[key] == ""
    cluster.ok(alter(topic_ops([key, APPEND, "delete"])))
    assert cluster.state.config(2, "t")[key] == "delete"


def test_what_an_earlier_release_has_committed_is_applied(cluster: Cluster) -> None:
    """Whether a size of segments is large enough is judged where it's proposed."""
    cluster.ok(alter(topic_ops(["segment.bytes", SET, "4096"])))
    assert cluster.state.config(2, "t")["segment.bytes"] == "4096"


GROUP, CLIENT_METRICS = 32, 16


def test_groups_and_subscriptions_are_known_by_their_configuration(cluster: Cluster) -> None:
    ops = [["consumer.session.timeout.ms", SET, "50000"]]
    result = cluster.ok(alter({"type": GROUP, "name": "g", "ops": ops}))
    assert result.changes == (ConfigChanged(ResourceType.GROUP, "g"),)
    cluster.ok(alter({"type": CLIENT_METRICS, "name": "m", "configs": {"interval.ms": "1000"}}))
    again = MetadataState.from_snapshot(cluster.state.snapshot())
    assert again.config(GROUP, "g") == {"consumer.session.timeout.ms": "50000"}
    assert again.config(CLIENT_METRICS, "m") == {"interval.ms": "1000"}
    assert again.snapshot() == cluster.state.snapshot()
    cluster.ok(alter({"type": GROUP, "name": "g", "configs": {}}))
    assert (GROUP, "g") not in cluster.state.configs


def test_only_so_many_groups_have_a_configuration(cluster: Cluster) -> None:
    ops = [["consumer.session.timeout.ms", SET, "50000"]]
    items = [{"type": GROUP, "name": f"g{n}", "ops": ops} for n in range(10_000)]
    assert {error for error, _ in cluster.item_errors(alter(*items))} == {ErrorCode.NONE}
    more = {"type": GROUP, "name": "one-more", "ops": ops}
    ((error, message),) = cluster.item_errors(alter(more))
    assert error is ErrorCode.POLICY_VIOLATION
    assert message.startswith("10000 resources of type 32 have a configuration")
    # A group that has one can change it, and a group that goes makes room.
    cluster.ok(alter({**items[0], "ops": [["consumer.session.timeout.ms", SET, "60000"]]}))
    gone = {"type": GROUP, "name": "g0", "configs": {}}
    assert [error for error, _ in cluster.item_errors(alter(gone, more))] == [ErrorCode.NONE] * 2


def test_the_older_form_replaces_everything(cluster: Cluster) -> None:
    cluster.ok(alter({"type": 2, "name": "t", "configs": {"segment.ms": "7"}}))
    assert cluster.state.config(2, "t") == {"segment.ms": "7"}
    cluster.ok(alter({"type": 2, "name": "t", "configs": {}}))
    assert cluster.state.config(2, "t") == {}


def test_brokers_have_dynamic_configuration_each_and_together(cluster: Cluster) -> None:
    result = cluster.ok(
        alter(
            {"type": 4, "name": "", "ops": [["message.max.bytes", SET, "10"]]},
            {"type": 4, "name": "1", "ops": [["message.max.bytes", SET, "20"]]},
        )
    )
    assert cluster.state.config(4, "") == {"message.max.bytes": "10"}
    assert cluster.state.config(4, "1") == {"message.max.bytes": "20"}
    assert result.changes == (
        ConfigChanged(ResourceType.BROKER, ""),
        ConfigChanged(ResourceType.BROKER, "1"),
    )


def test_validate_only_changes_nothing(cluster: Cluster) -> None:
    result = cluster.ok(alter(topic_ops(["retention.ms", SET, "9"]), validate_only=True))
    assert result.changes == ()
    assert cluster.state.config(2, "t")["retention.ms"] == "5"


def test_each_resource_changes_as_a_whole_or_not_at_all(cluster: Cluster) -> None:
    errors = cluster.item_errors(
        alter(
            topic_ops(["retention.ms", SET, "9"], ["segment.ms", SET, "soon"]),
            {"type": 4, "name": "", "ops": [["message.max.bytes", SET, "10"]]},
        )
    )
    assert errors == [
        (ErrorCode.INVALID_CONFIG, "segment.ms=soon: must be a whole number, 1 or more"),
        (ErrorCode.NONE, ""),
    ]
    assert cluster.state.config(2, "t")["retention.ms"] == "5"
    assert cluster.state.config(4, "") == {"message.max.bytes": "10"}


@pytest.mark.parametrize(
    ("resource", "error", "sentence"),
    [
        (
            topic_ops(["retention.ms", SET, "1"], name="x"),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no topic 'x'",
        ),
        (
            topic_ops(["retention.ms", SET, "1"], name="a b"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "topic 'a b' has characters other than",
        ),
        (
            topic_ops(["retention.mss", SET, "1"]),
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: retention.mss",
        ),
        (
            topic_ops(["retention.ms", SET, None]),
            ErrorCode.INVALID_REQUEST,  # Kafka's ConfigAdminManager: "Null value not supported"
            "retention.ms has no value",
        ),
        (
            topic_ops(["retention.ms", SET, "1"], ["retention.ms", DELETE, None]),
            ErrorCode.INVALID_REQUEST,
            "a key is in the request twice",
        ),
        (
            topic_ops(["retention.ms", APPEND, "1"]),
            ErrorCode.INVALID_CONFIG,
            "retention.ms is not a list: it can be set or deleted, not appended to",
        ),
        (
            topic_ops(["nothing", APPEND, "1"]),
            ErrorCode.INVALID_CONFIG,
            "nothing is not a list",
        ),
        (
            topic_ops(["retention.ms", 4, "1"]),
            ErrorCode.INVALID_REQUEST,
            "there is no config operation 4",
        ),
        (
            {"type": 2, "name": "t", "configs": {"retention.ms": None}},
            ErrorCode.INVALID_REQUEST,  # Kafka's ConfigAdminManager: "Null value not supported"
            "retention.ms has no value",
        ),
        (
            {"type": 4, "name": "2", "configs": {}},
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "broker 2 is not registered",
        ),
        (
            {"type": 4, "name": "01", "configs": {}},
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "broker 01 is not registered",
        ),
        (
            {"type": 4, "name": "one", "configs": {}},
            ErrorCode.INVALID_REQUEST,
            "a broker is named by its id, not by 'one'",
        ),
        (
            {"type": 4, "name": "", "configs": {"log.dirs": "/a"}},
            ErrorCode.INVALID_CONFIG,
            "log.dirs can't be changed while the broker runs: set it in server.properties",
        ),
        (
            {"type": 8, "name": "1", "configs": {}},
            ErrorCode.INVALID_REQUEST,
            "resources of type 8 have no configuration here",
        ),
    ],
)
def test_what_is_said_about_a_change_that_cant_be_made(
    cluster: Cluster, resource: dict[str, Any], error: ErrorCode, sentence: str
) -> None:
    before = cluster.state.snapshot()
    ((got, message),) = cluster.item_errors(alter(resource))
    assert got is error
    assert message.startswith(sentence)
    assert cluster.state.snapshot() == before | {"applied_index": cluster.state.applied_index}


def test_a_resource_is_named_once(cluster: Cluster) -> None:
    errors = cluster.item_errors(
        alter(topic_ops(["retention.ms", SET, "6"]), topic_ops(["retention.ms", SET, "7"]))
    )
    assert [error for error, _ in errors] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert cluster.state.config(2, "t")["retention.ms"] == "6"
