"""`mirror`: topics of one cluster into topics of another, and what comes later too.

    <checkpoint>/topics/      which topics they are
    <checkpoint>/syncs/       which offsets stand for which
    <checkpoint>/spark        where Spark keeps how far it has come

Rules:

* A cycle is a query of Structured Streaming that reads what is there when it begins, in batches,
  and ends. A job is stopped between cycles, so a batch is repeated only after a crash.
* One task copies what a batch has of a partition, so records keep their order (see
  `kraftpy.spark.delivery` for what that means when some are sent twice).
* A cycle reads the topics and partitions that the source has when it begins; before that, the
  target is given as many, and all of its brokers know of them. A topic of a pattern that is gone is
  left out; how far it was copied is kept. If one goes while a cycle is under way and that fails,
  another begins.
* With the option exactlyOnce of the sink a task writes in a transaction, and drops what was
  committed before (`kraftpy.spark.copying`).
* A checkpoint is refused, before a cycle and behind it, if topics aren't its own (`mirrored`).
* Clusters that have answered once are waited for when they are away later.
* A target that isn't there is made with the source's own settings. Which of them change later is
  changed there too.
* Behind a cycle nothing is under way: then it is noted which offsets stand for which, what was
  copied is committed for a group that watches, and groups are translated (`groups`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

from kraftpy.client.offsets import READ_COMMITTED
from kraftpy.pipeline.alone import alone
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.folder import url_of
from kraftpy.pipeline.groups import commit_places, translate_groups
from kraftpy.pipeline.lake import clock_ms
from kraftpy.pipeline.mirrored import (
    CheckpointError,
    Names,
    Note,
    Notes,
    carry_settings,
    own_settings,
)
from kraftpy.pipeline.offset_syncs import SyncStore, advanced, begun
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.pipeline.session import refuse_speculation, spark_errors
from kraftpy.pipeline.target import Target, TargetTopic
from kraftpy.protocol.errors import KafkaError
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.positions import Offsets, OptionError, Partition, offsets_of
from kraftpy.spark.settings import STREAM, read_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_logger = logging.getLogger("kraftpy.pipeline")

_COLUMNS: Final[tuple[str, ...]] = ("key", "value", "partition", "timestamp", "headers")
_POLL_S: Final = 1
_MARKERS_S: Final = 2.0
_MARKERS_POLL_S: Final = 0.02
_ANY: Final = "any"  # what is asked of brokers names its topics itself


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle has copied, and how many offsets of groups it has translated."""

    rows: int
    batches: int
    seconds: float
    offsets: int = 0


@dataclass(frozen=True, slots=True)
class Preview:
    """What a cycle would do with a topic: make its copy or partitions, and copy the ranges."""

    topic: str
    to_topic: str
    creates: bool
    partitions: int
    adds_partitions: int
    ranges: tuple[OffsetRange, ...]


class Mirror:
    """Copies topics to others. `spark` is called when there is something to copy.

    `target` names no topic. `group` is one of the source whose offsets say how far it has come;
    with `offsets` the groups of the source are translated.
    """

    def __init__(
        self,
        source: Door,
        names: Names,
        target: Target,
        checkpoint: Path,
        spark: Callable[[], SparkSession],
        max_records: int = 1_000_000,
        *,
        group: str | None = None,
        offsets: bool = False,
    ) -> None:
        self._source = source
        self._names = names
        self._target = target
        self._checkpoint = checkpoint
        self._notes = Notes(checkpoint)
        self._syncs = SyncStore(checkpoint)
        self._spark = spark
        self._max_records = max_records
        self._group = group
        self._offsets = offsets
        self._looked_at_age: set[str] = set()
        self._told_groups: set[str] = set()
        self._under_way: frozenset[str] = frozenset()
        self._reached = False
        self._check_options()

    def cycles(self, *, every_s: float | None, stop: Event) -> Iterator[Cycle]:
        """Copies again and again; `every_s` None: once. Ends when `stop` is set, between cycles.

        Raises OptionError, CheckpointError, BusyError, KafkaError, OSError, and Spark's errors.
        """
        with self._alone():
            while not stop.is_set():
                began = time.monotonic()
                try:
                    cycle = self._cycle(began)
                except Exception as error:
                    expected = isinstance(error, (OptionError, KafkaError, *spark_errors()))
                    if not expected or not self._some_are_gone():
                        raise
                    continue
                yield cycle
                if every_s is None:
                    return
                stop.wait(max(0.0, began + every_s - time.monotonic()))

    def _cycle(self, began: float) -> Cycle:
        wanted = self._prepare()
        self._reached = True
        rows = self._copy(wanted) if wanted else {}
        offsets = self._settle(wanted, rows)
        return Cycle(sum(rows.values()), len(rows), time.monotonic() - began, offsets)

    def _some_are_gone(self) -> bool:
        """Whether topics of the pattern were deleted since the cycle began, and says which."""
        with self._near() as near:
            gone = sorted(self._under_way.difference(self._chosen(near)))
        for topic in gone:
            _logger.warning("topic %s was deleted while it was copied: going on without it", topic)
        return bool(gone)

    def preview(self) -> list[Preview]:
        """What a cycle would do now. Nothing is stored, made or read."""
        ends = self.ends()
        with self._near() as near, self._far() as far:
            return [self._preview(topic, near, far, ends) for topic in self._chosen(near)]

    def _preview(self, topic: str, near: Brokers, far: Brokers, ends: Offsets) -> Preview:
        identity, partitions = self._source.describe(near, topic)
        target = self._copy_of(topic)
        there = target.find(far)
        if there is not None:
            self._notes.check(topic, identity, target.topic, there.identity)
            self._warn_of_age(topic, partitions, target, there, near)
        names = [(topic, number) for number in partitions]
        first, last = near.earliest(names), near.latest(names)
        starts = {name: ends.get(name, first[name]) for name in names}
        had = 0 if there is None else there.partitions
        return Preview(
            topic=topic,
            to_topic=target.topic,
            creates=there is None,
            partitions=max(len(partitions), had),
            adds_partitions=max(0, len(partitions) - had) if had else 0,
            ranges=tuple(
                OffsetRange(*name, starts[name], last[name])
                for name in names
                if starts[name] < last[name]
            ),
        )

    def ends(self) -> Offsets:
        """Up to where each partition was copied, by the last batch that was committed.

        Raises CheckpointError.
        """
        commits = self._checkpoint / "spark" / "commits"
        there = [int(path.name) for path in commits.glob("*") if path.name.isdigit()]
        if not there:
            return {}
        path = self._checkpoint / "spark" / "offsets" / str(max(there))
        try:
            # The version of the format, what Spark notes of the batch, then a line per source.
            table = json.loads(path.read_text().splitlines()[2])
            return offsets_of({name: each for name, each in table.items() if name[0] != "@"})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} isn't what Spark writes there ({error}): restore it from a copy"
            ) from error

    # -- before a cycle

    def _near(self) -> Brokers:
        return self._source.brokers(_ANY, patiently=self._reached)

    def _far(self) -> Brokers:
        return self._target.brokers(patiently=self._reached)

    def _chosen(self, near: Brokers) -> list[str]:
        return self._names.choose(() if self._names.pattern is None else near.topics())

    def _copy_of(self, topic: str) -> Target:
        return self._target.of(self._names.copy_of(topic))

    def _alone(self) -> AbstractContextManager[None]:
        return alone(
            self._checkpoint / "lock",
            f"another process mirrors with checkpoint {self._checkpoint} now: wait for its end",
        )

    def _options(self, wanted: Mapping[str, list[int]]) -> dict[str, str]:
        return {
            "startingOffsets": "earliest",
            **self._source.reader_options(),
            "assign": json.dumps(wanted),
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self._max_records),
        }

    def _check_options(self) -> None:
        """Raises OptionError."""
        self._names.check()
        settings = read_settings(self._options({_ANY: [0]}), STREAM)
        if settings.min_partitions or settings.max_records_per_partition:
            raise OptionError(
                "options minPartitions and maxRecordsPerPartition have several tasks copy a"
                " partition at once, which mixes up its records; leave them out"
            )
        self._target.settings()

    def _prepare(self) -> dict[str, list[int]]:
        """Sees to it that topics are those of the checkpoint, and that their copies have room.

        Returns the partitions to copy.
        """
        with self._near() as near, self._far() as far:
            topics = self._chosen(near)
            self._under_way = frozenset(topics)
            wanted = {topic: self._prepare_one(topic, near, far) for topic in topics}
            self._begin_syncs(wanted, near, far)
        return wanted

    def _prepare_one(self, topic: str, near: Brokers, far: Brokers) -> list[int]:
        identity, partitions = self._source.describe(near, topic)
        settings = own_settings(near, topic)
        target = self._copy_of(topic)
        there = target.find(far)
        # Only a checkpoint that has no note of it is for a copy that isn't there.
        found = None if there is None else there.identity
        note = self._notes.check(topic, identity, target.topic, found)
        if there is None:
            target.create(far, len(partitions), settings)
        elif note is not None and note.settings is not None:
            carry_settings(far, target.topic, note.settings, settings)
        target.grow(far, len(partitions))
        there = target.describe(far)
        self._notes.check(topic, identity, target.topic, there.identity)
        self._notes.write(topic, Note(identity, target.topic, there.identity, settings))
        self._warn_of_age(topic, partitions, target, there, near)
        return partitions

    def _begin_syncs(self, wanted: Mapping[str, list[int]], near: Brokers, far: Brokers) -> None:
        """Notes where both sides are before anything of a partition is copied."""
        syncs, ends = self._syncs.read(list(wanted)), self.ends()
        starting = read_settings(self._options(wanted or {_ANY: [0]}), STREAM).starting
        new = [name for name in _partitions(wanted) if name not in syncs and name not in ends]
        if new and starting.kind == "earliest":
            now = begun(syncs, near.earliest(new), self._ends_there(far, new))
            self._syncs.write(syncs, now)

    def _ends_there(self, far: Brokers, names: list[Partition]) -> dict[Partition, int]:
        """Where the copies of partitions end, by their names at the source.

        A transaction is committed before its marker is everywhere: that is waited for.
        """
        copies = {(self._names.copy_of(topic), number): (topic, number) for topic, number in names}
        found = far.latest(copies)
        if self._target.settings().exactly_once:
            deadline = time.monotonic() + _MARKERS_S
            while (stable := far.latest(copies, READ_COMMITTED)) != found:
                if time.monotonic() > deadline:
                    found = stable  # before what somebody else writes there
                    break
                time.sleep(_MARKERS_POLL_S)
                found = far.latest(copies)
        return {copies[name]: end for name, end in found.items()}

    def _warn_of_age(
        self, topic: str, partitions: list[int], target: Target, there: TargetTopic, near: Brokers
    ) -> None:
        """Says if the target's brokers will delete some of what is to be copied.

        Looks once: what comes later is young.
        """
        now_ms = clock_ms()
        looked = topic in self._looked_at_age
        self._looked_at_age.add(topic)
        if looked or there.retention_ms is None or there.retention_ms >= now_ms:
            return
        kept_ms = now_ms - there.retention_ms
        names = [(topic, partition) for partition in partitions]
        first, last = near.earliest(names), near.latest(names)
        young = near.offsets(dict.fromkeys(names, kept_ms))
        ends = self.ends()
        for name in names:
            start = max(first[name], ends.get(name, 0))
            if start < (young[name] if young[name] >= 0 else last[name]):
                target.warn_of_age(there, kept_ms - 1, now_ms)
                return

    # -- the cycle, and behind it

    def _copy(self, wanted: Mapping[str, list[int]]) -> dict[int, int]:
        """Runs one query to its end; the rows of each batch."""
        spark = self._spark()
        refuse_speculation(spark)
        options = self._options(wanted)
        retries = read_settings(options, STREAM).client.patient().retries
        options["fetchOffset.numRetries"] = str(retries)
        frame = spark.readStream.format("kraftpy").options(**options).load()
        sink, columns = "kraftpy", _COLUMNS
        if self._target.settings().exactly_once:
            from kraftpy.spark.copying import SINK, CopyingSink

            spark.dataSource.register(CopyingSink)
            sink, columns = SINK, (*_COLUMNS, "offset")
        query = (
            self._named(frame, columns)
            .writeStream.format(sink)
            .options(**self._target.options)
            .option("checkpointLocation", url_of(self._checkpoint / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        rows: dict[int, int] = {}
        try:
            while not query.awaitTermination(_POLL_S):
                _add_rows(rows, query)
        finally:
            query.stop()
        _add_rows(rows, query)
        return rows

    def _named(self, frame: DataFrame, columns: tuple[str, ...]) -> DataFrame:
        """These columns, and the copies' names as topics."""
        from pyspark.sql import functions

        if self._names.to_topic is not None:
            name = functions.lit(self._names.to_topic)
        else:
            name = functions.concat(functions.lit(self._names.prefix), functions.col("topic"))
        return frame.select(name.alias("topic"), *columns)

    def _settle(self, wanted: Mapping[str, list[int]], rows: Mapping[int, int]) -> int:
        """Checks the topics and notes how far they are; how many offsets of groups followed.

        Raises CheckpointError if a topic isn't the one any more that the cycle began with.
        """
        with self._near() as near, self._far() as far:
            for topic in wanted:
                target = self._copy_of(topic)
                source, _ = self._source.describe(near, topic)
                self._notes.check(topic, source, target.topic, target.describe(far).identity)
            ends = self.ends()
            names = [name for name in _partitions(wanted) if name in ends]
            if not names:
                return 0
            before = self._syncs.read(list(wanted))
            # A batch of a partition that was written exactly once ends with a marker.
            markers = int(self._target.settings().exactly_once and len(rows) == 1)
            syncs = advanced(
                before,
                {name: ends[name] for name in names},
                self._ends_there(far, names),
                rows=sum(rows.values()),
                markers=markers,
            )
            self._syncs.write(before, syncs)
            if self._group is not None:
                commit_places(near, self._group, {name: ends[name] for name in names})
            if not self._offsets:
                return 0
            return translate_groups(
                near, far, syncs, self._names.copy_of, self._group, self._told_groups
            ).offsets


def _partitions(wanted: Mapping[str, list[int]]) -> list[Partition]:
    return [(topic, number) for topic, numbers in wanted.items() for number in numbers]


def _add_rows(rows: dict[int, int], query: StreamingQuery) -> None:
    for progress in query.recentProgress:
        if progress.numInputRows:
            rows[progress.batchId] = progress.numInputRows
