"""Registration, fencing, elections and producer ids."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, packed, registration, restored, uuid_of

from kraftpy.core.metadata import (
    NO_LEADER,
    BrokerChanged,
    Endpoint,
    LaterReleaseError,
    MetadataState,
    PartitionChanged,
    PartitionState,
)
from kraftpy.protocol.errors import ErrorCode


def partition(cluster: Cluster, topic: str = "t", index: int = 0) -> PartitionState:
    return cluster.partition(topic, index)


def test_the_index_of_the_registration_is_the_broker_epoch() -> None:
    cluster = Cluster(level=0)
    cluster.ok({"type": "barrier"})
    result = cluster.ok(registration(7, rack="a"))
    assert result.value == {"broker_epoch": 2}
    broker = cluster.state.brokers[7]
    assert result.changes == (BrokerChanged(None, broker),)
    assert (broker.id, broker.epoch, broker.rack, broker.fenced) == (7, 2, "a", True)
    assert broker.endpoints == (Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),)
    assert broker.directories == (uuid_of(2_000_007),)


def test_one_life_may_register_again_and_keeps_its_epoch() -> None:
    cluster = Cluster(1)
    assert cluster.ok(registration(1)).value == {"broker_epoch": 1}
    again = cluster.ok(registration(1, rack="b"))
    assert again.value == {"broker_epoch": 1}
    assert cluster.state.brokers[1].rack == "b"


def test_one_life_that_registers_again_keeps_its_state_and_its_partitions() -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", assignments=[[1, 2]]))
    again = registration(1, min_insync_replicas=2)
    result = cluster.ok(again)
    assert result.value == {"broker_epoch": 1}
    assert cluster.state.brokers[1].active
    assert cluster.state.brokers[1].rules == (2, False)
    assert (partition(cluster).leader, partition(cluster).partition_epoch) == (1, 0)
    assert cluster.ok(again).changes == ()


def test_a_second_process_is_refused_while_the_first_one_lives() -> None:
    cluster = Cluster(1, level=0)
    assert cluster.error(registration(1, life=2)) == (
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        "another process is broker 1 right now: give this one another node.id, or stop the other "
        "one",
    )
    cluster.fence(1)
    assert cluster.ok(registration(1, life=2)).value == {"broker_epoch": 5}


def test_a_broker_whose_folder_was_replaced_hears_that_and_not_of_another_process() -> None:
    cluster = Cluster(1)
    error, message = cluster.error(registration(1, life=2) | {"directories": [uuid_of(5)]})
    assert error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "broker 1 runs with other folders, or did so last" in message
    assert "put back the folders of log.dirs" in message


def test_a_broker_of_another_cluster_is_refused() -> None:
    cluster = Cluster()
    cluster.ok(registration(1, cluster_id="here"))
    assert cluster.state.cluster_id == "here"
    cluster.ok(registration(2))
    assert cluster.error(registration(3, cluster_id="elsewhere")) == (
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        "broker 3 belongs to cluster elsewhere, this is here: its data folder comes from elsewhere",
    )


@pytest.mark.parametrize("type_", ["fence_broker", "unfence_broker", "allocate_producer_ids"])
def test_a_decision_on_an_earlier_life_is_refused(type_: str) -> None:
    cluster = Cluster(1)
    assert cluster.error({"type": type_, "broker_id": 1, "broker_epoch": 9}) == (
        ErrorCode.STALE_BROKER_EPOCH,
        "broker 1 has epoch 1 now, not 9",
    )
    assert cluster.error({"type": type_, "broker_id": 2, "broker_epoch": 1}) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "broker 2 is not registered",
    )


def test_fencing_twice_changes_nothing_the_second_time() -> None:
    cluster = Cluster(1)
    assert cluster.fence(1).changes
    assert cluster.fence(1).changes == ()
    assert cluster.unfence(1).changes
    assert cluster.unfence(1).changes == ()


def test_a_fenced_broker_gives_its_leaderships_and_isr_places_to_others() -> None:
    cluster = Cluster(3)
    cluster.create(new_topic("t", 3, 3))
    before = {n: partition(cluster, index=n) for n in range(3)}
    cluster.fence(1)
    for index, old in before.items():
        new = partition(cluster, index=index)
        assert new.replicas == old.replicas
        assert new.isr == tuple(each for each in old.isr if each != 1)
        assert new.partition_epoch == old.partition_epoch + 1
        if old.leader == 1:
            assert new.leader == new.isr[0]
            assert new.leader_epoch == old.leader_epoch + 1
        else:
            assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)


def test_the_last_in_sync_replica_leads_when_it_is_back() -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", 1, 2))
    first, second = partition(cluster).replicas
    cluster.fence(first)
    cluster.fence(second)
    gone = partition(cluster)
    assert (gone.leader, gone.isr, gone.elr) == (NO_LEADER, (), (second,))
    assert gone.last_known_elr == (second,)
    cluster.unfence(first)
    assert partition(cluster) == gone, "a replica that was out of sync must not lead"
    result = cluster.unfence(second)
    back = partition(cluster)
    assert (back.leader, back.isr, back.elr, back.last_known_elr) == (second, (second,), (), ())
    assert back.leader_epoch == gone.leader_epoch + 1
    topic = cluster.state.topics["t"]
    assert result.changes[1:] == (PartitionChanged(topic, 0, gone, back),)


def test_an_unclean_election_needs_permission() -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", 1, 2))
    first, second = partition(cluster).replicas
    cluster.fence(first)
    cluster.fence(second)
    cluster.unfence(first)
    cluster.ok(
        {
            "type": "alter_configs",
            "resources": [
                {"type": 2, "name": "t", "ops": [["unclean.leader.election.enable", 0, "true"]]}
            ],
        }
    )
    assert (partition(cluster).leader, partition(cluster).isr) == (first, (first,))


def test_the_cluster_wide_default_permits_unclean_elections_too() -> None:
    cluster = Cluster(2)
    cluster.create(
        new_topic("t", 1, 2),
        new_topic("careful", 1, 2, configs={"unclean.leader.election.enable": "false"}),
    )
    cluster.fence(1)
    cluster.fence(2)
    cluster.unfence(1)
    assert partition(cluster).leader == NO_LEADER
    cluster.ok(
        {
            "type": "alter_configs",
            "resources": [
                {"type": 4, "name": "", "configs": {"unclean.leader.election.enable": "TRUE"}}
            ],
        }
    )
    assert (partition(cluster).leader, partition(cluster).isr) == (1, (1,))
    assert partition(cluster, "careful").leader == NO_LEADER


def test_a_new_life_leads_in_a_new_epoch() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("t"))
    cluster.fence(1)
    assert partition(cluster).leader == NO_LEADER
    cluster.ok(registration(1, life=2))
    assert partition(cluster).leader == NO_LEADER
    cluster.unfence(1)
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, 2)


def test_unregistering_ends_a_broker() -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", 1, 2))
    leader, other = partition(cluster).replicas
    cluster.ok({"type": "unregister_broker", "broker_id": leader})
    assert leader not in cluster.state.brokers
    assert (partition(cluster).leader, partition(cluster).isr) == (other, (other,))
    assert partition(cluster).replicas == (leader, other)
    assert cluster.error({"type": "unregister_broker", "broker_id": leader})[0] is (
        ErrorCode.BROKER_ID_NOT_REGISTERED
    )


def test_producer_ids_are_never_given_twice() -> None:
    cluster = Cluster(2)
    command = {"type": "allocate_producer_ids", "broker_id": 1, "broker_epoch": 1}
    assert cluster.ok(command).value == {"first": 0, "count": 1000}
    other = {"type": "allocate_producer_ids", "broker_id": 2, "broker_epoch": 2}
    assert cluster.ok(other).value == {"first": 1000, "count": 1000}
    cluster.state = restored(cluster.state)
    assert cluster.ok(command).value == {"first": 2000, "count": 1000}
    cluster.state.next_producer_id = 2**63 - 500
    assert cluster.error(command)[0] is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (None, "command must be a map"),
        ([], "command must be a map"),
        ({}, "command.type must be text of at most 64 characters"),
        ({"type": 3}, "command.type must be text of at most 64 characters"),
        (registration(-1), "command.broker_id must be a whole number from 0 to 2147483647"),
        (registration(1) | {"broker_id": True}, "command.broker_id must be a whole number"),
        (registration(1, incarnation_id=b"x"), "command.incarnation_id must be 16 bytes"),
        (
            registration(1, previous_broker_epoch=-2),
            "command.previous_broker_epoch must be a whole number from -1",
        ),
        (
            registration(1, min_insync_replicas=0),
            "command.min_insync_replicas must be a whole number from 1",
        ),
        (registration(1, rack="\ud800"), "command.rack must be text that has a UTF-8 form"),
        (registration(1, rack="r" * 256), "command.rack must be text of at most 255 characters"),
        (registration(1, endpoints=[3]), "command.endpoints must be a map"),
        (registration(1, endpoints=None), "command.endpoints must be an array of at most 16"),
        (
            registration(1, directories=[uuid_of(1), uuid_of(1)]),
            "command.directories must be different ids",
        ),
    ],
)
def test_a_malformed_command_changes_nothing(command: Any, sentence: str) -> None:
    error, message = Cluster().error(command)
    assert error is ErrorCode.INVALID_REQUEST
    assert message.startswith(sentence)


def test_an_unknown_command_ends_whoever_applies_it() -> None:
    """A later release has carried it out: who goes on without it would be wrong from there on."""
    state = Cluster(1, level=0).state
    before = packed(state)
    with pytest.raises(LaterReleaseError, match=r"a command 'make_tea' at index 3 .* Upgrade"):
        state.apply(3, {"type": "make_tea"})
    assert packed(state) == before
    assert "upgrade the controllers first" in str(state.why_not("make_tea", dict))
    assert state.why_not("barrier", dict) is None


def test_an_index_is_applied_once() -> None:
    state = MetadataState()
    assert state.apply(5, registration(1)).error is ErrorCode.NONE
    before = packed(state)
    for index in (5, 4, 0, -1):
        assert state.apply(index, registration(2)).error is ErrorCode.INVALID_REQUEST
    assert packed(state) == before
    assert state.apply(9, registration(2)).value == {"broker_epoch": 9}


def test_a_barrier_changes_nothing() -> None:
    cluster = Cluster(1, level=0)
    assert cluster.ok({"type": "barrier"}).value == {"index": 3}
