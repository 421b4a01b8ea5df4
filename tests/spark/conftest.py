"""What the tests with Spark need, and the words for a machine that lacks it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing import Broker
from tests import programs
from tests.apache_kafka import ApacheKafka, fetch_broker_jars, fetch_jars
from tests.processes import running
from tests.spark.jars import connector_jars

# The extra is in a group of its own: `make test` collects these files without it.
collect_ignore_glob = [] if find_spec("pyspark") and find_spec("pyarrow") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(300))  # the first one starts a JVM


def prepare() -> None:
    """Fetch what takes longer than a test may; `make spark` calls it before pytest."""
    programs.require("Spark", *programs.APACHE_KAFKA)
    fetch_jars()
    fetch_broker_jars()
    connector_jars()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One local session with both doors: ours, found by itself, and Spark's Kafka connector."""
    from tests.spark.session import start_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = start_session(tmp_path_factory.mktemp("spark"), connector_jars(), cores=2)
    yield session
    session.stop()


@pytest.fixture
def other_file_system(spark: Any) -> Iterator[None]:
    """A path without a scheme is of a file system that isn't there, as HDFS may be on YARN."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", "nowhere://there")
    yield
    conf.set("fs.defaultFS", before)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A kraftpy node that all tests share; each takes topics of its own."""
    with Broker(dir=tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka, which makes no topics by itself."""
    folder = tmp_path_factory.mktemp("apache")
    with running(ApacheKafka(folder, auto_create_topics_enable="false")) as kafka:
        yield kafka.bootstrap


_numbers = itertools.count(1)


@pytest.fixture
def new_topic(broker: Broker) -> Callable[..., str]:
    """Makes topics: `new_topic(partitions=2, **settings)`."""
    from tests.spark.topics import create_topic

    def make(partitions: int = 1, **settings: object) -> str:
        name = f"topic-{next(_numbers)}"
        create_topic(broker.bootstrap, name, partitions, **settings)
        return name

    return make


@pytest.fixture
def loading(spark: Any, broker: Broker, new_topic: Callable[..., str], tmp_path: Path) -> Any:
    """An empty topic of two partitions, and a folder for lakes."""
    from tests.spark.loading import Loading

    return Loading(spark, broker.bootstrap, new_topic(partitions=2), tmp_path)
