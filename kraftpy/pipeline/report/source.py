"""Where a report's records come from: one version of a lake, or a topic as it is now.

Both are frozen before anything is read: what comes meanwhile is in the next report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.pipeline.bounds import Bound, resolve
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.lake import Lake, LakeError, LakeVersion
from kraftpy.pipeline.ranges import OffsetRange
from kraftpy.pipeline.table import read_lake
from kraftpy.spark.source import SCHEMA_WITH_HEADERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_RECORDS_PER_TASK = 1_000_000


class Source(Protocol):
    """Some records of a topic."""

    def facts(self) -> dict[str, Any]:
        """What the report says about it, as JSON."""

    def plan(self) -> list[str]:
        """What is going to be read, in words."""

    def table(self, spark: SparkSession) -> DataFrame:
        """The records."""


@dataclass(frozen=True, slots=True)
class LakeSource:
    """A topic as of one version of a lake."""

    lake: Lake
    version: LakeVersion
    topic: str

    @classmethod
    def newest(cls, lake: Lake, topic: str) -> LakeSource:
        """Raises LakeError if the lake has nothing of the topic."""
        version = lake.latest()
        if topic not in version.topics:
            raise LakeError(
                f"there is nothing of topic {topic} in {lake.folder}: load it with"
                f" `kraftpy pipeline load {topic} {lake.folder}`"
            )
        return cls(lake, version, topic)

    def facts(self) -> dict[str, Any]:
        return {"lake": str(self.lake.folder), "version": self.version.number}

    def plan(self) -> list[str]:
        files = [file for file in self.version.files.values() if file.topic == self.topic]
        rows = sum(file.rows for file in files)
        return [f"{rows} rows in {len(files)} files of version {self.version.number} of the lake"]

    def table(self, spark: SparkSession) -> DataFrame:
        return read_lake(spark, self.lake, self.topic, self.version)


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic's offsets from its start to where it ended when it was asked."""

    door: Door
    ranges: Sequence[OffsetRange]

    @classmethod
    def now(cls, door: Door, topic: str) -> TopicSource:
        """Raises OptionError if there is no such topic."""
        with door.brokers(topic) as brokers:
            _, partitions = door.describe(brokers, topic)
            first, last = (
                resolve(Bound.read(each), brokers, topic, partitions, LakeVersion())
                for each in ("earliest", "latest")
            )
        return cls(door, [OffsetRange(topic, one, first[one], last[one]) for one in partitions])

    def facts(self) -> dict[str, Any]:
        ends = {str(one.partition): [one.start, one.end] for one in self.ranges}
        return {"bootstrap": self.door.bootstrap, "offsets": ends}

    def plan(self) -> list[str]:
        return [str(one) for one in self.ranges if one.start < one.end]

    def table(self, spark: SparkSession) -> DataFrame:
        most = _MAX_RECORDS_PER_TASK
        found = self.door.table(spark, self.ranges, max_records_per_task=most)
        return spark.createDataFrame([], SCHEMA_WITH_HEADERS) if found is None else found
