"""A coordinator that the broker doesn't know, on three nodes: what it answered stays.

Its partitions are moved, their leaders killed, and all nodes at once: an addition that was answered
counts, one that wasn't may. Each counter's mirror, told by messages between brokers, gets there.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.testing import Cluster
from tests.counters.client import ask_coordinator
from tests.counters.coordinator import COUNTS_TOPIC, PARTITIONS
from tests.counters.machine import MIRROR
from tests.waiting import wait_until

from .takeovers import kill_all, kill_leader, move, stop_leader

KEYS = [
    next(f"k{n}" for n in range(99) if partition_for(f"k{n}", PARTITIONS) == p)
    for p in range(PARTITIONS)
]


class Adder(threading.Thread):
    """Adds 1 to a counter again and again; keeps what it was answered, and how often it asked."""

    def __init__(self, ask: Callable[..., int | None], key: str, stopped: threading.Event) -> None:
        super().__init__()
        self.key = key
        self.attempts = 0
        self.answers: list[int] = []
        self._ask = ask
        self._stopped = stopped

    def run(self) -> None:
        while not self._stopped.is_set():
            self.attempts += 1
            value = self._ask("add", self.key, amount=1)
            if value is None:
                self._stopped.wait(0.05)
            else:
                self.answers.append(value)


class Counting:
    """A cluster with counters, and clients that count."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self._name = name

    def ask(self, operation: str, key: str, **rest: int) -> int | None:
        """The value, None for any error."""
        nodes = [node.id for node in self.cluster.nodes.values() if node.running]
        answer = ask_coordinator(self._name, nodes, operation=operation, key=key, **rest)
        return None if answer is None or answer["error"] != "NONE" else answer["value"]

    def value(self, key: str) -> int:
        values: list[int] = []

        def is_known() -> bool:
            value = self.ask("get", key)
            values.extend([] if value is None else [value])
            return value is not None

        wait_until(is_known, f"{key} is coordinated")
        return values[-1]

    @contextmanager
    def adding(self) -> Iterator[list[Adder]]:
        """Adds to a counter of each partition meanwhile, then looks at all that was answered."""
        before = {key: self.value(key) for key in KEYS}
        stopped = threading.Event()
        adders = [Adder(self.ask, key, stopped) for key in KEYS]
        for adder in adders:
            adder.start()
        try:
            self.wait_progress(adders)
            yield adders
            self.wait_progress(adders)
        finally:
            stopped.set()
            for adder in adders:
                adder.join()
        for adder in adders:
            value = self.value(adder.key)
            assert adder.answers == sorted(set(adder.answers)), "no value is given twice"
            assert adder.answers[-1] <= value <= before[adder.key] + adder.attempts
            wait_until(
                lambda adder=adder: self.value(MIRROR + adder.key) == self.value(adder.key),
                f"the mirror of {adder.key} has its value",
            )

    def wait_progress(self, adders: list[Adder]) -> None:
        counts = [len(adder.answers) for adder in adders]
        wait_until(
            lambda: all(
                len(adder.answers) > count + 5 for adder, count in zip(adders, counts, strict=True)
            ),
            "every counter goes on",
        )


@pytest.fixture(scope="module")
def counting() -> Iterator[Counting]:
    name = uuid.uuid4().hex

    class WithCounters(Cluster):
        program = (sys.executable, "-m", "tests.counters", name)

    with WithCounters(3) as cluster:
        yield Counting(cluster, name)


def test_who_coordinates_is_killed(counting: Counting) -> None:
    with counting.adding() as adders:
        kill_leader(counting.cluster, COUNTS_TOPIC, lambda: counting.wait_progress(adders))


def test_a_partition_moves(counting: Counting) -> None:
    with counting.adding() as adders:
        move(counting.cluster, COUNTS_TOPIC, lambda: counting.wait_progress(adders))


def test_a_node_stops_in_order(counting: Counting) -> None:
    with counting.adding() as adders:
        stop_leader(counting.cluster, COUNTS_TOPIC, 1, lambda: counting.wait_progress(adders))


def test_all_nodes_are_killed_and_everything_is_read_again(counting: Counting) -> None:
    with counting.adding():
        kill_all(counting.cluster)
