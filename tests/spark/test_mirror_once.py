"""Mirrors that copy exactly once: killed at each stage, and with an older checkpoint."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka
from tests.processes import running
from tests.spark.dying_mirrors import STAGES
from tests.spark.test_mirror import BATCH, ROWS, TOPIC, Mirroring, mirroring_of
from tests.spark.topics import end_of, fill, numbered
from tests.spark.writing import records

KRAFTPY, APACHE = "kraftpy", "Apache Kafka"


@pytest.fixture(params=[KRAFTPY])
def mirroring(
    request: pytest.FixtureRequest, spark: Any, broker: Broker, tmp_path: Path
) -> Iterator[Mirroring]:
    """To another cluster, of either kind."""
    far: Any = Broker(dir=tmp_path / "far")
    if request.param == APACHE:
        (tmp_path / "apache").mkdir()
        far = running(ApacheKafka(tmp_path / "apache"))
    with far as started:
        pair = Mirroring(spark, broker.bootstrap, started.bootstrap, tmp_path)
        pair.to_options = {"exactlyOnce": "true"}
        yield from mirroring_of(pair)


def assert_each_once(pair: Mirroring) -> None:
    options = {"kafka.isolation.level": "read_committed"}
    found = records(pair.spark, pair.target, TOPIC, **options)
    assert found == records(pair.spark, pair.source, TOPIC)


@pytest.mark.parametrize("stage", STAGES)
def test_each_record_is_there_once_though_a_mirror_is_killed(
    mirroring: Mirroring, stage: str
) -> None:
    command = mirroring.command("--available-now", "--max-records", str(BATCH))
    command[command.index("kraftpy")] = "tests.spark.dying_mirrors"
    command.insert(command.index("pipeline"), stage)
    command += ["--to-option", "exactlyOnce=true"]
    done = subprocess.run(command, capture_output=True, timeout=250, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert set(mirroring.mirror().ends().values()) == {BATCH // 2}
    mirroring.copy()
    assert_each_once(mirroring)
    wanted = ROWS // 2 + ROWS // BATCH  # a control record for each transaction
    if stage == "committed":  # at least in one of them nothing was aborted, or written again
        assert wanted in [end_of(mirroring.target, TOPIC, partition) for partition in (0, 1)]


@pytest.mark.parametrize("mirroring", [KRAFTPY, APACHE], indirect=True)
def test_with_an_older_checkpoint_nothing_is_copied_again(mirroring: Mirroring) -> None:
    mirroring.copy()
    at, old = mirroring.folder / "at", mirroring.folder / "old"
    shutil.copytree(at, old)
    fill(mirroring.source, TOPIC, numbered(300, 2, first=ROWS))
    assert mirroring.copy().rows == 300
    assert_each_once(mirroring)
    shutil.rmtree(at)
    old.rename(at)
    fill(mirroring.source, TOPIC, numbered(300, 2, first=ROWS + 300))
    assert mirroring.copy().rows == 600  # read, and the first half of them dropped
    assert_each_once(mirroring)
    assert mirroring.copy().rows == 0
