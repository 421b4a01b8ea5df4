"""The cluster, its quorum and its folders, as clients ask for them."""

from __future__ import annotations

import pytest

from kraftpy.core.metadata import LEVEL
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.messages import QuorumDescription, QuorumReplica
from kraftpy.server.cluster.operations import CLUSTER_OPERATIONS, NOT_ASKED
from tests.unit.server.admin_broker import FakeBroker, versions


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_the_cluster_in_every_version(version: int) -> None:
    broker = FakeBroker()
    response = broker.ask(m.DescribeClusterRequest(), version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, "a-cluster", 7)
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (1, "127.0.0.9", 9092, "r")
    assert response.cluster_authorized_operations == NOT_ASKED
    asked = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert broker.ask(asked, version).cluster_authorized_operations == CLUSTER_OPERATIONS


def test_fenced_brokers_are_named_when_asked_for() -> None:
    broker = FakeBroker(brokers=3)
    broker.fence(2)
    live = broker.ask(m.DescribeClusterRequest()).brokers
    assert [(each.broker_id, each.is_fenced) for each in live] == [(1, False), (3, False)]
    known = broker.ask(m.DescribeClusterRequest(include_fenced_brokers=True)).brokers
    assert [(each.broker_id, each.is_fenced) for each in known] == [
        (1, False),
        (2, True),
        (3, False),
    ]


def test_a_broker_does_not_describe_controllers() -> None:
    response = FakeBroker().ask(m.DescribeClusterRequest(endpoint_type=2))
    assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert response.brokers == []


# -- UnregisterBroker


def test_a_broker_is_forgotten() -> None:
    broker = FakeBroker(brokers=2)
    broker.fence(2)
    response = broker.ask(m.UnregisterBrokerRequest(2))
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert list(broker.metadata.brokers) == [1]


@pytest.mark.parametrize("broker_id", [-1, 2, 2**31 - 1])
def test_an_unknown_broker_cant_be_forgotten(broker_id: int) -> None:
    broker = FakeBroker()
    try:
        response = broker.ask(m.UnregisterBrokerRequest(broker_id))
        error = response.error_code
    except KafkaError as refused:
        error = refused.code
    assert error == ErrorCode.BROKER_ID_NOT_REGISTERED


# -- DescribeQuorum

QUORUM = QuorumDescription(
    leader_id=2,
    leader_epoch=5,
    high_watermark=101,
    voters=(
        QuorumReplica(1, 99, 1000, 900),
        QuorumReplica(2, 103, 2000, 2000),
        QuorumReplica(3, 0, -1, -1),
    ),
    observers=(QuorumReplica(4, 101, 1500, 1400),),
)


def ask_quorum(*asked: tuple[str, int]) -> m.DescribeQuorumRequest:
    kinds = m.DescribeQuorumRequest
    return kinds([kinds.TopicData(name, [kinds.PartitionData(index)]) for name, index in asked])


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_QUORUM))
def test_the_quorum_in_every_version(version: int) -> None:
    broker = FakeBroker(
        controller_quorum_voters="1@one:9093,2@two:9094,3@three:9095",
        controller_listener_names="QUORUM",
    )
    broker.controller.quorum = QUORUM
    response = broker.ask(ask_quorum(("__cluster_metadata", 0)), version)
    assert response.error_code == ErrorCode.NONE
    (topic,) = response.topics
    (partition,) = topic.partitions
    assert (topic.topic_name, partition.partition_index) == ("__cluster_metadata", 0)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (2, 5, 101)
    shown = [
        (each.replica_id, each.log_end_offset)
        for each in (*partition.current_voters, *partition.observers)
    ]
    assert shown == [(1, 99), (2, 103), (3, 0), (4, 101)]
    if version >= 1:
        times = [
            (each.last_fetch_timestamp, each.last_caught_up_timestamp)
            for each in partition.current_voters
        ]
        assert times == [(1000, 900), (2000, 2000), (-1, -1)]
    if version >= 2:
        listeners = [
            (node.node_id, each.name, each.host, each.port)
            for node in response.nodes
            for each in node.listeners
        ]
        assert listeners == [
            (1, "QUORUM", "one", 9093),
            (2, "QUORUM", "two", 9094),
            (3, "QUORUM", "three", 9095),
        ]


@pytest.mark.parametrize(
    "asked",
    [
        (),
        (("t", 0),),
        (("__cluster_metadata", 1),),
        (("__cluster_metadata", 0), ("__cluster_metadata", 0)),
    ],
)
def test_only_the_metadata_log_has_a_quorum(asked: tuple[tuple[str, int], ...]) -> None:
    broker = FakeBroker()
    broker.controller.quorum = QUORUM
    response = broker.ask(ask_quorum(*asked))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message == "only __cluster_metadata, partition 0, has a quorum"
    errors = {each.error_code for topic in response.topics for each in topic.partitions}
    assert errors <= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_quorum_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(KafkaError, match="no controller answers"):
        FakeBroker().ask(ask_quorum(("__cluster_metadata", 0)))


# -- the extension of ElectLeaders that hands the lead of the quorum over


def transfer(voter: bytes, topic: str = "__cluster_metadata") -> m.ElectLeadersRequest:
    request = m.ElectLeadersRequest(0, [m.ElectLeadersRequest.TopicPartitions(topic, [0])], 5000)
    request._tags = {10_000: voter}
    return request


def test_the_lead_of_the_quorum_is_handed_over() -> None:
    broker = FakeBroker()
    (topic,) = broker.ask(transfer(b"\0\0\1\2")).replica_election_results
    assert topic.topic == "__cluster_metadata"
    assert [each.error_code for each in topic.partition_result] == [ErrorCode.NONE]
    assert broker.controller.transfers == [(258, 5000)]


@pytest.mark.parametrize(
    "request_", [transfer(b""), transfer(b"12345"), transfer(b"\0\0\0\1", "t")]
)
def test_a_lead_that_cant_be_handed_over(request_: m.ElectLeadersRequest) -> None:
    broker = FakeBroker()
    with pytest.raises(KafkaError, match="__cluster_metadata, partition 0, alone"):
        broker.ask(request_)
    assert broker.controller.transfers == []


def test_a_leader_that_refuses_is_an_error() -> None:
    broker = FakeBroker()
    broker.controller.failure = KafkaError(ErrorCode.INVALID_REQUEST, "9 is no voter")
    (topic,) = broker.ask(transfer(b"\0\0\0\x09")).replica_election_results
    (result,) = topic.partition_result
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_REQUEST, "9 is no voter")


def test_without_the_extension_the_metadata_log_is_no_topic() -> None:
    broker = FakeBroker()
    request = transfer(b"")
    request._tags = None
    (topic,) = broker.ask(request).replica_election_results
    errors = [each.error_code for each in topic.partition_result]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


# -- DescribeLogDirs


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_the_folders_in_every_version(version: int) -> None:
    first, second = FakeBroker().ask(m.DescribeLogDirsRequest(None), version).results
    assert (first.error_code, first.log_dir, second.log_dir) == (0, "/a", "/b")
    sizes = {
        (topic.name, each.partition_index): each.partition_size
        for topic in first.topics
        for each in topic.partitions
    }
    assert sizes == {("t", 0): 50, ("t", 1): 70, ("u", 0): 10}
    assert second.topics == []
    if version >= 4:
        assert (first.total_bytes, first.usable_bytes) == (1000, 600)


def test_the_size_of_the_partitions_asked_for() -> None:
    asked = m.DescribeLogDirsRequest.DescribableLogDirTopic
    request = m.DescribeLogDirsRequest([asked("t", [1, 9]), asked("x", [0])])
    first, second = FakeBroker().ask(request).results
    assert [
        (topic.name, [p.partition_index for p in topic.partitions]) for topic in first.topics
    ] == [("t", [1])]
    assert second.topics == []


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_REPLICA_LOG_DIRS))
def test_whether_replicas_are_in_the_folders_they_are_wanted_in(version: int) -> None:
    kinds = m.AlterReplicaLogDirsRequest
    topic = kinds.AlterReplicaLogDirTopic
    response = FakeBroker().ask(
        kinds(
            [
                kinds.AlterReplicaLogDir("/a", [topic("t", [0, 9])]),
                kinds.AlterReplicaLogDir("/b", [topic("t", [1])]),
                kinds.AlterReplicaLogDir("/c", [topic("u", [0])]),
            ]
        ),
        version,
    )
    answers = {
        (each.topic_name, partition.partition_index): partition.error_code
        for each in response.results
        for partition in each.partitions
    }
    assert answers == {
        ("t", 0): ErrorCode.NONE,
        ("t", 9): ErrorCode.REPLICA_NOT_AVAILABLE,
        ("t", 1): ErrorCode.INVALID_REQUEST,
        ("u", 0): ErrorCode.LOG_DIR_NOT_FOUND,
    }


# -- UpdateFeatures


def raised(broker: FakeBroker, version: int, **how: bool) -> m.UpdateFeaturesResponse:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey("kraftpy.metadata.level", LEVEL)
    response = broker.ask(m.UpdateFeaturesRequest(5000, [update], **how), version)
    assert isinstance(response, m.UpdateFeaturesResponse)
    return response


@pytest.mark.parametrize("version", versions(ApiKey.UPDATE_FEATURES))
def test_the_metadata_level_is_raised_when_it_is_asked_for(version: int) -> None:
    broker = FakeBroker()
    assert broker.metadata.level == 0
    for _ in range(2):
        response = raised(broker, version)
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        assert broker.metadata.level == LEVEL
    assert broker.controller.commands == [{"type": "raise_level", "level": LEVEL}]


@pytest.mark.parametrize(
    ("refusals", "problem"),
    [
        ((None,) * LEVEL, None),
        ((None,) * (LEVEL - 1) + ("voter 3 is not connected",), "voter 3 is not connected"),
        ((), "voter 2, which leads, runs a release without it"),
    ],
)
def test_whether_the_level_can_be_raised_is_judged_by_who_leads(
    refusals: tuple[str | None, ...], problem: str | None
) -> None:
    broker = FakeBroker()
    broker.controller.quorum = QUORUM._replace(level_refusals=refusals)
    response = raised(broker, 2, validate_only=True)
    if problem is None:
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    else:
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert response.error_message.endswith(problem)
    assert broker.metadata.level == 0
    assert broker.controller.commands == []


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_level_that_is_asked_for_many_times_is_judged_once(*, validate_only: bool) -> None:
    broker = FakeBroker()
    broker.controller.quorum = QUORUM._replace(level_refusals=(None,) * LEVEL)
    describe, described = broker.controller.describe_quorum, 0

    async def counted(timeout_ms: int) -> QuorumDescription:
        nonlocal described
        described += 1
        return await describe(timeout_ms)

    broker.controller.describe_quorum = counted  # type: ignore[method-assign]
    update = m.UpdateFeaturesRequest.FeatureUpdateKey("kraftpy.metadata.level", LEVEL)
    request = m.UpdateFeaturesRequest(5000, [update] * 1000, validate_only)
    response = broker.ask(request, 1)
    assert response.error_code == ErrorCode.NONE
    assert [each.feature for each in response.results] == ["kraftpy.metadata.level"]
    assert (described, len(broker.controller.commands)) == (validate_only, not validate_only)


def test_a_level_is_not_raised_without_a_controller() -> None:
    broker = FakeBroker()
    broker.controller.failure = KafkaError(ErrorCode.NOT_CONTROLLER, "no controller answers")
    response = raised(broker, 2)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert response.error_message == "no controller answers"
