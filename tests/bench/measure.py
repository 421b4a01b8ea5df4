"""One round of every measurement, on whichever broker it is given."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.load import consume, produce
from tests.bench.probe import percentile
from tests.bench.replay import replay_fetch, replay_produce
from tests.processes import Broker, answers_metadata, memory_bytes

Round = dict[str, float]
Say = Callable[[str], None]

KIB = 1024
# Batch size in KiB -> requests: enough to measure, little enough for touched memory to last.
REPLAYS = {1: 40_000, 16: 15_000, 128: 2_500, 1024: 300}
# Name of the batch in the table -> batch.size
BATCHES = {"16 KB": 16_384, "131 KB": 131_072, "1 MB": 1_000_000}
IDLE_S = 2.0
LARGE_MESSAGES = 300_000
SMALL_MESSAGES = 3_000_000
CONSUME_TIMES = 3
LATENCY_MESSAGES = 1000
LATENCY_INTERVAL_S = 1 / 200
TOUCH_BYTES = 768 << 20
TOUCH_BLOCK_BYTES = 1_000_003  # odd like a broker's appends, so that pages of all sizes are used


def touch_memory(folder: Path) -> None:
    """Write a file somewhat larger than what comes next, and remove it.

    A virtual machine gets memory from its host page by page when it first touches them, and gives
    back what was free for two seconds; on such pages a write costs up to ten times as much. That is
    the host's cost, not a broker's. So this has to be quick, and just before the measurement.
    """
    file, block = folder / "touch-memory", bytes(TOUCH_BLOCK_BYTES)
    with file.open("wb", buffering=0) as touched:
        for _ in range(TOUCH_BYTES // TOUCH_BLOCK_BYTES):
            touched.write(block)
    file.unlink()


@contextlib.contextmanager
def partitions_on(broker: Broker, partitions: int) -> Iterator[str]:
    """A topic with defaults, deleted afterwards to keep the disk small."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, config={"file.delete.delay.ms": "0"})])[
        name
    ].result(30)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(30)


@contextlib.contextmanager
def topic_on(broker: Broker) -> Iterator[str]:
    """One of one partition, for as much as the disk takes."""
    with partitions_on(broker, 1) as name:
        touch_memory(broker.log_dir)
        yield name


def idle_memory_mib(broker: Broker) -> float:
    """Proportional set size of all processes of a node that has done nothing for a while."""
    time.sleep(IDLE_S)
    assert answers_metadata(broker.bootstrap)
    return memory_bytes(broker.pids()) / 2**20


def replays(broker: Broker, say: Say) -> Round:
    """Broker CPU per produce request, and the rates of raw producers and readers."""
    results: Round = {}
    for kib, requests in REPLAYS.items():
        say(f"replayed produce, {kib} KiB")
        with topic_on(broker) as topic:
            run = replay_produce(broker, topic, kib * KIB, requests)
            results[f"broker CPU per request, {kib} KiB batch"] = (
                run.broker_cpu_seconds / requests * 1e6
            )
            results[f"replayed produce, {kib} KiB batch"] = run.bytes / run.seconds / 1e6
            if kib == 128:
                say("fetch")
                fetch = replay_fetch(broker, topic, kib * KIB, requests, 1024 * KIB)
                results["fetch 1 MiB, raw reader"] = fetch.bytes / fetch.seconds / 1e9
                per_core = fetch.bytes / fetch.broker_cpu_seconds / 1e9
                results["fetch 1 MiB, per broker core"] = per_core
    return results


def _consume_again(broker: Broker, topic: str, messages: int) -> float:
    """MB/s of reading the topic several times over: once is too short to be measured."""
    runs = [consume(broker.bootstrap, topic, messages) for _ in range(CONSUME_TIMES)]
    return sum(run.bytes for run in runs) / sum(run.seconds for run in runs) / 1e6


def librdkafka(broker: Broker, say: Say) -> Round:
    """What librdkafka puts in and takes out: 1 KB and 100 B messages, one partition, acks=1."""
    results: Round = {}
    with topic_on(broker) as topic:
        for label, size in BATCHES.items():
            say(f"produce 1 KB, batch {label}")
            touch_memory(broker.log_dir)
            run = produce(broker.bootstrap, topic, LARGE_MESSAGES, 1000, size)
            results[f"produce 1 KB, batch {label}"] = run.megabytes_per_second
        say("consume 1 KB")
        total = LARGE_MESSAGES * len(BATCHES)
        results["consume 1 KB"] = _consume_again(broker, topic, total)
    with topic_on(broker) as topic:
        say("produce and consume 100 B")
        run = produce(broker.bootstrap, topic, SMALL_MESSAGES, 100, 131_072)
        results["produce 100 B, batch 131 KB"] = run.megabytes_per_second
        results["consume 100 B"] = _consume_again(broker, topic, SMALL_MESSAGES)
    return results


def latency(broker: Broker, say: Say) -> Round:
    """One message every 5 ms, linger 0, acks=1."""
    say("latency")
    with topic_on(broker) as topic:
        measured = latencies_ms(broker.bootstrap, topic, "1")
    return {
        "latency at 200 msg/s, p50": percentile(measured, 50),
        "latency at 200 msg/s, p99": percentile(measured, 99),
    }


def latencies_ms(
    bootstrap: str,
    topic: str,
    acks: str,
    messages: int = LATENCY_MESSAGES,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> list[float]:
    """From produce() to the delivery callback, one message at a time, one every 5 ms."""
    times: list[float] = []
    started = 0.0

    def on_delivery(error: Any, _: Any) -> None:
        if error:
            raise RuntimeError(str(error))
        times.append((time.perf_counter() - started) * 1000)

    producer = Producer({**settings, "bootstrap.servers": bootstrap, "linger.ms": 0, "acks": acks})
    due = time.perf_counter()
    for _ in range(messages + 100):
        time.sleep(max(0.0, due - time.perf_counter()))
        due += LATENCY_INTERVAL_S
        delivered, started = len(times), time.perf_counter()
        producer.produce(topic, bytes(1000), partition=0, on_delivery=on_delivery)
        while len(times) == delivered:
            producer.poll(1)
    return times[100:]  # the first ones connect and ask for metadata
