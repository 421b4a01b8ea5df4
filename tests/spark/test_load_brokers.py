"""Brokers that are killed with -9 in the middle of a load: it is delayed, and has each record once.

The task that has read a part kills the node, so that it is one that the load still needs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.pipeline import load as load_module
from kraftpy.pipeline.parquet import Target, write_files
from kraftpy.testing import Broker, Cluster
from kraftpy.testing.process import is_alive
from tests.spark.loading import ROWS, Loading, assert_each_once
from tests.spark.topics import create_topic
from tests.waiting import wait_until

WRITE_FILES = "kraftpy.pipeline.table.write_files"


def killing(pid: int, marker: Path) -> Callable[[Target], Callable[[Iterator[Any]], Iterator[Any]]]:
    """`write_files`, but the first task that has a file kills a process."""

    def writer(target: Target) -> Callable[[Iterator[Any]], Iterator[Any]]:
        def write(batches: Iterator[Any]) -> Iterator[Any]:
            for described in write_files(target)(batches):
                if not marker.exists():
                    marker.touch()
                    os.kill(pid, signal.SIGKILL)
                yield described

        return write

    return writer


def bringing_back(broker: Broker) -> threading.Thread:
    """Starts the node again once somebody has killed it."""
    pid = broker.pid

    def bring_back() -> None:
        wait_until(lambda: not is_alive(pid), "somebody has killed the broker", timeout_s=120)
        broker.restart()

    helper = threading.Thread(target=bring_back)
    helper.start()
    return helper


def test_a_node_that_comes_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that begin while it is away wait for it, as do those that were reading."""
    with Broker(dir=tmp_path / "broker") as broker:
        create_topic(broker.bootstrap, "t", 2)
        loading = Loading(spark, broker.bootstrap, "t", tmp_path)
        loading.fill(ROWS)
        monkeypatch.setattr(WRITE_FILES, killing(broker.pid, tmp_path / "killed"))
        helper = bringing_back(broker)
        outcome = loading.load()
        helper.join()
        assert (tmp_path / "killed").exists()
        assert outcome is not None
        assert outcome.rows == ROWS
        assert_each_once(loading)


def test_what_tasks_have_done_is_not_lost_with_the_node(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node dies when all is written and only the topic's identity has to be asked for."""
    with Broker(dir=tmp_path / "broker") as broker:
        create_topic(broker.bootstrap, "t", 2)
        loading = Loading(spark, broker.bootstrap, "t", tmp_path)
        loading.options = {"fetchOffset.numRetries": "0"}
        loading.fill(ROWS)
        write_ranges = load_module.write_ranges  # type: ignore[attr-defined]

        def killed_behind(*arguments: Any) -> Any:
            files = write_ranges(*arguments)
            os.kill(broker.pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(broker.pid), "the broker is gone after kill -9")
            helpers.append(bringing_back(broker))
            return files

        helpers: list[threading.Thread] = []
        with monkeypatch.context() as patch:
            patch.setattr(load_module, "write_ranges", killed_behind)
            outcome = loading.load()
        helpers[0].join()
        assert outcome is not None
        assert outcome.rows == ROWS
        assert_each_once(loading)


def test_a_leader_that_stays_away(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(3) as cluster:
        create_topic(cluster.bootstrap, "t", 2)
        loading = Loading(spark, cluster.bootstrap, "t", tmp_path)
        loading.fill(ROWS)
        leader = cluster.leader_of("t")
        assert leader is not None
        pid = cluster.nodes[leader].pid
        assert pid is not None
        monkeypatch.setattr(WRITE_FILES, killing(pid, tmp_path / "killed"))
        outcome = loading.load()
        assert not is_alive(pid)
        assert outcome is not None
        assert outcome.rows == ROWS
        assert_each_once(loading)
