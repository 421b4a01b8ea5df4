"""A quorum of three voters whose time, disks and network a test holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .raft_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as world:
        world.start_all()
        yield world
