"""Queries and tasks that write exactly once, and are killed with -9 on the way.

`python -m tests.spark.dying_sinks query STAGE BOOTSTRAP SOURCE TARGET FOLDER` runs a query with a
checkpoint that kills itself, its Java and the task at a stage of its second batch.  With the stage
`tasks`, tasks of its batches die, each at another stage, and Spark does them again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

import kraftpy.spark.exactly_once as module
from kraftpy.spark.delivery import Sender
from kraftpy.spark.exactly_once import MarkingProducer
from kraftpy.spark.settings import write_settings
from kraftpy.spark.sink import StreamWriter

IN_TASKS = ("begun", "some rows sent", "all rows sent", "handed over")
IN_COMMIT = ("tasks done", "some committed", "all committed")
STAGES = (*IN_TASKS, *IN_COMMIT)
TASKS = "tasks"
PER_BATCH = 40
_OWN = ("stage", "victims", "folder")
_DYING_BATCH = 1


class DyingWriter(StreamWriter):
    """Dies at a stage."""

    stage: str
    victims: Sequence[int]
    folder: Path

    def _die(self) -> None:
        for pid in (*self.victims, os.getpid()):
            os.kill(pid, signal.SIGKILL)

    def _die_once(self) -> None:
        """A task's own death: whoever comes after it lives."""
        try:
            (self.folder / f"died {self.stage}").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        die = self._die
        if self.stage == TASKS and batch < len(IN_TASKS):
            self.stage, die = IN_TASKS[batch], self._die_once
        elif batch != _DYING_BATCH:
            return super().write(iterator)
        with dying(self.stage, die):
            written = super().write(iterator)
        if self.stage == "handed over":
            die()
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if batchId != _DYING_BATCH:
            super().commit(messages, batchId)
            return
        if self.stage == "tasks done":
            self._die()
        with dying(self.stage, self._die):
            super().commit(messages, batchId)
        if self.stage == "all committed":
            self._die()


def dying(stage: str, die: Callable[[], None]) -> ExitStack:
    """Has `die` called when a task, or the driver's commit, gets to the stage."""
    begin, send = MarkingProducer.begin, Sender.send
    mark, end = MarkingProducer.mark, module.end_transaction
    commit = MarkingProducer.commit_transaction
    ended: list[Any] = []

    async def dying_begin(producer: MarkingProducer) -> Any:
        marker = await begin(producer)
        die()
        return marker

    async def dying_send(sender: Sender, table: Any) -> None:
        half = table.num_rows // 2
        await send(sender, table.slice(0, half))
        await sender._producer.flush()
        die()
        await send(sender, table.slice(half))

    async def dying_mark(producer: MarkingProducer, marker: Any) -> None:
        await producer.flush()
        die()
        await mark(producer, marker)

    async def dying_end(cluster: Any, transaction: Any, *, committed: bool) -> None:
        ended.append(transaction)
        if len(ended) == 1:
            await end(cluster, transaction, committed=committed)
            die()
        await asyncio.sleep(60)

    async def dying_commit(producer: MarkingProducer) -> None:
        await producer.flush()
        die()
        await commit(producer)

    stack = ExitStack()
    if stage == "begun":
        stack.enter_context(patch.object(MarkingProducer, "begin", dying_begin))
    elif stage == "some rows sent":
        stack.enter_context(patch.object(Sender, "send", dying_send))
    elif stage == "all rows sent":
        stack.enter_context(patch.object(MarkingProducer, "mark", dying_mark))
    elif stage == "marked":  # by who commits by itself
        stack.enter_context(patch.object(MarkingProducer, "commit_transaction", dying_commit))
    elif stage == "some committed":
        stack.enter_context(patch.object(module, "end_transaction", dying_end))
    return stack


class DyingSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "dying-sink"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = {key: value for key, value in self.options.items() if key not in _OWN}
        writer = DyingWriter(write_settings(options))
        writer.stage = self.options["stage"]
        writer.victims = [int(pid) for pid in self.options["victims"].split(",")]
        writer.folder = Path(self.options["folder"])
        return writer


def query(stage: str, bootstrap: str, source: str, target: str, folder: str) -> None:
    """Copies a topic, each record once, until there is no more; dies at the stage."""
    from tests.spark.session import start_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # A task may fail as often as the stages have it die.
    spark = start_session(Path(folder), [], cores=2, spark_master="local[2,9]")
    spark.dataSource.register(DyingSink)
    victims = [spark.sparkContext._gateway.proc.pid, os.getpid()]
    (
        spark.readStream.format("kraftpy")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(PER_BATCH))
        .load()
        .select("key", "value")
        .writeStream.format("dying-sink")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("exactlyOnce", "true")
        .option("stage", stage)
        .option("victims", ",".join(map(str, victims)))
        .option("folder", folder)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    query(*sys.argv[2:])
