"""`make bench ARGS=partitions`: 10,000 partitions on three nodes, and a broker that dies.

100 topics x 100 partitions with three replicas; first idle, then with a record in each. A producer
with acks=all on another topic says what others notice meanwhile.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.process import BrokerError
from tests.bench import figures
from tests.bench.probe import Probe, Watch
from tests.processes import memory_bytes
from tests.quorums import Partitions, Quorum

TOPICS = 100
PARTITIONS = 100
OPEN_FILES = 20_000
TIMEOUT_S = 300.0
SETTLE_S = 5.0
POLL_S = 0.2  # an answer names 10,000 partitions: asking all the time would be the load
PROBE_TOPIC = "probe"


class Run:
    """Measures and tells; `rows` are what, value, unit and what the probe saw."""

    def __init__(self, quorum: Quorum, say: Callable[[str], None]) -> None:
        self.quorum = quorum
        self.say = say
        self.rows: list[list[str]] = []

    def play(self) -> None:
        create(self.quorum, [NewTopic(PROBE_TOPIC, 1, 3)])
        self.quorum.wait_in_sync()
        self.probe, self.watch = Probe(self.quorum, PROBE_TOPIC), Watch(self.quorum)
        try:
            self._phase("created", self._create)
            self._phase("all in sync at every broker", self._in_sync)
            self._sizes("idle")
            self._kill_and_restart("idle")
            self._phase("a record in each partition, acks=all", self._fill)
            self._sizes("written")
            self._kill_and_restart("written")
            self._sizes("after it all")
            missing_s, elections = self.watch.missing_s, self.watch.term() - self.watch.first_term
        finally:
            self.probe.stop()
            self.watch.stop()
        self.rows.append(["a running broker was fenced", f"{missing_s:.1f}", "s"])
        self.rows.append(["elections of a controller (kills of one aside)", f"{elections}", ""])

    def _phase(self, what: str, work: Callable[[], None]) -> None:
        self.say(what)
        self.probe.take()
        started_at = time.monotonic()
        work()
        seconds = time.monotonic() - started_at
        self.rows.append([what, f"{seconds:.2f}", "s", *map(figures.number, self.probe.take())])

    def _sizes(self, what: str) -> None:
        time.sleep(SETTLE_S)
        for node in self.quorum.running:
            pids = self.quorum.pids(node)
            files = max(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
            memory = f"{memory_bytes(pids) / 2**20:.0f}"
            self.rows.append([f"memory of node {node}, {what}", memory, "MiB"])
            self.rows.append([f"open files of node {node}, {what}", f"{files:,}", ""])

    def _create(self) -> None:
        create(self.quorum, [NewTopic(f"many-{i}", PARTITIONS, 3) for i in range(TOPICS)])

    def _in_sync(self) -> None:
        wait(
            self.quorum,
            lambda found: (
                len(found) > TOPICS * PARTITIONS and all(each.in_sync for each in found.values())
            ),
            "in sync",
        )

    def _kill_and_restart(self, what: str) -> None:
        """A node that leads neither the probe's partition nor the metadata quorum."""
        quorum = self.quorum
        spared = {quorum.leader_of(PROBE_TOPIC), quorum.controller()}
        victim = next(node for node in quorum.running if node not in spared)
        self.watch.pause()
        quorum.kill(victim)
        self._phase(f"leaders moved after kill -9, {what}", lambda: self._moved(victim))
        self._phase(f"restarted and all in sync, {what}", lambda: self._back(victim))
        self.watch.resume()

    def _moved(self, victim: int) -> None:
        wait(
            self.quorum,
            lambda found: all(each.leader not in (victim, -1) for each in found.values()),
            "led by others",
        )

    def _back(self, victim: int) -> None:
        self.quorum.restart(victim)
        self._in_sync()

    def _fill(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.quorum.bootstrap, "acks": "all", "log_level": 0}
        )
        failed: list[object] = []
        for topic in range(TOPICS):
            for partition in range(PARTITIONS):
                producer.produce(
                    f"many-{topic}",
                    bytes(100),
                    partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
            producer.poll(0)
        if producer.flush(TIMEOUT_S) or failed:
            raise BrokerError(f"{len(failed)} records failed, the first with {failed[:1]}")


def create(quorum: Quorum, topics: list[NewTopic]) -> None:
    """One CreateTopics request; on return it was answered."""
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap, "log_level": 0})
    answers = admin.create_topics(topics, operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
    for future in answers.values():
        future.result(TIMEOUT_S)


def wait(quorum: Quorum, condition: Callable[[Partitions], bool], what: str) -> None:
    """Until it holds at every running node."""
    deadline = time.monotonic() + TIMEOUT_S
    for node in quorum.running:
        while (view := quorum.view(node)) is None or not condition(view.partitions):
            if time.monotonic() > deadline:
                raise BrokerError(f"not {what} in {TIMEOUT_S:g} s\n{quorum.log_tail()}")
            time.sleep(POLL_S)


def run(make: Callable[[Path], Quorum], say: Callable[[str], None]) -> str:
    """Plays it on `make`'s nodes; returns the table."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))  # nodes inherit it
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        quorum = make(Path(folder))
        try:
            quorum.start()
            measured = Run(quorum, say)
            measured.play()
        finally:
            quorum.stop()
    rows = [[*row, *[""] * (6 - len(row))] for row in measured.rows]
    head = [f"{quorum.name}: {TOPICS} topics x {PARTITIONS} partitions, RF 3", "", ""]
    return figures.layout([*head, "probe p50 ms", "p99", "max"], rows)
