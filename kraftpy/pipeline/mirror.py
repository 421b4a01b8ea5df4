"""`mirror`: a topic of one cluster into a topic of another, and what comes later too.

    <checkpoint>/mirror.json     which topics they are
    <checkpoint>/spark           where Spark keeps how far it has come

Rules:

* A cycle is a query of Structured Streaming that reads what is there when it begins, in batches,
  and ends. A job is stopped between cycles, so a batch is repeated only after a crash.
* One task copies what a batch has of a partition, so records keep their order (see
  `kraftpy.spark.delivery` for what that means when some are sent twice).
* A cycle reads the partitions that the source has when it begins; before that, the target is given
  as many, and all of its brokers know of them.
* With the option exactlyOnce of the sink a task writes in a transaction, and drops what was
  committed before (`kraftpy.spark.copying`).
* A checkpoint is of two topics. If one of them was deleted and created again, its offsets mean
  other records, and the checkpoint is refused: before a cycle, and behind it.
* Clusters that have answered once are waited for when they are away later.
* A target that isn't there is made with the source's own settings, but for those that depend on the
  cluster or would change timestamps: the ones that MirrorMaker leaves out (KIP-382, KIP-937).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from kraftpy.client.admin import Admin
from kraftpy.pipeline.alone import alone
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.folder import put_if_absent, url_of
from kraftpy.pipeline.lake import clock_ms
from kraftpy.pipeline.manifests import TopicIdentity
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.pipeline.session import refuse_speculation
from kraftpy.pipeline.target import Target, TargetTopic
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.positions import OptionError, offsets_of
from kraftpy.spark.settings import STREAM, read_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_COLUMNS: Final[tuple[str, ...]] = ("key", "value", "partition", "timestamp", "headers")
_POLL_S: Final = 1
_NOT_COPIED: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)


_NONE: Final = TopicIdentity("", "")


class CheckpointError(Exception):
    """The checkpoint isn't one of this mirror; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle has copied."""

    rows: int
    batches: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Preview:
    """What a cycle would do: make the target or partitions of it, and copy the ranges."""

    creates: bool
    partitions: int
    adds_partitions: int
    ranges: tuple[OffsetRange, ...]


class Mirror:
    """Copies one topic to one other. `spark` is called when there is something to copy."""

    def __init__(
        self,
        source: Door,
        topic: str,
        target: Target,
        checkpoint: Path,
        spark: Callable[[], SparkSession],
        max_records: int = 1_000_000,
    ) -> None:
        self._source = source
        self._topic = topic
        self._target = target
        self._checkpoint = checkpoint
        self._spark = spark
        self._max_records = max_records
        self._looked_at_age = False
        self._reached = False
        self._check_options()

    def cycles(self, *, every_s: float | None, stop: Event) -> Iterator[Cycle]:
        """Copies again and again; `every_s` None: once. Ends when `stop` is set, between cycles.

        Raises OptionError, CheckpointError, BusyError, KafkaError, OSError, and Spark's errors.
        """
        with self._alone():
            while not stop.is_set():
                began = time.monotonic()
                partitions = self._prepare()
                self._reached = True
                rows = self._copy(partitions)
                self._check_still_there()
                yield Cycle(sum(rows.values()), len(rows), time.monotonic() - began)
                if every_s is None:
                    return
                stop.wait(max(0.0, began + every_s - time.monotonic()))

    def preview(self) -> Preview:
        """What a cycle would do now. Nothing is stored, made or read."""
        with self._source.brokers(self._topic) as brokers:
            identity, partitions = self._source.describe(brokers, self._topic)
            names = [(self._topic, partition) for partition in partitions]
            first, last = brokers.earliest(names), brokers.latest(names)
        with self._target.brokers() as brokers:
            target = self._target.find(brokers)
        if target is not None:
            self._check_pair(identity, target.identity)
            self._warn_of_age(partitions, target)
        ends = self.ends()
        starts = {name: ends.get(name[1], first[name]) for name in names}
        had = 0 if target is None else target.partitions
        return Preview(
            creates=target is None,
            partitions=max(len(partitions), had),
            adds_partitions=max(0, len(partitions) - had) if had else 0,
            ranges=tuple(
                OffsetRange(*name, starts[name], last[name])
                for name in names
                if starts[name] < last[name]
            ),
        )

    def ends(self) -> dict[int, int]:
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
            table = json.loads(path.read_text().splitlines()[2])[self._topic]
            return {partition: end for (_, partition), end in offsets_of({"": table}).items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} isn't what Spark writes there ({error}): restore it from a copy"
            ) from error

    def _alone(self) -> AbstractContextManager[None]:
        return alone(
            self._checkpoint / "lock",
            f"another process mirrors with checkpoint {self._checkpoint} now: wait for its end",
        )

    def _options(self, partitions: Sequence[int]) -> dict[str, str]:
        return {
            "startingOffsets": "earliest",
            **self._source.reader_options(),
            "assign": json.dumps({self._topic: list(partitions)}),
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self._max_records),
        }

    def _check_options(self) -> None:
        """Raises OptionError."""
        settings = read_settings(self._options([0]), STREAM)
        if settings.min_partitions or settings.max_records_per_partition:
            raise OptionError(
                "options minPartitions and maxRecordsPerPartition have several tasks copy a"
                " partition at once, which mixes up its records; leave them out"
            )
        self._target.settings()

    def _prepare(self) -> list[int]:
        """Sees to it that both topics are those of the checkpoint, and that the target has room.

        Returns the partitions to copy.
        """
        with self._source.brokers(self._topic, patiently=self._reached) as brokers:
            identity, partitions = self._source.describe(brokers, self._topic)
            configs = _own_settings(brokers, self._topic)
        with self._target.brokers(patiently=self._reached) as brokers:
            if self._target.find(brokers) is None:
                self._check_pair(identity, _NONE)  # only a new checkpoint is for a new topic
                self._target.create(brokers, len(partitions), configs)
            self._target.grow(brokers, len(partitions))
            target = self._target.describe(brokers)
        self._check_pair(identity, target.identity)
        put_if_absent(self._checkpoint / "mirror.json", self._pair(identity, target.identity))
        self._check_pair(identity, target.identity)
        self._warn_of_age(partitions, target)
        return partitions

    def _warn_of_age(self, partitions: Sequence[int], target: TargetTopic) -> None:
        """Says if the target's brokers will delete some of what is to be copied.

        Looks once: what comes later is young.
        """
        now_ms = clock_ms()
        looked, self._looked_at_age = self._looked_at_age, True
        if looked or target.retention_ms is None or target.retention_ms >= now_ms:
            return
        kept_ms = now_ms - target.retention_ms
        names = [(self._topic, partition) for partition in partitions]
        with self._source.brokers(self._topic) as brokers:
            first, last = brokers.earliest(names), brokers.latest(names)
            young = brokers.offsets(dict.fromkeys(names, kept_ms))
        ends = self.ends()
        for name in names:
            start = max(first[name], ends.get(name[1], 0))
            if start < (young[name] if young[name] >= 0 else last[name]):
                self._target.warn_of_age(target, kept_ms - 1, now_ms)
                return

    def _check_still_there(self) -> None:
        """Raises CheckpointError if a topic isn't the one any more that the cycle began with."""
        with self._source.brokers(self._topic, patiently=True) as brokers:
            source, _ = self._source.describe(brokers, self._topic)
        with self._target.brokers(patiently=True) as brokers:
            target = self._target.describe(brokers).identity
        self._check_pair(source, target)

    def _pair(self, source: TopicIdentity, target: TopicIdentity) -> bytes:
        pair = {
            "source": {"topic": self._topic, **asdict(source)},
            "target": {"topic": self._target.topic, **asdict(target)},
        }
        return json.dumps(pair, indent=1).encode() + b"\n"

    def _check_pair(self, source: TopicIdentity, target: TopicIdentity) -> None:
        """Raises OptionError or CheckpointError unless these are a mirror and the checkpoint's."""
        # By name as well: brokers before Kafka 2.8 know no ids, so all topics of one have the same.
        if (self._topic, source) == (self._target.topic, target):
            raise OptionError(
                f"{self._topic} would be copied to itself, without end: name another topic with"
                " --to-topic, or another cluster with --to-bootstrap"
            )
        try:
            found = (self._checkpoint / "mirror.json").read_bytes()
        except FileNotFoundError:
            return
        if found != self._pair(source, target):
            raise CheckpointError(
                f"checkpoint {self._checkpoint} is of other topics than {self._topic} and"
                f" {self._target.topic} are now (another name or cluster, or one of them was"
                " deleted and created again): name another folder to copy all from the start"
            )

    def _copy(self, partitions: Sequence[int]) -> dict[int, int]:
        """Runs one query to its end; the rows of each batch."""
        spark = self._spark()
        refuse_speculation(spark)
        options = self._options(partitions)
        retries = read_settings(options, STREAM).client.patient().retries
        options["fetchOffset.numRetries"] = str(retries)
        frame = spark.readStream.format("kraftpy").options(**options).load()
        sink, columns = "kraftpy", _COLUMNS
        if self._target.settings().exactly_once:
            from kraftpy.spark.copying import SINK, CopyingSink

            spark.dataSource.register(CopyingSink)
            sink, columns = SINK, (*_COLUMNS, "offset")
        query = (
            frame.select(*columns)
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


def _add_rows(rows: dict[int, int], query: StreamingQuery) -> None:
    for progress in query.recentProgress:
        if progress.numInputRows:
            rows[progress.batchId] = progress.numInputRows


def _own_settings(brokers: Brokers, topic: str) -> Mapping[str, str]:
    """The settings that the topic has by itself, without those that stay with its cluster."""
    found: list[Any] = brokers.run(Admin(brokers.cluster()).describe_configs(topic))
    return {
        each.name: each.value
        for each in found
        if each.source == "topic" and each.value is not None and each.name not in _NOT_COPIED
    }
