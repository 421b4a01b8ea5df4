"""Any broker takes OffsetCommit, OffsetFetch and OffsetDelete, whoever coordinates the group."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import ALL_OR_NONE_TAG, YES
from kraftpy.testing import Cluster
from tests.replication.support import connect, coordinator_of
from tests.server.wire import Closed, Wire
from tests.waiting import wait_until

OFFSETS_PARTITIONS = 6
TOPIC = "read"
PARTITIONS = 2
TIMEOUT_MS = 2000
UNSERVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
PASSING = (*UNSERVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        3,
        offsets_topic_num_partitions=OFFSETS_PARTITIONS,
        offsets_topic_replication_factor=3,
        offsets_commit_timeout_ms=TIMEOUT_MS,
    ) as started:
        with connect(started, 1) as wire:
            request = messages.CreateTopicsRequest
            topic = request.CreatableTopic(TOPIC, PARTITIONS, 3)
            created = wire.call(ApiKey.CREATE_TOPICS, 7, request([topic], timeout_ms=10_000))
            assert created.topics[0].error_code == 0
            started.wait_healthy()
            # The first request of all, without FindCoordinator, makes the offsets topic.
            commit_at_last(wire, "first", 1)
        started.wait_healthy()
        yield started


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """The same, mended afterwards."""
    yield cluster
    cluster.heal()
    for node in cluster.nodes.values():
        if node.paused:
            cluster.resume(node.id)
        if not node.running:
            cluster.restart(node.id)
    cluster.wait_healthy()
    # So that every broker coordinates some groups again.
    with connect(cluster, 1) as wire:
        wire.call(ApiKey.ELECT_LEADERS, 2, messages.ElectLeadersRequest(0, None, 10_000))
    cluster.wait_healthy()


def new_group() -> str:
    return f"group-{next(_numbers)}"


def group_of(cluster: Cluster, node: int) -> str:
    """A new group that this node coordinates."""
    groups = (new_group() for _ in range(100))
    return next(
        group for group in groups if coordinator_of(cluster, group, OFFSETS_PARTITIONS) == node
    )


def commit_request(group: str, offset: int) -> messages.OffsetCommitRequest:
    kinds = messages.OffsetCommitRequest
    partitions = [kinds.OffsetCommitRequestPartition(p, offset) for p in range(PARTITIONS)]
    return kinds(group, topics=[kinds.OffsetCommitRequestTopic(TOPIC, partitions=partitions)])


def commit(wire: Wire, group: str, offset: int, version: int = 8) -> ErrorCode:
    response = wire.call(ApiKey.OFFSET_COMMIT, version, commit_request(group, offset))
    errors = {partition.error_code for partition in response.topics[0].partitions}
    assert len(errors) == 1
    return ErrorCode(errors.pop())


def commit_at_last(wire: Wire, group: str, offset: int, version: int = 8) -> None:
    """As clients do, which try again while a coordinator is on its way."""

    def is_done() -> bool:
        error = commit(wire, group, offset, version)
        assert error is ErrorCode.NONE or error in PASSING
        return error is ErrorCode.NONE

    wait_until(is_done, f"offset {offset} of {group} is committed")


def fetch(wire: Wire, group: str, version: int = 7) -> tuple[ErrorCode, set[int]]:
    """The error, and the offsets of all partitions."""
    kinds = messages.OffsetFetchRequest
    numbers = list(range(PARTITIONS))
    if version >= 8:
        wanted = kinds.OffsetFetchRequestGroup(
            group, topics=[kinds.OffsetFetchRequestTopics(TOPIC, partition_indexes=numbers)]
        )
        (answer,) = wire.call(ApiKey.OFFSET_FETCH, version, kinds(groups=[wanted])).groups
    else:
        topics = [kinds.OffsetFetchRequestTopic(TOPIC, numbers)]
        answer = wire.call(ApiKey.OFFSET_FETCH, version, kinds(group, topics))
    partitions = [partition for topic in answer.topics for partition in topic.partitions]
    errors = {answer.error_code, *(partition.error_code for partition in partitions)} - {0}
    return (
        ErrorCode(errors.pop() if errors else 0),
        {partition.committed_offset for partition in partitions},
    )


def test_every_broker_commits_for_every_group(cluster: Cluster) -> None:
    for coordinator, node in itertools.product(cluster.nodes, cluster.nodes):
        group = group_of(cluster, coordinator)
        with connect(cluster, node) as wire:
            for version in range(9):
                commit_at_last(wire, group, version, version)
        assert fetch_everywhere(cluster, group) == [{8}] * 3


def test_topic_ids_are_passed_on(cluster: Cluster) -> None:
    naming = messages.MetadataRequest
    asking = messages.OffsetFetchRequest
    for coordinator, node in itertools.product(cluster.nodes, cluster.nodes):
        group = group_of(cluster, coordinator)
        with connect(cluster, node) as wire:
            commit_at_last(wire, group, 1)
            named = naming([naming.MetadataRequestTopic(name=TOPIC)])
            topic_id = wire.call(ApiKey.METADATA, 12, named).topics[0].topic_id
            request = commit_request(group, 2)
            request.topics[0].topic_id = topic_id
            (topic,) = wire.call(ApiKey.OFFSET_COMMIT, 10, request).topics
            assert topic.topic_id == topic_id
            assert {each.error_code for each in topic.partitions} == {ErrorCode.NONE}
            wanted = asking.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
            asked = asking(groups=[asking.OffsetFetchRequestGroup(group, topics=[wanted])])
            (answer,) = wire.call(ApiKey.OFFSET_FETCH, 10, asked).groups
            assert answer.topics[0].partitions[0].committed_offset == 2


def test_all_or_none_holds_through_every_broker(cluster: Cluster) -> None:
    for coordinator, node in itertools.product(cluster.nodes, cluster.nodes):
        group = group_of(cluster, coordinator)
        request = commit_request(group, 1)
        request._tags = {ALL_OR_NONE_TAG: YES}
        request.topics[0].partitions[1].partition_index = 77
        with connect(cluster, node) as wire:
            commit_at_last(wire, group, 0)
            (topic,) = wire.call(ApiKey.OFFSET_COMMIT, 9, request).topics
        assert [each.error_code for each in topic.partitions] == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert fetch_everywhere(cluster, group) == [{0}] * 3


def fetch_everywhere(cluster: Cluster, group: str) -> list[set[int]]:
    """What each broker answers, in any version."""
    found = []
    for node in cluster.nodes:
        with connect(cluster, node) as wire:
            answers = [fetch(wire, group, version) for version in range(9)]
        assert all(answer == (ErrorCode.NONE, answers[0][1]) for answer in answers)
        found.append(answers[0][1])
    return found


def test_one_fetch_of_groups_with_different_coordinators(cluster: Cluster) -> None:
    groups = [group_of(cluster, node) for node in cluster.nodes for _ in range(2)]
    for offset, group in enumerate(groups):
        with connect(cluster, coordinator_of(cluster, group, OFFSETS_PARTITIONS)) as wire:
            commit_at_last(wire, group, offset)
    kinds = messages.OffsetFetchRequest
    # All partitions of each group, and of one that was never heard of.
    wanted = [*groups[::-1], "unheard"]
    # One is named twice; it's answered once.
    named = [*wanted, groups[0]]
    request = kinds(groups=[kinds.OffsetFetchRequestGroup(group, topics=None) for group in named])
    expected = [*[{n} for n in range(len(groups))][::-1], set()]
    for node in cluster.nodes:
        with connect(cluster, node) as wire:
            answers = wire.call(ApiKey.OFFSET_FETCH, 8, request).groups
        assert [answer.group_id for answer in answers] == wanted
        assert {answer.error_code for answer in answers} == {0}
        found = [
            {p.committed_offset for t in answer.topics for p in t.partitions} for answer in answers
        ]
        assert found == expected


def test_every_broker_deletes(cluster: Cluster) -> None:
    kinds = messages.OffsetDeleteRequest
    for node in cluster.nodes:
        group = group_of(cluster, node % 3 + 1)
        with connect(cluster, node) as wire:
            commit_at_last(wire, group, 5)
            partitions = [kinds.OffsetDeleteRequestPartition(0)]
            request = kinds(group, [kinds.OffsetDeleteRequestTopic(TOPIC, partitions)])
            response = wire.call(ApiKey.OFFSET_DELETE, 0, request)
            assert response.error_code == response.topics[0].partitions[0].error_code == 0
            assert fetch(wire, group) == (ErrorCode.NONE, {-1, 5})
            assert wire.call(ApiKey.OFFSET_DELETE, 0, kinds("unheard")).error_code == (
                ErrorCode.GROUP_ID_NOT_FOUND
            )


def test_what_the_coordinator_refuses_is_relayed(cluster: Cluster) -> None:
    group = group_of(cluster, 1)
    request = commit_request(group, 1)
    request.generation_id_or_member_epoch, request.member_id = 7, "nobody"
    with connect(cluster, 2) as wire:
        response = wire.call(ApiKey.OFFSET_COMMIT, 8, request)
        assert {p.error_code for p in response.topics[0].partitions} == {
            ErrorCode.ILLEGAL_GENERATION
        }
        assert commit(wire, "g" * 32_768, 1) is ErrorCode.INVALID_GROUP_ID


def test_requests_of_many_clients_are_under_way_at_once(cluster: Cluster) -> None:
    groups = [group_of(cluster, 1) for _ in range(20)]
    wires = [connect(cluster, 2) for _ in groups]
    for wire, group in zip(wires, groups, strict=True):
        for offset in range(10):
            wire.send(ApiKey.OFFSET_COMMIT, 8, commit_request(group, offset))
    for wire, group in zip(wires, groups, strict=True):
        for _ in range(10):
            _, response = wire.receive(ApiKey.OFFSET_COMMIT, 8)
            assert {p.error_code for p in response.topics[0].partitions} == {0}
        assert fetch(wire, group) == (ErrorCode.NONE, {9})
        wire.sock.close()


class Client(threading.Thread):
    """Commits growing offsets through one broker, and reads each back through another one."""

    def __init__(self, write: Wire, read: Wire, group: str) -> None:
        super().__init__(daemon=True)
        self._write, self._read, self._group = write, read, group
        self.acknowledged = 0
        self.passing: list[ErrorCode] = []
        self.problems: list[str] = []
        self.longest_s = 0.0
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            for offset in itertools.count(1):
                if self.stop.is_set():
                    return
                self._step(offset)
        except (Closed, OSError) as error:
            self.problems.append(repr(error))

    def _step(self, offset: int) -> None:
        began_s = time.monotonic()
        error = commit(self._write, self._group, offset)
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        if error is ErrorCode.NONE:
            self.acknowledged = offset
        elif error in PASSING:
            self.passing.append(error)
        else:
            self.problems.append(f"commit {offset}: {error.name}")
        error, found = fetch(self._read, self._group)
        if error is not ErrorCode.NONE:
            if error not in PASSING:
                self.problems.append(f"fetch {offset}: {error.name}")
        elif len(found) != 1 or not self.acknowledged <= min(found) <= offset:
            self.problems.append(f"{found} read, {self.acknowledged} acknowledged")


def test_brokers_answer_while_the_coordinator_is_killed(whole: Cluster) -> None:
    cluster = whole
    coordinator = 3
    groups = [group_of(cluster, coordinator) for _ in range(4)]
    clients = [
        Client(connect(cluster, 1 + n % 2), connect(cluster, 2 - n // 2), group)
        for n, group in enumerate(groups)
    ]
    for client in clients:
        client.start()

    def each_commits(what: str) -> None:
        before = [client.acknowledged for client in clients]
        wait_until(
            lambda: all(c.acknowledged > n + 20 for c, n in zip(clients, before, strict=True)), what
        )

    each_commits("commits before")
    cluster.kill(coordinator)
    each_commits("commits while the old coordinator is down")
    cluster.restart(coordinator)
    cluster.wait_healthy()
    each_commits("commits when it is back")
    for client in clients:
        client.stop.set()
    for client in clients:
        client.join(20)
        assert not client.is_alive()
        assert not client.problems
        # Only what was under way when the coordinator died has an unknown outcome.
        assert len(client.passing) <= 3
        assert client.longest_s < 2 * TIMEOUT_MS / 1000 + 2


def test_a_paused_coordinator_costs_the_time_limit_and_tells_nothing_old(whole: Cluster) -> None:
    cluster = whole
    coordinator = 2
    group = group_of(cluster, coordinator)
    with connect(cluster, 1) as wire, connect(cluster, coordinator) as old:
        commit_at_last(wire, group, 1)
        cluster.pause(coordinator)
        began_s = time.monotonic()
        assert commit(wire, group, 2) in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert time.monotonic() - began_s < TIMEOUT_MS / 1000 + 3
        commit_at_last(wire, group, 3)
        # These lie in its socket when it goes on, before anything that could tell it better.
        for _ in range(5):
            kinds = messages.OffsetFetchRequest
            topics = [kinds.OffsetFetchRequestTopic(TOPIC, [0])]
            old.send(ApiKey.OFFSET_FETCH, 7, kinds(group, topics))
        cluster.resume(coordinator)
        for _ in range(5):
            _, answer = old.receive(ApiKey.OFFSET_FETCH, 7)
            if not answer.error_code:
                assert answer.topics[0].partitions[0].committed_offset == 3
            else:
                assert answer.error_code in PASSING


@pytest.mark.parametrize("beside_the_controller", [False, True])
def test_a_coordinator_that_is_cut_off_tells_nothing_old(
    whole: Cluster, beside_the_controller: bool
) -> None:
    cluster = whole
    controller = cluster.controller()
    coordinator = next(
        node for node in cluster.nodes if (node == controller) is beside_the_controller
    )
    other = next(node for node in cluster.nodes if node not in (coordinator, controller))
    group = group_of(cluster, coordinator)
    with connect(cluster, other) as wire, connect(cluster, coordinator) as old:
        commit_at_last(wire, group, 1)
        stop = threading.Event()
        reads: list[tuple[int, int]] = []
        acknowledged = 1

        def read() -> None:
            while not stop.is_set():
                known = acknowledged
                error, found = fetch(old, group)
                if error is ErrorCode.NONE:
                    reads.append((known, min(found)))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        # Cut off, it may refuse every read; that is no old answer.
        wait_until(lambda: bool(reads), "the coordinator to answer")
        cluster.isolate(coordinator, close=True)
        commit_at_last(wire, group, 2)
        acknowledged = 2
        for offset in range(3, 50):
            commit_at_last(wire, group, offset)
            acknowledged = offset
        cluster.heal()
        wait_until(lambda: (49, 49) in reads, "the coordinator to answer again")
        stop.set()
        reader.join(20)
        assert reads
        assert all(known <= found for known, found in reads)
        wait_until(lambda: fetch(old, group) == (ErrorCode.NONE, {49}), "in touch again")
