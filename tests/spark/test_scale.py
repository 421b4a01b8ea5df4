"""Loads of all codecs and of what compaction left: the end of `make spark`, in short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.scale import KINDS, run


@pytest.mark.timeout(600)
def test_lakes_have_what_an_independent_consumer_gets(spark: Any, tmp_path: Path) -> None:
    lines: list[str] = []
    run(spark, tmp_path, 50_000, lines.append)
    assert len(lines) == 1 + len(KINDS)
