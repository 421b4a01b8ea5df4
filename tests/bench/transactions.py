"""Transactions from outside, on whichever quorum: how many, how soon they are seen, and at what
price to the throughput.

* Clients that do nothing else: begin, a record to each of so many partitions, commit, and again.
  librdkafka (confluent-kafka) has transactions of version 0 or 1; the Java client goes by the
  feature `transaction.version` of the cluster: 2 on both sides.
* From begin to a reader with read_committed, one transaction at a time with a pause behind each:
  what begins before its coordinator is through with the one before waits for that first.
* Kafka's own programs as they are: kafka-producer-perf-test with transactions of a duration, and
  TransactionalMessageCopier, which commits offsets in its transactions. A JVM runs them one after
  the other, so that the client is as warm as the brokers are.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from kraftpy.testing.process import BrokerError, LineProcess
from tests.apache_kafka import fetch_jars
from tests.conformance.foreign import java_program
from tests.conformance.tool_runner import ToolRunner

VALUE_BYTES = 100
TIMEOUT_S = 120.0
# Between a transaction that was seen and the next: its coordinator is through with it by then.
PAUSE_S = 0.05
PERF_RECORD_BYTES = 1000
COPIED_TOGETHER = 200
# Clients that run for long: the flags of the tools are for those that live a second.
JVM = "-Xmx512m -XX:+UseSerialGC"

_JAVA_CLIENT = Path(__file__).with_name("TransactionsClient.java")
_SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
_COPIED = re.compile(r'"consumed":(\d+),"remaining":(\d+)')

Rate = Callable[[float], float]
"""Works for so many seconds or a little longer; so many a second."""


class Rated(NamedTuple):
    """Records that a program has passed on, and its seconds."""

    records: int
    seconds: float


def new_id() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


# -- clients in turn


def _producer(bootstrap: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": new_id(),
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def _transact(producer: Producer, topic: str, partitions: int) -> None:
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, bytes(VALUE_BYTES), partition=partition)
    producer.commit_transaction(TIMEOUT_S)


@contextlib.contextmanager
def librdkafka(bootstrap: str, topic: str, partitions: int, clients: int) -> Iterator[Rate]:
    """Transactions of all clients together; each has an id of its own and a thread."""
    with ThreadPoolExecutor(clients) as pool:
        producers = list(pool.map(_producer, [bootstrap] * clients))

        def rate(seconds: float) -> float:
            started_at = time.perf_counter()
            until = started_at + seconds

            def run(producer: Producer) -> int:
                done = 0
                while time.perf_counter() < until:
                    _transact(producer, topic, partitions)
                    done += 1
                return done

            return sum(pool.map(run, producers)) / (time.perf_counter() - started_at)

        yield rate


@contextlib.contextmanager
def java(bootstrap: str, topic: str, partitions: int) -> Iterator[Rate]:
    """Transactions of one client in a JVM of its own."""
    with tempfile.TemporaryFile() as errors:
        command = ["java", *JVM.split(), "-cp", f"{fetch_jars()}/*", str(_JAVA_CLIENT)]
        arguments = [bootstrap, topic, str(partitions), str(VALUE_BYTES), new_id()]
        process = LineProcess([*command, *arguments], errors)

        def rate(seconds: float) -> float:
            process.write_line(str(seconds))
            while True:
                # What the client warns of may go to the same place.
                words = process.read_line(seconds + TIMEOUT_S).split()
                if words[:1] == [b"committed"]:
                    return int(words[1]) / float(words[2])

        try:
            yield rate
        except BrokerError as error:
            errors.seek(0)
            raise BrokerError(f"the Java client: {error}\n{errors.read()[-2000:]!r}") from None
        finally:
            process.end()


# -- how soon


@contextlib.contextmanager
def until_seen(bootstrap: str, topic: str) -> Iterator[Callable[[float], list[float]]]:
    """Milliseconds from begin until a reader has the record, of transactions one at a time."""
    producer = _producer(bootstrap)
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    with contextlib.closing(reader):
        reader.assign([TopicPartition(topic, 0, 0)])

        def times_ms(seconds: float) -> list[float]:
            times: list[float] = []
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                time.sleep(PAUSE_S)
                begun_at = time.perf_counter()
                _transact(producer, topic, 1)
                message = reader.poll(TIMEOUT_S)
                if message is None or message.error() is not None:
                    said = message and message.error()
                    raise BrokerError(f"a committed record isn't seen: {said}")
                times.append((time.perf_counter() - begun_at) * 1000)
            return times

        yield times_ms


# -- Kafka's programs


@contextlib.contextmanager
def tools() -> Iterator[ToolRunner]:
    """A JVM that gets warm."""
    with (
        tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder,
        ToolRunner(Path(folder) / "log", java_program("ToolRunner", JVM)) as runner,
    ):
        yield runner


def perf_test(
    runner: ToolRunner, bootstrap: str, topic: str, records: int, duration_ms: int | None
) -> Rated:
    """kafka-producer-perf-test; None: without transactions."""
    words = ["--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "-1"]
    words += ["--num-records", str(records), "--record-size", str(PERF_RECORD_BYTES)]
    if duration_ms is not None:
        words += ["--transaction-duration-ms", str(duration_ms)]
    ended = runner.run("kafka-producer-perf-test", *words)
    found = _SENT.findall(ended.out)
    if ended.code or not found or int(found[-1][0]) != records:
        raise BrokerError(f"kafka-producer-perf-test: {ended.out[-1000:]}{ended.err[-1000:]}")
    return Rated(records, records / float(found[-1][1]))


def copy(runner: ToolRunner, bootstrap: str, source: str, target: str, records: int) -> Rated:
    """TransactionalMessageCopier, with a group and an id of its own; its start counts."""
    words = ["--broker-list", bootstrap, "--input-topic", source, "--input-partition", "0"]
    words += ["--output-topic", target, "--transaction-size", str(COPIED_TOGETHER)]
    words += ["--consumer-group", new_id(), "--transactional-id", new_id()]
    words += ["--max-messages", str(records), "--use-group-metadata"]
    started_at = time.perf_counter()
    ended = runner.run("transactional-message-copier", *words)
    seconds = time.perf_counter() - started_at
    # It tells of itself before each transaction, and ends with the last.
    told = _COPIED.findall(ended.out)
    copied, left = map(int, told[-1]) if told else (0, 0)
    if ended.code or copied + left != records or left > COPIED_TOGETHER:
        raise BrokerError(f"TransactionalMessageCopier: {ended.out[-1000:]}{ended.err[-1000:]}")
    return Rated(records, seconds)
