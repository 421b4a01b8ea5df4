"""From a task's Arrow batches to Parquet files of a lake.

Runs in Spark's Python workers (`DataFrame.mapInArrow`) and stands by itself there: it needs Arrow
and the lake's folder, no broker.

Rules:

* A file holds records of one partition, in the order in which they came, under a name that no other
  attempt uses. A task that fails leaves files that nobody will name.
* A file is durable, bytes and name, before its description leaves the task.
* What the driver is told is what was written: the counts are taken from the rows on their way.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kraftpy.pipeline.folder import make_folder, sync_folder
from kraftpy.pipeline.manifests import DataFile

FILES_SCHEMA: Final = pa.schema(
    [
        (name, pa.string() if kind == "str" else pa.int64())
        for name, kind in DataFile.__annotations__.items()
    ]
)
FILES_DDL: Final = ", ".join(
    f"{name} {'string' if kind == 'str' else 'bigint'}"
    for name, kind in DataFile.__annotations__.items()
)
"""The table that `write_files` gives back, for Arrow and for Spark."""


# Of keys and values, which rarely repeat, a dictionary costs more time and bytes than it saves.
_REPEATED: Final = ["topic", "partition", "timestampType", "headers.list.element.key"]


_READ_BYTES: Final = 16 << 20
_READ_ROWS: Final = 8192


def batch_rows(opened: pq.ParquetFile, groups: Iterable[int]) -> int:
    """How many rows of these row groups to read at a time: about 16 MiB, at most 8192 rows."""
    known = [opened.metadata.row_group(number) for number in groups]
    of_row = max((one.total_byte_size / one.num_rows for one in known if one.num_rows), default=0)
    return max(1, min(_READ_ROWS, int(_READ_BYTES / max(of_row, 1))))


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how a run's tasks write. A file is closed once it has `max_file_size_bytes`."""

    folder: Path
    run: str
    max_file_size_bytes: int
    compression: str = "zstd"


def write_files(target: Target) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` has each task do: take batches of records, give a row for each file.

    The batches have at least the columns `topic`, `partition`, `offset` and `timestamp`; all
    columns are written. Raises OSError when the disk does.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer: _Writer | None = None
        try:
            for batch in batches:
                for topic, partition, part in _by_partition(batch):
                    if writer is not None and not writer.takes(topic, partition):
                        yield writer.finish()
                        writer = None
                    if writer is None:
                        writer = _Writer(target, topic, partition, part)
                    writer.write(part)
            if writer is not None:
                yield writer.finish()
                writer = None
        finally:
            if writer is not None:
                writer.abandon()

    return write


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Slices of the batch, each of one partition; records keep their order."""
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    indices = topics.indices.to_numpy(zero_copy_only=False)
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    changes = (indices[1:] != indices[:-1]) | (partitions[1:] != partitions[:-1])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, end in itertools.pairwise(starts):
        part = batch.slice(start, end - start)
        yield names[indices[start]], int(partitions[start]), part


class _Writer:
    """One file of the lake that is being written."""

    def __init__(self, target: Target, topic: str, partition: int, first: pa.RecordBatch) -> None:
        self._target = target
        self._topic = topic
        self._partition = partition
        self._first_offset = first.column("offset")[0].as_py()
        self._last_offset = self._first_offset - 1
        self._rows = 0
        self._timestamps_us: list[int] = []
        name = f"{self._first_offset:020d}.{target.run}.{uuid.uuid4().hex[:12]}.parquet"
        self._name = Path(f"topic={topic}", f"partition={partition}", name)
        make_folder(self._path.parent)
        self._file = self._path.open("xb")
        self._parquet = pq.ParquetWriter(
            self._file,
            first.schema,
            compression=target.compression,
            use_dictionary=_REPEATED,
        )

    @property
    def _path(self) -> Path:
        return self._target.folder / self._name

    def takes(self, topic: str, partition: int) -> bool:
        """Whether records of this partition go into this file."""
        return (topic, partition) == (self._topic, self._partition) and (
            self._file.tell() < self._target.max_file_size_bytes
        )

    def write(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        if offsets[0] <= self._last_offset or (offsets[1:] <= offsets[:-1]).any():
            raise ValueError(
                f"records of {self._topic}-{self._partition} came out of order behind offset"
                f" {self._last_offset}: sort by offset within each partition before writing"
            )
        self._parquet.write_batch(batch)
        self._last_offset = int(offsets[-1])
        self._rows += batch.num_rows
        extremes: Any = pc.min_max(batch.column("timestamp").cast(pa.int64())).as_py()
        seen = [one for one in (*self._timestamps_us, *extremes.values()) if one is not None]
        self._timestamps_us = [min(seen), max(seen)] if seen else []

    def finish(self) -> pa.RecordBatch:
        """Closes the file, durably, and describes it."""
        self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_folder(self._path.parent)
        with self._path.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        file = DataFile(
            path=str(self._name),
            topic=self._topic,
            partition=self._partition,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            rows=self._rows,
            size_bytes=self._path.stat().st_size,
            min_timestamp_ms=min(self._timestamps_us, default=-1) // 1000,
            max_timestamp_ms=max(self._timestamps_us, default=-1) // 1000,
            sha256=digest,
        )
        return pa.RecordBatch.from_pylist([asdict(file)], schema=FILES_SCHEMA)

    def abandon(self) -> None:
        """Drops the file, finished or not."""
        # What Arrow has to say about a file that nobody wants hides what went wrong before it.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._parquet.close()
        self._file.close()
        self._path.unlink(missing_ok=True)
