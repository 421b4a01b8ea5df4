"""Runs expressions as Grafana does, until each has returned data."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.dashboards import shipped
from tests.dashboards.prometheus import Prometheus

RATE_INTERVAL_S = 10
"""Grafana's $__rate_interval is four scrapes; ten have more to show of what is rare."""
_LABEL_VALUES = re.compile(r"label_values\((?P<series>.*), (?P<label>\w+)\)")

Say = Callable[[str], None]


class Checked(NamedTuple):
    """What became of one expression; `problem` is empty if it returned data."""

    where: str
    what: str
    expr: str
    series: int
    problem: str


def variables(prometheus: Prometheus, board: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The values that a newly opened board has, and what is wrong with its variables."""
    values = {"__rate_interval": f"{RATE_INTERVAL_S}s", "datasource": "prometheus"}
    problems = []
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = shipped.substituted(variable["query"]["query"], values)
        found = _LABEL_VALUES.fullmatch(query)
        assert found is not None, query
        choices = prometheus.label_values(found["label"], found["series"])
        if not choices:
            problems.append(f"the variable {variable['name']} has no values: {query}")
        values[variable["name"]] = variable["allValue"] or (choices or ["none"])[0]
    return values, problems


def check_boards(
    prometheus: Prometheus, timeout_s: float, boards: Iterable[str] = ()
) -> list[Checked]:
    """Every expression of every panel of these boards, or of all."""
    results = []
    deadline = time.monotonic() + timeout_s
    for name, board in shipped.boards().items():
        if boards and name not in boards:
            continue
        values, problems = _until(lambda board=board: variables(prometheus, board), deadline)  # type: ignore[misc]
        for problem in problems:
            results.append(Checked(board["title"], "variables", "", 0, problem))
        for panel in shipped.panels(board):
            for target in panel["targets"]:
                expr = shipped.substituted(target["expr"], values)
                count, problem = _data(prometheus, expr, deadline)
                results.append(Checked(board["title"], panel["title"], expr, count, problem))
    return results


def check_recorded(prometheus: Prometheus, timeout_s: float) -> list[Checked]:
    """Every recording rule."""
    deadline = time.monotonic() + timeout_s
    results = []
    for record, expr in shipped.recorded().items():
        count, problem = _data(prometheus, record, deadline)
        results.append(Checked("recording rules", record, expr, count, problem))
    return results


def _until(
    look: Callable[[], tuple[dict[str, str], list[str]]], deadline: float
) -> tuple[dict[str, str], list[str]]:
    while True:
        found = look()
        if not found[1] or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _data(prometheus: Prometheus, expr: str, deadline: float) -> tuple[int, str]:
    """How many series, and what is wrong. A series that is not a number is no data."""
    while True:
        try:
            samples = prometheus.query(expr)
        except RuntimeError as error:
            return 0, str(error)
        if any(not math.isnan(sample.value) for sample in samples):
            return len(samples), ""
        if time.monotonic() > deadline:
            return 0, "not a number" if samples else "no data"
        time.sleep(0.5)
