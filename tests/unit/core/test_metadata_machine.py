"""Random lives of a cluster: commands made for the state that they meet, so that they take effect.

Beside the state runs a model of what is on the brokers' disks. Whatever happens, who is in sync or
eligible has all committed records; nothing committed is lost but by a permitted unclean election,
or when nobody is left who has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_cluster import Cluster, new_topic, packed, restored, uuid_of
from metadata_invariants import check, check_result

from kraftpy.core.metadata import (
    NO_LEADER,
    MetadataState,
    PartitionChanged,
    PartitionState,
    Result,
    Topic,
)
from kraftpy.core.metadata.partition_changes import rules_of
from kraftpy.protocol.errors import ErrorCode

BROKERS = 5
NAMES = ("a", "b", "c")
LOST = -1

Place = tuple[bytes, int]


class Disks:
    """For each partition how many records are committed, and how many of them each replica has.

    A leader commits a record whenever the rules let it (KIP-966); then the whole ISR has it. A
    broker that stops uncleanly loses everything, which is the worst that can happen.
    """

    def __init__(self) -> None:
        self.committed: dict[Place, int] = {}
        self.held: dict[Place, dict[int, int]] = {}

    def stopped_uncleanly(self, broker_id: int) -> None:
        for held in self.held.values():
            held[broker_id] = LOST

    def begins_anew(self, command: dict[str, Any], result: Result) -> None:
        """A replica is given up, if that was allowed."""
        ((topic,), (answer,)) = command["topics"], result.value["topics"]
        if answer["partitions"][0]["error"] == ErrorCode.NONE:
            place = topic["topic_id"], topic["partitions"][0]["index"]
            self.held[place][command["broker_id"]] = LOST

    def changed(
        self,
        topic: Topic,
        index: int,
        old: PartitionState,
        new: PartitionState,
        caught_up: set[int],
        permitted: bool,
    ) -> None:
        """A partition changed; `caught_up` are those that its leader proposed as in sync."""
        place = topic.id, index
        held = self.held[place]
        capable = {*old.isr, *old.elr, *caught_up}
        held |= dict.fromkeys(caught_up, self.committed[place])
        if new.leader not in (NO_LEADER, *capable):
            nobody_else = not any(held.get(each, LOST) == self.committed[place] for each in capable)
            last_known = new.leader in old.last_known_elr and nobody_else
            assert permitted or last_known, "a leader without all records, for no reason"
            assert permitted or new.leader in held, "it was no replica since it led last"
            self.committed[place] = held.setdefault(new.leader, LOST)
        for each in set(held) - set(new.replicas):
            del held[each]

    def commit(self, state: MetadataState) -> None:
        """Every leader that may commits one more record."""
        for topic in state.topics.values():
            rules = rules_of(state, topic.name)
            for index, partition in topic.partitions.items():
                place = topic.id, index
                count = self.committed.setdefault(place, 0)
                held = self.held.setdefault(place, dict.fromkeys(partition.isr, 0))
                if len(partition.isr) >= min(rules.min_isr, len(partition.replicas)):
                    self.committed[place] = count + 1
                    held |= dict.fromkeys(partition.isr, count + 1)
                for each in (*partition.isr, *partition.elr):
                    assert held[each] == self.committed[place], "who may lead lacks records"


def proposed(command: dict[str, Any]) -> set[int]:
    """The ISR in alter_partition."""
    if command["type"] != "alter_partition":
        return set()
    (topic,) = command["topics"]
    (partition,) = topic["partitions"]
    return {each["broker_id"] for each in partition["isr"]}


class Life:
    """A cluster, its disks, a second node that applies the same, and one that began later."""

    def __init__(self, snapshot_at: int) -> None:
        self.cluster = Cluster(BROKERS)
        self.other = restored(self.cluster.state)
        self.follower: MetadataState | None = None
        self.snapshot_at = snapshot_at
        self.disks = Disks()
        self.topics = 0

    @property
    def state(self) -> MetadataState:
        return self.cluster.state

    def step(self, number: int, name: str, a: int, b: int, c: int) -> None:
        command = STEPS[name](self, a, b, c)
        if command is None:
            return
        clean = self._may_be_clean(command)
        result = self.cluster.apply(command)
        check(self.state)
        check_result(self.state, result, command)
        if result.error is ErrorCode.NONE and not clean:
            self.disks.stopped_uncleanly(command["broker_id"])
        if command["type"] == "renew_replicas" and result.error is ErrorCode.NONE:
            self.disks.begins_anew(command, result)
        for change in result.changes:
            if isinstance(change, PartitionChanged) and change.old is not None:
                caught_up = proposed(command)
                permitted = (
                    rules_of(self.state, change.topic.name).unclean
                    or command.get("election_type") == 1
                )
                self.disks.changed(
                    change.topic, change.index, change.old, change.new, caught_up, permitted
                )
        self.disks.commit(self.state)
        assert self.other.apply(self.state.applied_index, command) == result
        if self.follower is not None:
            assert self.follower.apply(self.state.applied_index, command) == result
        elif number >= self.snapshot_at:
            self.follower = restored(self.state)

    def _may_be_clean(self, command: dict[str, Any]) -> bool:
        """Whether a broker has all that it had: it says so, and nobody said it won't come back."""
        if command["type"] == "unregister_broker":
            return False
        if command["type"] != "register_broker":
            return True
        old = self.state.brokers.get(command["broker_id"])
        return old is not None and (
            command["previous_broker_epoch"] == old.epoch
            and set(old.directories) <= set(command["directories"])
        )

    def broker(self, a: int) -> int:
        return 1 + a % BROKERS

    def place(self, a: int, b: int) -> tuple[str, int] | None:
        names = sorted(self.state.topics)
        if not names:
            return None
        name = names[a % len(names)]
        return name, b % len(self.state.topics[name].partitions)


def _register(life: Life, a: int, b: int, c: int) -> dict[str, Any]:
    broker_id = life.broker(a)
    old = life.state.brokers.get(broker_id)
    disk = 2_000_000 + broker_id + (100 * b if c % 5 == 0 else 0)
    return {
        "type": "register_broker",
        "broker_id": broker_id,
        "incarnation_id": uuid_of(life.state.applied_index + 10**6),
        "previous_broker_epoch": old.epoch if old is not None and c % 2 else -1,
        "min_insync_replicas": 2 if c % 11 == 0 else 1,
        "unclean_leader_election": c % 3 == 0,
        "endpoints": [],
        "directories": [uuid_of(disk), *([uuid_of(7 + broker_id)] if b % 4 == 0 else [])],
    }


def _on_broker(kind: str) -> Callable[[Life, int, int, int], dict[str, Any] | None]:
    def make(life: Life, a: int, b: int, c: int) -> dict[str, Any] | None:
        broker = life.state.brokers.get(life.broker(a))
        if broker is None:
            return None
        return {"type": kind, "broker_id": broker.id, "broker_epoch": broker.epoch}

    return make


def _unregister(life: Life, a: int, b: int, c: int) -> dict[str, Any] | None:
    broker = life.state.brokers.get(life.broker(a))
    return None if broker is None else {"type": "unregister_broker", "broker_id": broker.id}


def _create(life: Life, a: int, b: int, c: int) -> dict[str, Any]:
    life.topics += 1
    item = new_topic(NAMES[a % 3], 1 + b % 3, 1 + c % 4, topic_id=uuid_of(500 + life.topics))
    configs = {"min.insync.replicas": str(1 + c % 3)} if c % 2 else {}
    return {"type": "create_topics", "seed": c, "topics": [item | {"configs": configs}]}


def _delete(life: Life, a: int, b: int, c: int) -> dict[str, Any]:
    return {"type": "delete_topics", "topics": [{"name": NAMES[a % 3]}]}


def _grow(life: Life, a: int, b: int, c: int) -> dict[str, Any]:
    item = {"name": NAMES[a % 3], "count": 1 + b % 4}
    return {"type": "create_partitions", "seed": c, "topics": [item]}


def _isr(life: Life, a: int, b: int, c: int) -> dict[str, Any] | None:
    place = life.place(a, b)
    if place is None or life.cluster.partition(*place).leader == NO_LEADER:
        return None
    state, brokers = life.cluster.partition(*place), life.state.brokers
    isr = [
        each
        for bit, each in enumerate(state.replicas)
        if each == state.leader
        or (c >> bit & 1 and each in brokers and (brokers[each].active or c % 7 == 0))
    ]
    return life.cluster.proposal(*isr, topic=place[0], index=place[1])


def _everybody(life: Life, a: int, b: int, c: int) -> dict[str, Any] | None:
    return _isr(life, a, b, 2**10 - 1)


def _renew(life: Life, a: int, b: int, c: int) -> dict[str, Any] | None:
    place = life.place(a, b)
    if place is None:
        return None
    state, topic = life.cluster.partition(*place), life.state.topics[place[0]]
    broker = life.state.brokers.get(state.replicas[c % len(state.replicas)])
    if broker is None:
        return None
    item = {"index": place[1], "leader_epoch": state.leader_epoch}
    return {
        "type": "renew_replicas",
        "broker_id": broker.id,
        "broker_epoch": broker.epoch,
        "topics": [{"topic_id": topic.id, "partitions": [item]}],
    }


def _elect(life: Life, a: int, b: int, c: int) -> dict[str, Any]:
    return {"type": "elect_leaders", "election_type": int(c % 5 == 0), "topics": None}


def _move(life: Life, a: int, b: int, c: int) -> dict[str, Any] | None:
    place = life.place(a, b)
    if place is None:
        return None
    order = sorted(range(1, BROKERS + 1), key=lambda each: (each * (c % 97 + 1) + c) % 101)
    item = {"index": place[1], "replicas": order[: 1 + c % 4] if c % 4 else None}
    return {"type": "alter_reassignments", "topics": [{"name": place[0], "partitions": [item]}]}


def _configure(life: Life, a: int, b: int, c: int) -> dict[str, Any]:
    key = ("min.insync.replicas", "unclean.leader.election.enable")[c % 3 == 0]
    value = str(1 + c % 4) if c % 3 else ("true", "false")[b % 2]
    type_, name = (4, "") if a % 4 == 3 else (2, NAMES[a % 4])
    operation = [key, c // 8 % 2, value]
    return {
        "type": "alter_configs",
        "resources": [{"type": type_, "name": name, "ops": [operation]}],
    }


STEPS: dict[str, Callable[[Life, int, int, int], dict[str, Any] | None]] = {
    "create": _create,
    "fence": _on_broker("fence_broker"),
    "register": _register,
    "unfence": _on_broker("unfence_broker"),
    "begin_shutdown": _on_broker("begin_shutdown"),
    "isr": _isr,
    "everybody": _everybody,
    "move": _move,
    "elect": _elect,
    "renew": _renew,
    "configure": _configure,
    "grow": _grow,
    "delete": _delete,
    "unregister": _unregister,
}
_rare = ("delete", "unregister", "grow")
_often = [name for name in STEPS if name not in _rare]
_names = st.sampled_from([*_often * 4, *_rare])
_numbers = st.integers(0, 10_000)
_steps = st.tuples(_names, _numbers, _numbers, _numbers)


@settings(max_examples=250)
@given(st.lists(_steps, min_size=20, max_size=60), st.integers(0, 60))
def test_nothing_committed_is_lost_and_all_nodes_agree(
    steps: list[tuple[str, int, int, int]], snapshot_at: int
) -> None:
    life = Life(snapshot_at)
    life.step(0, "create", 0, 2, 5)
    life.step(0, "create", 1, 1, 6)
    for number, step in enumerate(steps):
        life.step(number, *step)
    assert packed(life.other) == packed(life.state) == packed(restored(life.state))
    if life.follower is not None:
        assert packed(life.follower) == packed(life.state)
