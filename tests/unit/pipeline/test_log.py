"""Checkpoints and history of a lake: few files, nothing lost, whoever dies wherever."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kraftpy.pipeline import lake as lake_module
from kraftpy.pipeline import log as log_module
from kraftpy.pipeline.lake import Lake, LakeError, LakeVersion, RunEndedError
from kraftpy.pipeline.manifests import Checkpoint, Manifest, ManifestError
from tests.unit.pipeline.test_lake import Died, load, plan, write

EVERY = 3
DISK_CALLS = ("fsync", "link", "unlink")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """One that has a checkpoint every three versions."""
    monkeypatch.setattr(log_module, "EVERY", EVERY)
    monkeypatch.setattr(lake_module, "_REMEMBERED", EVERY)
    return Lake.at(str(tmp_path / "lake"), create=True)


def names(lake: Lake, folder: str) -> list[int]:
    found = (lake.folder / "_kraftpy" / folder).glob("*.json*")
    return sorted(int(path.stem) for path in found if path.suffix != ".tmp")


def test_files_stay_few_and_history_stays_whole(lake: Lake) -> None:
    for number in range(20):
        load(lake, number * 10, number * 10 + 10)
    assert names(lake, "checkpoints") == [15, 18]
    assert names(lake, "history") == [3, 6, 9, 12, 15]
    assert names(lake, "versions") == [16, 17, 18, 19, 20]
    assert not list((lake.folder / "_kraftpy" / "plans").glob("*"))
    reader = Lake(lake.folder)
    assert [change.version for change in reader.history()] == list(range(1, 21))
    assert [reader.read(number).version for number in (1, 3, 4, 20)] == [1, 3, 4, 20]
    with pytest.raises(LakeError, match="no version 21"):
        reader.read(21)
    first = next(reader.history())
    assert first.run not in reader.latest().ended
    assert reader.find(first.run) == first
    assert reader.find("nobody") is None
    assert reader.latest().files == lake.latest().files


def test_a_reader_that_fell_behind_goes_on_through_the_history(lake: Lake) -> None:
    slow = Lake(lake.folder)
    load(lake, 0, 10)
    assert slow.latest().number == 1
    for number in range(1, 20):
        load(lake, number * 10, number * 10 + 10)
    assert slow.latest() == Lake(lake.folder)._latest.after(lake.history())


def test_a_lake_is_opened_without_checkpoints_too(lake: Lake) -> None:
    for number in range(10):
        load(lake, number * 10, number * 10 + 10)
    for path in (lake.folder / "_kraftpy" / "checkpoints").glob("*"):
        path.unlink()
    assert Lake(lake.folder).latest().files == lake.latest().files


def test_damage_is_told(lake: Lake) -> None:
    for number in range(10):
        load(lake, number * 10, number * 10 + 10)
    folder = lake.folder / "_kraftpy"
    checkpoint = folder / "checkpoints" / f"{9:020d}.json"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-30])
    with pytest.raises(ManifestError, match=rf"{checkpoint.name} isn't JSON .*delete it"):
        Lake(lake.folder).latest()
    checkpoint.unlink()
    packed = folder / "history" / f"{3:020d}.jsonl"
    lines = packed.read_bytes().splitlines(keepends=True)
    packed.write_bytes(b"".join(lines[:2]))
    with pytest.raises(ManifestError, match=rf"{packed.name} has 2 lines, not 3"):
        list(Lake(lake.folder).history())
    packed.write_bytes(b"".join(reversed(lines)))
    with pytest.raises(ManifestError, match="has version 3 where 1 belongs"):
        list(Lake(lake.folder).history())


def test_a_version_that_comes_while_it_is_looked_for_is_not_missing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(lake, 0, 10)
    reader = Lake(lake.folder)
    numbered = log_module.numbered

    def late(folder: Path) -> Iterator[int]:
        monkeypatch.setattr(log_module, "numbered", numbered)
        load(lake, 10, 20)
        load(lake, 20, 30)
        return numbered(folder)

    monkeypatch.setattr(log_module, "numbered", late)
    assert reader.latest().number == 3


@pytest.mark.parametrize("error", [OSError("no space left"), ManifestError("damaged")])
def test_what_goes_wrong_behind_a_commit_fails_no_run(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    load(lake, 0, 10)
    load(lake, 10, 20)

    def full(self: object, checkpoint: Checkpoint) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(log_module.VersionLog, "put_checkpoint", full)
        load(lake, 20, 30)
    assert f"ended well, but the lake isn't tidied: {error}" in caplog.text
    load(lake, 30, 40)
    assert names(lake, "checkpoints") == [4], "the next one does it"


def test_what_a_checkpoint_forgets_nobody_asks_for(lake: Lake) -> None:
    old = load(lake, 0, 10)
    again = lake.freeze(plan((0, 10), kind="rerun"))
    new = write(lake, again.run, 0, 9)
    lake.commit(again, now_ms=100, add=[new], remove=[old.path])
    left = write(lake, again.run, 0, 9, attempt="b")
    lake.freeze(again)  # by one who hasn't heard that it ended
    for number in range(1, 9):
        load(lake, number * 10, number * 10 + 10)
    reader = Lake(lake.folder)
    assert reader.latest().removed_at_ms == {old.path: 100}
    assert reader.unfinished() == []
    with pytest.raises(RunEndedError, match="version 2"):
        reader.commit(again, now_ms=1, add=[left])
    assert reader.sweep(now_ms=100, keep_ms=50) == [Path(left.path)]
    assert reader.sweep(now_ms=200, keep_ms=50) == [Path(old.path)]
    for number in range(9, 13):
        load(lake, number * 10, number * 10 + 10)
    assert Lake(lake.folder).latest().removed_at_ms == {}
    late = write(lake, again.run, 0, 9, attempt="c")
    assert reader.sweep(now_ms=200, keep_ms=50) == [Path(late.path)]


class Step(NamedTuple):
    """What somebody does to the lake, dying after some calls that change the disk."""

    what: str
    who: int
    calls: int


STEPS = st.builds(
    Step,
    what=st.sampled_from(
        ["load", "load", "load", "finish", "roll back", "rerun", "merge", "sweep"]
    ),
    who=st.integers(0, 2),
    calls=st.one_of(st.just(1000), st.integers(0, 40)),
)


@contextmanager
def dying_after(calls: int) -> Iterator[None]:
    left = calls

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died
            done = real(*arguments, **more)
            left -= 1
            if left == 0:
                raise Died
            return done

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)  # nobody pulls the plug here
        for name in DISK_CALLS:
            patch.setattr(os, name, dying(getattr(os, name)))
        with suppress(Died):
            yield


def do(lake: Lake, step: Step) -> None:
    """A step of a run as the jobs do it, of a topic of one partition."""
    version = lake.latest()
    if step.what == "load":
        end = version.end("flights", 0) or 0
        load(lake, end, end + 10)
    elif step.what in ("finish", "roll back"):
        for begun in lake.unfinished():
            if step.what == "roll back" or begun.kind == "compact":
                lake.roll_back(begun.run, now_ms=1)
            else:
                finish(lake, begun.run)
    elif step.what == "rerun" and version.files:
        old = next(iter(version.files.values()))
        finish(lake, lake.freeze(plan((old.first_offset, old.last_offset + 1), kind="rerun")).run)
    elif step.what == "merge" and len(version.files) > 1:
        merging = lake.freeze(plan(kind="compact"))
        files = sorted(version.files.values(), key=lambda file: file.first_offset)[:2]
        merged = write(lake, merging.run, files[0].first_offset, files[1].last_offset)
        lake.commit(merging, now_ms=1, add=[merged], remove=[file.path for file in files])
    elif step.what == "sweep":
        lake.sweep(now_ms=2, keep_ms=0)


def finish(lake: Lake, run: str) -> None:
    (begun,) = (each for each in lake.unfinished() if each.run == run)
    ((_, _, start, end),) = begun.ranges
    if begun.kind == "load" and (lake.latest().end("flights", 0) or 0) > start:
        lake.roll_back(run, now_ms=1)  # another load took the offsets while this one was dead
        return
    remove = lake.latest().overlapping(begun.ranges) if begun.kind == "rerun" else []
    low = min([start, *(file.first_offset for file in remove)])
    high = max([end - 1, *(file.last_offset for file in remove)])
    add = [write(lake, run, low, high, attempt=os.urandom(4).hex())]
    lake.commit(begun, now_ms=1, add=add, remove=[file.path for file in remove])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=1, max_size=40))
def test_whoever_dies_wherever_the_lake_is_what_its_history_says(
    lake: Lake, tmp_path: Path, steps: list[Step]
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    people = [Lake(folder) for _ in range(3)]
    known: list[Manifest] = []
    for step in steps:
        with dying_after(step.calls):
            do(people[step.who], step)
        reader = Lake(folder)
        found, history = reader.latest(), list(reader.history())
        # A version is there or not, and never another one afterwards.
        assert history[: len(known)] == known
        known = history
        assert [change.version for change in history] == list(range(1, found.number + 1))
        assert len({change.run for change in history}) == len(history)
        replayed = LakeVersion().after(history)
        assert (found.files, found.covered) == (replayed.files, replayed.covered)
        assert list(found.files) == list(replayed.files)
        assert found.ended.items() <= replayed.ended.items()
        assert people[step.who].latest().files == found.files
        # What counts is on the disk, once.
        assert all((folder / path).exists() for path in found.files)
        rows = sum(file.rows for file in found.files.values())
        assert rows == (found.end("flights", 0) or 0)
        for begun in reader.unfinished():
            assert begun.run not in replayed.ended
    # Nobody dies any more: what was begun is ended, and the next few leave it tidy.
    last = Lake(folder)
    do(last, Step("finish", 0, 1000))
    for _ in range(2 * EVERY + 2):
        do(last, Step("load", 0, 1000))
    assert len(names(last, "versions")) <= 3 * EVERY
    assert len(names(last, "checkpoints")) == 2
    last.sweep(now_ms=10, keep_ms=0)
    there = {str(path.relative_to(folder)) for path in folder.glob("topic=*/*/*")}
    assert there == last.latest().files.keys()
    assert not list((folder / "_kraftpy" / "plans").glob("*.json"))
