"""From Arrow batches to files of a lake, without Spark: tests/spark has it in tasks."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kraftpy.pipeline.manifests import DataFile
from kraftpy.pipeline.parquet import FILES_SCHEMA, Target, write_files

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def batch(*records: tuple[int, int], timestamp_us: int | None = 1_500) -> Any:
    rows = [
        {
            "value": b"%d" % offset,
            "topic": "flights",
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp_us,
        }
        for partition, offset in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def written(target: Target, batches: Iterator[Any]) -> list[DataFile]:
    rows = pa.Table.from_batches(write_files(target)(batches), FILES_SCHEMA).to_pylist()
    return [DataFile(**row) for row in rows]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path, "run-1", max_file_size_bytes=1 << 20)


def test_each_partition_gets_a_file_that_is_what_is_told(target: Target) -> None:
    files = written(target, iter([batch((0, 3), (0, 5), (1, 0)), batch((1, 1), timestamp_us=None)]))
    assert [(f.partition, f.first_offset, f.last_offset, f.rows) for f in files] == [
        (0, 3, 5, 2),
        (1, 0, 1, 2),
    ]
    for file in files:
        data = (target.folder / file.path).read_bytes()
        assert len(data) == file.size_bytes
        assert hashlib.sha256(data).hexdigest() == file.sha256
        assert (file.min_timestamp_ms, file.max_timestamp_ms) == (1, 1)
    table = pq.ParquetFile(target.folder / files[1].path).read()
    assert table.schema.equals(SCHEMA)
    assert table.column("value").to_pylist() == [b"0", b"1"]


def test_a_file_that_is_large_enough_is_followed_by_another(tmp_path: Path) -> None:
    small = Target(tmp_path, "run-1", max_file_size_bytes=1)
    files = written(small, iter([batch((0, n)) for n in range(3)]))
    assert [(file.first_offset, file.last_offset) for file in files] == [(0, 0), (1, 1), (2, 2)]


def test_no_records_no_file(target: Target) -> None:
    assert written(target, iter([batch(), batch()])) == []
    assert list(target.folder.iterdir()) == []


def test_no_timestamp_is_minus_one(target: Target) -> None:
    (file,) = written(target, iter([batch((0, 0), timestamp_us=None)]))
    assert (file.min_timestamp_ms, file.max_timestamp_ms) == (-1, -1)


@pytest.mark.parametrize("offsets", [(1, 1), (2, 1)])
def test_records_out_of_order_are_refused_and_leave_no_file(
    target: Target, offsets: tuple[int, int]
) -> None:
    for batches in ([batch(*((0, n) for n in offsets))], [batch((0, n)) for n in offsets]):
        with pytest.raises(ValueError, match="out of order"):
            written(target, iter(batches))
    assert not list(target.folder.rglob("*.parquet"))


def test_a_task_that_fails_leaves_no_half_file(target: Target) -> None:
    def failing() -> Iterator[Any]:
        yield batch((0, 0), (1, 0))
        raise RuntimeError("broker gone")

    with pytest.raises(RuntimeError):
        written(target, failing())
    (left,) = target.folder.rglob("*.parquet")
    assert pq.ParquetFile(left).read().num_rows == 1, "only the file that was finished"
