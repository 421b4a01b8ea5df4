"""Counters and histograms for the hot path: plain attributes, read by whoever is asked for numbers.

Rules:

* No locks: an instrument is changed by one thread only, mostly the event loop's. A reader on
  another thread, or between two changes, sees numbers that are at most one event apart.
* Nothing here formats, names or labels anything; `catalog` says what the numbers are called.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
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

TRANSACTION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 900.0,
)  # fmt: skip
"""Seconds, for transactions: the longest is transaction.max.timeout.ms."""

COMMITTED, ABORTED, TIMED_OUT, FENCED = TRANSACTION_RESULTS = (
    "committed", "aborted", "timed_out", "fenced",
)  # fmt: skip
"""How a transaction ends: as its producer wants it, or aborted by its coordinator."""

TIMED_EVERY = 128
"""Of so many appends to a partition one is timed: that takes up to 10 us, since code and numbers
that are seldom used aren't in the processor's caches."""


class Histogram:
    """How many observations fell below each of `bounds` (ascending), and their sum.

    `counts[n]` has those above `bounds[n - 1]` and up to `bounds[n]`; the last one the rest.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)


class ApiNumbers:
    """The requests of one API: how many seconds they took, the errors they got, how many wait."""

    __slots__ = ("duration", "errors", "waiting")

    def __init__(self) -> None:
        self.duration = Histogram(REQUEST_BUCKETS)
        self.errors: Counter[int] = Counter()
        self.waiting = 0


class TransactionNumbers:
    """The transactions of a coordinator that are over: how many by `result`, how many seconds each
    took from its first partition on, and from the decision on until all markers were written.
    """

    __slots__ = ("durations", "ended", "markers")

    def __init__(self) -> None:
        self.ended = dict.fromkeys(TRANSACTION_RESULTS, 0)
        self.durations = Histogram(TRANSACTION_BUCKETS)
        self.markers = Histogram(PROBE_BUCKETS)

    def count(self, result: str, seconds: float, markers_seconds: float) -> None:
        """One more is over."""
        self.ended[result] += 1
        self.durations.observe(seconds)
        self.markers.observe(markers_seconds)


class Replicated:
    """What was received from leaders and sent to followers, of all topics there ever were."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = self.sent_bytes = 0


class TopicNumbers:
    """What clients wrote to and read from a topic's partitions at this broker.

    `batches` were written, `failed_batches` refused; `reads` are looks at a partition for a
    consumer, of which `failed_reads` got an error. `received_bytes` and `received_records` are what
    was written. They and `batches` are known once each partition has been asked to
    `count_received`. `upconverted_records` and `downconverted_records` came and went as messages
    of magic 0 and 1. All topics share `replicated` and `appends`, where one of `TIMED_EVERY` is
    observed.
    """

    __slots__ = (
        "appends",
        "batches",
        "downconverted_records",
        "failed_batches",
        "failed_reads",
        "reads",
        "received_bytes",
        "received_records",
        "replicated",
        "sent_bytes",
        "upconverted_records",
    )

    def __init__(self, appends: Histogram, replicated: Replicated) -> None:
        self.appends = appends
        self.replicated = replicated
        self.batches = self.failed_batches = 0
        self.reads = self.failed_reads = 0
        self.received_bytes = self.received_records = self.sent_bytes = 0
        self.upconverted_records = self.downconverted_records = 0

    def count_received(self, batches: int, records: int, size_bytes: int) -> None:
        """So much more was appended to one of the partitions."""
        self.batches += batches
        self.received_records += records
        self.received_bytes += size_bytes


class Traffic:
    """The records that come to and leave a broker. A topic is found by its name and by its id."""

    def __init__(self) -> None:
        self.appends = Histogram(DISK_BUCKETS)
        self.commits = Histogram(REQUEST_BUCKETS)
        self.topics: dict[str | bytes, TopicNumbers] = {}
        self.replicated = Replicated()

    def topic(self, name: str, topic_id: bytes) -> TopicNumbers:
        """The topic's numbers; they begin with its first replica here."""
        numbers = self.topics.get(topic_id)
        if numbers is None:
            numbers = TopicNumbers(self.appends, self.replicated)
            self.topics[name] = self.topics[topic_id] = numbers
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
        if numbers is not None and self.topics.get(name) is numbers:
            del self.topics[name]

    def by_name(self) -> Iterator[tuple[str, TopicNumbers]]:
        """The topics that have replicas here; they may come and go meanwhile."""
        for key in list(self.topics):
            numbers = self.topics.get(key)
            if isinstance(key, str) and numbers is not None:
                yield key, numbers
