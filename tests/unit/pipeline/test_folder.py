"""Files that are written once."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kraftpy.pipeline.folder import (
    _HALF,
    FolderError,
    local_folder,
    numbered,
    put_if_absent,
    replace_file,
    sweep_halves,
)


def test_the_first_contents_stand(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deeper" / "1.json"
    assert put_if_absent(path, b"first")
    assert not put_if_absent(path, b"second")
    assert path.read_bytes() == b"first"
    assert [one.name for one in path.parent.iterdir()] == ["1.json"]


def test_a_name_may_be_as_long_as_that_of_a_topic(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 249}.json"
    assert put_if_absent(path, b"first")
    replace_file(path, lambda beside: beside.write_bytes(b"second"))
    assert path.read_bytes() == b"second"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_of_many_writers_one_wins_and_its_contents_are_whole(tmp_path: Path) -> None:
    contents = [b"%d" % writer * 100_000 for writer in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            path = tmp_path / f"{number}.json"
            won = list(pool.map(put_if_absent, [path] * 4, contents))
            assert won.count(True) == 1
            assert path.read_bytes() == contents[won.index(True)]


def test_numbered_files_are_found_and_others_are_not(tmp_path: Path) -> None:
    for name in ("007.json", "12.json", "x.json", "3.json.tmp", "٣.json", "-1.json"):
        (tmp_path / name).touch()
    assert sorted(numbered(tmp_path)) == [7, 12]
    assert list(numbered(tmp_path / "none")) == []


def test_half_written_files_are_swept_while_others_delete_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/gone", "b", "c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"old{_HALF}").touch()
        os.utime(tmp_path / name / f"old{_HALF}", (1, 1))
    (tmp_path / "c" / f"new{_HALF}").touch()
    (tmp_path / "c" / "1.json").touch()
    scandir = os.scandir

    def scan(path: str | Path) -> Any:
        if str(path).endswith("gone"):
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    sweep_halves(tmp_path)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {f"new{_HALF}", "1.json"}


@pytest.mark.parametrize("place", ["/data/lake", "file:/data/lake", "file:///data/lake"])
def test_a_folder_is_named_by_a_path_or_a_file_url(place: str) -> None:
    assert local_folder(place) == Path("/data/lake")


def test_a_relative_path_is_made_absolute() -> None:
    assert local_folder("lake") == Path.cwd() / "lake"


@pytest.mark.parametrize("place", ["s3://bucket/lake", "hdfs:///lake"])
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(FolderError, match="name a folder that all workers see"):
        local_folder(place)
