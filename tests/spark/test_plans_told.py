"""`--dry-run` and `--option` of the pipeline's commands: what is planned, without a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kraftpy.cli.app import app
from kraftpy.cli.common import EXIT_USAGE, Failure
from kraftpy.pipeline.bounds import Bound
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.lake import Lake
from kraftpy.pipeline.load import Loader
from kraftpy.testing import Broker
from tests.spark.topics import fill, numbered


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *words], standalone_mode=False)


def no_session() -> Any:
    raise AssertionError("a plan needs no Spark")


@pytest.mark.parametrize("command", ["load", "stream", "rerun"])
def test_what_a_crashed_run_is_going_to_load_is_planned_once(
    broker: Broker, new_topic: Callable[..., str], tmp_path: Path, command: str
) -> None:
    topic, lake = new_topic(), Lake.at(str(tmp_path), create=True)
    fill(broker.bootstrap, topic, numbered(100))
    loader = Loader(lake, Door(broker.bootstrap), topic, no_session)
    begun = loader.plan_load(Bound.read("20"), Bound.read("60"))
    assert begun is not None
    lake.freeze(begun)
    more = {"load": ("--from", "earliest"), "stream": ("--available-now",), "rerun": ()}[command]
    following = {"load": [(0, 20), (60, 100)], "stream": [(60, 100)], "rerun": [(0, 60)]}[command]
    words = (
        command,
        topic,
        str(tmp_path),
        *more,
        "-b",
        broker.bootstrap,
        "--dry-run",
        "-o",
        "json",
    )
    told = json.loads(run(*words).stdout)
    assert told["dry_run"] is True
    assert [[tuple(each[2:]) for each in one["ranges"]] for one in told["runs"]] == [
        [(20, 60)],
        following,
    ]
    assert lake.unfinished() == [begun]
    if command != "rerun":
        (alone,) = json.loads(run(*words, "--abandon").stdout)["runs"]
        assert [tuple(each[2:]) for each in alone["ranges"]] == [(0, 100)]


@pytest.mark.parametrize("words", [("load", "t", "lake"), ("audit", "t"), ("report", "flights")])
def test_the_source_takes_options_of_every_command_that_reads_a_topic(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    option = ("--option", "kafkaConsumer.pollTimeoutMs=soon")
    done = run(*words, *option, "-b", "127.0.0.1:1", "--dry-run")
    assert isinstance(done.exception, Failure)
    assert done.exception.code == EXIT_USAGE
    assert "pollTimeoutMs" in done.exception.message
