"""Temporary folders of the processes that are started here go where pytest removes them."""

from __future__ import annotations

from pathlib import Path

import pytest

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
