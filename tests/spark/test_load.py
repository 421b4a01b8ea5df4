"""Loads into a lake, reruns and compactions, on a real broker: each record once, whatever fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from kraftpy.cli.common import Failure
from kraftpy.cli.pipeline.job import Job
from kraftpy.pipeline import load as load_module
from kraftpy.pipeline.bounds import Bound, BoundError
from kraftpy.pipeline.compaction import compact
from kraftpy.pipeline.lake import Lake
from kraftpy.spark.brokers import DataLossError
from tests.spark.loading import Loading
from tests.spark.topics import START_MS, delete_before


def test_two_loads_are_one_and_both_doors_give_the_same(loading: Loading) -> None:
    loading.fill(1000)
    first = loading.load(end="200")
    assert first is not None
    assert (first.rows, first.version) == (400, 1)
    second = loading.load()
    assert second is not None
    assert second.rows == 600
    assert loading.load() is None, "nothing is new"
    loading.load("whole")
    loading.load("theirs", door="kafka")
    rows = loading.rows()
    assert len(rows) == len({row[:2] for row in rows}) == 1000
    assert rows[0][:4] == (0, 0, None, b"value 0")
    assert rows == loading.rows("whole") == loading.rows("theirs")
    # So that files of both can be put together.
    assert schemas(loading, "whole") == schemas(loading, "theirs")


def schemas(loading: Loading, name: str) -> set[str]:
    lake = loading.lake(name)
    return {str(pq.read_schema(lake.folder / path)) for path in lake.latest().files}


def test_what_comes_later_is_loaded_later(loading: Loading) -> None:
    loading.fill(100)
    loading.load()
    loading.fill(60, first=100)
    later = loading.load()
    assert later is not None
    assert later.rows == 60
    assert [row[3] for row in loading.rows() if row[3]][-1] == b"value 159"


def test_bounds_are_offsets_times_or_each_partitions_own(loading: Loading) -> None:
    loading.fill(200)
    loader = loading.loader()

    def planned(start: str, end: str) -> list[tuple[int, int, int]]:
        plan = loader.plan_load(Bound.read(start), Bound.read(end))
        return [one[1:] for one in plan.ranges] if plan else []

    assert planned("lake", "latest") == [(0, 0, 100), (1, 0, 100)]
    assert planned("10", "20") == [(0, 10, 20), (1, 10, 20)]
    # Partition 0 has the even numbers, and number n the time START_MS + n.
    assert planned(f"@{START_MS + 51}", f"@{START_MS + 101}") == [(0, 26, 51), (1, 25, 50)]
    assert planned("latest", "latest") == planned("earliest", "earliest") == []
    assert planned('{"0": 5, "1": 99}', "latest") == [(0, 5, 100), (1, 99, 100)]
    with pytest.raises(BoundError, match="partitions 0 to 1"):
        planned('{"0": 5}', "latest")


def test_a_lake_with_a_hole_gets_what_is_missing(loading: Loading) -> None:
    loading.fill(200)
    loader = loading.loader()
    middle = loader.plan_load(Bound.read("40"), Bound.read("60"))
    assert middle is not None
    loader.run(middle)
    rest = loader.plan_load(Bound.read("earliest"), Bound.read("latest"))
    assert rest is not None
    assert [one[1:] for one in rest.ranges] == [
        (0, 0, 40),
        (0, 60, 100),
        (1, 0, 40),
        (1, 60, 100),
    ]
    assert loader.run(rest).rows == 160
    assert len({row[:2] for row in loading.rows()}) == len(loading.rows()) == 200


def test_a_rerun_twice_is_one(loading: Loading) -> None:
    loading.fill(400)
    outcome = loading.load()
    before = loading.rows()
    loader = loading.loader()
    assert outcome is not None
    loader.run(loader.plan_rerun_of(outcome.run))
    for _ in range(2):
        # In the middle of files: the rows on both sides stay.
        plan = loader.plan_rerun(Bound.read("50"), Bound.read("120"))
        assert plan is not None
        loader.run(plan)
    assert loading.rows() == before


def test_a_run_that_died_before_its_version_is_finished(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake shows nothing of it before, and all of it once afterwards."""
    loading.fill(300)

    class Died(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(load_module, "write_ranges", die)
        with pytest.raises(Died):
            loading.load()
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit", die)
        with pytest.raises(Died):
            loading.load("other")
    loading.fill(100, first=300)
    for name in ("lake", "other"):
        assert loading.rows(name) == []
        loader = loading.loader(name)
        (plan,) = loader.unfinished()
        finished = loader.run(plan)
        assert (finished.finished_earlier_run, finished.rows) == (True, 300)
        rest = loading.load(name)
        assert rest is not None
        assert rest.rows == 100
        assert len({row[:2] for row in loading.rows(name)}) == len(loading.rows(name)) == 400
    left = set((loading.folder / "other").rglob("*.parquet"))
    swept = loading.lake("other").sweep(now_ms=1, keep_ms=0)
    assert swept
    assert len(left) - len(swept) == len(loading.lake("other").latest().files)


def test_records_that_are_gone_end_the_run_and_change_nothing(loading: Loading) -> None:
    loading.fill(100)
    loader = loading.loader()
    plan = loader.plan_load(Bound.read("lake"), Bound.read("latest"))
    assert plan is not None
    delete_before(loading.bootstrap, loading.topic, 0, 10)
    with pytest.raises(Exception, match=r"records may have been lost|DataLossError") as raised:
        loader.run(plan)
    assert isinstance(raised.value, DataLossError) or "DataLoss" in str(raised.value)
    assert loading.lake().latest().number == 0
    loader.roll_back(plan)
    assert loader.unfinished() == []
    again = loading.load()
    assert again is not None
    assert again.rows == 90


def test_small_files_become_large_ones(loading: Loading) -> None:
    for first in (0, 100, 200):
        loading.fill(100, first=first)
        loading.load()
    lake, before = loading.lake(), loading.rows()
    assert len(lake.latest().files) == 6
    done = compact(lake, lambda: loading.spark, 1 << 30, keep_ms=0)
    assert (done.merged, done.files, done.rows, done.swept) == (6, 2, 300, 6)
    assert loading.rows() == before
    assert len(list(lake.folder.rglob("*.parquet"))) == 2
    assert compact(lake, lambda: loading.spark, 1 << 30, keep_ms=0).merged == 0


@pytest.mark.usefixtures("other_file_system")
def test_a_lake_is_where_its_path_says_whatever_file_system_spark_has(loading: Loading) -> None:
    loading.fill(100)
    name = "lake of {50} % #1"
    loading.load(name)
    assert len(loading.rows(name)) == 100


def test_files_in_gaps_of_others_are_merged_by_offset(loading: Loading) -> None:
    """A rerun leaves what it keeps of a file on both sides of what it has replaced."""
    loading.fill(400)
    loading.load()
    loader, lake = loading.loader(), loading.lake()
    before = loading.rows()
    for start, end in (("50", "120"), ("60", "70")):
        plan = loader.plan_rerun(Bound.read(start), Bound.read(end))
        assert plan is not None
        loader.run(plan)
    assert len(lake.latest().files) == 6
    assert compact(lake, lambda: loading.spark, 1 << 30, keep_ms=0).files == 2
    assert loading.rows() == before


def test_a_gap_is_filled_behind_a_compaction(loading: Loading) -> None:
    loading.fill(200)
    loader = loading.loader()
    for start, end in (("0", "40"), ("60", "100"), ("40", "60")):
        plan = loader.plan_load(Bound.read(start), Bound.read(end))
        assert plan is not None
        loader.run(plan)
        compact(loading.lake(), lambda: loading.spark, 1 << 30, keep_ms=0)
    assert len(loading.lake().latest().files) == 2
    assert [row[:2] for row in loading.rows()] == [(p, n) for p in (0, 1) for n in range(100)]
    assert loading.lake().unfinished() == []


def test_the_command_says_what_it_did_and_ends_with_a_code_to_trust(
    loading: Loading, kraftpy: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    loading.fill(10)
    lake = str(loading.folder / "lake")
    way = ("-b", loading.bootstrap)
    planned = kraftpy("load", loading.topic, lake, "--dry-run", *way)
    assert (planned.returncode, planned.stdout.splitlines()[0]) == (
        0,
        f"would read {loading.topic}-0 [0, 5)",
    )
    loading.load()
    nothing = kraftpy("load", loading.topic, lake, *way)
    assert nothing.returncode == 0
    assert nothing.stdout.startswith("nothing to do")
    listed = kraftpy("runs", lake)
    assert listed.returncode == 0
    assert f"{loading.topic}-1 [0, 5)" in listed.stdout
    for arguments, code, words in (
        (("load", "no-such-topic", lake, *way), 2, "there is no topic no-such-topic"),
        (("load", loading.topic, "s3://bucket/lake", *way), 2, "can't be kept at s3"),
        (("load", loading.topic, lake, "--from", "yesterday", *way), 2, "is no bound"),
        (("runs", str(loading.folder / "none")), 1, "isn't a lake"),
        (("rerun", loading.topic, lake, "--run", "x", *way), 1, "no run x has ended"),
    ):
        failed = kraftpy(*arguments)
        assert failed.returncode == code, failed.stderr
        assert words in failed.stderr
        assert "Traceback" not in failed.stderr


@pytest.fixture
def kraftpy() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `kraftpy pipeline ...` as a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kraftpy", "pipeline", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_a_session_whose_java_is_dead_hides_no_error(tmp_path: Path) -> None:
    class Dead:
        def stop(self) -> None:
            raise ConnectionRefusedError("its Java is dead")

    job = Job("compact", "", str(tmp_path), {}, create=True)
    job._session = Dead()
    with job.failures():
        pass
    with pytest.raises(Failure, match="out of disk"), job.failures():
        raise PySparkException("out of disk")
