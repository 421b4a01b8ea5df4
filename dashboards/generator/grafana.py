"""What a board consists of, and Grafana's JSON for it (schema 39: Grafana 10.4 and newer).

Rules:

* `@` in an expression's braces stands for the labels that the variables choose:
  `kraftpy_connections{@}` is `kraftpy_connections{job="$job",instance=~"$instance"}`.
* Every panel says what it shows (`description`), in which unit, and its queries have legends.
* Panels are set from left to right as they come, in rows of 24 columns: none can overlap.
* Colours mean something: green is well, orange wants a look, red is trouble now. A panel without
  `Steps` has no opinion and takes the colours of its series.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Grafana's ids of units.
SECONDS, BYTES, BYTES_RATE, PER_SECOND, RATIO, COUNT, SINCE = (
    "s",
    "bytes",
    "binBps",
    "cps",
    "percentunit",
    "short",
    "dateTimeFromNow",
)

Steps = tuple[tuple[str, float | None], ...]
"""Colours from a value on, ascending; the first one's value is None."""

GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
TROUBLE: Steps = ((GREEN, None), (RED, 1))
CAUTION: Steps = ((GREEN, None), (ORANGE, 1))
EXACTLY_ONE: Steps = ((RED, None), (GREEN, 1), (RED, 2))
NEUTRAL: Steps = ((BLUE, None),)


class Query(NamedTuple):
    """A PromQL expression, and the name of each of its series (`{{label}}` is a label's value)."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """One panel; `kind` is Grafana's type. `height` is in Grafana's rows of 30 pixels."""

    kind: str
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    width: int
    height: int
    steps: Steps = ()
    stacked: bool = False
    maximum: float | None = None


class Row(NamedTuple):
    title: str
    panels: Sequence[Panel]


class Variable(NamedTuple):
    """Filled from `label_values(metric, label)`; `several`: all of them, or any, may be chosen."""

    name: str
    label: str
    query: str
    several: bool = True


class Board(NamedTuple):
    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()
    about: str = "kraftpy_build_info"
    """A metric that all that the board is about serve, and nobody else."""


TOPIC = Variable(
    "topic",
    "Topic",
    'label_values(kraftpy_topic_log_size_bytes{job="$job",instance=~"$instance"}, topic)',
)
GROUP = Variable(
    "group",
    "Group",
    'label_values(kafka_consumergroup_members{job="$job",instance=~"$instance"}, consumergroup)',
)

_SELECTED = 'job="$job",instance=~"$instance"'


def stat(
    title: str,
    description: str,
    unit: str,
    expr: str,
    steps: Steps = NEUTRAL,
    *,
    width: int = 4,
) -> Panel:
    """One number, as of now."""
    return Panel("stat", title, description, unit, (Query(expr, title),), width, 4, steps)


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: tuple[str, str],
    steps: Steps = (),
    stacked: bool = False,
    width: int = 8,
    maximum: float | None = None,
) -> Panel:
    """Lines over time. `queries` are pairs of expression and legend."""
    drawn = tuple(Query(*query) for query in queries)
    return Panel("timeseries", title, description, unit, drawn, width, 8, steps, stacked, maximum)


def heatmap(title: str, description: str, unit: str, expr: str, *, width: int = 12) -> Panel:
    """How often each bucket of a histogram was met; `expr` is summed by `le`."""
    return Panel("heatmap", title, description, unit, (Query(expr, "{{le}}"),), width, 8)


def quantiles(metric: str, labels: str = "", by: str = "") -> tuple[tuple[str, str], ...]:
    """Median and 99th percentile of a histogram, for `graph`."""
    inside = f"@,{labels}" if labels else "@"
    grouped = f"le, {by}" if by else "le"
    name = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({grouped}) "
            f"(rate({metric}_bucket{{{inside}}}[$__rate_interval])))",
            f"p{share * 100:g}{name}",
        )
        for share in (0.5, 0.99)
    )


def p99(metric: str, by: str, labels: str = "") -> tuple[str, str]:
    """The 99th percentile alone, one line for each value of the label `by`."""
    return quantiles(metric, labels, by)[1][0], f"{{{{{by}}}}}"


# -- JSON


def render(board: Board, others: Sequence[Board]) -> dict[str, Any]:
    """The board as Grafana imports it, with links to the others."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["kraftpy"],
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "fiscalYearStartMonth": 0,
        "annotations": {"list": [_alerts()]},
        "links": [_link(board, other) for other in others if other is not board],
        "templating": {
            "list": [
                _datasource(),
                *map(_variable, (*_places(board.about), *board.variables)),
            ]
        },
        "panels": _panels(board.rows),
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": RED,
        "expr": 'ALERTS{alertname=~"Kraftpy.*",alertstate="firing",severity="critical"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}}",
        "step": "60s",
    }


def _link(board: Board, other: Board) -> dict[str, Any]:
    """To another board, with what is chosen here if it means the same there."""
    return {
        "type": "link",
        "title": other.title,
        "tooltip": other.description,
        "url": f"/d/{other.uid}",
        "icon": "dashboard",
        "includeVars": board.about == other.about,
        "keepTime": True,
        "targetBlank": False,
        "asDropdown": False,
        "tags": [],
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "refresh": 1,
        "options": [],
        "current": {},
    }


def _places(metric: str) -> tuple[Variable, Variable]:
    """Which scrape job, which is a cluster, and which of its instances."""
    return (
        Variable("job", "Cluster (job)", f"label_values({metric}, job)", several=False),
        Variable("instance", "Node", f'label_values({metric}{{job="$job"}}, instance)'),
    )


def _variable(variable: Variable) -> dict[str, Any]:
    everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": f"{variable.name}-variable"},
        "regex": "",
        "sort": 1,
        "multi": variable.several,
        "includeAll": variable.several,
        "allValue": ".*" if variable.several else None,
        "hide": 0,
        "refresh": 2,
        "options": [],
        "current": everything if variable.several else {},
    }


def _panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            panels.append(_panel(len(panels) + 1, panel, place))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return panels


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [
            _target(chr(ord("A") + position), query, panel.kind)
            for position, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _target(ref_id: str, query: Query, kind: str) -> dict[str, Any]:
    return {
        "refId": ref_id,
        "datasource": DATASOURCE,
        "expr": query.expr.replace("@", _SELECTED),
        "legendFormat": query.legend,
        "editorMode": "code",
        "format": "heatmap" if kind == "heatmap" else "time_series",
        "instant": kind == "stat",
        "range": kind != "stat",
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = panel.steps or ((GREEN, None),)
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value} for color, value in steps],
        },
    }
    if panel.kind == "timeseries":
        defaults |= {
            "min": 0,
            "color": {"mode": "palette-classic"},
            "custom": {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 20 if panel.stacked else 5,
                "showPoints": "never",
                "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "line" if panel.steps else "off"},
            },
        }
    elif panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return defaults


_OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "center",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    },
    "timeseries": {
        "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": True},
        "yAxis": {"axisPlacement": "left", "unit": "s"},
    },
}
