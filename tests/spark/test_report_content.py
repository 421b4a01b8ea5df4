"""A report's records and what is said of tables, without a session: times, names, odd numbers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from kraftpy.pipeline.report.content import content
from kraftpy.pipeline.report.definition import read_definition
from kraftpy.pipeline.report.engine import Lateness, Made, Numbers, Quality
from kraftpy.pipeline.report.expressions import HEIGHT_MAX
from kraftpy.pipeline.report.page import render
from kraftpy.pipeline.report.records import NO_TIME, TIME_MAX_MS, TIME_MIN_MS, decode

HOUR_MS = 3_600_000
HEAD = """
name = "Odd"
topic = "odd"
zone = "ZONE"

[time]
field = "at"
format = "FORMAT"
"""
TABLE = """
[[tables]]
name = "Windows"
window = "1h"
measures.n = "count"
"""


def _definition(rest: str = TABLE, *, zone: str = "UTC", form: str = "ms") -> Any:
    return read_definition(HEAD.replace("ZONE", zone).replace("FORMAT", form) + rest)


def _batch(values: Sequence[str]) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array([value.encode() for value in values], pa.binary()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
        }
    )


def _decoded(values: Sequence[str], **written: str) -> list[dict[str, Any]]:
    (found,) = decode(_definition(**written))(iter([_batch(values)]))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _said(definition: Any, rows: pa.Table, *, sessions: bool = False) -> dict[str, Any]:
    """The report of one table or of one kind of sessions, which can also be drawn and written."""
    starts = rows["start"].to_pylist()
    made = [Made(rows)]
    numbers = Numbers(
        quality=Quality(len(starts), len(starts), 0, {}, [], {}),
        lateness=Lateness(0, 0, 0, (0,) * 6),
        first_ms=min(starts),
        last_ms=max(starts),
        tables=[] if sessions else made,
        sessions=made if sessions else [],
    )
    (one,) = definition.sessions if sessions else definition.tables
    files = {one.name.lower(): ["tables/one.csv"]}
    report = content(definition, numbers, {"lake": "lake"}, files, datetime.now(UTC))
    assert render(json.loads(json.dumps(report, allow_nan=False)))
    return report


def _counted(starts: Sequence[int]) -> pa.Table:
    late = pa.array([0] * len(starts), pa.int64())
    return pa.table({"start": starts, "n": pa.array(range(1, len(starts) + 1)), "late": late})


@pytest.mark.parametrize("form", ["s", "ms", "us", "ns"])
def test_a_number_that_is_no_time_is_counted_and_ends_nothing(form: str) -> None:
    odd = ("1e307", "-1e307", "1e308", "9" * 310, "-" + "9" * 310, "true", '"1"', "null")
    values = [f'{{"at": {each}}}' for each in (*odd, "1772362800", "1772362800.5")]
    *found, whole, half = _decoded(values, form=form)
    assert [row["problem"] for row in found] == [NO_TIME] * len(odd)
    times, per = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 10**6)}[form]
    assert whole["time_ms"] == 1772362800 * times // per
    assert half["time_ms"] == int(1772362800.5 * times) // per


def test_integers_are_not_rounded_to_milliseconds_as_fractions_are() -> None:
    at_ns = 1_772_362_800_123_000_000
    (row,) = _decoded([f'{{"at": {at_ns}}}'], form="ns")
    assert row["time_ms"] == at_ns // 10**6


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo", "Pacific/Kiritimati"])
@pytest.mark.parametrize("window", ["1s", "1h", "1d", "1w", "1mo"])
def test_the_first_and_the_last_time_that_are_taken_can_be_shown(zone: str, window: str) -> None:
    limits = (TIME_MIN_MS, TIME_MAX_MS)
    beyond = [f'{{"at": {each}}}' for each in (TIME_MIN_MS - 1, TIME_MAX_MS + 1)]
    found = _decoded([*(f'{{"at": {each}}}' for each in limits), *beyond], zone=zone)
    assert [row["time_ms"] for row in found] == [*limits, None, None]
    definition = _definition(TABLE.replace("1h", window), zone=zone)
    for one in limits:
        report = _said(definition, _counted([one]))
        wall = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=one)).astimezone(
            ZoneInfo(zone)
        )
        assert report["first"] == wall.isoformat(" ")[:16]
        (plot,) = report["tables"][0]["plots"]
        assert wall.isoformat(" ").startswith(plot["axis"][0][:10])


def test_windows_need_not_be_of_whole_minutes() -> None:
    span_ms, per_day = 1_350_000, 64
    definition = _definition(TABLE.replace("1h", "1350s"))
    rows = _counted([n * span_ms for n in range(4 * per_day)])
    (plot,) = _said(definition, rows)["tables"][0]["plots"]
    assert plot["cells"] == [[1 + day * per_day + n for day in range(4)] for n in range(per_day)]
    table = _said(definition, rows.slice(0, 3))["tables"][0]
    clock = ["1970-01-01 00:00:00", "1970-01-01 00:22:30", "1970-01-01 00:45:00"]
    assert table["plots"][0]["axis"] == clock
    assert [row[0] for row in table["head"]["rows"]] == clock[::-1]


def test_the_deepest_expression_can_be_sent_to_spark() -> None:
    chain = " or ".join(["m > 0"] * (HEIGHT_MAX - 2))
    rest = f'[fields]\nm = "number"\n[figures]\nn = "count where {chain}"\n'
    definition = _definition(rest + TABLE.replace("measures", f'where = "{chain}"\nmeasures'))
    assert list(cloudpickle.loads(cloudpickle.dumps(decode(definition)))(iter(()))) == []


def test_a_calendar_of_the_first_years_has_its_days() -> None:
    starts = [TIME_MIN_MS + n * HOUR_MS for n in range(240)]
    (plot,) = _said(_definition(), _counted(starts))["tables"][0]["plots"]
    assert plot["columns"] == [f"0002-01-{day:02d}" for day in range(1, 11)]
    assert sum(map(sum, plot["cells"])) == sum(range(1, 241))


@pytest.mark.parametrize(
    ("zone", "window", "labels"),
    [
        ("America/Santiago", "1d", [f"2024-09-{day:02d}" for day in range(5, 15)]),
        ("Africa/Cairo", "1d", [f"2023-04-{day}" for day in range(25, 31)]),
        ("Asia/Damascus", "1mo", [f"2004-{n:02d}" for n in range(2, 9)]),
    ],
)
def test_days_that_begin_at_one_o_clock_are_followed_by_those_that_begin_at_midnight(
    zone: str, window: str, labels: list[str]
) -> None:
    begins = [date.fromisoformat(one if window == "1d" else f"{one}-01") for one in labels]
    clock = ZoneInfo(zone)
    starts = [
        int(datetime(day.year, day.month, day.day, tzinfo=clock).timestamp() * 1000)
        for day in begins
    ]
    hours = {datetime.fromtimestamp(start / 1000, clock).hour for start in starts}
    assert hours == {0, 1}, "summer time begins at one of these midnights"
    definition = _definition(TABLE.replace("1h", window), zone=zone)
    (plot,) = _said(definition, _counted(starts))["tables"][0]["plots"]
    assert plot["axis"] == labels
    assert plot["lines"][0]["values"] == [*range(1, len(labels) + 1)]


def test_texts_that_are_too_long_for_a_time_are_refused_and_not_cached() -> None:
    iso = "2026-03-01T12:00:00+00:00"
    texts = [iso, " " * 101, iso + "0" * 80, "x" * 1_000_000]
    found = _decoded([json.dumps({"at": each}) for each in texts], form="iso")
    assert [row["time_ms"] for row in found] == [1_772_366_400_000, None, None, None]
    batches = (_batch([json.dumps({"at": f"{n:0100000d}"})]) for n in range(100))
    tracemalloc.start()
    try:
        for rows in decode(_definition(form="iso"))(batches):
            assert rows.column("problem").to_pylist() == [NO_TIME]
            kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000, "of ten million characters"


SESSIONS = """
[fields]
KEY = "text"

[[sessions]]
name = "Visits"
by = ["KEY"]
gap = "1m"
measures.MEASURE = "count"
"""


@pytest.mark.parametrize(
    ("key", "measure"),
    [
        ("user", "length"),
        ("length", "count_all"),
        ("count_all", "length"),
        ("events_sum", "n"),
        ("user", "events_sum"),
    ],
)
def test_sessions_may_have_any_names(key: str, measure: str) -> None:
    definition = _definition(SESSIONS.replace("KEY", key).replace("MEASURE", measure))
    rows = pa.table(
        {
            key: ["a", "a", "b"],
            "start": [0, 200_000, 0],
            "end": [60_000, 200_000, 30_000],
            "events": [2, 1, 3],
            measure: [7, 8, 9],
            "late": [0, 0, 1],
        }
    )
    (found,) = _said(definition, rows, sessions=True)["sessions"]
    assert (found["keys"], found["rows"], found["late"]) == (2, 3, 1)
    assert found["head"]["columns"] == [key, "start", "session length", "events", measure]
    assert found["head"]["rows"] == [
        ["a", "1970-01-01 00:00", "1 min", 2, 7],
        ["b", "1970-01-01 00:00", "30 s", 3, 9],
        ["a", "1970-01-01 00:03", "0", 1, 8],
    ]
    assert found["plots"][2]["values"] == [1, 1]


@pytest.mark.parametrize("window", ["", 'window = "1h"'])
def test_a_key_may_have_the_name_of_a_measures_sum(window: str) -> None:
    rest = """
[fields]
n_sum = "text"
n_count = "text"

[[tables]]
name = "Windows"
by = BY
measures.n = "count"
"""
    by = ["n_sum"] if window else ["n_sum", "n_count"]
    definition = _definition(rest.replace("BY", json.dumps(by)) + window)
    columns = {name: ["a", "b", "b"] for name in by}
    rows = pa.table({"start": [0, 0, HOUR_MS], **columns, "n": [1, 5, 6], "late": [0, 0, 0]})
    (plot,) = _said(definition, rows)["tables"][0]["plots"]
    if window:
        assert [(one["label"], one["values"]) for one in plot["lines"]] == [
            ("b", [5, 6]),
            ("a", [1, 0]),
        ]
    else:
        assert (plot["rows"], plot["columns"]) == (["b", "a"], ["b", "a"])
