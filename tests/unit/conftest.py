"""Temporary folders lie in memory where there is room: nobody waits for a disk there.

Which calls are made, in which order, and what is left when they fail is what the tests are about;
nothing here measures a disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
_MIN_FREE_BYTES = 2 << 30
_FAILED = pytest.StashKey[bool]()


def _has_room() -> bool:
    if not os.access(_MEMORY, os.W_OK):
        return False
    return shutil.disk_usage(_MEMORY).free >= _MIN_FREE_BYTES


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """pytest's, but in memory; what a failed test leaves can be found in pytest's."""
    if not _has_room():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="kraftpy-unit-", dir=_MEMORY))
    yield folder
    if request.node.stash.get(_FAILED, False):
        with contextlib.suppress(shutil.Error):  # sockets and the like stay behind
            shutil.copytree(folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
