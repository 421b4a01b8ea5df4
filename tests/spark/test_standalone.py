"""Loads on a cluster of Spark: a master and two workers, which don't have kraftpy installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.pipeline.lake import Lake
from kraftpy.testing import Broker
from kraftpy.testing.process import wait_until
from tests.spark.checksums import of_lake, of_topic
from tests.spark.standalone import Standalone, environment, make_python
from tests.spark.topics import create_topic, fill

pytestmark = pytest.mark.timeout(600)  # five JVMs on two cores

TOPIC = "t"
RECORDS = 60_000
TASK_RECORDS = 1500


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(dir=tmp_path_factory.mktemp("broker")) as broker:
        create_topic(broker.bootstrap, TOPIC, 2)
        rows = [
            {"key": b"%d" % (n % 500), "value": b"%06d" % n * 50, "partition": n % 2}
            for n in range(RECORDS)
        ]
        fill(broker.bootstrap, TOPIC, rows, compression="zstd")
        yield broker


@pytest.fixture(scope="module")
def workers_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_python(tmp_path_factory.mktemp("python") / "venv")


def environment_with(python: Path) -> dict[str, str]:
    return {**environment(), "PYSPARK_PYTHON": str(python)}


def arguments(broker: Broker, lake: Path) -> list[str]:
    said = ["load", TOPIC, str(lake), "-b", broker.bootstrap, "-o", "json"]
    return [*said, "--task-records", str(TASK_RECORDS), "--conf", "spark.executor.memory=512m"]


def staged(lake: Path) -> int:
    return sum(1 for _ in lake.glob("topic=*/partition=*/*.parquet"))


def test_a_worker_that_is_killed_in_the_middle(
    filled: Broker, workers_python: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Standalone(tmp_path / "spark") as spark:
        command = [sys.executable, "-m", "kraftpy", "pipeline", *arguments(filled, lake)]
        load = subprocess.Popen(
            [*command, "--master", spark.url],
            env=environment_with(workers_python),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with load:
            wait_until(
                lambda: load.poll() is not None or (spark.busy() == 2 and staged(lake) >= 4),
                "both workers don't work",
                timeout_s=240,
            )
            before = staged(lake)
            assert load.poll() is None, load.stderr.read()[-3000:] if load.stderr else ""
            spark.kill(0)
            assert load.poll() is None
            assert not list(lake.glob("_kraftpy/versions/*.json"))
            output, errors = load.communicate(timeout=300)
        assert load.returncode == 0, errors[-3000:]
        assert spark.alive() == 1
    (run,) = json.loads(output)["runs"]
    assert before < run["files"] == RECORDS // TASK_RECORDS
    assert run["rows"] == RECORDS
    assert of_lake(Lake.at(str(lake)), TOPIC) == of_topic(filled.bootstrap, TOPIC)
