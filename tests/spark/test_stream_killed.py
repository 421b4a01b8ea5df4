"""Streams in processes of their own that are killed with -9, or told to stop."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing import Broker
from tests.spark.loading import Loading
from tests.spark.streaming import PER_BATCH, STAGES
from tests.spark.topics import fill, numbered

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("SPARK_KILLS", "2"))
"""How often the stream under load is killed."""


PATIENCE_S = 240
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, each in a group of its own, so that its Java can be killed with it."""
    started = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        more = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        kill_group(process)


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.send_signal(signal.SIGABRT)  # it tells where it is
            _, errors = process.communicate(timeout=60)
            pytest.fail(f"what was waited for didn't come: {errors}")
        time.sleep(0.02)


def kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.mark.timeout(900)
def test_a_query_killed_at_each_point_goes_on_exactly_from_its_checkpoint(
    spark: Any, broker: Broker, new_topic: Callable[..., str], tmp_path: Path, start: Start
) -> None:
    topic = new_topic(1)
    fill(broker.bootstrap, topic, numbered(PER_BATCH))
    checkpoint = tmp_path / "checkpoint"

    def run(stage: str) -> int:
        process = start(
            "tests.spark.streaming", "query", stage, broker.bootstrap, topic, str(tmp_path)
        )
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (-signal.SIGKILL if stage in STAGES else 0), errors[-2000:]
        return process.returncode

    def there(folder: str) -> list[int]:
        return sorted(int(path.name) for path in checkpoint.glob(f"{folder}/[0-9]*"))

    run("not planned")  # it began at 20, and 20 records came
    assert (checkpoint / "metadata").exists()
    assert there("offsets") == []
    run("planned")  # it began at 40, and 20 records came: "latest" is 60 by now
    assert (there("offsets"), there("commits")) == ([0], [])
    first = (checkpoint / "offsets" / "0").read_text()
    assert json.loads(first.splitlines()[-1])["@from"] == {topic: {"0": 2 * PER_BATCH}}
    fill(broker.bootstrap, topic, numbered(3 * PER_BATCH))
    run("written")
    assert (there("offsets"), there("commits")) == ([0], [])
    assert spark.read.parquet(str(tmp_path / "out")).count() == PER_BATCH
    # What a driver leaves that dies while it writes the log: never renamed, never read.
    (checkpoint / "offsets" / ".1.5c0b1d30-0000-4000-8000-000000000000.tmp").write_text(first[:40])
    run("half written")
    assert (there("offsets"), there("commits")) == ([0, 1], [0])
    run("committed")
    assert (there("offsets"), there("commits")) == ([0, 1], [0, 1])
    run("")
    assert there("offsets") == there("commits") == [0, 1, 2, 3]
    assert (checkpoint / "offsets" / "0").read_text() == first
    rows = spark.read.parquet(str(tmp_path / "out")).select("batch", "offset").collect()
    expected = [(n // PER_BATCH - 2, n) for n in range(2 * PER_BATCH, 6 * PER_BATCH)]
    assert sorted(map(tuple, rows)) == expected


@pytest.mark.timeout(900)
def test_signals_end_a_stream_behind_its_load_or_leave_it_to_the_next(
    loading: Loading, start: Start
) -> None:
    loading.fill(100)
    stream = ["pipeline", "stream", loading.topic, str(loading.folder / "lake")]
    stream += ["-b", loading.bootstrap, "--master", "local[2]", "--conf"]
    stream += ["spark.driver.memory=1g"]

    def begin(*more: str) -> subprocess.Popen[str]:
        for name in ("begun", "go"):
            (loading.folder / name).unlink(missing_ok=True)
        process = start("tests.spark.streaming", "held", str(loading.folder), *stream, *more)
        wait_for((loading.folder / "begun").exists, process)
        return process

    def tell(process: subprocess.Popen[str], number: signal.Signals) -> str:
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        assert process.stderr is not None
        return next(line for line in process.stderr if "under way" in line)

    process = begin("--every", "0.1", "--option", "failOnDataLoss=false")
    assert "ending when the load under way has ended" in tell(process, signal.SIGTERM)
    assert len(loading.loader().unfinished()) == 1
    (loading.folder / "go").touch()
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors[-2000:]
    assert "100 rows" in output
    assert output.splitlines()[-1] == "1 loads, 100 rows"
    assert loading.loader().unfinished() == []

    loading.fill(100, first=100)
    process = begin("--every", "0.1")
    assert "a second signal" in tell(process, signal.SIGINT)
    assert "is left to the next run" in tell(process, signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    (left,) = loading.loader().unfinished()
    assert len(loading.rows()) == 100

    process = start("kraftpy", *stream, "--available-now", "--abandon", "-o", "json")
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors[-2000:]
    assert json.loads(output)["rows"] == 100
    lake = loading.lake()
    assert [change.kind for change in lake.history()] == ["stream", "rollback", "stream"]
    assert lake.read(2).run == left.run
    assert [row[:2] for row in loading.rows()] == [(p, n) for p in (0, 1) for n in range(100)]


@contextmanager
def filling(loading: Loading) -> Iterator[None]:
    """Records come all the time."""
    stop = threading.Event()

    def work() -> None:
        first = 0
        while not stop.is_set():
            loading.fill(20, first)
            first += 20
            stop.wait(0.2)  # slow enough for a stream on a busy machine to keep up

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(1800)
def test_a_stream_under_load_that_is_killed_again_and_again_loads_each_record_once(
    loading: Loading, start: Start
) -> None:
    """Killed at any moment, in turn with its Java and without."""
    chance = random.Random(8)
    stream = ["kraftpy", "pipeline", "stream", loading.topic, str(loading.folder / "lake")]
    stream += ["-b", loading.bootstrap, "--master", "local[2]", "--conf"]
    stream += ["spark.driver.memory=1g"]
    loading.fill(1)
    with filling(loading):
        for number in range(KILLS):
            process = start(*stream, "--every", "0.1", "--max-records", "500")
            lake = loading.loader()._lake
            before = lake.latest().number
            wait_for(lambda lake=lake, before=before: lake.latest().number > before, process)
            time.sleep(chance.uniform(0, 1.5))
            if number % 2:
                process.kill()
                process.communicate(timeout=60)
            else:
                kill_group(process)
    ends = loading.loader().log_ends()
    process = start(*stream, "--available-now")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors[-2000:]
    assert loading.loader().unfinished() == []
    rows = [row[:2] for row in loading.rows()]
    assert rows == [(partition, n) for partition in (0, 1) for n in range(ends[partition])]
    assert len(rows) > 20 * KILLS
