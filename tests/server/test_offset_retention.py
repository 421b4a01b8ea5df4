"""Committed offsets that go by themselves, also over the death of their coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Cluster
from tests.replication.support import connect, coordinator_of
from tests.server.wire import Wire
from tests.waiting import wait_until

OFFSETS_PARTITIONS = 3
RETENTION_MS = 4_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        3,
        links=False,
        offsets_topic_num_partitions=OFFSETS_PARTITIONS,
        offsets_topic_replication_factor=3,
        offsets_retention_check_interval_ms=100,
    ) as started:
        with connect(started, 1) as wire:
            find = messages.FindCoordinatorRequest("g")
            wire.call(ApiKey.FIND_COORDINATOR, 3, find)  # which makes the offsets topic
        yield started


def create_topic(cluster: Cluster, wire: Wire, name: str) -> None:
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(name, PARTITIONS, 3)
    created = wire.call(ApiKey.CREATE_TOPICS, 7, request([topic], timeout_ms=10_000))
    assert created.topics[0].error_code == 0, created.topics[0].error_message

    def is_known() -> bool:
        return all(cluster.leader_of(name, index) is not None for index in range(PARTITIONS))

    wait_until(is_known, f"{name} has leaders")


def commit(wire: Wire, group: str, topic: str, offset: int, retention_ms: int = -1) -> bool:
    """Version 4 is the last in which a commit says how long it is to be kept."""
    kinds = messages.OffsetCommitRequest
    partitions = [kinds.OffsetCommitRequestPartition(p, offset) for p in range(PARTITIONS)]
    topics = [kinds.OffsetCommitRequestTopic(topic, partitions=partitions)]
    request = kinds(group, retention_time_ms=retention_ms, topics=topics)
    answer = wire.call(ApiKey.OFFSET_COMMIT, 4, request)
    return {partition.error_code for partition in answer.topics[0].partitions} == {0}


def committed(wire: Wire, group: str, topic: str) -> set[int] | None:
    """The group's offsets, None while nobody can tell."""
    kinds = messages.OffsetFetchRequest
    topics = [kinds.OffsetFetchRequestTopic(topic, list(range(PARTITIONS)))]
    answer = wire.call(ApiKey.OFFSET_FETCH, 7, kinds(group, topics))
    if answer.error_code:
        return None
    return {partition.committed_offset for partition in answer.topics[0].partitions}


def test_a_retention_of_the_commit_goes_on_under_the_next_coordinator(cluster: Cluster) -> None:
    victim = coordinator_of(cluster, "short", OFFSETS_PARTITIONS)
    other = next(node for node in cluster.nodes if node != victim)
    with connect(cluster, other) as wire:
        create_topic(cluster, wire, "expiring")
        assert commit(wire, "short", "expiring", 5)
        assert commit(wire, "short", "expiring", 6, retention_ms=RETENTION_MS)
        committed_s = time.monotonic()
        cluster.kill(victim)
        wait_until(lambda: committed(wire, "short", "expiring") is not None, "a new coordinator")
        while time.monotonic() - committed_s < RETENTION_MS / 1000 - 1.5:
            assert committed(wire, "short", "expiring") == {6}
        wait_until(lambda: committed(wire, "short", "expiring") == {-1}, "the offsets expire")
        assert time.monotonic() - committed_s >= RETENTION_MS / 1000 - 0.1
    cluster.restart(victim)
    cluster.wait_healthy()
    with connect(cluster, victim) as wire:  # nor do they come back
        assert committed(wire, "short", "expiring") == {-1}


def test_a_new_topic_of_the_same_name_begins_without_offsets(cluster: Cluster) -> None:
    victim = coordinator_of(cluster, "reader", OFFSETS_PARTITIONS)
    other = next(node for node in cluster.nodes if node != victim)
    with connect(cluster, other) as wire:
        create_topic(cluster, wire, "again")
        assert commit(wire, "reader", "again", 7)
        cluster.kill(victim)
        request = messages.DeleteTopicsRequest
        deleted = wire.call(
            ApiKey.DELETE_TOPICS, 5, request(topic_names=["again"], timeout_ms=9_000)
        )
        assert deleted.responses[0].error_code == 0
        # Nobody coordinated when it went.
        wait_until(
            lambda: committed(wire, "reader", "again") == {-1},
            "the offset of the old topic is gone",
        )
        create_topic(cluster, wire, "again")
        assert committed(wire, "reader", "again") == {-1}
        wait_until(lambda: commit(wire, "reader", "again", 1), "a commit for the new one")
        assert committed(wire, "reader", "again") == {1}
    cluster.restart(victim)
    cluster.wait_healthy()
