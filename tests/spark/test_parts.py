"""What a write is cut into, and how the rows of a part are read, whatever files have them."""

from __future__ import annotations

import uuid
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kraftpy.pipeline.lake import LakeError
from kraftpy.pipeline.manifests import DataFile
from kraftpy.pipeline.parts import Files, cut, read_rows
from kraftpy.pipeline.ranges import OffsetRange, Spans, union

COLUMNS = ("offset", "value")


def write(folder: Path, offsets: list[int], group_rows: int) -> DataFile:
    name = f"{uuid.uuid4().hex}.parquet"
    table = pa.table({"offset": offsets, "value": [b"%d" % each for each in offsets]})
    pq.write_table(table, folder / name, row_group_size=group_rows)
    return DataFile(name, "t", 0, offsets[0], offsets[-1], len(offsets), 1, 0, 0, "")


def read(folder: Path, files: list[DataFile], parts: list[tuple[int, int]]) -> list[int]:
    known, found = Files(files), []
    for start, end in parts:
        part = OffsetRange("t", 0, start, end)
        for batch in read_rows(folder, known.of(part), part, COLUMNS):
            found += batch.column("offset").to_pylist()
    return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    owners=st.lists(st.integers(-1, 4), min_size=1, max_size=120),
    max_rows=st.integers(1, 40),
    group_rows=st.integers(1, 30),
    holes=st.lists(st.tuples(st.integers(0, 120), st.integers(1, 20)), max_size=3),
)
def test_parts_have_the_wanted_rows_once_and_in_order(
    tmp_path: Path,
    owners: list[int],
    max_rows: int,
    group_rows: int,
    holes: list[tuple[int, int]],
) -> None:
    """`owners`: the file that has each offset, -1 for none; so files interleave in every way."""
    by_file: dict[int, list[int]] = {}
    for offset, owner in enumerate(owners):
        if owner >= 0:
            by_file.setdefault(owner, []).append(offset)
    files = [write(tmp_path, offsets, group_rows) for offsets in by_file.values()]
    wanted: Spans = ((0, len(owners)),)
    for start, size in holes:
        wanted = tuple(
            (low, high)
            for first, last in wanted
            for low, high in ((first, min(last, start)), (max(first, start + size), last))
            if low < high
        )
    assert wanted == union((), wanted)
    parts = cut(files, wanted, max_rows)
    assert all(one[1] <= other[0] for one, other in pairwise(parts))
    assert read(tmp_path, files, parts) == [
        offset
        for offset, owner in enumerate(owners)
        if owner >= 0 and any(start <= offset < end for start, end in wanted)
    ]


def test_small_files_share_a_part_and_large_ones_are_cut(tmp_path: Path) -> None:
    small = [write(tmp_path, list(range(first, first + 10)), 5) for first in range(0, 100, 10)]
    assert cut(small, ((0, 100),), 30) == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert cut(small, ((20, 45),), 100) == [(20, 45)]
    large = [write(tmp_path, list(range(100)), 5)]
    assert cut(large, ((0, 100),), 30) == [(0, 25), (25, 50), (50, 75), (75, 100)]


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path, [n], 5) for n in range(1, 41)]
    files.append(write(tmp_path, [0, 41], 5))
    opened = most = 0

    class Counted(pq.ParquetFile):
        def __enter__(self) -> Counted:
            nonlocal opened, most
            opened += 1
            most = max(most, opened)
            return self

        def __exit__(self, *error: object) -> None:
            nonlocal opened
            opened -= 1
            super().__exit__(*error)

    monkeypatch.setattr(pq, "ParquetFile", Counted)
    assert read(tmp_path, files, [(0, 42)]) == list(range(42))
    assert (opened, most) == (0, 2)


def test_large_rows_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    value = bytes(1 << 20)
    table = pa.table({"offset": range(100), "value": [value] * 100})
    pq.write_table(table, tmp_path / "large", use_dictionary=False)
    file = DataFile("large", "t", 0, 0, 99, 100, 1, 0, 0, "")
    sizes = [
        batch.num_rows
        for batch in read_rows(tmp_path, [file], OffsetRange("t", 0, 0, 100), COLUMNS)
    ]
    assert sum(sizes) == 100
    assert max(sizes) in (15, 16)


@pytest.mark.parametrize("others", [[1, 2, 3], [2, 7], [3, 4]])
def test_files_that_have_the_same_offset_are_named(tmp_path: Path, others: list[int]) -> None:
    files = [write(tmp_path, [1, 2, 3], 5), write(tmp_path, others, 5)]
    with pytest.raises(LakeError, match=f"both have offset {others[0]}"):
        read(tmp_path, files, [(0, 9)])


def test_files_that_were_changed_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, [1, 2, 3], 5)
    pq.write_table(pa.table({"offset": [1], "value": [b""]}), tmp_path / file.path)
    with pytest.raises(LakeError, match="has 1 rows, the lake knows of 3"):
        read(tmp_path, [file], [(0, 9)])
    (tmp_path / file.path).unlink()
    with pytest.raises(LakeError, match="isn't in the lake's folder any more"):
        read(tmp_path, [file], [(0, 9)])
