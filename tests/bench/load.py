"""Load through librdkafka: a C program where there is a C compiler, else confluent-kafka's batches.

The C program (load.c) is linked against the librdkafka inside the confluent-kafka wheel, so that
both ways run the same library. Python's own cost per message would otherwise be what is measured.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition

SOURCE = Path(__file__).with_name("load.c")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
LINGER_MS = 5


class Load(NamedTuple):
    messages: int
    bytes: int
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e6


def library() -> Path | None:
    """The librdkafka that the wheel of confluent-kafka brings along; None if it was built here."""
    wheel = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    return next(iter(sorted(wheel.glob("librdkafka-*.so*"))), None)


@functools.cache
def program() -> Path | None:
    """The compiled load generator; None on a machine without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    found = library()
    if compiler is None or found is None:
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    binary = CACHE / "load"
    command = [compiler, "-O2", "-Wall", "-Wextra", str(SOURCE), str(found)]
    subprocess.run([*command, f"-Wl,-rpath,{found.parent}", "-o", str(binary)], check=True)
    return binary


def client_name() -> str:
    how = "load.c" if program() else "Python, for want of a C compiler: the client is the limit"
    return f"librdkafka {confluent_kafka.libversion()[0]} ({how})"


def produce(
    bootstrap: str,
    topic: str,
    count: int,
    size: int,
    batch_bytes: int,
    acks: str = "1",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Load:
    """Send `count` messages of `size` bytes to partition 0, as fast as they go."""
    if program():
        words = _words(settings)
        return _run("produce", bootstrap, topic, count, size, batch_bytes, acks, *words)
    configs: dict[str, Any] = {
        **settings,
        "bootstrap.servers": bootstrap,
        "linger.ms": LINGER_MS,
        "batch.size": batch_bytes,
        "batch.num.messages": 1_000_000,
        "message.max.bytes": 2_000_000,
        "acks": acks,
        "queue.buffering.max.messages": 500_000,
    }
    producer, chunk = Producer(configs), [{"value": bytes(size)}] * 1000
    producer.produce(topic, bytes(size), partition=0)
    producer.flush()
    start, left = time.perf_counter(), count - 1
    while left:
        left -= producer.produce_batch(topic, chunk[: min(left, 1000)], partition=0)
        producer.poll(0)
    producer.flush()
    return Load(count - 1, (count - 1) * size, time.perf_counter() - start)


def consume(
    bootstrap: str, topic: str, count: int, settings: Mapping[str, str] = MappingProxyType({})
) -> Load:
    """Read the first `count` messages of partition 0, as fast as they come."""
    if program():
        return _run("consume", bootstrap, topic, count, *_words(settings))
    configs: dict[str, Any] = {
        **settings,
        "bootstrap.servers": bootstrap,
        "group.id": "load",
        "enable.auto.commit": False,
        "queued.min.messages": 1_000_000,
    }
    consumer = Consumer(configs)
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen, size = len(consumer.consume(1000, 30)), 0
    first, start = seen, time.perf_counter()
    while seen < count:
        batch = consumer.consume(10_000, 30)
        if not batch:
            raise TimeoutError("no message for 30 s")
        seen += len(batch)
        size += sum(len(message) for message in batch)
    load = Load(seen - first, size, time.perf_counter() - start)
    consumer.close()
    return load


def _words(settings: Mapping[str, str]) -> list[str]:
    return ["=".join(each) for each in settings.items()]


def _run(*args: object) -> Load:
    command = [str(program()), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    return Load(**json.loads(done.stdout))
