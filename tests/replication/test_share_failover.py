"""Leaders of share groups' partitions that die, and the coordinators of their state (KIP-932)."""

from __future__ import annotations

import time
from collections.abc import Callable

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.storage.checkpoints import uuid_to_text
from kraftpy.testing import Cluster
from tests.replication.support import connect, leader_of
from tests.server.shares import ACCEPT, RELEASE, Group
from tests.waiting import TIMEOUT_S, wait_until

MakeTopic = Callable[..., str]


def test_trap_3_what_was_accepted_does_not_come_again_when_the_leader_is_killed(
    three: Cluster, new_topic: MakeTopic
) -> None:
    """What was leased and isn't finished is dealt again by the next leader."""
    topic = new_topic(three)
    first = leader_of(three, topic)
    with connect(three, first) as wire:
        group = Group(wire, topic)
        group.append(*(f"{number}" for number in range(10)))
        ann = group.member()
        assert ann.fetch(group.partition, wait_ms=10_000)[group.partition].runs == [(0, 9, 1)]
        said = {group.partition: [(0, 2, [ACCEPT]), (5, 6, [ACCEPT]), (8, 8, [RELEASE])]}
        assert ann.acknowledge(said) == {group.partition: 0}
        three.kill(first)
    wait_until(lambda: three.leader_of(topic) not in (None, first), "another leader")
    second = leader_of(three, topic)
    with connect(three, second) as wire:
        ben = group.member("ben", wire=wire)
        runs = ben.fetch(group.partition, wait_ms=20_000)[group.partition].runs
        # Leases aren't kept, and nor is that they were deliveries; the release was.
        assert runs == [(3, 4, 1), (7, 7, 1), (8, 8, 2), (9, 9, 1)]
        said = {group.partition: [(3, 4, [ACCEPT]), (7, 9, [ACCEPT])]}
        assert ben.acknowledge(said) == {group.partition: 0}
        assert ben.fetch(wait_ms=100) == {}
    third = next(node for node in three.nodes if node not in (first, second))
    with connect(three, third) as wire:
        got = group.member("cid", wire=wire).fetch(group.partition, wait_ms=10_000)
        assert got[group.partition].error == E.NOT_LEADER_OR_FOLLOWER
    three.restart(first)
    three.wait_healthy()


def test_an_acknowledgement_outlives_the_coordinator_of_its_state(
    three: Cluster, new_topic: MakeTopic
) -> None:
    topic = new_topic(three)
    leader = leader_of(three, topic)
    with connect(three, leader) as wire:
        # Of some groups the coordinator is elsewhere.
        groups = [Group(wire, topic) for _ in range(6)]
        groups[0].append("a", "b")
        coordinators = {group.name: _coordinator(three, leader, group) for group in groups}
        group = next(each for each in groups if coordinators[each.name] != leader)
        ann = group.member()
        assert ann.fetch(group.partition, wait_ms=10_000)[group.partition].runs == [(0, 1, 1)]
        victim = coordinators[group.name]
        three.kill(victim)
        assert ann.acknowledge({group.partition: [(0, 1, [ACCEPT])]}) == {group.partition: 0}
        assert ann.fetch(wait_ms=100) == {}
    three.restart(victim)
    three.wait_healthy()


def _coordinator(cluster: Cluster, node: int, group: Group) -> int:
    id_, index = group.partition
    key = f"{group.name}:{uuid_to_text(id_)}:{index}"
    request = messages.FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    deadline = time.monotonic() + TIMEOUT_S
    with connect(cluster, node) as wire:
        while True:
            (found,) = wire.call(ApiKey.FIND_COORDINATOR, 6, request).coordinators
            if not found.error_code:
                return int(found.node_id)
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
