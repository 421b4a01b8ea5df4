"""Who leads, who is in sync and who is eligible: KIP-966 told as stories, and rule by rule."""

from __future__ import annotations

import pytest
from metadata_cluster import Cluster, new_topic, restored, uuid_of

from kraftpy.core.metadata import NO_LEADER, PartitionChanged, Result
from kraftpy.core.metadata.records import LOST_DIRECTORY, UNASSIGNED_DIRECTORY
from kraftpy.protocol.errors import ErrorCode

UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"


def three(min_isr: int = 1, **configs: str) -> Cluster:
    """Three brokers and a topic with one partition on 1, 2, 3, led by 1."""
    cluster = Cluster(3)
    configs = {MIN_ISR: str(min_isr), **configs}
    cluster.create(new_topic("t", assignments=[[1, 2, 3]], configs=configs))
    return cluster


def expect(
    cluster: Cluster,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
) -> None:
    state = cluster.partition()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (
        leader,
        isr,
        elr,
        last_known,
    )


def partition_changes(result: Result) -> list[PartitionChanged]:
    return [change for change in result.changes if isinstance(change, PartitionChanged)]


# -- the stories of KIP-966


def test_the_last_replica_standing_loses_its_tail_and_does_not_lead() -> None:
    cluster = three(min_isr=2)
    cluster.kill(3)
    expect(cluster, 1, (1, 2))
    cluster.kill(2)
    expect(cluster, 1, (1,), elr=(2,))
    cluster.kill(1)
    expect(cluster, NO_LEADER, (), elr=(1, 2), last_known=(1,))
    cluster.start(1)
    expect(cluster, NO_LEADER, (), elr=(2,), last_known=(1,))
    cluster.start(3)
    expect(cluster, NO_LEADER, (), elr=(2,), last_known=(1,))
    cluster.start(2, clean=True)
    expect(cluster, 2, (2,))
    cluster.set_isr(2, 1)
    expect(cluster, 2, (1, 2))


def test_the_last_replica_standing_stopped_cleanly_and_leads() -> None:
    cluster = three(min_isr=2)
    cluster.kill(2, 3)
    cluster.begin_shutdown(1)
    expect(cluster, 1, (1,), elr=(3,))
    cluster.fence(1)
    expect(cluster, NO_LEADER, (), elr=(1, 3), last_known=(1,))
    cluster.start(1, clean=True)
    expect(cluster, 1, (1,), elr=(3,))


def test_an_eligible_replica_leads_though_it_is_not_in_sync() -> None:
    cluster = three(min_isr=2)
    cluster.set_isr(1, 2)
    cluster.set_isr(1)
    expect(cluster, 1, (1,), elr=(2,))
    before = cluster.partition()
    cluster.kill(1)
    expect(cluster, 2, (2,), elr=(1,))
    assert cluster.partition().leader_epoch == before.leader_epoch + 1


def test_a_replica_that_left_a_large_enough_isr_is_not_eligible() -> None:
    cluster = three(min_isr=2)
    cluster.set_isr(1, 2)
    cluster.kill(1, 2)
    expect(cluster, NO_LEADER, (), elr=(1, 2), last_known=(2,))
    cluster.unfence(1)
    expect(cluster, 1, (1,), elr=(2,))


def test_all_are_killed_and_the_cluster_comes_back_by_itself() -> None:
    for min_isr in (1, 2, 3):
        cluster = three(min_isr=min_isr)
        cluster.kill(2, 3, 1)
        assert cluster.partition().last_known_elr == (1,)
        cluster.start(2)
        cluster.start(3)
        assert cluster.partition().leader == NO_LEADER, "neither was the last to lead"
        assert cluster.partition().elr == (1,)
        cluster.register(1)
        assert cluster.partition().elr == ()
        cluster.unfence(1)
        expect(cluster, 1, (1,))
        cluster.set_isr(1, 2, 3)
        expect(cluster, 1, (1, 2, 3))


def test_a_topic_with_one_replica_comes_back_after_a_kill() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("t"))
    for _ in range(3):
        before = cluster.partition()
        cluster.kill(1)
        expect(cluster, NO_LEADER, (), elr=(1,), last_known=(1,))
        cluster.state = restored(cluster.state)
        cluster.start(1)
        expect(cluster, 1, (1,))
        assert cluster.partition().leader_epoch == before.leader_epoch + 2


def test_the_last_known_leader_leads_as_soon_as_nobody_else_is_eligible() -> None:
    cluster = three(min_isr=2)
    cluster.kill(2, 3, 1)
    cluster.start(1)
    expect(cluster, NO_LEADER, (), elr=(3,), last_known=(1,))
    cluster.register(3)
    expect(cluster, 1, (1,))


def test_unregistering_who_is_eligible_lets_the_last_known_leader_lead() -> None:
    cluster = three(min_isr=2)
    cluster.kill(2, 3, 1)
    cluster.start(1)
    cluster.ok({"type": "unregister_broker", "broker_id": 3})
    expect(cluster, 1, (1,))


def test_a_broker_with_an_empty_disk_is_not_the_last_known_leader() -> None:
    cluster = Cluster(1)
    cluster.create(new_topic("t"))
    cluster.kill(1)
    cluster.start(1, directories=[uuid_of(77)])
    expect(cluster, NO_LEADER, (), last_known=(1,))
    assert cluster.partition().directories == (LOST_DIRECTORY,)
    cluster.kill(1)
    cluster.start(1, clean=True, directories=[uuid_of(77)])
    expect(cluster, NO_LEADER, (), last_known=(1,))
    elect = {"type": "elect_leaders", "election_type": 1, "topics": None}
    cluster.ok(elect)
    expect(cluster, 1, (1,))
    assert cluster.partition().directories == (uuid_of(77),)


def test_a_clean_marker_on_other_disks_is_not_clean() -> None:
    cluster = Cluster(1)
    cluster.kill(1)
    cluster.start(1, directories=[uuid_of(5), uuid_of(6)])
    cluster.create(new_topic("t"))
    assert cluster.partition().directories == (UNASSIGNED_DIRECTORY,)
    cluster.fence(1)
    cluster.start(1, clean=True, directories=[uuid_of(5), uuid_of(6), uuid_of(7)])
    expect(cluster, 1, (1,))
    cluster.fence(1)
    cluster.start(1, clean=True, directories=[uuid_of(5)])
    expect(cluster, NO_LEADER, (), last_known=(1,))


def test_a_follower_with_an_empty_disk_joins_again_in_its_new_directory() -> None:
    cluster = three()
    cluster.kill(2)
    cluster.start(2, directories=[uuid_of(77)])
    assert cluster.partition().directories[1] == LOST_DIRECTORY
    cluster.set_isr(1, 2, 3)
    assert cluster.partition().directories[1] == uuid_of(77)


def test_an_unclean_stop_costs_the_eligibility_everywhere() -> None:
    cluster = Cluster(2)
    topics = [new_topic(f"t{n}", 2, 2, configs={MIN_ISR: "2"}) for n in range(3)]
    cluster.create(*topics, new_topic("other", assignments=[[1]]))
    cluster.kill(2)
    partitions = [(f"t{n}", index) for n in range(3) for index in range(2)]
    assert all(cluster.partition(*each).elr == (2,) for each in partitions)
    result = cluster.register(2)
    assert [(change.topic.name, change.index) for change in partition_changes(result)] == partitions
    assert all(cluster.partition(*each).elr == () for each in partitions)


@pytest.mark.parametrize("epoch", [None, -1, 1, 99])
def test_only_the_last_epoch_counts_as_a_clean_stop(epoch: int | None) -> None:
    cluster = three(min_isr=3)
    cluster.fence(2)
    expect(cluster, 1, (1, 3), elr=(2,))
    cluster.register(2, previous_broker_epoch=epoch)
    expect(cluster, 1, (1, 3))


def test_a_broker_that_was_unregistered_has_no_clean_stop() -> None:
    cluster = three(min_isr=3)
    epoch = cluster.state.brokers[2].epoch
    cluster.fence(2)
    cluster.ok({"type": "unregister_broker", "broker_id": 2})
    expect(cluster, 1, (1, 3))
    cluster.register(2, previous_broker_epoch=epoch)
    expect(cluster, 1, (1, 3))


# -- min.insync.replicas


def test_the_isr_being_large_enough_again_ends_eligibility() -> None:
    cluster = three(min_isr=2)
    cluster.set_isr(1)
    expect(cluster, 1, (1,), elr=(2, 3))
    cluster.set_isr(1, 3)
    expect(cluster, 1, (1, 3))


def test_min_isr_is_no_more_than_the_number_of_replicas() -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", assignments=[[1, 2]], configs={MIN_ISR: "5"}))
    cluster.fence(2)
    expect(cluster, 1, (1,), elr=(2,))
    cluster.unfence(2)
    cluster.set_isr(1, 2)
    expect(cluster, 1, (1, 2))


@pytest.mark.parametrize("where", ["topic", "cluster", "brokers"])
def test_where_min_isr_comes_from(where: str) -> None:
    cluster = Cluster(2, min_insync_replicas=2 if where == "brokers" else 1)
    cluster.create(new_topic("t", assignments=[[1, 2]]))
    if where == "cluster":
        cluster.set_config("", MIN_ISR, "2", type_=4)
    elif where == "topic":
        cluster.set_config("", MIN_ISR, "1", type_=4)
        cluster.set_config("t", MIN_ISR, "2")
    cluster.fence(2)
    expect(cluster, 1, (1,), elr=(2,))


def test_the_lowest_min_isr_among_the_brokers_files_counts() -> None:
    cluster = Cluster(2, min_insync_replicas=2)
    cluster.create(new_topic("t", assignments=[[1, 2]]))
    cluster.fence(2)
    expect(cluster, 1, (1,), elr=(2,))
    result = cluster.register(3)
    expect(cluster, 1, (1,))
    assert len(partition_changes(result)) == 1
    cluster.ok({"type": "unregister_broker", "broker_id": 3})
    cluster.unfence(2)
    cluster.set_isr(1, 2)
    cluster.fence(2)
    expect(cluster, 1, (1,), elr=(2,))
    assert restored(cluster.state).common_rules == cluster.state.common_rules == (2, False)


def test_a_lower_min_isr_ends_eligibility_and_a_higher_one_gives_none() -> None:
    cluster = three(min_isr=2)
    cluster.set_isr(1)
    expect(cluster, 1, (1,), elr=(2, 3))
    result = cluster.set_config("t", MIN_ISR, "1")
    expect(cluster, 1, (1,))
    assert len(partition_changes(result)) == 1
    assert not partition_changes(cluster.set_config("t", MIN_ISR, "3"))
    expect(cluster, 1, (1,))


def test_the_brokers_files_permit_unclean_elections_if_all_agree() -> None:
    cluster = Cluster(3, unclean_leader_election=True)
    cluster.create(new_topic("t", assignments=[[1, 2]]))
    cluster.register(4)
    cluster.set_isr(1)
    cluster.kill(1)
    expect(cluster, NO_LEADER, (), elr=(1,), last_known=(1,))
    cluster.ok({"type": "unregister_broker", "broker_id": 4})
    expect(cluster, 2, (2,))


def test_one_brokers_min_isr_cannot_differ() -> None:
    cluster = three()
    resource = {"type": 4, "name": "1", "ops": [[MIN_ISR, 0, "2"]]}
    ((error, message),) = cluster.item_errors({"type": "alter_configs", "resources": [resource]})
    assert error is ErrorCode.INVALID_CONFIG
    assert message.startswith("min.insync.replicas can't differ between brokers")


# -- elections


def test_a_leader_stays_when_others_leave_and_return() -> None:
    cluster = three()
    first = cluster.partition()
    cluster.kill(2)
    cluster.start(2)
    cluster.set_isr(1, 2, 3)
    last = cluster.partition()
    assert (last.leader, last.leader_epoch) == (1, first.leader_epoch)
    assert last.partition_epoch == first.partition_epoch + 2


def test_the_isr_comes_before_the_elr() -> None:
    cluster = three(min_isr=3)
    cluster.set_isr(1, 3)
    expect(cluster, 1, (1, 3), elr=(2,))
    cluster.kill(1)
    expect(cluster, 3, (3,), elr=(1, 2))


def test_an_unclean_election_takes_whoever_is_there() -> None:
    cluster = three(min_isr=2, **{UNCLEAN: "true"})
    cluster.set_isr(1, 2)
    cluster.kill(2)
    cluster.kill(1)
    expect(cluster, 3, (3,))


def test_eligible_replicas_come_before_an_unclean_election() -> None:
    cluster = three(min_isr=2, **{UNCLEAN: "true"})
    cluster.set_isr(1, 3)
    cluster.kill(3)
    expect(cluster, 1, (1,), elr=(3,))
    cluster.unfence(3)
    cluster.kill(1)
    expect(cluster, 3, (3,), elr=(1,))


def test_only_own_partitions_are_looked_at() -> None:
    cluster = Cluster(3)
    cluster.create(
        new_topic("b", assignments=[[1, 2], [2, 3], [3, 1]]),
        new_topic("a", assignments=[[3, 1], [2, 3]]),
    )
    result = cluster.fence(1)
    assert [(change.topic.name, change.index) for change in partition_changes(result)] == [
        ("a", 0),
        ("b", 0),
        ("b", 2),
    ]
    cluster.kill(2, 3)
    cluster.state = restored(cluster.state)
    result = cluster.unfence(2)
    assert [(change.topic.name, change.index) for change in partition_changes(result)] == [("b", 0)]


# -- elect_leaders


def elect(kind: int, *partitions: tuple[str, int]) -> dict[str, object]:
    topics = [{"name": name, "partitions": [index]} for name, index in partitions] or None
    return {"type": "elect_leaders", "election_type": kind, "topics": topics}


def test_the_preferred_leader_leads_again() -> None:
    cluster = three()
    cluster.kill(1)
    assert cluster.partition_errors(elect(0, ("t", 0))) == [
        (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "broker 1 is down or not in sync")
    ]
    cluster.start(1)
    assert cluster.partition_errors(elect(0, ("t", 0)))[0][0] is (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    )
    cluster.set_isr(1, 2, 3)
    before = cluster.partition()
    cluster.ok(elect(0, ("t", 0)))
    after = cluster.partition()
    assert (after.leader, after.leader_epoch) == (1, before.leader_epoch + 1)
    assert after.isr == (1, 2, 3)
    assert cluster.partition_errors(elect(0, ("t", 0)))[0][0] is ErrorCode.ELECTION_NOT_NEEDED


def test_an_election_on_all_topics_answers_for_those_that_needed_one() -> None:
    cluster = three()
    cluster.create(new_topic("u", assignments=[[1, 2], [2, 1], [3, 2]]))
    cluster.kill(1)
    cluster.start(1)
    cluster.set_isr(1, 2, topic="u")
    result = cluster.apply(elect(0))
    assert result.value["topics"] == [
        {
            "name": "t",
            "partitions": [{"index": 0, "error": 80, "message": "broker 1 is down or not in sync"}],
        },
        {"name": "u", "partitions": [{"index": 0, "error": 0, "message": None}]},
    ]


def test_an_unclean_election_by_hand() -> None:
    cluster = three()
    assert cluster.partition_errors(elect(1, ("t", 0)))[0][0] is ErrorCode.ELECTION_NOT_NEEDED
    cluster.set_isr(1)
    cluster.kill(1, 2, 3)
    assert cluster.partition_errors(elect(1, ("t", 0))) == [
        (
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            "none of the partition's brokers is up: 1, 2, 3",
        )
    ]
    cluster.start(3)
    cluster.ok(elect(1, ("t", 0)))
    expect(cluster, 3, (3,))


def test_an_unclean_election_by_hand_takes_a_clean_leader_if_there_is_one() -> None:
    cluster = three(min_isr=2)
    cluster.kill(2, 3, 1)
    cluster.unfence(3)
    expect(cluster, 3, (3,), elr=(1,))


def test_elections_of_what_is_not_there() -> None:
    cluster = three()
    assert [error for error, _ in cluster.partition_errors(elect(0, ("t", 1), ("x", 0)))] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ] * 2
    assert cluster.error(elect(2))[0] is ErrorCode.INVALID_REQUEST


# -- controlled shutdown


def test_a_broker_that_shuts_down_hands_over_what_others_can_take() -> None:
    cluster = Cluster(3)
    cluster.create(new_topic("t", assignments=[[1, 2, 3], [2, 1, 3]]))
    cluster.create(new_topic("u", assignments=[[1]]))
    result = cluster.begin_shutdown(1)
    assert result.value == {"remaining": 1}
    assert cluster.state.brokers[1].in_controlled_shutdown
    first, second, alone = (cluster.partition(*each) for each in (("t", 0), ("t", 1), ("u", 0)))
    assert (first.leader, first.isr, first.leader_epoch) == (2, (2, 3), 1)
    assert (second.leader, second.isr, second.leader_epoch) == (2, (2, 3), 0)
    assert (alone.leader, alone.isr, alone.partition_epoch) == (1, (1,), 0)
    assert cluster.begin_shutdown(1).changes == ()
    cluster.fence(1)
    assert cluster.partition("u").leader == NO_LEADER


def test_a_leader_that_shuts_down_hands_over_to_who_joins() -> None:
    cluster = three()
    cluster.set_isr(1)
    assert cluster.begin_shutdown(1).value == {"remaining": 1}
    ((error, _),) = cluster.partition_errors(cluster.proposal(1, 2))
    assert error is ErrorCode.NEW_LEADER_ELECTED
    expect(cluster, 2, (2,))
    assert cluster.begin_shutdown(1).value == {"remaining": 0}


def test_a_leader_that_shuts_down_hands_over_to_who_returns() -> None:
    cluster = three(min_isr=2)
    cluster.kill(3, 2)
    expect(cluster, 1, (1,), elr=(2,))
    assert cluster.begin_shutdown(1).value == {"remaining": 1}
    cluster.unfence(2)
    expect(cluster, 2, (2,), elr=(1,))


def test_two_brokers_shut_down_at_once() -> None:
    cluster = three()
    assert cluster.begin_shutdown(1).value == {"remaining": 0}
    assert cluster.begin_shutdown(2).value == {"remaining": 0}
    expect(cluster, 3, (3,))
    assert cluster.begin_shutdown(3).value == {"remaining": 1}
    expect(cluster, 3, (3,))


def test_a_broker_that_shuts_down_gets_nothing_new() -> None:
    cluster = three()
    cluster.begin_shutdown(1)
    cluster.create(new_topic("u", 3, 3), new_topic("v", assignments=[[1, 2]]))
    for index in range(3):
        state = cluster.partition("u", index)
        assert state.replicas[-1] == 1
        assert 1 not in state.isr
    assert (cluster.partition("v").leader, cluster.partition("v").isr) == (2, (2,))
    ((error, message),) = cluster.partition_errors(cluster.proposal(1, 2, 3))
    assert (error, message) == (ErrorCode.INELIGIBLE_REPLICA, "broker 1 is shutting down")
    assert cluster.partition_errors(elect(0, ("t", 0)))[0][0] is (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    )


def test_a_shutdown_ends_with_the_life_of_the_broker() -> None:
    cluster = three()
    cluster.begin_shutdown(1)
    cluster.fence(1)
    cluster.unfence(1)
    assert cluster.state.brokers[1].fenced, "this life is over"
    assert restored(cluster.state).brokers == cluster.state.brokers
    cluster.start(1, clean=True)
    assert cluster.state.brokers[1].active


def test_a_shutdown_of_an_earlier_life_is_refused() -> None:
    cluster = three()
    command = {"type": "begin_shutdown", "broker_id": 1, "broker_epoch": 99}
    assert cluster.error(command)[0] is ErrorCode.STALE_BROKER_EPOCH
