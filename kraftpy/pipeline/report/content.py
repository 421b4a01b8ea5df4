"""What a report says, as JSON: the facts, the beginnings of the tables, and the plots' numbers.

`report.json` is this, and the page is drawn from it alone.

Rules:

* A number that isn't known is null, and so is one that JSON can't say (infinity).
* Times are shown in the report's zone; tables on the disk have them in UTC.
* What isn't drawn because there is too much of it is said (`note`), and is in the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from kraftpy.pipeline.report.definition import (
    Definition,
    Named,
    Sessions,
    Table,
    Window,
    slug,
)
from kraftpy.pipeline.report.engine import LATENESS_MS, Made, Numbers

FORMAT: Final = 1
HEAD_ROWS: Final = 12
RANKED: Final = 20
_LINES: Final = 6
_POINTS: Final = 1500
_CALENDAR_FROM: Final = 240
"""From so many windows on, those within days are drawn as a calendar."""
_CALENDAR_SPAN_MS: Final = 900_000
"""Unless they are shorter than this: a day would have more than 96 rows."""
_CALENDAR_DAYS: Final = 400
_HEAT_COLUMNS: Final = 31
_OWN: Final = "#"
_LENGTH: Final = "session length"
"""Columns of ours: the names of fields and measures have no such characters."""
_CLASSES: Final = 20

Json = dict[str, Any]


def content(
    definition: Definition,
    numbers: Numbers,
    source: Mapping[str, Any],
    files: Mapping[str, Sequence[str]],
    made_at: datetime,
) -> Json:
    """The report; `files` are the paths of each table's, by its slug."""
    writer = _Writer(definition)
    quality, lateness = numbers.quality, numbers.lateness
    return {
        "format": FORMAT,
        "name": definition.name,
        "about": definition.about,
        "topic": definition.topic,
        "zone": definition.zone.key,
        "made_at": f"{made_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        "source": dict(source),
        "first": writer.moment(numbers.first_ms),
        "last": writer.moment(numbers.last_ms),
        "records": {
            "read": quality.read,
            "used": quality.used,
            "left_out": quality.left_out,
            "problems": [
                {
                    "problem": problem,
                    "records": count,
                    "examples": [
                        {"partition": partition, "offset": offset, "value": value}
                        for reason, partition, offset, value in quality.examples
                        if reason == problem
                    ],
                }
                for problem, count in quality.problems.items()
            ],
            "mistyped": [
                {"field": each.name, "type": each.type, "values": quality.mistyped[each.name]}
                for each in definition.fields
                if each.name in quality.mistyped
            ],
        },
        "late": {
            "allowance": length(definition.late_ms),
            "behind": lateness.behind,
            "late": lateness.late,
            "most": length(lateness.most_ms),
            "classes": [
                [label, count]
                for label, count in zip(lateness_labels(), lateness.classes, strict=True)
            ],
        },
        "figures": [
            {**_described(each), "value": plain(value)}
            for each, value in zip(definition.figures, numbers.figures, strict=True)
        ],
        "tables": [
            {**writer.table(table, made), "files": list(files[slug(table.name)])}
            for table, made in zip(definition.tables, numbers.tables, strict=True)
        ],
        "sessions": [
            {**writer.sessions(sessions, made), "files": list(files[slug(sessions.name)])}
            for sessions, made in zip(definition.sessions, numbers.sessions, strict=True)
        ],
    }


def plain(value: Any) -> Any:
    """A number or a text as JSON has it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def length(span_ms: float) -> str:
    """A length of time as a person says it."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if span_ms >= unit:
            return f"{span_ms / unit:.3g} {name}"
    return f"{span_ms:.0f} ms" if span_ms else "0"


def lateness_labels() -> list[str]:
    """What the classes of lateness are called."""
    names = [length(limit) for limit in LATENESS_MS]
    between = [f"{low} to {high}" for low, high in pairwise(names)]
    return [f"up to {names[0]}", *between, f"more than {names[-1]}"]


def _described(each: Named) -> Json:
    kind = {"count": "count", "distinct": "count", "share": "share"}.get(
        each.measure.function, "number"
    )
    return {
        "name": each.name,
        "label": each.name.replace("_", " "),
        "unit": each.unit,
        "kind": kind,
    }


class _Writer:
    def __init__(self, definition: Definition) -> None:
        self._zone: ZoneInfo = definition.zone

    # -- times

    def _at(self, time_ms: int) -> datetime:
        """What a clock in the zone shows then."""
        at = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(self._zone)
        return at.replace(tzinfo=None)

    def moment(self, time_ms: int | None) -> str | None:
        # Not strftime, whose years below 1000 have fewer digits.
        return None if time_ms is None else self._at(time_ms).isoformat(" ", "minutes")

    def _label(self, time_ms: int, window: Window) -> str:
        at = self._at(time_ms)
        if window.unit == "month":
            return at.date().isoformat()[:7]
        if window.unit != "fixed":
            return at.date().isoformat()
        return at.isoformat(" ", "seconds" if window.span_ms % 60_000 else "minutes")

    def _windows(self, starts: Sequence[int], window: Window) -> list[int]:
        """The starts of all windows from the first to the last, also of those without a record."""
        found = [starts[0]]
        while found[-1] < starts[-1]:
            found.append(self._after(found[-1], window))
            if len(found) > _POINTS:
                return list(starts)
        return found

    def _after(self, start_ms: int, window: Window) -> int:
        if window.unit == "fixed":
            return start_ms + window.span_ms
        # Where summer time begins at midnight, that day begins at one o'clock.
        day = self._at(start_ms).date()
        if window.unit == "month":
            then = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        else:
            then = day + timedelta(days=7 if window.unit == "week" else 1)
        return round(datetime.combine(then, time(), self._zone).timestamp() * 1000)

    # -- tables

    def table(self, table: Table, made: Made) -> Json:
        rows = made.rows
        measures = [_described(each) for each in table.measures]
        whole = made.whole if made.whole is not None else rows
        late_rows = _total(pc.greater(whole["late"], 0).cast(pa.int64()))
        return {
            "name": table.name,
            "about": table.about,
            "slug": slug(table.name),
            "window": table.window.text if table.window else None,
            "by": list(table.by),
            "measures": measures,
            "rows": rows.num_rows,
            "windows": whole.num_rows if table.window else None,
            "late_windows": late_rows if table.window else None,
            "plots": list(self._plots(table, made)) if rows.num_rows else [],
            "head": self._head(table, rows),
        }

    def _head(self, table: Table, rows: pa.Table) -> Json:
        """The newest rows, or the largest by the first measure."""
        order = [("start", "descending")] if table.window else []
        order.append((table.measures[0].name, "descending"))
        some = rows.sort_by(order).slice(0, HEAD_ROWS)
        columns = [name for name in rows.schema.names if name != "late"]
        body = []
        for row in some.to_pylist():
            cells = [plain(row[name]) for name in columns]
            if table.window:
                cells[0] = self._label(row["start"], table.window)
            body.append(cells)
        return {"columns": columns, "rows": body}

    def _plots(self, table: Table, made: Made) -> Iterator[Json]:
        if table.window is not None:
            yield from self._over_time(table, table.window, made)
        elif len(table.by) == 1:
            yield from _by_one(table, made.rows)
        elif len(table.by) == 2:
            for one in _drawn(table):
                yield _matrix(table, made.rows, one)

    def _over_time(self, table: Table, window: Window, made: Made) -> Iterator[Json]:
        whole = made.whole if made.whole is not None else made.rows
        is_long = window.unit == "fixed" and window.span_ms >= _CALENDAR_SPAN_MS
        if is_long and whole.num_rows >= _CALENDAR_FROM:
            for one in _drawn(table):
                yield self._calendar(whole, window, one)
            return
        newest = whole.slice(max(0, whole.num_rows - _POINTS))
        starts = self._windows(newest["start"].to_pylist(), window)
        hidden = whole.num_rows - newest.num_rows
        note = f"the newest {newest.num_rows:,} of {whole.num_rows:,} windows" if hidden else ""
        labels = [self._label(start, window) for start in starts]
        for one in _drawn(table):
            lines = []
            for label, rows in _groups(table, made.rows, whole):
                values = dict(zip(rows["start"].to_pylist(), _column(rows, one), strict=True))
                absent = 0 if one.measure.function == "count" else None
                lines.append(
                    {"label": label, "values": [values.get(start, absent) for start in starts]}
                )
            yield {
                "shape": "lines",
                **_described(one),
                "axis": labels,
                "lines": lines,
                "note": note,
            }

    def _calendar(self, rows: pa.Table, window: Window, one: Named) -> Json:
        """A column for each day, a row for each window of a day."""
        span = timedelta(milliseconds=window.span_ms)
        cells: dict[tuple[str, int], Any] = {}
        for start, value in zip(rows["start"].to_pylist(), _column(rows, one), strict=True):
            at = self._at(start)
            since_midnight = at - datetime.combine(at, time())
            place = at.date().isoformat(), since_midnight // span
            if place in cells and one.measure.function == "count":
                cells[place] += value  # the hour that the end of summer time repeats
            else:
                cells.setdefault(place, value)
        found = sorted({day for day, _ in cells})
        days = _days(found[0], found[-1])[-_CALENDAR_DAYS:]
        per_day = timedelta(days=1) // span
        absent = 0 if one.measure.function == "count" else None
        drawn = [[cells.get((day, n), absent) for day in days] for n in range(per_day)]
        note = f"the newest {len(days)} days" if len(found) > len(days) else ""
        return {
            "shape": "calendar",
            **_described(one),
            "columns": days,
            "rows": [f"{hour:02d}:00" for hour in (0, 6, 12, 18, 24)],
            "cells": drawn,
            "note": note,
        }

    # -- sessions

    def sessions(self, sessions: Sessions, made: Made) -> Json:
        rows = made.rows
        lengths = pc.subtract(rows["end"], rows["start"])
        groups = rows.select(sessions.by).append_column(_OWN, rows["events"])
        keys = groups.group_by(list(sessions.by)).aggregate([(_OWN, "count")])
        longest = rows.append_column(_LENGTH, lengths).sort_by([(_LENGTH, "descending")])
        measures = [_described(each) for each in sessions.measures]
        return {
            "name": sessions.name,
            "about": sessions.about,
            "slug": slug(sessions.name),
            "gap": length(sessions.gap_ms),
            "by": list(sessions.by),
            "measures": measures,
            "rows": rows.num_rows,
            "keys": keys.num_rows,
            "keyless": made.keyless,
            "late": _total(pc.greater(rows["late"], 0).cast(pa.int64())),
            "median_events": _quantile(rows["events"], 0.5),
            "median_length": length(_quantile(lengths, 0.5) or 0),
            "plots": [
                _counts("events in a session", rows["events"]),
                _lengths("length of a session", lengths),
                _counts(f"sessions of one {' and '.join(sessions.by)}", keys[f"{_OWN}_count"]),
            ]
            if rows.num_rows
            else [],
            "head": self._longest(sessions, longest),
        }

    def _longest(self, sessions: Sessions, rows: pa.Table) -> Json:
        columns = [*sessions.by, "start", _LENGTH, "events"]
        columns += [each.name for each in sessions.measures]
        body = []
        for row in rows.slice(0, HEAD_ROWS).to_pylist():
            shown = {"start": self.moment(row["start"]), _LENGTH: length(row[_LENGTH])}
            body.append([plain({**row, **shown}[name]) for name in columns])
        return {"columns": columns, "rows": body}


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _days(first: str, last: str) -> list[str]:
    day, end = date.fromisoformat(first), date.fromisoformat(last)
    count = (end - day).days + 1
    return [(day + timedelta(days=n)).isoformat() for n in range(count)]


def _drawn(table: Table) -> list[Named]:
    return [each for name in table.plot for each in table.measures if each.name == name]


def _column(rows: pa.Table, one: Named) -> list[Any]:
    return [plain(value) for value in rows[one.name].to_pylist()]


def _total(column: Any) -> int:
    return pc.sum(column).as_py() or 0


def _groups(table: Table, rows: pa.Table, whole: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
    """The groups that get a line: those with most of the first measure, or all together."""
    if len(table.by) != 1:
        yield None, whole
        return
    key, first = table.by[0], table.measures[0].name
    largest = _summed(rows, key, first).sort_by([(_OWN, "descending")]).slice(0, _LINES)
    for value in largest[key].to_pylist():
        mask = pc.is_null(rows[key]) if value is None else pc.equal(rows[key], value)
        yield _key(value), rows.filter(mask)


def _summed(rows: pa.Table, key: str, measure: str) -> pa.Table:
    """The key's values with the sum of a measure, which is called _OWN."""
    sums = pa.table({key: rows[key], _OWN: rows[measure]}).group_by(key).aggregate([(_OWN, "sum")])
    return sums.rename_columns([key, _OWN])


def _key(value: Any) -> str | None:
    """A group's name; None stands for records that have none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else str(value)


def _is_ordered(rows: pa.Table, key: str) -> bool:
    kind = rows.schema.field(key).type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _by_one(table: Table, rows: pa.Table) -> Iterator[Json]:
    key = table.by[0]
    if _is_ordered(rows, key) and rows.num_rows <= _POINTS:
        named = rows.filter(pc.is_valid(rows[key]))
        for one in _drawn(table):
            labels = [_key(value) for value in named[key].to_pylist()]
            values = _column(named, one)
            yield {"shape": "columns", **_described(one), "labels": labels, "values": values}
        return
    order = [(table.measures[0].name, "descending"), (key, "ascending")]
    largest = rows.sort_by(order).slice(0, RANKED)
    left = rows.num_rows - largest.num_rows
    yield {
        "shape": "ranked",
        "by": key,
        "labels": [_key(value) for value in largest[key].to_pylist()],
        "measures": [
            {**_described(one), "values": _column(largest, one)} for one in table.measures
        ],
        "note": f"{left:,} more are in the files" if left else "",
    }


def _matrix(table: Table, rows: pa.Table, one: Named) -> Json:
    """The first field down, the second across."""
    down, across = table.by
    rows_max = _HEAT_COLUMNS if _is_ordered(rows, down) else RANKED
    labels = [
        _largest(rows, down, table.measures[0].name, rows_max),
        _largest(rows, across, table.measures[0].name, _HEAT_COLUMNS),
    ]
    cells = {(_key(row[down]), _key(row[across])): plain(row[one.name]) for row in rows.to_pylist()}
    left = len({place[0] for place in cells}) + len({place[1] for place in cells})
    left -= len(labels[0]) + len(labels[1])
    return {
        "shape": "matrix",
        **_described(one),
        "down": down,
        "across": across,
        "rows": labels[0],
        "columns": labels[1],
        "cells": [[cells.get((row, column)) for column in labels[1]] for row in labels[0]],
        "note": f"{left:,} more are in the files" if left else "",
    }


def _largest(rows: pa.Table, key: str, measure: str, most: int) -> list[str | None]:
    """The groups of one field, in their own order if it is of numbers, else the largest first."""
    order = [(_OWN, "descending"), (key, "ascending")]
    largest = _summed(rows, key, measure).sort_by(order).slice(0, most)
    if _is_ordered(rows, key):
        largest = largest.sort_by(key)
    return [_key(value) for value in largest[key].to_pylist()]


def _quantile(column: Any, quantile: float) -> float | None:
    found: float | None = pc.quantile(column, quantile)[0].as_py()
    return found


def _histogram(label: str, unit: str, classes: list[tuple[str, int]]) -> Json:
    return {
        "shape": "columns",
        "label": label,
        "unit": unit,
        "kind": "count",
        "labels": [name for name, _ in classes],
        "values": [count for _, count in classes],
    }


def _counts(label: str, column: Any) -> Json:
    """How often each number is there: by ones, or by classes of one width if there are many."""
    top = int(_quantile(column, 0.99) or 1)
    width = _round_width(top / _CLASSES)
    lows = list(range(1 if width == 1 else 0, top + 1, width))
    unit = "" if width == 1 else f"in classes of {width}"
    return _histogram(label, unit, _classed(column, lows, width, 1))


def _lengths(label: str, column: Any) -> Json:
    """How often lengths of time are there, by classes that a clock has."""
    top = _quantile(column, 0.99) or 0
    widths = [(unit * n, name, unit) for unit, name, numbers in _CLOCK_MS for n in numbers]
    width, name, unit = next((each for each in widths if top / each[0] <= _CLASSES), widths[-1])
    lows = list(range(0, int(min(top, width * _CLASSES)) + 1, width))
    said = name if width == unit else f"{name}, in classes of {width // unit}"
    return _histogram(label, said, _classed(column, lows, width, unit))


_CLOCK_MS: Final = (
    (1000, "seconds", (1, 2, 5, 10, 30)),
    (60_000, "minutes", (1, 2, 5, 10, 15, 30)),
    (3_600_000, "hours", (1, 2, 3, 6, 12)),
    (86_400_000, "days", (1, 2, 7, 14, 30, 90, 365)),
)


def _classed(column: Any, lows: Sequence[int], width: int, unit: int) -> list[tuple[str, int]]:
    """How many are in each class, called by where it begins, and how many are beyond the last."""
    found = []
    for low in lows:
        inside = pc.and_(pc.greater_equal(column, low), pc.less(column, low + width))
        found.append((str(low // unit), _total(inside.cast(pa.int64()))))
    beyond = lows[-1] + width
    if more := _total(pc.greater_equal(column, beyond).cast(pa.int64())):
        found.append((f"{beyond // unit}+", more))
    return found


def _round_width(width: float) -> int:
    if width <= 1:
        return 1
    step = 10 ** math.floor(math.log10(width))
    return int(next(step * times for times in (1, 2, 5, 10) if step * times >= width))
