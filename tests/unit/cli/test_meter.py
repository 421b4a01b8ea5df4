"""What a person at a terminal is told of the work under way."""

from __future__ import annotations

import io
import sys

import pytest

from kraftpy.cli.meter import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_written_now_and_then_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    times = iter([0.0, 0.1, 0.5, 0.5, 0.6, 2.0, 2.0, 4.0])
    meter = Meter(shows=True, clock=lambda: next(times))
    meter.add(1, 10)
    assert terminal.getvalue() == ""
    meter.add(999, 9_990)
    assert terminal.getvalue() == "\r\x1b[K1,000 records, 10.0 KB in 0.5 s"
    meter.add(1, 0)
    meter.add(1, 0)
    assert terminal.getvalue().endswith("\x1b[K1,002 records, 10.0 KB in 2.0 s (501 a second)")
    meter.clear()
    meter.clear()
    assert terminal.getvalue().endswith("a second)\r\x1b[K")
    assert meter.text() == "1,002 records, 10.0 KB in 4.0 s (250 a second)"


@pytest.mark.parametrize("shows", [True, False])
def test_nothing_is_written_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, shows: bool
) -> None:
    stream = io.StringIO() if shows else Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    times = iter(range(10))
    meter = Meter(shows=shows, clock=lambda: next(times))
    meter.add(1, 10)
    meter.clear()
    assert stream.getvalue() == ""
    assert meter.text() == "1 record, 10 B in 1.0 s (1 a second)"
