"""How each kind of fault shows from outside, and a cluster under load for it to happen to.

Nothing here asks the fault: what counts is which processes are gone or stopped, what reaches whose
disk, what time a node writes, which bytes are left, and who leads what by the nodes' own account.
What tells one way of cutting a link from another is looked at in tests/testing/test_namespaces.py.

`python -m tests.consistency.effects KIND` lets one kind happen to a cluster of its own: those that
need a mount namespace take it for the rest of a process's life.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import ProduceRequest
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Cluster, clocks
from kraftpy.testing.consistency.faults import FAULTS, Act, Ground, cluster_options
from kraftpy.testing.consistency.faults.membership import put_in_order
from kraftpy.testing.consistency.runner import quick_cluster
from kraftpy.testing.process import is_alive, is_stopped
from kraftpy.testing.view import PartitionView, _ask, ask_metadata
from tests.waiting import wait_until

from .test_membership import known

TOPIC = "t"
ORDERS = {(TOPIC, 0): (1, 2, 3), (TOPIC, 1): (2, 3, 1), (TOPIC, 2): (3, 1, 2)}
EVERYONE = {1, 2, 3}
RECORD_BYTES = 400
PREPARED = 250  # records: a few closed segments in each partition
PAUSE_S = 0.02
TIMEOUT_S = 30.0
HEALTHY_S = 60.0
NOT_HEARD_S = 0.3  # what isn't cut arrives within milliseconds
WRONG_S = 0.3  # so much a clock has to be wrong, at the least


class Load:
    """Sends records one after the other with acks=all, and knows which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[bytes] = set()
        self._waiting = dict.fromkeys(range(len(ORDERS)), 0)
        self._numbers = itertools.count()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        )
        self._going, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        for _ in range(PREPARED):
            self._send()
        self.rest()
        assert len(self.acknowledged) == PREPARED
        self._going.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def rest(self) -> None:
        """Send no more for a while, when all that was sent is answered."""
        self._going.clear()
        assert not self._producer.flush(TIMEOUT_S)

    def go_on(self) -> None:
        self._going.set()

    def waiting(self, index: int) -> int:
        """How many records of a partition are sent and not answered."""
        return self._waiting[index]

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            if self._going.is_set():
                self._send()
            self._producer.poll(0)

    def _send(self) -> None:
        number = next(self._numbers)
        index = number % len(ORDERS)
        value = f"{number:08}".encode().ljust(RECORD_BYTES, b".")

        def answered(error: object, _: Message) -> None:
            self._waiting[index] -= 1
            if error is None:
                self.acknowledged.add(value)

        self._waiting[index] += 1
        self._producer.produce(TOPIC, value, partition=index, on_delivery=answered)


class Stage:
    """A cluster of three with one topic under load: partition I is led by node I + 1 if it can."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.cluster, self.load = cluster, load
        settings = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0}
        self._producers = {acks: Producer({**settings, "acks": acks}) for acks in (1, -1)}

    # -- what is done

    def send(self, index: int, value: bytes, *, acks: int) -> Message:
        """A record that was acknowledged."""
        (answer,) = self.send_all(index, [value], acks=acks, timeout_s=TIMEOUT_S)
        return answer

    def send_all(
        self, index: int, values: Sequence[bytes], *, acks: int, timeout_s: float
    ) -> list[Message]:
        """Those of the records that were acknowledged in time."""
        answers: list[Message] = []

        def answered(error: object, message: Message) -> None:
            if error is None:
                answers.append(message)

        producer = self._producers[acks]
        for value in values:
            producer.produce(TOPIC, value, partition=index, on_delivery=answered)
        producer.flush(timeout_s)
        return answers

    def take(self, leader: int, value: bytes) -> bool:
        """Whether a node takes a record for the partition that it led; nobody else is asked."""
        kinds = ProduceRequest
        data = kinds.PartitionProduceData(leader - 1, build_batch([(-1, None, value, [])]))
        topic = kinds.TopicProduceData(TOPIC, partition_data=[data])
        request = kinds(acks=1, timeout_ms=1000, topic_data=[topic])
        node = self.cluster.nodes[leader]
        answer = _ask(node.host, node.port, ApiKey.PRODUCE, 9, request, TIMEOUT_S)
        return not answer.responses[0].partition_responses[0].error_code

    def put_in_order(self) -> None:
        cluster = self.cluster
        cluster.wait_healthy(HEALTHY_S)
        wait_until(
            lambda: self._is_in_order() or (put_in_order(cluster, ORDERS) and self._is_in_order()),
            "the replicas are where they were, and lead as they did",
            TIMEOUT_S,
        )
        cluster.wait_healthy(HEALTHY_S)

    def _is_in_order(self) -> bool:
        return all(
            (each.replicas, each.leader) == (ORDERS[name], ORDERS[name][0])
            for name, each in self.partitions().items()
        )

    # -- what can be seen

    def pids(self) -> dict[int, list[int]]:
        return {node.id: node.pids for node in self.cluster.nodes.values()}

    def partitions(self) -> dict[tuple[str, int], PartitionView]:
        """The topic's, as a node sees it that runs."""
        nodes = self.cluster.nodes.values()
        node = next(each for each in nodes if not each.ended and not each.paused)
        view = ask_metadata(node.host, node.port, TIMEOUT_S)
        return {name: view.partitions[name] for name in ORDERS}

    def log(self, node: int, index: int) -> bytes:
        folder = self.cluster.nodes[node].log_dir / f"{TOPIC}-{index}"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def logs(self, node: int) -> list[bytes]:
        return [self.log(node, index) for _, index in ORDERS]

    def wrong_s(self, node: int) -> tuple[float, float]:
        """Bounds for how far a node's clock is ahead of this machine's, by what it writes."""
        before_s = time.time()
        _, stamp_ms = self.send(node - 1, b"what time is it?", acks=1).timestamp()
        return stamp_ms / 1000 - time.time(), (stamp_ms + 1) / 1000 - before_s

    def lost(self) -> set[bytes]:
        """What was acknowledged, and is not there."""
        wanted = set(self.load.acknowledged)
        settings = {"group.id": "reader", "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, **settings})
        consumer.assign([TopicPartition(*name, 0) for name in ORDERS])
        deadline = time.monotonic() + TIMEOUT_S
        while wanted and time.monotonic() < deadline:
            wanted -= {each.value() for each in consumer.consume(1000, 0.2) if not each.error()}
        consumer.close()
        return wanted


@contextmanager
def stage(faults: Sequence[str]) -> Iterator[Stage]:
    """One on which these kinds can happen."""
    with quick_cluster(3, **cluster_options(faults)) as cluster:
        topic = NewTopic(
            TOPIC,
            len(ORDERS),
            replica_assignment=[list(each) for each in ORDERS.values()],
            config={"message.timestamp.type": "LogAppendTime"},  # a node's own clock
        )
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)
        cluster.wait_healthy(HEALTHY_S)
        with Load(cluster.bootstrap) as load:
            yield Stage(cluster, load)


# An effect looks at how things are, yields for the fault to begin, sees what that has done, yields
# for it to be ended and healed, and may look once more.
Watch = Iterator[None]


class Effect(NamedTuple):
    """`seed` has the fault choose what shows soon; with `rest` nothing is written as it begins.

    A node that is cut off from the controller, which `spares_controller` avoids, is fenced before
    long, and then leads nothing.
    """

    watch: Callable[[Stage, Act], Watch]
    seed: int = 1
    target: str = "any"
    rest: bool = False
    spares_controller: bool = False


def happen(stage: Stage, name: str) -> None:
    """Let a kind of fault happen; it has its effect, is over, and nothing is lost by it."""
    effect, cluster = EFFECTS[name], stage.cluster
    stage.put_in_order()
    act = _plan(cluster, name, effect)
    if effect.rest:
        stage.load.rest()
    watch = effect.watch(stage, act)
    next(watch)
    try:
        act.begin()
        stage.load.go_on()
        next(watch, None)
    finally:
        stage.load.go_on()
        act.end()
    cluster.wait_healthy(HEALTHY_S)
    next(watch, None)
    before = len(stage.load.acknowledged)
    stage.put_in_order()
    wait_until(
        lambda: len(stage.load.acknowledged) > before + len(ORDERS),
        "what is sent is acknowledged again",
        TIMEOUT_S,
    )
    assert stage.lost() == set()


def _plan(cluster: Cluster, name: str, effect: Effect) -> Act:
    for seed in itertools.count(effect.seed):
        ground = Ground(cluster, {TOPIC: len(ORDERS)}, random.Random(seed), effect.target)
        act = FAULTS[name].plan(ground)
        if not effect.spares_controller or cluster.controller() not in act.targets:
            return act
    raise AssertionError("unreachable")


def _gone(pids: dict[int, list[int]]) -> set[int]:
    """Nodes all of whose processes are gone, when those of no other are."""
    gone = {node for node, those in pids.items() if not any(map(is_alive, those))}
    assert all(is_alive(pid) for node, those in pids.items() if node not in gone for pid in those)
    return gone


def ended(stage: Stage, act: Act, *, count: int, in_order: bool = False) -> Watch:
    pids = stage.pids()
    yield
    assert len(act.targets) == count
    assert _gone(pids) == set(act.targets)
    for node in act.targets:
        mark = stage.cluster.nodes[node].log_dir / ".kafka_cleanshutdown"
        assert mark.exists() == in_order
    yield
    assert {node for node, those in stage.pids().items() if those != pids[node]} == _gone(pids)


def restarted(stage: Stage, act: Act) -> Watch:
    pids = stage.pids()
    yield
    assert _gone(pids) == EVERYONE
    assert all(all(map(is_alive, those)) for those in stage.pids().values())


def stopped(stage: Stage, act: Act, *, count: int) -> Watch:
    def halted() -> set[int]:
        return {node for node, pids in stage.pids().items() if all(map(is_stopped, pids))}

    assert halted() == set()
    yield
    assert len(act.targets) == count
    assert halted() == set(act.targets)
    others = [
        pid for node, those in stage.pids().items() if node not in act.targets for pid in those
    ]
    assert not any(map(is_stopped, others))
    yield
    assert halted() == set()


def _all(holds: Callable[[tuple[int, int]], bool], pairs: set[tuple[int, int]]) -> bool:
    return all(map(holds, pairs))


def cut(stage: Stage, act: Act, *, links: str) -> Watch:
    """What a leader writes gets to a follower only if both hear one another."""
    yield
    one, *more = act.targets
    between = {
        "one": {frozenset((one, other)) for other in EVERYONE - {one}},
        "sides": {frozenset((one, *more))},
        "all": {frozenset(pair) for pair in itertools.combinations(EVERYONE, 2)},
    }[links]
    pairs = [(leader, follower) for leader in EVERYONE for follower in EVERYONE - {leader}]
    whole = {pair for pair in pairs if frozenset(pair) not in between}

    # What is answered first may be a fetch that was on its way before.
    for _ in range(2):
        word = uuid4().bytes
        for leader in EVERYONE:
            if not stage.take(leader, word):  # on a slow machine it may lead no more
                whole = {pair for pair in whole if pair[0] != leader}

        def there(pair: tuple[int, int], word: bytes = word) -> bool:
            leader, follower = pair
            return word in stage.log(follower, leader - 1)

        wait_until(partial(_all, there, whole), "every link that isn't cut passes it on", TIMEOUT_S)
        time.sleep(NOT_HEARD_S)
    assert {pair for pair in pairs if there(pair)} == whole


def slow(stage: Stage, act: Act) -> Watch:
    def quickest_s(count: int) -> float:
        """All replicas have what is acknowledged, so it went over each link and back."""
        times = []
        for _ in range(count):
            began = time.monotonic()
            stage.send(0, b"how long?", acks=-1)
            times.append(time.monotonic() - began)
        return min(times)

    there_and_back_s = 2 * int(act.detail.split()[3]) / 1000
    assert there_and_back_s > 0.4
    assert quickest_s(5) < there_and_back_s
    yield
    assert quickest_s(2) >= there_and_back_s
    yield
    assert quickest_s(5) < there_and_back_s


def jumped(stage: Stage, act: Act, *, sign: int) -> Watch:
    (victim,) = act.targets
    _assert_right(stage, EVERYONE)
    yield
    at_least_s = min(sign * bound for bound in stage.wrong_s(victim))
    assert at_least_s > 1000
    _assert_right(stage, EVERYONE - {victim})
    yield
    _wait_until_right(stage, victim)


def drifts(stage: Stage, act: Act) -> Watch:
    (victim,) = act.targets
    _assert_right(stage, EVERYONE)
    yield

    def is_wrong(at_least_s: float) -> bool:
        low, high = stage.wrong_s(victim)
        return low > at_least_s or high < -at_least_s

    for times in (1, 2):  # more and more
        wait_until(partial(is_wrong, times * WRONG_S), "the clock is wrong", TIMEOUT_S)
    _assert_right(stage, EVERYONE - {victim})
    yield
    _wait_until_right(stage, victim)


def _is_right(stage: Stage, node: int) -> bool:
    low, high = stage.wrong_s(node)
    return low < WRONG_S / 2 and high > -WRONG_S / 2


def _assert_right(stage: Stage, nodes: set[int]) -> None:
    assert [node for node in nodes if not _is_right(stage, node)] == []


def _wait_until_right(stage: Stage, node: int) -> None:
    wait_until(
        partial(_is_right, stage, node), "the clock is right again", TIMEOUT_S + clocks.NOTICED_S
    )


def tail_lost(stage: Stage, act: Act, *, of_each: bool) -> Watch:
    """Of a node that is dead the ends of logs are gone, and in the end it has them again."""
    (victim,), pids = act.targets, stage.pids()
    for _, index in ORDERS:  # what nobody has had a reason to fsync yet
        stage.send(index, b"the last", acks=-1)
    wait_until(
        lambda: stage.logs(1) == stage.logs(2) == stage.logs(3), "the logs are alike", TIMEOUT_S
    )
    before = {node: stage.logs(node) for node in EVERYONE}
    yield
    assert _gone(pids) == {victim}
    left = zip(stage.logs(victim), before[victim], strict=True)
    lost = [not now.startswith(was) for now, was in left]
    assert all(lost) if of_each else any(lost)
    for node in EVERYONE - {victim}:
        assert all(map(bytes.startswith, stage.logs(node), before[node]))
    yield
    assert all(map(bytes.startswith, stage.logs(victim), before[victim]))


def bit_flipped(stage: Stage, act: Act) -> Watch:
    (victim,), pids, before = act.targets, stage.pids(), stage.logs(act.targets[0])
    yield
    assert _gone(pids) == {victim}
    for now, was in zip(stage.logs(victim), before, strict=True):
        assert len(now) == len(was)
        assert (int.from_bytes(now) ^ int.from_bytes(was)).bit_count() == 1
    yield
    wait_until(
        lambda: all(map(bytes.startswith, stage.logs(victim), before)),
        "the log is as it was",
        TIMEOUT_S,
    )


def moved(stage: Stage, act: Act) -> Watch:
    yield

    def replicas() -> dict[tuple[str, int], tuple[int, ...]]:
        return {name: each.replicas for name, each in stage.partitions().items()}

    wait_until(
        lambda: min(map(len, replicas().values())) == 2, "a replica has gone away", TIMEOUT_S
    )
    yield
    there = replicas()
    assert all(there[name] != order for name, order in ORDERS.items())
    wait_until(
        lambda: all(
            bool(stage.log(node, name[1])) == (node in nodes)
            for name, nodes in there.items()
            for node in EVERYONE
        ),
        "there is data where there are replicas, and nowhere else",
        TIMEOUT_S,
    )


def freed(stage: Stage, act: Act) -> Watch:
    pids = stage.pids()
    yield
    rest = EVERYONE - set(act.targets)
    assert (_gone(pids), known(stage.cluster)) == (set(act.targets), (rest, rest))
    yield
    assert known(stage.cluster) == (EVERYONE, EVERYONE)


def added(stage: Stage, act: Act) -> Watch:
    yield
    (new,) = stage.cluster.nodes.keys() - EVERYONE
    home = stage.cluster.nodes[new].dir
    everyone = EVERYONE | {new}
    assert known(stage.cluster) == (everyone, everyone)
    wait_until(lambda: any(stage.logs(new)), "it gets data", TIMEOUT_S)
    yield
    assert (set(stage.cluster.nodes), home.exists()) == (EVERYONE, False)
    assert known(stage.cluster) == (EVERYONE, EVERYONE)


def no_room(stage: Stage, act: Act) -> Watch:
    def is_full(node: int) -> bool:
        return os.statvfs(stage.cluster.nodes[node].dir).f_bavail == 0

    (victim,) = act.targets
    values = [b"%d" % number + bytes(10_000) for number in range(5)]
    send = partial(stage.send_all, victim - 1, values, acks=1, timeout_s=TIMEOUT_S)
    assert len(send()) == len(values)
    assert not any(map(is_full, EVERYONE))
    yield
    assert {node for node in EVERYONE if is_full(node)} == {victim}
    assert len(send()) == len(values)  # they are refused until others lead
    _wait_for_another(stage, victim)
    yield
    assert not any(map(is_full, EVERYONE))


def two_leaders_gone(stage: Stage, act: Act) -> Watch:
    pids, before = stage.pids(), stage.partitions()
    yield
    gone = _gone(pids)
    assert len(gone) == 2
    # The one that is left knows who led after the first, and that is gone, too.
    after = stage.partitions()
    assert any(
        was.leader in gone - {now.leader}
        and now.leader in gone
        and now.leader_epoch > was.leader_epoch
        for was, now in zip(before.values(), after.values(), strict=True)
    )


def unanswered_leader_gone(stage: Stage, act: Act) -> Watch:
    pids = stage.pids()
    yield
    (gone,) = _gone(pids)
    assert stage.load.waiting(gone - 1)
    _wait_for_another(stage, gone)


def late_and_gone(stage: Stage, act: Act) -> Watch:
    pids = stage.pids()
    yield
    now = stage.pids()
    gone = {node for node in EVERYONE if not any(map(is_alive, now[node]))}
    back = {node for node in EVERYONE - gone if not any(map(is_alive, pids[node]))}
    assert (len(gone), len(back)) == (1, 1)
    _wait_for_another(stage, *gone)


def _wait_for_another(stage: Stage, gone: int) -> None:
    """Until all that a node led is led by others."""
    wait_until(
        lambda: not {each.leader for each in stage.partitions().values()} & {gone, -1},
        "others lead",
        TIMEOUT_S,
    )


EFFECTS = {
    "kill": Effect(partial(ended, count=1)),
    "kill-majority": Effect(partial(ended, count=2)),
    "kill-all": Effect(partial(ended, count=3)),
    "kill-coordinator": Effect(partial(ended, count=1)),
    "move-coordinator": Effect(partial(ended, count=1)),
    "stop": Effect(partial(ended, count=1, in_order=True)),
    "rolling-restart": Effect(restarted),
    "pause": Effect(partial(stopped, count=1)),
    "pause-majority": Effect(partial(stopped, count=2)),
    "pause-coordinator": Effect(partial(stopped, count=1)),
    "partition": Effect(partial(cut, links="one")),
    "partition-reset": Effect(partial(cut, links="one")),
    "partition-one-way": Effect(partial(cut, links="one")),
    "partition-majority": Effect(partial(cut, links="one")),
    # Around the controller: with it on one side, the other is fenced before long.
    "partition-bridge": Effect(partial(cut, links="sides"), target="controller"),
    "partition-ring": Effect(partial(cut, links="all")),
    "partition-pair-one-way": Effect(partial(cut, links="sides"), spares_controller=True),
    "partition-pair-reset": Effect(partial(cut, links="sides"), spares_controller=True),
    "slow": Effect(slow, seed=3),
    "lose-tail": Effect(partial(tail_lost, of_each=True), rest=True),
    "reassign": Effect(moved),
    "decommission": Effect(freed),
    "add-broker": Effect(added),
    "clock-forward": Effect(partial(jumped, sign=1), seed=8),
    "clock-back": Effect(partial(jumped, sign=-1), seed=8),
    "clock-drift": Effect(drifts, seed=8),
    "lose-unsynced": Effect(partial(tail_lost, of_each=False), rest=True),
    "bit-flip": Effect(bit_flipped, rest=True),
    "disk-full": Effect(no_room),
    "successors": Effect(two_leaders_gone),
    "unanswered": Effect(unanswered_leader_gone),
    "unheard": Effect(unanswered_leader_gone),
    "late-expansion": Effect(late_and_gone),
}


def main(name: str) -> None:
    with stage([name]) as made:
        happen(made, name)


if __name__ == "__main__":
    main(sys.argv[1])
