"""From the definition's language to Spark: expressions, measures and windows as columns.

Rules:

* Numbers are calculated with as doubles, by functions that give null instead of an error: Spark's
  own operators fail on overflow and on division by zero.
* Times are milliseconds since 1970; what a clock on the wall shows is that of the report's zone.
  The session's zone has to be UTC, as `session` and `engine` have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as fn

from kraftpy.pipeline.report.definition import Window
from kraftpy.pipeline.report.expressions import Call, Expression, Measure, Name, Value
from kraftpy.pipeline.report.records import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column

TIME_MS: Final = "time_ms"

_WALL: Final = {
    "hour": fn.hour,
    "minute": fn.minute,
    "day": fn.dayofmonth,
    "month": fn.month,
    "year": fn.year,
}
_COMPARISONS: Final[dict[str, Any]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Columns:
    """Makes columns for a report whose wall clock is that of `zone`."""

    def __init__(self, zone: str) -> None:
        self._zone = zone

    def expression(self, one: Expression) -> Column:
        match one:
            case Value(value, kind):
                return fn.lit(float(value) if _is_number(kind, value) else value)  # type: ignore[arg-type]
            case Name(name, kind):
                return fn.col(TIME_MS if kind == "time" else column_of(name))
            case Call(name, args):
                return self._call(name, args)

    def _call(self, name: str, args: tuple[Expression, ...]) -> Column:
        first, *others = map(self.expression, args)
        if name in _COMPARISONS:
            return _COMPARISONS[name](first, others[0])
        if name in _WALL:
            return _WALL[name](self._wall(first)).cast("bigint")
        match name:
            case "and":
                return first & others[0]
            case "or":
                return first | others[0]
            case "not":
                return ~first
            case "is null":
                return first.isNull()
            case "in":
                return first.isin(*others)
            case "weekday":
                return (fn.weekday(self._wall(first)) + 1).cast("bigint")
            case "date":
                return fn.date_format(self._wall(first), "yyyy-MM-dd")
            case "lower":
                return fn.lower(first)
            case "floor":
                return _whole(fn.floor(first.cast("double")).cast("double"))
            case "bucket":
                return _bucket(first.cast("double"), args[1])
            case _:
                return _arithmetic(name, *(each.cast("double") for each in (first, *others)))

    def _wall(self, time_ms: Column) -> Column:
        """A timestamp whose UTC reads like a clock in the zone."""
        return fn.from_utc_timestamp(fn.timestamp_millis(time_ms), self._zone)

    def window_start(self, window: Window) -> Column:
        """When the window began that the record's time is in, in milliseconds."""
        time_ms = fn.col(TIME_MS)
        if window.unit == "fixed":
            return time_ms - fn.pmod(time_ms, fn.lit(window.span_ms))
        start = fn.date_trunc(window.unit, self._wall(time_ms))
        return fn.unix_millis(fn.to_utc_timestamp(start, self._zone))

    def measure(self, one: Measure) -> Column:
        """The aggregate, null where there was nothing to make it of; counts are 0."""
        of = fn.lit(1) if one.of is None else self.expression(one.of)
        if one.function == "share":
            of = fn.when(of, 1.0).when(~of, 0.0)
        elif one.function not in ("count", "distinct") and _is_numeric(one):
            of = of.cast("double")
        if one.where is not None:
            of = fn.when(self.expression(one.where), of)
        match one.function:
            case "count":
                return fn.count(of)
            case "distinct":
                return fn.count_distinct(of)
            case "sum":
                return fn.sum(of)
            case "min":
                return fn.min(of)
            case "max":
                return fn.max(of)
            case "quantile":
                return fn.percentile(of, one.quantile)
            case _:  # mean and share
                return fn.avg(of)


def _is_number(kind: str, value: object) -> bool:
    return kind == "number" and isinstance(value, int | float)


def _is_numeric(one: Measure) -> bool:
    return one.of is not None and one.of.type == "number"


def _whole(number: Column) -> Column:
    """A double as an integer, so that groups are called 15 and not 15.0."""
    return number.try_cast("bigint")


def _bucket(number: Column, width: Expression) -> Column:
    assert isinstance(width, Value)
    assert isinstance(width.value, int | float)
    size = fn.lit(float(width.value))
    start = fn.floor(fn.try_divide(number, size)).cast("double") * size
    return _whole(start) if isinstance(width.value, int) else start


def _arithmetic(name: str, first: Column, second: Column | None = None) -> Column:
    if second is None:
        return -first
    match name:
        case "+":
            return first + second
        case "-":
            return first - second
        case "*":
            return first * second
        case "/":
            return fn.try_divide(first, second)
        case _:
            return fn.try_mod(first, second)
