"""Queries that write exactly once, killed with -9 at each stage of a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kraftpy.client.offsets import READ_COMMITTED
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.decoder import Slice
from kraftpy.spark.settings import ClientSettings
from kraftpy.testing import Broker
from tests.spark.dying_sinks import IN_TASKS, PER_BATCH, STAGES, TASKS
from tests.spark.topics import create_topic, fill

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 400
BATCHES = 4
KEYS = 7
KRAFTPY, APACHE = "kraftpy", "Apache Kafka"
Row = tuple[int, bytes, bytes]
Run = Callable[[str], list[Row]]
ROWS = [
    {"key": b"key %d" % (n % KEYS), "value": b"value %d" % n, "partition": n % 2}
    for n in range(BATCHES * PER_BATCH)
]


def committed(bootstrap: str, topic: str) -> list[Row]:
    """(partition, key, value) of what readers of committed records find, in order."""
    found = []
    with Brokers(ClientSettings(bootstrap, isolation=READ_COMMITTED)) as brokers:
        for number in brokers.partitions([topic])[topic]:
            end = brokers.latest([(topic, number)])[topic, number]
            for part in brokers.read(Slice(topic, number, 0, end), ("key", "value")):
                columns = (part.column(name).to_pylist() for name in ("key", "value"))
                found += [(number, key, value) for key, value in zip(*columns, strict=True)]
    return found


@pytest.fixture(params=[KRAFTPY, APACHE])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of either kind of brokers."""
    if request.param == KRAFTPY:
        broker: Broker = request.getfixturevalue("broker")
        return broker.bootstrap
    return str(request.getfixturevalue("apache"))


@pytest.fixture
def run(bootstrap: str, tmp_path: Path) -> Run:
    """Runs a query between two topics, up to a stage; what is committed then."""
    source, target = f"from-{tmp_path.name}", f"to-{tmp_path.name}"
    create_topic(bootstrap, source, 2)
    create_topic(bootstrap, target, 3)
    fill(bootstrap, source, ROWS)

    def go(stage: str) -> list[Row]:
        command = [sys.executable, "-m", "tests.spark.dying_sinks", "query", stage]
        command += [bootstrap, source, target, str(tmp_path)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its Java, and tasks that are left
        expected = 0 if stage in ("", TASKS) else -signal.SIGKILL
        assert process.returncode == expected, errors.decode()[-3000:]
        return committed(bootstrap, target)

    return go


def assert_each_once(found: list[Row]) -> None:
    assert Counter(value for _, _, value in found) == Counter(row["value"] for row in ROWS)
    # A key is in one partition, and its rows from each partition of the source in their order.
    for key in {row["key"] for row in ROWS}:
        mine = [(partition, int(value.split()[1])) for partition, its, value in found if its == key]
        assert len({partition for partition, _ in mine}) == 1
        for side in (0, 1):
            numbers = [number for _, number in mine if number % 2 == side]
            assert numbers == sorted(numbers)


@pytest.mark.timeout(3000)
def test_a_query_killed_at_each_stage_writes_each_row_once(run: Run, tmp_path: Path) -> None:
    commits = tmp_path / "checkpoint" / "commits"
    for stage in STAGES:
        rows = Counter(value for _, _, value in run(stage))
        assert [path.name for path in commits.glob("[0-9]*")] == ["0"], stage
        assert set(rows.values()) == {1}, stage
        if stage == "some committed":  # and what is open hides some of them
            assert PER_BATCH <= len(rows) < 2 * PER_BATCH
        else:
            assert len(rows) == PER_BATCH * (1 + (stage == "all committed")), stage
    assert_each_once(run(""))


@pytest.mark.timeout(900)
def test_tasks_that_die_at_each_stage_are_done_again(run: Run, tmp_path: Path) -> None:
    found = run(TASKS)
    assert {path.name for path in tmp_path.glob("died *")} == {f"died {each}" for each in IN_TASKS}
    assert_each_once(found)
