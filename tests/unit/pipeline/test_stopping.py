"""Signals to a job that goes on and on."""

import os
import signal
import sys
from collections.abc import Iterator

import click
import pytest

from kraftpy.cli.pipeline.stopping import Stopping


@pytest.fixture
def stopping() -> Iterator[Stopping]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    found = Stopping("load")
    found.take()
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_first_is_heard_and_the_second_ends_the_process(
    stopping: Stopping,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    first: signal.Signals,
    second: signal.Signals,
) -> None:
    assert not stopping.event.is_set()
    os.kill(os.getpid(), first)
    assert stopping.event.is_set()
    assert capsys.readouterr().err.startswith("ending when the load under way has ended; a second")
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), second)
    assert ended.value.code == 128 + second
    assert capsys.readouterr().err == "the load under way is left to the next run\n"


def test_they_are_taken_again_from_who_took_them(stopping: Stopping) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Spark does when it starts
    stopping.take()
    os.kill(os.getpid(), signal.SIGINT)
    assert stopping.event.is_set()


@pytest.mark.parametrize("error", [BrokenPipeError, RuntimeError])
def test_they_are_heard_when_nobody_reads_stderr(
    stopping: Stopping, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def echo(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(click, "echo", echo)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopping.event.is_set()
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)


def test_who_leaves_early_says_by_which_signal(stopping: Stopping) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(click.exceptions.Exit) as left:
        stopping.leave()
    assert left.value.exit_code == 130
