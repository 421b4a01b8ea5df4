"""`make demo`: a real activity stream through a kraftpy broker that is killed twice on the way.

confluent-kafka writes a year of flights, keyed by aircraft, and the broker is killed with -9 in the
middle of it; kafka-python reads everything back in a consumer group; aiokafka reads one half in a
group of its own, the broker is killed again, and a new member of the group reads the other half.
Every reader has to see the same events per aircraft, in the same order, byte for byte.
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
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from tests.apache_kafka import ApacheKafka
from tests.demo.events import Event, EventsError, load
from tests.demo.ledger import Ledger
from tests.demo.progress import Progress, say
from tests.processes import Broker, BrokerError, Kraftpy

TOPIC = "flights"
PARTITIONS = 4
SILENCE_S = 30.0  # a stock client retries for much longer; a demo shouldn't


class DemoError(Exception):
    """Something isn't as it has to be; the message says what."""


def write(broker: Broker, events: list[Event], kill_at: int) -> Ledger:
    """Write all events with an idempotent producer; the broker dies before event `kill_at`."""
    ledger, refused, answered = Ledger(), [], [0]

    def on_delivery(error: Any, _: Any) -> None:
        if error:
            refused.append(error)
        answered[0] += 1

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,  # it would complain about the outage that is part of the show
        }
    )
    progress = Progress("confluent-kafka writes", len(events))
    for position, event in enumerate(events):
        if position == kill_at:
            progress.clear()
            kill_and_restart(broker, f"{answered[0]:,} of {position:,} events acknowledged")
        while True:
            try:
                producer.produce(
                    TOPIC,
                    event.value,
                    event.key,
                    on_delivery=on_delivery,
                    timestamp=event.timestamp_ms,
                )
                break
            except BufferError:  # the client's own queue is full
                producer.poll(0.1)
        ledger.add(event.key, event.value)
        if position % 500 == 0:
            producer.poll(0)
            progress.at(answered[0])
    deadline = time.monotonic() + SILENCE_S
    while producer.flush(0.5):
        progress.at(answered[0])
        if time.monotonic() > deadline:
            raise DemoError(f"{len(producer):,} events unanswered after {SILENCE_S:.0f} s")
    if refused:
        raise DemoError(f"{len(refused):,} events refused, the first with: {refused[0]}")
    progress.done(ledger.count, ledger.size_bytes)
    return ledger


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
        more = True
        while more:
            wanted = min(5000, until - ledger.count)
            batches = await consumer.getmany(timeout_ms=500, max_records=wanted)
            more = reading.add(batches.values())
        await consumer.commit()
    finally:
        await consumer.stop()
    progress.done(ledger.count - before, ledger.size_bytes - size_before)


def kill_and_restart(broker: Broker, when: str) -> None:
    broker.kill()
    killed = time.monotonic()
    broker.start()
    say(f"  kill -9 with {when}; answering again after {time.monotonic() - killed:.2f} s")


def run(broker: Broker, events: list[Event]) -> bool:
    seconds = broker.start()
    say(f"{broker.name} answers on {broker.bootstrap} after {seconds:.2f} s")
    # These events are of 2013, and Kafka's default is to drop what is older than a week.
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([topic])[TOPIC].result(SILENCE_S)

    sent = write(broker, events, kill_at=len(events) // 2)
    readers = {"kafka-python": read_with_kafka_python(broker.bootstrap, sent.count)}
    second = readers["aiokafka"] = Ledger()
    asyncio.run(read_with_aiokafka(broker.bootstrap, second, sent.count // 2))
    kill_and_restart(broker, "the group halfway through")
    asyncio.run(read_with_aiokafka(broker.bootstrap, second, sent.count))

    same = True
    for name, ledger in readers.items():
        if differences := ledger.differences(sent):
            same = False
            say(f"{name} MISMATCH: " + "\n  ".join(differences[:10]))
        else:
            say(f"{name}: count, order per key and bytes match")
    say(f"{sent.count:,} events, {sent.key_count:,} keys, {sent.size_bytes / 1e6:.1f} MB of values")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("input", nargs="?", type=Path, help="a file of events, one a line")
    parser.add_argument("--apache", action="store_true", help="Apache Kafka instead of kraftpy")
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # the clients' complaints, as above
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that `finally` runs
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kraftpy-demo-") as folder:
        broker: Broker = (ApacheKafka if options.apache else Kraftpy)(Path(folder))
        try:
            say(f"loading {options.input or 'the 336,776 flights of 2013 from New York City'}")
            same = run(broker, load(options.input))
        except EventsError as error:
            say(str(error))
            return 2
        except (DemoError, BrokerError, KafkaException, OSError) as error:
            say(f"the demo failed: {error}\nthe broker's last words:\n{broker.log_tail()}")
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            broker.stop()
    verdict = "all as it was sent" if same else "NOT as it was sent"
    say(f"{verdict}; the whole demo took {time.monotonic() - started:.0f} s")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
