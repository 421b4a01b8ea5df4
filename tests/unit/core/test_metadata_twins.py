"""A topic that is where another one is: placed, moved, led, grown and deleted with it."""

from __future__ import annotations

from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, packed, restored
from metadata_invariants import check, check_lead_of_twins

from kraftpy.core.metadata import LEVEL, FeatureChanged, LaterReleaseError
from kraftpy.core.metadata.commands import COMMANDS
from kraftpy.core.metadata.levels import COOPERATIVE_BEGINS, COOPERATIVE_FETCH_BEGINS, TWINS
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE


def twin(name: str = "twin", of: str = "t", partitions: int = -1, **fields: Any) -> dict[str, Any]:
    return new_topic(name, partitions, -1, twin_of=of, **fields)


def twins(brokers: int = 3, partitions: int = 2, replicas: int = 3) -> Cluster:
    """A cluster with the topic "t" and its twin."""
    cluster = Cluster(brokers)
    cluster.create(new_topic("t", partitions, replicas))
    cluster.create(twin())
    return cluster


def checked(cluster: Cluster) -> None:
    check(cluster.state)
    check_lead_of_twins(cluster.state)
    assert packed(restored(cluster.state)) == packed(cluster.state)


def leaders(cluster: Cluster, index: int = 0) -> tuple[int, int]:
    return cluster.partition("t", index).leader, cluster.partition("twin", index).leader


def in_sync(cluster: Cluster, *isr: int, topic: str = "t") -> None:
    """Another one may lead then."""
    result = cluster.apply(cluster.proposal(*isr, topic=topic))
    (answer,) = result.value["topics"][0]["partitions"]
    assert answer["error"] in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED)


def reassign(*target: int, topic: str = "t", index: int = 0) -> dict[str, Any]:
    partitions = [{"index": index, "replicas": list(target) or None}]
    return {
        "type": "alter_reassignments",
        "topics": [{"name": topic, "partitions": partitions}],
        "keep_replication_factor": False,
    }


# -- coming


def test_a_twin_is_where_its_topic_is() -> None:
    cluster = Cluster(4)
    cluster.create(new_topic("t", 5, 3), seed=3)
    cluster.fence(2)
    result = cluster.create(twin(configs={"cleanup.policy": "compact"}))
    answer = result.value["topics"][0]
    assert (answer["partitions"], answer["replication_factor"]) == (5, 3)
    for index in range(5):
        one, other = cluster.partition("t", index), cluster.partition("twin", index)
        assert (one.replicas, one.isr, one.leader) == (other.replicas, other.isr, other.leader)
    assert cluster.state.config(2, "twin") == {"cleanup.policy": "compact"}
    checked(cluster)


def test_a_twin_that_comes_later_is_led_by_whom_its_topic_is_led_by() -> None:
    cluster = Cluster(3)
    cluster.create(new_topic("t", 1, 3))
    first = cluster.partition().leader
    cluster.fence(first)
    cluster.start(first)
    assert first != cluster.partition().leader
    cluster.create(twin())
    assert leaders(cluster) == (cluster.partition().leader,) * 2
    checked(cluster)


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (twin("other", of="u"), "which is not there"),
        (twin("other"), "which has one: twin"),
        (twin("other", of="twin"), "which is a twin itself, of t"),
        (twin("other", of="v", partitions=2), "are where v is"),
        (twin("other", of="v", assignments=[[1]]), "are where v is"),
    ],
)
def test_what_can_not_be_a_twin(topic: dict[str, Any], message: str) -> None:
    cluster = twins()
    cluster.create(new_topic("v", 1, 1))
    error, text = cluster.create_error(topic)
    assert error is ErrorCode.INVALID_REQUEST
    assert message in text


def test_no_twin_is_made_while_nobody_could_lead_it() -> None:
    cluster = Cluster(2)
    cluster.create(new_topic("t", 1, 1))
    cluster.fence(cluster.partition().leader)
    error, text = cluster.create_error(twin())
    assert error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "t-0 are down" in text


def test_a_topic_that_is_about_to_move_has_its_twin_where_it_goes() -> None:
    cluster = Cluster(4)
    cluster.create(new_topic("t", -1, -1, assignments=[[1, 2]]))
    cluster.ok(reassign(2, 3))
    cluster.create(twin())
    assert cluster.partition("twin").replicas == (2, 3)
    assert cluster.partition("twin").leader == 2  # Broker 1 leads the topic still.
    checked(cluster)
    in_sync(cluster, 1, 2, 3)
    assert leaders(cluster) == (2, 2)
    checked(cluster)


def test_below_its_level_there_is_none() -> None:
    cluster = Cluster(1, level=TWINS - 1)
    cluster.create(new_topic("t"))
    command = {"type": "create_topics", "seed": 0, "topics": [twin()]}
    assert f"it takes {TWINS}" in str(cluster.state.why_not("create_topics", lambda: command))
    plain = {"type": "create_topics", "seed": 0, "topics": [new_topic("u")]}
    assert cluster.state.why_not("create_topics", lambda: plain) is None
    assert COMMANDS.knows("create_topics")
    with pytest.raises(LaterReleaseError, match=f"of level {TWINS} at index"):
        cluster.state.apply(cluster.state.applied_index + 1, command)
    assert "twins" not in cluster.state.snapshot()


def test_cooperative_consumption_begins_with_its_level_once() -> None:
    cluster = Cluster(1, level=TWINS - 1)
    assert COOPERATIVE_FEATURE not in cluster.state.features
    result = cluster.ok({"type": "raise_level", "level": TWINS})
    assert FeatureChanged(COOPERATIVE_FEATURE, 0, COOPERATIVE_BEGINS) in result.changes
    assert cluster.state.features[COOPERATIVE_FEATURE] == 1
    result = cluster.ok({"type": "raise_level", "level": LEVEL})
    assert FeatureChanged(COOPERATIVE_FEATURE, 1, COOPERATIVE_FETCH_BEGINS) in result.changes
    assert cluster.state.features[COOPERATIVE_FEATURE] == 2
    features = [{"name": COOPERATIVE_FEATURE, "level": 0}]
    cluster.ok({"type": "update_features", "features": features})
    cluster.ok({"type": "raise_level", "level": LEVEL})
    assert COOPERATIVE_FEATURE not in restored(cluster.state).features


# -- going along


def test_it_grows_with_its_topic_and_not_alone() -> None:
    cluster = twins()
    grown = [{"name": "t", "count": 5}]
    cluster.ok({"type": "create_partitions", "topics": grown, "seed": 1})
    assert len(cluster.state.topics["twin"].partitions) == 5
    checked(cluster)
    grown = [{"name": "twin", "count": 6}]
    ((error, text),) = cluster.item_errors(
        {"type": "create_partitions", "topics": grown, "seed": 1}
    )
    assert error is ErrorCode.INVALID_PARTITIONS
    assert text == "twin gets more partitions when t does"


def test_it_is_deleted_with_its_topic() -> None:
    cluster = twins()
    cluster.ok({"type": "delete_topics", "topics": [{"name": "t"}]})
    assert cluster.state.topics == {}
    checked(cluster)


def test_it_is_deleted_alone_and_made_again() -> None:
    cluster = twins()
    cluster.ok({"type": "delete_topics", "topics": [{"name": "twin"}]})
    assert list(cluster.state.topics) == ["t"]
    checked(cluster)
    cluster.create(twin("again"))
    assert cluster.state.twins == {"t": "again"}
    checked(cluster)


def test_it_moves_with_its_topic_and_not_alone() -> None:
    cluster = twins(brokers=4, partitions=1)
    before = cluster.partition().replicas
    other = ({1, 2, 3, 4} - set(before)).pop()
    cluster.ok(reassign(other, before[1]))
    for name in ("t", "twin"):
        assert cluster.partition(name).adding == (other,)
    checked(cluster)
    in_sync(cluster, *cluster.partition().replicas)  # The topic is there, its twin isn't yet.
    assert cluster.partition("t").replicas == (other, before[1])
    assert cluster.partition("twin").adding == (other,)
    checked(cluster)
    in_sync(cluster, *cluster.partition("twin").replicas, topic="twin")
    assert cluster.partition("twin").replicas == (other, before[1])
    assert leaders(cluster)[0] == leaders(cluster)[1]
    checked(cluster)
    ((error, text),) = cluster.partition_errors(reassign(1, 2, topic="twin"))
    assert error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert text == "the replicas of twin move when those of t do"


def test_a_move_that_is_cancelled_is_so_for_both() -> None:
    cluster = twins(brokers=4, partitions=1)
    before = cluster.partition().replicas
    other = ({1, 2, 3, 4} - set(before)).pop()
    cluster.ok(reassign(other, before[1]))
    # The twin has moved already.
    in_sync(cluster, *cluster.partition("twin").replicas, topic="twin")
    assert cluster.partition("twin").replicas == (other, before[1])
    checked(cluster)
    cluster.ok(reassign())
    checked(cluster)
    assert sorted(cluster.partition("t").replicas) == sorted(before)
    assert set(cluster.partition("twin").replicas) == {*before, other}
    in_sync(cluster, *cluster.partition("twin").replicas, topic="twin")
    assert cluster.partition("twin").replicas == cluster.partition("t").replicas
    checked(cluster)


def test_a_move_that_one_can_not_make_neither_makes() -> None:
    cluster = twins(brokers=4, partitions=1)
    first, *others = cluster.partition().replicas
    new = ({1, 2, 3, 4} - {first, *others}).pop()
    cluster.ok(reassign(new, *others))
    cluster.set_isr(first, new, topic="twin")
    cluster.fence(first)
    assert cluster.partition("twin").isr == (new,)
    before = cluster.partition("t"), cluster.partition("twin")
    ((error, _),) = cluster.partition_errors(reassign())
    assert error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (cluster.partition("t"), cluster.partition("twin")) == before


def test_it_has_its_topics_min_isr() -> None:
    cluster = Cluster(3)
    cluster.create(new_topic("t", 1, 3, configs={"min.insync.replicas": "2"}))
    cluster.create(twin(configs={"min.insync.replicas": "1", "segment.bytes": "1000000"}))
    wanted = {"min.insync.replicas": "2", "segment.bytes": "1000000"}
    assert cluster.state.config(2, "twin") == wanted
    cluster.set_config("t", "min.insync.replicas", "3")
    assert cluster.state.config(2, "twin") == wanted | {"min.insync.replicas": "3"}
    cluster.set_config("twin", "min.insync.replicas", "1")
    assert cluster.state.config(2, "twin") == wanted | {"min.insync.replicas": "3"}
    checked(cluster)


# -- leading


def test_who_takes_over_the_topic_takes_over_its_twin() -> None:
    cluster = twins()
    first = cluster.partition().leader
    cluster.fence(first)
    assert leaders(cluster) == (cluster.partition().leader,) * 2
    assert first not in leaders(cluster)
    checked(cluster)


def test_the_twin_is_led_elsewhere_until_the_topics_leader_is_in_sync_there() -> None:
    cluster = twins()
    first, second, third = cluster.partition().replicas
    cluster.set_isr(first, third, topic="twin")
    cluster.set_isr(first, second)
    cluster.fence(first)
    assert leaders(cluster) == (second, third)
    checked(cluster)
    epoch = cluster.partition("twin").leader_epoch
    result = cluster.apply(cluster.proposal(third, second, topic="twin"))
    (answer,) = result.value["topics"][0]["partitions"]
    assert answer["error"] == ErrorCode.NEW_LEADER_ELECTED
    assert (answer["leader"], answer["leader_epoch"]) == (second, epoch + 1)
    assert leaders(cluster) == (second, second)
    checked(cluster)


def test_who_steps_down_from_the_topic_steps_down_from_its_twin() -> None:
    cluster = twins()
    first = cluster.partition().leader
    cluster.begin_shutdown(first)
    for index in (0, 1):
        one, other = leaders(cluster, index)
        assert one == other != first
    checked(cluster)


def test_no_election_parts_them() -> None:
    cluster = twins(partitions=1)
    first = cluster.partition().replicas[0]
    cluster.fence(first)
    cluster.start(first)
    in_sync(cluster, *cluster.partition("twin").replicas, topic="twin")
    second = cluster.partition().leader
    assert second != first
    wanted = [{"name": "twin", "partitions": [0]}]
    elect = {"type": "elect_leaders", "election_type": 0, "topics": wanted}
    before = cluster.partition("twin")
    ((error, _),) = cluster.partition_errors(elect)
    assert error is ErrorCode.ELECTION_NOT_NEEDED
    assert cluster.partition("twin") is before
    cluster.set_isr(*cluster.partition().replicas)
    cluster.ok(elect | {"topics": None})
    assert leaders(cluster) == (first, first)
    checked(cluster)


def test_who_gives_up_a_damaged_twin_does_not_lead_it_at_once_again() -> None:
    cluster = twins(partitions=1)
    first = cluster.partition().leader
    epoch = cluster.partition("twin").leader_epoch
    topics = [
        {
            "topic_id": cluster.state.topics["twin"].id,
            "partitions": [{"index": 0, "leader_epoch": epoch}],
        }
    ]
    command = cluster.proposal(first) | {"type": "renew_replicas", "topics": topics}
    ((error, _),) = cluster.partition_errors(command)
    assert error is ErrorCode.NEW_LEADER_ELECTED
    assert leaders(cluster)[0] == first != leaders(cluster)[1]
    again = cluster.partition("twin")
    topics[0]["partitions"] = [{"index": 0, "leader_epoch": again.leader_epoch}]
    cluster.ok(command)
    assert first not in cluster.partition("twin").isr
    result = cluster.apply(cluster.proposal(*again.replicas, topic="twin"))
    assert result.value["topics"][0]["partitions"][0]["error"] == ErrorCode.NEW_LEADER_ELECTED
    assert leaders(cluster) == (first, first)
    checked(cluster)
