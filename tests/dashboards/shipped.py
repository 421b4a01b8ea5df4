"""What dashboards/ ships, as tests see it: boards, rules, expressions, the metrics in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kraftpy.metrics.catalog import CATALOG, Kind

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards"
RULES = FOLDER / "prometheus"
GUIDE = ROOT / "deploy" / "operations.md"

PROMETHEUS_OWN = {"up", "ALERTS"}
"""What isn't scraped but made by Prometheus."""

_NOT_METRICS = {
    # Aggregations and functions are followed by a parenthesis; these needn't be.
    *("by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"),
    *("and", "or", "unless", "sum", "min", "max", "avg", "count", "count_values", "topk"),
    *("quantile", "inf", "nan"),
}
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAME = re.compile(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])")
_SERIES = re.compile(r"_(bucket|count|sum)$")


class Query(NamedTuple):
    """One expression of a panel."""

    board: str
    panel: str
    expr: str


def boards() -> dict[str, dict[str, Any]]:
    """The boards by the name of their file."""
    return {
        path.name: json.loads(path.read_text())
        for path in sorted((FOLDER / "grafana").glob("*.json"))
    }


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels but headings of rows."""
    return (panel for panel in board["panels"] if panel["type"] != "row")


def queries() -> list[Query]:
    """All expressions of all panels."""
    return [
        Query(board["title"], panel["title"], target["expr"])
        for board in boards().values()
        for panel in panels(board)
        for target in panel["targets"]
    ]


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of a file in dashboards/prometheus."""
    groups = yaml.safe_load((RULES / f"{name}.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expr: str) -> set[str]:
    """The names of series that a PromQL expression reads."""
    bare = _STRING.sub('""', expr)
    bare = re.sub(r"\{[^}]*\}", "", bare)
    bare = re.sub(r"\[[^\]]*\]", "", bare)
    bare = _LABEL_LIST.sub("", bare)
    bare = re.sub(r"\boffset\s+\w+", "", bare)
    return {name for name in _NAME.findall(bare) if name.lower() not in _NOT_METRICS}


def metric_of(series: str) -> str:
    """The catalogue's name of a series; what isn't in the catalogue stays as it is."""
    if series in CATALOG:
        return series
    base = _SERIES.sub("", series)
    is_histogram = base in CATALOG and CATALOG[base].kind is Kind.HISTOGRAM
    return base if is_histogram else series


def recorded() -> dict[str, str]:
    """The expressions of the recording rules by what they record."""
    return {rule["record"]: rule["expr"] for rule in rules("recording")}


def metrics_in(expr: str) -> set[str]:
    """The metrics that an expression reads, through recording rules too."""
    found: set[str] = set()
    made = recorded()
    for series in names_in(expr) - PROMETHEUS_OWN:
        found |= metrics_in(made[series]) if series in made else {metric_of(series)}
    return found


def all_expressions() -> Iterator[tuple[str, str]]:
    """Where each is, and the expression."""
    for query in queries():
        yield f"{query.board} / {query.panel}", query.expr
    for name in ("recording", "alerts"):
        for rule in rules(name):
            yield rule.get("alert") or rule["record"], rule["expr"]


def anchors(text: str) -> set[str]:
    """The anchors of a Markdown document's headings, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def substituted(expr: str, values: Mapping[str, str]) -> str:
    """With Grafana's variables replaced; KeyError for one that has no value."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], expr)
