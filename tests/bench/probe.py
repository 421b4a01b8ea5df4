"""What a user notices while something goes on: produce latency, fenced brokers, elections."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Producer

from kraftpy.testing.view import ask_quorum
from tests.processes import brokers_named, split_address
from tests.quorums import Quorum

INTERVAL_S = 0.02
WATCH_INTERVAL_S = 0.1


def percentile(values: list[float], percent: float) -> float:
    """Nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


class Probe:
    """A producer with acks=all that sends one record in turn to one partition, all the time."""

    def __init__(self, quorum: Quorum, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": quorum.bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0}
        )
        self._latencies_ms: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            delivered: list[float] = []
            sent_at = time.perf_counter()
            self._producer.produce(
                self._topic,
                b"probe",
                partition=0,
                on_delivery=lambda error, _, into=delivered: into.append(time.perf_counter()),
            )
            while not delivered and not self._stop.is_set():
                self._producer.poll(0.5)
            self._latencies_ms += [(at - sent_at) * 1000 for at in delivered]

    def take(self) -> tuple[float, float, float]:
        """p50, p99 and maximum in ms since the last call."""
        taken, self._latencies_ms = self._latencies_ms, []
        return percentile(taken, 50), percentile(taken, 99), max(taken, default=0.0)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Watch:
    """How often a running broker was missing from the metadata, and how often a voter was elected.

    Kills that are meant belong between `pause` and `resume`.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.missing_s = 0.0
        self.first_term = self.term()
        self._stop = threading.Event()
        self._paused = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def term(self) -> int:
        """The newest term that a node knows of; 0 if none answers."""
        terms = [0]
        for node in self._quorum.running:
            try:
                terms.append(ask_quorum(*split_address(self._quorum.addresses[node]), 5.0).epoch)
            except OSError:
                continue
        return max(terms)

    def _run(self) -> None:
        while not self._stop.wait(WATCH_INTERVAL_S):
            nodes = self._quorum.running
            if self._paused.is_set():
                continue
            known = brokers_named(self._quorum.addresses[nodes[0]], 5.0)
            if known < len(nodes) and not self._paused.is_set():
                self.missing_s += WATCH_INTERVAL_S

    def pause(self) -> None:
        self._paused.set()

    def resume(self) -> None:
        self._paused.clear()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
