"""The table of what was checked, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.dashboards import shipped
from tests.dashboards.expressions import Checked


class Fired(NamedTuple):
    """What became of one alert: seconds until it fired, and until it was over."""

    alert: str
    fault: str
    fired_s: float | None
    resolved_s: float | None
    text: str
    problem: str


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in cells) + " |" for cells in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _metrics(expr: str) -> str:
    return ", ".join(f"`{name}`" for name in sorted(shipped.metrics_in(expr))) or "`up`"


def document(checked: Sequence[Checked], fired: Sequence[Fired], gaps: Sequence[str]) -> str:
    """All of build/dashboards/table.md."""
    parts = ["# Boards and alerts, checked", _verdict(checked, fired, gaps)]
    parts += [
        "## Catalogue",
        "\n".join(f"* {gap}" for gap in gaps) or "Boards and catalogue agree.",
    ]
    rows = [
        [each.where, each.what, _metrics(each.expr), str(each.series), each.problem or "ok"]
        for each in checked
    ]
    parts += ["## Expressions", table(["board", "panel", "metrics", "series", ""], rows)]
    exprs = {rule["alert"]: rule["expr"] for rule in shipped.rules("alerts")}
    rows = [
        [
            each.alert,
            each.fault,
            _metrics(exprs[each.alert]),
            _seconds(each.fired_s),
            _seconds(each.resolved_s),
            each.text,
            each.problem or "ok",
        ]
        for each in fired
    ]
    if rows:
        header = ["alert", "fault", "metrics", "fired after", "over after", "said", ""]
        parts += ["## Alerts", table(header, rows)]
    return "\n\n".join(parts) + "\n"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"


def _verdict(checked: Sequence[Checked], fired: Sequence[Fired], gaps: Sequence[str]) -> str:
    bad = sum(bool(each.problem) for each in checked)
    quiet = sum(bool(each.problem) for each in fired)
    return (
        f"{len(checked) - bad} of {len(checked)} expressions return data; "
        f"{len(fired) - quiet} of {len(fired)} alerts fire and end; "
        f"{len(gaps)} disagreements with the catalogue."
    )
