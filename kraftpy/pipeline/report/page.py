"""report.html: one file with nothing outside of it, drawn from the report's JSON alone.

Rules: everything that comes from records or the definition is escaped; how sound the numbers are
(what couldn't be read, what came late) is on the page, and at its head if there is anything amiss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from kraftpy.page.html import Child, Html, join, shown, tag
from kraftpy.page.paper import document
from kraftpy.pipeline.report.drawing import bar_cell, key, plot, ranking, shown_text, text
from kraftpy.pipeline.report.style import STYLE
from kraftpy.wording import counted

Report = Mapping[str, Any]

_HOW_TO_READ: Final = (
    (
        "Where a record belongs",
        "By when it happened, which the record says, not by when it came. So a record that comes"
        " late changes what has been shown before; each report is made from all records anew.",
    ),
    (
        "Late",
        "A partition's records come one after the other. One is late if its partition had already"
        " brought a record that happened more than the allowance after it: a job that doesn't wait"
        " for longer than that would have lost it. It is in these numbers.",
    ),
    (
        "Not known",
        "A mean or a share is of those records that have the value. A dash says that there were"
        " none.",
    ),
)


def render(report: Report) -> str:
    """The page of a report (see `content`)."""
    body = join(
        (
            _head(report),
            *(_table(each) for each in report["tables"]),
            *(_sessions(each) for each in report["sessions"]),
            _soundness(report),
            _files(report),
            _how_to_read(),
        )
    )
    return document(shown_text(report["name"]), body, STYLE)


def _head(report: Report) -> Html:
    records = report["records"]
    facts = [
        tag(
            "div",
            tag("b", text(each["value"], each["kind"], each["unit"])),
            tag("span", each["label"]),
        )
        for each in report["figures"]
    ]
    unread = sum(each["records"] for each in records["problems"])
    warning = None
    if unread:
        share = f"{unread / records['read']:.2%}"
        warning = tag(
            "p",
            f"{counted(unread, 'record')} ({share}) couldn't be read and are in no number: ",
            tag("a", "see below", href="#sound"),
            class_="why",
        )
    return tag(
        "header",
        tag("p", "topic ", tag("b", shown(report["topic"]))),
        tag("h1", report["name"]),
        tag("p", report["about"], class_="story") if report["about"] else None,
        tag("p", _story(report)),
        warning,
        tag("div", *facts, class_="facts") if facts else None,
        class_="report",
    )


def _story(report: Report) -> Html:
    records, late, source = report["records"], report["late"], report["source"]
    parts: list[Child] = [f"{counted(records['used'], 'record')}"]
    if report["first"]:
        parts.append(f" from {report['first']} to {report['last']} ({report['zone']})")
    if late["late"]:
        parts.append(f", {late['late']:,} of them late")
    where = source.get("lake") or source.get("bootstrap")
    version = f", version {source['version']}" if "version" in source else ""
    parts += [", out of ", shown(str(where)), f"{version}. Made {report['made_at']}."]
    return join(parts)


def _section(one: Report, *parts: Child) -> Html:
    return tag(
        "section",
        tag("h2", one["name"]),
        tag("p", one["about"]) if one["about"] else None,
        *parts,
        id=one["slug"],
    )


def _table(one: Report) -> Html:
    if not one["rows"]:
        return _section(one, tag("p", "No record belongs here.", class_="note"))
    plots = [plot(each) for each in one["plots"]]
    lone = " lone" if len(plots) == 1 else ""
    newest = "The newest rows" if one["window"] else "The largest rows"
    return _section(
        one,
        tag("div", *plots, class_=f"plots{lone}") if plots else None,
        tag("p", *_extent(one), class_="note"),
        None if "ranked" in [each["shape"] for each in one["plots"]] else _rows_of(newest, one),
    )


def _extent(one: Report) -> list[Child]:
    parts: list[Child] = [counted(one["rows"], "row")]
    if one["window"]:
        parts.append(f" in {counted(one['windows'], 'window')} of {one['window']}")
        if one["late_windows"]:
            parts.append(f"; late records changed {one['late_windows']:,} of these")
    return [*parts, ". ", *_links(one["files"])]


def _links(files: Sequence[str]) -> list[Child]:
    found: list[Child] = []
    for path in files:
        found += [" · " if found else None, tag("a", _kind(path), href=quote(path))]
    return found


def _kind(path: str) -> str:
    name = path.rpartition(".")[2]
    return name.upper() if name != "parquet" else "Parquet"


def _rows_of(title: str, one: Report) -> Html:
    kinds = {each["name"]: each for each in one["measures"]}
    head, body = one["head"]["columns"], []
    for row in one["head"]["rows"]:
        cells: list[Child] = []
        for name, value in zip(head, row, strict=True):
            if name in kinds:
                cells.append(text(value, kinds[name]["kind"]))
            elif isinstance(value, int) and not isinstance(value, bool):
                cells.append(f"{value:,}" if name == "events" else str(value))
            else:
                cells.append(key(value if value is None else str(value)))
        body.append(cells)
    labels = [name.replace("_", " ") for name in head]
    return tag("details", tag("summary", title), ranking(labels, body))


def _sessions(one: Report) -> Html:
    whose = " and ".join(one["by"])
    if not one["rows"]:
        return _section(one, tag("p", "No record belongs here.", class_="note"))
    facts = [
        (f"{one['rows']:,}", "sessions"),
        (f"{one['keys']:,}", f"of {whose}"),
        (text(one["median_events"], "number"), "events, in the median"),
        (one["median_length"], "from first to last, in the median"),
    ]
    cells = [tag("div", tag("b", number), tag("span", words)) for number, words in facts]
    parts: list[Child] = [f"A session ends after {one['gap']} without an event. "]
    if one["late"]:
        parts.append(f"{one['late']:,} have a late event. ")
    if one["keyless"]:
        parts.append(f"{counted(one['keyless'], 'record')} without {whose} are in none. ")
    return _section(
        one,
        tag("div", *cells, class_="facts inner"),
        tag("div", *(plot(each) for each in one["plots"]), class_="plots"),
        tag("p", *parts, *_links(one["files"]), class_="note"),
        _rows_of("The longest sessions", one),
    )


def _soundness(report: Report) -> Html:
    records, late = report["records"], report["late"]
    parts: list[Child] = [tag("h2", "How sound these numbers are"), _read(records)]
    if records["problems"]:
        rows = [
            [
                each["problem"],
                f"{each['records']:,}",
                join(_example(one) for one in each["examples"]),
            ]
            for each in records["problems"]
        ]
        parts.append(ranking(["couldn't be read", "records", "for example"], rows))
    for each in records["mistyped"]:
        parts.append(
            tag(
                "p",
                f"{each['field']} isn't of type {each['type']} in "
                f"{counted(each['values'], 'record')}, and counts as not known there.",
            )
        )
    parts.append(_lateness(late, records["used"]))
    return tag("section", *parts, id="sound", class_="sound")


def _read(records: Report) -> Html:
    unread = sum(each["records"] for each in records["problems"])
    said = f"{counted(records['read'], 'record')} read, {records['used']:,} of them used"
    if records["left_out"]:
        said += f", {records['left_out']:,} left out by the report's `where`"
    return tag("p", said + (f", {unread:,} that couldn't be read." if unread else "."))


def _example(one: Report) -> Html:
    place = f"partition {one['partition']}, offset {one['offset']}"
    value = tag("code", shown(one["value"])) if one["value"] else None
    return tag("div", tag("small", place), " ", value, class_="example")


def _lateness(late: Report, used: int) -> Html:
    if not late["behind"]:
        return tag("p", "All records came in the order in which they happened.")
    said = (
        f"{counted(late['behind'], 'record')} ({late['behind'] / used:.1%}) came after a record of"
        f" their partition that happened later, by up to {late['most']}; {late['late']:,} by more"
        f" than the {late['allowance']} that this report allows for. All are in the numbers."
    )
    most = max(count for _, count in late["classes"])
    rows = [[label, bar_cell(f"{count:,}", count / most)] for label, count in late["classes"]]
    return join((tag("h3", "Late data"), tag("p", said), ranking(["behind by", "records"], rows)))


def _files(report: Report) -> Html:
    rows = [
        [each["name"], f"{each['rows']:,}", join(_links(each["files"]))]
        for each in (*report["tables"], *report["sessions"])
    ]
    rows.append(["This report", "", join(_links(["report.json"]))])
    return tag("section", tag("h2", "Files"), ranking(["table", "rows", ""], rows), class_="files")


def _how_to_read() -> Html:
    parts = [(tag("h3", title), tag("p", words)) for title, words in _HOW_TO_READ]
    details = tag(
        "details", tag("summary", "How to read this"), *(one for two in parts for one in two)
    )
    return tag("section", details)
