"""Runs that prove nothing are unknown, and say why; promises that nothing tested say that too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.consistency import Header, HistoryReader, HistoryWriter, Outcome, check
from kraftpy.testing.consistency.matrix import total
from kraftpy.testing.consistency.page import render
from kraftpy.testing.consistency.report import judge
from kraftpy.testing.consistency.verdicts import NOTHING_TO_JUDGE, word

WHERE = {"group": "g", "key": "t-0"}


class _Story:
    """What happens in a run, one operation after the other."""

    def __init__(self, writer: HistoryWriter) -> None:
        self._writer = writer
        self._process = 1

    def phase(self, name: str) -> None:
        self._writer.phase(name)
        self._process += 1

    def did(self, f: str, asked: Any, answer: Any = None) -> None:
        op = self._writer.invoke(self._process, f, asked)
        self._writer.ok(self._process, op, f, answer)

    def unknown(self, f: str, asked: Any) -> None:
        op = self._writer.invoke(self._process, f, asked)
        self._writer.info(self._process, op, f, "timed out")

    def note(self, f: str, value: Any) -> None:
        self._writer.note(self._process, f, value)


def _sends(run: _Story, count: int) -> None:
    for value in range(count):
        run.did("send", [["t-0", value]], [["t-0", value, value]])


def _all_read(run: _Story, count: int) -> None:
    run.note("assign", {"t-0": 0})
    run.did("poll", None, {"t-0": [[value, value] for value in range(count)]})


def offsets(run: _Story, *, answered: bool) -> None:
    for offset in (5, 7):
        run.did("commit", {**WHERE, "offset": offset})
    run.did("fetch", WHERE, {**WHERE, "offset": 7})  # under load: it isn't the end
    run.phase("final")
    if answered:
        run.did("fetch", WHERE, {**WHERE, "offset": 7})
    run.unknown("fetch", WHERE)


def metadata(run: _Story, *, answered: bool) -> None:
    run.did("create", {"name": "a", "config": 1})
    run.phase("final")
    if answered:
        run.did("describe", {"name": "a"}, {"name": "a", "config": 1})
    run.unknown("describe", {"name": "a"})


def groups(run: _Story, *, answered: bool) -> None:
    _sends(run, 50)
    if answered:
        run.note("assigned", {"group": "g", "keys": ["t-0"], "epoch": 1})
        run.note("processed", {**WHERE, "first": 0, "last": 49})
        run.did("commit", {**WHERE, "offset": 50, "epoch": 1})
    run.phase("final")
    run.did("fetch", WHERE, {**WHERE, "offset": 50 if answered else -1})


def queue(run: _Story, *, answered: bool) -> None:
    for value in range(50):
        run.unknown("send", [["t-0", -value - 1]])
    if answered:
        _sends(run, 3)
    run.phase("final")
    if answered:
        _all_read(run, 3)
        run.did("drain", None, {"t-0": [0, 3]})


def undrained(run: _Story, *, answered: bool) -> None:
    """All was read, by readers of whom nobody knows that they reached the end."""
    _sends(run, 3)
    _all_read(run, 3)
    run.phase("final")
    if answered:
        run.did("drain", None, {"t-0": [0, 3]})
    else:
        run.unknown("drain", None)


STORIES = {
    "offsets": (offsets, "no fetch was answered for 1 of 1 that had changed: g/t-0 (timed out)"),
    "metadata": (metadata, "in the end no describe was answered for 1 of 1"),
    "groups": (groups, "no member was ever assigned a partition; no member processed anything"),
    "queue": (queue, "no send was acknowledged"),
    "queue, read": (undrained, "in the end no drain was answered for 1 of 1 that had changed"),
}


def tell(path: Path, name: str, *, answered: bool) -> HistoryReader:
    story: Callable[..., None] = STORIES[name][0]
    header = Header(name.partition(",")[0], options={"idempotence": True})
    with HistoryWriter(path, header) as writer:
        run = _Story(writer)
        run.phase("load")
        story(run, answered=answered)
    return HistoryReader(path)


def why(outcome: Outcome) -> str:
    (complete,) = (each for each in outcome.verdicts if each.checker == "complete")
    return complete.explanation


@pytest.mark.parametrize("name", STORIES)
def test_a_run_that_proves_nothing_is_unknown_and_says_why(tmp_path: Path, name: str) -> None:
    outcome, report = judge(tell(tmp_path / "h", name, answered=False))
    assert outcome.valid is None
    assert STORIES[name][1] in why(outcome)
    page = render(report)
    assert "Every promise was kept" not in page
    assert why(outcome) in page


@pytest.mark.parametrize("name", STORIES)
def test_a_run_that_was_answered_is_good(tmp_path: Path, name: str) -> None:
    outcome = check(tell(tmp_path / "h", name, answered=True))
    assert outcome.valid is True, [each for each in outcome.verdicts if each.valid is None]


def test_a_run_that_broke_off_is_unknown(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h", Header("offsets")) as writer:
        run = _Story(writer)
        run.phase("load")
        run.did("commit", {**WHERE, "offset": 5})
    outcome = check(HistoryReader(tmp_path / "h"))
    assert outcome.valid is None
    assert "the run ended before its final reads" in why(outcome)


def test_what_nothing_tested_is_not_called_kept(tmp_path: Path) -> None:
    _, report = judge(tell(tmp_path / "h", "queue", answered=True))
    said = {each["checker"]: word(each["valid"], each["counts"]) for each in report["verdicts"]}
    assert said["aborted-read"] == NOTHING_TO_JUDGE  # no send failed
    assert said["lost-write"] == "kept"
    assert 'class="idle"><span class="badge">nothing to judge' in render(report)
    assert "promises kept, " in total([report], 60)
    assert " with nothing to judge" in total([report], 60)
