"""What a run looked like over time: rates by outcome, latencies, faults, and what waited unread.

Rules: memory is a few numbers per operation.  Time is cut into `BUCKETS` equal pieces; an operation
belongs to the piece in which it ended, one without an end to that in which it began.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from kraftpy.testing.consistency.checkers.log_index import ACKNOWLEDGED, Log
from kraftpy.testing.consistency.history import Fault, Phase
from kraftpy.testing.consistency.operations import NEVER, Operation

BUCKETS = 240
OUTCOMES = ("ok", "info", "fail")
_MS = 1_000_000
_LANES_MAX = 40
_IDLE = "."


class Timeline:
    """Listens to a history while it is checked."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.phases: list[Phase] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.clients: dict[str, int] = {}
        self._invoked = array("q")
        self._ended = array("q")
        self._outcome = bytearray()
        self._process = array("q")
        self._first_ns = NEVER
        self._last_ns = 0

    def observe(self, entry: Operation | Fault | Phase) -> None:
        if isinstance(entry, Operation):
            self._observe_operation(entry)
            return
        self._span(entry.time_ns)
        if isinstance(entry, Fault):
            self.faults.append(entry)
        else:
            self.phases.append(entry)

    def _observe_operation(self, operation: Operation) -> None:
        counts = self.counts.get(operation.f)
        if counts is None:
            counts = self.counts[operation.f] = dict.fromkeys(OUTCOMES, 0)
        counts[operation.outcome] += 1
        if operation.client:
            self.clients[operation.client] = self.clients.get(operation.client, 0) + 1
        self._span(operation.invoked_ns)
        if operation.ended_ns != NEVER:
            self._span(operation.ended_ns)
        self._invoked.append(operation.invoked_ns)
        self._ended.append(operation.ended_ns)
        self._outcome.append(OUTCOMES.index(operation.outcome))
        self._process.append(operation.process)

    def _span(self, time_ns: int) -> None:
        if time_ns < self._first_ns:
            self._first_ns = time_ns
        if time_ns > self._last_ns:
            self._last_ns = time_ns

    @property
    def start_ns(self) -> int:
        return 0 if self._first_ns == NEVER else self._first_ns

    @property
    def duration_ns(self) -> int:
        return max(1, self._last_ns - self.start_ns)

    def bucket_of(self, time_ns: int) -> int:
        """The piece of time that a moment is in; moments outside belong to the first or last."""
        place = (time_ns - self.start_ns) * BUCKETS // self.duration_ns
        return max(0, min(BUCKETS - 1, place))

    def series(self) -> dict[str, Any]:
        """Numbers by bucket, as JSON: operations per second by outcome, latencies in ms (null
        where nothing succeeded), and for each process what became of its operations."""
        rates = {outcome: [0] * BUCKETS for outcome in OUTCOMES}
        latencies: list[list[int]] = [[] for _ in range(BUCKETS)]
        lanes: dict[int, bytearray] = {}
        for invoked, ended, code, process in zip(
            self._invoked, self._ended, self._outcome, self._process, strict=True
        ):
            bucket = self.bucket_of(invoked if ended == NEVER else ended)
            rates[OUTCOMES[code]][bucket] += 1
            if code == 0 and ended > invoked:  # callbacks take no time
                latencies[bucket].append(ended - invoked)
            lane = lanes.get(process)
            if lane is None:
                lane = lanes[process] = bytearray(_IDLE.encode() * BUCKETS)
            mark = ord("oif"[code])
            if lane[bucket] == ord(_IDLE) or code > "oif".index(chr(lane[bucket])):
                lane[bucket] = mark
        seconds = self.duration_ns / BUCKETS / 1e9
        return {
            "bucket_s": seconds,
            "per_second": {
                name: [round(count / seconds, 2) for count in counts]
                for name, counts in rates.items()
            },
            "latency_ms": {
                "p50": [_quantile(found, 0.5) for found in latencies],
                "p99": [_quantile(found, 0.99) for found in latencies],
                "max": [_quantile(found, 1.0) for found in latencies],
            },
            "processes": {str(name): lane.decode() for name, lane in _some(lanes)},
            "processes_left_out": max(0, len(lanes) - _LANES_MAX),
        }

    def unread(self, logs: Iterable[Log]) -> dict[str, Any]:
        """How many acknowledged values nobody had read yet at the end of each bucket, and for how
        long the oldest of them had waited, in seconds."""
        change = [0] * (BUCKETS + 1)
        waiting: list[tuple[int, int]] = []
        for log in logs:
            for row, state in enumerate(log.state):
                if state == ACKNOWLEDGED:
                    acked, read = log.ended_ns[row], log.read_ns[row]
                    if read > acked:
                        waiting.append((acked, read))
        waiting.sort()
        for acked, read in waiting:
            change[self.bucket_of(acked)] += 1
            change[BUCKETS if read == NEVER else self.bucket_of(read)] -= 1
        counts, ages = [], []
        count = oldest = 0
        for bucket in range(BUCKETS):
            count += change[bucket]
            counts.append(count)
            end_ns = self.start_ns + self.duration_ns * (bucket + 1) // BUCKETS
            while oldest < len(waiting) and waiting[oldest][1] <= end_ns:
                oldest += 1
            since = waiting[oldest][0] if oldest < len(waiting) else end_ns
            ages.append(round(max(0, end_ns - since) / 1e9, 3))
        return {"values": counts, "oldest_s": ages}


def _some(lanes: dict[int, bytearray]) -> list[tuple[int, bytearray]]:
    """Lanes to draw, in order; of too many those in which something went wrong come first."""
    wrong_first = sorted(
        lanes.items(), key=lambda item: (item[1].count(b"f") + item[1].count(b"i") == 0, item[0])
    )
    return sorted(wrong_first[:_LANES_MAX])


def _quantile(latencies: list[int], part: float) -> float | None:
    if not latencies:
        return None
    latencies.sort()
    return round(latencies[min(len(latencies) - 1, int(part * len(latencies)))] / _MS, 3)
