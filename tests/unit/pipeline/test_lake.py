"""A lake's versions: what fits, what doesn't, and what is left when a writer dies anywhere."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kraftpy.pipeline.lake import DoesNotFitError, Lake, LakeError, RunEndedError, new_run
from kraftpy.pipeline.manifests import DataFile, Kind, ManifestError, Plan, TopicIdentity
from kraftpy.pipeline.ranges import OffsetRange

TOPIC = "flights"
IDENTITY = TopicIdentity("cluster", "id-1")


def plan(*spans: tuple[int, int], kind: Kind = "load", run: str = "", topic_id: str = "") -> Plan:
    return Plan(
        run=run or new_run(),
        kind=kind,
        topics={TOPIC: TopicIdentity("cluster", topic_id) if topic_id else IDENTITY},
        ranges=tuple(OffsetRange(TOPIC, 0, start, end) for start, end in spans),
        options={},
        created_at_ms=1,
    )


def write(lake: Lake, run: str, first: int, last: int, *, attempt: str = "a0") -> DataFile:
    name = f"topic={TOPIC}/partition=0/{first:020d}.{run}.{attempt}.parquet"
    path = lake.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 10)
    return DataFile(name, TOPIC, 0, first, last, last - first + 1, 10, 0, 0, "")


def load(lake: Lake, start: int, end: int) -> DataFile:
    wanted = lake.freeze(plan((start, end)))
    file = write(lake, wanted.run, start, end - 1)
    lake.commit(wanted, now_ms=1, add=[file])
    return file


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(str(tmp_path / "lake"), create=True)


def test_a_lake_grows_by_whole_versions(lake: Lake) -> None:
    reader = Lake(lake.folder)
    assert reader.latest().number == 0
    first = load(lake, 0, 10)
    second = load(lake, 10, 25)
    found = reader.latest()
    assert (found.number, list(found.files)) == (2, [first.path, second.path])
    assert found.covered == {(TOPIC, 0): ((0, 25),)}
    assert (found.end(TOPIC, 0), found.end(TOPIC, 1)) == (25, None)
    assert lake.read(2).add == (second,)


def test_offsets_without_a_record_are_in_the_lake_too(lake: Lake) -> None:
    lake.commit(lake.freeze(plan((0, 100))), now_ms=1)
    assert lake.latest().end(TOPIC, 0) == 100
    assert not lake.latest().files


def test_offsets_are_loaded_once(lake: Lake) -> None:
    load(lake, 0, 10)
    again = plan((9, 12))
    with pytest.raises(DoesNotFitError, match="offsets 9 to 9 of flights-0 are in the lake"):
        lake.commit(again, now_ms=1, add=[write(lake, again.run, 9, 11)])
    assert Lake(lake.folder).latest().number == 1


def test_a_topic_that_was_created_again_is_another_one(lake: Lake) -> None:
    load(lake, 0, 10)
    with pytest.raises(DoesNotFitError, match="deleted and created again"):
        lake.commit(plan((10, 12), topic_id="id-2"), now_ms=1)


def test_of_two_who_finish_a_run_one_counts(lake: Lake) -> None:
    wanted = lake.freeze(plan((0, 10)))
    other = Lake(lake.folder)
    assert other.unfinished() == [wanted]
    lake.commit(wanted, now_ms=1, add=[write(lake, wanted.run, 0, 9, attempt="a1")])
    late = write(lake, wanted.run, 0, 9, attempt="a2")
    with pytest.raises(RunEndedError, match="version 1"):
        other.commit(wanted, now_ms=2, add=[late])
    with pytest.raises(RunEndedError):
        other.roll_back(wanted.run, now_ms=2)
    assert other.unfinished() == []
    assert lake.sweep(now_ms=3, keep_ms=10**9) == [Path(late.path)]


def test_a_plan_stands_as_it_was_first(lake: Lake) -> None:
    first = lake.freeze(plan((0, 10), run="r"))
    assert lake.freeze(plan((0, 20), run="r")) == first


def test_a_run_that_was_rolled_back_leaves_nothing(lake: Lake) -> None:
    wanted = lake.freeze(plan((0, 10)))
    half = write(lake, wanted.run, 0, 4)
    assert lake.sweep(now_ms=5, keep_ms=0) == [], "it may still be running"
    lake.roll_back(wanted.run, now_ms=5)
    assert lake.sweep(now_ms=5, keep_ms=10**9) == [Path(half.path)]
    assert lake.unfinished() == []
    assert lake.latest().end(TOPIC, 0) is None
    load(lake, 0, 10)


def test_two_writers_at_once_both_get_their_version(lake: Lake) -> None:
    other = Lake(lake.folder)
    other.latest()
    load(lake, 0, 10)
    load(other, 10, 20)
    assert lake.latest().number == 2
    assert lake.latest().covered == other.latest().covered == {(TOPIC, 0): ((0, 20),)}


def test_a_rerun_replaces_its_ranges(lake: Lake) -> None:
    old = load(lake, 0, 10)
    kept = load(lake, 10, 20)
    again = lake.freeze(plan((0, 10), kind="rerun"))
    new = write(lake, again.run, 0, 9)
    with pytest.raises(DoesNotFitError, match="would stay"):
        lake.commit(again, now_ms=100, add=[new])
    before = lake.latest()
    lake.commit(again, now_ms=100, add=[new], remove=[old.path])
    assert set(lake.latest().files) == {kept.path, new.path}
    assert set(before.files) == {old.path, kept.path}, "a reader's version doesn't change"
    assert lake.sweep(now_ms=100 + 49, keep_ms=50) == []
    assert lake.sweep(now_ms=100 + 50, keep_ms=50) == [Path(old.path)]


def test_a_rerun_keeps_what_a_file_holds_besides(lake: Lake) -> None:
    old = load(lake, 0, 20)
    again = lake.freeze(plan((0, 10), kind="rerun"))
    files = [write(lake, again.run, 0, 9), write(lake, again.run, 10, 19)]
    beyond = write(lake, again.run, 10, 20, attempt="b")
    with pytest.raises(DoesNotFitError, match="wasn't to load"):
        lake.commit(again, now_ms=1, add=[files[0], beyond], remove=[old.path])
    lake.commit(again, now_ms=1, add=files, remove=[old.path])
    assert lake.latest().covered == {(TOPIC, 0): ((0, 20),)}


def test_a_compaction_keeps_all_rows(lake: Lake) -> None:
    small = [load(lake, 0, 10), load(lake, 10, 20)]
    merging = lake.freeze(plan(kind="compact"))
    merged, short = write(lake, merging.run, 0, 19), write(lake, merging.run, 0, 18)
    remove = [file.path for file in small]
    with pytest.raises(DoesNotFitError, match="keeps all rows"):
        lake.commit(merging, now_ms=1, add=[short], remove=remove)
    lake.commit(merging, now_ms=1, add=[merged], remove=remove)
    late = plan(kind="compact")
    with pytest.raises(DoesNotFitError, match="another run has replaced it"):
        lake.commit(late, now_ms=1, add=[write(lake, late.run, 0, 19)], remove=remove)
    assert list(lake.latest().files) == [merged.path]


def test_a_file_that_workers_wrote_elsewhere_is_told(lake: Lake) -> None:
    wanted = plan((0, 10))
    file = write(lake, wanted.run, 0, 9)
    (lake.folder / file.path).unlink()
    with pytest.raises(LakeError, match="all workers have to see the same folder"):
        lake.commit(wanted, now_ms=1, add=[file])
    (lake.folder / file.path).write_bytes(b"short")
    with pytest.raises(LakeError, match="has 5 bytes, not 10"):
        lake.commit(wanted, now_ms=1, add=[file])


def test_a_lake_that_lost_a_version_is_not_read(lake: Lake) -> None:
    for start in (0, 10, 20):
        load(lake, start, start + 10)
    second = lake.folder / "_kraftpy" / "versions" / f"{2:020d}.json"
    contents = second.read_bytes()
    second.unlink()
    with pytest.raises(ManifestError, match=f"{second.name} is missing"):
        Lake(lake.folder).latest()
    second.write_bytes(contents[:50])
    with pytest.raises(ManifestError, match=second.name):
        Lake(lake.folder).latest()


def test_a_run_without_a_plan_ends_no_more(lake: Lake) -> None:
    """It has ended so long ago that the lake has forgotten how."""
    wanted = plan((0, 10))
    file = write(lake, wanted.run, 0, 9)
    for end in (lambda: lake.commit(wanted, now_ms=1, add=[file]), lambda: _roll_back(lake)):
        with pytest.raises(LakeError, match=r"has no plan in .*nothing was changed"):
            end()
    assert lake.latest().number == 0


def _roll_back(lake: Lake) -> object:
    return lake.roll_back("somebody", now_ms=1)


def test_a_folder_that_is_no_lake_is_told(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="kraftpy pipeline load TOPIC"):
        Lake.at(str(tmp_path))


class Died(BaseException):
    """The process is gone: no handler runs on."""


@pytest.mark.parametrize("calls", range(13))
def test_a_writer_that_dies_anywhere_leaves_the_version_before_or_after(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Dies at each call that changes the disk in turn, before it and after it."""
    load(lake, 0, 10)
    wanted = plan((10, 20))
    file = write(lake, wanted.run, 10, 19)
    left = calls

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal left
            for _ in ("before", "after"):
                if left == 0:
                    raise Died
                left -= 1
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "link"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            lake.freeze(wanted)
            lake.commit(wanted, now_ms=1, add=[file])
            died = False
        except Died:
            died = True
    assert died == (calls < 12), "the last of the cases is the one in which nobody dies"
    reader = Lake(lake.folder)
    before = reader.latest().number
    assert before in (1, 2)
    # Whoever comes next finishes the run, if it is to be finished.
    for unfinished in reader.unfinished():
        again = write(reader, unfinished.run, 10, 19, attempt="b0")
        reader.commit(unfinished, now_ms=2, add=[again])
    if reader.latest().end(TOPIC, 0) == 10:
        load(reader, 10, 20)
    assert reader.latest().covered == {(TOPIC, 0): ((0, 20),)}
    assert sum(one.rows for one in reader.latest().files.values()) == 20


def test_what_was_written_from_a_lake_has_to_be_in_it(lake: Lake) -> None:
    load(lake, 0, 10)
    before = lake.latest()
    written = replace(plan((2, 7), kind="write"), targets={"copy": IDENTITY}, reads=1)
    after = lake.commit(lake.freeze(written), now_ms=1, written=5)
    assert (after.files, after.covered) == (before.files, before.covered)
    assert lake.read(2).targets == {"copy": IDENTITY}
    assert lake.read(2).written == 5
    with pytest.raises(DoesNotFitError, match="not all in the lake"):
        lake.commit(lake.freeze(plan((2, 11), kind="write")), now_ms=1)


def test_files_that_a_run_under_way_reads_stay(lake: Lake) -> None:
    files = [load(lake, 0, 10), load(lake, 10, 20)]
    write_plan = lake.freeze(replace(plan((0, 20), kind="write"), reads=2))
    merged = lake.freeze(plan(kind="compact"))
    lake.commit(
        merged,
        now_ms=1,
        add=[replace(write(lake, merged.run, 0, 19), rows=20)],
        remove=[file.path for file in files],
    )
    assert list(lake.version(2).files) == [file.path for file in files]
    assert len(lake.latest().files) == 1
    assert lake.sweep(now_ms=10, keep_ms=0) == []
    lake.commit(write_plan, now_ms=1)
    assert [str(path) for path in lake.sweep(now_ms=10, keep_ms=0)] == [f.path for f in files]
    with pytest.raises(LakeError, match="has no version 5"):
        lake.version(5)
