"""What the tests with Spark need, and the words for a machine that lacks it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.apache_kafka import missing_tools
from tests.spark.jars import connector_jars

# The extra is in a group of its own: `make test` collects these files without it.
collect_ignore_glob = [] if find_spec("pyspark") and find_spec("pyarrow") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.spark)


def prepare() -> None:
    """Fetch what takes longer than a test may; `make spark` calls it before pytest."""
    if missing := missing_tools():
        sys.exit(f"the tests with Spark need {' and '.join(missing)}")
    connector_jars()
