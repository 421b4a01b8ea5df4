"""The report: what it says of a run, and a page without anything outside of it."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kraftpy.page.charts import decades, line, linear, number, time_text
from kraftpy.testing.consistency import Header, HistoryReader, HistoryWriter, evidence
from kraftpy.testing.consistency.coverage import (
    NOT_HEALED,
    coverage,
    coverage_lines,
    least_met_first,
    never_came,
)
from kraftpy.testing.consistency.evidence import keep_anomalies, keep_nodes, kept_files
from kraftpy.testing.consistency.matrix import total, write_index
from kraftpy.testing.consistency.page import render
from kraftpy.testing.consistency.pictures import fault_bands
from kraftpy.testing.consistency.report import judge, summary, write_report
from kraftpy.testing.consistency.series import BUCKETS
from kraftpy.testing.node import Node

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
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.outside += [f"{k}={v}" for k, v in attrs if k in ("src", "srcset", "action")]
        self.links += [value or "" for name, value in attrs if name == "href"]

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
    kill, pause = report["faults"]
    assert (kill["name"], kill["ok"], kill["info"], kill["fail"]) == ("kill", 0, 40, 0)
    assert (kill["slowest_ms"], kill["silence_s"]) == (0.0, 2.26)
    assert (pause["ok"], pause["slowest_ms"]) == (50, 5.0)
    assert report["silence_s"] == kill["silence_s"]
    series = report["series"]
    per_second, bucket_s = series["per_second"], series["bucket_s"]
    total = sum(sum(counts) for counts in per_second.values()) * bucket_s
    assert total == pytest.approx(report["operations"], rel=0.01)
    down = range(BUCKETS * 48 // 114, BUCKETS * 66 // 114)
    assert not any(per_second["ok"][bucket] for bucket in down)
    assert any(per_second["info"][bucket] for bucket in down)
    assert {value for value in series["latency_ms"]["max"] if value} == {5.0}  # no poll's
    assert series["latency_ms"]["p50"][down[3]] is None
    assert {name: len(dots) for name, dots in series["dots"].items()} == report["counts"]["send"]
    lanes = {lane["client"]: lane for lane in series["lanes"]}
    assert [(lanes[n]["does"], lanes[n]["library"]) for n in (1, 2, 3)] == [
        ("send", "confluent-kafka"),
        ("read", ""),
        ("final read", ""),
    ]
    assert set(lanes[1]["marks"]) == set("oiw.")
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
    assert page.outside == page.links == []
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


@pytest.mark.parametrize(
    "workload", ["queue", "offsets", "groups", "metadata", "bank", "list-append"]
)
def test_a_page_of_an_empty_history(tmp_path: Path, workload: str) -> None:
    HistoryWriter(tmp_path / "history.jsonl", Header(workload)).close()
    outcome, report = judge(HistoryReader(tmp_path / "history.jsonl"))
    assert outcome.valid is None
    assert "Not everything could be decided" in "".join(Page(render(report)).text)


@pytest.mark.parametrize("left_out", [{}, {"disk-full": "no tmpfs here"}])
def test_faults_that_were_left_out_are_listed(tmp_path: Path, left_out: dict[str, str]) -> None:
    HistoryWriter(tmp_path / "h", Header("queue", options={"left_out": left_out})).close()
    words = "".join(Page(render(judge(HistoryReader(tmp_path / "h"))[1])).text)
    assert ("Left out: disk-full (no tmpfs here)." in words) == bool(left_out)
    assert ("Left out" in words) == bool(left_out)


def test_what_became_of_clients(history: HistoryReader) -> None:
    _, report = judge(history)
    report["processes"] = {"hung and were killed": 3}
    report["files"] = [{"path": "workers.log", "about": "complaints"}]
    words = "".join(Page(render(report)).text)
    assert "clients that hung and were killed3" in words
    assert words.index("Promises") < words.index("workers.log")  # nothing that anyone has to see


def test_sessions_of_one_client_are_one_row(tmp_path: Path) -> None:
    ticks = itertools.count(1)
    header = Header("queue", options={"sessions_per_client": 10})
    with HistoryWriter(tmp_path / "h", header, clock_ns=lambda: next(ticks)) as writer:
        for process in (10, 11, 12, 30):
            op = writer.invoke(process, "poll", client="kraftpy")
            next(ticks)
            writer.ok(process, op, "poll", {})
        writer.invoke(30, "poll")
    _, report = judge(HistoryReader(tmp_path / "h"))
    lanes = report["series"]["lanes"]
    assert [(lane["client"], lane["sessions"]) for lane in lanes] == [(1, 3), (3, 1)]
    assert "w" in lanes[0]["marks"]  # between question and answer
    assert "kraftpy x3" in "".join(Page(render(report)).text)


def test_how_far_a_group_is_behind(tmp_path: Path) -> None:
    now = 0
    with HistoryWriter(tmp_path / "h", Header("groups"), clock_ns=lambda: now) as writer:
        for offset in range(100):
            now += SECOND
            op = writer.invoke(1, "send", [["t-0", offset]])
            writer.ok(1, op, "send", [["t-0", offset, offset]])
            if offset in (49, 99):
                value = {"group": "g", "key": "t-0", "first": 0, "last": offset}
                writer.note(2, "processed", value)
    _, report = judge(HistoryReader(tmp_path / "h"))
    lag = report["series"]["lag"]["g"]
    assert 45 <= max(lag) <= 50
    assert lag[BUCKETS // 2 + 2] < 5
    assert lag[-1] == 0
    assert "Lag" in "".join(Page(render(report)).text)


def test_a_cluster_that_did_not_recover_leads_the_page(tmp_path: Path) -> None:
    history = record(tmp_path / "history.jsonl")
    with HistoryWriter(history.path, clock_ns=lambda: 20 * SECOND) as writer:
        writer.fault(NOT_HEALED, "point", 9, [], "broker 2 is not back")
    _, report = judge(HistoryReader(history.path))
    words = "".join(Page(render(report)).text)
    assert words.index("broker 2 is not back") < words.index("Promises")
    assert words.startswith("queue: The cluster did not recover")
    assert "Every promise was kept" not in words


def test_what_shows_that_a_promise_is_broken_is_kept_by_itself(tmp_path: Path) -> None:
    history = record(tmp_path / "history.jsonl", lose=True)
    outcome, report = judge(history)
    report["files"] = keep_anomalies(history, outcome.verdicts, tmp_path / "out")
    names = [
        f"anomaly-{name}.jsonl"
        for name in ("lost-write", "poll-skip", "int-poll-skip", "drain-skip")
    ]
    assert [each["path"] for each in report["files"]] == names
    shown = HistoryReader(tmp_path / "out" / "anomaly-lost-write.jsonl")
    again, smaller = judge(shown)
    assert again.operations == 2
    assert shown.header == history.header
    assert [fault["name"] for fault in smaller["faults"]] == ["kill", "pause"]
    page = Page(render(report))
    assert page.links == names
    words = "".join(page.text)
    assert (
        words.index("What is wrong") < words.index("Promises") < words.index("What happened when")
    )


def test_nothing_is_kept_of_a_run_without_anomalies(history: HistoryReader, tmp_path: Path) -> None:
    outcome, _ = judge(history)
    assert keep_anomalies(history, outcome.verdicts, tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_what_nodes_left_is_copied_or_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = []
    for node in (1, 2):
        place = tmp_path / f"node{node}"
        (place / "data" / "t-0").mkdir(parents=True)
        (place / "data" / "t-0" / "0.log").write_bytes(b"x" * (5000 * node))
        (place / "server.properties").write_text("a=b\n")
        (place / "log").write_text("it started\n")
        folders = place / "data", place / "server.properties"
        nodes.append(Node(node, "127.0.0.1", 1, 1, *folders, ("127.0.0.1", 1)))
    monkeypatch.setattr(evidence, "DATA_BYTES_MAX", 10_000)
    run = tmp_path / "run"
    missing = keep_nodes(nodes, run / "nodes")
    assert len(missing) == 1
    assert missing[0].startswith("data of node 2")
    assert (run / "nodes/node1/data/t-0/0.log").read_bytes() == b"x" * 5000
    assert not (run / "nodes/node2/data").exists()
    assert "10000" in (run / "nodes/node2/files.txt").read_text()
    (run / "workers.log").write_text("it hangs")
    assert [each["path"] for each in kept_files(run, run / "nodes")] == [
        "workers.log",
        "nodes/node1/files.txt",
        "nodes/node1/log",
        "nodes/node1/server.properties",
        "nodes/node1/data",
        "nodes/node2/files.txt",
        "nodes/node2/log",
        "nodes/node2/server.properties",
    ]


def test_several_runs_have_a_page_and_a_line(tmp_path: Path) -> None:
    summaries = []
    faults = {"faults": ["kill+slow", "stop"], "left_out": {"disk-full": "no tmpfs"}}
    for name, lose in (("good", False), ("bad", True)):
        (tmp_path / name).mkdir()
        history = record(tmp_path / name / "history.jsonl", lose=lose)
        history.header = replace(history.header, options=history.header.options | faults)
        summaries.append({"path": str(history.path), **summary(judge(history)[1])})
    assert never_came(summaries) == ["slow", "stop"]
    said = total(summaries, 90)
    assert said.startswith("2 runs in 1.5 min, 566 operations, 4 faults of 2 kinds, 26 of 32 promi")
    assert said.endswith("drain-skip; never came: slow, stop")
    page = Page(write_index(summaries, 90, tmp_path).read_text())
    assert page.links == ["good/report.html", "bad/report.html"]
    words = "".join(page.text)
    assert words.startswith("consistency: broken: lost-write")
    assert "queue met 2 of 4 kinds of faults, not slow, stop (the time was too short)." in words
    assert "not on this machine: disk-full (no tmpfs)." in words
    assert "disk-fullnot herenot here" in words
    assert "kill11" in words
    assert "slownono" in words
    assert "these did not come: slow, stop" in words
    assert "Every promise was kept" in "".join(page.text)  # of the other one


def test_a_kind_that_came_in_no_run_is_what_the_page_begins_with(tmp_path: Path) -> None:
    kinds = {"met": {"kill": 2}, "missed": {"stop": "left out"}, "lacking": {}}
    report = summary(judge(record(tmp_path / "history.jsonl"))[1]) | {"kinds": kinds}
    good = {"path": str(tmp_path / "history.jsonl"), **report}
    good["faults"][0]["came"] = False
    alone = write_index([good], 9, tmp_path).read_text()
    assert "Never came: stop" in alone
    assert " operations · 1 fault · " in alone
    other = good | {"kinds": kinds | {"met": {"stop": 1}, "missed": {}}}
    assert never_came([good, other]) == []
    words = "".join(Page(write_index([good, other], 9, tmp_path).read_text()).text)
    assert words.startswith("consistency: every promise was kept")
    assert "queue met 1 of 2 kinds of faults, not stop (left out)" in words


def test_what_came_of_faults() -> None:
    def fault(name: str, came: bool) -> dict[str, Any]:
        return {"name": name, "came": came, "detail": "left out: nothing is written"}

    faults = [fault("kill", True), fault("kill", True), fault("kill", False)]
    faults += [fault("successors", False), fault(NOT_HEALED, True)]
    options = {"faults": ["kill+slow", "successors"], "left_out": {"disk-full": "no tmpfs"}}
    found = {"workload": "queue", "kinds": coverage(options, faults)}
    assert found["kinds"] == {
        "met": {"kill": 2},
        "missed": {"slow": "the time was too short", "successors": "left out: nothing is written"},
        "lacking": {"disk-full": "no tmpfs"},
    }
    assert coverage_lines([found]) == [
        "queue met 1 of 3 kinds of faults, not slow (the time was too short);"
        " successors (left out: nothing is written)",
        "not on this machine: disk-full (no tmpfs)",
    ]
    names = [str(number) for number in range(20)]
    earlier = [{"kinds": {"met": dict.fromkeys(names[:10], 3)}}]
    order = least_met_first(names, 7, earlier)
    assert set(order[:10]) == set(names[10:])
    assert order == least_met_first(names, 7, earlier)
    assert order != least_met_first(names, 8, earlier)


def test_processes_beyond_the_limit_are_left_out_with_a_note(tmp_path: Path) -> None:
    ticks = itertools.count(1)
    with HistoryWriter(tmp_path / "h", Header("queue"), clock_ns=lambda: next(ticks)) as writer:
        for process in range(100):
            op = writer.invoke(process, "poll")
            writer.ok(process, op, "poll", {}) if process != 90 else writer.fail(90, op, "poll", "")
    _, report = judge(HistoryReader(tmp_path / "h"))
    assert report["series"]["lanes_left_out"] == 60
    assert 90 in [lane["client"] for lane in report["series"]["lanes"]]
    assert "60 more clients" in "".join(Page(render(report)).text)


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
