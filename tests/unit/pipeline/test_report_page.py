"""A report's page, from its JSON: everything that somebody may have chosen is escaped."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from kraftpy.pipeline.report.drawing import text
from kraftpy.pipeline.report.page import render

HOSTILE = "</style><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x00&amp;"
_MEASURE = {"name": HOSTILE, "label": HOSTILE, "unit": HOSTILE, "kind": "number"}
_SHARE = {**_MEASURE, "kind": "share"}
_COUNT = {**_MEASURE, "kind": "count"}
PLOTS: list[dict[str, Any]] = [
    {
        "shape": "lines",
        **_MEASURE,
        "axis": [HOSTILE] * 7,
        "lines": [
            {"label": HOSTILE, "values": [1, None, -3.5, 2, None, None, 9]},
            {"label": None, "values": [None] * 7},
        ],
        "note": HOSTILE,
    },
    {"shape": "columns", **_SHARE, "labels": [HOSTILE, None], "values": [0.5, None]},
    {
        "shape": "calendar",
        **_COUNT,
        "columns": [HOSTILE] * 3,
        "rows": [HOSTILE] * 2,
        "cells": [[1, 0, 3], [None, 5, 5]],
        "note": "",
    },
    {
        "shape": "matrix",
        **_MEASURE,
        "down": HOSTILE,
        "across": HOSTILE,
        "rows": [HOSTILE, None],
        "columns": [HOSTILE, None, "3"],
        "cells": [[1.5, None, -2], [None, None, 7]],
        "note": HOSTILE,
    },
    {
        "shape": "ranked",
        "by": HOSTILE,
        "labels": [HOSTILE, None],
        "measures": [{**_COUNT, "values": [7, 0]}, {**_SHARE, "values": [None, 0.25]}],
        "note": HOSTILE,
    },
]
TABLE: dict[str, Any] = {
    "name": HOSTILE,
    "about": HOSTILE,
    "slug": "table",
    "window": "1h",
    "by": [HOSTILE],
    "measures": [_MEASURE],
    "rows": 2,
    "windows": 2,
    "late_windows": 1,
    "plots": PLOTS[:4],
    "head": {
        "columns": ["start", HOSTILE, HOSTILE],
        "rows": [["2026-03-01", HOSTILE, 1.5], ["2026-03-02", None, None]],
    },
    "files": ["tables/a.csv", "tables/a.parquet"],
}
SESSIONS: dict[str, Any] = {
    "name": HOSTILE,
    "about": HOSTILE,
    "slug": "sessions",
    "gap": "1 h",
    "by": [HOSTILE],
    "measures": [_MEASURE],
    "rows": 3,
    "keys": 2,
    "keyless": 1,
    "late": 1,
    "median_events": 1.5,
    "median_length": "5 min",
    "plots": [PLOTS[1]],
    "head": {"columns": [HOSTILE, "events"], "rows": [[HOSTILE, 1200]]},
    "files": ["tables/b.csv"],
}
REPORT: dict[str, Any] = {
    "name": HOSTILE,
    "about": HOSTILE,
    "topic": HOSTILE,
    "zone": HOSTILE,
    "made_at": "2026-03-01 12:00 UTC",
    "source": {"lake": HOSTILE, "version": 3},
    "first": "2026-03-01 00:00",
    "last": "2026-03-02 00:00",
    "records": {
        "read": 10,
        "used": 6,
        "left_out": 1,
        "problems": [
            {
                "problem": HOSTILE,
                "records": 3,
                "examples": [{"partition": 0, "offset": 7, "value": HOSTILE}],
            }
        ],
        "mistyped": [{"field": HOSTILE, "type": "number", "values": 2}],
    },
    "late": {
        "allowance": "1 h",
        "behind": 2,
        "late": 1,
        "most": "2 h",
        "classes": [["up to 1 min", 1], ["more than 1 d", 1]],
    },
    "figures": [{**_COUNT, "value": 6}, {**_SHARE, "value": None}],
    "tables": [TABLE, {**TABLE, "slug": "ranked", "window": None, "plots": [PLOTS[4]]}],
    "sessions": [SESSIONS],
}


class _Elements(HTMLParser):
    """The names of all elements, and of attributes that run something or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: set[str] = set()
        self.events: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.links |= {str(value) for name, value in attrs if name in ("href", "src")}
        self.events |= {name for name, _ in attrs if name.startswith("on")}


def test_what_others_have_chosen_is_shown_and_does_nothing() -> None:
    page = render(REPORT)
    found = _Elements()
    found.feed(page)
    assert not found.names & {"script", "img", "iframe", "object", "link", "form"}
    assert not found.events
    links = {"#sound", "report.json", "tables/a.csv", "tables/a.parquet", "tables/b.csv"}
    assert found.links == links, "nothing is loaded from elsewhere"
    assert page.count("</style>") == 1
    assert "\u202e" not in page
    assert "\x00" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in page


def test_what_is_amiss_is_said_at_the_head_and_shown() -> None:
    page = render(REPORT)
    head, _, rest = page.partition("</header>")
    assert "3 records (30.00%) couldn&#x27;t be read" in head
    assert "partition 0, offset 7" in rest
    assert "1 record without" in rest
    sound = {**REPORT, "records": {**REPORT["records"], "problems": [], "mistyped": []}}
    assert "couldn&#x27;t be read" not in render(sound).partition("</header>")[0]


def test_a_report_of_nothing_has_a_page() -> None:
    nothing = {**TABLE, "rows": 0, "windows": 0, "late_windows": 0, "plots": []}
    late = {**REPORT["late"], "behind": 0, "late": 0, "classes": []}
    records = {"read": 0, "used": 0, "left_out": 0, "problems": [], "mistyped": []}
    figures = [{**_MEASURE, "value": None}]
    page = render(
        {
            **REPORT,
            "records": records,
            "late": late,
            "figures": figures,
            "first": None,
            "last": None,
            "tables": [nothing],
            "sessions": [{**SESSIONS, "rows": 0, "plots": []}],
        }
    )
    assert page.count("No record belongs here.") == 2
    assert "All records came in the order in which they happened." in page


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (None, "share", "-"),
        (0.125, "share", "12.5%"),
        (1234567, "count", "1,234,567"),
        (1234.5, "number", "1,234"),
        (12.345, "number", "12.3"),
        (-3.0, "number", "-3"),
        (7, "number", "7"),
    ],
)
def test_numbers_as_people_read_them(value: float | None, kind: str, said: str) -> None:
    assert text(value, kind) == said
