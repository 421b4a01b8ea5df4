"""Reports on real topics and lakes: the numbers are those of plain Python, whatever came late."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kraftpy.cli.app import app
from kraftpy.cli.common import Failure
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.lake import Lake, LakeError
from kraftpy.pipeline.report.columns import Columns
from kraftpy.pipeline.report.definition import load_definition, read_definition
from kraftpy.pipeline.report.engine import compute
from kraftpy.pipeline.report.expressions import Type, parse_expression
from kraftpy.pipeline.report.files import write_report
from kraftpy.pipeline.report.source import LakeSource, Source, TopicSource
from kraftpy.testing import Broker
from tests.demo.events import as_they_ended
from tests.spark.loading import Loading
from tests.spark.plain_report import DEFINITION, ZONE, Plain, milliseconds, rows
from tests.spark.topics import fill

COUNT = 2000


def _in_order(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(given, key=lambda row: row["partition"])


def _make(spark: Any, source: Source, topic: str, folder: Path) -> dict[str, Any]:
    definition = read_definition(DEFINITION.replace("TOPIC", topic))
    numbers = compute(spark, definition, source.table(spark))
    return write_report(folder, definition, numbers, source.facts())


def _table(folder: Path, name: str, keys: int) -> dict[tuple[Any, ...], dict[str, Any]]:
    """A table's rows by their first columns."""
    found = {}
    for row in pq.read_table(folder / "tables" / f"{name}.parquet").to_pylist():
        if "start" in row:
            row["start"] = milliseconds(row["start"])
        cells = list(row.items())
        found[tuple(value for _, value in cells[:keys])] = dict(cells[keys:])
    return found


def _assert_is(found: dict[Any, dict[str, Any]], wanted: dict[Any, dict[str, Any]]) -> None:
    assert found.keys() == wanted.keys()
    different = {
        (key, name): (found[key].get(name), value)
        for key, measures in wanted.items()
        for name, value in measures.items()
        if not _is_close(found[key].get(name), value)
    }
    assert not different


def _is_close(found: float | None, wanted: float | None) -> bool:
    """Sums of fractions differ in their last digits by the order of what is added."""
    if found is None or wanted is None:
        return found is wanted
    return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)


def _assert_all(folder: Path, report: dict[str, Any], plain: Plain) -> None:
    records = report["records"]
    assert (records["read"], records["used"]) == (plain.read, len(plain.events))
    assert records["left_out"] == plain.left_out
    assert sum(each["records"] for each in records["problems"]) == plain.unreadable
    assert (report["late"]["late"], report["late"]["behind"]) == (plain.late, plain.behind)
    assert sum(count for _, count in report["late"]["classes"]) == plain.behind
    _assert_is(_table(folder, "hours-i-and-i-kinds", 2), plain.hours())
    _assert_is(_table(folder, "days", 1), plain.days())
    _assert_is(_table(folder, "hours-of-the-day-and-slots", 2), plain.slots())
    sessions = [
        (
            row["user"],
            milliseconds(row["start"]),
            milliseconds(row["end"]),
            row["events"],
            round(row["spent"], 6),
            row["late"],
        )
        for row in pq.read_table(folder / "tables" / "visits.parquet").to_pylist()
    ]
    assert sorted(sessions) == plain.sessions()


def test_the_numbers_are_those_of_plain_python(loading: Loading, tmp_path: Path) -> None:
    given = rows(COUNT, seed=1)
    fill(loading.bootstrap, loading.topic, given, compression="lz4")
    source = TopicSource.now(Door(loading.bootstrap), loading.topic)
    report = _make(loading.spark, source, loading.topic, tmp_path)
    plain = Plain(_in_order(given))
    assert min(plain.late, plain.unreadable, plain.left_out, len(plain.sessions())) > 20
    assert len(plain.days()) in (4, 5)
    _assert_all(tmp_path, report, plain)
    reasons = {each["problem"] for each in report["records"]["problems"]}
    assert reasons == {
        "not JSON",
        "not UTF-8",
        "JSON, but not an object",
        "no value (a tombstone)",
        "no time",
    }
    assert {each["field"] for each in report["records"]["mistyped"]} == {"user", "price", "n"}
    page = (tmp_path / "report.html").read_text()
    for raw in ("<script", "<img", "<i>and", "<u>", "<b>all", "<b>about", "\u202e"):
        assert raw not in page
    assert page.count("</style>") == 1


def test_after_late_data_a_report_is_the_one_from_scratch(loading: Loading, tmp_path: Path) -> None:
    given = rows(1200, seed=2)
    before, after = given[:900], given[900:]
    # What comes second happened among what came first.
    after = [{**row, "value": given[n * 2]["value"]} for n, row in enumerate(after)]
    fill(loading.bootstrap, loading.topic, before)
    loading.load()
    lake = Lake.at(str(tmp_path / "lake"))
    first = LakeSource.newest(lake, loading.topic)
    with pytest.raises(LakeError, match=r"nothing of topic other in .*: load it"):
        LakeSource.newest(lake, "other")
    _make(loading.spark, first, loading.topic, tmp_path / "out")
    fill(loading.bootstrap, loading.topic, after)
    loading.load()
    loading.load("scratch")
    reports = []
    for name, folder in (("lake", "out"), ("scratch", "anew")):
        source = LakeSource.newest(Lake.at(str(tmp_path / name)), loading.topic)
        report = _make(loading.spark, source, loading.topic, tmp_path / folder)
        _assert_all(tmp_path / folder, report, Plain(_in_order(before) + _in_order(after)))
        reports.append({**report, "source": None, "made_at": None})
    assert reports[0] == reports[1]
    # The version that was named before says what it said before.
    again = _make(loading.spark, first, loading.topic, tmp_path / "again")
    _assert_all(tmp_path / "again", again, Plain(_in_order(before)))


def test_the_flights_are_counted_as_plain_python_counts_them(
    loading: Loading, tmp_path: Path
) -> None:
    events = as_they_ended()[:6000]
    given = [
        {
            "key": each.key,
            "value": each.value,
            "timestamp_ms": each.timestamp_ms,
            "partition": n % 2,
        }
        for n, each in enumerate(events)
    ]
    fill(loading.bootstrap, loading.topic, given, compression="lz4")
    definition = load_definition("flights")
    source = TopicSource.now(Door(loading.bootstrap), loading.topic)
    numbers = compute(loading.spark, definition, source.table(loading.spark))
    report = write_report(tmp_path, definition, numbers, source.facts())
    flights = [json.loads(each.value) for each in events]
    wanted: dict[tuple[Any, ...], list[int]] = {}
    for each in flights:
        key = each["time_hour"], each["origin"], each["carrier"]
        row = wanted.setdefault(key, [0, 0, 0])
        row[0] += each["dep_time"] is not None
        row[1] += each["dep_time"] is None
        row[2] += each["dep_delay"] or 0
    table = pq.read_table(tmp_path / "tables" / "hour-by-hour-airport-and-carrier.parquet")
    found = {
        (f"{row['start']:%Y-%m-%dT%H:%M:%SZ}", row["origin"], row["carrier"]): [
            row["departures"],
            row["cancelled"],
            round((row["mean_delay"] or 0) * row["departures"]),
        ]
        for row in table.to_pylist()
    }
    assert found == wanted
    assert report["late"]["late"] > 0, "long flights land after later ones"
    left = [each for each in flights if each["dep_time"] is not None and each["tailnum"]]
    (sessions,) = report["sessions"]
    assert sessions["keys"] == len({each["tailnum"] for each in left})
    rows_of = pq.read_table(tmp_path / "tables" / f"{sessions['slug']}.parquet")
    assert sum(rows_of["events"].to_pylist()) == len(left)


def test_functions_of_time_are_those_of_the_zones_clock(spark: Any) -> None:
    chance = random.Random(3)
    times = [chance.randrange(0, 2_000_000_000_000) for _ in range(300)]
    texts = ["Ab", "\u00c4\u00d6", ""]
    fields = [(at, texts[at % 3], chance.uniform(-99, 99)) for at in times]
    table = spark.createDataFrame(fields, "time_ms bigint, f_t string, f_n double")
    written = (
        "hour(time)",
        "minute(time)",
        "day(time)",
        "month(time)",
        "year(time)",
        "weekday(time)",
        "date(time)",
        "lower(t)",
        "floor(n)",
        "bucket(n, 0.5)",
        "-n % 7",
        "n - 1 * 2 / 4",
        "time < '2013-11-03T01:30' or not t in ('Ab')",
        " or ".join(["n > 0"] * 98),  # as high as a tree may be
    )
    types: dict[str, Type] = {"time": "time", "t": "text", "n": "number"}
    columns = Columns(ZONE.key)
    chosen = [columns.expression(parse_expression(each, types, ZONE)) for each in written]
    bound_ms = datetime(2013, 11, 3, 1, 30, tzinfo=ZONE).timestamp() * 1000
    for (at, text, n), row in zip(fields, table.select(*chosen).collect(), strict=True):
        wall = datetime.fromtimestamp(at / 1000, ZONE)
        clock = (wall.hour, wall.minute, wall.day, wall.month, wall.year, wall.isoweekday())
        numbers = (math.floor(n), math.floor(n / 0.5) * 0.5, math.fmod(-n, 7), n - 0.5)
        holds = at < bound_ms or text != "Ab"
        assert tuple(row) == (*clock, f"{wall:%Y-%m-%d}", text.lower(), *numbers, holds, n > 0)


def test_an_empty_topic_has_a_report(loading: Loading, tmp_path: Path) -> None:
    source = TopicSource.now(Door(loading.bootstrap), loading.topic)
    report = _make(loading.spark, source, loading.topic, tmp_path)
    assert report["records"]["read"] == 0
    assert [each["rows"] for each in report["tables"]] == [0, 0, 0]
    assert "No record belongs here." in (tmp_path / "report.html").read_text()


@pytest.fixture
def define(tmp_path: Path, new_topic: Callable[..., str]) -> Callable[[str], tuple[str, str]]:
    """Writes a definition for a new topic; returns its path and the topic."""

    def write(text: str) -> tuple[str, str]:
        topic = new_topic()
        path = tmp_path / "report.toml"
        path.write_text(text.replace("TOPIC", topic))
        return str(path), topic

    return write


def test_the_command_plans_and_says_what_is_wrong(
    broker: Broker, define: Callable[[str], tuple[str, str]], tmp_path: Path
) -> None:
    path, topic = define(DEFINITION)
    fill(broker.bootstrap, topic, [{"value": b"{}"}] * 3)

    out = tmp_path / "out"

    def command(*arguments: str) -> list[str]:
        return ["pipeline", "report", *arguments, "-b", broker.bootstrap, "--out", str(out)]

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, command(*arguments), standalone_mode=False)
        if isinstance(done.exception, Failure):
            return done.exception.code, done.exception.message
        assert done.exception is None
        return 0, done.output

    code, said = run(path, "--dry-run")
    assert (code, f"would read {topic}-0 [0, 3)" in said, "Visits" in said) == (0, True, True)
    code, said = run(path, "--dry-run", "-o", "json")
    assert json.loads(said)["read"] == [f"{topic}-0 [0, 3)"]
    assert not out.exists()
    made = subprocess.run(
        [sys.executable, "-m", "kraftpy", *command(path, "-o", "json")],
        capture_output=True,
        check=True,
    )
    said = json.loads(made.stdout)
    assert (said["read"], said["used"], said["unreadable"], said["late"]) == (3, 0, 3, 0)
    assert said["tables"]["visits"] == 0
    assert "3 records (100.00%) couldn&#x27;t be read" in (out / "report.html").read_text()
    code, said = run("absent.toml")
    assert (code, "absent.toml: there is no such file" in said) == (2, True)
    Path(path).write_text(DEFINITION.replace("TOPIC", "nowhere"))
    code, said = run(path)
    assert (code, "there is no topic nowhere" in said) == (2, True)
    Lake.at(str(tmp_path / "lake"), create=True)
    code, said = run(path, "--lake", str(tmp_path / "lake"))
    assert (code, "`kraftpy pipeline load" in said) == (1, True)
