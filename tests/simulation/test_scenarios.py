"""The stories of scenarios/*.txt come out as they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.scenario import FOLDER, player_of

SCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_scenario(path: Path) -> None:
    script = path.read_text()
    assert player_of(path)(script) == script
