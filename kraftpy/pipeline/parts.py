"""What a write is cut into, and how a task reads the rows of a part from a lake's files.

Runs in Spark's Python workers and stands by itself there: it needs Arrow and the lake's folder.

A part is a range of offsets of one partition. Files of a partition share no offset, but one may
lie in a gap of another (a rerun that replaced the middle of a file): rows are merged by offset.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kraftpy.frozen import NamedTuple
from kraftpy.pipeline.lake import LakeError
from kraftpy.pipeline.manifests import DataFile
from kraftpy.pipeline.parquet import batch_rows
from kraftpy.pipeline.ranges import OffsetRange, Spans, common


def cut(files: Iterable[DataFile], wanted: Spans, max_rows: int) -> list[tuple[int, int]]:
    """The spans of the wanted offsets, in order, cut into parts of about that many rows.

    `files`: all of one partition.
    """
    pieces = sorted(piece for file in files for piece in _pieces(file, max_rows))
    parts: list[tuple[int, int]] = []
    start = end = rows = 0
    for first, behind, count in pieces:
        if rows and rows + count > max_rows and first > start:
            parts.append((start, first))
            start, rows = first, 0
        elif not rows:
            start = first
        end = max(end, behind)
        rows += count
    if rows:
        parts.append((start, end))
    return [span for part in parts for span in common(wanted, *part)]


def _pieces(file: DataFile, max_rows: int) -> Iterator[tuple[int, int, int]]:
    """(first offset, the one behind the last, about how many rows)."""
    count = -(-file.rows // max_rows)
    span = file.last_offset + 1 - file.first_offset
    for number in range(count):
        first = file.first_offset + span * number // count
        behind = file.first_offset + span * (number + 1) // count
        yield first, behind, file.rows // count


class Files:
    """The files of one partition, by the offsets that they may have."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self.files = sorted(files, key=lambda file: file.first_offset)
        self._firsts = [file.first_offset for file in self.files]
        lasts = (file.last_offset for file in self.files)
        self._reached = list(itertools.accumulate(lasts, max))

    def of(self, part: OffsetRange) -> tuple[DataFile, ...]:
        """Those that may have a row of the part."""
        low = bisect.bisect_left(self._reached, part.start)
        high = bisect.bisect_left(self._firsts, part.end)
        return tuple(file for file in self.files[low:high] if file.last_offset >= part.start)


def read_rows(
    folder: Path, files: Iterable[DataFile], part: OffsetRange, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a part in the order of their offsets. Raises LakeError, OSError, ArrowException.

    `files`: those that may have a row of it. `columns` has "offset" among them; None: all.
    """
    # A file is opened when its turn comes: a part may have thousands, of which few overlap.
    waiting = deque(sorted(files, key=lambda file: file.first_offset))
    heads: list[_Head] = []  # a heap
    while waiting or heads:
        while waiting and (not heads or waiting[0].first_offset <= heads[0].first):
            file = waiting.popleft()
            stream = _rows_of_file(folder, file, part, columns)
            _push(heads, next(stream, None), file.path, stream)
        if heads:
            first, path, batch, stream = heapq.heappop(heads)
            others = [head.first for head in heads[:1]]
            if first in others:
                raise LakeError(
                    f"{path} and {heads[0].path} both have offset {first}: one of them was changed"
                    " by somebody, restore it"
                )
            others += [waiting[0].first_offset] if waiting else []
            offsets = batch.column("offset").to_numpy()
            count = int(np.searchsorted(offsets, min(others))) if others else len(offsets)
            yield batch.slice(0, count)
            rest = batch.slice(count) if count < len(offsets) else next(stream, None)
            _push(heads, rest, path, stream)


def _rows_of_file(
    folder: Path, file: DataFile, part: OffsetRange, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    path = folder / file.path
    try:
        opened = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise LakeError(
            f"{file.path} isn't in the lake's folder any more: restore it, or end a run that"
            " was begun and needs it with --abandon"
        ) from error
    with opened:
        if opened.metadata.num_rows != file.rows:
            raise LakeError(
                f"{file.path} has {opened.metadata.num_rows} rows, the lake knows of {file.rows}:"
                " it was changed by somebody, restore it"
            )
        groups = _row_groups(opened, part)
        rows = batch_rows(opened, groups)
        chosen = None if columns is None else list(columns)
        for batch in opened.iter_batches(rows, groups, chosen) if groups else ():
            offsets = batch.column("offset").to_numpy()
            first, behind = np.searchsorted(offsets, (part.start, part.end)).tolist()
            if first < behind:
                yield batch.slice(first, behind - first)


def _row_groups(opened: pq.ParquetFile, part: OffsetRange) -> list[int]:
    """Those row groups that may have a row of the part."""
    found = []
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        columns = (group.column(each) for each in range(group.num_columns))
        known = next(each.statistics for each in columns if each.path_in_schema == "offset")
        tells = known is not None and known.has_min_max
        if not tells or (known.min < part.end and part.start <= known.max):
            found.append(number)
    return found


class _Head(NamedTuple):
    """The next rows of an open file, in a heap by their first offset.

    No other file has that one; if one does, their paths keep the heap from comparing rows.
    """

    first: int
    path: str
    batch: pa.RecordBatch
    stream: Iterator[pa.RecordBatch]


def _push(
    heads: list[_Head], batch: pa.RecordBatch | None, path: str, stream: Iterator[pa.RecordBatch]
) -> None:
    if batch is not None:
        first = int(batch.column("offset")[0].as_py())
        heapq.heappush(heads, _Head(first, path, batch, stream))
