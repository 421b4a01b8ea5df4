"""Loads on a cluster of Spark: a master and two workers, whose Python doesn't have kraftpy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kraftpy
from kraftpy.pipeline.lake import Lake
from kraftpy.testing import Broker
from tests.spark.checksums import of_lake, of_topic
from tests.spark.standalone import SPARK_HOME, Standalone, environment, make_python
from tests.spark.topics import create_topic, fill
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # five JVMs on two cores

TOPIC = "t"
RECORDS = 60_000
TASKS = 20
ON_DRIVER = ("click", "pandas")
"""What the driver needs besides: for the command line, and what PySpark asks for."""


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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone") / "spark") as cluster:
        yield cluster


def arguments(broker: Broker, lake: Path, tasks: int) -> list[str]:
    said = ["load", TOPIC, str(lake), "-b", broker.bootstrap, "-o", "json"]
    size = ["--task-records", str(RECORDS // tasks)]
    return [*said, *size, "--conf", "spark.executor.memory=512m"]


def staged(lake: Path) -> int:
    return sum(1 for _ in lake.glob("topic=*/partition=*/*.parquet"))


def test_spark_submit_with_kraftpy_installed_nowhere(
    filled: Broker, cluster: Standalone, tmp_path: Path
) -> None:
    """As it is done where machines are made elsewhere: the package goes along as a zip."""
    python = make_python(tmp_path / "venv", *ON_DRIVER)
    zipped, job, lake = tmp_path / "kraftpy.zip", tmp_path / "job.py", tmp_path / "lake"
    (package,) = kraftpy.__path__
    subprocess.run([sys.executable, "-m", "zipfile", "-c", str(zipped), package], check=True)
    job.write_text("from kraftpy.cli import main\n\nmain()\n")
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url]
    done = subprocess.run(
        [*submit, "--py-files", str(zipped), str(job), "pipeline", *arguments(filled, lake, 4)],
        env={**environment(), "PYSPARK_PYTHON": str(python)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout  # spark-submit has both streams of Python there
    assert json.loads(done.stdout)["runs"][0]["rows"] == RECORDS
    assert of_lake(Lake.at(str(lake)), TOPIC) == of_topic(filled.bootstrap, TOPIC)


def test_a_worker_that_is_killed_in_the_middle(
    filled: Broker, cluster: Standalone, tmp_path: Path
) -> None:
    python, lake = make_python(tmp_path / "venv"), tmp_path / "lake"
    command = [sys.executable, "-m", "kraftpy", "pipeline", *arguments(filled, lake, TASKS)]
    load = subprocess.Popen(
        [*command, "--master", cluster.url],
        env={**environment(), "PYSPARK_PYTHON": str(python)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with load:
        wait_until(
            lambda: load.poll() is not None or (cluster.busy() == 2 and staged(lake) >= 4),
            "both workers work",
            timeout_s=240,
        )
        before = staged(lake)
        assert load.poll() is None, load.stderr.read()[-3000:] if load.stderr else ""
        cluster.kill(0)
        assert load.poll() is None
        assert not list(lake.glob("_kraftpy/versions/*.json"))
        output, errors = load.communicate(timeout=300)
    assert load.returncode == 0, errors[-3000:]
    assert cluster.alive() == 1
    (run,) = json.loads(output)["runs"]
    assert before < run["files"] == TASKS
    assert run["rows"] == RECORDS
    assert of_lake(Lake.at(str(lake)), TOPIC) == of_topic(filled.bootstrap, TOPIC)
