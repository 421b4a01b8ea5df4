"""Loads that die and tasks that fail: each record is in the lake once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.pipeline.parquet import Target, write_files
from kraftpy.testing import Broker
from tests.spark.dying import STAGES
from tests.spark.loading import Loading

ROWS = 2000
WRITE_FILES = "kraftpy.pipeline.table.write_files"


@pytest.fixture
def loading(spark: Any, broker: Broker, new_topic: Callable[..., str], tmp_path: Path) -> Loading:
    loading = Loading(spark, broker.bootstrap, new_topic(partitions=2), tmp_path)
    loading.fill(ROWS)
    return loading


def assert_each_once(loading: Loading) -> None:
    """The next run finishes what there is to finish; all rows are there, nothing is left over."""
    loader = loading.loader()
    for plan in loader.unfinished():
        loader.run(plan)
    loading.load()
    assert [row[:2] for row in loading.rows()] == [(p, n) for p in (0, 1) for n in range(ROWS // 2)]
    lake = loading.lake()
    lake.sweep(now_ms=1, keep_ms=0)
    files = {str(path.relative_to(lake.folder)) for path in lake.folder.rglob("*.parquet")}
    assert files == lake.latest().files.keys()
    assert not list(lake.folder.glob("_kraftpy/plans/*.json"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_load_that_is_killed_is_finished_by_the_next(loading: Loading, stage: str) -> None:
    lake = str(loading.folder / "lake")
    command = [sys.executable, "-m", "tests.spark.dying", stage, "pipeline", "load"]
    command += [loading.topic, lake, "-b", loading.bootstrap, "--master", "local[2]"]
    command += ["--task-records", "300", "--conf", "spark.driver.memory=1g"]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    committed = stage in ("version named", "committed")
    assert len(loading.rows()) == (ROWS if committed else 0)
    assert bool(loading.loader().unfinished()) != committed
    assert_each_once(loading)


class TaskError(Exception):
    """Made by the test."""


def failing(stage: str) -> Callable[[Target], Callable[[Iterator[Any]], Iterator[Any]]]:
    """`write_files`, but the tasks of partition 1 fail."""

    def writer(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
        def read(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                fails = batch.column("partition")[0].as_py() == 1
                if fails and stage == "before the first record":
                    raise TaskError(stage)
                yield batch
                if fails and stage == "before the last record":
                    raise TaskError(stage)

        def write(batches: Iterator[Any]) -> Iterator[Any]:
            for described in write_files(target)(read(batches)):
                yield described
                if described.column("partition")[0].as_py() == 1:
                    raise TaskError(stage)

        return write

    return writer


@pytest.mark.parametrize(
    "stage", ["before the first record", "before the last record", "with a file told of"]
)
def test_a_task_that_fails_ends_the_run_and_the_next_finishes_it(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(WRITE_FILES, failing(stage))
        with pytest.raises(Exception, match=stage):
            loading.load()
    assert loading.rows() == []
    assert len(loading.loader().unfinished()) == 1
    assert_each_once(loading)
