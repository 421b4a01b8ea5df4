"""`make bench ARGS=metrics`: what metrics cost, of a scrape and of every request.

* A scrape of one node that leads 10,000 partitions: its time, its size, the longest slice of work
  that a process did for it on its event loop, and what a client notices meanwhile.
* Every request: the same work with and without metrics, turn by turn, on two nodes that stand side
  by side. "Without" is a build that counts nothing (`builds.uncounted`) and serves nothing; "with"
  is the stock one, scraped each second. Each round does the work four times, without, with, with,
  without, or the other way round, and gives one ratio of the broker's CPU and one of time; the
  medians of the ratios have to be within `CLAIM`. That takes a quiet machine.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
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

from kraftpy.core.config import parse_properties
from tests.bench import builds, figures
from tests.bench.measure import KIB, Say, latencies_ms, partitions_on, touch_memory
from tests.bench.probe import percentile
from tests.bench.replay import Replay, replay_fetch, replay_produce
from tests.processes import Kraftpy, cpu_seconds

CLAIM = 0.03
TOPICS = 100
PARTITIONS = 100
SCRAPES = 20
OPEN_FILES = 30_000
SETTLE_S = 5.0
PRODUCE_REQUESTS = {1: 15_000, 16: 8_000, 128: 2_000, 1024: 300}
FETCH_KIB = 128
COMMITS = 1_000
TIMEOUT_S = 300.0


class _Build(Kraftpy):
    """A kraftpy of `builds`."""

    build = ""

    @classmethod
    def command(cls, *args: str) -> list[str]:
        return [sys.executable, "-m", builds.__name__, cls.build, *args]


class _Uncounted(_Build):
    build = "uncounted"


class _Sliced(_Build):
    build = "sliced"


def metrics_url(node: Kraftpy) -> str:
    assert node.config is not None
    address = parse_properties(node.config.read_text())["kraftpy.metrics.listener"]
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


def scrape_cost(say: Say) -> str:
    """The table of a scrape with 10,000 partitions."""
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
            rows = _scrape_rows(node, slices, say)
        finally:
            node.stop()
    return figures.layout(["a scrape of 10,000 partitions", "", ""], rows)


def _scrape_rows(node: Kraftpy, slices: Path, say: Say) -> list[list[str]]:
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
    longest_s, longest_cpu_s = builds.longest_slice_s(slices)
    rows.append(["longest slice on a loop", figures.number(longest_s * 1000), "ms"])
    rows.append(["longest slice on a loop, CPU time", figures.number(longest_cpu_s * 1000), "ms"])
    return rows


# -- every request


class Cost(NamedTuple):
    """Of one piece of work: CPU of the broker, and the time that it took."""

    cpu_s: float
    seconds: float


Work = Callable[[Kraftpy], Cost]


def _produce(kib: int) -> Work:
    def work(node: Kraftpy) -> Cost:
        with partitions_on(node, 1) as topic:
            touch_memory(node.log_dir)
            return _cost(replay_produce(_Broker(node), topic, kib * KIB, PRODUCE_REQUESTS[kib]))

    return work


def _fetch(node: Kraftpy) -> Cost:
    with partitions_on(node, 1) as topic:
        touch_memory(node.log_dir)
        target, requests = _Broker(node), PRODUCE_REQUESTS[FETCH_KIB]
        replay_produce(target, topic, FETCH_KIB * KIB, requests)
        return _cost(replay_fetch(target, topic, FETCH_KIB * KIB, requests, FETCH_KIB * KIB))


def _commit(node: Kraftpy) -> Cost:
    """A group that commits one offset at a time."""
    with partitions_on(node, 1) as topic:
        consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap,
                "group.id": f"bench-{uuid.uuid4().hex[:8]}",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            for offset in range(COMMITS // 10):
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            cpu, started_at = cpu_seconds([node.pid]), time.perf_counter()
            for offset in range(COMMITS):
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            return Cost(cpu_seconds([node.pid]) - cpu, time.perf_counter() - started_at)
        finally:
            consumer.close()


class _Broker:
    """What the replays need of a node: its CPU is that of the broker's process alone."""

    def __init__(self, node: Kraftpy) -> None:
        self.bootstrap = node.bootstrap
        self._pid = node.pid

    def pids(self) -> list[int]:
        return [self._pid]


def _cost(run: Replay) -> Cost:
    return Cost(run.broker_cpu_seconds, run.seconds)


WORKS: dict[str, Work] = {
    **{f"produce, {kib} KiB": _produce(kib) for kib in PRODUCE_REQUESTS},
    f"fetch, {FETCH_KIB} KiB": _fetch,
    "offset commits": _commit,
}


def overhead(rounds: int, say: Say) -> tuple[str, bool]:
    """The table with and without metrics, and whether the claim holds."""
    ratios: dict[str, list[Cost]] = {name: [] for name in WORKS}
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        root = Path(folder)
        without = _Uncounted(root / "without", kraftpy_metrics_listener="")
        stock = Kraftpy(root / "with")
        try:
            for node in (without, stock):
                node.folder.mkdir()
                node.start()
            with scraped_each(metrics_url(stock), 1.0):
                for number in range(1, rounds + 1):
                    say(f"round {number} of {rounds}")
                    for name, work in WORKS.items():
                        ratios[name].append(_compare(work, without, stock, first=number % 2))
        finally:
            without.stop()
            stock.stop()
    rows, holds = [], True
    for name, measured in ratios.items():
        cpu = [each.cpu_s - 1 for each in measured]
        seconds = [each.seconds - 1 for each in measured]
        fits = max(median(cpu), median(seconds)) <= CLAIM
        holds &= fits
        rows.append([name, _percent(cpu), _percent(seconds), "" if fits else "MORE THAN 3 %"])
    header = ["with metrics, over without", "broker CPU", "time", ""]
    return figures.layout(header, rows), holds


def _compare(work: Work, without: Kraftpy, stock: Kraftpy, first: int) -> Cost:
    """The ratios of one round; who goes first, and last, changes from round to round."""
    outer, inner = (without, stock) if first else (stock, without)
    runs = [(node, work(node)) for node in (outer, inner, inner, outer)]

    def total(node: Kraftpy) -> Cost:
        costs = [cost for each, cost in runs if each is node]
        return Cost(sum(cost.cpu_s for cost in costs), sum(cost.seconds for cost in costs))

    counted, bare = total(stock), total(without)
    return Cost(counted.cpu_s / bare.cpu_s, counted.seconds / bare.seconds)


def _percent(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{median(values) * 100:+.1f} % [{low * 100:+.1f} to {high * 100:+.1f}]"


def run(rounds: int, say: Say) -> tuple[str, bool]:
    """Both tables, and whether the claim holds."""
    cost = scrape_cost(say)
    table, holds = overhead(rounds, say)
    verdict = "within 3 %" if holds else "NOT within 3 %"
    return f"{cost}\n\n{table}\n\noverhead (median of {rounds} rounds): {verdict}", holds
