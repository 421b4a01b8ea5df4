"""Writes that die and tasks that fail: nothing is lost, and little is sent again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

import kraftpy.pipeline.write
from tests.spark.dying_writes import IN_TASKS, MARKED, STAGES, fail_task, failing_work
from tests.spark.loading import ROWS, Loading
from tests.spark.writing import PART, Writing, first_copies, repeated


@pytest.fixture
def writing(loading: Loading, new_topic: Callable[..., str]) -> Writing:
    loading.fill(ROWS)
    loading.load()
    return Writing(loading, new_topic(2))


def assert_finished_by_the_next(writing: Writing, stage: str) -> None:
    """The next run finishes what there is to finish, and another finds nothing to do."""
    notes = list(writing.loading.lake().folder.glob("_kraftpy/written/*/*.json"))
    ended = stage == "committed"
    assert bool(writing.loading.lake().unfinished()) != ended
    assert bool(notes) == (stage in ("part noted", "all parts", "committed"))
    outcomes = writing.write()
    assert [each.rows for each in outcomes] == ([] if ended else [ROWS])
    found = writing.written()
    assert first_copies(found) == writing.wanted()
    again = repeated(found)
    if stage in ("planned", "all parts", "committed"):
        assert again.total() == 0
    else:
        assert max(again.values()) <= PART
    if stage == "part sent":
        assert again.total() > 0
    assert writing.write() == []
    assert not list(writing.loading.lake().folder.glob("_kraftpy/written/*/*.json"))
    assert not list(writing.loading.lake().folder.glob("_kraftpy/plans/*.json"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_write_that_is_killed_is_finished_by_the_next(writing: Writing, stage: str) -> None:
    kill_at(stage, writing)
    assert_finished_by_the_next(writing, stage)


def kill_at(stage: str, writing: Writing, *more: str) -> None:
    lake = str(writing.loading.folder / "lake")
    command = [sys.executable, "-m", "tests.spark.dying_writes", stage, "pipeline", "write", lake]
    command += [writing.target, "-b", writing.loading.bootstrap, "--master", "local[2]"]
    command += ["--part-records", str(PART), "--conf", "spark.driver.memory=1g"]
    command += more
    done = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.mark.parametrize("stage", [MARKED, "part sent"])
def test_each_row_is_there_once_though_a_write_is_killed(writing: Writing, stage: str) -> None:
    kill_at(stage, writing, "--option", "exactlyOnce=true")
    # Runs go on as they were begun: this one in transactions, too.
    assert [each.rows for each in writing.write()] == [ROWS]
    assert writing.committed() == writing.wanted()


@pytest.mark.parametrize("stage", [*IN_TASKS, MARKED])
@pytest.mark.parametrize("abandon", [False, True])
def test_each_row_is_there_once_though_a_task_fails(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, stage: str, abandon: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kraftpy.pipeline.write, "_Work", failing_work(stage, fail_task))
        with pytest.raises(Exception, match="made by the test"):
            writing.write(exactlyOnce="true")
    outcomes = writing.write(abandon=abandon, exactlyOnce="true")
    assert writing.committed() == writing.wanted()
    if not abandon:
        assert [each.rows for each in outcomes] == [ROWS]
    assert writing.write(exactlyOnce="true") == []


@pytest.mark.parametrize("stage", IN_TASKS)
def test_a_task_that_fails_ends_the_run_and_the_next_finishes_it(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kraftpy.pipeline.write, "_Work", failing_work(stage, fail_task))
        with pytest.raises(Exception, match="made by the test"):
            writing.write()
    assert_finished_by_the_next(writing, stage)
