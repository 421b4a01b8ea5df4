"""The stream reader: batches between offsets that Spark keeps in its checkpoint.

An offset is what Spark's Kafka source writes, `{"flights":{"0":23}}`. Beside the topics it may
have a member "@from": where the batch that ends here began in partitions of which the offset before
it knows nothing. For the first batch that is all of them. That closes a gap: Spark does not store
where a stream began; when it repeats a first batch that was planned but not committed, it asks for
the initial offset again, which may be another one by then ("latest" has moved, retention has
removed what was earliest). The end of that batch is in the checkpoint, and with it its beginning.
("@" can't be in the name of a topic.)

* Planning is a pure function of (start, end, options): a repeated batch reads the same offsets.
* Partitions that come later are read from their first offset on. If that isn't 0, or partitions
  are gone, or a log ends before where it was read, data is lost: `failOnDataLoss` decides.
* minOffsetsPerTrigger holds a batch back, at most for maxTriggerDelay; it does nothing with
  `trigger(availableNow=True)`, which would never end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kraftpy.spark.batch import Task, read_task
from kraftpy.spark.brokers import Brokers, report_loss
from kraftpy.spark.planning import partitions_of, ranges_between, resolve, split
from kraftpy.spark.positions import Offsets, offsets_of, table_of
from kraftpy.spark.settings import ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

_FROM = "@from"


def read_offset(offset: Mapping[str, Any]) -> tuple[Offsets, Offsets]:
    """(offsets, where partitions began that the offset before does not know)."""
    topics = {name: table for name, table in offset.items() if name != _FROM}
    return offsets_of(topics), offsets_of(offset.get(_FROM, {}))


def write_offset(offsets: Offsets, begun: Offsets) -> dict[str, Any]:
    """The offset that `read_offset` reads."""
    table: dict[str, Any] = table_of(offsets)
    if begun:
        table[_FROM] = table_of(begun)
    return table


def limited(begin: Offsets, end: Offsets, most: int) -> Offsets:
    """An end at most about `most` offsets behind `begin`, each partition having its share.

    The rule of Spark's Kafka source: shares below one are rounded up, so that no partition starves,
    and others down.
    """
    sizes = {name: max(0, end[name] - begin[name]) for name in end}
    total = sum(sizes.values())
    if total <= most:
        return end
    found: Offsets = {}
    for name, size in sizes.items():
        share = most * size / total
        step = math.ceil(share) if share < 1 else math.floor(share)
        found[name] = min(begin[name] + step, end[name]) if size else end[name]
    return found


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch; lives as long as the query does."""

    def __init__(self, settings: ReadSettings, columns: Sequence[str]) -> None:
        self.settings = settings
        self.columns = tuple(columns)
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._known_latest: Offsets = {}
        self._batch_at = -math.inf

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts; the same whenever this query asks."""
        if self._initial is None:
            with self._brokers() as brokers:
                partitions = partitions_of(brokers, self.settings.topics)
                self._initial = resolve(brokers, partitions, self.settings.starting)
        return write_offset(self._initial, self._initial)

    def _brokers(self) -> Brokers:
        return Brokers(self.settings.client)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.settings.max_offsets is not None:
            return ReadMaxRows(self.settings.max_offsets)
        if self.settings.min_offsets is not None:
            return ReadMinRows(self.settings.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._brokers() as brokers:
            self._target = brokers.latest(
                partitions_of(brokers, self.settings.topics, must_exist=False)
            )

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return write_offset(self._known_latest, {}) if self._known_latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends: `start` itself if it has to wait."""
        known, begun = read_offset(start)
        first = known == begun  # nothing was read yet: this is the initial offset
        with self._brokers() as brokers:
            latest = self._latest_of_all(brokers, known)
            added = sorted(set(latest) - set(known))
            new = self._begin_added(brokers, added)
        begin = {**known, **new}
        missing = sorted(set(known) - set(latest))
        if missing:
            report_loss(f"partitions {missing} are not there any more", self._fails)
        end = {name: latest[name] for name in sorted(latest)}
        for name in end:
            if end[name] < begin[name]:
                report_loss(
                    f"partition {name[1]} of topic {name[0]!r} was read up to offset {begin[name]} "
                    f"and ends at {end[name]} now",
                    self._fails,
                )
        if not self._is_enough(begin, end, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        if end == known and not new:
            return start
        self._batch_at = time.monotonic()
        return write_offset(end, begin if first else new)

    @property
    def _fails(self) -> bool:
        return self.settings.fail_on_data_loss

    def _latest_of_all(self, brokers: Brokers, known: Offsets) -> Offsets:
        """The latest offsets; asked again a few times when partitions seem to be gone.

        A broker that has just started may know less than others. What is taken for gone is read
        from its first offset on when it comes back.
        """
        latest = self._latest(brokers)
        for _ in range(self.settings.client.retries):
            if set(known) <= set(latest):
                break
            time.sleep(self.settings.client.retry_interval_ms / 1000)
            if self._target is not None:
                self.prepareForTriggerAvailableNow()
            latest = self._latest(brokers)
        return latest

    def _latest(self, brokers: Brokers) -> Offsets:
        if self._target is not None:
            self._known_latest = self._target
        else:
            there = partitions_of(brokers, self.settings.topics, must_exist=False)
            self._known_latest = brokers.latest(there)
        return self._known_latest

    def _begin_added(self, brokers: Brokers, added: Sequence[tuple[str, int]]) -> Offsets:
        begun = brokers.earliest(added)
        for (topic, number), offset in begun.items():
            if offset:
                report_loss(
                    f"partition {number} of topic {topic!r} was added and starts at {offset}, "
                    "not at 0",
                    self._fails,
                )
        return begun

    def _is_enough(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> bool:
        least = self.settings.min_offsets
        if least is None or isinstance(limit, ReadAllAvailable) or self._target is not None:
            return True
        if time.monotonic() - self._batch_at >= self.settings.max_delay_ms / 1000:
            return True
        return sum(max(0, end[name] - begin[name]) for name in end) >= least

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; of these two offsets and the options alone."""
        known, _ = read_offset(start)
        until, begun = read_offset(end)
        ranges = ranges_between({**known, **begun}, until, fail_on_data_loss=self._fails)
        settings = self.settings
        parts = split(ranges, settings.min_partitions, settings.max_records_per_partition)
        return [Task(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.settings, self.columns, partition)
