"""Logs are read line by line: what clients name their things must not look like an event."""

from __future__ import annotations

import json
import logging
import re

import pytest

from kraftpy.cli.logs import JsonFormatter, LineFormatter, LogFile
from kraftpy.events import Event


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


def as_json(record: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter(7).format(record)
    assert text.isascii()
    assert "\n" not in text
    parsed: dict[str, object] = json.loads(text)
    return parsed


def test_json_has_an_event_with_its_fields() -> None:
    record = logging.LogRecord("kraftpy.x", logging.WARNING, "x.py", 1, "%s", ("a b=1",), None)
    record.event = Event(1, 0, logging.WARNING, "kraftpy.x", "a", {"b": 1, "who": "團\n"})
    line = as_json(record)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line.pop("time")))
    assert line == {
        "level": "WARNING",
        "logger": "kraftpy.x",
        "node": 7,
        "pid": record.process,
        "event": "a",
        "fields": {"b": 1, "who": "團\n"},
        "message": "a b=1",
    }


def test_json_has_a_traceback_as_one_string() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    line = as_json(logging.LogRecord("x", logging.ERROR, "x.py", 1, "failed", (), info))
    assert "event" not in line
    assert str(line["traceback"]).endswith("ValueError: no")


def test_a_full_disk_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFile("/dev/full")
    logger = logging.Logger("full")
    logger.addHandler(handler)
    for _ in range(3):
        logger.error("something")
    logger.removeHandler(handler)
    assert capsys.readouterr().err == (
        "kraftpy: cannot write the log /dev/full: no space left on device. Lines of it are missing "
        "from now on, until there is room again\n"
    )
