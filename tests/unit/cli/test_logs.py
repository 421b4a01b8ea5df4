"""Logs are read line by line: what clients name their things must not look like an event."""

from __future__ import annotations

import logging

from kraftpy.cli.logs import LineFormatter


def line(message: str, *args: object, failure: BaseException | None = None) -> str:
    info = None if failure is None else (type(failure), failure, failure.__traceback__)
    record = logging.LogRecord("kraftpy.x", logging.INFO, "x.py", 1, message, args, info)
    return LineFormatter().format(record)


def test_an_event_is_one_line_whatever_somebody_is_called() -> None:
    text = line("member %s leaves", "a\n2026-01-31 12:00:00 ERROR kraftpy: \x1b[31mforged")
    assert text.count("\n") == 0
    assert text.endswith(r"member a\n2026-01-31 12:00:00 ERROR kraftpy: \x1b[31mforged leaves")


def test_names_in_any_script_stay_as_they_are() -> None:
    assert line("topic %r of %s", "größe", "團體").endswith("topic 'größe' of 團體")


def test_a_traceback_keeps_its_lines() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        text = line("failed", failure=error)
    assert "failed\nTraceback" in text
    assert text.endswith("ValueError: no")
