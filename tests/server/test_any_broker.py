"""Whatever broker is asked about the cluster, and told to change it, the answer is the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftpy.client import cluster as client
from kraftpy.client.cluster_admin import PREFERRED_ELECTION, ClusterAdmin, PartitionName
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.processes import split_address
from tests.server.test_quotas import alter, describe, entry
from tests.server.wire import Wire
from tests.waiting import wait_until

WAIT_S = 20.0


@pytest.fixture
def cluster(kraftpy_cluster: Callable[..., Cluster]) -> Cluster:
    started = kraftpy_cluster(3, links=False)
    started.wait_healthy()
    return started


def ask(cluster: Cluster, node: int, work: Callable[[ClusterAdmin], Awaitable[Any]]) -> Any:
    """What one broker answers: a client keeps to the first connection that it opens."""

    async def run() -> Any:
        async with client.Cluster(cluster.nodes[node].bootstrap) as connected:
            return await work(ClusterAdmin(connected))

    return asyncio.run(run())


def ask_all(cluster: Cluster, work: Callable[[ClusterAdmin], Awaitable[Any]]) -> list[Any]:
    return [ask(cluster, node.id, work) for node in cluster.nodes.values() if node.running]


def wait_alike(
    cluster: Cluster, work: Callable[[ClusterAdmin], Awaitable[Any]], right: Callable[[Any], bool]
) -> None:
    """Until all brokers that run give one answer, and that is right."""
    deadline = time.monotonic() + WAIT_S
    while True:
        answers = ask_all(cluster, work)
        if right(answers[0]) and all(answer == answers[0] for answer in answers):
            return
        assert time.monotonic() < deadline, answers
        time.sleep(0.05)


def create_topic(cluster: Cluster, name: str, **options: Any) -> None:
    ask(cluster, 1, lambda admin: admin.create_topic(name, **options))
    cluster.wait_healthy()


def test_brokers_describe_the_same_cluster(cluster: Cluster) -> None:
    create_topic(cluster, "t", partitions=4)
    controller = cluster.controller()
    assert controller is not None

    async def everything(admin: ClusterAdmin) -> Any:
        known = await admin.describe_cluster()
        quorum = await admin.describe_quorum()
        return (
            known,
            await admin.describe_partitions(),
            await admin.list_reassignments(),
            (quorum.leader_id, quorum.leader_epoch, quorum.addresses),
        )

    def whole(answer: Any) -> bool:
        known, partitions, moving, (leader_id, _, addresses) = answer
        return (
            known.controller_id == leader_id == controller
            and [each.fenced for each in known.brokers.values()] == [False] * 3
            and len(partitions) == 4
            and moving == {}
            and sorted(addresses) == [1, 2, 3]
        )

    wait_alike(cluster, everything, whole)
    cluster.kill(controller)

    def without_the_controller(answer: Any) -> bool:
        known, partitions, _, (leader_id, _, _) = answer
        fenced = [each.id for each in known.brokers.values() if each.fenced]
        return (
            fenced == [controller]
            and known.controller_id == leader_id != controller
            and all(controller not in each.isr for each in partitions.values())
        )

    wait_alike(cluster, everything, without_the_controller)


def test_every_broker_takes_changes(cluster: Cluster) -> None:
    """Two of three are not the active controller and pass them on."""
    create_topic(cluster, "t", partitions=3, replication_factor=2)
    name = PartitionName("t", 0)
    for node in cluster.nodes:
        old = ask(cluster, node, lambda admin: admin.describe_partitions())[name].replicas
        third = next(each for each in cluster.nodes if each not in old)
        target = (third, old[0])

        async def move(admin: ClusterAdmin, target: tuple[int, int] = target) -> Any:
            return await admin.alter_reassignments({name: target})

        assert ask(cluster, node, move) == {name: None}

        def moved(found: Any, target: tuple[int, int] = target) -> bool:
            return bool(found[name].replicas == target)

        wait_alike(cluster, lambda admin: admin.describe_partitions(), moved)
        cluster.wait_healthy()
        results = ask(cluster, node, lambda admin: admin.elect_leaders(PREFERRED_ELECTION))
        assert set(results.values()) <= {None}
        assert cluster.leader_of("t") == third


def test_changes_count_for_a_quota_whichever_broker_is_asked(cluster: Cluster) -> None:
    def wire(node: int) -> Wire:
        host, port = split_address(cluster.nodes[node].bootstrap)
        return Wire(host, port, client_id="changes")

    def create(node: int, name: str) -> int:
        new = m.CreateTopicsRequest.CreatableTopic(name, 2, 1)
        with wire(node) as asked:
            answer = asked.call(ApiKey.CREATE_TOPICS, 7, m.CreateTopicsRequest([new], 20_000))
        return int(answer.topics[0].error_code)

    entity = (("client-id", "changes"),)
    with wire(1) as asked:
        assert alter(asked, entry(entity, controller_mutation_rate=0.01)) == {entity: 0}
    for node in (2, 3):
        with wire(node) as asked:
            wait_until(lambda asked=asked: entity in describe(asked), WAIT_S)  # type: ignore[misc]
    assert create(2, "first") == 0
    for node in (1, 2, 3):
        assert create(node, f"more-{node}") == ErrorCode.THROTTLING_QUOTA_EXCEEDED
