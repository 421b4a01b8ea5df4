"""What a leader may make of its ISR (KIP-497, KIP-841, KIP-903)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, uuid_of

from kraftpy.core.metadata import PartitionChanged
from kraftpy.protocol.errors import ErrorCode


@pytest.fixture
def cluster() -> Cluster:
    """Four brokers, and a partition on 1, 2, 3 with the ISR 1, 2."""
    cluster = Cluster(4)
    cluster.create(new_topic("t", assignments=[[1, 2, 3]]))
    cluster.set_isr(1, 2)
    return cluster


def refused(cluster: Cluster, command: dict[str, Any]) -> tuple[ErrorCode, str]:
    """Error and message of a proposal that must change nothing; its answer has the state as is."""
    before = cluster.state.snapshot()
    result = cluster.apply(command)
    assert cluster.state.snapshot() == before | {"applied_index": cluster.state.applied_index}
    assert result.changes == ()
    ((answer,),) = ([*each["partitions"]] for each in result.value["topics"])
    state = cluster.partition()
    assert (answer["leader"], answer["leader_epoch"], answer["partition_epoch"]) == (
        state.leader,
        state.leader_epoch,
        state.partition_epoch,
    )
    assert answer["isr"] == list(state.isr)
    return ErrorCode(answer["error"]), answer["message"]


def test_a_leader_lets_a_replica_join_and_puts_one_out(cluster: Cluster) -> None:
    old = cluster.partition()
    result = cluster.set_isr(3, 1)
    new = cluster.partition()
    assert new.isr == (1, 3), "in the order of the replicas"
    assert (new.leader, new.leader_epoch) == (1, old.leader_epoch)
    assert new.partition_epoch == old.partition_epoch + 1
    topic = cluster.state.topics["t"]
    assert result.changes == (PartitionChanged(topic, 0, old, new),)
    assert result.value == {
        "topics": [
            {
                "topic_id": topic.id,
                "partitions": [
                    {
                        "index": 0,
                        "error": 0,
                        "message": None,
                        "leader": 1,
                        "leader_epoch": 0,
                        "partition_epoch": 2,
                        "isr": [1, 3],
                    }
                ],
            }
        ]
    }


def test_a_proposal_of_what_is_there_makes_those_before_it_void(cluster: Cluster) -> None:
    old = cluster.partition()
    late = cluster.proposal(1, 2, 3)
    (change,) = cluster.set_isr(2, 1).changes
    assert change.new == cluster.partition()
    assert cluster.partition() == replace(old, partition_epoch=old.partition_epoch + 1)
    assert refused(cluster, late)[0] is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("epochs", "error"),
    [
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, ErrorCode.INVALID_REQUEST),
        ({"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 99}, ErrorCode.INVALID_REQUEST),
        ({"leader_epoch": 4, "partition_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_proposal_names_the_state_that_it_is_on(
    cluster: Cluster, epochs: dict[str, int], error: ErrorCode
) -> None:
    for _ in range(5):
        cluster.fence(cluster.partition().leader)
        cluster.unfence(1)
        cluster.unfence(2)
        cluster.set_isr(1, 2)
    assert cluster.partition().leader_epoch == 5
    assert refused(cluster, cluster.proposal(1, 2, 3, **epochs))[0] is error


def test_two_proposals_on_one_state(cluster: Cluster) -> None:
    first, second = cluster.proposal(1, 2, 3), cluster.proposal(1)
    cluster.ok(first)
    error, message = refused(cluster, second)
    assert error is ErrorCode.INVALID_UPDATE_VERSION
    assert message == "the partition has changed: its epoch is 2 now"


def test_only_the_leader_proposes(cluster: Cluster) -> None:
    error, message = refused(cluster, cluster.proposal(1, 2, 3, leader=2))
    assert (error, message) == (
        ErrorCode.INVALID_REQUEST,
        "broker 2 does not lead the partition",
    )


def test_an_earlier_life_of_the_leader_proposes_nothing(cluster: Cluster) -> None:
    command = cluster.proposal(1, 2, 3)
    cluster.fence(1)
    cluster.start(1)
    assert cluster.error(command)[0] is ErrorCode.STALE_BROKER_EPOCH
    assert cluster.error(command | {"broker_id": 9})[0] is ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("isr", [(), (2, 3), (1, 1, 2), (1, 4)])
def test_an_isr_has_the_leader_and_replicas_only(cluster: Cluster, isr: tuple[int, ...]) -> None:
    error, message = refused(cluster, cluster.proposal(*isr))
    assert error is ErrorCode.INVALID_REQUEST
    assert message == "an in-sync set has the leader in it, and replicas only, each once"


def test_who_joins_must_be_there_in_the_life_that_the_leader_knows(cluster: Cluster) -> None:
    old_epoch = cluster.state.brokers[3].epoch
    cluster.fence(3)
    assert refused(cluster, cluster.proposal(1, 2, 3)) == (
        ErrorCode.INELIGIBLE_REPLICA,
        "broker 3 is fenced",
    )
    cluster.start(3)
    epoch = cluster.state.brokers[3].epoch
    isr = [{"broker_id": each, "broker_epoch": -1} for each in (1, 2, 3)]
    for wrong in (old_epoch, -1):
        isr[2]["broker_epoch"] = wrong
        assert refused(cluster, cluster.proposal(isr=isr)) == (
            ErrorCode.INELIGIBLE_REPLICA,
            f"broker 3 has epoch {epoch}, not {wrong}",
        )
    isr[2]["broker_epoch"] = epoch
    cluster.ok(cluster.proposal(isr=isr))
    assert cluster.partition().isr == (1, 2, 3)


def test_an_unregistered_replica_cannot_join(cluster: Cluster) -> None:
    command = cluster.proposal(1, 2, 3)
    cluster.ok({"type": "unregister_broker", "broker_id": 3})
    command["topics"][0]["partitions"][0]["partition_epoch"] = cluster.partition().partition_epoch
    assert refused(cluster, command) == (
        ErrorCode.INELIGIBLE_REPLICA,
        "broker 3 is not registered",
    )


def test_each_partition_is_answered_by_itself(cluster: Cluster) -> None:
    cluster.create(new_topic("u", assignments=[[1, 2], [2, 1]]))
    isr = [{"broker_id": 1, "broker_epoch": -1}]
    item = {"leader_epoch": 0, "partition_epoch": 0, "isr": isr}
    command = cluster.proposal(1)
    command["topics"] = [
        {
            "topic_id": cluster.state.topics["u"].id,
            "partitions": [item | {"index": index} for index in (0, 1, 2)],
        },
        {"topic_id": uuid_of(5), "partitions": [item | {"index": 0}]},
        *command["topics"],
    ]
    assert [error for error, _ in cluster.partition_errors(command)] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
    ]
    assert cluster.partition("u", 0).isr == (1,)
    assert cluster.partition("t", 0).isr == (1,)


# -- replicas that begin anew


def renewal(cluster: Cluster, broker_id: int, leader_epoch: int | None = None) -> dict[str, Any]:
    state = cluster.partition()
    epoch = state.leader_epoch if leader_epoch is None else leader_epoch
    return {
        "type": "renew_replicas",
        "broker_id": broker_id,
        "broker_epoch": cluster.state.brokers[broker_id].epoch,
        "topics": [
            {
                "topic_id": cluster.state.topics["t"].id,
                "partitions": [{"index": 0, "leader_epoch": epoch}],
            }
        ],
    }


def renew(cluster: Cluster, broker_id: int, leader_epoch: int | None = None) -> ErrorCode:
    result = cluster.apply(renewal(cluster, broker_id, leader_epoch))
    assert result.error is ErrorCode.NONE
    (topic,) = result.value["topics"]
    (answer,) = topic["partitions"]
    return ErrorCode(answer["error"])


def test_a_leader_hands_over_and_begins_anew_when_two_others_are_in_sync(cluster: Cluster) -> None:
    old = cluster.partition()
    assert renew(cluster, 1) is ErrorCode.NEW_LEADER_ELECTED
    new = cluster.partition()
    assert (new.leader, new.leader_epoch, new.isr) == (2, old.leader_epoch + 1, (1, 2))
    assert renew(cluster, 1) is ErrorCode.NOT_ENOUGH_REPLICAS, "2 may be gone already"
    assert cluster.partition() is new
    cluster.set_isr(1, 2, 3)
    assert renew(cluster, 1) is ErrorCode.NONE
    last = cluster.partition()
    assert (last.leader, last.leader_epoch, last.isr, last.elr) == (
        2,
        new.leader_epoch + 1,
        (2, 3),
        (),
    )


def test_one_that_is_out_of_sync_begins_anew_in_a_new_leader_epoch(cluster: Cluster) -> None:
    old = cluster.partition()
    assert renew(cluster, 3) is ErrorCode.NONE
    new = cluster.partition()
    assert (new.leader, new.leader_epoch, new.isr) == (1, old.leader_epoch + 1, (1, 2))


def test_of_two_replicas_one_is_enough() -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", assignments=[[1, 2]]))
    cluster.set_isr(1, 2)
    assert renew(cluster, 2) is ErrorCode.NONE
    assert cluster.partition().isr == (1,)


def test_one_that_is_needed_for_min_insync_replicas_stays(cluster: Cluster) -> None:
    cluster.set_config("t", "min.insync.replicas", "3")
    cluster.set_isr(1, 2, 3)
    old = cluster.partition()
    assert renew(cluster, 2) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.partition() is old


def test_the_last_one_in_sync_is_never_given_up(cluster: Cluster) -> None:
    cluster.set_isr(1)
    old = cluster.partition()
    assert renew(cluster, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.partition() is old


def test_whoever_decided_in_another_epoch_is_refused(cluster: Cluster) -> None:
    epoch = cluster.partition().leader_epoch
    assert renew(cluster, 1) is ErrorCode.NEW_LEADER_ELECTED
    assert renew(cluster, 1, epoch) is ErrorCode.FENCED_LEADER_EPOCH
    assert renew(cluster, 4) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stale = renewal(cluster, 2) | {"broker_epoch": 0}
    assert cluster.error(stale)[0] is ErrorCode.STALE_BROKER_EPOCH
