"""What a task of a mirror that copies exactly once does; without a JVM."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from pyspark import TaskContext

from kraftpy.spark.exactly_once import RepeatedError
from kraftpy.testing import Broker
from tests.spark.copying_task import PARTITION, become_task, table, tables, writer
from tests.spark.dying_mirrors import STAGES
from tests.spark.test_exactly_once_killed import committed

NewTopic = Callable[..., str]


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    become_task()
    yield
    TaskContext._setTaskContext(None)


def copied(broker: Broker, topic: str) -> list[int]:
    """The offsets of what is there, in order; all of it has to be in the partition."""
    found = committed(broker.bootstrap, topic)
    assert {partition for partition, _, _ in found} <= {PARTITION}
    return [int(value) for _, _, value in found]


@pytest.mark.parametrize("stage", STAGES)
def test_a_task_that_is_killed_is_done_again(
    broker: Broker, new_topic: NewTopic, stage: str
) -> None:
    topic = new_topic(2)

    def run(stage: str, first: int, end: int) -> int:
        command = [sys.executable, "-m", "tests.spark.copying_task", stage, broker.bootstrap]
        command += [topic, str(first), str(end)]
        return subprocess.run(command, timeout=120, check=False).returncode

    assert run("", 0, 50) == 0
    assert run(stage, 50, 150) == -signal.SIGKILL
    assert copied(broker, topic) == list(range(150 if stage == "committed" else 50))
    assert run("", 50, 170) == 0  # with another end
    assert copied(broker, topic) == list(range(170))


@pytest.mark.usefixtures("in_task")
def test_what_was_copied_is_dropped(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    work = writer(broker.bootstrap, topic)
    steps = [([], 0), (tables(0, 100), 100), (tables(0, 100), 0), (tables(30, 90), 0),
             (tables(90, 131), 31), (tables(200, 210), 10)]  # fmt: skip
    for some, rows in steps:
        assert work.write(iter(some)).records == rows
    assert copied(broker, topic) == [*range(131), *range(200, 210)]
    for wrong in (
        [*tables(210, 220), table(range(210, 220), 0)],
        [table(range(219, 209, -1))],
    ):
        with pytest.raises(RepeatedError, match="rows of several partitions, or not in the order"):
            work.write(iter(wrong))
    assert copied(broker, topic) == [*range(131), *range(200, 210)]
