"""From a topic's records to columns: JSON values, keys and times, in Spark's Python workers.

Rules:

* A record that can't be read, or has no time, is a row with a `problem`; it never ends the job.
* A field that has another type than the definition says is null and is named in `mistyped`.  One
  that isn't there, or is null, is null.
* JSON is what RFC 8259 says: UTF-8, no NaN, no infinity, nothing behind it.  An integer has 64 bits
  and a number is finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa

from kraftpy.pipeline.report.definition import Definition, Field, JsonPath

NO_TIME: Final = "no time"
"""The problem of a record that says nothing, or nothing sensible, about when it happened."""
TIME_MIN_MS: Final = -62_135_596_800_000
TIME_MAX_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, which is what Spark and Python can make a date of."""

_EXCERPT_BYTES: Final = 160
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
    """The table that `decode` makes, in Spark's words.  `time_ms` is before `plus` is added."""
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


@dataclass(frozen=True, slots=True)
class _Raw:
    """What a field may be of."""

    document: Any
    key: bytes | None
    timestamp_ms: int | None
    partition: int
    offset: int


class _Decoder:
    def __init__(self, definition: Definition) -> None:
        self._definition = definition
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
        time = definition.time
        self._read_time = _time_reader(time.format, definition) if time.path is not None else None

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        columns: list[list[Any]] = [[] for _ in self._schema.names]
        for partition, offset, key, value, timestamp_us in zip(
            batch.column("partition").to_pylist(),
            batch.column("offset").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            timestamps,
            strict=True,
        ):
            timestamp_ms = None if timestamp_us is None else timestamp_us // 1000
            time_ms = problem = excerpt = None
            fields: list[Any] = []
            mistyped: list[str] = []
            try:
                document = _document(value) if self._definition.reads_values else None
                raw = _Raw(document, key, timestamp_ms, partition, offset)
                time_ms = self._time(raw)
                for field in self._definition.fields:
                    found = _typed(field, raw)
                    if found is _MISTYPED:
                        mistyped.append(field.name)
                        found = None
                    fields.append(found)
            except _UnreadableError as error:
                problem = str(error)
                excerpt = _excerpt(value)
                fields = [None] * len(self._definition.fields)
                mistyped = []
            row = (partition, offset, time_ms, problem, excerpt, ",".join(mistyped) or None)
            for column, cell in zip(columns, (*row, *fields), strict=True):
                column.append(cell)
        arrays = [
            pa.array(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _time(self, raw: _Raw) -> int:
        if self._read_time is None:
            time_ms = raw.timestamp_ms
        else:
            assert self._definition.time.path is not None
            time_ms = self._read_time(_walk(raw.document, self._definition.time.path))
        if time_ms is None or not TIME_MIN_MS <= time_ms <= TIME_MAX_MS:
            raise _UnreadableError(NO_TIME)
        return time_ms


def _document(value: bytes | None) -> dict[str, Any]:
    if value is None:
        raise _UnreadableError("no value (a tombstone)")
    try:
        found = json.loads(value.decode(), parse_constant=_not_json)
    except UnicodeDecodeError:
        raise _UnreadableError("not UTF-8") from None
    except (ValueError, RecursionError):
        raise _UnreadableError("not JSON") from None
    if not isinstance(found, dict):
        raise _UnreadableError("JSON, but not an object")
    return found


def _not_json(constant: str) -> Any:
    raise ValueError(constant)


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


def _typed(field: Field, raw: _Raw) -> Any:
    match field.source:
        case "value":
            return _checked(field.type, _walk(raw.document, field.path))
        case "key":
            return _key(field.type, raw.key)
        case "timestamp":
            return raw.timestamp_ms
        case "partition":
            return raw.partition
        case "offset":
            return raw.offset


def _checked(kind: str, value: Any) -> Any:
    """The value if it is of that type, None if it is null, else _MISTYPED."""
    if value is None:
        return None
    if kind == "text":
        # A lone half of a surrogate pair is legal in JSON and has no UTF-8.
        return _encodable(value) if isinstance(value, str) else _MISTYPED
    if kind == "boolean":
        return value if isinstance(value, bool) else _MISTYPED
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _MISTYPED
    if kind == "integer":
        fits = isinstance(value, int) and -_INT64 <= value < _INT64
        return value if fits else _MISTYPED
    try:
        number = float(value)
    except OverflowError:
        return _MISTYPED
    return number if math.isfinite(number) else _MISTYPED


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _key(kind: str, key: bytes | None) -> Any:
    if key is None:
        return None
    try:
        text = key.decode()
        return _checked(kind, int(text)) if kind == "integer" else text
    except ValueError:
        return _MISTYPED


def _time_reader(form: str, definition: Definition) -> Callable[[Any], int | None]:
    """Makes milliseconds of what stands in the field; None if it is no time."""
    if form in _PER_MS:
        times, per = _PER_MS[form]

        def from_number(value: Any) -> int | None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            if isinstance(value, float) and not math.isfinite(value):
                return None
            return math.floor(value * times / per) if times > 1 else math.floor(value) // per

        return from_number

    read: Callable[[str], datetime] = datetime.fromisoformat
    if form != "iso":
        read = partial(_by_pattern, form)

    # Many records say the same time, and reading one takes longer than all else.
    @lru_cache(65_536)
    def from_text(text: str) -> int | None:
        try:
            when = read(text)
            when = when if when.tzinfo else when.replace(tzinfo=definition.zone)
            since = when.astimezone(UTC) - _EPOCH
        except (ValueError, OverflowError):
            return None
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000

    return lambda value: from_text(value) if isinstance(value, str) else None


def _by_pattern(pattern: str, text: str) -> datetime:
    return datetime.strptime(text, pattern)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
