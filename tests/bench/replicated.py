"""One round of the measurements with three replicas, on whichever quorum it is given."""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from collections.abc import Callable, Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.process import BrokerError
from tests.bench import groups, measure
from tests.bench.load import produce
from tests.bench.measure import BATCHES, Round, Say
from tests.bench.probe import percentile
from tests.processes import memory_bytes
from tests.quorums import POLL_S, Quorum

TIMEOUT_S = 120.0
TOPIC_CONFIG = {"min.insync.replicas": "2", "file.delete.delay.ms": "0"}
# Several times slower with acks=all than alone: fewer messages, else a round takes minutes.
LARGE_MESSAGES = 150_000
SMALL_MESSAGES = 1_000_000
CATCH_UP_MESSAGES = 1_000_000
CREATE_TOPICS = 50
REMOVAL_S = 1.0
KILLS = 5  # of each kind in a round
CREATE_PARTITIONS = 10


@contextlib.contextmanager
def topics_on(quorum: Quorum, count: int = 1, partitions: int = 1) -> Iterator[list[str]]:
    """Topics with three replicas, in sync, deleted afterwards."""
    names = [f"bench-{uuid.uuid4().hex[:8]}" for _ in range(count)]
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap, "log_level": 0})
    wanted = [NewTopic(name, partitions, 3, config=TOPIC_CONFIG) for name in names]
    for future in admin.create_topics(wanted).values():
        future.result(TIMEOUT_S)
    quorum.wait_in_sync()
    try:
        yield names
    finally:
        for future in admin.delete_topics(names).values():
            future.result(TIMEOUT_S)


@contextlib.contextmanager
def topic_on(quorum: Quorum) -> Iterator[str]:
    with topics_on(quorum) as (name,):
        measure.touch_memory(quorum.log_dir)
        yield name


def idle_memory_mib(quorum: Quorum) -> float:
    """Of one node with all its processes, on average."""
    time.sleep(measure.IDLE_S)
    return memory_bytes(quorum.pids()) / len(quorum.running) / 2**20


def throughput(quorum: Quorum, say: Say) -> Round:
    """What librdkafka puts in: 1 KB at three batch sizes and 100 B, acks=1 and acks=all."""
    results: Round = {}
    for acks in ("1", "all"):
        for label, size in BATCHES.items():
            say(f"RF 3: produce 1 KB, batch {label}, acks={acks}")
            with topic_on(quorum) as topic:
                run = produce(quorum.bootstrap, topic, LARGE_MESSAGES, 1000, size, acks)
            results[f"RF 3: produce 1 KB, batch {label}, acks={acks}"] = run.megabytes_per_second
        say(f"RF 3: produce 100 B, acks={acks}")
        with topic_on(quorum) as topic:
            run = produce(quorum.bootstrap, topic, SMALL_MESSAGES, 100, 131_072, acks)
        results[f"RF 3: produce 100 B, batch 131 KB, acks={acks}"] = run.megabytes_per_second
    return results


def latency(quorum: Quorum, say: Say) -> Round:
    """One message every 5 ms, as with one node."""
    results: Round = {}
    for acks in ("1", "all"):
        say(f"RF 3: latency, acks={acks}")
        with topic_on(quorum) as topic:
            times = measure.latencies_ms(quorum.bootstrap, topic, acks)
        results[f"RF 3: latency at 200 msg/s, acks={acks}, p50"] = percentile(times, 50)
        results[f"RF 3: latency at 200 msg/s, acks={acks}, p99"] = percentile(times, 99)
    return results


def group_work(quorum: Quorum, say: Say) -> Round:
    """Offsets and rebalances, with three replicas of the offsets log."""

    @contextlib.contextmanager
    def topic_of(partitions: int) -> Iterator[str]:
        with topics_on(quorum, 1, partitions) as (name,):
            yield name

    found = groups.offsets(quorum.bootstrap, topic_of, quorum.wait_in_sync, say)
    found |= groups.rebalances(quorum.bootstrap, topic_of, say)
    return {f"RF 3: {name}": value for name, value in found.items()}


def creation(quorum: Quorum, say: Say) -> Round:
    """Partitions per second, from one request to its answer."""
    say("RF 3: create partitions")
    return {"RF 3: create partitions": CREATE_TOPICS * CREATE_PARTITIONS / creation_s(quorum)}


def creation_s(quorum: Quorum) -> float:
    """Seconds until a request for so many topics and partitions is answered."""
    names = [f"bench-{uuid.uuid4().hex[:8]}" for _ in range(CREATE_TOPICS)]
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap, "log_level": 0})
    admin.list_topics(timeout=TIMEOUT_S)  # connected
    topics = [NewTopic(name, CREATE_PARTITIONS, 3, config=TOPIC_CONFIG) for name in names]
    started_at = time.perf_counter()
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)
    seconds = time.perf_counter() - started_at
    for future in admin.delete_topics(names).values():
        future.result(TIMEOUT_S)
    _let_remove(quorum, names)
    return seconds


def _let_remove(quorum: Quorum, topics: list[str]) -> None:
    """Gives nodes time to remove these topics' files, which isn't the next creation's work.

    Kafka does it a minute later, whatever `file.delete.delay.ms` says.
    """
    deadline = time.monotonic() + REMOVAL_S
    while time.monotonic() < deadline and any(
        folder.name.startswith(tuple(topics))
        for log_dir in quorum.log_dirs.values()
        for folder in log_dir.iterdir()
    ):
        time.sleep(POLL_S)


def failovers(quorum: Quorum, say: Say, times: int, which: str) -> list[float]:
    """Seconds from kill -9 to the next acknowledged record of a client with defaults, acks=all.

    `which` node is killed: the "partition leader", which doesn't lead the metadata quorum, or the
    "quorum leader", which leads the partition as well. Everything is in sync before each kill.
    """
    results = []
    with topics_on(quorum, 1, 12) as (topic,):
        for number in range(1, times + 1):
            say(f"RF 3: {which} killed, {number} of {times}")
            quorum.wait_balanced(topic)
            controller = quorum.controller()
            wanted = (
                {controller} if which == "quorum leader" else set(quorum.running) - {controller}
            )
            partition, victim = next(
                (partition, each.leader)
                for (name, partition), each in quorum.partitions().items()
                if name == topic and each.leader in wanted
            )
            producer = Producer(
                {"bootstrap.servers": quorum.bootstrap, "acks": "all", "log_level": 0}
            )
            _acknowledged(producer, topic, partition)
            quorum.kill(victim)
            started_at = time.perf_counter()
            _acknowledged(producer, topic, partition)
            results.append(time.perf_counter() - started_at)
            quorum.restart(victim)
            quorum.wait_in_sync()
    return results


def _acknowledged(producer: Producer, topic: str, partition: int) -> None:
    """Sends one record and returns when it is acknowledged; the client tries again by itself."""
    errors: list[object] = []
    producer.produce(
        topic, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error)
    )
    left = producer.flush(TIMEOUT_S)
    if left or errors != [None]:
        raise BrokerError(f"a record was not acknowledged: {errors}")


def catch_up(quorum: Quorum, say: Say) -> Round:
    """MB/s of a follower that was down while a gigabyte was written, until it has it all."""
    say("RF 3: follower catches up")
    with topic_on(quorum) as topic:
        leader = quorum.leader_of(topic)
        victim = next(node for node in quorum.running if node not in (leader, quorum.controller()))
        quorum.kill(victim)
        run = produce(quorum.bootstrap, topic, CATCH_UP_MESSAGES, 1000, 1_000_000, "1")
        _wait_for_copies(quorum, topic, leader)
        quorum.spawn(victim)
        quorum.wait_answering(victim)
        started_at = time.perf_counter()
        _wait_for_copies(quorum, topic, leader)
        seconds = time.perf_counter() - started_at
        quorum.wait_in_sync()
    return {"RF 3: follower catches up": run.bytes / seconds / 1e6}


def _wait_for_copies(quorum: Quorum, topic: str, leader: int) -> None:
    """Until every running node has as much of partition 0 as its leader."""

    def size(node: int) -> int:
        files = (quorum.log_dirs[node] / f"{topic}-0").glob("*.log")
        return sum(file.stat().st_size for file in files)

    deadline = time.monotonic() + TIMEOUT_S
    while any(size(node) < size(leader) for node in quorum.running):
        if time.monotonic() > deadline:
            raise BrokerError(f"the followers of {topic} don't catch up\n{quorum.log_tail()}")
        time.sleep(POLL_S)


def many_failovers(quorum: Quorum, say: Say) -> Round:
    results: Round = {}
    for which in ("partition leader", "quorum leader"):
        times = failovers(quorum, say, KILLS, which)
        what = f"{which} killed to next acknowledged write"
        results[f"{what}, median"] = statistics.median(times)
        results[f"{what}, longest"] = max(times)
    return results


Work = Callable[[Quorum, Say], Round]

FOR_ALL: tuple[Work, ...] = (throughput, latency, group_work, creation)
