"""What became of each message that the probe sent.

Rules:

* Time comes in from outside, in seconds of one clock; nothing here waits or sends.
* A message is on its way until it has arrived and is acknowledged, or has been given up. One that
  is acknowledged and hasn't arrived when the SLA is over since then is *lost*; if it arrives after
  all, it is *late*. One that was never acknowledged *failed*, whether it arrives or not: nobody
  promised anything.
* A message that is in its partition twice, at two offsets, is *duplicated*. That the consumer reads
  an offset again, as after it lost its group, says nothing of the cluster.
* Memory is bounded: who sends asks `on_its_way` first; of the messages that are lost or failed the
  last `GONE_MAX` are remembered, and as many of those that all is well with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kraftpy.metrics.instruments import PROBE_BUCKETS, Histogram
from kraftpy.probe.quantiles import Quantiles

GONE_MAX = 10_000


@dataclass(slots=True)
class Sent:
    """A message on its way; -1 for what hasn't happened yet."""

    partition: int
    broker: int
    sent_at: float
    acknowledged_at: float = -1.0
    arrived_at: float = -1.0
    offset: int = -1
    lost: bool = False


class Tally:
    """The messages of one broker or of one partition."""

    __slots__ = (
        "duplicated", "failed", "in_time", "late", "lost", "on_its_way", "produce", "produced",
        "received", "roundtrip",
    )  # fmt: skip

    def __init__(self) -> None:
        self.produced = self.failed = self.received = self.in_time = 0
        self.lost = self.late = self.duplicated = 0
        self.on_its_way = 0
        self.produce = Histogram(PROBE_BUCKETS)
        self.roundtrip = Histogram(PROBE_BUCKETS)


class Tracker:
    """Counts by broker (the partition's leader when the message was sent) and by partition."""

    def __init__(self, sla_s: float) -> None:
        self.sla_s = sla_s
        self.brokers: dict[int, Tally] = {}
        self.partitions: dict[int, Tally] = {}
        self.produce = Quantiles()
        self.roundtrip = Quantiles()
        self.commit = Quantiles()
        self.commits_by_coordinator: dict[int, Histogram] = {}
        self.commits = self.commits_failed = self.commits_in_time = 0
        self.broken: Counter[str] = Counter()
        self.last_arrival_at = -1.0
        self._next = 1
        self._under_way: dict[int, Sent] = {}
        self._gone: dict[int, Sent] = {}
        self._done: dict[int, Sent] = {}

    # -- messages

    def sent(self, partition: int, broker: int, now: float) -> int:
        """A message leaves; its number."""
        number, self._next = self._next, self._next + 1
        message = self._under_way[number] = Sent(partition, broker, now)
        for tally in self._tallies(message):
            tally.on_its_way += 1
        return number

    def acknowledged(self, number: int, now: float) -> None:
        """All in-sync replicas have it."""
        message = self._under_way.get(number)
        if message is None or message.acknowledged_at >= 0:
            return
        message.acknowledged_at = now
        took_s = now - message.sent_at
        self.produce.observe(took_s)
        self._check("produce", took_s)
        for tally in self._tallies(message):
            tally.produced += 1
            tally.on_its_way -= 1
            tally.produce.observe(took_s)
        if message.arrived_at >= 0:
            del self._under_way[number]
            _remember(self._done, number, message)

    def failed(self, number: int) -> None:
        """The producer gave it up; it may or may not have been written."""
        message = self._under_way.pop(number, None)
        if message is None:
            return
        for tally in self._tallies(message):
            tally.failed += 1
            tally.on_its_way -= 1
        _remember(self._gone if message.arrived_at < 0 else self._done, number, message)

    def arrived(self, number: int, offset: int, now: float) -> None:
        """The consumer has got it, at this offset of its partition."""
        self.last_arrival_at = now
        known = (self._under_way, self._gone, self._done)
        message = next((found[number] for found in known if number in found), None)
        if message is None:
            return  # of one that was forgotten nobody knows whose it was
        if message.arrived_at >= 0:
            if message.offset != offset:
                for tally in self._tallies(message):
                    tally.duplicated += 1
            return
        message.arrived_at, message.offset = now, offset
        took_s = now - message.sent_at
        self.roundtrip.observe(took_s)
        self._check("roundtrip", took_s)
        for tally in self._tallies(message):
            tally.received += 1
            tally.in_time += not message.lost
            tally.late += message.lost
            tally.roundtrip.observe(took_s)
        if self._under_way.get(number) is message and message.acknowledged_at >= 0:
            del self._under_way[number]
            _remember(self._done, number, message)

    def expire(self, now: float) -> list[Sent]:
        """The messages that are lost from now on."""
        lost = []
        for number, message in list(self._under_way.items()):
            if 0 <= message.acknowledged_at < now - self.sla_s and message.arrived_at < 0:
                del self._under_way[number]
                message.lost = True
                for tally in self._tallies(message):
                    tally.lost += 1
                _remember(self._gone, number, message)
                lost.append(message)
        return lost

    def on_its_way(self, partition: int) -> int:
        """How many of a partition's messages are not acknowledged yet."""
        tally = self.partitions.get(partition)
        return 0 if tally is None else tally.on_its_way

    def oldest_pending_s(self, now: float) -> float:
        """The age of the oldest message on its way, 0 if there is none."""
        oldest = next(iter(list(self._under_way.values())[:1]), None)
        return 0.0 if oldest is None else now - oldest.sent_at

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way."""
        return not self._under_way

    def give_up(self) -> None:
        """Counts what isn't acknowledged as failed, and what hasn't arrived as lost: it's over."""
        self.fail_unacknowledged()
        self.expire(float("inf"))

    def fail_unacknowledged(self) -> None:
        """Counts what isn't acknowledged as failed."""
        for number, message in list(self._under_way.items()):
            if message.acknowledged_at < 0:
                self.failed(number)

    def _tallies(self, message: Sent) -> Iterable[Tally]:
        yield self.brokers.setdefault(message.broker, Tally())
        yield self.partitions.setdefault(message.partition, Tally())

    # -- commits

    def committed(self, coordinator: int, took_s: float) -> None:
        """A commit succeeded."""
        self.commits += 1
        self.commits_in_time += took_s <= self.sla_s
        self.commit.observe(took_s)
        self._check("offset_commit", took_s)
        histogram = self.commits_by_coordinator.setdefault(coordinator, Histogram(PROBE_BUCKETS))
        histogram.observe(took_s)

    def commit_failed(self) -> None:
        """One was given up."""
        self.commits_failed += 1

    def _check(self, step: str, took_s: float) -> None:
        if took_s > self.sla_s:
            self.broken[step] += 1


def _remember(messages: dict[int, Sent], number: int, message: Sent) -> None:
    messages[number] = message
    while len(messages) > GONE_MAX:
        del messages[next(iter(messages))]
