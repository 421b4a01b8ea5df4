"""Where faults happen: who coordinates what is in use."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.testing.consistency.faults import Ground


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__share_group_state"])
def test_the_coordinator_leads_what_was_written_last_and_wasn_t_put_aside(
    tmp_path: Path, topic: str
) -> None:
    names = ["__consumer_offsets-1", f"{topic}-7", f"{topic}-3.0f1e-damaged", f"{topic}-4"]
    for age_s, name in enumerate(reversed(names)):
        folder = tmp_path / name
        folder.mkdir()
        log = folder / "00000000000000000000.log"
        log.write_bytes(b"" if name.endswith("-4") else b"records")
        os.utime(log, (1_000 - age_s, 1_000 - age_s) if "-1" not in name else (1, 1))
    asked: list[tuple[str, int]] = []
    cluster: Any = SimpleNamespace(
        nodes={1: SimpleNamespace(log_dir=tmp_path), 2: SimpleNamespace(log_dir=tmp_path)},
        leader_of=lambda *each: asked.append(each) or 2,
    )
    ground = Ground(cluster, {}, random.Random(1), target="coordinator")
    assert ground.victims(1) == [2]
    assert asked == [(topic, 7)]
