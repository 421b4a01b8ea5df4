"""How each kind of fault shows from outside, when it happens to a cluster under load (`stage`).

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
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from kraftpy.testing import Cluster, clocks
from kraftpy.testing.consistency.faults import FAULTS, Act, Ground, LeftOut
from kraftpy.testing.process import is_alive, is_stopped
from tests.waiting import wait_until

from .stage import HEALTHY_S, ORDERS, TIMEOUT_S, TOPIC, Stage, stage
from .test_membership import known

EVERYONE = {1, 2, 3}
NOT_HEARD_S = 0.3  # what isn't cut arrives within milliseconds
WRONG_S = 0.3  # so much a clock has to be wrong, at the least


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
    if isinstance(_once(stage, name), LeftOut):  # as a busy machine was too slow for it
        left_out = _once(stage, name)
        assert not isinstance(left_out, LeftOut), left_out
    before = len(stage.load.acknowledged)
    stage.put_in_order()
    wait_until(
        lambda: len(stage.load.acknowledged) > before + len(ORDERS),
        "what is sent is acknowledged again",
        TIMEOUT_S,
    )
    assert stage.lost() == set()


def _once(stage: Stage, name: str) -> str:
    """What the fault says; it is watched if it wasn't left out."""
    effect, cluster = EFFECTS[name], stage.cluster
    stage.put_in_order()
    act = _plan(cluster, name, effect)
    if effect.rest:
        stage.load.rest()
    watch = effect.watch(stage, act)
    next(watch)
    try:
        said = act.begin()
        stage.load.go_on()
        if not isinstance(said, LeftOut):
            next(watch, None)
    finally:
        stage.load.go_on()
        act.end()
    cluster.wait_healthy(HEALTHY_S)
    if not isinstance(said, LeftOut):
        next(watch, None)
    return said


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
