"""`make report` in short: a stream of flights, into a lake, to a report that is made from it."""

from __future__ import annotations

import csv
import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from kraftpy.pipeline.lake import Lake
from kraftpy.testing import Broker
from tests.demo import report
from tests.demo.events import as_they_ended
from tests.demo.writing import TOPIC
from tests.spark.checksums import lake_records

ZONE = ZoneInfo("America/New_York")


@pytest.mark.timeout(900)
def test_the_flights_go_through_a_lake_to_a_report(tmp_path: Path) -> None:
    events = as_they_ended()[:3000]
    out, lake = tmp_path / "report", tmp_path / "lake"
    with Broker(dir=tmp_path / "broker") as broker:
        report.work(broker.bootstrap, str(lake), out, events)
    values = sorted(record[4] for _, record in lake_records(Lake.at(str(lake)), TOPIC))
    assert values == sorted(each.value for each in events)

    left: Counter[tuple[str, str]] = Counter()
    cancelled: Counter[tuple[str, str]] = Counter()
    for flight in (json.loads(each.value) for each in events):
        day = datetime.fromisoformat(flight["time_hour"]).astimezone(ZONE).date()
        counts = cancelled if flight["dep_time"] is None else left
        counts[day.isoformat(), flight["origin"]] += 1
    with (out / "tables" / "day-by-day.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(left | cancelled) > 6
    for row in rows:
        key = row["start"][:10], row["origin"]
        assert (int(row["departures"]), int(row["cancelled"])) == (left[key], cancelled[key])
    assert json.loads((out / "report.json").read_text())["records"]["used"] == len(events)
    assert "Day by day" in (out / "report.html").read_text()
