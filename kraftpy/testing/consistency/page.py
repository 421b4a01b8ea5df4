"""report.html: one file with nothing outside of it, for a wide screen, a phone and a printer.

Rules:

* What it says comes from the report's JSON alone, so an old report can be drawn again.
* Everything in it is escaped: values and errors come from whatever was tested.
* What went wrong comes first; where nothing did, what was promised does. Links go to files in the
  report's own folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from kraftpy.page import charts
from kraftpy.page.paper import document
from kraftpy.testing.consistency.coverage import NOT_HEALED, came
from kraftpy.testing.consistency.pictures import (
    OUTCOMES,
    fault_bands,
    faults_felt,
    over_time,
    seconds,
    what_happened,
)
from kraftpy.testing.consistency.style import STYLE
from kraftpy.testing.consistency.verdicts import NOTHING_TO_JUDGE, word

Report = Mapping[str, Any]

_KINDS = {True: "ok", False: "fail", None: "info"}
_HEADLINES = {
    True: "Every promise was kept",
    False: "A promise was broken",
    None: "Not everything could be decided",
}
_LISTED = 20
_HOW_TO_READ = (
    (
        "What was done",
        "Real clients, a process each, loaded real brokers and wrote down what they asked and what"
        " they were told, with times of one clock. Meanwhile faults were done to the brokers. Then"
        " all was healed, and everything was read to its end.",
    ),
    (
        "ok, unknown, failed",
        "An operation that was answered took effect. One whose answer didn't come may have taken"
        " effect or may yet: nobody knows, and a checker allows for both. A failed one took no"
        " effect for certain, so it must never be seen.",
    ),
    (
        "kept and broken",
        "A checker for each promise looks for operations that contradict it. Broken comes with the"
        " operations that prove it, as few as were found. Kept means that none of the operations"
        " here contradict the promise: evidence, not a proof. Where no operation could have, there"
        " was nothing to judge.",
    ),
)


def render(report: Report) -> str:
    """The page of a report (see `report.judge`)."""
    title = f"{report['workload']}: {headline(report)}"
    findings, files = _findings(report), _files(report)
    body = "".join(
        (
            _head(report),
            findings,
            files if findings or _not_healed(report) else "",
            _verdicts(report),
            what_happened(report),
            over_time(report),
            faults_felt(report),
            "" if findings or _not_healed(report) else files,
            _details(report),
            _how_to_read(),
        )
    )
    return document(title, body, STYLE)


def _not_healed(report: Report) -> str:
    """Why the cluster wasn't healthy in the end, empty if it was."""
    reasons = [fault["detail"] for fault in report["faults"] if fault["name"] == NOT_HEALED]
    return reasons[0] if reasons else ""


def headline(report: Report) -> str:
    """What came of a run, in a few words."""
    broken = [each["checker"] for each in report["verdicts"] if each["valid"] is False]
    if broken:
        return f"Broken: {', '.join(broken)}"
    if _not_healed(report):
        return "The cluster did not recover"
    return _HEADLINES[report["valid"]]


def _head(report: Report) -> str:
    kind = "fail" if _not_healed(report) else _KINDS[report["valid"]]
    counts = report["counts"].values()
    known = sum(each["ok"] for each in counts)
    uncertain = sum(each["info"] for each in counts)
    faults = sum(came(fault) for fault in report["faults"])
    facts = [
        (f"{report['operations']:,}", "operations"),
        (f"{known / max(1, report['operations']):.1%}", "succeeded"),
        (f"{uncertain:,}", "of unknown outcome"),
        (f"{faults:,}", "fault" if faults == 1 else "faults"),
        (seconds(report["silence_s"]), "longest without a success"),
        (seconds(report["duration_s"]), "long"),
    ]
    cells = "".join(f"<div><b>{number}</b><span>{word}</span></div>" for number, word in facts)
    subtitle = [f"workload <b>{escape(report['workload'])}</b>", f"seed <b>{report['seed']}</b>"]
    if report["started_at"]:
        subtitle.append(escape(report["started_at"]))
    why = _not_healed(report)
    reason = f'<p class="why">{escape(why)}</p>' if why else ""
    return (
        f'<header class="{kind}"><p>kraftpy consistency</p><h1>{escape(headline(report))}</h1>'
        f'<p class="sub">{" · ".join(subtitle)}</p><p class="story">{escape(story(report))}</p>'
        f'{reason}<div class="facts">{cells}</div></header>'
    )


def story(report: Report) -> str:
    """The run in sentences."""
    options, versions = report["options"], report["versions"]
    parts = []
    if report["about"]:
        parts.append(f"The question: {report['about']}")
    libraries = " and ".join(
        " ".join(filter(None, (name, str(versions.get(name, ""))))) for name in report["clients"]
    )
    clients = f"{options['concurrency']} clients" if "concurrency" in options else "Clients"
    tested = options.get("tested")
    asked = f"{clients} of {libraries or 'unknown make'} asked {tested or 'a cluster'}"
    if str(tested).startswith("kraftpy"):
        asked += f" (version {versions.get('kraftpy', 'unknown')})"
    elif "peer" in versions:
        asked += f" ({versions['peer']}; features: {versions.get('peer features', 'unknown')})"
    names = list(dict.fromkeys(fault["name"] for fault in report["faults"] if came(fault)))
    meanwhile = f", and these were done to it meanwhile: {', '.join(names)}" if names else ""
    parts.append(f"{asked}{meanwhile}.")
    if options.get("links"):
        parts.append(f"The network: {options['links']}.")
    missed = report.get("kinds", {}).get("missed")
    if missed:
        parts.append(f"Of what was to be done these did not come: {', '.join(missed)}.")
    left_out = options.get("left_out")
    if left_out and isinstance(left_out, Mapping):
        why = "; ".join(f"{name} ({why})" for name, why in left_out.items())
        parts.append(f"Left out: {why}.")
    return " ".join(parts)


def _verdicts(report: Report) -> str:
    order = {False: 0, None: 1, True: 2}
    rows = []
    for verdict in sorted(report["verdicts"], key=lambda each: order[each["valid"]]):
        counts = " · ".join(
            f"{count:,} {escape(name)}"
            for place, (name, count) in enumerate(verdict["counts"].items())
            if count or not place
        )
        kind, said = _KINDS[verdict["valid"]], word(verdict["valid"], verdict["counts"])
        if said == NOTHING_TO_JUDGE:
            kind = "idle"
        why = "" if verdict["valid"] else f"<p>{escape(verdict['explanation'])}</p>"
        rows.append(
            f'<li class="{kind}"><span class="badge">{said}</span><div>'
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
                f"{escape(finding['summary'])}</summary>"
                f'<p class="promised">Promised: {escape(verdict["promise"])}.</p>'
                f"{_history(finding['operations'], report)}</details>"
            )
    if not parts:
        return ""
    return (
        '<section class="wrong"><h2>What is wrong</h2><p>For each finding the operations that'
        " contradict the promise, as few as could be found, and when they happened; faults are"
        f" shaded.</p>{''.join(parts)}</section>"
    )


def _history(operations: Sequence[Mapping[str, Any]], report: Report) -> str:
    if not operations:
        return ""
    ends = [each["ended_s"] for each in operations if each["ended_s"] is not None]
    start = min(each["invoked_s"] for each in operations)
    end = max([*ends, *(each["invoked_s"] for each in operations)])
    span = max(end - start, 1e-9)
    # Some air on both sides, so that a moment at the edge can be seen.
    start, span = start - span * 0.02, span * 1.04
    meanwhile = [
        band for band in fault_bands(report) if band.end_s >= start and band.start_s <= start + span
    ]
    behind = charts.bands(
        [
            band._replace(
                start_s=max(0.0, band.start_s - start), end_s=min(span, band.end_s - start)
            )
            for band in meanwhile
        ],
        span,
    )
    names = "; ".join(dict.fromkeys(band.label for band in meanwhile))
    faults = f'<p class="promised">Meanwhile: {escape(names)}.</p>' if names else ""
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
            f"{charts.svg(behind + bar, 10, 'lane')}<code>{escape(each['value'])}</code></div>"
        )
    return f'{faults}<div class="ops">{"".join(rows)}</div>'


def _files(report: Report) -> str:
    """Links, those of one folder on a line."""
    folders: dict[str, list[str]] = {}
    for each in report["files"]:
        folder, _, name = each["path"].rpartition("/")
        about = f" <small>{escape(each['about'])}</small>" if each["about"] else ""
        link = f'<a href="{quote(each["path"])}">{escape(name)}</a>{about}'
        folders.setdefault(folder, []).append(link)
    items = [f"<li>{link}</li>" for link in folders.pop("", [])]
    items += [f"<li>{escape(name)}: {', '.join(links)}</li>" for name, links in folders.items()]
    if not items:
        return ""
    return f'<section><h2>To look closer</h2><ul class="files">{"".join(items)}</ul></section>'


def _details(report: Report) -> str:
    counts = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{each[kind]:,}</td>" for kind, _ in OUTCOMES)
        + "</tr>"
        for name, each in report["counts"].items()
    )
    facts: dict[str, object] = dict(report["versions"])
    facts |= {
        f"client {name}": f"{count:,} operations" for name, count in report["clients"].items()
    }
    facts |= {f"option {name}": _plain(value) for name, value in report["options"].items()}
    facts |= {f"clients that {what}": count for what, count in report["processes"].items()}
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


def _plain(value: object) -> str:
    """An option as words; of a long list its beginning."""
    if isinstance(value, Mapping):
        return _plain([f"{name}: {each}" for name, each in value.items()])
    if not isinstance(value, Iterable) or isinstance(value, str):
        return str(value)
    words = [str(each) for each in value]
    more = f", … {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return ", ".join(words[:_LISTED]) + more


def _how_to_read() -> str:
    parts = "".join(f"<h3>{title}</h3><p>{text}</p>" for title, text in _HOW_TO_READ)
    return f"<section><details><summary>How to read this</summary>{parts}</details></section>"
