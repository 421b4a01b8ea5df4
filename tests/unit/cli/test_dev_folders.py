"""Temporary folders of `kraftpy dev` whose process was killed are removed by the next one."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

import pytest

from kraftpy.cli import dev


def test_what_was_left_behind_goes_and_what_is_in_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(dev, "_MEMORY_FOLDER", tmp_path / "memory")
    used = dev._temporary_folder(in_memory=False)  # the lock is this process's

    def made(name: str, *, node: bool = False) -> Path:
        root = tmp_path / name
        root.mkdir()
        (root / "dev.lock").touch()
        if node:
            (root / "node1" / "data").mkdir(parents=True)
            (root / "node1" / "server.properties").touch()
            (root / "node1" / "data" / ".lock").touch()
        return root

    killed, restarted = made("kraftpy-killed", node=True), made("kraftpy-restarted", node=True)
    foreign = tmp_path / "kraftpy-mine"
    foreign.mkdir()
    other = made("others")
    linked = tmp_path / "kraftpy-link"
    linked.symlink_to(other)
    with (restarted / "node1" / "data" / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = dev._temporary_folder(in_memory=False)
    assert not killed.exists()
    assert all(each.exists() for each in (used, second, restarted, foreign, other, linked))
