"""`compact`: many small files of a lake become few large ones, and what nobody needs is deleted.

A compaction changes no row and no offset. It may run beside loads: what it has merged is committed
only if no rerun has replaced it meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kraftpy.pipeline.lake import Lake, LakeVersion, clock_ms, new_run
from kraftpy.pipeline.manifests import DataFile, Plan
from kraftpy.pipeline.parquet import Target
from kraftpy.pipeline.rewrite import Rewriting, rewrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: files that became fewer, and what was deleted from the disk."""

    run: str
    merged: int
    files: int
    rows: int
    swept: int


def merges(version: LakeVersion, max_file_size_bytes: int) -> list[Rewriting]:
    """Neighbours that fit into one file together, of each partition."""
    files = sorted(version.files.values(), key=lambda one: (*_partition(one), one.first_offset))
    found = []
    for _, neighbours in itertools.groupby(files, _partition):
        together: list[DataFile] = []
        for file in neighbours:
            size_bytes = sum(one.size_bytes for one in together) + file.size_bytes
            if together and size_bytes > max_file_size_bytes:
                found.append(together)
                together = []
            together.append(file)
        found.append(together)
    return [Rewriting(tuple(together)) for together in found if len(together) > 1]


def compact(
    lake: Lake, spark: Callable[[], SparkSession], max_file_size_bytes: int, *, keep_ms: int
) -> Compacted:
    """Merges small files, then deletes those that were removed more than `keep_ms` ago.

    Raises DoesNotFitError if a rerun came between, RunEndedError if another compaction did; the
    lake is as they left it then.
    """
    for begun in lake.unfinished():
        # A crashed one's work isn't worth finding; one that still runs learns it at its commit.
        if begun.kind == "compact":
            lake.roll_back(begun.run, now_ms=clock_ms())
    tasks = merges(lake.latest(), max_file_size_bytes)
    run = new_run()
    files: list[DataFile] = []
    if tasks:
        plan = lake.freeze(Plan(run, "compact", {}, (), {}, clock_ms()))
        files = rewrite(spark, Target(lake.folder, run, max_file_size_bytes), tasks)
        merged = [file.path for task in tasks for file in task.files]
        lake.commit(plan, now_ms=clock_ms(), add=files, remove=merged)
    return Compacted(
        run=run,
        merged=sum(len(task.files) for task in tasks),
        files=len(files),
        rows=sum(file.rows for file in files),
        swept=len(lake.sweep(now_ms=clock_ms(), keep_ms=keep_ms)),
    )


def _partition(file: DataFile) -> tuple[str, int]:
    return file.topic, file.partition
