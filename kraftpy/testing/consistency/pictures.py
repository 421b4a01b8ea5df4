"""The pictures of report.html: who did what when, plots over time, what each fault did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kraftpy.page import charts
from kraftpy.page.charts import Band
from kraftpy.page.html import NOTHING, Html, join, tag

Report = Mapping[str, Any]

OUTCOMES = (("ok", "ok"), ("info", "unknown"), ("fail", "failed"))
_NONE = "-"
_FELT = ("for", "asked", "ok", "slowest", "silence")
_LANES = {"o": "ok", "w": "busy", "i": "info", "f": "fail"}
_LANE_WORDS = (*OUTCOMES, ("busy", "waiting for an answer"))
_QUANTILES = (("max", "max"), ("p99", "p99"), ("p50", "median"))
_GROUP_KINDS = ("unread", "p99", "max", "p50")


def fault_bands(report: Report) -> list[Band]:
    return [
        Band(fault["start_s"], fault["end_s"], "fault", _fault_label(fault))
        for fault in report["faults"]
    ]


def _fault_label(fault: Mapping[str, Any]) -> str:
    detail = f" ({fault['detail']})" if fault["detail"] else ""
    return f"{fault['name']} {', '.join(fault['targets'])}{detail}"


def duration_of(report: Report) -> float:
    return max(float(report["duration_s"]), 1e-9)


def what_happened(report: Report) -> Html:
    """Rows of faults and clients over one axis of time."""
    duration_s = duration_of(report)
    series = report["series"]
    rows = []
    for name in sorted({fault["name"] for fault in report["faults"]}):
        mine = [
            band
            for fault, band in zip(report["faults"], fault_bands(report), strict=True)
            if fault["name"] == name
        ]
        drawn = charts.svg(charts.bands(mine, duration_s), charts.HEIGHT, "lane")
        rows.append(_row(tag("b", name), drawn))
    for lane in sorted(series["lanes"], key=lambda each: (each["does"], each["client"])):
        label = [lane["does"], " ", tag("i", lane["library"])]
        if lane["sessions"] > 1:
            label += [" ", tag("i", f"x{lane['sessions']}")]
        rows.append(_row(join(label), charts.lane(lane["marks"], _LANES)))
    left_out = series["lanes_left_out"]
    note = tag("p", tag("small", f"{left_out} more clients are not drawn.")) if left_out else ""
    behind = join([charts.bands(fault_bands(report), duration_s), _lines(report, duration_s)])
    legend = [_key(kind, word) for kind, word in (*_LANE_WORDS, ("fault", "fault"))]
    return tag(
        "section",
        tag("h2", "What happened when"),
        tag(
            "p",
            "Above, what was done to the cluster; below, a row for each client: the worst that its"
            " operations of that moment came to.",
        ),
        tag("div", tag("div", charts.svg(behind), class_="back"), *rows, class_="rows"),
        tag("div", charts.time_axis(duration_s), class_="rows-x"),
        tag("div", *legend, *_line_legend(report), class_="legend"),
        note,
    )


def _row(label: Html, drawn: Html) -> Html:
    return tag("div", tag("span", label), drawn, class_="row")


def _key(kind: str, word: str) -> Html:
    """An entry of a legend: its colour and what that stands for."""
    return tag("span", tag("i", class_=kind), word)


def _lines(report: Report, duration_s: float) -> Html:
    """Where healing and the final reads begin, and where the operations of findings are."""
    phases = [each["at_s"] for each in report["phases"] if each["name"] != "load"]
    return join(
        tag("path", class_=kind, d=f"M{charts.WIDTH * at_s / duration_s:.1f} 0V{charts.HEIGHT}")
        for kind, moments in (("phase", phases), ("wrong", _wrong(report)))
        for at_s in moments
    )


def _wrong(report: Report) -> list[float]:
    """When what the first finding of each broken promise is about began."""
    return sorted(
        {
            operation["invoked_s"]
            for verdict in report["verdicts"]
            for finding in verdict["findings"][:1]
            for operation in finding["operations"]
        }
    )


def _line_legend(report: Report) -> list[Html]:
    keys = []
    marks = [phase for phase in report["phases"] if phase["name"] != "load"]
    if marks:
        words = ", ".join(
            f"{phase['name']} from {charts.time_text(phase['at_s'], report['duration_s'])}"
            for phase in marks
        )
        keys.append(_key("phase-key", words))
    if _wrong(report):
        keys.append(_key("wrong-key", "what is wrong"))
    return keys


def over_time(report: Report) -> Html:
    """The plots."""
    duration_s = duration_of(report)
    series = report["series"]
    behind = join([charts.bands(fault_bands(report), duration_s), _lines(report, duration_s)])

    def plot(
        title: str,
        unit: str,
        scale: charts.Scale,
        drawn: Html,
        legend: Sequence[tuple[str, str]] = (),
    ) -> Html:
        axis = charts.time_axis(duration_s)
        return charts.chart(title, unit, scale, join([behind, drawn]), legend, axis)

    rates = series["per_second"]
    scale = charts.linear(max(sum(column) for column in zip(*rates.values(), strict=True)))
    drawn = charts.stack([(name, rates[name]) for name, _ in OUTCOMES], scale)
    plots = [plot("Availability", "operations a second", scale, drawn, OUTCOMES)]

    dots, latency = series["dots"], series["latency_ms"]
    scale = charts.decades(
        [each for _, points in dots.items() for _, each in points]
        + [each for points in latency.values() for each in points if each]
    )
    drawn = join(charts.dots(dots[name], scale, duration_s, name) for name, _ in OUTCOMES)
    plots.append(plot("Latency of single operations", "ms, a dot each", scale, drawn, OUTCOMES))
    drawn = join(charts.line(latency[key], scale, key) for key, _ in _QUANTILES)
    plots.append(plot("Latency", "ms, of what succeeded", scale, drawn, _QUANTILES))

    if "unread" in series:
        for key, title, unit in (
            ("values", "Unread", "acknowledged values that nobody has read yet"),
            ("oldest_s", "Unread for", "seconds that the oldest of them has waited"),
        ):
            points = series["unread"][key]
            scale = charts.linear(max(points))
            plots.append(plot(title, unit, scale, charts.line(points, scale, "unread")))
    if series.get("lag"):
        plots.append(_lag(series["lag"], plot))
    return tag(
        "section",
        tag("h2", "Over time"),
        tag("p", "Shaded: faults. Polls wait for data by design, so they have no latency here."),
        tag("div", *plots, class_="plots odd" if len(plots) % 2 else "plots"),
    )


def _lag(lags: Mapping[str, Sequence[float]], plot: Any) -> Html:
    scale = charts.linear(max(max(points) for points in lags.values()))
    named = list(zip(_GROUP_KINDS, lags.items(), strict=False))
    drawn = join(charts.line(points, scale, kind) for kind, (_, points) in named)
    legend = [(kind, group) for kind, (group, _) in named]
    drawn_plot: Html = plot(
        "Lag", "records sent that no member has processed", scale, drawn, legend
    )
    return drawn_plot


def faults_felt(report: Report) -> Html:
    """A table of the faults and what clients felt of each."""
    if not report["faults"]:
        return NOTHING
    rows = [_felt(fault, report["duration_s"]) for fault in report["faults"]]
    heads = [tag("th", head) for head in ("at", "fault", *_FELT)]
    return tag(
        "section",
        tag("h2", "What clients felt of each fault"),
        tag(
            "p",
            "Operations that began meanwhile, how many of them ended well, the slowest of those,"
            " and the longest time in which none did.",
        ),
        tag("table", tag("tr", *heads), *rows, class_="felt"),
    )


def _felt(fault: Mapping[str, Any], duration_s: float) -> Html:
    known = fault["ok"] + fault["info"] + fault["fail"]
    cells = (
        seconds(fault["end_s"] - fault["start_s"]),
        f"{known:,}",
        f"{fault['ok'] / known:.0%}" if known else _NONE,
        seconds(fault["slowest_ms"] / 1000),
        seconds(fault["silence_s"]),
    )
    return tag(
        "tr",
        tag("td", charts.time_text(fault["start_s"], duration_s)),
        tag("td", tag("b", fault["name"]), " ", tag("small", _whom(fault))),
        *(tag("td", text, data_of=head) for head, text in zip(_FELT, cells, strict=True)),
    )


def _whom(fault: Mapping[str, Any]) -> str:
    nodes = ", ".join(fault["targets"])
    where = f"node{'s' if len(fault['targets']) > 1 else ''} {nodes}" if nodes else ""
    return ": ".join(part for part in (where, fault["detail"]) if part)


def seconds(value: float) -> str:
    """A length of time as short as a person wants it."""
    if not value:
        return _NONE
    if value >= 120:
        return f"{value / 60:.0f} min"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
