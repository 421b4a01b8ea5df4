"""Loads that die and tasks that fail: each record is in the lake once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kraftpy.pipeline.parquet import Target, write_files
from tests.spark.dying import STAGES
from tests.spark.loading import ROWS, Loading, assert_each_once

WRITE_FILES = "kraftpy.pipeline.table.write_files"


@pytest.fixture
def loading(loading: Loading) -> Loading:
    loading.fill(ROWS)
    return loading


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
