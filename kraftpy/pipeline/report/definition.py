"""What a report is to show: a TOML file, read and checked before anything else is done.

Rules:

* Whatever isn't known or doesn't fit is an error that names its place in the file and says what can
  be written there. Nothing is guessed or left out silently.
* What a definition may hold has limits: somebody else may have written it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kraftpy.pipeline.report.expressions import (
    TIME,
    Expression,
    ExpressionError,
    Measure,
    Type,
    parse_condition,
    parse_expression,
    parse_measure,
)

FILE_MAX_BYTES: Final = 256 << 10
_FIELDS_MAX: Final = 64
_TABLES_MAX: Final = 32
_MEASURES_MAX: Final = 32
_TEXT_MAX: Final = 2000
_NAME_MAX: Final = 80

FieldType: TypeAlias = Literal["text", "integer", "number", "boolean"]
Source: TypeAlias = Literal["value", "key", "timestamp", "partition", "offset"]
Unit: TypeAlias = Literal["fixed", "day", "week", "month"]
JsonPath: TypeAlias = tuple[str | int, ...]

_FIELD_TYPES: Final[tuple[FieldType, ...]] = ("text", "integer", "number", "boolean")
_TYPE_OF: Final[Mapping[FieldType, Type]] = {
    "text": "text",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
}
_SOURCES: Final[tuple[Source, ...]] = ("value", "key", "timestamp", "partition", "offset")
_TIME_FORMATS: Final = ("iso", "s", "ms", "us", "ns")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_STEP: Final = re.compile(r"\.?([^.\[\]'\"]+)|\[(\d{1,9})\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
_DURATION: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_SPANS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_A_TIME: Final = datetime(2026, 11, 30, 13, 45, 59, 123_456, tzinfo=UTC)
_CALENDAR: Final[Mapping[str, Unit]] = {"1d": "day", "1w": "week", "1mo": "month"}
_RESERVED: Final = frozenset({TIME, "start", "end", "events", "late", "count", "where"})
"""Columns that tables have anyway, and words that a reader would take for something else."""


class DefinitionError(ValueError):
    """The definition is wrong; the text says where, why, and what can be written there."""


@dataclass(frozen=True, slots=True)
class Field:
    """Something that is read out of each record; `path` leads to it in a JSON value."""

    name: str
    type: FieldType
    source: Source
    path: JsonPath = ()


@dataclass(frozen=True, slots=True)
class EventTime:
    """When something happened: a field of the value in some format, or the record's timestamp.

    `plus`: seconds that are added.
    """

    path: JsonPath | None
    format: str
    plus: Expression | None


@dataclass(frozen=True, slots=True)
class Window:
    """A span of event time: days, weeks and months of the report's zone, others of UTC."""

    text: str
    unit: Unit
    span_ms: int


@dataclass(frozen=True, slots=True)
class Named:
    """A measure with its name and, for people, its unit."""

    name: str
    measure: Measure
    unit: str


@dataclass(frozen=True, slots=True)
class Table:
    """Records grouped by a window of time, fields, or both."""

    name: str
    about: str
    where: Expression | None
    by: tuple[str, ...]
    measures: tuple[Named, ...]
    window: Window | None
    plot: tuple[str, ...]
    """The measures that are drawn."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Records of one key that follow each other with no more than a gap between them."""

    name: str
    about: str
    where: Expression | None
    by: tuple[str, ...]
    measures: tuple[Named, ...]
    gap_ms: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A report. `computed` fields may use those before them; `figures` stand at its head."""

    name: str
    about: str
    topic: str
    zone: ZoneInfo
    late_ms: int
    time: EventTime
    fields: tuple[Field, ...]
    computed: Mapping[str, Expression]
    types: Mapping[str, Type]
    where: Expression | None
    figures: tuple[Named, ...]
    tables: tuple[Table, ...]
    sessions: tuple[Sessions, ...]

    @property
    def reads_values(self) -> bool:
        """Whether values have to be JSON objects."""
        return self.time.path is not None or any(each.source == "value" for each in self.fields)


def shipped() -> list[str]:
    """The names of the definitions that come with the package."""
    folder = resources.files("kraftpy.pipeline.report")
    return sorted(one.name.removesuffix(".toml") for one in folder.iterdir() if _is_toml(one.name))


def load_definition(place: str) -> Definition:
    """The definition in a file, or the shipped one of that name. Raises DefinitionError."""
    try:
        return read_definition(_text_at(place))
    except DefinitionError as error:
        raise DefinitionError(f"{place}: {error}") from None


def _text_at(place: str) -> str:
    path = Path(place)
    try:
        if not path.exists() and place in shipped():
            source = resources.files("kraftpy.pipeline.report").joinpath(f"{place}.toml")
            return source.read_text(encoding="utf-8")
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
        if len(data) > FILE_MAX_BYTES:
            raise DefinitionError(f"this is larger than {FILE_MAX_BYTES >> 10} KiB")
        return data.decode()
    except FileNotFoundError:
        names = ", ".join(shipped())
        raise DefinitionError(
            f"there is no such file: name one, or a report that comes along ({names})"
        ) from None
    except UnicodeDecodeError:
        raise DefinitionError("this isn't UTF-8") from None
    except OSError as error:
        raise DefinitionError(f"this can't be read: {error.strerror}") from None


def read_definition(text: str) -> Definition:
    """The definition that the TOML says. Raises DefinitionError."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DefinitionError(f"this isn't TOML: {error}") from None
    top = _Part("", content)
    zone = _zone(top)
    fields, computed, types = _fields(top.part("fields"), zone)
    reader = _Reader(zone, types)
    definition = Definition(
        name=top.text("name"),
        about=top.text("about", ""),
        topic=top.text("topic"),
        zone=zone,
        late_ms=_duration(top, "late", "0s"),
        time=_time(top, {each.name: _TYPE_OF[each.type] for each in fields}, zone),
        fields=fields,
        computed=computed,
        types=types,
        where=reader.condition(top),
        figures=reader.measures(top, "figures", free=True) if "figures" in content else (),
        tables=tuple(reader.table(part) for part in top.parts("tables")),
        sessions=tuple(reader.sessions(part) for part in top.parts("sessions")),
    )
    top.end()
    named = [table.name for table in definition.tables]
    named += [sessions.name for sessions in definition.sessions]
    if not named:
        raise DefinitionError("there is nothing to show: add [[tables]] or [[sessions]]")
    slugs = [slug(name) for name in named]
    if twice := {one for one in slugs if slugs.count(one) > 1}:
        raise DefinitionError(f"two tables would be called {min(twice)!r}: name them otherwise")
    return definition


def slug(name: str) -> str:
    """A table's name as that of its files."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "table"


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


class _Part:
    """A table of the TOML; what is asked for is checked, and `end` names what nobody asked for."""

    def __init__(self, place: str, content: Any) -> None:
        self._place = place
        if not isinstance(content, dict):
            raise DefinitionError(f"{place} is a table: write [{place}] and its entries below it")
        self._content = content
        self._asked: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def wrong(self, key: str, what: str) -> DefinitionError:
        place = ".".join(filter(None, (self._place, key)))
        return DefinitionError(f"{place}: {what}" if place else what)

    def get(self, key: str) -> Any:
        """None if it isn't there."""
        self._asked.append(key)
        return self._content.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        found = self.get(key)
        if found is None and default is not None:
            return default
        if found is None:
            raise self.wrong(key, f'this is missing: write {key} = "..."')
        if not isinstance(found, str) or not found.strip() or len(found) > _TEXT_MAX:
            raise self.wrong(key, f"this is a text of 1 to {_TEXT_MAX} characters in quotes")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.get(key)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.wrong(key, 'this is a list of names: write ["carrier", "origin"]')
        return tuple(found)

    def part(self, key: str) -> _Part:
        return _Part(".".join(filter(None, (self._place, key))), self.get(key) or {})

    def parts(self, key: str) -> list[_Part]:
        found = self.get(key) or []
        if not isinstance(found, list):
            raise self.wrong(key, f"there may be several: write [[{key}]] with two brackets")
        if len(found) > _TABLES_MAX:
            raise self.wrong(key, f"there are {len(found)}, and {_TABLES_MAX} is the most")
        return [_Part(f"{key}[{number + 1}]", one) for number, one in enumerate(found)]

    def keys(self) -> list[str]:
        """All of them, which thereby have been asked for."""
        self._asked += self._content
        return list(self._content)

    def end(self) -> None:
        """Raises DefinitionError if there is an entry that nobody has asked for."""
        for key in self._content:
            if key not in self._asked:
                known = ", ".join(dict.fromkeys(self._asked))
                raise self.wrong(key, f"this isn't known here; there are {known}")


def _zone(top: _Part) -> ZoneInfo:
    name = top.text("zone", "UTC")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise top.wrong("zone", f"{name!r} is no time zone such as Europe/Berlin") from None


def _duration(part: _Part, key: str, default: str | None = None) -> int:
    text = part.text(key, default)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise part.wrong(key, f'{text!r} is no length of time: write "90s", "15m", "8h" or "2d"')
    return int(match[1]) * _SPANS_MS[match[2]]


def _window(part: _Part) -> Window | None:
    if "window" not in part:
        part.get("window")
        return None
    text = part.text("window")
    if text in _CALENDAR:
        return Window(text, _CALENDAR[text], 0)
    span_ms = _duration(part, "window")
    if not span_ms or _SPANS_MS["d"] % span_ms or span_ms < _SPANS_MS["s"] or text.endswith("d"):
        raise part.wrong(
            "window",
            f'{text!r} doesn\'t divide a day: write "15m", "1h", "6h", "1d", "1w" or "1mo"',
        )
    return Window(text, "fixed", span_ms)


def _json_path(part: _Part, key: str, text: str) -> JsonPath:
    """`a.b[0]['c.d']`, with or without `$.` before it, as the steps that lead there."""
    rest = text.removeprefix("$")
    steps: list[str | int] = []
    while rest:
        match = _STEP.match(rest)
        if match is None:
            raise part.wrong(key, f"{text!r} is no path such as user.name, items[0] or ['a.b']")
        steps.append(int(match[2]) if match[2] else next(filter(None, match.groups()), ""))
        rest = rest[match.end() :]
    if not steps:
        raise part.wrong(key, f"{text!r} leads nowhere: name a field of the JSON value")
    return tuple(steps)


def _fields(
    part: _Part, zone: ZoneInfo
) -> tuple[tuple[Field, ...], dict[str, Expression], dict[str, Type]]:
    read: list[Field] = []
    computed: dict[str, Expression] = {}
    names = part.keys()
    if len(names) > _FIELDS_MAX:
        raise part.wrong("", f"there are {len(names)} fields, and {_FIELDS_MAX} is the most")
    for name in names:
        if not _NAME.fullmatch(name) or name in _RESERVED:
            taken = ", ".join(sorted(_RESERVED))
            raise part.wrong(
                name, f"a field is called by small letters, digits and _, and not one of {taken}"
            )
        content = part.get(name)
        if not (isinstance(content, dict) and "is" in content):
            read.append(_field(part, name, content))
    types: dict[str, Type] = {TIME: "time"}
    types.update((each.name, _TYPE_OF[each.type]) for each in read)
    for name in names:
        if name not in types:
            computed[name] = expression = _computed(part.part(name), types, zone)
            types[name] = expression.type
    return tuple(read), computed, types


def _computed(part: _Part, types: Mapping[str, Type], zone: ZoneInfo) -> Expression:
    text = part.text("is")
    part.end()
    try:
        found = parse_expression(text, types, zone)
    except ExpressionError as error:
        raise part.wrong("is", str(error)) from None
    if found.type in ("null", "time"):
        raise part.wrong("is", f"{text!r} is a {found.type}: write hour(time), delay * 60, ...")
    return found


def _field(parts: _Part, name: str, content: Any) -> Field:
    if isinstance(content, str):
        content = {"type": content}
    if not isinstance(content, dict):
        raise parts.wrong(name, f'write {name} = "text", or {{ path = "a.b", type = "number" }}')
    part = _Part(f"fields.{name}", content)
    kind = next((each for each in _FIELD_TYPES if each == part.text("type", "text")), None)
    if kind is None:
        raise part.wrong("type", f"there are {', '.join(_FIELD_TYPES)}")
    source = next((each for each in _SOURCES if each == part.text("from", "value")), None)
    if source is None:
        raise part.wrong("from", f"there are {', '.join(_SOURCES)}")
    if source == "value":
        path = _json_path(part, "path", part.text("path", f"['{name}']"))
    elif "path" in part:
        raise part.wrong("path", f"a {source} has no parts; leave it out")
    else:
        path = ()
    if source in ("timestamp", "partition", "offset") and kind != "integer":
        raise part.wrong("type", f'{source} is an integer: write type = "integer"')
    if source == "key" and kind not in ("text", "integer"):
        raise part.wrong("type", "a key is a text or an integer")
    part.end()
    return Field(name, kind, source, path)


def _time(top: _Part, types: Mapping[str, Type], zone: ZoneInfo) -> EventTime:
    """`types` are those of the fields that are read: others may be computed of the time."""
    if "time" not in top:
        raise top.wrong(
            "time", 'this is missing: write [time] with field = "..." and format = "iso"'
        )
    part = top.part("time")
    plus = None
    if (text := part.text("plus", "0")) != "0":
        try:
            plus = parse_expression(text, types, zone)
        except ExpressionError as error:
            raise part.wrong("plus", str(error)) from None
        if plus.type != "number":
            raise part.wrong("plus", "this is a number of seconds, such as minute * 60")
    source = part.text("from", "value")
    if source == "timestamp":
        part.end()
        return EventTime(None, "ms", plus)
    if source != "value":
        raise part.wrong("from", "time is from the value or from the record's timestamp")
    path = _json_path(part, "field", part.text("field"))
    form = part.text("format", "iso")
    if form not in _TIME_FORMATS and "%" not in form:
        raise part.wrong(
            "format", f"{form!r} is none of {', '.join(_TIME_FORMATS)} or like %Y-%m-%d %H:%M"
        )
    if "%" in form and not _is_pattern(form):
        raise part.wrong("format", f"{form!r} can't be read: write %Y-%m-%d %H:%M:%S or the like")
    part.end()
    return EventTime(path, form, plus)


def _is_pattern(pattern: str) -> bool:
    """Whether a time that is written so can be read again."""
    try:
        datetime.strptime(_A_TIME.strftime(pattern), pattern)
    except (ValueError, re.error):  # the latter of %Y twice
        return False
    return True


class _Reader:
    """Reads what uses fields."""

    def __init__(self, zone: ZoneInfo, types: Mapping[str, Type]) -> None:
        self._zone = zone
        self._types = types

    def condition(self, part: _Part) -> Expression | None:
        if "where" not in part:
            part.get("where")
            return None
        try:
            return parse_condition(part.text("where"), self._types, self._zone)
        except ExpressionError as error:
            raise part.wrong("where", str(error)) from None

    def measures(self, within: _Part, key: str, *, free: bool = False) -> tuple[Named, ...]:
        """Names are columns' unless they are `free`."""
        part = within.part(key)
        names = part.keys()
        if not 1 <= len(names) <= _MEASURES_MAX:
            raise within.wrong(
                key, f'there have to be 1 to {_MEASURES_MAX}: write {key}.flights = "count"'
            )
        for name in names:
            if free and (not name.strip() or len(name) > _NAME_MAX):
                raise part.wrong(name, f"a name has 1 to {_NAME_MAX} characters")
            if not free and not self._is_free(name):
                raise part.wrong(
                    name,
                    "this is no name for a measure: it has small letters, digits and _, and isn't"
                    " that of a field, start, end, events or late",
                )
        return tuple(self._measure(part, name) for name in names)

    def _is_free(self, name: str) -> bool:
        taken = name in _RESERVED - {"count"} or name in self._types
        return bool(_NAME.fullmatch(name)) and not taken

    def _measure(self, part: _Part, name: str) -> Named:
        if isinstance(part.get(name), dict):
            one = part.part(name)
            text, unit = one.text("is"), one.text("unit", "")
            one.end()
        else:
            text, unit = part.text(name), ""
        try:
            return Named(name, parse_measure(text, self._types, self._zone), unit)
        except ExpressionError as error:
            raise part.wrong(name, str(error)) from None

    def by(self, part: _Part) -> tuple[str, ...]:
        names = part.texts("by")
        for name in names:
            if name not in self._types or name == TIME:
                there = ", ".join(each for each in self._types if each != TIME)
                raise part.wrong("by", f"there is no field {name!r} (there are {there})")
        if len(set(names)) != len(names):
            raise part.wrong("by", "a field is named twice")
        return names

    def table(self, part: _Part) -> Table:
        measures = self.measures(part, "measures")
        there = [each.name for each in measures]
        plot = part.texts("plot") or tuple(there[:4])
        for name in plot:
            if name not in there:
                raise part.wrong("plot", f"there is no measure {name!r} ({', '.join(there)})")
        if len(set(plot)) != len(plot):
            raise part.wrong("plot", "a measure is named twice")
        table = Table(
            name=part.text("name"),
            about=part.text("about", ""),
            where=self.condition(part),
            by=self.by(part),
            measures=measures,
            window=_window(part),
            plot=plot,
        )
        part.end()
        if table.window is None and not table.by:
            raise part.wrong("by", 'group by something: window = "1h", by = ["carrier"], or both')
        return table

    def sessions(self, part: _Part) -> Sessions:
        sessions = Sessions(
            name=part.text("name"),
            about=part.text("about", ""),
            where=self.condition(part),
            by=self.by(part),
            measures=self.measures(part, "measures") if "measures" in part else _none(part),
            gap_ms=_duration(part, "gap"),
        )
        part.end()
        if not sessions.by:
            raise part.wrong("by", 'say whose sessions these are: by = ["user"]')
        return sessions


def _none(part: _Part) -> tuple[Named, ...]:
    part.get("measures")
    return ()
