"""The two doors to a topic: `format("kraftpy")`, and Spark's own `format("kafka")`.

A job says which offsets it wants; both doors give the same table. Theirs needs Spark's Kafka
connector on the session (`spark.jars` or `--packages`), ours only the extra.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Literal

from kraftpy.pipeline.manifests import TopicIdentity
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.pipeline.tasks import Call
from kraftpy.spark.batch import BatchReader
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import BATCH, ClientSettings, read_settings
from kraftpy.spark.source import SCHEMA_WITH_HEADERS, columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Door:
    """How a job reaches its topic. `options` go to the source as they are (`kafka.*`, ...)."""

    bootstrap: str
    format: Literal["kraftpy", "kafka"] = "kraftpy"
    options: Mapping[str, str] = field(default_factory=dict)

    def brokers(self, topic: str, *, patiently: bool = False) -> Brokers:
        """The cluster, for the driver's questions; with the isolation that the job reads with.

        `patiently`: for who has reached them before.
        """
        client = self._client(topic)
        return Brokers(client.patient() if patiently else client)

    def _client(self, topic: str) -> ClientSettings:
        """Raises OptionError, also for what is not for a pipeline."""
        settings = read_settings({**self.reader_options(), "subscribe": topic}, BATCH)
        if settings.slices_per_partition > 1:
            raise OptionError(
                "option slicesPerPartition is not for a pipeline, whose tasks take the records of"
                " a partition in the order of offsets: leave it out"
            )
        return settings.client

    def fails_on_data_loss(self) -> bool:
        """Whether a job ends when offsets that it wants are gone."""
        return read_settings({**self.reader_options(), "subscribe": "any"}, BATCH).fail_on_data_loss

    def strict(self) -> Door:
        """The same, but offsets that are gone end the job, whatever its options say."""
        name = "failOnDataLoss"
        others = {key: text for key, text in self.options.items() if key.lower() != name.lower()}
        return Door(self.bootstrap, self.format, {**others, name: "true"})

    def describe(self, brokers: Brokers, topic: str) -> tuple[TopicIdentity, list[int]]:
        """Which topic the name stands for now, and its partitions. Raises OptionError."""
        found = brokers.partitions([topic])
        if topic not in found:
            raise OptionError(f"there is no topic {topic} at {self.bootstrap}")
        cluster = brokers.cluster()
        identity = TopicIdentity(cluster.cluster_id or "", cluster.topics[topic].id.hex())
        return identity, found[topic]

    def table(
        self, spark: SparkSession, ranges: Iterable[OffsetRange], *, max_records_per_task: int
    ) -> DataFrame | None:
        """The records of the ranges, for who has reached the brokers before; None if all are empty.

        Spark partitions hold records of one topic partition each, in the order of offsets.
        """
        tables = [
            spark.read.format(self.format)
            .options(**self._options(each, max_records_per_task))
            .load()
            for each in _rounds(ranges)
        ]
        return reduce(lambda one, other: one.unionByName(other), tables) if tables else None

    def readers(self, ranges: Iterable[OffsetRange], *, max_records_per_task: int) -> list[Call]:
        """What the tasks of our own `table` read, for who needs no table: a call for each.

        Raises what the planning of `table` does.
        """
        found: list[Call] = []
        for each in _rounds(ranges):
            settings = read_settings(self._options(each, max_records_per_task), BATCH)
            reader = BatchReader(settings, columns_of(SCHEMA_WITH_HEADERS))
            found += [partial(reader.read, task) for task in reader.partitions()]
        return found

    def _options(self, ranges: list[OffsetRange], max_records_per_task: int) -> dict[str, str]:
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for topic, partition, start, end in ranges:
            starts.setdefault(topic, {})[str(partition)] = start
            ends.setdefault(topic, {})[str(partition)] = end
        options = {
            **self.reader_options(),
            "assign": json.dumps({topic: [*map(int, parts)] for topic, parts in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "includeHeaders": "true",
        }
        if self.format == "kraftpy":
            options["maxRecordsPerPartition"] = str(max_records_per_task)
            retries = self._client(ranges[0].topic).patient().retries
            options["fetchOffset.numRetries"] = str(retries)
        else:
            # Theirs knows the size of tasks in streams only; it shares them out by size. It may
            # wait a minute for each answer, and asks again by itself.
            tasks = sum(-(-(one.end - one.start) // max_records_per_task) for one in ranges)
            options["minPartitions"] = str(tasks)
        return options

    def reader_options(self) -> dict[str, str]:
        """What every reader of the job is given: the user's options and what goes with each."""
        return {
            "kafka.isolation.level": READ_COMMITTED,
            **self.options,
            "kafka.bootstrap.servers": self.bootstrap,
        }


def _rounds(ranges: Iterable[OffsetRange]) -> list[list[OffsetRange]]:
    """The ranges that aren't empty, in lists with at most one of each partition.

    A source is asked for one range of a partition at a time.
    """
    rounds: list[list[OffsetRange]] = []
    taken: Counter[tuple[str, int]] = Counter()
    for each in ranges:
        if each.start < each.end:
            turn = taken[each.topic, each.partition]
            taken[each.topic, each.partition] += 1
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(each)
    return rounds
