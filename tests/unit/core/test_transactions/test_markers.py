"""Markers that are owed: to whom they go, again and again until they are there."""

from __future__ import annotations

import pytest

from kraftpy.core.transactions import Markers, Partition
from kraftpy.core.transactions.markers import (
    GONE,
    IN_FLIGHT_MAX,
    REQUEST_MARKERS_MAX,
    RETRY_MAX_MS,
    SORTED_TOGETHER,
    MarkerRequest,
    Outcome,
    OwedMarkers,
)
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.messages import WriteTxnMarkersResponse

from .driver import P0, P1, P2, markers_written

OWNER = 7


def markers(*partitions: Partition, name: str = "t", epoch: int = 3, producer: int = 5) -> Markers:
    return Markers(name, producer, epoch, 2, True, 2, frozenset(partitions))


def answer(request: MarkerRequest, error: E = E.NONE, **by_topic: E) -> WriteTxnMarkersResponse:
    """The leader says this of all markers, or of those of a topic."""
    return markers_written(
        request.message(), lambda marker, topic, index: by_topic.get(topic, error)
    )


class Cluster:
    """Who leads what, and the time."""

    def __init__(self) -> None:
        self.leaders: dict[Partition, int | None] = {P0: 1, P1: 2, P2: 1}
        self.owed = OwedMarkers(lambda partition: self.leaders.get(partition, GONE))
        self.now_ms = 0

    def take(self) -> dict[int, MarkerRequest]:
        return {each.node_id: each for each in self.owed.take(self.now_ms)}

    def answer(self, request: MarkerRequest, error: E = E.NONE, **by_topic: E) -> Outcome:
        return self.owed.answered(request, answer(request, error, **by_topic), self.now_ms)


def partitions_of(request: MarkerRequest) -> set[Partition]:
    return {
        (topic.name, index)
        for marker in request.message().markers
        for topic in marker.topics
        for index in topic.partition_indexes
    }


def test_each_leader_gets_its_own() -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0, P1, P2), 0)
    cluster.owed.owe(OWNER, markers(P0, name="u", producer=6), 0)
    requests = cluster.take()
    assert {node: partitions_of(each) for node, each in requests.items()} == {1: {P0, P2}, 2: {P1}}
    first, second = requests[1].message().markers
    assert (first.producer_id, first.producer_epoch, first.transaction_result) == (5, 3, True)
    assert (first.coordinator_epoch, first.transaction_version) == (2, 2)
    assert second.producer_id == 6
    assert cluster.take() == {}
    assert [d.markers.transactional_id for d in cluster.answer(requests[1]).finished] == ["u"]
    assert [d.markers.transactional_id for d in cluster.answer(requests[2]).finished] == ["t"]
    assert len(cluster.owed) == 0


@pytest.mark.parametrize(
    "error", [E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.UNKNOWN_SERVER_ERROR]
)
def test_what_failed_goes_out_again_later_and_later(error: E) -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0, P2), 0)
    waited = []
    for _ in range(9):
        request = cluster.take()[1]
        assert cluster.answer(request, error, b=E.NONE).finished == []
        due_ms = cluster.owed.next_deadline()
        assert due_ms is not None
        waited.append(due_ms - cluster.now_ms)
        cluster.now_ms = due_ms - 1
        assert cluster.take() == {}
        cluster.now_ms = due_ms
    assert waited == [10, 20, 40, 80, 160, 320, 640, RETRY_MAX_MS, RETRY_MAX_MS]
    (request,) = cluster.take().values()
    assert partitions_of(request) == {P0}
    assert len(cluster.answer(request).finished) == 1
    assert cluster.owed.next_deadline() is None


def test_a_lost_connection_and_a_short_answer() -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0), 0)
    cluster.owed.lost(cluster.take()[1], 0)
    cluster.now_ms = 10
    request = cluster.take()[1]
    outcome = cluster.owed.answered(request, WriteTxnMarkersResponse(markers=[]), 10)
    assert outcome == ([], [], [])
    cluster.now_ms = 30
    assert partitions_of(cluster.take()[1]) == {P0}


def test_leaders_change() -> None:
    cluster = Cluster()
    cluster.leaders[P0] = None
    cluster.owed.owe(OWNER, markers(P0, P1), 0)
    requests = cluster.take()
    assert set(requests) == {2}
    cluster.answer(requests[2], E.NOT_LEADER_OR_FOLLOWER)
    cluster.leaders.update({P0: 3, P1: 3})
    cluster.owed.wake()
    (request,) = cluster.take().values()
    assert (request.node_id, partitions_of(request)) == (3, {P0, P1})


def test_a_leader_that_changes_before_the_request_goes() -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0, P2), 0)
    cluster.leaders[P0] = 2
    requests = cluster.take() | cluster.take()
    assert {node: partitions_of(each) for node, each in requests.items()} == {1: {P2}, 2: {P0}}


def test_what_is_gone_is_done() -> None:
    cluster = Cluster()
    del cluster.leaders[P1]
    cluster.owed.owe(OWNER, markers(P1), 0)
    assert cluster.take() == {}
    (debt,) = cluster.owed.take_finished()
    assert debt.markers.transactional_id == "t"
    assert cluster.owed.take_finished() == []
    assert len(cluster.owed) == 0


def test_a_newer_coordinator_has_the_rest_to_do() -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0, P1), 0)
    requests = cluster.take()
    outcome = cluster.answer(requests[1], E.TRANSACTION_COORDINATOR_FENCED)
    assert [d.markers.transactional_id for d in outcome.deposed] == ["t"]
    assert cluster.answer(requests[2]).finished == []
    assert len(cluster.owed) == 0


def test_a_partition_that_cant_take_it_any_more_is_told() -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0), 0)
    outcome = cluster.answer(cluster.take()[1], E.INVALID_PRODUCER_EPOCH)
    assert [(d.markers.transactional_id, p) for d, p in outcome.refused] == [("t", P0)]
    assert len(outcome.finished) == 1


def test_marker_again() -> None:
    """KAFKA-16352: two transactions of an id, the markers of one still on their way."""
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0, epoch=3), 0)
    cluster.owed.owe(OWNER, markers(P0, epoch=4), 0)
    first, second = cluster.owed.take(0)
    assert [r.message().markers[0].producer_epoch for r in (first, second)] == [3, 4]
    outcome = cluster.owed.answered(second, answer(second), 0)
    assert [d.markers.producer_epoch for d in outcome.finished] == [4]
    outcome = cluster.owed.answered(first, answer(first), 0)
    assert [d.markers.producer_epoch for d in outcome.finished] == [3]


def test_who_unloads_is_owed_nothing() -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0, P1), 0)
    requests = cluster.take()
    cluster.answer(requests[2], E.NOT_LEADER_OR_FOLLOWER)
    cluster.owed.drop(OWNER)
    assert cluster.answer(requests[1]) == ([], [], [])
    cluster.now_ms = 10_000
    assert cluster.take() == {}
    assert len(cluster.owed) == 0


def test_what_is_queued_for_who_unloads_is_not_sent() -> None:
    cluster = Cluster()
    cluster.owed.owe(OWNER, markers(P0, P1), 0)
    cluster.owed.drop(OWNER)
    assert cluster.take() == {}


def test_requests_are_bounded() -> None:
    cluster = Cluster()
    partitions = [("many", number) for number in range(12 * REQUEST_MARKERS_MAX)]
    cluster.leaders.update(dict.fromkeys(partitions, 1))
    cluster.owed.owe(OWNER, markers(*partitions), 0)
    requests: list[MarkerRequest] = []
    while cluster.owed.next_deadline() == 0:
        requests += cluster.owed.take(0)
    assert [len(each.items) for each in requests] == [REQUEST_MARKERS_MAX] * IN_FLIGHT_MAX
    cluster.answer(requests[0])
    (request,) = cluster.owed.take(0)
    assert len(request.items) == REQUEST_MARKERS_MAX


def test_of_very_many_so_many_are_sorted_in_one_go() -> None:
    cluster = Cluster()
    partitions = [("many", number) for number in range(2 * SORTED_TOGETHER + 1)]
    cluster.leaders.update(dict.fromkeys(partitions, None))
    cluster.owed.owe(OWNER, markers(*partitions), 0)
    cluster.leaders.update(dict.fromkeys(partitions, 1))
    cluster.owed.wake()
    sent: list[int] = []
    while cluster.owed.next_deadline() == 0:
        requests = cluster.owed.take(0)
        sent.append(sum(len(each.items) for each in requests))
        for request in requests:
            cluster.answer(request)
    assert sent == [SORTED_TOGETHER, SORTED_TOGETHER, 1]
    assert len(cluster.owed) == 0


def test_of_a_large_transaction_some_leaders_are_looked_up_at_a_time() -> None:
    cluster = Cluster()
    many = [("many", index) for index in range(2 * SORTED_TOGETHER)]
    looked_up = 0

    def leader_of(partition: Partition) -> int:
        nonlocal looked_up
        looked_up += 1
        return 1

    cluster.owed = OwedMarkers(leader_of)
    cluster.owed.owe(OWNER, markers(*many), cluster.now_ms)
    assert looked_up == 0
    assert cluster.owed.next_deadline() == 0
    written: set[Partition] = set()
    finished = 0
    while not finished:
        before = looked_up
        taken = cluster.owed.take(cluster.now_ms)
        assert looked_up - before <= 3 * SORTED_TOGETHER
        for request in taken:
            written |= partitions_of(request)
            finished += len(cluster.answer(request).finished)
    assert written == set(many)
