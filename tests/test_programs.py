"""Targets of the Makefile on a machine that lacks what they need: a sentence that says what to
install, and no traceback.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
JAVA, MAVEN = "apt-get install default-jdk-headless", "apt-get install maven"

# What a target runs, with the packages that it names.
NEEDY = {
    "dashboards": (["-m", "tests.dashboards"], ["apt-get install prometheus"]),
    "report": (["-m", "tests.demo.report"], [JAVA]),
    "race": (["-m", "tests.bench", "race"], [JAVA, MAVEN]),
    "bench ARGS=partitions-kafka": (["-m", "tests.bench", "partitions-kafka"], [JAVA, MAVEN]),
    "bench ARGS=spark": (["-m", "tests.bench", "spark"], [JAVA, MAVEN]),
    "reference": (["-m", "tests.apache_kafka", "true"], [JAVA, MAVEN]),
    "spark": (["-c", "from tests.spark import conftest; conftest.prepare()"], [JAVA, MAVEN]),
    "streams": (["-m", "tests.streams"], [JAVA, MAVEN]),
    "connect": (["-m", "tests.connect"], [JAVA, MAVEN]),
    "franz": (["-m", "tests.franz"], ["apt-get install golang-go"]),
    "groups": (["-m", "tests.consistency.groups", "--clients", "java"], [JAVA, MAVEN]),
    "consistency ARGS=--apache": (["-m", "tests.consistency", "--apache"], [JAVA, MAVEN]),
    "conformance": (
        ["-c", "from tests.conformance import conftest; conftest.prepare()"],
        [JAVA, MAVEN, "apt-get install kcat", "apt-get install npm"],
    ),
}
# Targets that need Python and nothing else.
CONTENT = {
    "bench",
    "broken",
    "check",
    "clean",
    "consistency",
    "cooperative",
    "demo",
    "docs",
    "help",
    "install",
    "quorum",
    "simulate",
    "test",
    "test-all",
    "torture",
    "wheel",
}


@pytest.mark.parametrize("target", NEEDY)
def test_a_target_names_what_is_missing(target: str, tmp_path: Path) -> None:
    arguments, packages = NEEDY[target]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1
    for package in packages:
        assert package in said


def test_every_target_is_known() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets == {name.split()[0] for name in NEEDY} | CONTENT
