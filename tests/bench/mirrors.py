"""`kraftpy pipeline mirror` and MirrorMaker 2 on the same work: `make bench ARGS=mirror`.

Rules:

* Each mirrors topics of its own, as large as the other's, from one kraftpy node to another. Both
  are up and warm all the time, and have turns; who goes first changes from round to round.
* Whose turn it is stands still (SIGSTOP) while its topic is filled, so that a turn is of copying
  alone: from when it goes on to when the copy has all.
* Both are as they come, MirrorMaker 2 with a task for each partition, ours with a cycle each second
  (`EVERY_S`). What that costs, the delay of a single record says.
* The CPU time is that of the mirror's processes, not of the brokers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.process import BrokerError
from tests.bench.figures import layout, spread
from tests.bench.measure import Say
from tests.connect import mirror_maker
from tests.processes import Kraftpy, Process, cpu_seconds, descendants, running

PARTITIONS = 4
WORKS = (("100 B", 100, 1_000_000), ("1 KB", 1000, 300_000))
WARM_UPS = 2
EVERY_S = 1
SINGLES = 10
TIMEOUT_S = 180.0
# How long before a record is sent whose delay counts, so that it meets a cycle anywhere.
_PAUSES_S = (0.15, 0.35, 0.55, 0.75, 0.95)


@dataclass
class Side:
    """One of the two, its topics' prefix at the source, and what it has shown."""

    name: str
    prefix: str
    process: Process
    rates: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)
    delays_ms: list[float] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return descendants(self.process.popen.pid)

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


class Ends:
    """How many records topics have at a broker."""

    def __init__(self, bootstrap: str) -> None:
        configs = {"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0}
        self._asking = confluent_kafka.Consumer({**configs, "allow.auto.create.topics": False})

    def of(self, topic: str) -> int:
        """Of a topic that isn't there none."""
        places = [confluent_kafka.TopicPartition(topic, each) for each in range(PARTITIONS)]
        try:
            return sum(self._asking.get_watermark_offsets(each, TIMEOUT_S)[1] for each in places)
        except confluent_kafka.KafkaException:
            return 0

    def wait(self, topic: str, count: int) -> None:
        """Raises BrokerError."""
        deadline = time.monotonic() + TIMEOUT_S
        while (there := self.of(topic)) < count:
            if time.monotonic() > deadline:
                raise BrokerError(f"{topic} has {there} of {count} after {TIMEOUT_S:.0f} s")
            time.sleep(0.005)

    def close(self) -> None:
        self._asking.close()


class Bench:
    """The two nodes, and what of the topics has been written."""

    def __init__(self, near: str, far: str, say: Say) -> None:
        self.near = near
        self.far = far
        self._say = say
        self._ends = Ends(far)
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
        self._ends.close()

    def make_topics(self, *prefixes: str) -> None:
        names = [f"{prefix}-{size}" for prefix in prefixes for _, size, _ in WORKS]
        admin = AdminClient({"bootstrap.servers": self.near, "log_level": 0})
        for made in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in names]).values():
            made.result(TIMEOUT_S)

    def fill(self, topic: str, count: int, size: int) -> None:
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

    def copy(self, work: tuple[str, int, int], side: Side, _: int) -> None:
        """One turn."""
        name, size, count = work
        topic = f"{side.prefix}-{size}"
        with side.still():
            self.fill(topic, count, size)
            cpu_s, began_s = cpu_seconds(side.pids), time.perf_counter()
        self._ends.wait(f"near.{topic}", self._sent[topic])
        took_s = time.perf_counter() - began_s
        side.rates.setdefault(name, []).append(count / took_s)
        cost_us = (cpu_seconds(side.pids) - cpu_s) / count * 1e6
        side.costs.setdefault(name, []).append(cost_us)
        self._say(f"{side.name}, {name}: {count / took_s:,.0f} records/s, {cost_us:.1f} µs each")

    def delay(self, side: Side, number: int) -> None:
        """From a record's being written to its being copied."""
        topic = f"{side.prefix}-{WORKS[0][1]}"
        time.sleep(_PAUSES_S[number % len(_PAUSES_S)])
        self._producer.produce(topic, b"one", partition=number % PARTITIONS)
        self._flushed(topic, 1)
        began_s = time.perf_counter()
        self._ends.wait(f"near.{topic}", self._sent[topic])
        side.delays_ms.append((time.perf_counter() - began_s) * 1000)


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
        try:
            yield Side("kraftpy", "ours", ours), Side("MirrorMaker 2", "theirs", theirs)
        except BrokerError as error:
            words = f"{ours.log_tail()}\n{theirs.log_tail()}"
            raise BrokerError(f"{error}\ntheir last words:\n{words}") from error


def _in_turn(sides: tuple[Side, Side], rounds: int, work: Callable[[Side, int], None]) -> None:
    for number in range(rounds):
        for side in sides[:: -1 if number % 2 else 1]:
            work(side, number)


def run(rounds: int, say: Say) -> str:
    """The table of all of it."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as root, ExitStack() as stack:
        folders = [Path(root, each) for each in ("near", "far", "mirrors")]
        for folder in folders:
            folder.mkdir()
        nodes = [stack.enter_context(running(Kraftpy(folder))) for folder in folders[:2]]
        bench = Bench(nodes[0].bootstrap, nodes[1].bootstrap, say)
        stack.callback(bench.close)
        bench.make_topics("ours", "theirs")
        sides = stack.enter_context(_sides(bench, folders[2]))
        for work in WORKS:
            name = work[0]
            say(f"{name}: warming up")
            _in_turn(sides, WARM_UPS, partial(bench.copy, work))
            for side in sides:
                side.rates[name].clear()
                side.costs[name].clear()
            _in_turn(sides, rounds, partial(bench.copy, work))
        say("the delay of single records")
        _in_turn(sides, SINGLES, bench.delay)
        return _table(*sides)


def _table(ours: Side, theirs: Side) -> str:
    rows = []
    for name, _, _ in WORKS:
        for what, unit, figures in (
            ("copied", "records/s", (ours.rates[name], theirs.rates[name])),
            ("CPU of the mirror", "µs/record", (ours.costs[name], theirs.costs[name])),
        ):
            rows.append(_row(f"{name}, {PARTITIONS} partitions: {what}", unit, *figures))
    rows.append(_row("a single record's delay", "ms", ours.delays_ms, theirs.delays_ms))
    return layout(["", "kraftpy", "MirrorMaker 2", "unit", "ratio"], rows)


def _row(name: str, unit: str, ours: list[float], theirs: list[float]) -> list[str]:
    ratio = statistics.median(ours) / statistics.median(theirs)
    return [name, spread(ours), spread(theirs), unit, f"{ratio:.2f}x"]
