"""The writing half of the demo: one idempotent producer, and what it goes through.

`Outage` is one kill -9 of a node that leads partitions, timed as a client sees it: from the kill to
the first acknowledgment of an event that was produced after it, on a partition that the dead node
led. Acknowledgments that were on their way when the node died don't count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from kraftpy.testing import Cluster
from tests.demo.events import Event
from tests.demo.ledger import Ledger
from tests.demo.progress import Progress, say

TOPIC = "flights"
PARTITIONS = 4
SILENCE_S = 30.0  # a stock client retries for much longer; a demo shouldn't


class DemoError(Exception):
    """Something isn't as it has to be; the message says what."""


class Outage:
    """The death of a node while events are written; `restart`: it comes back meanwhile."""

    def __init__(self, cluster: Cluster, who: str, victim: int, *, restart: bool) -> None:
        self.first_acknowledged = threading.Event()
        self.seconds: float | None = None  # None: no event went to what the dead node led
        self.failure: Exception | None = None
        self._cluster = cluster
        self._who = who
        self._victim = victim
        self._restart = restart
        self._affected = {
            partition
            for partition in range(PARTITIONS)
            if cluster.leader_of(TOPIC, partition) == victim
        } or set(range(PARTITIONS))
        self._killed_at = time.monotonic()
        cluster.kill(victim)
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def acknowledged(self, message: Any) -> None:
        """An event was acknowledged just now."""
        now = time.monotonic()
        if message.partition() in self._affected and now - message.latency() > self._killed_at:
            self.seconds = now - self._killed_at
            self.first_acknowledged.set()

    def _go_on(self) -> None:
        if not self.first_acknowledged.wait(SILENCE_S):
            self.failure = DemoError(f"nothing was acknowledged for {SILENCE_S:.0f} s")
            return
        after = "no event was for a partition that it led"
        if self.seconds is not None:
            after = f"first event acknowledged after {self.seconds:.2f} s"
        say(f"  kill -9 of node {self._victim}, {self._who}: {after}")
        if not self._restart:
            return
        started = time.monotonic()
        try:
            self._cluster.restart(self._victim)
            back = time.monotonic() - started
            self._cluster.wait_healthy(SILENCE_S)
        except Exception as error:
            self.failure = error
            return
        seconds = time.monotonic() - started
        say(f"  node {self._victim} is back after {back:.2f} s, in sync after {seconds:.2f} s")

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()


class Writing:
    """Writes all events; `deaths` are [(position, function that kills and returns the Outage)]."""

    def __init__(
        self, bootstrap: str, events: list[Event], deaths: list[tuple[int, Callable[[], Outage]]]
    ) -> None:
        self._events = events
        self._deaths = dict(deaths)
        self._outage: Outage | None = None
        self._answered = 0
        self._refused: list[Any] = []
        self._progress = Progress("confluent-kafka writes, acks=all", len(events))
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,  # it would complain about the outages that are part of the show
            }
        )

    def run(self) -> Ledger:
        """Everything that was acknowledged; DemoError unless that is everything."""
        ledger = Ledger()
        for position, event in enumerate(self._events):
            if position in self._deaths:
                self._end_outage()
                self._progress.clear()
                self._outage = self._deaths[position]()
            self._produce(event)
            ledger.add(event.key, event.value)
            if position % 500 == 0:
                self._poll(0)
        self._end_outage()
        deadline = time.monotonic() + SILENCE_S
        while self._producer.flush(0.5):
            self._progress.at(self._answered)
            if time.monotonic() > deadline:
                left = len(self._producer)
                raise DemoError(f"{left:,} events unanswered after {SILENCE_S:.0f} s")
        if self._refused:
            raise DemoError(
                f"{len(self._refused):,} events refused, the first with: {self._refused[0]}"
            )
        self._progress.done(ledger.count, ledger.size_bytes)
        return ledger

    def _produce(self, event: Event) -> None:
        while True:
            try:
                self._producer.produce(
                    TOPIC,
                    event.value,
                    event.key,
                    on_delivery=self._on_delivery,
                    timestamp=event.timestamp_ms,
                )
                return
            except BufferError:  # the client's own queue is full
                self._poll(0.1)

    def _on_delivery(self, error: Any, message: Any) -> None:
        self._answered += 1
        if error:
            self._refused.append(error)
        elif self._outage is not None and not self._outage.first_acknowledged.is_set():
            self._outage.acknowledged(message)

    def _poll(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)
        self._progress.at(self._answered)

    def _end_outage(self) -> None:
        """Wait until the last one is over: until its node is in sync again, if it comes back."""
        while self._outage is not None and not self._outage.over:
            self._poll(0.05)
            if not len(self._producer):
                self._outage.first_acknowledged.set()
        if self._outage is not None and self._outage.failure is not None:
            raise self._outage.failure
