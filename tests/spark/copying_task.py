"""A task of a mirror that copies exactly once, without Spark around it; killed at a stage, if any.

`python -m tests.spark.copying_task STAGE BOOTSTRAP TOPIC FIRST END` copies the offsets from FIRST
to before END of partition 1.
"""

from __future__ import annotations

import os
import signal
import sys

import pyarrow as pa
from pyspark import TaskContext

from kraftpy.spark.copying import CopyingWriter
from kraftpy.spark.settings import write_settings
from tests.spark.dying_sinks import dying

PARTITION = 1
QUERY = "query"
_PER_TABLE = 20


def table(offsets: range, partition: int = PARTITION) -> pa.RecordBatch:
    """Rows whose values are their offsets."""
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(len(offsets), pa.binary()),
            "value": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "timestamp": pa.array([0] * len(offsets), pa.timestamp("us", "UTC")),
            "offset": pa.array(offsets, pa.int64()),
        }
    )


def tables(first: int, end: int) -> list[pa.RecordBatch]:
    """The offsets in some tables."""
    return [
        table(range(start, min(start + _PER_TABLE, end))) for start in range(first, end, _PER_TABLE)
    ]


def writer(bootstrap: str, topic: str) -> CopyingWriter:
    """What a task has, once there is a context that says which query it is of."""
    said = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "exactlyOnce": "true"}
    return CopyingWriter(write_settings(said | {"keepTimestamps": "true"}))


def become_task() -> None:
    """Lets this process be a task."""
    context = TaskContext._getOrCreate()
    context._localProperties = {"sql.streaming.queryId": QUERY}
    TaskContext._setTaskContext(context)


def main(stage: str, bootstrap: str, topic: str, first: str, end: str) -> None:
    """Copies, or dies."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    become_task()
    with dying(stage, die):
        writer(bootstrap, topic).write(iter(tables(int(first), int(end))))
    if stage == "committed":
        die()


if __name__ == "__main__":
    main(*sys.argv[1:])
