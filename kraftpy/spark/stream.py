"""The stream reader: batches between offsets that Spark keeps in its checkpoint.

An offset is what Spark's Kafka source writes, `{"flights":{"0":23}}`. Beside the topics it may
have two members more ("@" can't be in the name of a topic):

* "@from": where the batch that ends here began in partitions of which the offset before it knows
  nothing. For the first batch that is all of them. That closes a gap: Spark does not store where a
  stream began; when it repeats a first batch that was planned but not committed, it asks for the
  initial offset again, which may be another one by then ("latest" has moved, retention has removed
  what was earliest). The end of that batch is in the checkpoint, and with it its beginning.
* "@ids": which topics the names stood for (KIP-516). A topic that was deleted and made anew has
  other records at the same offsets; by its id it is known also when it has grown as long again.

Rules:

* Planning is a pure function of (start, end, options): a repeated batch reads the same offsets.
* Partitions that come later are read from their first offset on. If that isn't 0, or partitions or
  topics are gone, or a log ends before where it was read, data is lost: `failOnDataLoss` decides.
* With the option assign, partitions that aren't assigned any more aren't lost: where they are is
  kept, and there reading goes on when they are assigned again. Nor does a topic that is assigned
  later lack what its log had before. A batch that was planned with one, and is repeated, does
  without it if it isn't there any more: nothing else would ever be read again.
* A topic that was made anew is a new one, and read from its start on. A task of a batch that was
  planned before finds out for itself.
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

from kraftpy.frozen import NamedTuple
from kraftpy.spark.batch import Task
from kraftpy.spark.brokers import Brokers, report_loss
from kraftpy.spark.planning import ids_of, partitions_of, ranges_between, resolve, tasks_of
from kraftpy.spark.positions import Assigned, Offsets, offsets_of, table_of
from kraftpy.spark.settings import ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from kraftpy.spark.decoder import Slice

_FROM, _IDS = "@from", "@ids"


class Place(NamedTuple):
    """An offset of a stream: where partitions are, where those began that the one before it does
    not know, and the ids of the topics."""

    offsets: Offsets
    begun: Offsets
    ids: Mapping[str, str]

    @classmethod
    def read(cls, offset: Mapping[str, Any]) -> Place:
        """Out of what Spark keeps."""
        topics = {name: table for name, table in offset.items() if name not in (_FROM, _IDS)}
        ids = {str(name): str(each) for name, each in offset.get(_IDS, {}).items()}
        return cls(offsets_of(topics), offsets_of(offset.get(_FROM, {})), ids)

    def table(self) -> dict[str, Any]:
        """What Spark keeps."""
        table: dict[str, Any] = table_of(self.offsets)
        if self.begun:
            table[_FROM] = table_of(self.begun)
        if self.ids:
            table[_IDS] = dict(sorted(self.ids.items()))
        return table


class StreamTask(Task):
    """What one task reads, and the id that its topic had when that was planned."""

    def __init__(self, part: Slice, topic_id: str | None) -> None:
        super().__init__(part)
        self.topic_id = topic_id


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


def _by_partition(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"{offset} of partition {number}" for number, offset in offsets.items())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch; lives as long as the query does."""

    def __init__(self, settings: ReadSettings, columns: Sequence[str]) -> None:
        self.settings = settings
        self.columns = tuple(columns)
        self._initial: Offsets | None = None
        self._initial_ids: dict[str, str] = {}
        self._target: Offsets | None = None
        self._target_ids: dict[str, str] = {}
        self._known_latest: Offsets = {}
        self._batch_at = -math.inf

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts; the same whenever this query asks."""
        if self._initial is None:
            with self._brokers() as brokers:
                partitions = partitions_of(brokers, self.settings.topics)
                self._initial_ids = ids_of(brokers, partitions)
                self._initial = resolve(brokers, partitions, self.settings.starting)
                if self._target is not None:
                    # Spark asks for "now" first; "latest" must not be behind it.
                    self._target, self._target_ids = self._ends(brokers)
        return Place(self._initial, self._initial, self._initial_ids).table()

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
            self._target, self._target_ids = self._ends(brokers)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return table_of(self._known_latest) if self._known_latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends: `start` itself if it has to wait."""
        known, begun, known_ids = Place.read(start)
        first = known == begun  # nothing was read yet: this is the initial offset
        with self._brokers() as brokers:
            kept = self._unassigned(known)
            asked = {name: at for name, at in known.items() if name not in kept}
            latest, ids = self._latest_of_all(brokers, asked)
            latest = {**latest, **kept}
            ids = {**{topic: known_ids[topic] for topic, _ in kept if topic in known_ids}, **ids}
            anew = {name for name in ids if known_ids.get(name, ids[name]) != ids[name]}
            added = sorted(name for name in latest if name not in known or name[0] in anew)
            new = self._begin_added(brokers, added, {topic for topic, _ in known})
        self._report_lost(known, latest, anew)
        begin = {**known, **new}
        end = {name: latest[name] for name in sorted(latest)}
        if not self._is_enough(begin, end, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        if end == known and not new:
            return start
        self._batch_at = time.monotonic()
        return Place(end, begin if first else new, ids).table()

    def _report_lost(self, known: Offsets, latest: Offsets, anew: set[str]) -> None:
        """Reports what was to be read and is gone, as far as it can be told without reading."""
        for name in sorted(anew):
            ends = {number: end for (topic, number), end in sorted(known.items()) if topic == name}
            report_loss(
                f"topic {name!r} was deleted and made anew; what the old one had behind offsets "
                f"{_by_partition(ends)} is lost, and the new one is read from its start",
                self._fails,
            )
        for (topic, number), was in sorted(known.items()):
            if topic in anew:
                continue
            end = latest.get((topic, number))
            if end is None:
                report_loss(
                    f"partition {number} of topic {topic!r}, read up to offset {was}, is not there "
                    "any more",
                    self._fails,
                )
            elif end < was:
                report_loss(
                    f"partition {number} of topic {topic!r} was read up to offset {was} and ends "
                    f"at {end} now: {was - end} offsets were taken back",
                    self._fails,
                )

    @property
    def _fails(self) -> bool:
        return self.settings.fail_on_data_loss

    def _latest_of_all(self, brokers: Brokers, known: Offsets) -> tuple[Offsets, dict[str, str]]:
        """The latest offsets and the topics' ids; asked a few times if partitions seem to be gone.

        A broker that has just started may know less than others. What is taken for gone is read
        from its first offset on when it comes back.
        """
        latest, ids = self._latest(brokers)
        for _ in range(self.settings.client.retries):
            if set(known) <= set(latest):
                break
            time.sleep(self.settings.client.retry_interval_ms / 1000)
            if self._target is not None:
                self.prepareForTriggerAvailableNow()
            latest, ids = self._latest(brokers)
        return latest, ids

    def _latest(self, brokers: Brokers) -> tuple[Offsets, dict[str, str]]:
        if self._target is not None:
            self._known_latest, ids = self._target, self._target_ids
        else:
            self._known_latest, ids = self._ends(brokers)
        return self._known_latest, ids

    def _ends(self, brokers: Brokers) -> tuple[Offsets, dict[str, str]]:
        there = partitions_of(brokers, self.settings.topics, must_exist=False)
        # The ids first: of a topic that is made anew meanwhile the next batch will know.
        ids = ids_of(brokers, there)
        return brokers.latest(there), ids

    def _unassigned(self, known: Offsets) -> Offsets:
        """Where those partitions are that were assigned before and aren't now."""
        topics = self.settings.topics
        if not isinstance(topics, Assigned):
            return {}
        assigned = set(topics.partitions)
        return {name: at for name, at in known.items() if name not in assigned}

    def _begin_added(
        self, brokers: Brokers, added: Sequence[tuple[str, int]], known: set[str]
    ) -> Offsets:
        begun = brokers.earliest(added)
        for (topic, number), offset in begun.items():
            is_new = isinstance(self.settings.topics, Assigned) and topic not in known
            if offset and not is_new:
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
        known = Place.read(start).offsets
        until, begun, ids = Place.read(end)
        ranges = ranges_between({**known, **begun}, until, fail_on_data_loss=self._fails)
        return [StreamTask(part, ids.get(part.topic)) for part in tasks_of(ranges, self.settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: Slice | None = partition.value
        if part is None:
            return  # Spark starts one task, of None, for a plan that has none
        assigned = not self._unassigned({(part.topic, part.partition): part.start})
        with self._brokers() as brokers:
            for table in brokers.read(
                part, self.columns, fail_on_data_loss=self._fails, must_exist=assigned
            ):
                if isinstance(partition, StreamTask) and _is_another(brokers, partition):
                    report_loss(
                        f"topic {part.topic!r} was deleted and made anew: {part.end - part.start} "
                        f"offsets of partition {part.partition} ({part.start} to {part.end - 1}) "
                        "are lost",
                        self._fails,
                    )
                    return
                yield table


def _is_another(brokers: Brokers, task: StreamTask) -> bool:
    """Whether the topic that is read isn't the one that was planned; it is in the metadata then."""
    topic = task.value.topic
    found = ids_of(brokers, [(topic, task.value.partition)]).get(topic)
    return task.topic_id is not None and found not in (None, task.topic_id)
