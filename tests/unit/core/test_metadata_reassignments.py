"""Moving replicas (KIP-455)."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, restored, uuid_of

from kraftpy.core.metadata import LEVEL, NO_LEADER, PartitionChanged
from kraftpy.core.metadata.levels import REMOVED_ARE_FORGOTTEN
from kraftpy.protocol.errors import ErrorCode


@pytest.fixture
def cluster() -> Cluster:
    """Six brokers and a partition on 1, 2, 3."""
    cluster = Cluster(6)
    cluster.create(new_topic("t", assignments=[[1, 2, 3]]))
    return cluster


def move(*replicas: int, **fields: Any) -> dict[str, Any]:
    item = {"index": 0, "replicas": list(replicas)}
    return {
        "type": "alter_reassignments",
        "topics": [{"name": "t", "partitions": [item]}],
        **fields,
    }


CANCEL: dict[str, Any] = {
    "type": "alter_reassignments",
    "topics": [{"name": "t", "partitions": [{"index": 0, "replicas": None}]}],
}


def expect(
    cluster: Cluster,
    replicas: tuple[int, ...],
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    isr: tuple[int, ...] = (1, 2, 3),
    leader: int = 1,
) -> None:
    state = cluster.partition()
    assert (state.replicas, state.adding, state.removing) == (replicas, adding, removing)
    assert (state.isr, state.leader) == (isr, leader)
    indexed = {
        broker_id: list(cluster.state.replica_index.partitions(broker_id))
        for broker_id in range(1, 7)
    }
    assert indexed == {
        broker_id: [("t", [0])] if broker_id in replicas else [] for broker_id in range(1, 7)
    }


def test_replicas_are_added_caught_up_and_then_the_old_ones_go(cluster: Cluster) -> None:
    cluster.ok(move(4, 5, 6))
    expect(cluster, (4, 5, 6, 1, 2, 3), adding=(4, 5, 6), removing=(1, 2, 3))
    assert cluster.partition().leader_epoch == 0
    assert cluster.partition().directories == tuple(
        uuid_of(2_000_000 + each) for each in (4, 5, 6, 1, 2, 3)
    )
    cluster.set_isr(1, 2, 3, 4)
    cluster.set_isr(1, 2, 3, 4, 6)
    expect(
        cluster,
        (4, 5, 6, 1, 2, 3),
        adding=(4, 5, 6),
        removing=(1, 2, 3),
        isr=(4, 6, 1, 2, 3),
    )
    before = cluster.partition()
    ((error, _),) = cluster.partition_errors(cluster.proposal(1, 2, 3, 4, 5, 6))
    assert error is ErrorCode.NEW_LEADER_ELECTED
    expect(cluster, (4, 5, 6), isr=(4, 5, 6), leader=4)
    assert cluster.partition().leader_epoch == before.leader_epoch + 1
    assert cluster.partition().partition_epoch == before.partition_epoch + 1


def test_a_leader_that_stays_leads_on_in_a_new_epoch_when_others_go(cluster: Cluster) -> None:
    cluster.ok(move(1, 4))
    expect(cluster, (1, 4, 2, 3), adding=(4,), removing=(2, 3))
    assert cluster.partition().leader_epoch == 0
    cluster.set_isr(1, 2, 3, 4)
    expect(cluster, (1, 4), isr=(1, 4))
    assert cluster.partition().leader_epoch == 1


def test_replicas_that_are_in_sync_already_complete_it_at_once(cluster: Cluster) -> None:
    cluster.ok(move(2, 1))
    expect(cluster, (2, 1), isr=(2, 1))
    assert cluster.partition().leader_epoch == 1


def test_another_order_is_no_reassignment(cluster: Cluster) -> None:
    cluster.ok(move(3, 2, 1))
    expect(cluster, (3, 2, 1), isr=(3, 2, 1))
    assert cluster.partition().leader_epoch == 0
    assert cluster.ok(move(3, 2, 1)).changes == ()


def test_more_replicas_join_without_a_new_leader_epoch(cluster: Cluster) -> None:
    cluster.ok(move(1, 2, 3, 4))
    expect(cluster, (1, 2, 3, 4), adding=(4,))
    cluster.set_isr(1, 2, 3, 4)
    expect(cluster, (1, 2, 3, 4), isr=(1, 2, 3, 4))
    assert cluster.partition().leader_epoch == 0


def test_a_reassignment_waits_for_all_of_its_target(cluster: Cluster) -> None:
    cluster.kill(2)
    cluster.ok(move(1, 2, 4))
    cluster.set_isr(1, 3, 4)
    expect(cluster, (1, 2, 4, 3), adding=(4,), removing=(3,), isr=(1, 4, 3))
    cluster.start(2)
    cluster.set_isr(1, 2, 3, 4)
    expect(cluster, (1, 2, 4), isr=(1, 2, 4))


def test_a_cancelled_reassignment_leaves_what_was(cluster: Cluster) -> None:
    cluster.ok(move(4, 5))
    cluster.set_isr(1, 2, 3, 4)
    cluster.state = restored(cluster.state)
    cluster.ok(CANCEL)
    expect(cluster, (1, 2, 3))
    assert cluster.partition().leader_epoch == 1, "broker 4 may not count any more"
    assert cluster.partition_errors(CANCEL)[0][0] is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_cancelling_deposes_a_leader_that_was_added(cluster: Cluster) -> None:
    cluster.ok(move(4, 5))
    cluster.set_isr(1, 2, 4)
    cluster.kill(1, 2)
    expect(cluster, (4, 5, 1, 2, 3), (4, 5), (1, 2, 3), isr=(4,), leader=4)
    assert cluster.partition_errors(CANCEL)[0][0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.start(1)
    cluster.set_isr(4, 1)
    cluster.ok(CANCEL)
    expect(cluster, (1, 2, 3), isr=(1,))


def test_cancelling_may_lose_records_if_the_topic_permits_it(cluster: Cluster) -> None:
    cluster.ok(move(4, 5))
    cluster.set_isr(1, 4)
    cluster.kill(1)
    ((error, message),) = cluster.partition_errors(CANCEL)
    assert error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert message.startswith("none of the replicas that would stay has all records")
    cluster.set_config("t", "unclean.leader.election.enable", "true")
    cluster.ok(CANCEL)
    expect(cluster, (1, 2, 3), isr=(2,), leader=2)


def _only_the_added_one_in_sync(level: int) -> Cluster:
    """A partition on 1, 2, 3 to which 4 is added; it leads alone, and 1 is eligible, but down."""
    cluster = Cluster(6, level=level)
    cluster.create(new_topic("t", assignments=[[1, 2, 3]], configs={"min.insync.replicas": "2"}))
    cluster.ok(move(1, 2, 3, 4))
    cluster.set_isr(1, 4)
    cluster.kill(1)
    expect(cluster, (1, 2, 3, 4), (4,), isr=(4,), leader=4)
    assert cluster.partition().elr == (1,)
    return cluster


def test_cancelling_keeps_a_replica_that_is_in_sync() -> None:
    """Kafka refuses it too: to be eligible is no reason to take the one that is in sync away."""
    cluster = _only_the_added_one_in_sync(LEVEL)
    assert cluster.partition_errors(CANCEL)[0][0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.kill(4)
    cluster.ok(CANCEL)
    state = cluster.partition()
    assert (state.replicas, state.leader, state.elr) == ((1, 2, 3), NO_LEADER, (1,))


@pytest.mark.parametrize("level", [LEVEL, REMOVED_ARE_FORGOTTEN - 1])
def test_whoever_led_last_and_was_removed_has_nothing_when_it_comes_again(level: int) -> None:
    """Also where an earlier release still has it as the last known leader."""
    cluster = _only_the_added_one_in_sync(level)
    cluster.kill(4)
    cluster.ok(CANCEL)
    assert cluster.partition().last_known_elr == (() if level == LEVEL else (4,))
    cluster.ok({"type": "raise_level", "level": LEVEL})
    cluster.register(1)
    assert cluster.partition().elr == (), "it stopped uncleanly"
    cluster.start(4)
    cluster.ok(move(1, 2, 3, 4))
    state = cluster.partition()
    assert (state.replicas, state.leader, state.elr) == ((1, 2, 3, 4), NO_LEADER, ())
    cluster.fence(4)
    cluster.unfence(4)
    assert (cluster.partition().leader, cluster.partition().last_known_elr) == (NO_LEADER, ())


def test_another_target_replaces_the_one_under_way(cluster: Cluster) -> None:
    cluster.ok(move(1, 2, 4))
    cluster.set_isr(1, 2, 3)
    cluster.ok(move(1, 5, 6))
    expect(cluster, (1, 5, 6, 2, 3), adding=(5, 6), removing=(2, 3))
    cluster.ok(move(1, 2, 5))
    expect(cluster, (1, 2, 5, 3), adding=(5,), removing=(3,))
    cluster.ok(move(1, 2, 3))
    expect(cluster, (1, 2, 3))


def test_an_added_replica_that_is_still_wanted_keeps_its_place(cluster: Cluster) -> None:
    cluster.ok(move(1, 4, 5))
    cluster.set_isr(1, 2, 3, 4)
    cluster.ok(move(4, 6))
    expect(cluster, (4, 6, 1, 2, 3), (4, 6), (1, 2, 3), isr=(4, 1, 2, 3))


def test_another_target_without_anyone_in_sync_is_refused(cluster: Cluster) -> None:
    cluster.ok(move(4, 5))
    cluster.set_isr(1, 4)
    cluster.kill(1)
    expect(cluster, (4, 5, 1, 2, 3), (4, 5), (1, 2, 3), isr=(4,), leader=4)
    assert cluster.partition_errors(move(5, 6))[0][0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.ok(move(4, 6))
    expect(cluster, (4, 6, 1, 2, 3), (4, 6), (1, 2, 3), isr=(4,), leader=4)


def test_a_partition_can_move_to_brokers_that_are_down(cluster: Cluster) -> None:
    cluster.fence(4)
    cluster.ok(move(4))
    expect(cluster, (4, 1, 2, 3), adding=(4,), removing=(1, 2, 3))
    cluster.start(4)
    ((error, _),) = cluster.partition_errors(cluster.proposal(1, 2, 3, 4))
    assert error is ErrorCode.NEW_LEADER_ELECTED
    expect(cluster, (4,), isr=(4,), leader=4)


def test_a_lone_replica_moves(cluster: Cluster) -> None:
    cluster.ok(move(1))
    cluster.ok(move(6))
    expect(cluster, (6, 1), (6,), (1,), isr=(1,))
    cluster.partition_errors(cluster.proposal(1, 6))
    expect(cluster, (6,), isr=(6,), leader=6)
    cluster.kill(6)
    state = cluster.partition()
    assert (state.leader, state.elr, state.last_known_elr) == (NO_LEADER, (6,), (6,))


def test_a_leaderless_partition_can_be_reassigned_but_not_away_from_its_records(
    cluster: Cluster,
) -> None:
    cluster.ok(move(1))
    cluster.kill(1)
    cluster.ok(move(2))
    state = cluster.partition()
    assert (state.replicas, state.leader, state.elr) == ((2, 1), NO_LEADER, (1,))
    cluster.unfence(1)
    expect(cluster, (2, 1), (2,), (1,), isr=(1,))


def test_min_isr_follows_the_number_of_replicas(cluster: Cluster) -> None:
    cluster.set_config("t", "min.insync.replicas", "2")
    cluster.set_isr(1)
    assert cluster.partition().elr == (2, 3)
    cluster.ok(move(1))
    expect(cluster, (1,), isr=(1,))
    assert cluster.partition().elr == ()


@pytest.mark.parametrize(
    ("command", "error", "sentence"),
    [
        (move(), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the new assignment has no replicas"),
        (
            move(1, 1),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the new assignment has the same broker twice",
        ),
        (
            move(1, 9),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the new assignment has broker 9, which is not registered",
        ),
        (
            move(1, -1),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the new assignment has broker -1, which is not registered",
        ),
        (
            move(1, 4, keep_replication_factor=True),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "the partition has 3 replicas and would get 2",
        ),
        (CANCEL, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "The partition is not being reassigned."),
        (
            move(1) | {"topics": [{"name": "t", "partitions": [{"index": 1}]}]},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no partition 1 of topic 't'",
        ),
        (
            move(1) | {"topics": [{"name": "x", "partitions": [{"index": 0, "replicas": [1]}]}]},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no partition 0 of topic 'x'",
        ),
    ],
)
def test_what_is_said_about_a_reassignment_that_cant_be(
    cluster: Cluster, command: dict[str, Any], error: ErrorCode, sentence: str
) -> None:
    before = cluster.partition()
    assert cluster.partition_errors(command) == [(error, sentence)]
    assert cluster.partition() is before


def test_the_replication_factor_to_keep_is_that_of_the_target(cluster: Cluster) -> None:
    cluster.ok(move(4, 5, 6, keep_replication_factor=True))
    cluster.ok(move(1, 2, 4, keep_replication_factor=True))
    expect(cluster, (1, 2, 4, 3), adding=(4,), removing=(3,))


def test_a_topic_grows_by_its_replication_factor_while_it_moves(cluster: Cluster) -> None:
    cluster.ok(move(4, 5))
    grow = {"type": "create_partitions", "seed": 0, "topics": [{"name": "t", "count": 2}]}
    cluster.ok(grow)
    assert len(cluster.partition(index=1).replicas) == 2


def test_each_partition_moves_by_itself(cluster: Cluster) -> None:
    cluster.create(new_topic("u", assignments=[[1], [2]]))
    items = [{"index": index, "replicas": replicas} for index, replicas in enumerate(([3], [9]))]
    command = {"type": "alter_reassignments", "topics": [{"name": "u", "partitions": items}]}
    result = cluster.apply(command)
    assert [change.index for change in result.changes if isinstance(change, PartitionChanged)] == [
        0
    ]
    assert [each["error"] for each in result.value["topics"][0]["partitions"]] == [0, 39]


def test_an_election_may_be_what_completes_a_reassignment() -> None:
    """The leader that is elected from the ELR is the whole target: no proposal need ever follow."""
    cluster = Cluster(2)
    topic = new_topic("t", assignments=[[1, 2]], configs={"min.insync.replicas": "2"})
    cluster.create(topic)
    cluster.set_isr(1)
    cluster.ok(move(2))
    assert cluster.partition().elr == (2,)
    before = cluster.partition()
    cluster.kill(1)
    after = cluster.partition()
    assert (after.replicas, after.isr, after.leader) == ((2,), (2,), 2)
    assert (after.elr, after.adding, after.removing) == ((), (), ())
    assert after.partition_epoch == before.partition_epoch + 1
    assert after.leader_epoch == before.leader_epoch + 1
