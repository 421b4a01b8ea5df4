"""`make demo`: a real activity stream through three kraftpy nodes, which are killed on the way.

confluent-kafka writes a year of flights, keyed by aircraft, to a topic with three replicas and
acks=all. On the way the node that leads its first partition is killed with -9, comes back, and once
it is in sync the node that leads the metadata quorum is killed. kafka-python reads everything in
a consumer group. confluent-kafka counts the flights of each carrier, in transactions, amid which
two nodes and the process that counts are killed; the sums have to be exact. aiokafka reads one half
in a group of its own, the node that coordinates that group is killed and stays dead, and a new
member reads the other half. Every reader has to see the same events per aircraft, in the same
order, byte for byte.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from kraftpy.testing import BrokerError, Cluster
from tests.demo.counting import COUNTS
from tests.demo.events import Event, EventsError, load
from tests.demo.ledger import Ledger
from tests.demo.progress import Progress, say
from tests.demo.transforming import Counting, read_counts
from tests.demo.writing import PARTITIONS, SILENCE_S, TOPIC, DemoError, Outage, Writing
from tests.knowing import knowing

NODES = 3


class Reading:
    """Feeds what a reader gets into a ledger until `until` events are there; notices silence."""

    def __init__(self, ledger: Ledger, progress: Progress, until: int) -> None:
        self.ledger = ledger
        self._progress = progress
        self._until = until
        self._deadline = time.monotonic() + SILENCE_S

    def add(self, batches: Iterable[Iterable[Any]]) -> bool:
        """Take in what one poll returned; True while there is more to come."""
        for batch in batches:
            self._deadline = time.monotonic() + SILENCE_S
            for record in batch:
                self.ledger.add(record.key, record.value)
        self._progress.at(self.ledger.count)
        if time.monotonic() > self._deadline:
            raise DemoError(
                f"nothing came for {SILENCE_S:.0f} s after {self.ledger.count:,} events"
            )
        return self.ledger.count < self._until


def read_with_kafka_python(bootstrap: str, count: int) -> Ledger:
    progress = Progress("kafka-python reads, in a group", count)
    reading = Reading(Ledger(), progress, count)
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        knowing(consumer, TOPIC)
        while reading.add(consumer.poll(500, max_records=5000).values()):
            pass
        consumer.commit()
    finally:
        consumer.close()
    progress.done(reading.ledger.count, reading.ledger.size_bytes)
    return reading.ledger


async def read_with_aiokafka(bootstrap: str, ledger: Ledger, until: int) -> None:
    """Go on where the group stopped, until the ledger holds `until` events, and commit."""
    before, size_before = ledger.count, ledger.size_bytes
    progress = Progress("aiokafka reads, in a group", until)
    reading = Reading(ledger, progress, until)
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id="aiokafka",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        more = ledger.count < until
        while more:
            wanted = min(5000, until - ledger.count)
            batches = await consumer.getmany(timeout_ms=500, max_records=wanted)
            more = reading.add(batches.values())
        await consumer.commit()
    finally:
        await consumer.stop()
    progress.done(ledger.count - before, ledger.size_bytes - size_before)


def run(cluster: Cluster, events: list[Event]) -> bool:
    started = time.monotonic()
    cluster.start()
    cluster.wait_healthy(SILENCE_S)
    seconds = time.monotonic() - started
    say(f"a quorum of {NODES} nodes is up on {cluster.bootstrap} after {seconds:.2f} s")
    # These events are of 2013, and Kafka's default is to drop what is older than a week.
    topics = [
        NewTopic(name, PARTITIONS, replication_factor=3, config={"retention.ms": "-1"})
        for name in (TOPIC, COUNTS)
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for created in admin.create_topics(topics).values():
        created.result(SILENCE_S)

    def kill_leader() -> Outage:
        victim = known(cluster.leader_of(TOPIC))
        return Outage(cluster, "which leads partition 0", victim, restart=True)

    def kill_controller() -> Outage:
        victim = known(cluster.controller())
        return Outage(cluster, "which leads the metadata quorum", victim, restart=True)

    deaths = [(len(events) // 3, kill_leader), (len(events) * 2 // 3, kill_controller)]
    sent = Writing(cluster.bootstrap, events, deaths).run()
    readers = {"kafka-python": read_with_kafka_python(cluster.bootstrap, sent.count)}
    same = count(cluster, events)
    second = readers["aiokafka"] = Ledger()
    asyncio.run(read_with_aiokafka(cluster.bootstrap, second, sent.count // 2))
    described = admin.describe_consumer_groups(["aiokafka"])["aiokafka"].result(SILENCE_S)
    cluster.kill(described.coordinator.id)
    say(f"  kill -9 of node {described.coordinator.id}, which coordinates the group; it stays dead")
    asyncio.run(read_with_aiokafka(cluster.bootstrap, second, sent.count))

    for name, ledger in readers.items():
        if differences := ledger.differences(sent):
            same = False
            say(f"{name} MISMATCH: " + "\n  ".join(differences[:10]))
        else:
            say(f"{name}: count, order per key and bytes match")
    say(f"{sent.count:,} events, {sent.key_count:,} keys, {sent.size_bytes / 1e6:.1f} MB of values")
    return same


def count(cluster: Cluster, events: list[Event]) -> bool:
    """Whether each carrier's flights are counted, each once, in transactions."""
    counting = Counting(cluster, events)
    wanted = counting.run()
    found = read_counts(cluster.bootstrap)
    aborted = found.everything.total() - found.committed.total()
    say(
        f"  {counting.committed} transactions committed, {counting.aborted} aborted: readers of"
        f" uncommitted records would count {aborted:,} events twice"
    )
    if found.committed == wanted:
        say(f"counts: {len(wanted)} sums match, every event is counted once")
        return True
    wrong = sorted(key for key in wanted | found.committed if wanted[key] != found.committed[key])
    for key in wrong[:10]:
        say(f"counts MISMATCH: {key!r} is {found.committed[key]:,} and not {wanted[key]:,}")
    return False


def known(node: int | None) -> int:
    """A leader that has to be there."""
    if node is None:
        raise DemoError("nobody leads")
    return node


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("input", nargs="?", type=Path, help="a file of events, one a line")
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # the clients' complaints, as above
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that `finally` runs
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kraftpy-demo-") as folder:
        # Everything as `kraftpy dev --brokers 3` has it: on disk, with the default timeouts.
        cluster = Cluster(NODES, dir=folder, links=False, ephemeral=False)
        try:
            say(f"loading {options.input or 'the 336,776 flights of 2013 from New York City'}")
            same = run(cluster, load(options.input))
        except EventsError as error:
            say(str(error))
            return 2
        except (DemoError, BrokerError, KafkaException, OSError) as error:
            say(f"the demo failed: {error}\nthe nodes' last words:\n{cluster.log_tail()}")
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            cluster.close()
    verdict = "all as it was sent" if same else "NOT as it was sent"
    say(f"{verdict}; the whole demo took {time.monotonic() - started:.0f} s")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
