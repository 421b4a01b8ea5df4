"""What an operator's client asks, and how it reads the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.cluster_admin import (
    ClusterAdmin,
    PartitionName,
    Reassignment,
    sizes_by_broker,
)
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .peer import HANG_UP, Peer, running

KEYS = {
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.versions |= KEYS
    return peer


def ask(peer: Peer, work: Callable[[ClusterAdmin], Awaitable[Any]], timeout_ms: int = 5000) -> Any:
    async def run() -> Any:
        async with running(peer), Cluster(peer.bootstrap, request_timeout_ms=timeout_ms) as cluster:
            return await work(ClusterAdmin(cluster, timeout_ms=timeout_ms))

    return asyncio.run(run())


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    left = list(answers)
    return lambda request: left.pop(0)


def test_partitions_are_gathered_page_by_page(peer: Peer) -> None:
    kinds = messages.DescribeTopicPartitionsResponse

    def topic(name: str, *indexes: int) -> Any:
        return kinds.DescribeTopicPartitionsResponseTopic(
            name=name,
            partitions=[
                kinds.DescribeTopicPartitionsResponsePartition(
                    partition_index=index,
                    leader_id=-1,
                    leader_epoch=4,
                    replica_nodes=[1, 2],
                    isr_nodes=[],
                    eligible_leader_replicas=[2],
                    last_known_elr=None,
                )
                for index in indexes
            ],
        )

    peer.answers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = in_turn(
        kinds(topics=[topic("a", 0), topic("b", 0, 1)], next_cursor=kinds.Cursor("b", 2)),
        kinds(topics=[topic("b", 2)]),
    )
    found = ask(peer, lambda admin: admin.describe_partitions())
    assert list(found) == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
    assert [str(name) for name in found] == ["a-0", "b-0", "b-1", "b-2"]
    partition = found[PartitionName("b", 2)]
    assert (partition.topic, partition.index, partition.leader) == ("b", 2, -1)
    assert (partition.replicas, partition.isr, partition.elr) == ((1, 2), (), (2,))
    assert partition.last_known_elr == ()
    first, second = peer.asked(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    assert first.cursor is None
    assert (second.cursor.topic_name, second.cursor.partition_index) == ("b", 2)


def test_a_topic_that_is_not_there_is_an_error(peer: Peer) -> None:
    kinds = messages.DescribeTopicPartitionsResponse
    unknown = kinds.DescribeTopicPartitionsResponseTopic(error_code=3, name="t")
    peer.answers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = lambda request: kinds(topics=[unknown])
    with pytest.raises(KafkaError, match="there is no topic 't'"):
        ask(peer, lambda admin: admin.describe_partitions(["t"]))


def test_a_quorum_without_a_leader_is_asked_again_until_it_has_one(peer: Peer) -> None:
    kinds = messages.DescribeQuorumResponse
    leaderless = kinds(error_code=ErrorCode.NOT_CONTROLLER, error_message="no controller answers")
    partition = kinds.PartitionData(
        leader_id=2,
        leader_epoch=7,
        high_watermark=100,
        current_voters=[
            kinds.ReplicaState(replica_id=2, log_end_offset=101, last_fetch_timestamp=50),
            kinds.ReplicaState(replica_id=1, log_end_offset=99, last_fetch_timestamp=40),
        ],
        observers=[kinds.ReplicaState(replica_id=4, log_end_offset=100)],
    )
    answer = kinds(
        topics=[kinds.TopicData("__cluster_metadata", [partition])],
        nodes=[kinds.Node(1, [kinds.Listener("CONTROLLER", "h", 9093)]), kinds.Node(2, [])],
    )
    peer.answers[ApiKey.DESCRIBE_QUORUM] = in_turn(leaderless, HANG_UP, answer)
    quorum = ask(peer, lambda admin: admin.describe_quorum())
    assert (quorum.leader_id, quorum.leader_epoch, quorum.high_watermark) == (2, 7, 100)
    assert [(each.id, each.log_end_offset, each.last_fetch_ms) for each in quorum.voters] == [
        (1, 99, 40),
        (2, 101, 50),
    ]
    assert [(each.id, each.last_fetch_ms) for each in quorum.observers] == [(4, -1)]
    assert quorum.addresses == {1: "h:9093"}

    peer.answers[ApiKey.DESCRIBE_QUORUM] = lambda request: leaderless
    with pytest.raises(KafkaError, match="no controller answers"):
        ask(peer, lambda admin: admin.describe_quorum(), timeout_ms=200)


def test_elections_are_answered_partition_by_partition(peer: Peer) -> None:
    kinds = messages.ElectLeadersResponse
    peer.answers[ApiKey.ELECT_LEADERS] = lambda request: kinds(
        replica_election_results=[
            kinds.ReplicaElectionResult(
                "t",
                [
                    kinds.PartitionResult(0, 0, None),
                    kinds.PartitionResult(
                        1, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "it is down"
                    ),
                    kinds.PartitionResult(2, 9999, None),
                ],
            )
        ]
    )
    names = [PartitionName("t", index) for index in range(3)]
    results = ask(peer, lambda admin: admin.elect_leaders(0, names))
    assert results[names[0]] is None
    assert results[names[1]].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert results[names[1]].message == "it is down"
    assert results[names[2]].code is ErrorCode.UNKNOWN_SERVER_ERROR, "a code of a newer broker"
    (request,) = peer.asked(ApiKey.ELECT_LEADERS)
    assert [(each.topic, each.partitions) for each in request.topic_partitions] == [
        ("t", [0, 1, 2])
    ]
    ask(peer, lambda admin: admin.elect_leaders(1))
    assert peer.asked(ApiKey.ELECT_LEADERS)[1].topic_partitions is None


def test_the_lead_of_the_quorum_is_asked_for_in_a_tagged_field(peer: Peer) -> None:
    kinds = messages.ElectLeadersResponse
    refused = kinds.PartitionResult(0, ErrorCode.INVALID_REQUEST, "9 is no voter")
    peer.answers[ApiKey.ELECT_LEADERS] = lambda request: kinds(
        replica_election_results=[kinds.ReplicaElectionResult("__cluster_metadata", [refused])]
    )
    with pytest.raises(KafkaError, match="9 is no voter"):
        ask(peer, lambda admin: admin.transfer_quorum(9))
    (request,) = peer.asked(ApiKey.ELECT_LEADERS)
    assert request._tags == {10_000: b"\0\0\0\x09"}


def test_reassignments_are_begun_cancelled_and_listed(peer: Peer) -> None:
    altered = messages.AlterPartitionReassignmentsResponse
    listed = messages.ListPartitionReassignmentsResponse
    peer.answers[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = lambda request: altered(
        responses=[
            altered.ReassignableTopicResponse(
                "t",
                [
                    altered.ReassignablePartitionResponse(0, 0, None),
                    altered.ReassignablePartitionResponse(1, 85, "it is not moved"),
                ],
            )
        ]
    )
    peer.answers[ApiKey.LIST_PARTITION_REASSIGNMENTS] = lambda request: listed(
        topics=[
            listed.OngoingTopicReassignment(
                "t", [listed.OngoingPartitionReassignment(0, [3, 2, 1], [3], [1])]
            )
        ]
    )
    wanted = {PartitionName("t", 0): (3, 2), PartitionName("t", 1): None}
    results = ask(peer, lambda admin: admin.alter_reassignments(wanted))
    assert results[PartitionName("t", 0)] is None
    assert results[PartitionName("t", 1)].code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    (request,) = peer.asked(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    assert [each.replicas for each in request.topics[0].partitions] == [[3, 2], None]
    assert request.allow_replication_factor_change
    moving = ask(peer, lambda admin: admin.list_reassignments())
    assert moving == {PartitionName("t", 0): Reassignment((3, 2, 1), (3,), (1,))}
    assert moving[PartitionName("t", 0)].target == (3, 2)


def test_a_broker_without_fenced_brokers_in_its_answer(peer: Peer) -> None:
    """Brokers before DescribeCluster 2 name those that are up."""
    peer.versions[ApiKey.DESCRIBE_CLUSTER] = (0, 1)
    kinds = messages.DescribeClusterResponse
    peer.answers[ApiKey.DESCRIBE_CLUSTER] = lambda request: kinds(
        cluster_id="c",
        controller_id=2,
        brokers=[
            kinds.DescribeClusterBroker(2, "b", 2, "r"),
            kinds.DescribeClusterBroker(1, "a", 1),
        ],
    )
    known = ask(peer, lambda admin: admin.describe_cluster())
    assert (known.id, known.controller_id, list(known.brokers)) == ("c", 2, [1, 2])
    assert known.brokers[2].rack == "r"
    assert not known.brokers[1].fenced


def test_sizes_of_brokers_that_do_not_answer_are_left_out(peer: Peer) -> None:
    kinds = messages.DescribeLogDirsResponse
    peer.answers[ApiKey.DESCRIBE_LOG_DIRS] = lambda request: kinds(
        results=[
            kinds.DescribeLogDirsResult(
                topics=[
                    kinds.DescribeLogDirsTopic(
                        "t",
                        [kinds.DescribeLogDirsPartition(0, 70), kinds.DescribeLogDirsPartition(1)],
                    )
                ]
            )
        ]
    )
    sizes = ask(peer, lambda admin: sizes_by_broker(admin, [1, 2]))
    assert sizes == {1: {PartitionName("t", 0): 70, PartitionName("t", 1): 0}}


def test_an_unknown_broker_cant_be_unregistered(peer: Peer) -> None:
    peer.answers[ApiKey.UNREGISTER_BROKER] = lambda request: messages.UnregisterBrokerResponse(
        error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message="no broker has this id"
    )
    with pytest.raises(KafkaError, match="no broker has this id"):
        ask(peer, lambda admin: admin.unregister_broker(5))
    assert [each.broker_id for each in peer.asked(ApiKey.UNREGISTER_BROKER)] == [5]
