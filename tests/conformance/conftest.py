"""What the conformance tests need beyond Python, and the words for a machine that lacks it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.apache_kafka import fetch_broker_jars, fetch_jars, missing_tools
from tests.clients.fixtures import bootstrap, log_dir, new_topic, reference, topic
from tests.conformance.zookeeper import JAR, MISSING

__all__ = ["bootstrap", "log_dir", "new_topic", "reference", "topic"]

PROGRAMS = {
    "kcat": "kcat (apt-get install kcat)",
    "node": "Node.js 18 or newer (apt-get install nodejs)",
    "npm": "npm (apt-get install npm)",
    "prometheus": "Prometheus (apt-get install prometheus)",
    "chromium": "Chromium (apt-get install chromium)",
    "promtool": "promtool (apt-get install prometheus)",
    "Burrow": "Burrow (apt-get install burrow)",
    "go": "Go 1.23 or newer, or 1.21 that may fetch it (apt-get install golang-go)",
    "systemd-analyze": "systemd-analyze (apt-get install systemd)",
    "unshare": "unshare and nsenter (apt-get install util-linux)",
    "ip": "ip (apt-get install iproute2)",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.conformance)


def what_is_missing() -> str:
    """One sentence for a machine that can't run these tests, empty for one that can."""
    missing = [words for name, words in PROGRAMS.items() if shutil.which(name) is None]
    missing += missing_tools()
    if not JAR.exists():
        missing.append(MISSING)
    return f"conformance tests need what is missing here: {'; '.join(missing)}" if missing else ""


def prepare() -> None:
    """Fetch what takes longer than a test may; `make conformance` calls it before pytest."""
    if problem := what_is_missing():
        sys.exit(problem)
    fetch_jars()
    fetch_broker_jars()


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    if problem := what_is_missing():
        pytest.exit(problem, 1)
