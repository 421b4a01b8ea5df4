"""A broker that stopped uncleanly isn't eligible, whatever else happens at the same time (KIP-966).

Random commands under seeds, many more than hypothesis would try, on few brokers that share many
partitions. Unclean elections are never permitted in here.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from metadata_cluster import Cluster, new_topic, restored, uuid_of
from metadata_invariants import check

from kraftpy.core.metadata import NO_LEADER, PartitionChanged, Result
from kraftpy.protocol.errors import ErrorCode

BROKERS = (1, 2, 3, 4)
PARTITIONS = 4
STEPS = 120

Replica = tuple[str, int, int]


class Driver:
    """A cluster, and which replicas may lack records since their broker's last registration."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(len(BROKERS))
        self.lacking: set[Replica] = set()
        for name in ("t", "u"):
            assignments = [self.random.sample(BROKERS, 2) for _ in range(PARTITIONS)]
            configs = {"min.insync.replicas": "2"}
            self.cluster.create(new_topic(name, assignments=assignments, configs=configs))

    def step(self) -> None:
        kinds, weights = zip(*KINDS.items(), strict=True)
        (kind,) = self.random.choices(kinds, weights)
        command = getattr(self, kind)()
        if command is None:
            return
        before = restored(self.cluster.state)
        result = self.cluster.apply(command)
        self._note(command, result, clean=self._is_clean(before.brokers, command))
        check(self.cluster.state)
        for name, topic in self.cluster.state.topics.items():
            for index, partition in topic.partitions.items():
                for broker_id in {partition.leader, *partition.isr, *partition.elr}:
                    assert (name, index, broker_id) not in self.lacking, (command, partition)

    def _is_clean(self, brokers: dict[int, Any], command: dict[str, Any]) -> bool:
        if command["type"] == "unregister_broker":
            return False
        if command["type"] != "register_broker":
            return True
        old = brokers.get(command["broker_id"])
        return old is not None and command.get("previous_broker_epoch") == old.epoch

    def _note(self, command: dict[str, Any], result: Result, *, clean: bool) -> None:
        lost = command["broker_id"] if result.error is ErrorCode.NONE and not clean else None
        for name, topic in self.cluster.state.topics.items():
            for index, partition in topic.partitions.items():
                if lost in partition.replicas:
                    self.lacking.add((name, index, lost))
        proposed = {
            each["broker_id"]
            for topic in command.get("topics", ())
            for partition in topic["partitions"]
            for each in partition.get("isr", ())
        }
        for change in result.changes:
            if not isinstance(change, PartitionChanged) or change.old is None:
                continue
            place, old, new = (change.topic.name, change.index), change.old, change.new
            sound = proposed & set(new.isr)
            if new.leader != NO_LEADER and not {*old.isr, *old.elr} - {lost}:
                sound.add(new.leader)  # The last known leader: nobody has more.
            gone = set(BROKERS) - set(new.replicas)
            self.lacking -= {(*place, broker_id) for broker_id in sound | gone}

    # The commands, made for the state as it is

    def _place(self) -> tuple[str, int]:
        return self.random.choice("tu"), self.random.randrange(PARTITIONS)

    def _on_broker(self, kind: str) -> dict[str, Any] | None:
        broker = self.cluster.state.brokers.get(self.random.choice(BROKERS))
        if broker is None:
            return None
        return {"type": kind, "broker_id": broker.id, "broker_epoch": broker.epoch}

    def fence(self) -> dict[str, Any] | None:
        return self._on_broker("fence_broker")

    def unfence(self) -> dict[str, Any] | None:
        return self._on_broker("unfence_broker")

    def unregister(self) -> dict[str, Any] | None:
        return self._on_broker("unregister_broker")

    def shut_down(self) -> dict[str, Any] | None:
        return self._on_broker("begin_shutdown")

    def register(self) -> dict[str, Any] | None:
        broker_id = self.random.choice(BROKERS)
        old = self.cluster.state.brokers.get(broker_id)
        if old is not None and not old.fenced:
            return {"type": "fence_broker", "broker_id": broker_id, "broker_epoch": old.epoch}
        return {
            "type": "register_broker",
            "broker_id": broker_id,
            "incarnation_id": uuid_of(10**9 + self.cluster.state.applied_index),
            "previous_broker_epoch": old.epoch if old and self.random.random() < 0.5 else -1,
            "endpoints": [],
            "directories": [uuid_of(2_000_000 + broker_id)],
        }

    def change_isr(self) -> dict[str, Any] | None:
        name, index = self._place()
        partition, brokers = self.cluster.partition(name, index), self.cluster.state.brokers
        if partition.leader == NO_LEADER:
            return None
        others = [each for each in partition.replicas if each in brokers and brokers[each].active]
        isr = {partition.leader, *(each for each in others if self.random.random() < 0.6)}
        return self.cluster.proposal(*sorted(isr), topic=name, index=index)

    def move(self) -> dict[str, Any]:
        name, index = self._place()
        cancel = self.random.random() < 0.25
        target = None if cancel else self.random.sample(BROKERS, self.random.choice((1, 1, 2, 3)))
        item = {"index": index, "replicas": target}
        return {"type": "alter_reassignments", "topics": [{"name": name, "partitions": [item]}]}

    def configure(self) -> dict[str, Any]:
        ops = [["min.insync.replicas", 0, str(self.random.randint(1, 3))]]
        resource = {"type": 2, "name": self.random.choice("tu"), "ops": ops}
        return {"type": "alter_configs", "resources": [resource]}

    def elect(self) -> dict[str, Any]:
        return {"type": "elect_leaders", "election_type": 0}

    def renew(self) -> dict[str, Any] | None:
        command = self._on_broker("renew_replicas")
        if command is None:
            return None
        name, index = self._place()
        epoch = self.cluster.partition(name, index).leader_epoch
        item = {"index": index, "leader_epoch": epoch}
        topic_id = self.cluster.state.topics[name].id
        return command | {"topics": [{"topic_id": topic_id, "partitions": [item]}]}


KINDS = {
    "fence": 15,
    "unfence": 20,
    "register": 15,
    "unregister": 3,
    "shut_down": 4,
    "change_isr": 23,
    "move": 12,
    "configure": 3,
    "elect": 3,
    "renew": 2,
}


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_eligible_whose_last_registration_was_unclean(seed: int) -> None:
    driver = Driver(seed)
    for _ in range(STEPS):
        driver.step()


def test_who_stopped_uncleanly_leaves_all_elrs_also_where_that_completes_a_reassignment() -> None:
    """Partition 0 lets the broker go in the same change; partition 1 comes after it."""
    cluster = Cluster(3)
    configs = {"min.insync.replicas": "2"}
    cluster.create(new_topic("t", assignments=[[1, 2], [1, 2], [1, 2]], configs=configs))
    cluster.set_isr(1)
    move = {"name": "t", "partitions": [{"index": 0, "replicas": [2]}]}
    cluster.ok({"type": "alter_reassignments", "topics": [move]})
    cluster.kill(1)
    check(cluster.state)
    assert [cluster.partition(index=index).leader for index in range(3)] == [2] * 3
    cluster.register(1)
    assert [1 in cluster.partition(index=index).elr for index in range(3)] == [False] * 3
    cluster.kill(2)
    cluster.unfence(1)
    assert [cluster.partition(index=index).leader for index in range(3)] == [NO_LEADER] * 3


def test_a_broker_that_is_gone_for_good_leaves_all_elrs() -> None:
    cluster = Cluster(2)
    configs = {"min.insync.replicas": "2"}
    cluster.create(new_topic("t", assignments=[[1, 2]] * 3, configs=configs))
    cluster.set_isr(1)
    move = {"name": "t", "partitions": [{"index": 0, "replicas": [2]}]}
    cluster.ok({"type": "alter_reassignments", "topics": [move]})
    cluster.begin_shutdown(1)
    cluster.ok({"type": "unregister_broker", "broker_id": 1})
    assert [1 in cluster.partition(index=index).elr for index in range(3)] == [False] * 3
