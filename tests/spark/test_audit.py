"""A lake is compared with its topic: what was planted in its Parquet files is told, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from kraftpy.cli.common import EXIT_BROKER_ERROR, EXIT_INCONSISTENT
from kraftpy.pipeline import audit as audit_module
from kraftpy.pipeline.audit import Audit, audit, plan_audit
from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.door import Door
from kraftpy.testing import Broker
from tests.spark.loading import Loading
from tests.spark.planting import closed_segments, command, findings_of, plant
from tests.spark.topics import create_topic, delete_before

Differences = list[tuple[int, str, int, int, int]]


@pytest.fixture
def loaded(spark: Any, broker: Broker, new_topic: Callable[..., str], tmp_path: Path) -> Loading:
    """A lake with 100 rows of either partition; the topic has others besides."""
    loading = Loading(spark, broker.bootstrap, new_topic(partitions=2), tmp_path)
    loading.fill(200)
    loading.load()
    loading.fill(50, first=200)
    delete_before(broker.bootstrap, loading.topic, 0, 10)
    return loading


def file_of(loading: Loading, partition: int) -> Path:
    (path,) = (
        loading.lake().folder / one.path
        for one in loading.lake().latest().files.values()
        if one.partition == partition
    )
    return path


def changed(table: pa.Table, row: int, **values: Any) -> pa.Table:
    """The table with some fields of a row changed."""
    rows = table.to_pylist()
    rows[row].update(values)
    return pa.Table.from_pylist(rows, schema=table.schema)


def audited(loading: Loading) -> Audit:
    door = Door(loading.bootstrap, options=loading.options)
    return audit(plan_audit(door, loading.topic, loading.lake()), door, lambda: loading.spark)


def differences(loading: Loading) -> Differences:
    found = audited(loading)
    assert all(one.findings == () for one in found.partitions)
    assert found.clean == (not found.differences and not found.changed)
    return [(d.partition, d.kind, d.rows, d.first, d.last) for d in found.differences]


def test_what_is_older_or_younger_is_no_difference(loaded: Loading) -> None:
    assert differences(loaded) == []


def test_one_field_of_one_row_is_enough(loaded: Loading) -> None:
    path = file_of(loaded, 1)
    whole = pq.read_table(path)
    (row,) = whole.slice(41, 1).to_pylist()
    assert row["key"] is not None
    for field, value in (
        ("key", None),
        ("key", b""),
        ("value", row["value"] + b"\0"),
        ("headers", [*(row["headers"] or ()), {"key": "n", "value": None}]),
        ("timestamp", row["timestamp"].replace(microsecond=1)),
        ("timestampType", 1),
        ("topic", "another"),
    ):
        pq.write_table(changed(whole, 41, **{field: value}), path)
        assert differences(loaded) == [(1, "not the same in the lake", 1, 41, 41)], field
    pq.write_table(whole, path)
    assert differences(loaded) == []


def test_the_command_names_missing_double_foreign_and_changed_rows(loaded: Loading) -> None:
    first, second = file_of(loaded, 0), file_of(loaded, 1)
    table = pq.read_table(first)
    # Of partition 0 the rows 20 to 29 are missing, 50 to 54 are there twice, one is of nowhere.
    foreign = changed(table.slice(60, 1), 0, offset=5000)
    pieces = [table.slice(0, 20), table.slice(30), table.slice(50, 5), foreign]
    pq.write_table(pa.concat_tables(pieces), first)
    pq.write_table(changed(changed(pq.read_table(second), 7, value=b""), 99, key=b"x"), second)
    done = command(loaded.topic, "--lake", str(loaded.lake().folder), bootstrap=loaded.bootstrap)
    assert done.returncode == EXIT_INCONSISTENT, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert findings_of(found) == {0: [], 1: []}
    assert [tuple(one.values()) for one in found["differences"]] == [
        (0, "more than once in the lake", 5, 50, 54),
        (0, "not in the lake", 10, 20, 29),
        (1, "not the same in the lake", 2, 7, 99),
        (0, "outside of what was loaded", 1, 5000, 5000),
    ]
    assert [one[2:] for one in found["compared"]] == [[10, 100], [0, 100]]
    assert (found["dry_run"], found["version"], found["holes"]) == (False, 1, [])
    assert [(one["partition"], one["readable"]) for one in found["changed"]] == [
        (0, True),
        (1, True),
    ]


def test_what_the_topic_has_lost_is_told_of_the_lake_too(spark: Any, tmp_path: Path) -> None:
    """But not where its readers end at damage."""
    with Broker(dir=tmp_path / "broker") as broker:
        create_topic(
            broker.bootstrap, "t", 2, internal_segment_bytes=4096, index_interval_bytes=256
        )
        loading = Loading(spark, broker.bootstrap, "t", tmp_path)
        for number in range(60):
            loading.fill(20, first=20 * number)
        loading.load()
        broker.stop()
        lost, damaged = (
            plant(closed_segments(broker.log_dir / f"t-{partition}")[1], {3: kind})
            for partition, kind in enumerate(("gap", "crc"))
        )
        broker.start()
        found = audited(loading)
    told = [[(one.kind, one.first, one.last) for one in each.findings] for each in found.partitions]
    assert told == [lost, damaged]
    ((_, first, last),) = lost
    assert found.skipped == (1,)
    assert [astuple(one) for one in found.differences] == [
        (0, "not in the topic", last - first + 1, first, last)
    ]


def test_a_lake_that_lacks_the_topic_is_refused(
    loaded: Loading, new_topic: Callable[..., str]
) -> None:
    another = new_topic()
    folder = str(loaded.lake().folder)
    for more in ((), ("--dry-run",)):
        done = command(another, "--lake", folder, *more, bootstrap=loaded.bootstrap)
        assert done.returncode == EXIT_BROKER_ERROR, done.stdout
        assert f"there is nothing of topic {another} in" in done.stderr


def test_holes_of_a_lake_are_told(loaded: Loading) -> None:
    """Where it begins is no hole, nor is what the topic doesn't have any more."""
    loader = loaded.loader("holes")
    for start, end in (("20", "40"), ("60", "100"), ("110", "115")):
        plan = loader.plan_load(Bound.read(start), Bound.read(end))
        assert plan is not None
        loader.run(plan)
    delete_before(loaded.bootstrap, loaded.topic, 0, 50)
    door = Door(loaded.bootstrap)
    plan = plan_audit(door, loaded.topic, loaded.lake("holes"))
    found = audit(plan, door, lambda: loaded.spark)
    assert [one[1:] for one in found.holes] == [
        (0, 50, 60),
        (0, 100, 110),
        (1, 40, 60),
        (1, 100, 110),
    ]
    assert [one[1:] for one in found.compared] == [
        (0, 60, 100),
        (0, 110, 115),
        (1, 20, 40),
        (1, 60, 100),
        (1, 110, 115),
    ]
    assert found.differences == ()
    assert not found.clean


def test_files_that_are_not_as_they_were_written_are_told(loaded: Loading) -> None:
    """Those that can't be read as well; the other partitions are compared all the same."""
    first, second = file_of(loaded, 0), file_of(loaded, 1)
    pq.write_table(pq.read_table(first), first)
    whole = second.read_bytes()
    for damage, words in (
        (lambda: second.write_bytes(whole[:-9]), "its checksum is wrong, and it can't be read"),
        (second.unlink, "it can't be read: No such file"),
    ):
        damage()
        found = audited(loaded)
        assert [(one.partition, one.readable) for one in found.changed] == [(0, True), (1, False)]
        assert words in found.changed[1].text
        assert str(loaded.lake().folder / found.changed[1].path) == str(second)
        assert [one[1:] for one in found.compared] == [(0, 10, 100)]
        assert (found.skipped, found.differences, found.clean) == ((1,), (), False)
    second.write_bytes(whole)
    found = audited(loaded)
    assert [one.partition for one in found.changed] == [0]
    assert not found.clean


def test_what_is_gone_meanwhile_ends_an_audit_whatever_its_options_say(
    loaded: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.options = {"failOnDataLoss": "false"}
    compared = audit_module._differences

    def late(*arguments: Any) -> Any:
        delete_before(loaded.bootstrap, loaded.topic, 1, 50)
        return compared(*arguments)

    monkeypatch.setattr(audit_module, "_differences", late)
    with pytest.raises(PySparkException, match="DataLossError"):
        audited(loaded)
