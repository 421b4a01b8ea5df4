"""What the conformance tests need beyond Python, and the words for a machine that lacks it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import programs
from tests.apache_kafka import fetch_old_client_jars
from tests.chromium import Chromium
from tests.clients.fixtures import bootstrap, log_dir, new_topic, reference, topic
from tests.conformance.archives import make_archives
from tests.conformance.recipes import make_environment
from tests.conformance.zookeeper import JAR, MISSING

__all__ = ["bootstrap", "log_dir", "new_topic", "reference", "topic"]

PROGRAMS = (
    "kcat",
    "node",
    "npm",
    "prometheus",
    "chromium",
    "promtool",
    "Burrow",
    "go",
    "systemd-analyze",
    "unshare",
    "ip",
    "javac",
    *programs.APACHE_KAFKA,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.conformance)


def what_is_missing() -> str:
    """One sentence for a machine that can't run these tests, empty for one that can."""
    missing = programs.missing(*PROGRAMS)
    if not JAR.exists():
        missing.append(MISSING)
    return f"conformance tests need what is missing here: {'; '.join(missing)}" if missing else ""


def prepare() -> None:
    """Fetch and make what takes longer than a test may; `make conformance` calls it before."""
    if problem := what_is_missing():
        sys.exit(problem)
    make_archives()
    make_environment()
    fetch_old_client_jars()


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    if problem := what_is_missing():
        pytest.exit(problem, 1)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started
