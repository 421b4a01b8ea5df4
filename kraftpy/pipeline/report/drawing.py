"""The plots of a report's page, from their numbers: lines, columns, calendars, matrices, rankings.

Rules: what stands in the records is escaped, by `page.html`; a plot that has no number says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kraftpy.page import charts
from kraftpy.page.html import Child, Html, cut, join, shown, tag
from kraftpy.wording import printable

LEVELS: Final = 7
"""How many shades a heat map has."""
_LABELLED_COLUMNS: Final = 40
_EACH_LABELLED: Final = 12
"""With more columns not every label is shown on a phone."""
_TICKS: Final = 5
_OUTLIERS: Final = 0.02
_NONE: Final = "(none)"
_BROAD: Final = ("calendar", "ranked")
"""Shapes that take a whole row of the page."""
_BROAD_FROM: Final = 60
"""And so do lines of so many points."""

Plot = Mapping[str, Any]


def plot(one: Plot) -> Html:
    """A figure."""
    drawn = _SHAPES[one["shape"]](one)
    note = tag("p", one["note"], class_="note") if one.get("note") else None
    broad = one["shape"] in _BROAD or len(one.get("axis", ())) >= _BROAD_FROM
    return tag("div", drawn, note, class_="broad" if broad else None)


def text(value: Any, kind: str, unit: str = "") -> str:
    """A number of a measure as a person reads it."""
    if value is None:
        return "-"
    if kind == "share":
        return f"{value:.1%}"
    if kind == "count" or (isinstance(value, int) and not isinstance(value, bool)):
        said = f"{value:,}"
    elif isinstance(value, float):
        said = f"{value:,.0f}" if abs(value) >= 100 or value.is_integer() else f"{value:,.1f}"
    else:
        said = str(value)
    return f"{said} {unit}" if unit else said


def key(name: str | None) -> Html:
    """A group's name, which anybody may have chosen."""
    return tag("span", _NONE, class_="none") if name is None else shown(name)


def ranking(head: Sequence[Child], rows: Iterable[Sequence[Child]]) -> Html:
    """A table that scrolls by itself if it is too wide."""
    heads = tag("tr", *(tag("th", each, scope="col") for each in head))
    body = [
        tag("tr", *(each if isinstance(each, Cell) else tag("td", each) for each in row))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", heads), tag("tbody", *body)), class_="wide")


class Cell(Html):
    """A whole `td`."""

    __slots__ = ()


def bar_cell(said: str, share: float) -> Cell:
    """A number with a bar behind it; `share` of the cell's width."""
    width = f"--w:{max(0.0, min(1.0, share)):.1%}"
    return Cell(tag("td", said, class_="bar", style=width))


# -- the shapes


def _scaled(one: Plot, values: Iterable[float | None]) -> list[float | None]:
    """Shares in percent."""
    times = 100 if one["kind"] == "share" else 1
    return [None if value is None else value * times for value in values]


def _unit(one: Plot) -> str:
    return "%" if one["kind"] == "share" else str(one["unit"])


def _scale(lines: Iterable[Sequence[float | None]]) -> charts.Scale:
    known = [value for line in lines for value in line if value is not None]
    return charts.linear(max(known, default=0), min(known, default=0))


def _lines(one: Plot) -> Html:
    lines = [_scaled(one, line["values"]) for line in one["lines"]]
    scale = _scale(lines)
    axis = charts.axis(spread(one["axis"]))
    if len(lines) == 1 and one["kind"] == "count":
        if len(one["axis"]) <= _EACH_LABELLED:
            axis = _each(one["axis"])
        drawn = charts.stack([("g0 bars", [value or 0 for value in lines[0]])], scale)
    else:
        # The first group is drawn last: on top.
        drawn = join(
            charts.line(line, scale, f"g{number}") for number, line in reversed([*enumerate(lines)])
        )
    legend = [
        (f"g{number}", _NONE if line["label"] is None else shown_text(line["label"]))
        for number, line in enumerate(one["lines"])
        if len(lines) > 1
    ]
    return _chart(one, scale, drawn, legend, axis)


def shown_text(name: str) -> str:
    """A group's name where it is escaped later."""
    return cut(printable(name)) or "(empty name)"


def _columns(one: Plot) -> Html:
    values = _scaled(one, one["values"])
    scale = _scale([values])
    drawn = charts.stack([("g0 bars", [value or 0 for value in values])], scale)
    labels = [_NONE if label is None else label for label in one["labels"]]
    axis = charts.axis(spread(labels)) if len(labels) > _LABELLED_COLUMNS else _each(labels)
    return _chart(one, scale, drawn, (), axis)


def _each(labels: Sequence[str]) -> Html:
    """An axis with a word under each column."""
    spans = [tag("span", shown_text(label)) for label in labels]
    return tag("div", *spans, class_="x cols many" if len(labels) > _EACH_LABELLED else "x cols")


def _chart(
    one: Plot, scale: charts.Scale, drawn: Html, legend: Sequence[tuple[str, str]], axis: Html
) -> Html:
    title, unit = shown_text(one["label"]), cut(printable(_unit(one)))
    return charts.chart(title, unit, scale, drawn, legend, axis)


def spread(labels: Sequence[str]) -> list[str]:
    """Some of the labels, the first and the last among them."""
    last = len(labels) - 1
    if last >= _TICKS:
        labels = [labels[round(last * part / (_TICKS - 1))] for part in range(_TICKS)]
    return [*map(shown_text, labels)]


class _Shades:
    """Numbers as levels: outliers don't take the shades from all others."""

    def __init__(self, one: Plot) -> None:
        self._one = one
        known = sorted(value for row in one["cells"] for value in row if value is not None)
        if not known:
            known = [0]
        cut_off = int(len(known) * _OUTLIERS)
        self.low = 0 if one["kind"] in ("count", "share") else known[cut_off]
        self.high = known[len(known) - 1 - cut_off]

    def level(self, value: float | None) -> int | None:
        if value is None or (not value and self._one["kind"] == "count"):
            return None
        span = self.high - self.low
        part = (value - self.low) / span if span > 0 else 1
        return max(0, min(LEVELS - 1, int(part * LEVELS)))

    def legend(self) -> Html:
        kind, unit = self._one["kind"], self._one["unit"]
        steps = [tag("i", class_=f"h{level}") for level in range(LEVELS)]
        said = (text(self.low, kind, unit), text(self.high, kind, unit))
        return tag(
            "div", tag("span", said[0]), *steps, tag("span", f"{said[1]} and more"), class_="shades"
        )


def _caption(one: Plot) -> Html:
    return tag("figcaption", one["label"], " ", tag("small", _unit(one)))


def _calendar(one: Plot) -> Html:
    shades = _Shades(one)
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(one["cells"]):
        x = 0
        while x < len(row):
            level, start = shades.level(row[x]), x
            while x < len(row) and shades.level(row[x]) == level:
                x += 1
            if level is not None:
                paths.setdefault(level, []).append(f"M{start} {y}h{x - start}v1H{start}z")
    drawn = "".join(
        f'<path class="h{level}" d="{"".join(found)}"/>' for level, found in sorted(paths.items())
    )
    size = f"0 0 {len(one['columns'])} {len(one['cells'])}"
    svg = Html(
        f'<svg class="heat" viewBox="{size}" preserveAspectRatio="none" aria-hidden="true">'
        f"{drawn}</svg>"
    )
    labels = [tag("span", label) for label in one["rows"]]
    return tag(
        "figure",
        _caption(one),
        tag("div", tag("div", *labels, class_="down"), svg, class_="plot tall"),
        charts.axis(spread(one["columns"])),
        shades.legend(),
    )


def _matrix(one: Plot) -> Html:
    rows, columns, cells = one["rows"], one["columns"], one["cells"]
    if len(columns) > len(rows):
        rows, columns = columns, rows
        cells = [list(column) for column in zip(*cells, strict=True)]
    shades = _Shades(one)

    def cell(value: float | None) -> Cell:
        level = shades.level(value)
        kind = None if level is None else f"cell h{level}"
        return Cell(tag("td", "" if value is None else text(value, one["kind"]), class_=kind))

    body = [
        [key(name), *(cell(value) for value in row)] for name, row in zip(rows, cells, strict=True)
    ]
    return tag("figure", _caption(one), ranking(["", *map(key, columns)], body))


def _ranked(one: Plot) -> Html:
    measures = one["measures"]
    highest = [max((value or 0 for value in each["values"]), default=0) for each in measures]
    head = [
        one["by"],
        *(join((each["label"], tag("small", _unit(each))), " ") for each in measures),
    ]
    rows: list[list[Child]] = []
    for number, name in enumerate(one["labels"]):
        row: list[Child] = [key(name)]
        for each, most in zip(measures, highest, strict=True):
            value = each["values"][number]
            row.append(bar_cell(text(value, each["kind"]), (value or 0) / most if most > 0 else 0))
        rows.append(row)
    return tag("figure", ranking(head, rows))


_SHAPES: Final = {
    "lines": _lines,
    "columns": _columns,
    "calendar": _calendar,
    "matrix": _matrix,
    "ranked": _ranked,
}
