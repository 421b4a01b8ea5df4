"""Topics and their configuration, as clients ask for them.

Every request and response goes through its bytes in the version at hand.
"""

from __future__ import annotations

import pytest

from kraftpy.core.metadata import ResourceType
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from tests.unit.server.admin_broker import FakeBroker, create, new_topic, versions

# -- CreateTopics


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_a_topic_is_created_in_every_version(version: int) -> None:
    broker = FakeBroker()
    response = broker.ask(create(new_topic("t", 3, 1, {"retention.ms": "5"})), version)
    (answer,) = response.topics
    assert (answer.name, answer.error_code, answer.error_message or None) == ("t", 0, None)
    topic = broker.metadata.topics["t"]
    assert len(topic.partitions) == 3
    assert broker.metadata.config(ResourceType.TOPIC, "t") == {"retention.ms": "5"}
    if version >= 5:
        assert (answer.num_partitions, answer.replication_factor) == (3, 1)
        shown = {each.name: each for each in answer.configs}
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5", 1)
        assert (shown["segment.ms"].value, shown["segment.ms"].config_source) == ("604800000", 5)
        assert not shown["segment.ms"].read_only
    if version >= 7:
        assert answer.topic_id == topic.id
    assert broker.controller.timeouts_ms == [5000]


def test_topic_ids_are_random() -> None:
    broker = FakeBroker()
    broker.create("a", "b")
    assert len(broker.metadata.topics_by_id) == 2
    assert FakeBroker().metadata.topics_by_id.keys().isdisjoint(broker.metadata.topics_by_id)


def test_minus_one_asks_for_the_brokers_defaults() -> None:
    broker = FakeBroker(num_partitions="4", default_replication_factor="1")
    (answer,) = broker.ask(create(new_topic("t", -1, -1))).topics
    assert (answer.num_partitions, answer.replication_factor) == (4, 1)


def test_a_manual_assignment_in_any_order() -> None:
    broker = FakeBroker()
    (answer,) = broker.ask(create(new_topic("t", assignments={1: [1], 0: [1]}))).topics
    assert (answer.error_code, answer.num_partitions) == (0, 2)


def test_validate_only_creates_nothing() -> None:
    broker = FakeBroker()
    good, bad = broker.ask(create(new_topic("t", 3), new_topic("u", 0), validate_only=True)).topics
    assert (good.error_code, good.num_partitions, good.topic_id) == (0, 3, bytes(16))
    assert bad.error_code == ErrorCode.INVALID_PARTITIONS
    assert not broker.metadata.topics


@pytest.mark.parametrize(
    ("topic", "error", "sentence"),
    [
        (new_topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "topic 'a b' has characters"),
        (
            new_topic("n" * 30_000),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "a topic's name has at most 249 characters, this one has 30000",
        ),
        (new_topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "topic there exists already"),
        (
            new_topic("t", 1, 3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "replication factor 3 needs 3 brokers; 1 is up: use replication factor 1",
        ),
        (
            new_topic("t", configs={"segment.bytes": "big"}),
            ErrorCode.INVALID_CONFIG,
            "segment.bytes=big: must be a whole number, 1048576 or more",
        ),
        (
            new_topic("t", configs={"segment.bytes": None}),
            ErrorCode.INVALID_CONFIG,
            "segment.bytes has no value",
        ),
        (
            new_topic("t", configs={str(n): "1" for n in range(300)}),
            ErrorCode.INVALID_CONFIG,
            "a topic has at most 256 settings",
        ),
        (
            new_topic("t", assignments={0: [1], 2: [1]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "an assignment must have each partition from 0 on once",
        ),
        (
            new_topic("t", assignments={0: [-1]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "a broker id is 0 or more",
        ),
        (
            new_topic("t", assignments={0: [5]}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "entry 0 of the assignment has broker 5, which is not registered",
        ),
    ],
)
def test_a_bad_topic_is_answered_and_the_good_one_created(
    topic: m.CreateTopicsRequest.CreatableTopic, error: ErrorCode, sentence: str
) -> None:
    broker = FakeBroker()
    broker.create("there")
    bad, good = broker.ask(create(topic, new_topic("good"))).topics
    assert bad.error_code == error
    assert bad.error_message.startswith(sentence)
    assert (bad.topic_id, bad.num_partitions) == (bytes(16), -1)
    assert good.error_code == ErrorCode.NONE
    assert sorted(broker.metadata.topics) == ["good", "there"]


def test_partitions_and_an_assignment_contradict_each_other() -> None:
    topic = new_topic("t", assignments={0: [1]})
    topic.num_partitions = 1
    (answer,) = FakeBroker().ask(create(topic)).topics
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "not both" in answer.error_message


def test_a_topic_twice_in_a_request_is_not_created() -> None:
    broker = FakeBroker()
    answers = broker.ask(create(new_topic("t"), new_topic("u"), new_topic("t"))).topics
    assert [(each.name, each.error_code) for each in answers] == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
    ]
    assert list(broker.metadata.topics) == ["u"]


def test_an_unknown_outcome_is_a_timeout_for_every_item_that_was_proposed() -> None:
    broker = FakeBroker()
    broker.controller.failure = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer in 5 s")
    answers = broker.ask(create(new_topic("t"), new_topic("u"), new_topic("a b" * 99))).topics
    assert [(each.error_code, each.error_message) for each in answers[:2]] == [
        (ErrorCode.REQUEST_TIMED_OUT, "no answer in 5 s")
    ] * 2
    assert answers[2].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_request_that_is_too_large_as_a_whole_is_refused_item_by_item() -> None:
    broker = FakeBroker()
    answers = broker.ask(create(new_topic("t", 6000), new_topic("u", 6000))).topics
    assert [each.error_code for each in answers] == [ErrorCode.POLICY_VIOLATION] * 2


def test_an_empty_request_is_not_proposed() -> None:
    broker = FakeBroker()
    assert broker.ask(create()).topics == []
    assert broker.controller.commands == []


# -- DeleteTopics


def delete(*names: str, ids: tuple[bytes, ...] = (), version: int = 6) -> m.DeleteTopicsRequest:
    if version < 6:
        return m.DeleteTopicsRequest(topic_names=list(names), timeout_ms=100)
    states = [m.DeleteTopicsRequest.DeleteTopicState(name) for name in names]
    states += [m.DeleteTopicsRequest.DeleteTopicState(None, id_) for id_ in ids]
    return m.DeleteTopicsRequest(states, timeout_ms=100)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_topics_are_deleted_by_name_in_every_version(version: int) -> None:
    broker = FakeBroker()
    broker.create("t", "u")
    topic_id = broker.metadata.topics["t"].id
    gone, unknown = broker.ask(delete("t", "x", version=version), version).responses
    assert (gone.name, gone.error_code) == ("t", ErrorCode.NONE)
    assert (unknown.name, unknown.error_code) == ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if version >= 6:
        assert gone.topic_id == topic_id
    assert list(broker.metadata.topics) == ["u"]


def test_topics_are_deleted_by_id() -> None:
    broker = FakeBroker()
    broker.create("t")
    topic_id = broker.metadata.topics["t"].id
    gone, unknown = broker.ask(delete(ids=(topic_id, b"x" * 16))).responses
    assert (gone.name, gone.topic_id, gone.error_code) == ("t", topic_id, ErrorCode.NONE)
    assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


def test_a_deletion_must_name_one_topic_once() -> None:
    broker = FakeBroker()
    broker.create("t")
    state = m.DeleteTopicsRequest.DeleteTopicState
    request = m.DeleteTopicsRequest(
        [state("t"), state("t"), state(None), state("u", b"i" * 16), state("n" * 300)], timeout_ms=1
    )
    answers = broker.ask(request).responses
    assert [each.error_code for each in answers] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert list(broker.metadata.topics) == ["t"]
    assert broker.controller.commands[1:] == []


@pytest.mark.parametrize(
    ("version", "error"),
    [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_deletion_can_be_switched_off(version: int, error: ErrorCode) -> None:
    broker = FakeBroker(delete_topic_enable="false")
    broker.create("t")
    (answer,) = broker.ask(delete("t", version=version), version).responses
    assert answer.error_code == error
    assert "t" in broker.metadata.topics


# -- CreatePartitions


def grow(
    *items: tuple[str, int, list[list[int]] | None], validate_only: bool = False
) -> m.CreatePartitionsRequest:
    return m.CreatePartitionsRequest(
        [
            m.CreatePartitionsRequest.CreatePartitionsTopic(
                name,
                count,
                None
                if assignments is None
                else [m.CreatePartitionsRequest.CreatePartitionsAssignment(a) for a in assignments],
            )
            for name, count, assignments in items
        ],
        100,
        validate_only,
    )


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
def test_topics_grow_in_every_version(version: int) -> None:
    broker = FakeBroker()
    broker.create("t", "u", "v")
    request = grow(("t", 3, None), ("u", 2, [[1]]), ("v", 1, None), ("x", 2, None))
    answers = broker.ask(request, version).results
    assert [(each.name, each.error_code) for each in answers] == [
        ("t", ErrorCode.NONE),
        ("u", ErrorCode.NONE),
        ("v", ErrorCode.INVALID_PARTITIONS),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert answers[2].error_message == (
        "topic v has 1 partition: their number can only grow, not become 1"
    )
    sizes = {name: len(topic.partitions) for name, topic in broker.metadata.topics.items()}
    assert sizes == {"t": 3, "u": 2, "v": 1}


def test_growth_can_be_tried_and_is_refused_twice() -> None:
    broker = FakeBroker()
    broker.create("t")
    (answer,) = broker.ask(grow(("t", 3, None), validate_only=True)).results
    assert answer.error_code == ErrorCode.NONE
    (answer,) = broker.ask(grow(("t", 3, None), ("t", 4, None))).results
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    (answer,) = broker.ask(grow(("t", 2, [[-1]]))).results
    assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    (answer,) = broker.ask(grow(("t", 2, [[1]] * 10_001))).results
    assert answer.error_code == ErrorCode.INVALID_PARTITIONS
    assert len(broker.metadata.topics["t"].partitions) == 1


# -- DescribeConfigs


def describe(
    *resources: tuple[int, str, list[str] | None], **options: bool
) -> m.DescribeConfigsRequest:
    return m.DescribeConfigsRequest(
        [m.DescribeConfigsRequest.DescribeConfigsResource(*each) for each in resources], **options
    )


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_a_topics_settings_in_every_version(version: int) -> None:
    broker = FakeBroker(log_retention_hours="2")
    broker.create("t", configs={"cleanup.policy": "compact"})
    options = {"include_synonyms": True}
    if version >= 3:
        options["include_documentation"] = True
    (result,) = broker.ask(describe((2, "t", None), **options), version).results
    assert (result.error_code, result.resource_type, result.resource_name) == (0, 2, "t")
    shown = {each.name: each for each in result.configs}
    policy = shown["cleanup.policy"]
    assert (policy.value, policy.config_source, policy.read_only) == ("compact", 1, False)
    assert not policy.is_sensitive
    assert [(each.name, each.value, each.source) for each in policy.synonyms] == [
        ("cleanup.policy", "compact", 1),
        ("log.cleanup.policy", "delete", 5),
    ]
    retention = shown["retention.ms"]
    assert (retention.value, retention.config_source) == ("7200000", 4)
    if version >= 3:
        assert policy.config_type == 7
        assert policy.documentation.startswith("What happens to old records")


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ([["retention.ms"], ["retention.ms", "segment.bytes"]], 2),
        ([["retention.ms"], [], ["segment.bytes"]], None),
    ],
)
def test_a_resource_named_often_is_described_once_with_all_that_was_asked_for(
    asked: list[list[str]], shown: int | None
) -> None:
    broker = FakeBroker()
    broker.create("t")
    (everything,) = broker.ask(describe((2, "t", []))).results
    (described,) = broker.ask(describe(*((2, "t", keys) for keys in asked))).results
    assert len(described.configs) == (shown or len(everything.configs))


def test_only_the_settings_asked_for() -> None:
    broker = FakeBroker()
    broker.create("t")
    broker.create("u")
    request = describe((2, "t", ["retention.ms", "nonsense"]), (2, "u", []))
    some, everything = broker.ask(request).results
    assert [each.name for each in some.configs] == ["retention.ms"]
    assert some.configs[0].synonyms == []
    assert some.configs[0].documentation is None
    assert len(everything.configs) > 20


def test_a_brokers_settings_and_the_cluster_wide_ones() -> None:
    broker = FakeBroker(node_id="1", num_partitions="3")
    broker.ask(alter((4, "", {"message.max.bytes": "77"})))
    own, defaults = broker.ask(describe((4, "1", None), (4, "", None))).results
    shown = {each.name: each for each in own.configs}
    assert (shown["num.partitions"].value, shown["num.partitions"].config_source) == ("3", 4)
    assert shown["num.partitions"].read_only
    assert [(each.name, each.value, each.config_source) for each in defaults.configs] == [
        ("message.max.bytes", "77", 3)
    ]


@pytest.mark.parametrize(
    ("resource", "error", "sentence"),
    [
        ((2, "x", None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic 'x'"),
        ((2, "a b", None), ErrorCode.INVALID_TOPIC_EXCEPTION, "topic 'a b' has characters"),
        ((4, "2", None), ErrorCode.INVALID_REQUEST, "this is broker 1: it knows its own"),
        ((8, "2", None), ErrorCode.INVALID_REQUEST, "this is broker 1: it knows its own"),
        ((16, "", None), ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not"),
        ((32, "", None), ErrorCode.INVALID_REQUEST, "Group name must not be empty"),
        ((64, "1", None), ErrorCode.INVALID_REQUEST, "resources of type 64 have no configuration"),
        ((-1, "1", None), ErrorCode.INVALID_REQUEST, "resources of type -1 have no"),
    ],
)
def test_what_cant_be_described(
    resource: tuple[int, str, list[str] | None], error: ErrorCode, sentence: str
) -> None:
    (result,) = FakeBroker().ask(describe(resource)).results
    assert result.error_code == error
    assert result.error_message.startswith(sentence)
    assert (result.resource_type, result.resource_name) == resource[:2]
    assert result.configs == []


# -- AlterConfigs and IncrementalAlterConfigs


def alter(
    *resources: tuple[int, str, dict[str, str | None]], validate_only: bool = False
) -> m.AlterConfigsRequest:
    config = m.AlterConfigsRequest.AlterableConfig
    return m.AlterConfigsRequest(
        [
            m.AlterConfigsRequest.AlterConfigsResource(
                type_, name, [config(key, value) for key, value in configs.items()]
            )
            for type_, name, configs in resources
        ],
        validate_only,
    )


def alter_keys(
    *resources: tuple[int, str, list[tuple[str, int, str | None]]], validate_only: bool = False
) -> m.IncrementalAlterConfigsRequest:
    config = m.IncrementalAlterConfigsRequest.AlterableConfig
    return m.IncrementalAlterConfigsRequest(
        [
            m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                type_, name, [config(*op) for op in ops]
            )
            for type_, name, ops in resources
        ],
        validate_only,
    )


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_all_that_is_set_is_replaced_in_every_version(version: int) -> None:
    broker = FakeBroker()
    broker.create("t", configs={"retention.ms": "5"})
    (answer,) = broker.ask(alter((2, "t", {"segment.ms": "7"})), version).responses
    assert (answer.error_code, answer.resource_type, answer.resource_name) == (0, 2, "t")
    assert broker.metadata.config(2, "t") == {"segment.ms": "7"}


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_single_keys_change_in_every_version(version: int) -> None:
    broker = FakeBroker()
    broker.create("t", configs={"retention.ms": "5", "flush.ms": "6"})
    ops = [("segment.ms", 0, "7"), ("flush.ms", 1, None), ("cleanup.policy", 2, "compact")]
    answers = broker.ask(
        alter_keys((2, "t", ops), (4, "1", [("message.max.bytes", 0, "9")])), version
    ).responses
    assert [(each.error_code, each.resource_name) for each in answers] == [(0, "t"), (0, "1")]
    assert broker.metadata.config(2, "t") == {
        "retention.ms": "5",
        "segment.ms": "7",
        "cleanup.policy": "delete,compact",
    }
    assert broker.metadata.config(4, "1") == {"message.max.bytes": "9"}


def test_a_change_can_be_tried() -> None:
    broker = FakeBroker()
    broker.create("t")
    for request in (
        alter((2, "t", {"segment.ms": "7"}), validate_only=True),
        alter_keys((2, "t", [("segment.ms", 0, "7")]), validate_only=True),
    ):
        assert broker.ask(request).responses[0].error_code == ErrorCode.NONE
    assert broker.metadata.config(2, "t") == {}


def test_each_resource_is_answered_by_itself() -> None:
    broker = FakeBroker()
    broker.create("t", "u")
    answers = broker.ask(
        alter_keys(
            (2, "t", [("segment.ms", 0, "7")]),
            (2, "u", [("segment.mss", 0, "7")]),
            (2, "n" * 300, []),
            (2, "t", [("segment.ms", 0, "8")]),
            (2, "v", [(str(n), 0, "1") for n in range(257)]),
            (4, "", [("log.dirs", 0, "/a")]),
            (64, "other", []),
        )
    ).responses
    assert [(each.error_code, each.error_message) for each in answers] == [
        (ErrorCode.INVALID_REQUEST, "the resource is in the request twice"),
        (
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: segment.mss",
        ),
        (ErrorCode.INVALID_REQUEST, "the resource's name is too long"),
        (ErrorCode.INVALID_REQUEST, "a resource has at most 256 settings"),
        (
            ErrorCode.INVALID_CONFIG,
            "log.dirs can't be changed while the broker runs: set it in server.properties and "
            "restart the broker",
        ),
        (ErrorCode.INVALID_REQUEST, "resources of type 64 have no configuration here"),
    ]
    assert broker.metadata.config(2, "t") == {}


def test_a_key_that_is_given_twice_is_refused() -> None:
    broker = FakeBroker()
    broker.create("t")
    request = alter((2, "t", {"segment.ms": "7"}))
    request.resources[0].configs *= 2
    for each in (request, alter_keys((2, "t", [("segment.ms", 0, "7"), ("segment.ms", 1, None)]))):
        (answer,) = broker.ask(each).responses
        assert (answer.error_code, answer.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "a key is in the request twice",
        )
    assert broker.metadata.config(2, "t") == {}


def test_no_controller_is_an_error_of_every_resource() -> None:
    broker = FakeBroker()
    broker.create("t")
    broker.controller.failure = KafkaError(ErrorCode.NOT_CONTROLLER, "no controller")
    for request in (alter((2, "t", {})), alter_keys((2, "t", []))):
        (answer,) = broker.ask(request).responses
        assert (answer.error_code, answer.error_message) == (
            ErrorCode.NOT_CONTROLLER,
            "no controller",
        )
