"""The pytest plugin: fixtures that give tests a Kafka broker.

* `kraftpy`: one broker for the whole session (with pytest-xdist: one for each worker), started when
  the first test asks for it. Tests share it, so each takes topic and group names of its own.
* `kraftpy_factory`: starts brokers that belong to one test, to kill, restart and configure:
  `kraftpy_factory(log_retention_ms=1000)`.
* `kraftpy_cluster`: starts clusters that belong to one test, to break: `kraftpy_cluster(3)`.

They hand out a started `kraftpy.testing.Broker` or `Cluster` and stop it. Importing this module
costs nothing but its few lines: pytest does it for every user who has kraftpy installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kraftpy.testing import Broker, Cluster


@pytest.fixture(scope="session")
def kraftpy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running Kafka broker, shared by the session: `.bootstrap` is its address."""
    from kraftpy.testing import Broker

    with Broker(dir=tmp_path_factory.mktemp("kraftpy")) as broker:
        yield broker


@pytest.fixture
def kraftpy_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Broker]]:
    """Starts brokers for this test alone; takes `Broker`'s arguments, settings among them."""
    from kraftpy.testing import Broker

    with ExitStack() as started:  # one that can't be closed leaves no other running

        def start(**options: object) -> Broker:
            options.setdefault("dir", tmp_path_factory.mktemp("kraftpy"))
            broker = Broker(**options)  # type: ignore[arg-type]
            started.callback(broker.close)
            return broker.start()

        yield start


@pytest.fixture
def kraftpy_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters for this test alone; takes `Cluster`'s arguments, settings among them.

    Their data lies in memory; the logs of the nodes are copied to pytest's temporary folder.
    """
    from kraftpy.testing import Cluster

    def keep_logs(cluster: Cluster) -> None:
        kept = tmp_path_factory.mktemp("kraftpy")
        for node in cluster.nodes.values():
            with suppress(FileNotFoundError):  # the test has closed it
                shutil.copy(node.log_path, kept / f"node{node.id}.log")

    with ExitStack() as started:  # one that can't be closed leaves no other running

        def start(brokers: int = 3, **options: object) -> Cluster:
            cluster = Cluster(brokers, **options)  # type: ignore[arg-type]
            started.callback(cluster.close)
            started.callback(keep_logs, cluster)
            return cluster.start()

        yield start
