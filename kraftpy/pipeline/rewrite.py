"""Files of a lake into other files of it: small ones together, parts of others left out.

Each task reads files of one partition, merged by offset, for one may lie in a gap of another; a
batch of rows of each of those that overlap is in memory at a time. What was written is checked
against what was read: a rewrite that lost a row fails, it isn't committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kraftpy.pipeline.lake import LakeError
from kraftpy.pipeline.manifests import DataFile
from kraftpy.pipeline.parquet import Target, write_files
from kraftpy.pipeline.parts import read_rows
from kraftpy.pipeline.ranges import OffsetRange, Spans, spans_of
from kraftpy.pipeline.table import write_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Files of one partition, at least one, and the offsets to leave out."""

    files: tuple[DataFile, ...]
    without: Spans = ()


def keep_besides(files: Iterable[DataFile], ranges: Iterable[OffsetRange]) -> list[Rewriting]:
    """What saves the rows that the files have outside of the ranges."""
    wanted = spans_of(ranges)
    tasks = []
    for file in files:
        without = wanted.get((file.topic, file.partition), ())
        if not any(start <= file.first_offset and file.last_offset < end for start, end in without):
            tasks.append(Rewriting((file,), without))
    return tasks


def rewrite(
    spark: Callable[[], SparkSession], target: Target, tasks: list[Rewriting]
) -> list[DataFile]:
    """Does the tasks, and returns the new files. Raises Spark's errors."""
    if not tasks:
        return []
    return write_tasks(spark(), [partial(_rewrite, target, task) for task in tasks])


def _rewrite(target: Target, task: Rewriting) -> Iterator[pa.RecordBatch]:
    left_out = read = written = 0

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal left_out, read
        for batch in read_rows(target.folder, task.files, _span(task.files)):
            kept = batch.filter(pa.array(_outside(batch, task.without)))
            read += batch.num_rows
            left_out += batch.num_rows - kept.num_rows
            yield kept

    for described in write_files(target)(rows()):
        written += described.column("rows")[0].as_py()
        yield described
    known = sum(file.rows for file in task.files)
    if read != known or written != known - left_out:
        raise LakeError(
            f"{task.files[0].path} and those after it have {read} rows, the lake knows of {known};"
            f" {written} were written: the files were changed by somebody, restore them"
        )


def _span(files: Sequence[DataFile]) -> OffsetRange:
    """All the offsets that they may have."""
    first = min(file.first_offset for file in files)
    last = max(file.last_offset for file in files)
    return OffsetRange(files[0].topic, files[0].partition, first, last + 1)


def _outside(batch: pa.RecordBatch, without: Spans) -> np.ndarray:
    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    outside = np.ones(len(offsets), dtype=bool)
    for start, end in without:
        outside &= (offsets < start) | (offsets >= end)
    return outside
