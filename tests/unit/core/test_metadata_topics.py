"""Creating, growing and deleting topics."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, registration, uuid_of

from kraftpy.core.metadata import (
    PartitionChanged,
    PartitionState,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.core.metadata import topic_commands as commands
from kraftpy.core.metadata.records import UNASSIGNED_DIRECTORY
from kraftpy.protocol.errors import ErrorCode


def test_a_topic_is_there_with_leaders_and_configuration() -> None:
    cluster = Cluster(1)
    result = cluster.create(new_topic("t", 2, configs={"retention.ms": "5"}))
    topic = cluster.state.topics["t"]
    assert result.changes == (TopicCreated(topic),)
    assert result.value == {
        "topics": [
            {
                "name": "t",
                "topic_id": topic.id,
                "partitions": 2,
                "replication_factor": 1,
                "error": 0,
                "message": None,
            }
        ]
    }
    state = PartitionState(1, 0, 0, (1,), (1,), (uuid_of(2_000_001),))
    assert topic.partitions == {0: state, 1: state}
    assert cluster.state.topics_by_id == {topic.id: topic}
    assert cluster.state.config(2, "t") == {"retention.ms": "5"}
    assert cluster.state.config(2, "other") == {}
    assert cluster.state.partition_count == 2


def test_each_topic_succeeds_or_fails_by_itself() -> None:
    cluster = Cluster(1)
    result = cluster.apply(
        {
            "type": "create_topics",
            "seed": 1,
            "topics": [new_topic("a"), new_topic("b", 0), new_topic("c")],
        }
    )
    assert [item["error"] for item in result.value["topics"]] == [0, 37, 0]
    assert sorted(cluster.state.topics) == ["a", "c"]
    assert len(result.changes) == 2


def test_validate_only_answers_and_creates_nothing() -> None:
    cluster = Cluster(1)
    before = cluster.state.snapshot()
    result = cluster.create(new_topic("t", 3), validate_only=True)
    assert result.value["topics"][0]["partitions"] == 3
    assert result.changes == ()
    assert cluster.state.snapshot() == before | {"applied_index": cluster.state.applied_index}


@pytest.mark.parametrize(
    ("topic", "error", "sentence"),
    [
        (new_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic can't be called ''"),
        (new_topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic can't be called '..'"),
        (
            new_topic("n" * 250),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "a topic's name has at most 249 characters, this one has 250",
        ),
        (
            new_topic("caf\u00e9"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "topic 'caf\u00e9' has characters other than a-z, A-Z, 0-9, '.', '_' and '-'",
        ),
        (new_topic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "topic 'a\\n' has characters other"),
        (
            new_topic("__cluster_metadata"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "__cluster_metadata is the name of the metadata log",
        ),
        (new_topic("there.is"), ErrorCode.TOPIC_ALREADY_EXISTS, "topic there.is exists already"),
        (
            new_topic("there_is"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "topic there_is collides with topic there.is: '.' and '_' count as the same",
        ),
        (
            new_topic("t", -1),
            ErrorCode.INVALID_PARTITIONS,
            "a topic has 1 to 10000 partitions, not -1",
        ),
        (
            new_topic("t", 10_001),
            ErrorCode.INVALID_PARTITIONS,
            "a topic has 1 to 10000 partitions, not 10001",
        ),
        (
            new_topic("t", 1, 0),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "a replication factor is 1 or more, not 0",
        ),
        (
            new_topic("t", 1, 3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "replication factor 3 needs 3 brokers; 2 are registered: use replication factor 2",
        ),
        (
            new_topic("t", configs={"retention.mss": "1"}),
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: retention.mss",
        ),
        (
            new_topic("t", configs={"retention.ms": None}),
            ErrorCode.INVALID_CONFIG,
            "retention.ms has no value",
        ),
        (
            new_topic("t", topic_id=bytes(16)),
            ErrorCode.INVALID_REQUEST,
            "the topic id is taken",
        ),
        (
            new_topic("t", topic_id=new_topic("there.is")["topic_id"]),
            ErrorCode.INVALID_REQUEST,
            "the topic id is taken",
        ),
        (
            new_topic("t", assignments=[]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the assignment has no partitions",
        ),
        (
            new_topic("t", assignments=[[1], []]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "entry 1 of the assignment has no replicas",
        ),
        (
            new_topic("t", assignments=[[1, 1]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "entry 0 of the assignment has the same broker twice",
        ),
        (
            new_topic("t", assignments=[[1], [1, 2]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "entry 1 of the assignment has 2 replicas where others have 1",
        ),
        (
            new_topic("t", assignments=[[4]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "entry 0 of the assignment has broker 4, which is not registered",
        ),
        (
            new_topic("t", assignments=[[2]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "entry 0 of the assignment has only brokers that are down",
        ),
    ],
)
def test_what_is_said_about_a_topic_that_cant_be_created(
    topic: dict[str, Any], error: ErrorCode, sentence: str
) -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("there.is"))
    cluster.fence(2)
    got, message = cluster.create_error(topic)
    assert got is error
    assert message.startswith(sentence)


def test_a_replication_factor_needs_a_broker_at_all() -> None:
    assert Cluster().create_error(new_topic("t"))[1] == (
        "replication factor 1 needs 1 broker; 0 are up: start a broker"
    )


def test_a_topic_can_be_created_while_a_broker_is_down() -> None:
    cluster = Cluster(3)
    cluster.fence(2)
    cluster.create(new_topic("t", 3, 3))
    for index in range(3):
        state = cluster.partition("t", index)
        assert state.replicas[2] == 2
        assert state.isr == state.replicas[:2]
        assert state.leader == state.replicas[0]
    cluster.start(2)
    cluster.set_isr(1, 2, 3)
    cluster.fence(1)
    cluster.fence(3)
    cluster.ok(grow("t", 4, assignments=[[1, 3, 2]]))
    assert cluster.partition("t", 3).leader == 2
    cluster.fence(2)
    error, message = cluster.create_error(new_topic("u"))
    assert error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert message == "all brokers are down or shutting down: start one"


def test_names_that_kafka_allows() -> None:
    cluster = Cluster(1)
    names = ["a", "A-1", "...", "_", "x" * 249, "__consumer_offsets"]
    cluster.create(*(new_topic(name, topic_id=uuid_of(9 + n)) for n, name in enumerate(names)))
    assert sorted(cluster.state.topics) == sorted(names)
    assert cluster.state.topics["__consumer_offsets"].internal
    assert not cluster.state.topics["a"].internal


def test_a_topic_twice_in_one_command_is_created_once() -> None:
    cluster = Cluster(1)
    errors = cluster.item_errors(
        {"type": "create_topics", "seed": 0, "topics": [new_topic("t"), new_topic("t", 5)]}
    )
    assert errors[1] == (ErrorCode.INVALID_REQUEST, "topic t is in the request twice")
    assert len(cluster.state.topics["t"].partitions) == 1


def test_a_manual_assignment_is_kept_and_led_by_the_first_that_is_up() -> None:
    cluster = Cluster(3)
    cluster.fence(2)
    cluster.create(new_topic("t", assignments=[[2, 3], [3, 1], [1, 2]]))
    partitions = cluster.state.topics["t"].partitions
    assert [each.replicas for each in partitions.values()] == [(2, 3), (3, 1), (1, 2)]
    assert [each.leader for each in partitions.values()] == [3, 3, 1]
    assert [each.isr for each in partitions.values()] == [(3,), (3, 1), (1,)]


def test_a_broker_with_several_folders_chooses_itself() -> None:
    cluster = Cluster()
    cluster.ok(registration(1, directories=[uuid_of(1), uuid_of(2)]))
    cluster.unfence(1)
    cluster.create(new_topic("t"))
    assert cluster.state.topics["t"].partitions[0].directories == (UNASSIGNED_DIRECTORY,)


def test_partitions_are_limited_per_command_and_in_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(1)
    command = {
        "type": "create_topics",
        "seed": 0,
        "topics": [new_topic("a", 6000), new_topic("b", 6000)],
    }
    assert cluster.error(command) == (
        ErrorCode.POLICY_VIOLATION,
        "one request can create 10000 partitions, this one asks for 12000: use several requests",
    )
    cluster.create(new_topic("a", 6))
    monkeypatch.setattr(commands, "CLUSTER_PARTITIONS_MAX", 10)
    sentence = "a cluster has at most 10 partitions; there are 6 and 5 would be added"
    for topic in (new_topic("b", 5), new_topic("b", assignments=[[1]] * 5)):
        assert cluster.create_error(topic) == (ErrorCode.POLICY_VIOLATION, sentence)
    growth = {"type": "create_partitions", "seed": 0, "topics": [{"name": "a", "count": 11}]}
    assert cluster.item_errors(growth) == [(ErrorCode.POLICY_VIOLATION, sentence)]
    cluster.create(new_topic("b", 4))


# -- deleting


def test_deleting_by_name_and_by_id_takes_the_configuration_along() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("a.b", 2, configs={"retention.ms": "5"}), new_topic("c"))
    first, second = cluster.state.topics["a.b"], cluster.state.topics["c"]
    result = cluster.ok(
        {"type": "delete_topics", "topics": [{"name": "a.b"}, {"topic_id": second.id}]}
    )
    assert result.changes == (TopicDeleted(first), TopicDeleted(second))
    assert result.value["topics"] == [
        {"name": "a.b", "topic_id": first.id, "error": 0, "message": None},
        {"name": "c", "topic_id": second.id, "error": 0, "message": None},
    ]
    assert not cluster.state.topics
    assert not cluster.state.topics_by_id
    assert not cluster.state.configs
    assert cluster.state.partition_count == 0
    cluster.create(new_topic("a_b"))


def test_deleting_what_is_not_there() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("t"))
    errors = cluster.item_errors(
        {
            "type": "delete_topics",
            "topics": [{"name": "x"}, {"topic_id": uuid_of(5)}, {"name": "t"}, {"name": "t"}],
        }
    )
    assert [error for error, _ in errors] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_deleting_needs_either_name_or_id() -> None:
    cluster = Cluster(1)
    for item in ({}, {"name": "t", "topic_id": uuid_of(1)}):
        error, _ = cluster.error({"type": "delete_topics", "topics": [item]})
        assert error is ErrorCode.INVALID_REQUEST


# -- growing


def grow(name: str, count: int, **fields: Any) -> dict[str, Any]:
    item = {"name": name, "count": count, **fields}
    return {"type": "create_partitions", "seed": 3, "topics": [item]}


def test_a_topic_grows_with_its_replication_factor() -> None:
    cluster = Cluster(3)
    cluster.create(new_topic("t", 2, 2))
    result = cluster.ok(grow("t", 4))
    topic = cluster.state.topics["t"]
    assert list(topic.partitions) == [0, 1, 2, 3]
    assert result.changes == (
        PartitionChanged(topic, 2, None, topic.partitions[2]),
        PartitionChanged(topic, 3, None, topic.partitions[3]),
    )
    assert len(topic.partitions[3].replicas) == 2
    assert cluster.state.partition_count == 4


def test_a_topic_grows_where_it_is_told() -> None:
    cluster = Cluster(3)
    cluster.create(new_topic("t", 1, 2))
    cluster.ok(grow("t", 3, assignments=[[3, 1], [2, 3]]))
    partitions = cluster.state.topics["t"].partitions
    assert [partitions[1].replicas, partitions[2].replicas] == [(3, 1), (2, 3)]


@pytest.mark.parametrize(
    ("command", "error", "sentence"),
    [
        (grow("x", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic 'x'"),
        (
            grow("t", 2),
            ErrorCode.INVALID_PARTITIONS,
            "topic t has 2 partitions: their number can only grow, not become 2",
        ),
        (grow("t", -1), ErrorCode.INVALID_PARTITIONS, "topic t has 2 partitions: their number"),
        (
            grow("t", 10_001),
            ErrorCode.INVALID_PARTITIONS,
            "a topic has 1 to 10000 partitions, not 10001",
        ),
        (
            grow("t", 4, assignments=[[1]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "topic t would get 2 new partitions, but the assignment has 1",
        ),
        (
            grow("t", 3, assignments=[[1, 2]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "entry 0 of the assignment has 2 replicas where others have 1",
        ),
    ],
)
def test_what_is_said_about_a_topic_that_cant_grow(
    command: dict[str, Any], error: ErrorCode, sentence: str
) -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", 2))
    before = cluster.state.snapshot()
    ((got, message),) = cluster.item_errors(command)
    assert got is error
    assert message.startswith(sentence)
    assert cluster.state.snapshot() == before | {"applied_index": cluster.state.applied_index}


def test_growing_can_be_tried() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("t"))
    before = cluster.state.snapshot()
    cluster.ok(grow("t", 5) | {"validate_only": True})
    assert cluster.state.snapshot() == before | {"applied_index": cluster.state.applied_index}
