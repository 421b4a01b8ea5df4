"""Loads that die and tasks that fail: each record is in the lake once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kraftpy.client.group_admin import GroupAdmin
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.groups import commit_ends
from kraftpy.pipeline.parquet import Target, write_files
from kraftpy.testing.process import wait_until
from tests.spark.dying import COMMITTED, UNCOMMITTED
from tests.spark.loading import ROWS, Loading, assert_each_once
from tests.spark.topics import on_cluster

LOADED = {0: ROWS // 2, 1: ROWS // 2}
WRITE_FILES = "kraftpy.pipeline.table.write_files"


@pytest.fixture
def loading(loading: Loading) -> Loading:
    loading.fill(ROWS)
    return loading


@pytest.mark.parametrize("stage", [*UNCOMMITTED, *COMMITTED])
def test_a_load_that_is_killed_is_finished_by_the_next(loading: Loading, stage: str) -> None:
    """Also the offsets of a group, which are never ahead of the lake."""
    group = f"lag of {loading.topic}"
    command = [sys.executable, "-m", "tests.spark.dying", stage, "pipeline", "load"]
    command += [loading.topic, str(loading.folder / "lake"), "-b", loading.bootstrap]
    command += ["--group", group, "--task-records", "300"]
    command += ["--master", "local[2]", "--conf", "spark.driver.memory=1g"]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    committed = stage in COMMITTED
    assert len(loading.rows()) == (ROWS if committed else 0)
    assert bool(loading.loader().unfinished()) != committed
    assert group_offsets(loading, group) == (LOADED if stage == "after the group" else {})
    assert_each_once(loading)
    commit_ends(Door(loading.bootstrap), loading.topic, group, loading.loader().ends())
    assert group_offsets(loading, group) == LOADED


def group_offsets(loading: Loading, group: str) -> dict[int, int]:
    found = on_cluster(loading.bootstrap, lambda cluster: GroupAdmin(cluster).committed(group))
    return {partition: each.offset for (_, partition), each in found.items()}


@pytest.mark.parametrize("seen", ["_kraftpy/plans/*.json", "topic=*/partition=*/*.parquet"])
def test_the_command_as_it_is_killed_from_outside(loading: Loading, seen: str) -> None:
    """Nothing in it is prepared for the end: it dies when its files are seen."""
    lake = loading.folder / "lake"
    command = [sys.executable, "-m", "kraftpy", "pipeline", "load", loading.topic, str(lake)]
    command += ["-b", loading.bootstrap, "--task-records", "100", "--master", "local[1]"]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with load:
        wait_until(lambda: any(lake.glob(seen)), f"no {seen}", timeout_s=120)
        load.kill()
    assert load.returncode == -signal.SIGKILL
    assert loading.rows() == []
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
