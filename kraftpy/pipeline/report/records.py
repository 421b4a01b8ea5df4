"""From a topic's records to columns: JSON values, keys and times, in Spark's Python workers.

Rules:

* A record that can't be read, or has no time, is a row with a `problem`; it never ends the job.
* A field that has another type than the definition says is null and is named in `mistyped`. One
  that isn't there, or is null, is null.
* JSON is what RFC 8259 says: UTF-8, no NaN, no infinity, nothing behind it. An integer has 64 bits
  and a number is finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa

from kraftpy.frozen import NamedTuple
from kraftpy.pipeline.report.definition import Definition, Field, FieldType, JsonPath

NO_TIME: Final = "no time"
"""The problem of a record that says nothing, or nothing sensible, about when it happened."""
TIME_MIN_MS: Final = -62_104_060_800_000
TIME_MAX_MS: Final = 253_370_764_799_999
"""The years 2 to 9998: Spark and Python can make a date of 1 to 9999, also a zone's hours away."""

_EXCERPT_BYTES: Final = 160
_TIME_MAX_LENGTH: Final = 100
"""Longer texts are no times, and aren't remembered."""
_INT64: Final = 1 << 63
_PER_MS: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
_ARROW: Final = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_DDL: Final = {"text": "string", "integer": "bigint", "number": "double", "boolean": "boolean"}

_MISTYPED: Final = object()
"""What stands for a value of the wrong type."""


def column_of(name: str) -> str:
    """What a field's column is called, so that it isn't taken for one of ours."""
    return f"f_{name}"


def columns_ddl(definition: Definition) -> str:
    """The table that `decode` makes, in Spark's words. `time_ms` is before `plus` is added."""
    fields = "".join(f", {column_of(one.name)} {_DDL[one.type]}" for one in definition.fields)
    return (
        "partition int, offset bigint, time_ms bigint, problem string, excerpt string,"
        f" mistyped string{fields}"
    )


class _UnreadableError(Exception):
    """A record that can't be read; the text is the problem."""


def decode(
    definition: Definition,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` has each task do with partition, offset, key, value and timestamp."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = _Decoder(definition)
        for batch in batches:
            if batch.num_rows:
                yield decoder.batch(batch)

    return run


class _Record(NamedTuple):
    """What there is of a record besides its value."""

    key: bytes | None
    timestamp_ms: int | None
    partition: int
    offset: int


_Reader: TypeAlias = Callable[[Any, _Record], Any]
"""Takes a field out of a value's document or the record; _MISTYPED if it has another type."""


class _Decoder:
    def __init__(self, definition: Definition) -> None:
        self._reads_values = definition.reads_values
        self._fields = [(each.name, _reader(each)) for each in definition.fields]
        self._time = _time_reader(definition)
        self._schema = pa.schema(
            [
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("time_ms", pa.int64()),
                ("problem", pa.string()),
                ("excerpt", pa.string()),
                ("mistyped", pa.string()),
                *((column_of(one.name), _ARROW[one.type]) for one in definition.fields),
            ]
        )

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = [
            self._row(value, _Record(key, None if at is None else at // 1000, partition, offset))
            for partition, offset, key, value, at in zip(
                batch.column("partition").to_pylist(),
                batch.column("offset").to_pylist(),
                batch.column("key").to_pylist(),
                batch.column("value").to_pylist(),
                batch.column("timestamp").cast(pa.int64()).to_pylist(),
                strict=True,
            )
        ]
        columns = zip(zip(*rows, strict=True), self._schema.types, strict=True)
        arrays = [pa.array(column, kind) for column, kind in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _row(self, value: bytes | None, record: _Record) -> tuple[Any, ...]:
        """A row of the table that `columns_ddl` describes."""
        place = (record.partition, record.offset)
        try:
            document = _document(value) if self._reads_values else None
            time_ms = self._time(document, record)
        except _UnreadableError as error:
            nothing = [None] * len(self._fields)
            return (*place, None, str(error), _excerpt(value), None, *nothing)
        fields = [read(document, record) for _, read in self._fields]
        mistyped = None
        if _MISTYPED in fields:
            pairs = zip(self._fields, fields, strict=True)
            mistyped = ",".join(name for (name, _), found in pairs if found is _MISTYPED)
            fields = [None if found is _MISTYPED else found for found in fields]
        return (*place, time_ms, None, None, mistyped, *fields)


def _document(value: bytes | None) -> dict[str, Any]:
    if value is None:
        raise _UnreadableError("no value (a tombstone)")
    try:
        found = _read_json(value.decode())
    except UnicodeDecodeError:
        raise _UnreadableError("not UTF-8") from None
    except (ValueError, RecursionError):
        raise _UnreadableError("not JSON") from None
    if not isinstance(found, dict):
        raise _UnreadableError("JSON, but not an object")
    return found


def _not_json(constant: str) -> Any:
    raise ValueError(constant)


_read_json = json.JSONDecoder(parse_constant=_not_json).decode


def _excerpt(value: bytes | None) -> str:
    """The beginning of a value, as text that can be shown."""
    if value is None:
        return ""
    text = value[:_EXCERPT_BYTES].decode(errors="backslashreplace")
    return text + ("…" if len(value) > _EXCERPT_BYTES else "")


def _walk(document: Any, path: JsonPath) -> Any:
    """What the path leads to; None if it leads nowhere."""
    for step in path:
        if isinstance(step, str) and isinstance(document, dict):
            document = document.get(step)
        elif isinstance(step, int) and isinstance(document, list) and step < len(document):
            document = document[step]
        else:
            return None
    return document


def _reader(field: Field) -> _Reader:
    """How a field is taken out of a record."""
    match field.source:
        case "value":
            typed, path = _AS[field.type], field.path
            if len(path) == 1 and isinstance(path[0], str):
                # Most fields, and one call less for each of them.
                name = path[0]
                return lambda document, _: typed(document.get(name))
            return lambda document, _: typed(_walk(document, path))
        case "key":
            return lambda _, record: _key(field.type, record.key)
        case "timestamp":
            return lambda _, record: record.timestamp_ms
        case "partition":
            return lambda _, record: record.partition
        case "offset":
            return lambda _, record: record.offset


def _as_text(value: Any) -> Any:
    if isinstance(value, str):
        # A lone half of a surrogate pair is legal in JSON and has no UTF-8.
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    return None if value is None else _MISTYPED


def _as_integer(value: Any) -> Any:
    # True and false are integers to Python.
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    return None if value is None else _MISTYPED


def _as_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return _MISTYPED
        return number if math.isfinite(number) else _MISTYPED
    return None if value is None else _MISTYPED


def _as_boolean(value: Any) -> Any:
    return value if value is None or isinstance(value, bool) else _MISTYPED


_AS: Final[dict[FieldType, Callable[[Any], Any]]] = {
    "text": _as_text,
    "integer": _as_integer,
    "number": _as_number,
    "boolean": _as_boolean,
}
"""The value if it is of that type, None if it is null, else _MISTYPED."""


def _key(kind: str, key: bytes | None) -> Any:
    if key is None:
        return None
    try:
        text = key.decode()
        return _as_integer(int(text)) if kind == "integer" else text
    except ValueError:
        return _MISTYPED


def _time_reader(definition: Definition) -> Callable[[Any, _Record], int]:
    """How the time is taken out of a record, in milliseconds; what it makes raises NO_TIME."""
    path = definition.time.path
    read = None if path is None else _time_format(definition.time.format, definition.zone)

    def reader(document: Any, record: _Record) -> int:
        if path is None or read is None:
            time_ms = record.timestamp_ms
        else:
            time_ms = read(_walk(document, path))
        if time_ms is None or not TIME_MIN_MS <= time_ms <= TIME_MAX_MS:
            raise _UnreadableError(NO_TIME)
        return time_ms

    return reader


def _time_format(form: str, zone: ZoneInfo) -> Callable[[Any], int | None]:
    """Makes milliseconds of what stands in the field; None if it is no time."""
    if form in _PER_MS:
        times, per = _PER_MS[form]

        def from_number(value: Any) -> int | None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            number = value * times
            if isinstance(number, float):
                if not math.isfinite(number):
                    return None
                number = math.floor(number)
            return number // per

        return from_number
    read: Callable[[str], datetime] = datetime.fromisoformat
    if form != "iso":
        read = partial(_by_pattern, form)

    # Many records say the same time, and reading one takes longer than all else.
    @lru_cache(65_536)
    def from_text(text: str) -> int | None:
        try:
            when = read(text)
            when = when if when.tzinfo else when.replace(tzinfo=zone)
            since = when.astimezone(UTC) - _EPOCH
        except (ValueError, OverflowError):
            return None
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000

    def from_value(value: Any) -> int | None:
        is_short = isinstance(value, str) and len(value) <= _TIME_MAX_LENGTH
        return from_text(value) if is_short else None

    return from_value


def _by_pattern(pattern: str, text: str) -> datetime:
    return datetime.strptime(text, pattern)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
