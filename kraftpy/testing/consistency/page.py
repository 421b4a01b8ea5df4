"""report.html: one file with nothing outside of it, for a wide screen, a phone and a printer.

What it says comes from the report's JSON alone, so an old report can be drawn again.  Everything in
it is escaped: values and errors come from whatever was tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kraftpy.testing.consistency import charts
from kraftpy.testing.consistency.charts import Band
from kraftpy.testing.consistency.style import STYLE

Report = Mapping[str, Any]

_WORDS = {True: "kept", False: "broken", None: "unknown"}
_KINDS = {True: "ok", False: "fail", None: "info"}
_LANES = {"o": "ok", "i": "info", "f": "fail"}
_OUTCOMES = (("ok", "ok"), ("info", "unknown"), ("fail", "failed"))
_HEADLINES = {
    True: "Every promise was kept",
    False: "A promise was broken",
    None: "Not everything could be decided",
}


def render(report: Report) -> str:
    """The page of a report (see `report.judge`)."""
    faults = fault_bands(report)
    title = f"{report['workload']}: {_HEADLINES[report['valid']].lower()}"
    body = "".join(
        (
            _head(report),
            _verdicts(report),
            _findings(report),
            _what_happened(report, faults),
            _plots(report, faults),
            _details(report),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def fault_bands(report: Report) -> list[Band]:
    """Faults as stretches of time; one that nobody ended goes on to the end of the run."""
    found = []
    begun: dict[int, Mapping[str, Any]] = {}
    for fault in report["faults"]:
        if fault["phase"] == "start":
            begun[fault["id"]] = fault
            continue
        start = begun.pop(fault["id"], fault) if fault["phase"] == "end" else fault
        found.append(Band(start["at_s"], fault["at_s"], "fault", _fault_label(start)))
    duration_s = report["duration_s"]
    found += [
        Band(each["at_s"], duration_s, "fault", _fault_label(each)) for each in begun.values()
    ]
    return sorted(found)


def _fault_label(fault: Mapping[str, Any]) -> str:
    detail = f" ({fault['detail']})" if fault["detail"] else ""
    return f"{fault['name']} {', '.join(fault['targets'])}{detail}"


def _head(report: Report) -> str:
    valid = report["valid"]
    broken = [each["checker"] for each in report["verdicts"] if each["valid"] is False]
    headline = _HEADLINES[valid]
    if broken:
        headline = f"Broken: {', '.join(broken)}"
    counts = report["counts"].values()
    known = sum(each["ok"] for each in counts)
    uncertain = sum(each["info"] for each in counts)
    faults = len(fault_bands(report))
    facts = [
        (f"{report['operations']:,}", "operations"),
        (f"{known / max(1, report['operations']):.1%}", "succeeded"),
        (f"{uncertain:,}", "of unknown outcome"),
        (f"{faults:,}", "fault" if faults == 1 else "faults"),
        (_duration(report["duration_s"]), "long"),
    ]
    cells = "".join(f"<div><b>{number}</b><span>{word}</span></div>" for number, word in facts)
    subtitle = [f"workload <b>{escape(report['workload'])}</b>", f"seed <b>{report['seed']}</b>"]
    if report["started_at"]:
        subtitle.append(escape(report["started_at"]))
    return (
        f'<header class="{_KINDS[valid]}"><p>kraftpy consistency</p><h1>{escape(headline)}</h1>'
        f'<p class="sub">{" · ".join(subtitle)}</p><div class="facts">{cells}</div></header>'
    )


def _duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _verdicts(report: Report) -> str:
    order = {False: 0, None: 1, True: 2}
    rows = []
    for verdict in sorted(report["verdicts"], key=lambda each: order[each["valid"]]):
        counts = " · ".join(
            f"{count:,} {escape(name)}"
            for place, (name, count) in enumerate(verdict["counts"].items())
            if count or not place
        )
        kind, word = _KINDS[verdict["valid"]], _WORDS[verdict["valid"]]
        why = "" if verdict["valid"] else f"<p>{escape(verdict['explanation'])}</p>"
        rows.append(
            f'<li class="{kind}"><span class="badge">{word}</span><div>'
            f"<h3>{escape(verdict['checker'])}</h3><p>{escape(verdict['promise'])}</p>{why}"
            f"<small>{counts}</small></div></li>"
        )
    return f'<section><h2>Promises</h2><ul class="verdicts">{"".join(rows)}</ul></section>'


def _findings(report: Report) -> str:
    parts = []
    for verdict in report["verdicts"]:
        for index, finding in enumerate(verdict["findings"]):
            is_open = " open" if index == 0 else ""
            parts.append(
                f"<details{is_open}><summary><b>{escape(verdict['checker'])}</b> "
                f"{escape(finding['summary'])}</summary>{_history(finding['operations'])}</details>"
            )
    if not parts:
        return ""
    return (
        "<section><h2>What is wrong</h2><p>For each finding the operations that contradict the"
        f" promise, as few as could be found, and when they happened.</p>{''.join(parts)}</section>"
    )


def _history(operations: list[Mapping[str, Any]]) -> str:
    if not operations:
        return ""
    ends = [each["ended_s"] for each in operations if each["ended_s"] is not None]
    start = min(each["invoked_s"] for each in operations)
    end = max([*ends, *(each["invoked_s"] for each in operations)])
    span = max(end - start, 1e-9)
    rows = []
    for each in operations:
        left = charts.WIDTH * (each["invoked_s"] - start) / span
        right = charts.WIDTH
        if each["ended_s"] is not None:
            right = charts.WIDTH * (each["ended_s"] - start) / span
        width = max(6.0, right - left)
        left = min(left, charts.WIDTH - width)
        bar = (
            f'<rect class="fill {each["outcome"]}" x="{left:.1f}" y="2" width="{width:.1f}"'
            ' height="6"/>'
        )
        said = " ".join(part for part in (each["client"], each["node"], each["error"]) if part)
        ended = "no answer" if each["ended_s"] is None else f"{each['ended_s']:.4f} s"
        rows.append(
            f'<div class="op"><div><b>{escape(each["f"])}</b> <span class="{each["outcome"]}">'
            f"{each['outcome']}</span> <small>line {each['line']} · process {each['process']} ·"
            f" {each['invoked_s']:.4f} s to {ended} {escape(said)}</small></div>"
            f"{charts.svg(bar, 10, 'lane')}<code>{escape(each['value'])}</code></div>"
        )
    return f'<div class="ops">{"".join(rows)}</div>'


def _what_happened(report: Report, faults: list[Band]) -> str:
    duration_s = max(report["duration_s"], 1e-9)
    rows = []
    kinds = sorted({band.label.split()[0] for band in faults})
    for kind in kinds:
        mine = [band for band in faults if band.label.split()[0] == kind]
        drawn = charts.svg(charts.bands(mine, duration_s), charts.HEIGHT, "lane")
        rows.append(f'<div class="row"><span>{escape(kind)}</span>{drawn}</div>')
    behind = charts.bands(faults, duration_s)
    for process, marks in report["series"]["processes"].items():
        lane = charts.lane(marks, _LANES)
        rows.append(f'<div class="row"><span>{escape(process)}</span>{lane}</div>')
    left_out = report["series"]["processes_left_out"]
    note = f"<p><small>{left_out} more processes are not drawn.</small></p>" if left_out else ""
    back = charts.svg(behind + _phase_lines(report, duration_s), charts.HEIGHT)
    legend = "".join(f'<span><i class="{kind}"></i>{word}</span>' for kind, word in _OUTCOMES)
    table = "".join(
        f"<tr><td>{charts.time_text(band.start_s, duration_s)}</td>"
        f"<td>{charts.time_text(band.end_s, duration_s)}</td><td>{escape(band.label)}</td></tr>"
        for band in faults
    )
    listed = (
        f"<details><summary>{len(faults)} faults, one by one</summary><table><tr><th>from</th>"
        f"<th>to</th><th>what</th></tr>{table}</table></details>"
        if faults
        else ""
    )
    return (
        "<section><h2>What happened when</h2><p>A row for each kind of fault, then one for each"
        " client session: the worst that an operation of that moment came to.</p>"
        f'<div class="rows"><div class="back">{back}</div>{"".join(rows)}</div>'
        f'<div class="rows-x">{charts.time_axis(duration_s)}</div><div class="legend">{legend}'
        f'<span><i class="fault"></i>fault</span>{_phase_legend(report)}</div>{note}{listed}'
        "</section>"
    )


def _phase_lines(report: Report, duration_s: float) -> str:
    return "".join(
        f'<path class="phase" d="M{charts.WIDTH * phase["at_s"] / duration_s:.1f} 0'
        f'V{charts.HEIGHT}"/>'
        for phase in report["phases"]
        if phase["name"] != "load"
    )


def _phase_legend(report: Report) -> str:
    marks = [phase for phase in report["phases"] if phase["name"] != "load"]
    if not marks:
        return ""
    words = ", ".join(
        f"{phase['name']} from {charts.time_text(phase['at_s'], report['duration_s'])}"
        for phase in marks
    )
    return f'<span><i class="phase-key"></i>{escape(words)}</span>'


def _plots(report: Report, faults: list[Band]) -> str:
    duration_s = max(report["duration_s"], 1e-9)
    series = report["series"]
    behind = charts.bands(faults, duration_s) + _phase_lines(report, duration_s)
    rates = series["per_second"]
    totals = [sum(column) for column in zip(*rates.values(), strict=True)]
    scale = charts.linear(max(totals))
    drawn = behind + charts.stack([(name, rates[name]) for name, _ in _OUTCOMES], scale)
    plots = [
        charts.chart("Availability", "operations a second", scale, drawn, _OUTCOMES, duration_s)
    ]

    latency = series["latency_ms"]
    scale = charts.decades(value for line in latency.values() for value in line if value)
    names = [("max", "max"), ("p99", "p99"), ("p50", "median")]
    drawn = behind + "".join(charts.line(latency[key], scale, key) for key, _ in names)
    plots.append(charts.chart("Latency", "ms, what succeeded", scale, drawn, names, duration_s))

    if "unread" in series:
        for key, title, unit in (
            ("values", "Unread", "acknowledged values that nobody has read yet"),
            ("oldest_s", "Lag", "seconds that the oldest of them has waited"),
        ):
            points = series["unread"][key]
            scale = charts.linear(max(points))
            drawn = behind + charts.line(points, scale, "unread")
            plots.append(charts.chart(title, unit, scale, drawn, [], duration_s))
    return f'<section><h2>Over time</h2><div class="plots">{"".join(plots)}</div></section>'


def _details(report: Report) -> str:
    counts = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{each[kind]:,}</td>" for kind, _ in _OUTCOMES)
        + "</tr>"
        for name, each in report["counts"].items()
    )
    facts: dict[str, object] = dict(report["versions"])
    facts |= {
        f"client {name}": f"{count:,} operations" for name, count in report["clients"].items()
    }
    facts |= {f"option {name}": value for name, value in report["options"].items()}
    facts["history"] = report["history"]
    if report["torn_lines"]:
        facts["lines cut off by kills"] = report["torn_lines"]
    about = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    again = ""
    if report["again"]:
        again = f"<h3>Run it again</h3><pre>{escape(report['again'])}</pre>"
    return (
        '<section><h2>Details</h2><div class="plots"><div><h3>Operations</h3><table><tr><th></th>'
        f"<th>ok</th><th>unknown</th><th>failed</th></tr>{counts}</table></div>"
        f"<div><h3>Made with</h3><table>{about}</table></div></div>{again}<h3>Check it again</h3>"
        f"<pre>kraftpy consistency check {escape(report['history'])}</pre></section>"
    )
