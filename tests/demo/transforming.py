"""The transforming half of the demo: events are counted exactly once, whoever dies.

`tests.demo.counting` counts, in transactions of a few thousand events. Three times somebody is
killed with -9 while a transaction is open: the node that leads the counts, the process that counts,
and the node that coordinates the transactions.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from kraftpy.core.coordination import partition_for
from kraftpy.testing import Cluster
from kraftpy.testing.process import LineProcess
from tests.demo.counting import COUNTS, TRANSACTIONAL_ID, counted_as
from tests.demo.events import Event
from tests.demo.progress import Progress, say
from tests.demo.writing import PARTITIONS, SILENCE_S, DemoError

STATE_TOPIC = "__transaction_state"

Counts = collections.Counter[bytes]


class Counting:
    """Has all events counted, and kills on the way."""

    def __init__(self, cluster: Cluster, events: Sequence[Event]) -> None:
        self._cluster = cluster
        self._events = events
        self._progress = Progress("confluent-kafka counts, in transactions", len(events))
        self._deaths = [self._kill_leader, self._kill_process, self._kill_coordinator]
        self.committed = 0
        self.aborted = 0

    def run(self) -> Counts:
        """What all events come to, counted without any broker."""
        count, parts = len(self._events), len(self._deaths) + 1
        limits = [count * part // parts for part in range(1, parts)]
        self._start()
        done = 0
        try:
            while done < count:
                events = self._open()
                if limits and done >= limits[0]:
                    del limits[0]
                    self._progress.clear()
                    done += self._deaths.pop(0)(events)
                else:
                    done += self._end(events)
                self._progress.at(done)
        finally:
            self._process.kill()
        self._progress.done(done, sum(len(event.value) for event in self._events))
        return collections.Counter(counted_as(event.key, event.value) for event in self._events)

    # -- the process that counts

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.demo.counting", self._cluster.bootstrap]
        self._process = LineProcess(command, None)

    def _read(self) -> list[str]:
        return self._process.read_line(SILENCE_S).decode().split()

    def _open(self) -> int:
        """How many events the transaction has that is open now, with all of its records."""
        word, events = self._read()
        assert word == "open"
        return int(events)

    def _end(self, events: int) -> int:
        """Has it committed; how many events more are counted."""
        self._process.write_line("commit")
        if self._read() == ["aborted"]:
            self.aborted += 1
            return 0
        self.committed += 1
        return events

    # -- who dies

    def _kill_leader(self, events: int) -> int:
        return self._kill_node(COUNTS, 0, "which leads the counts", events)

    def _kill_coordinator(self, events: int) -> int:
        count = len(self._cluster.partitions_of(STATE_TOPIC))
        partition = partition_for(TRANSACTIONAL_ID, count)
        return self._kill_node(STATE_TOPIC, partition, "which coordinates transactions", events)

    def _kill_node(self, topic: str, partition: int, who: str, events: int) -> int:
        victim = self._cluster.leader_of(topic, partition)
        if victim is None:
            raise DemoError(f"nobody leads {topic}-{partition}")
        self._cluster.kill(victim)
        killed_at = time.monotonic()
        done = self._end(events)
        self._tell(f"node {victim}, {who}", killed_at)
        self._cluster.restart(victim)
        self._cluster.wait_healthy(SILENCE_S)
        return done

    def _kill_process(self, _events: int) -> int:
        """Another one takes its transactional id, and begins where its last transaction ended."""
        self._process.kill()
        killed_at = time.monotonic()
        self.aborted += 1
        self._start()
        done = self._end(self._open())
        self._tell("the process that counts", killed_at)
        return done

    def _tell(self, who: str, killed_at: float) -> None:
        seconds = time.monotonic() - killed_at
        say(f"  kill -9 of {who}, amid a transaction: the next commit came after {seconds:.2f} s")


class Found(NamedTuple):
    """What the counts add up to."""

    committed: Counts
    everything: Counts
    """With those of aborted transactions."""


def read_counts(bootstrap: str) -> Found:
    """By readers of committed records and of all, once all transactions have their markers."""
    deadline = time.monotonic() + SILENCE_S
    with contextlib.ExitStack() as stack:
        readers = []
        for level in ("read_committed", "read_uncommitted"):
            reader = KafkaConsumer(
                bootstrap_servers=bootstrap, isolation_level=level, enable_auto_commit=False
            )
            stack.callback(reader.close)
            reader.assign([TopicPartition(COUNTS, each) for each in range(PARTITIONS)])
            reader.seek_to_beginning()
            readers.append(reader)
        partitions = readers[0].assignment()
        while (ends := readers[0].end_offsets(partitions)) != readers[1].end_offsets(partitions):
            if time.monotonic() > deadline:
                raise DemoError(f"a transaction is still open after {SILENCE_S:.0f} s")
        return Found(*(_read_up_to(ends, reader, deadline) for reader in readers))


def _read_up_to(ends: Mapping[Any, int], reader: Any, deadline: float) -> Counts:
    found: Counts = collections.Counter()
    while any(reader.position(each) < end for each, end in ends.items()):
        for batch in reader.poll(100).values():
            for record in batch:
                found[record.key] += int(record.value)
        if time.monotonic() > deadline:
            raise DemoError(f"the counts can't be read in {SILENCE_S:.0f} s")
    return found
