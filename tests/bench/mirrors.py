"""`kraftpy pipeline mirror` and MirrorMaker 2 on the same work: `make bench ARGS=mirror`.

Rules (those of `race` hold, too):

* Each mirrors topics of its own, as large as the other's, from one kraftpy node to another.
* Whose turn it is stands still (SIGSTOP) while its topic is filled, so that a turn is of copying
  alone: from when it goes on to when the copy has all.
* Both are as they come, MirrorMaker 2 with a task for each partition, ours with a cycle each second
  (`EVERY_S`). What that costs, the delay of a single record says.
* The CPU time is that of the mirror's processes, of those that have ended, too, not of the brokers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.process import BrokerError
from tests.bench.figures import race_table
from tests.bench.measure import Round, Say
from tests.bench.race import Meter, Row, race
from tests.connect import mirror_maker
from tests.processes import Kraftpy, Process, cpu_seconds_with_ended, descendants, running
from tests.waiting import wait_until

PARTITIONS = 4
WORKS = (("100 B", 100, 1_000_000), ("1 KB", 1000, 300_000))
EVERY_S = 1
SINGLES = 5
TIMEOUT_S = 180.0
PEER = "MirrorMaker 2"
DELAY = "mirror, delay of a single record"
# How long before a record is sent whose delay counts, so that it meets a cycle anywhere.
_PAUSES_S = (0.15, 0.35, 0.55, 0.75, 0.95)


@dataclass
class Side:
    """One of the two, and the prefix of its topics at the source."""

    name: str
    prefix: str
    process: Process

    @property
    def pids(self) -> list[int]:
        return descendants(self.process.popen.pid)

    def log_tail(self) -> str:
        return self.process.log_tail()

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        stopped = self.pids
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


class Bench:
    """The two nodes, and what of the topics has been written."""

    def __init__(self, near: str, far: str) -> None:
        self.near = near
        self.far = far
        self._asking = mirror_maker.asking_of(far)
        self._sent: dict[str, int] = {}
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": near,
                "linger.ms": 5,
                "batch.size": 131_072,
                "queue.buffering.max.messages": 500_000,
                "log_level": 0,
            }
        )

    def close(self) -> None:
        self._asking.close()

    def make_topics(self, *prefixes: str) -> None:
        names = [f"{prefix}-{size}" for prefix in prefixes for _, size, _ in WORKS]
        admin = AdminClient({"bootstrap.servers": self.near, "log_level": 0})
        for made in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in names]).values():
            made.result(TIMEOUT_S)

    def _fill(self, topic: str, count: int, size: int) -> None:
        chunk = [{"value": bytes(size)}] * 1000
        for number in range(count // len(chunk)):
            left = len(chunk)
            while left:
                left -= self._producer.produce_batch(
                    topic, chunk[:left], partition=number % PARTITIONS
                )
                self._producer.poll(0)
        self._flushed(topic, count)

    def _flushed(self, topic: str, count: int) -> None:
        if self._producer.flush(TIMEOUT_S):
            raise BrokerError(f"{topic} couldn't be written")
        self._sent[topic] = self._sent.get(topic, 0) + count

    def _wait_copied(self, topic: str) -> None:
        wanted = self._sent[topic]

        def is_there() -> bool:
            found = mirror_maker.ends(self._asking, f"near.{topic}", PARTITIONS, TIMEOUT_S)
            return sum(found) >= wanted

        wait_until(is_there, f"{topic} is copied", TIMEOUT_S)

    # -- rows

    def copied(self, name: str, size: int, count: int) -> Row:
        """So many records at a time."""
        rate = f"mirror, {name}, {PARTITIONS} partitions"
        cost = f"{rate}, its CPU"

        @contextlib.contextmanager
        def on(side: Side) -> Iterator[Meter]:
            topic = f"{side.prefix}-{size}"

            def meter(seconds: float) -> Round:
                took_s = used_s = 0.0
                done = 0
                while took_s < seconds:
                    with side.still():
                        self._fill(topic, count, size)
                        before_s, began_s = cpu_seconds_with_ended(side.pids), time.perf_counter()
                    self._wait_copied(topic)
                    took_s += time.perf_counter() - began_s
                    used_s += cpu_seconds_with_ended(side.pids) - before_s
                    done += count
                return {rate: done / took_s, cost: used_s / done * 1e6}

            yield meter

        return Row((rate, cost), on)

    def delay(self) -> Row:
        """From a record's being written to its being copied; both sides are warm by then."""

        @contextlib.contextmanager
        def on(side: Side) -> Iterator[Meter]:
            topic = f"{side.prefix}-{WORKS[0][1]}"

            def meter(_: float) -> Round:
                times_ms = []
                for number in range(SINGLES):
                    time.sleep(_PAUSES_S[number % len(_PAUSES_S)])
                    self._producer.produce(topic, b"one", partition=number % PARTITIONS)
                    self._flushed(topic, 1)
                    began_s = time.perf_counter()
                    self._wait_copied(topic)
                    times_ms.append((time.perf_counter() - began_s) * 1000)
                return {DELAY: statistics.median(times_ms)}

            yield meter

        return Row((DELAY,), on, once=True)


@contextlib.contextmanager
def _sides(bench: Bench, folder: Path) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:
        command = Kraftpy.command("pipeline", "mirror", "--pattern", "ours-.*", "--prefix", "near.")
        command += ["-b", bench.near, "--to-bootstrap", bench.far, "--every", str(EVERY_S)]
        command += ["--checkpoint", str(folder / "checkpoint")]
        ours = Process(command, folder / "ours.log")
        stack.callback(ours.stop)
        theirs = mirror_maker.start(
            folder,
            {"near": bench.near, "far": bench.far},
            ["near->far"],
            {"topics": "theirs-.*"},
            tasks=PARTITIONS,
        )
        stack.callback(theirs.stop)
        yield Side("kraftpy", "ours", ours), Side(PEER, "theirs", theirs)


def run(rounds: int, say: Say) -> str:
    """The table of all of it. Raises BrokerError if a row fails."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as root, ExitStack() as stack:
        folders = [Path(root, each) for each in ("near", "far", "mirrors")]
        for folder in folders:
            folder.mkdir()
        nodes = [stack.enter_context(running(Kraftpy(folder))) for folder in folders[:2]]
        bench = Bench(nodes[0].bootstrap, nodes[1].bootstrap)
        stack.callback(bench.close)
        bench.make_topics("ours", "theirs")
        sides = stack.enter_context(_sides(bench, folders[2]))
        rows = [*(bench.copied(*work) for work in WORKS), bench.delay()]
        raced = race(rows, *sides, rounds, say)
    if raced.failures:
        raise BrokerError("\n".join(raced.failures))
    return race_table(raced, PEER)
