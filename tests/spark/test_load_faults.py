"""Loads that die and tasks that fail: each record is in the lake once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kraftpy.client.group_admin import GroupAdmin
from kraftpy.pipeline.compaction import compact
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.groups import commit_ends
from kraftpy.pipeline.parquet import Target, write_files
from tests.spark.dying import COMMITTED, REWRITTEN, UNCOMMITTED
from tests.spark.loading import ROWS, Loading, assert_each_once
from tests.spark.topics import on_cluster
from tests.waiting import wait_until

LOADED = {0: ROWS // 2, 1: ROWS // 2}
WRITE_FILES = "kraftpy.pipeline.table.write_files"


@pytest.fixture
def loading(loading: Loading) -> Loading:
    loading.fill(ROWS)
    return loading


def run(module: str, loading: Loading, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the pipeline, on a session of its own; `module` may have a word behind `/`."""
    name, *more = words
    lake = str(loading.folder / "lake")
    places = [lake] if name == "compact" else [loading.topic, lake, "-b", loading.bootstrap]
    command = [sys.executable, "-m", *module.split("/"), "pipeline", name, *places]
    if "--master" not in more:
        command += ["--master", "local[2]"]
    command += ["--conf", "spark.driver.memory=1g", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def die_at(stage: str, loading: Loading, *words: str) -> None:
    done = run(f"tests.spark.dying/{stage}", loading, *words)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.mark.parametrize("stage", [*UNCOMMITTED, *COMMITTED])
def test_a_load_that_is_killed_is_finished_by_the_next(loading: Loading, stage: str) -> None:
    """Also the offsets of a group, which are never ahead of the lake."""
    group = f"lag of {loading.topic}"
    die_at(stage, loading, "load", "--group", group, "--task-records", "300")
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
        wait_until(lambda: any(lake.glob(seen)), f"there is {seen}", timeout_s=120)
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


@pytest.mark.parametrize("stage", ["all files", REWRITTEN, "version named"])
def test_a_rerun_that_is_killed_is_finished_by_the_next(loading: Loading, stage: str) -> None:
    loading.load()
    before, version = loading.rows(), loading.lake().latest()
    die_at(stage, loading, "rerun", "--from", "50", "--to", "120", "--task-records", "30")
    committed = stage in COMMITTED
    assert loading.rows() == before
    assert bool(loading.loader().unfinished()) != committed
    assert (loading.lake().latest() != version) == committed
    assert_each_once(loading)
    assert loading.rows() == before
    assert loading.lake().latest().files.keys() != version.files.keys()


@pytest.mark.parametrize("stage", ["planned", REWRITTEN, "version named"])
def test_a_compaction_that_is_killed_is_done_again(loading: Loading, stage: str) -> None:
    loading.load()
    before, files = loading.rows(), len(loading.lake().latest().files)
    die_at(stage, loading, "compact")
    committed = stage in COMMITTED
    assert loading.rows() == before
    assert len(loading.lake().latest().files) == (2 if committed else files)
    done = compact(loading.lake(), lambda: loading.spark, 1 << 30, keep_ms=0)
    assert done.files == (0 if committed else 2)
    assert_each_once(loading)
    assert loading.rows() == before
