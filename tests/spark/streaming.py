"""Processes with streams that are killed with -9, or held: `python -m tests.spark.streaming ...`.

`query STAGE BOOTSTRAP TOPIC FOLDER` runs a query with a checkpoint in a process that kills itself
and its Java at a stage.  `held FOLDER kraftpy-arguments...` runs `kraftpy` with tasks that wait,
once they have begun, until there is a file `go` in the folder.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

import kraftpy.pipeline.table
from kraftpy.cli.app import app
from kraftpy.pipeline.parquet import Target, write_files
from kraftpy.spark.settings import STREAM, read_settings
from kraftpy.spark.source import SCHEMA, columns_of
from kraftpy.spark.stream import StreamReader
from tests.spark.topics import fill, numbered

STAGES = ("not planned", "planned", "written", "half written", "committed")
PER_BATCH = 20
_BEFORE_THE_FIRST_BATCH = STAGES[:2]
_OWN = ("stage", "victims", "commits")


class DyingReader(StreamReader):
    """Kills the driver at a stage. Records come while a query asks where it begins."""

    stage: str
    victims: Sequence[int]
    commits: Path
    bootstrap: str
    topic: str

    def _die_at(self, stage: str) -> None:
        if self.stage == stage:
            for pid in self.victims:
                os.kill(pid, signal.SIGKILL)
            time.sleep(60)  # whoever else is left is to come no further

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        first = self._initial is None
        begin = super().initialOffset()
        if first and self.stage in _BEFORE_THE_FIRST_BATCH:
            fill(self.bootstrap, self.topic, numbered(PER_BATCH))
        return begin

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        end = super().latestOffset(start, limit)
        self._die_at("not planned")
        if (self.commits / "1").exists():
            self._die_at("committed")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._die_at("planned")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch.slice(0, 5)
            if partition.value.start >= 3 * PER_BATCH:  # not in the first batch
                self._die_at("half written")
            yield batch.slice(5)


class DyingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = {key: value for key, value in self.options.items() if key not in _OWN}
        reader = DyingReader(read_settings(options, STREAM), columns_of(schema))
        reader.stage = self.options["stage"]
        reader.victims = [int(pid) for pid in self.options["victims"].split(",")]
        reader.commits = Path(self.options["commits"])
        reader.bootstrap = options["kafka.bootstrap.servers"]
        reader.topic = options["subscribe"]
        return reader


def query(stage: str, bootstrap: str, topic: str, folder: str) -> None:
    """Into Parquet files, a folder for each batch, until there is no more; dies at the stage."""
    from tests.spark.session import start_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = start_session(Path(folder), [], cores=2)
    spark.dataSource.register(DyingSource)
    victims = [spark.sparkContext._gateway.proc.pid, os.getpid()]

    def write(frame: Any, number: int) -> None:
        frame.write.mode("overwrite").parquet(f"{folder}/out/batch={number}")
        if stage == "written":
            for pid in victims:
                os.kill(pid, signal.SIGKILL)

    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "latest",
        "maxOffsetsPerTrigger": str(PER_BATCH),
        "stage": stage,
        "victims": ",".join(map(str, victims)),
        "commits": f"{folder}/checkpoint/commits",
    }
    # What comes after a query has asked for its beginning isn't "now" any more.
    goes_on = stage in _BEFORE_THE_FIRST_BATCH
    trigger: Any = {"processingTime": "0 seconds"} if goes_on else {"availableNow": True}
    (
        spark.readStream.format("dying")
        .options(**options)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(**trigger)
        .start()
        .awaitTermination()
    )


def _held(folder: Path) -> Callable[[Target], Callable[[Iterator[Any]], Iterator[Any]]]:
    """`write_files`, but each task says that it has begun and waits until it may go on."""

    def holding(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
        def write(batches: Iterator[Any]) -> Iterator[Any]:
            (folder / "begun").touch()
            deadline = time.monotonic() + 120
            while not (folder / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield from write_files(target)(batches)

        return write

    return holding


def held(folder: str, arguments: list[str]) -> None:
    """Run `kraftpy` with tasks that wait."""
    kraftpy.pipeline.table.write_files = _held(Path(folder))
    app(arguments)


if __name__ == "__main__":
    if sys.argv[1] == "query":
        query(*sys.argv[2:])
    else:
        held(sys.argv[2], sys.argv[3:])
