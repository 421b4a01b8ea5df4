"""The probe's /metrics, /healthz and /readyz: the exporter's HTTP over the probe's numbers."""

from __future__ import annotations

import gzip
import os
import socket
import threading
import time
from http import HTTPStatus

from kraftpy.metrics.collector import Scrape, encoder_for
from kraftpy.metrics.http import Answer, HttpServer
from kraftpy.metrics.loop_lag import LoopLag
from kraftpy.metrics.system import System
from kraftpy.probe.prober import Prober
from kraftpy.probe.tracker import Tally

_KMINION = "kminion_end_to_end_"
_GZIP_LEVEL = 1
_STEPS = ("produce", "roundtrip", "offset_commit")


class ProbeExporter:
    """Answers HTTP from threads, which read counters that the probe's loop changes meanwhile."""

    def __init__(self, prober: Prober, lag: LoopLag) -> None:
        self._prober = prober
        self._lag = lag
        self._system = System()
        self._lock = threading.Lock()

    def metrics(self, accept: str, *, compress: bool, timeout_s: float) -> tuple[bytes, str]:
        """The answer to a scrape, and its content type; it takes milliseconds."""
        encoder, content_type = encoder_for(accept)
        with self._lock:
            text: bytes = encoder(self.scrape())
        return gzip.compress(text, _GZIP_LEVEL) if compress else text, content_type

    def healthz(self) -> dict[str, bool]:
        """It answers, so it lives."""
        return {"probe answers": True}

    def readyz(self) -> dict[str, bool]:
        """Whether messages come back."""
        tracker = self._prober.tracker
        since_s = time.monotonic() - tracker.last_arrival_at
        interval_s = self._prober.options.interval_ms / 1000
        return {"messages arrive": since_s <= tracker.sla_s + interval_s}

    def site(self) -> ProbeExporter:
        """There is nothing else."""
        return self

    def answer(self, path: str, query: str) -> Answer:
        """Says so."""
        text = b"there are /metrics, /healthz and /readyz\n"
        return Answer(HTTPStatus.NOT_FOUND, text, "text/plain; charset=utf-8", {})

    def scrape(self) -> Scrape:
        """All numbers of now."""
        scrape = Scrape([], -1)
        prober, tracker = self._prober, self._prober.tracker
        for broker, tally in list(tracker.brokers.items()):
            _add_broker(scrape, str(broker), tally)
        for partition, tally in list(tracker.partitions.items()):
            _add_partition(scrape, str(partition), tally)
        for coordinator, commits in list(tracker.commits_by_coordinator.items()):
            value = [list(commits.counts), commits.sum]
            scrape.add("kraftpy_probe_offset_commit_seconds", value, str(coordinator))
            scrape.add(f"{_KMINION}offset_commit_latency_seconds", value, str(coordinator))
        scrape.add("kraftpy_probe_offset_commits_total", tracker.commits)
        scrape.add("kraftpy_probe_offset_commits_failed_total", tracker.commits_failed)
        scrape.add(f"{_KMINION}offset_commits_total", tracker.commits_in_time)
        for step in _STEPS:
            scrape.add("kraftpy_probe_sla_broken_total", tracker.broken[step], step)
        scrape.add("kraftpy_probe_sla_seconds", tracker.sla_s)
        pending_s = tracker.oldest_pending_s(time.monotonic())
        scrape.add("kraftpy_probe_oldest_pending_seconds", pending_s)
        scrape.add("kraftpy_probe_brokers", len(prober.heartbeat.brokers))
        scrape.add("kraftpy_probe_brokers_covered", prober.heartbeat.covered)
        lags = self._lag.lags
        scrape.add("kraftpy_event_loop_lag_seconds", [list(lags.counts), lags.sum], "probe")
        self._system.add_process(scrape, "probe", os.getpid(), loop=True)
        return scrape

    def serve(self, listening: socket.socket) -> None:
        """Serves in threads of its own until the process ends."""
        server = HttpServer(listening, self)
        threading.Thread(target=server.serve_forever, daemon=True, name="http").start()


def _add_broker(scrape: Scrape, broker: str, tally: Tally) -> None:
    scrape.add("kraftpy_probe_produce_seconds", _histogram(tally, "produce"), broker)
    scrape.add("kraftpy_probe_roundtrip_seconds", _histogram(tally, "roundtrip"), broker)
    for what in ("produced", "failed", "received", "lost", "late", "duplicated"):
        scrape.add(f"kraftpy_probe_messages_{what}_total", getattr(tally, what), broker)


def _add_partition(scrape: Scrape, partition: str, tally: Tally) -> None:
    scrape.add(f"{_KMINION}produce_latency_seconds", _histogram(tally, "produce"), partition)
    scrape.add(f"{_KMINION}roundtrip_latency_seconds", _histogram(tally, "roundtrip"), partition)
    answered = tally.produced + tally.failed
    scrape.add(f"{_KMINION}messages_produced_in_flight", tally.on_its_way, partition)
    scrape.add(f"{_KMINION}messages_produced_total", answered, partition)
    scrape.add(f"{_KMINION}messages_produced_failed_total", tally.failed, partition)
    scrape.add(f"{_KMINION}messages_received_total", tally.in_time, partition)
    scrape.add(f"{_KMINION}messages_lost_total", tally.lost, partition)


def _histogram(tally: Tally, step: str) -> list[object]:
    histogram = getattr(tally, step)
    return [list(histogram.counts), histogram.sum]
