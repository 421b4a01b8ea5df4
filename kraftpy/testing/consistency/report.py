"""A run's report: `report.json` for programs, and `report.html` made of the same for people."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kraftpy.testing.consistency.checkers.ownership import OwnershipChecker
from kraftpy.testing.consistency.checkers.queue import QueueChecker
from kraftpy.testing.consistency.coverage import coverage
from kraftpy.testing.consistency.history import HistoryReader
from kraftpy.testing.consistency.impact import impact
from kraftpy.testing.consistency.lag import GroupLag, unread
from kraftpy.testing.consistency.operations import NEVER, Operation, load
from kraftpy.testing.consistency.page import render
from kraftpy.testing.consistency.series import Timeline
from kraftpy.testing.consistency.suite import Listener, Outcome, check, checkers_for
from kraftpy.testing.consistency.verdicts import Finding, Verdict
from kraftpy.testing.consistency.workloads import PLAYS

_VALUE_CHARS_MAX = 400


def judge(history: HistoryReader) -> tuple[Outcome, dict[str, Any]]:
    """Checks a history, and all that its report says. Raises HistoryError, OSError.

    Whoever made the run fills in `files`, paths in the report's folder that help to look closer,
    and `processes`, what became of clients: words -> how many.
    """
    header = history.header
    sessions = header.options.get("sessions_per_client", 1)
    timeline = Timeline(sessions if type(sessions) is int and sessions > 0 else 1)
    lag = GroupLag()
    checkers = checkers_for(header)
    groups = any(isinstance(checker, OwnershipChecker) for checker in checkers)
    listeners: list[Listener] = [timeline, lag] if groups else [timeline]
    outcome = check(history, checkers=checkers, listeners=listeners)
    series = timeline.series()
    if groups:
        series["lag"] = lag.series(timeline)
    for checker in checkers:
        if isinstance(checker, QueueChecker):
            series["unread"] = unread(checker.index.logs.values(), timeline)
    lines = {
        line
        for verdict in outcome.verdicts
        for finding in verdict.findings
        for line in finding.lines
    }
    operations = load(history, lines) if lines else {}
    felt = impact(timeline)
    report = {
        "valid": outcome.valid,
        "workload": header.workload,
        "about": PLAYS[header.workload].about if header.workload in PLAYS else "",
        "seed": header.seed,
        "options": dict(header.options),
        "versions": dict(header.versions),
        "started_at": header.started_at,
        "again": shlex.join(header.again),
        "history": history.path.name,
        "files": [],
        "processes": {},
        "duration_s": round(timeline.duration_ns / 1e9, 3),
        "operations": outcome.operations,
        "torn_lines": outcome.torn_lines,
        "counts": timeline.counts,
        "clients": timeline.clients,
        "verdicts": [_verdict(each, operations, timeline) for each in outcome.verdicts],
        **felt,
        "kinds": coverage(header.options, felt["faults"]),
        "phases": [
            {"at_s": _seconds(phase.time_ns, timeline), "name": phase.name}
            for phase in timeline.phases
        ],
        "series": series,
    }
    return outcome, report


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what is there to be drawn."""
    return {name: value for name, value in report.items() if name != "series"}


def write_report(report: Mapping[str, Any], folder: Path) -> Path:
    """Writes report.json and report.html into a folder, which is made; the page's path.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "report.json", json.dumps(report, ensure_ascii=False, indent=1))
    _replace(folder / "report.html", render(report))
    return folder / "report.html"


def _replace(path: Path, text: str) -> None:
    """Nobody reads half a report."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _seconds(time_ns: int, timeline: Timeline) -> float:
    return round((time_ns - timeline.start_ns) / 1e9, 6)


def _verdict(
    verdict: Verdict, operations: Mapping[int, Operation], timeline: Timeline
) -> dict[str, Any]:
    return {
        "checker": verdict.checker,
        "valid": verdict.valid,
        "promise": verdict.promise,
        "explanation": verdict.explanation,
        "counts": dict(verdict.counts),
        "findings": [
            {
                "summary": finding.summary,
                "key": finding.key,
                "operations": _operations(finding, operations, timeline),
            }
            for finding in verdict.findings
        ],
    }


def _operations(
    finding: Finding, operations: Mapping[int, Operation], timeline: Timeline
) -> list[dict[str, Any]]:
    found = [operations[line] for line in finding.lines if line in operations]
    offsets = {
        record[2]
        for operation in found
        if operation.f == "send"
        for record in operation.value
        if len(record) == 3 and record[0] == finding.key
    }
    return [_operation(each, _excerpt(each, finding.key, offsets), timeline) for each in found]


def _excerpt(operation: Operation, key: str, offsets: set[int | None]) -> Any:
    """A poll's value without what a finding isn't about: other logs, records far from `offsets`."""
    if operation.f != "poll" or not operation.value or key not in operation.value:
        return operation.value
    records = operation.value[key]
    near = {
        index + step
        for index, (offset, _) in enumerate(records)
        if offset in offsets
        or (index and not offsets.isdisjoint(range(records[index - 1][0] + 1, offset)))
        for step in (-2, -1, 0, 1)
    }
    kept: list[Any] = []
    for index, record in enumerate(records):
        if index in near or index in (0, len(records) - 1):
            kept.append(record)
        elif not kept or kept[-1] != "…":
            kept.append("…")
    return {key: kept}


def _operation(operation: Operation, shown: Any, timeline: Timeline) -> dict[str, Any]:
    value = json.dumps(shown, ensure_ascii=False)
    if len(value) > _VALUE_CHARS_MAX:
        value = value[:_VALUE_CHARS_MAX] + "…"
    ended = None if operation.ended_ns == NEVER else _seconds(operation.ended_ns, timeline)
    return {
        "line": operation.line,
        "process": operation.process,
        "f": operation.f,
        "outcome": operation.outcome,
        "invoked_s": _seconds(operation.invoked_ns, timeline),
        "ended_s": ended,
        "value": value,
        "error": operation.error,
        "node": operation.node,
        "client": operation.client,
    }
