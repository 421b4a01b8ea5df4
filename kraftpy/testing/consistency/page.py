"""report.html: one file with nothing outside of it, for a wide screen, a phone and a printer.

Rules:

* What it says comes from the report's JSON alone, so an old report can be drawn again.
* Everything in it is escaped: values and errors come from whatever was tested.
* What went wrong comes first; where nothing did, what was promised does. Links go to files in the
  report's own folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from kraftpy.page import charts
from kraftpy.page.html import NOTHING, Html, join, tag
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
    first = bool(findings or _not_healed(report))
    body = join(
        (
            _head(report),
            findings,
            files if first else NOTHING,
            _verdicts(report),
            what_happened(report),
            over_time(report),
            faults_felt(report),
            NOTHING if first else files,
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


def _head(report: Report) -> Html:
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
    subtitle = [
        join(["workload ", tag("b", report["workload"])]),
        join(["seed ", tag("b", report["seed"])]),
    ]
    if report["started_at"]:
        subtitle.append(report["started_at"])
    why = _not_healed(report)
    return tag(
        "header",
        tag("p", "kraftpy consistency"),
        tag("h1", headline(report)),
        tag("p", join(subtitle, " · "), class_="sub"),
        tag("p", story(report), class_="story"),
        tag("p", why, class_="why") if why else None,
        tag(
            "div",
            *(tag("div", tag("b", number), tag("span", word)) for number, word in facts),
            class_="facts",
        ),
        class_=kind,
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


def _verdicts(report: Report) -> Html:
    order = {False: 0, None: 1, True: 2}
    rows = []
    for verdict in sorted(report["verdicts"], key=lambda each: order[each["valid"]]):
        counts = " · ".join(
            f"{count:,} {name}"
            for place, (name, count) in enumerate(verdict["counts"].items())
            if count or not place
        )
        said = word(verdict["valid"], verdict["counts"])
        rows.append(
            tag(
                "li",
                tag("span", said, class_="badge"),
                tag(
                    "div",
                    tag("h3", verdict["checker"]),
                    tag("p", verdict["promise"]),
                    None if verdict["valid"] else tag("p", verdict["explanation"]),
                    tag("small", counts),
                ),
                class_="idle" if said == NOTHING_TO_JUDGE else _KINDS[verdict["valid"]],
            )
        )
    return tag("section", tag("h2", "Promises"), tag("ul", *rows, class_="verdicts"))


def _findings(report: Report) -> Html:
    parts = [
        tag(
            "details",
            tag("summary", tag("b", verdict["checker"]), " ", finding["summary"]),
            tag("p", f"Promised: {verdict['promise']}.", class_="promised"),
            _history(finding["operations"], report),
            open=None if index else "",
        )
        for verdict in report["verdicts"]
        for index, finding in enumerate(verdict["findings"])
    ]
    if not parts:
        return NOTHING
    return tag(
        "section",
        tag("h2", "What is wrong"),
        tag(
            "p",
            "For each finding the operations that contradict the promise, as few as could be found,"
            " and when they happened; faults are shaded.",
        ),
        *parts,
        class_="wrong",
    )


def _history(operations: Sequence[Mapping[str, Any]], report: Report) -> Html:
    if not operations:
        return NOTHING
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
    rows = [_operation(each, behind, start, span) for each in operations]
    return join(
        [
            tag("p", f"Meanwhile: {names}.", class_="promised") if names else NOTHING,
            tag("div", *rows, class_="ops"),
        ]
    )


def _operation(each: Mapping[str, Any], behind: Html, start: float, span: float) -> Html:
    left = charts.WIDTH * (each["invoked_s"] - start) / span
    right = float(charts.WIDTH)
    if each["ended_s"] is not None:
        right = charts.WIDTH * (each["ended_s"] - start) / span
    width = max(6.0, right - left)
    left = min(left, charts.WIDTH - width)
    bar = tag(
        "rect",
        class_=f"fill {each['outcome']}",
        x=f"{left:.1f}",
        y="2",
        width=f"{width:.1f}",
        height="6",
    )
    said = " ".join(part for part in (each["client"], each["node"], each["error"]) if part)
    ended = "no answer" if each["ended_s"] is None else f"{each['ended_s']:.4f} s"
    about = f"line {each['line']} · process {each['process']} · {each['invoked_s']:.4f} s to"
    return tag(
        "div",
        tag(
            "div",
            tag("b", each["f"]),
            " ",
            tag("span", each["outcome"], class_=each["outcome"]),
            " ",
            tag("small", f"{about} {ended} {said}"),
        ),
        charts.svg(join([behind, bar]), 10, "lane"),
        tag("code", each["value"]),
        class_="op",
    )


def _files(report: Report) -> Html:
    """Links, those of one folder on a line."""
    folders: dict[str, list[Html]] = {}
    for each in report["files"]:
        folder, _, name = each["path"].rpartition("/")
        link = tag("a", name, href=quote(each["path"]))
        about = [" ", tag("small", each["about"])] if each["about"] else []
        folders.setdefault(folder, []).append(join([link, *about]))
    items = [tag("li", link) for link in folders.pop("", [])]
    items += [tag("li", f"{name}: ", join(links, ", ")) for name, links in folders.items()]
    if not items:
        return NOTHING
    return tag("section", tag("h2", "To look closer"), tag("ul", *items, class_="files"))


def _details(report: Report) -> Html:
    counts = [
        tag("tr", tag("td", name), *(tag("td", f"{each[kind]:,}") for kind, _ in OUTCOMES))
        for name, each in report["counts"].items()
    ]
    facts: dict[str, object] = dict(report["versions"])
    facts |= {
        f"client {name}": f"{count:,} operations" for name, count in report["clients"].items()
    }
    facts |= {f"option {name}": _plain(value) for name, value in report["options"].items()}
    facts |= {f"clients that {what}": count for what, count in report["processes"].items()}
    facts["history"] = report["history"]
    if report["torn_lines"]:
        facts["lines cut off by kills"] = report["torn_lines"]
    heads = tag("tr", *(tag("th", text) for text in ("", "ok", "unknown", "failed")))
    about = [tag("tr", tag("td", name), tag("td", value)) for name, value in facts.items()]
    again = [tag("h3", "Run it again"), tag("pre", report["again"])] if report["again"] else []
    return tag(
        "section",
        tag("h2", "Details"),
        tag(
            "div",
            tag("div", tag("h3", "Operations"), tag("table", heads, *counts)),
            tag("div", tag("h3", "Made with"), tag("table", *about)),
            class_="plots",
        ),
        *again,
        tag("h3", "Check it again"),
        tag("pre", f"kraftpy consistency check {report['history']}"),
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


def _how_to_read() -> Html:
    parts = [part for title, text in _HOW_TO_READ for part in (tag("h3", title), tag("p", text))]
    return tag("section", tag("details", tag("summary", "How to read this"), *parts))
