"""Groups of the Java client, in both protocols, killed with their coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.run import Run

KINDS = ["java", "java-cooperative", "mixed-consumer"]
FAULTS = 5
SEED = 1004


@pytest.mark.timeout(400)
def test_groups_of_the_java_client(tmp_path: Path) -> None:
    report = Run(SEED, KINDS, 2, tmp_path / "run").play(FAULTS)
    assert not report.anomalies, "\n".join([*report.story, *report.anomalies])
    assert report.faults == FAULTS
    assert report.commits > 20  # there was load, and it was processed
