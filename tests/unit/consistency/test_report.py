"""The report: what it says of a run, and a page that stands by itself."""

from __future__ import annotations

import itertools
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.consistency import Header, HistoryReader, HistoryWriter
from kraftpy.testing.consistency.charts import decades, line, linear, number, time_text
from kraftpy.testing.consistency.page import fault_bands, render
from kraftpy.testing.consistency.report import judge, summary, write_report
from kraftpy.testing.consistency.series import BUCKETS

EVIL = "</style><script>alert('&')</script>"
SECOND = 1_000_000_000


def record(path: Path, *, lose: bool = False) -> HistoryReader:
    """Eleven seconds: a send every 55 ms, but for two seconds in which a broker is down."""
    now = 7 * SECOND
    header = Header(
        "queue",
        seed=99,
        options={"idempotence": True},
        versions={"kraftpy": "1.2.3"},
        again=("kraftpy", "consistency", "run", "a b"),
        started_at="2026-01-02T03:04:05Z",
    )
    with HistoryWriter(path, header, clock_ns=lambda: now) as writer:
        writer.phase("load")
        writer.note(2, "assign", {"t-0": 0})
        values: list[int] = []
        position = 0
        for step in range(200):
            if step == 80:
                writer.fault("kill", "start", 1, [EVIL])
            if step == 120:
                writer.fault("kill", "end", 1, [EVIL])
            if step == 150:
                writer.fault("pause", "start", 2, ["broker 3"], "never ended")
            op = writer.invoke(1, "send", [["t-0", step]], client="confluent-kafka")
            now += 5_000_000
            if 80 <= step < 120:
                writer.info(1, op, "send", EVIL)
            else:
                writer.ok(1, op, "send", [["t-0", step, len(values)]])
                values.append(step)
                if step % 2:  # the others wait unread for a while
                    op = writer.invoke(2, "poll")
                    now += 5_000_000
                    writer.ok(2, op, "poll", {"t-0": found(values, position, lose)})
                    position = len(values)
            now += 50_000_000
        writer.phase("final")
        op = writer.invoke(3, "drain")
        poll = writer.invoke(3, "poll")
        now += 1_000_000
        writer.ok(3, poll, "poll", {"t-0": found(values, 0, lose)})
        writer.ok(3, op, "drain", {"t-0": [0, len(values)]})
    return HistoryReader(path)


def found(values: list[int], first: int, lose: bool) -> list[list[int]]:
    records = [[offset, value] for offset, value in enumerate(values) if offset >= first]
    return [record for record in records if not lose or record[1] != 30]


VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """What a browser would make of it: tags that are closed, text, references to the outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text: list[str] = []
        self.outside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.outside += [f"{k}={v}" for k, v in attrs if k in ("src", "href", "srcset", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def history(tmp_path: Path) -> HistoryReader:
    return record(tmp_path / "history.jsonl")


def test_what_a_report_says(history: HistoryReader) -> None:
    outcome, report = judge(history)
    assert outcome.valid is True
    assert report["counts"]["send"] == {"ok": 160, "info": 40, "fail": 0}
    assert report["clients"] == {"confluent-kafka": 200}
    assert report["seed"] == 99
    assert report["again"] == "kraftpy consistency run 'a b'"
    assert report["duration_s"] == pytest.approx(11.401)
    assert [fault["phase"] for fault in report["faults"]] == ["start", "end", "start"]
    series = report["series"]
    per_second, bucket_s = series["per_second"], series["bucket_s"]
    total = sum(sum(counts) for counts in per_second.values()) * bucket_s
    assert total == pytest.approx(report["operations"], rel=0.01)
    down = range(BUCKETS * 48 // 114, BUCKETS * 66 // 114)
    assert not any(per_second["ok"][bucket] for bucket in down)
    assert any(per_second["info"][bucket] for bucket in down)
    assert {value for value in series["latency_ms"]["max"] if value} <= {1.0, 5.0}
    assert series["latency_ms"]["p50"][down[3]] is None
    assert set(series["processes"]) == {"1", "2", "3"}
    assert set(series["processes"]["1"]) == set("oi.")
    assert max(series["unread"]["values"]) >= 1
    assert series["unread"]["values"][-1] == 0
    assert 0.05 < max(series["unread"]["oldest_s"]) < 12
    assert "series" not in summary(report)
    json.dumps(report, allow_nan=False)


def test_faults_as_stretches_of_time(history: HistoryReader) -> None:
    _, report = judge(history)
    kill, pause = fault_bands(report)
    assert (kill.start_s, kill.end_s) == pytest.approx((4.6, 6.8))
    assert pause.end_s == report["duration_s"]
    assert pause.label == "pause broker 3 (never ended)"


def test_the_page_stands_by_itself(history: HistoryReader, tmp_path: Path) -> None:
    _, report = judge(history)
    written = write_report(report, tmp_path / "deep" / "down")
    text = written.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.outside == []
    assert "script" not in page.seen
    assert "svg" in page.seen
    assert not re.search(r"url\(|@import|https?://", text)
    words = "".join(page.text)
    for said in ("Every promise was kept", "lost-write", "1.2.3", "seed 99", "200", "Unread"):
        assert said in words
    assert EVIL in words  # as text
    assert json.loads((written.parent / "report.json").read_text()) == report
    assert sorted(path.name for path in written.parent.iterdir()) == ["report.html", "report.json"]


def test_a_page_shows_what_is_wrong(tmp_path: Path) -> None:
    outcome, report = judge(record(tmp_path / "history.jsonl", lose=True))
    assert outcome.valid is False
    lost = next(each for each in report["verdicts"] if each["checker"] == "lost-write")
    (finding,) = lost["findings"]
    send, poll = finding["operations"]
    assert (send["f"], poll["f"]) == ("send", "poll")
    assert send["value"] == '[["t-0", 30, 30]]'
    assert len(poll["value"]) < 200
    words = "".join(Page(render(report)).text)
    assert "Broken: lost-write" in words
    assert f"line {send['line']}" in words


@pytest.mark.parametrize("workload", ["queue", "offsets", "groups", "metadata", "list-append"])
def test_a_page_of_an_empty_history(tmp_path: Path, workload: str) -> None:
    HistoryWriter(tmp_path / "history.jsonl", Header(workload)).close()
    outcome, report = judge(HistoryReader(tmp_path / "history.jsonl"))
    assert outcome.valid is None
    assert "Not everything could be decided" in "".join(Page(render(report)).text)


def test_too_many_processes_are_left_out_and_said_so(tmp_path: Path) -> None:
    ticks = itertools.count(1)
    with HistoryWriter(tmp_path / "h", Header("queue"), clock_ns=lambda: next(ticks)) as writer:
        for process in range(100):
            op = writer.invoke(process, "poll")
            writer.ok(process, op, "poll", {}) if process != 90 else writer.fail(90, op, "poll", "")
    _, report = judge(HistoryReader(tmp_path / "h"))
    assert report["series"]["processes_left_out"] == 60
    assert "90" in report["series"]["processes"]
    assert "60 more processes" in "".join(Page(render(report)).text)


def test_scales_and_numbers() -> None:
    rng = random.Random(1)
    for _ in range(200):
        highest = 10 ** rng.uniform(-3, 9)
        scale = linear(highest)
        assert scale.top >= highest * 0.999
        assert scale.top <= highest * 2.6
        assert 0 <= scale.y(highest) <= 100
        assert decades([highest]).y(highest) >= 0
    assert linear(0).y(0) == 100
    assert [number(value) for value in (0, 0.25, 12, 1500, 25_000, 3e6)] == [
        "0", "0.25", "12", "1500", "25k", "3M",
    ]  # fmt: skip
    assert time_text(75, 1000) == "1:15"
    assert time_text(0.5, 1) == "500 ms"


def test_a_gap_in_a_line_stays_a_gap() -> None:
    drawn: Any = line([1, 1, None, 1, None, 1, 1], linear(1), "p50")
    assert drawn.count("M") == 3
    assert drawn.count("L") == 2
    assert drawn.count("H") == 1
