"""`make bench ARGS=metrics`: what metrics cost, of a scrape and of every request.

* A scrape of one node that leads 10,000 partitions: its time, its size, the longest slice of work
  that a process did for it on its event loop, and what a client notices meanwhile. The slice has to
  be within `SLICE_CLAIM_S` of CPU time; by the clock a busy machine stretches it, and a virtual one
  is charged now and then for what its host took (a loop that only counts shows the same). So it is
  the median of the longest ones of all scrapes that has to: code that works for too long does so in
  each scrape. The longest one of all is told beside it.
* Every request: the same work with and without metrics, by a node whose counting is taken out and
  put back while it runs (`builds.switched`). A virtual machine differs from itself by 20 % over
  seconds: so short turns follow each other in pairs, and what is told is the median of the pairs'
  ratios. By where its memory lies a node differs from another of the same build for as long as it
  lives, and the same code with counting from that without by some percent: so there are many nodes,
  one after the other, and the bounds of that median come from drawing nodes, not pairs. A control,
  pairs of turns that both count, shows what is chance. While `CLAIM` lies between the bounds there
  are more nodes, up to `LIVES_MAX`: else chance would decide. All kinds of work take part in turn,
  since it goes by minutes how much the machine does for others, and so how cold its caches are.
  What a scrape costs the broker is measured by itself and added, as of a scrape each second. CPU
  with that, and time, have to be within `CLAIM`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import random
import resource
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench import builds, figures
from tests.bench.measure import KIB, Say, latencies_ms, partitions_on
from tests.bench.probe import percentile
from tests.bench.replay import Replay, replay_fetch, replay_produce
from tests.endpoints import metrics_address
from tests.processes import Kraftpy, cpu_seconds

CLAIM = 0.03
SLICE_CLAIM_S = 0.001
TOPICS = 100
PARTITIONS = 100
SCRAPES = 20
OPEN_FILES = 30_000
SETTLE_S = 5.0
SCRAPE_EACH_S = 1.0
PAIRS_A_ROUND = 7
LIVES_MIN, LIVES_MAX = 8, 24
DRAWS = 1_000
# Of one turn: about 30 ms of the broker.
PRODUCE_REQUESTS = {1: 1_500, 16: 1_000, 128: 400, 1024: 50}
FETCH_KIB, FETCH_REQUESTS = 128, 300
COMMITS = 200
TIMEOUT_S = 300.0


class _Switched(Kraftpy):
    @classmethod
    def command(cls, *args: str) -> list[str]:
        return builds.command(builds.switched, *args)


class _Sliced(Kraftpy):
    @classmethod
    def command(cls, *args: str) -> list[str]:
        return builds.command(builds.sliced, *args)


def metrics_url(node: Kraftpy) -> str:
    assert node.config is not None
    address = metrics_address(node.config)
    return f"http://{address}/metrics"


def scrape(url: str) -> tuple[float, int]:
    """Seconds and bytes of one, as Prometheus asks for it but for the compression."""
    started_at = time.perf_counter()
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        size = len(answer.read())
    return time.perf_counter() - started_at, size


@contextlib.contextmanager
def scraped_each(url: str, interval_s: float) -> Iterator[None]:
    """Somebody scrapes all the time."""
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(interval_s):
            scrape(url)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(TIMEOUT_S)


# -- a scrape


def scrape_cost(say: Say) -> tuple[str, bool]:
    """The table of a scrape with 10,000 partitions, and whether the claim holds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))  # the node inherits it
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        slices = Path(folder) / "slices"
        slices.mkdir()
        os.environ[builds.SLICES] = str(slices)
        node = _Sliced(Path(folder))
        try:
            node.start()
            say(f"{TOPICS * PARTITIONS:,} partitions")
            admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
            for number in range(TOPICS):
                for future in admin.create_topics(
                    [NewTopic(f"many-{number}", PARTITIONS, 1)], operation_timeout=TIMEOUT_S
                ).values():
                    future.result(TIMEOUT_S)
            time.sleep(SETTLE_S)
            rows = _scrape_rows(node, say)
            processes = builds.slices_s(slices)
        finally:
            node.stop()
    assert all(len(answers) > SCRAPES for answers in processes)
    cpu = [[cpu_s for _, cpu_s in answers] for answers in processes]
    longest_cpu_s = max(median(each) for each in cpu)
    holds = longest_cpu_s <= SLICE_CLAIM_S
    for name, seconds, unit in (
        ("CPU time", longest_cpu_s, "ms" if holds else "ms: TOO LONG"),
        ("CPU time, of all scrapes", max(map(max, cpu)), "ms"),
        (
            "by the clock, of all scrapes",
            max(clock for answers in processes for clock, _ in answers),
            "ms",
        ),
    ):
        rows.append([f"longest slice on a loop, {name}", figures.number(seconds * 1000), unit])
    return figures.layout(["a scrape of 10,000 partitions", "", ""], rows), holds


def _scrape_rows(node: Kraftpy, say: Say) -> list[list[str]]:
    url = metrics_url(node)
    scrape(url)  # the first one imports what it needs
    say(f"{SCRAPES} scrapes")
    cpu = cpu_seconds([node.pid])
    seen = [scrape(url) for _ in range(SCRAPES)]
    broker_cpu = (cpu_seconds([node.pid]) - cpu) / SCRAPES
    took_s = [seconds for seconds, _ in seen]
    rows = [
        ["time, median", figures.number(median(took_s)), "s"],
        ["time, longest", figures.number(max(took_s)), "s"],
        ["size, not compressed", figures.number(seen[-1][1] / 1e6), "MB"],
        ["CPU of the broker", figures.number(broker_cpu * 1000), "ms"],
    ]
    say("latency, without and with scrapes all the time")
    for label, scraping in (
        ("not scraped", contextlib.nullcontext()),
        ("scraped all the time", scraped_each(url, 0.01)),
    ):
        with partitions_on(node, 1) as topic, scraping:
            measured = latencies_ms(node.bootstrap, topic, "1")
        for share in (50, 99):
            value = figures.number(percentile(measured, share))
            rows.append([f"latency at 200 msg/s, p{share}, {label}", value, "ms"])
    return rows


# -- every request


class Cost(NamedTuple):
    """Of one piece of work, for each request: CPU of the broker, and the time that it took."""

    cpu_s: float
    seconds: float


CPU, TIME = operator.attrgetter("cpu_s"), operator.attrgetter("seconds")
Turn = Callable[[], Cost]


class _Side:
    """A node and what is asked of it. The CPU is that of the broker's process alone."""

    def __init__(self, node: Kraftpy) -> None:
        self.node = node
        self.bootstrap = node.bootstrap

    def pids(self) -> list[int]:
        return [self.node.pid]

    @contextlib.contextmanager
    def produces(self, kib: int) -> Iterator[Turn]:
        with partitions_on(self.node, 1) as topic:
            yield lambda: _cost(replay_produce(self, topic, kib * KIB, PRODUCE_REQUESTS[kib]))

    @contextlib.contextmanager
    def fetches(self) -> Iterator[Turn]:
        size, requests = FETCH_KIB * KIB, FETCH_REQUESTS
        with partitions_on(self.node, 1) as topic:
            replay_produce(self, topic, size, requests)
            yield lambda: _cost(replay_fetch(self, topic, size, requests, size))

    @contextlib.contextmanager
    def commits(self) -> Iterator[Turn]:
        """A group that commits one offset at a time."""
        with partitions_on(self.node, 1) as topic:
            consumer = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": f"bench-{uuid.uuid4().hex[:8]}",
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )

            def turn() -> Cost:
                cpu, started_at = cpu_seconds(self.pids()), time.perf_counter()
                for offset in range(COMMITS):
                    at = TopicPartition(topic, 0, offset)
                    consumer.commit(offsets=[at], asynchronous=False)
                seconds = time.perf_counter() - started_at
                return Cost((cpu_seconds(self.pids()) - cpu) / COMMITS, seconds / COMMITS)

            try:
                yield turn
            finally:
                consumer.close()


def _cost(run: Replay) -> Cost:
    return Cost(run.broker_cpu_seconds / run.requests, run.seconds / run.requests)


Work = Callable[[_Side], contextlib.AbstractContextManager[Turn]]

WORKS: dict[str, Work] = {
    **{
        f"produce, {kib} KiB": functools.partial(_Side.produces, kib=kib)
        for kib in PRODUCE_REQUESTS
    },
    f"fetch, {FETCH_KIB} KiB": _Side.fetches,
    "offset commits": _Side.commits,
}


def overhead(rounds: int, say: Say) -> tuple[str, bool]:
    """The table with and without metrics, and whether the claim holds."""
    rows, holds = [], True
    with _switched_node() as (node, _):
        more_s = _scrape_cpu_s(node) / SCRAPE_EACH_S
    for name, taken in _take_turns(rounds * PAIRS_A_ROUND, say).items():
        cpu, seconds = taken.more_cpu(), taken.more_time()
        fits = max(cpu.share + more_s, seconds.share) <= CLAIM
        holds &= fits
        rows.append(
            [
                name,
                figures.number(taken.bare_cpu_s() * 1e6),
                str(cpu),
                str(seconds),
                str(taken.control_cpu()),
                "" if fits else "MORE THAN 3 %",
            ]
        )
    header = ["with metrics, over without", "CPU, us", "CPU", "time", "control: CPU"]
    table = figures.layout([*header, ""], rows)
    return f"{table}\n\nto be added to CPU: {more_s * 100:.2f} % by scrapes", holds


@contextlib.contextmanager
def _switched_node() -> Iterator[tuple[Kraftpy, Path]]:
    """A node that counts until it is switched, and the file with its state."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        state = Path(folder) / "state"
        os.environ[builds.SWITCH] = str(state)
        node = _Switched(Path(folder))
        try:
            node.start()
            yield node, state
        finally:
            node.stop()


Pairs = list[tuple[Cost, Cost]]


class Life(NamedTuple):
    """Turns of one node in pairs: (with, without) metrics, and (with, with)."""

    compared: Pairs
    control: Pairs


class Taken(NamedTuple):
    """The turns of one node after the other."""

    lives: list[Life]

    def more_cpu(self) -> Share:
        return _share([life.compared for life in self.lives], CPU)

    def more_time(self) -> Share:
        return _share([life.compared for life in self.lives], TIME)

    def control_cpu(self) -> Share:
        return _share([life.control for life in self.lives], CPU)

    def bare_cpu_s(self) -> float:
        return median(bare.cpu_s for life in self.lives for _, bare in life.compared)

    def decides(self) -> bool:
        """Whether there have been enough of them that it isn't chance that decides."""
        return len(self.lives) >= LIVES_MIN and not any(
            one.low <= CLAIM < one.high for one in (self.more_cpu(), self.more_time())
        )


def _take_turns(pairs: int, say: Say) -> dict[str, Taken]:
    """Of each kind of work, this many pairs of each node."""
    taken = {name: Taken([]) for name in WORKS}
    for number in range(LIVES_MAX):
        undecided = [name for name in taken if not taken[name].decides()]
        if not undecided:
            break
        say(f"pairs of turns, node {number + 1} of each of {', '.join(undecided)}")
        for name in undecided:
            taken[name].lives.append(_live(WORKS[name], pairs))
    return taken


def _live(work: Work, pairs: int) -> Life:
    """Pairs of turns one after the other; who goes first in a pair changes with each pair."""
    life = Life([], [])
    with _switched_node() as (node, state), work(_Side(node)) as turn:

        def counted(counting: bool) -> Cost:
            builds.switch(node.pid, state, counting=counting)
            return turn()

        counted(True), counted(False)
        for number in range(pairs):
            for pair, other in ((life.compared, False), (life.control, True)):
                order = (True, other) if number % 2 == 0 else (other, True)
                first, second = counted(order[0]), counted(order[1])
                pair.append((first, second) if number % 2 == 0 else (second, first))
    return life


def _scrape_cpu_s(stock: Kraftpy) -> float:
    """CPU time of the broker for one scrape, of a node that does nothing else."""
    url = metrics_url(stock)
    scrape(url)
    idle, cpu = time.perf_counter(), cpu_seconds([stock.pid])
    time.sleep(1.0)
    idle_share = (cpu_seconds([stock.pid]) - cpu) / (time.perf_counter() - idle)
    started_at, cpu = time.perf_counter(), cpu_seconds([stock.pid])
    for _ in range(SCRAPES):
        scrape(url)
    took_s = time.perf_counter() - started_at
    return max(0.0, cpu_seconds([stock.pid]) - cpu - idle_share * took_s) / SCRAPES


class Share(NamedTuple):
    """What more something costs, and between which bounds that lies 95 times out of 100."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share * 100:+.1f} % [{self.low * 100:+.1f} to {self.high * 100:+.1f}]"


def _share(lives: list[Pairs], of: Callable[[Cost], float]) -> Share:
    """The median of the pairs' ratios, less one; the bounds by drawing lives again (bootstrap)."""
    more = [[of(ours) / of(theirs) - 1 for ours, theirs in pairs] for pairs in lives]
    chance = random.Random(1)
    drawn = sorted(
        median(itertools.chain.from_iterable(chance.choices(more, k=len(more))))
        for _ in range(DRAWS)
    )
    share = median(itertools.chain.from_iterable(more))
    return Share(share, drawn[DRAWS * 25 // 1000], drawn[DRAWS * 975 // 1000])


def run(rounds: int, say: Say) -> tuple[str, bool]:
    """Both tables, and whether both claims hold."""
    cost, is_short = scrape_cost(say)
    table, is_cheap = overhead(rounds, say)
    verdicts = [
        f"longest slice: {'within' if is_short else 'NOT within'} {SLICE_CLAIM_S * 1000:g} ms",
        f"overhead: {'within' if is_cheap else 'NOT within'} {CLAIM * 100:g} %",
    ]
    return "\n\n".join([cost, table, *verdicts]), is_short and is_cheap
