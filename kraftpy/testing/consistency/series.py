"""What a run looked like over time: rates by outcome, latencies, who was busy and with what.

Rules:

* Memory is a few numbers per operation.
* Time is cut into `BUCKETS` equal pieces; an operation belongs to the piece in which it ended, one
  without an end to that in which it began.
* What waits for data by design, or asks nobody, says nothing about latency: `UNTIMED`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kraftpy.testing.consistency.history import Fault, Phase
from kraftpy.testing.consistency.operations import NEVER, Operation

BUCKETS = 240
OUTCOMES = ("ok", "info", "fail")
UNTIMED = frozenset({"poll", "drain", "assign", "subscribe", "stored", "journals", "lease"})
_MS = 1_000_000
_LANES_MAX = 40
_DOTS_MAX = 3000
_IDLE, _BUSY = ord("."), ord("w")
_MARKS = tuple(map(ord, "oif"))
_DOES = (
    ("member", {"assigned", "revoked", "lost", "gone", "processed"}),
    ("share member", {"lease", "acknowledge"}),
    ("disks", {"stored"}),
    ("final read", {"drain"}),
    ("read", {"poll"}),
    ("topics", {"create", "alter", "delete"}),
    ("send", {"send"}),
    ("commit", {"commit", "commit-all"}),
)
"""What a client is called that does any of these; the first one that fits."""


class Timeline:
    """Listens to a history while it is checked.

    `sessions_per_client` is how many numbers of processes each client has for its sessions.
    """

    def __init__(self, sessions_per_client: int = 1) -> None:
        self.faults: list[Fault] = []
        self.phases: list[Phase] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.clients: dict[str, int] = {}
        self._sessions_per_client = sessions_per_client
        self._invoked = array("q")
        self._ended = array("q")
        self._outcome = bytearray()
        self._untimed = bytearray()
        self._process = array("q")
        self._does: dict[int, Counter[str]] = {}
        self._libraries: dict[int, str] = {}
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
        self._untimed.append(operation.f in UNTIMED)
        self._process.append(operation.process)
        client = operation.process // self._sessions_per_client
        does = self._does.get(client)
        if does is None:
            does = self._does[client] = Counter()
        does[operation.f] += 1
        if operation.client:
            self._libraries[client] = operation.client

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

    def calls(self) -> Iterator[tuple[int, int, int]]:
        """(beginning, end, place in OUTCOMES) of what asked a broker and didn't wait for data."""
        for invoked, ended, code, untimed in zip(
            self._invoked, self._ended, self._outcome, self._untimed, strict=True
        ):
            if ended > invoked and not untimed:
                yield invoked, ended, code

    def series(self) -> dict[str, Any]:
        """Numbers by bucket, as JSON: operations per second by outcome, latencies in ms (null
        where nothing succeeded), single operations as dots, and what each client was busy with."""
        rates = {outcome: [0] * BUCKETS for outcome in OUTCOMES}
        latencies: list[list[int]] = [[] for _ in range(BUCKETS)]
        lanes: dict[int, bytearray] = {}
        sessions: dict[int, set[int]] = {}
        for invoked, ended, code, untimed, process in zip(
            self._invoked, self._ended, self._outcome, self._untimed, self._process, strict=True
        ):
            bucket = self.bucket_of(invoked if ended == NEVER else ended)
            rates[OUTCOMES[code]][bucket] += 1
            if code == 0 and ended > invoked and not untimed:  # callbacks take no time
                latencies[bucket].append(ended - invoked)
            client = process // self._sessions_per_client
            lane = lanes.get(client)
            if lane is None:
                lane = lanes[client] = bytearray([_IDLE] * BUCKETS)
                sessions[client] = set()
            sessions[client].add(process)
            for before in range(self.bucket_of(invoked), bucket):
                if lane[before] == _IDLE:
                    lane[before] = _BUSY
            mark = _MARKS[code]
            if lane[bucket] not in _MARKS or code > _MARKS.index(lane[bucket]):
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
            "dots": self._dots(),
            "lanes": [
                {
                    "client": client,
                    "does": self._name(client),
                    "library": self._libraries.get(client, ""),
                    "sessions": len(sessions[client]),
                    "marks": lane.decode(),
                }
                for client, lane in _some(lanes)
            ],
            "lanes_left_out": max(0, len(lanes) - _LANES_MAX),
        }

    def _name(self, client: int) -> str:
        does = self._does[client]
        for name, operations in _DOES:
            if not operations.isdisjoint(does):
                return name
        return does.most_common(1)[0][0]

    def _dots(self) -> dict[str, list[list[float]]]:
        """(seconds, ms) of operations by outcome; of too many the slowest of every moment, all that
        went wrong as long as there is room, and every n-th of the others."""
        slowest: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        for invoked, ended, code in self.calls():
            if ended == NEVER:
                continue
            bucket = self.bucket_of(ended)
            if bucket not in slowest or ended - invoked > _took(found[slowest[bucket]]):
                slowest[bucket] = len(found)
            found.append((invoked, ended, code))
        kept = set(slowest.values())
        wrong = [index for index, each in enumerate(found) if each[2]]
        kept.update(wrong[:: len(wrong) * 2 // _DOTS_MAX + 1])
        kept.update(range(0, len(found), len(found) // max(1, _DOTS_MAX - len(kept)) + 1))
        dots: dict[str, list[list[float]]] = {outcome: [] for outcome in OUTCOMES}
        for index in sorted(kept):
            invoked, ended, code = found[index]
            at_s = round((ended - self.start_ns) / 1e9, 3)
            dots[OUTCOMES[code]].append([at_s, round((ended - invoked) / _MS, 3)])
        return dots


def _took(call: tuple[int, int, int]) -> int:
    return call[1] - call[0]


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
