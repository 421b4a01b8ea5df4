"""Counts flights per carrier, exactly once: `python -m tests.demo.counting BOOTSTRAP`.

A stock client, confluent-kafka, and what it takes of it: each transaction has the counts of the
events that were read, one record for each carrier, and the offsets behind those events. Whatever
dies, the two count together or not at all.

It is led by lines, so that a node, or this process, can be killed amid a transaction: it prints
`open EVENTS` once those records are written, goes on when it reads a line, and then prints
`committed` or `aborted`. The end of stdin ends it.
"""

from __future__ import annotations

import collections
import json
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.demo.writing import SILENCE_S, TOPIC

COUNTS = "counts"
TRANSACTIONAL_ID = "counting"
EVENTS_MAX = 5000
POLL_S = 0.2


def counted_as(key: bytes, value: bytes) -> bytes:
    """The carrier of a flight; of an event out of a file its key."""
    try:
        return str(json.loads(value)["carrier"]).encode()
    except (ValueError, TypeError, KeyError):
        return key


class Counter:
    def __init__(self, bootstrap: str) -> None:
        # Whoever comes back under the name of a static member gets its partitions at once.
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": TRANSACTIONAL_ID,
                "group.instance.id": "the one that counts",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": TRANSACTIONAL_ID,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        self._producer.init_transactions(SILENCE_S)  # ends what a predecessor has left open
        self._consumer.subscribe([TOPIC])
        while True:
            messages = self._consumer.consume(EVENTS_MAX, POLL_S)
            events = [message for message in messages if message.error() is None]
            if events and not self._transact(events):
                return

    def _transact(self, events: list[Any]) -> bool:
        """One transaction; False at the end of stdin, which leaves it open."""
        counts = collections.Counter(counted_as(each.key(), each.value()) for each in events)
        try:
            self._producer.begin_transaction()
            for carrier, count in counts.items():
                self._producer.produce(COUNTS, b"%d" % count, carrier)
            self._producer.flush(SILENCE_S)
            print("open", len(events), flush=True)
            if not sys.stdin.readline():
                return False
            self._producer.send_offsets_to_transaction(
                [each for each in self._positions() if each.offset >= 0],
                self._consumer.consumer_group_metadata(),
                SILENCE_S,
            )
            self._producer.commit_transaction(SILENCE_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._producer.abort_transaction(SILENCE_S)
            for each in self._consumer.committed(self._consumer.assignment(), SILENCE_S):
                self._consumer.seek(TopicPartition(TOPIC, each.partition, max(each.offset, 0)))
            print("aborted", flush=True)
        else:
            print("committed", flush=True)
        return True

    def _positions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = self._consumer.position(self._consumer.assignment())
        return found


if __name__ == "__main__":
    Counter(sys.argv[1]).run()
