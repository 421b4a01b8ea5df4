"""What the conformance tests need beyond Python, and the words for a machine that lacks it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.apache_kafka import missing_tools
from tests.clients.fixtures import bootstrap, log_dir, new_topic, reference, topic

__all__ = ["bootstrap", "log_dir", "new_topic", "reference", "topic"]

PROGRAMS = {
    "kcat": "kcat (apt-get install kcat)",
    "node": "Node.js 18 or newer (apt-get install nodejs)",
    "npm": "npm (apt-get install npm)",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.conformance)


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    missing = [words for name, words in PROGRAMS.items() if shutil.which(name) is None]
    if missing := missing + missing_tools():
        pytest.exit("conformance tests need what is missing here: " + "; ".join(missing), 1)
