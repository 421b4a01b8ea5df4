"""Fixtures of the client and the conformance tests: a broker, and a topic name for each test.

With KRAFTPY_TEST_BOOTSTRAP=host:port the same tests run against that broker instead. That is how
they are checked against the reference: `make reference`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Driver, wait_for_partitions


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of the broker under test."""
    return os.environ.get("KRAFTPY_TEST_BOOTSTRAP") or request.getfixturevalue("kraftpy").bootstrap


@pytest.fixture
def log_dir(request: pytest.FixtureRequest) -> Path:
    """The folder in which the broker under test keeps its partitions."""
    return Path(
        os.environ.get("KRAFTPY_TEST_LOG_DIR") or request.getfixturevalue("kraftpy").log_dir
    )


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def reference(bootstrap: str) -> Driver:
    """The client that judges what another one did."""
    return ConfluentKafka(bootstrap)


@pytest.fixture
def new_topic(reference: Driver, topic: str) -> Callable[..., str]:
    """`new_topic(partitions=1, **configs)` creates this test's topic; underscores become dots."""

    def create(partitions: int = 1, **configs: str) -> str:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        reference.create_topic(topic, partitions, named)
        wait_for_partitions(reference, topic, partitions)
        return topic

    return create
