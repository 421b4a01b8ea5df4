"""Counters and histograms for the hot path: plain attributes, read by whoever is asked for numbers.

Rules:

* No locks: an instrument is changed by one thread only, mostly the event loop's. Who reads it from
  another thread or between two changes sees numbers that are at most one event apart.
* Nothing here formats, names or labels anything; `catalog` says what the numbers are called.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any

REQUEST_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
"""Seconds, for all that a client waits for."""

DISK_BUCKETS = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
    0.2, 0.5, 1.0,
)  # fmt: skip
"""Seconds, for writes and fsyncs."""

LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Seconds, for how late an event loop is."""

LOAD_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Seconds, for what is done seldom and may take long."""

PROBE_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
)  # fmt: skip
"""Seconds, for what goes all the way through a cluster whose nodes may be failing over."""


TIMED_EVERY = 8
"""Of so many appends to a topic one is timed: to ask for the time costs as much as to count."""


TOOK_MAX = 256
"""So many requests of an API are put in their buckets together, in about 20 us."""


class Histogram:
    """How many observations fell below each of `bounds` (ascending), and their sum.

    `counts[n]` has those above `bounds[n - 1]` and up to `bounds[n]`; the last one the rest.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: list[float]) -> None:
        """As `observe` of each; sorts the list."""
        values.sort()
        below = 0
        for number, bound in enumerate(self.bounds):
            upto = bisect_right(values, bound)
            self.counts[number] += upto - below
            below = upto
        self.counts[-1] += len(values) - below
        self.sum += sum(values)

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)


class ApiNumbers:
    """The requests of one API: how long they took, the errors that they got, how many wait.

    `took_s` has what is not in the histogram yet: who appends to it calls `sort_in` when there are
    `TOOK_MAX`. To put each in its bucket at once costs a small request 2 % of its CPU time.
    """

    __slots__ = ("_duration", "errors", "took_s", "waiting")

    def __init__(self) -> None:
        self._duration = Histogram(REQUEST_BUCKETS)
        self.took_s: list[float] = []
        self.errors: Counter[int] = Counter()
        self.waiting = 0

    @property
    def duration(self) -> Histogram:
        """Of all requests so far, in seconds."""
        self.sort_in()
        return self._duration

    def sort_in(self) -> None:
        """Puts all that are waiting for it in their buckets."""
        self._duration.observe_all(self.took_s)
        self.took_s.clear()


class TopicNumbers:
    """What clients wrote to and read from a topic's partitions at this broker.

    `batches` were written, `failed_batches` refused; `reads` are looks at a partition for a
    consumer, of which `failed_reads` got an error.
    """

    __slots__ = (
        "_appends",
        "batches",
        "failed_batches",
        "failed_reads",
        "reads",
        "received_bytes",
        "received_records",
        "replication_received_bytes",
        "replication_sent_bytes",
        "sent_bytes",
    )

    def __init__(self, appends: Histogram) -> None:
        self._appends = appends
        self.batches = self.failed_batches = 0
        self.reads = self.failed_reads = 0
        self.received_bytes = self.received_records = self.sent_bytes = 0
        self.replication_received_bytes = self.replication_sent_bytes = 0

    def appended(self, size_bytes: int, records: int, started_s: float) -> None:
        """A batch was written, begun at `started_s` of `perf_counter`; 0: this one isn't timed."""
        self.batches += 1
        self.received_bytes += size_bytes
        self.received_records += records
        if started_s:
            self._appends.observe(perf_counter() - started_s)


class Traffic:
    """The records that come to and leave a broker. A topic is found by its name and by its id."""

    def __init__(self) -> None:
        self.appends = Histogram(DISK_BUCKETS)
        self.commits = Histogram(REQUEST_BUCKETS)
        self.topics: dict[str | bytes, TopicNumbers] = {}
        self._forgotten = TopicNumbers(self.appends)

    def topic(self, name: str, topic_id: bytes) -> TopicNumbers:
        """The topic's numbers; they begin with its first replica here."""
        numbers = self.topics.get(topic_id)
        if numbers is None:
            numbers = self.topics[name] = self.topics[topic_id] = TopicNumbers(self.appends)
        return numbers

    def read(self, topic: str | bytes, slices: Iterable[Any], error_code: int) -> None:
        """A consumer is sent these slices of one of the topic's partitions, or the error."""
        numbers = self.topics.get(topic)
        if numbers is None:
            return
        if error_code:
            numbers.failed_reads += 1
        for each in slices:
            numbers.sent_bytes += len(each)

    def forget(self, name: str, topic_id: bytes) -> None:
        """The topic has no replica here any more."""
        numbers = self.topics.pop(topic_id, None)
        if numbers is None:
            return
        if self.topics.get(name) is numbers:
            del self.topics[name]
        self._forgotten.replication_received_bytes += numbers.replication_received_bytes
        self._forgotten.replication_sent_bytes += numbers.replication_sent_bytes

    def by_name(self) -> Iterator[tuple[str, TopicNumbers]]:
        """The topics that have replicas here; they may come and go meanwhile."""
        for key in list(self.topics):
            numbers = self.topics.get(key)
            if isinstance(key, str) and numbers is not None:
                yield key, numbers

    def replicated_bytes(self) -> tuple[int, int]:
        """Received from leaders, sent to followers; topics that are gone included."""
        received = self._forgotten.replication_received_bytes
        sent = self._forgotten.replication_sent_bytes
        # One pass and no list: with ten thousand topics this is most of a slice.
        for key, numbers in self.topics.items():
            if isinstance(key, str):
                received += numbers.replication_received_bytes
                sent += numbers.replication_sent_bytes
        return received, sent
