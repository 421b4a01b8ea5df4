"""`make report`: an activity stream, into a lake, to a report by the hour, of the demo's flights.

A node is started, and the flights of a year are written to a topic in the order in which they
landed. The first half is loaded and reported on, then the rest: flights that come late change what
the first report said of days before. What is run is shown and can be typed.
"""

from __future__ import annotations

import csv
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from kraftpy.testing import Broker, BrokerError
from tests import programs
from tests.demo.events import Event, EventsError, as_they_ended
from tests.demo.progress import Progress, say
from tests.demo.writing import PARTITIONS, SILENCE_S, TOPIC

OUT = Path("build/report")


class ReportError(Exception):
    """Something isn't as it has to be; the message says what."""


def run(bootstrap: str, *arguments: str) -> None:
    """A command of `kraftpy`, shown as a person would type it."""
    command = ["kraftpy", *arguments, "-b", bootstrap]
    say(f"$ {shlex.join(command)}")
    if code := subprocess.run([sys.executable, "-m", *command], check=False).returncode:
        raise ReportError(f"exit code {code}")


def write(bootstrap: str, events: Sequence[Event]) -> None:
    progress = Progress("confluent-kafka writes", len(events))
    settings = {"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 20}
    producer = Producer(settings)
    for number, event in enumerate(events):
        while True:
            try:
                producer.produce(TOPIC, event.value, event.key, timestamp=event.timestamp_ms)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 500 == 0:
            producer.poll(0)
            progress.at(number)
    if left := producer.flush(SILENCE_S):
        raise ReportError(f"{left:,} events are unanswered after {SILENCE_S:.0f} s")
    progress.done(len(events), sum(len(event.value) for event in events))


def days(out: Path) -> dict[tuple[str, str], str]:
    """Departures by day and airport, as the last report had them."""
    with (out / "tables" / "day-by-day.csv").open(newline="") as file:
        return {(row["start"], row["origin"]): row["departures"] for row in csv.DictReader(file)}


def work(bootstrap: str, lake: str, out: Path, events: Sequence[Event]) -> None:
    """Both halves of the events, each through the lake to a report; ReportError if it is wrong."""
    keep = ("-c", "retention.ms=-1")  # the flights are of 2013
    run(bootstrap, "topic", "create", TOPIC, "-p", str(PARTITIONS), *keep)
    half = len(events) // 2
    reports = []
    for part in (events[:half], events[half:]):
        write(bootstrap, part)
        run(bootstrap, "pipeline", "stream", TOPIC, lake, "--available-now")
        run(bootstrap, "pipeline", "report", TOPIC, "--lake", lake, "--out", str(out))
        reports.append(days(out))
    first, second = reports
    changed = sum(second.get(each) != count for each, count in first.items())
    if set(first) - set(second) or not changed:
        raise ReportError("the second report isn't the first one and what came later")
    say(
        f"{len(second)} days of an airport, {changed} of the first report changed by what came late"
    )
    say(f"the report is {out / 'report.html'}")


def main() -> int:
    programs.require("make report", "java")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kraftpy-report-") as folder:
        try:
            say("loading the 336,776 flights of 2013 from New York City")
            events = as_they_ended()
            with Broker(dir=Path(folder) / "node") as broker:
                work(broker.bootstrap, str(Path(folder) / "lake"), OUT, events)
        except (EventsError, ReportError, BrokerError, KafkaException, OSError) as error:
            say(f"there is no report: {error}")
            return 1
        except KeyboardInterrupt:
            return 130
    say(f"all of it took {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
