"""The small language of a report's definition: what is computed of a record, and what is counted.

    dep_delay >= 15 and origin in ('JFK', 'LGA')        an expression
    count where dep_time is null                        a measure

Rules:

* What is written is parsed here into a tree of the nodes below and nothing else: no part of it is
  ever run as Python or SQL.
* Every expression has a type, which is checked when the definition is read. What can't be is an
  `ExpressionError` that quotes the place.
* Nothing fails on a record: what isn't known makes null of what is computed from it, as in SQL, and
  so does a division by zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

Type: TypeAlias = Literal["text", "number", "boolean", "time", "null"]

TEXT_MAX_LENGTH: Final = 2000
DEPTH_MAX: Final = 50
"""Of brackets and arguments within each other: what the parser can follow."""
HEIGHT_MAX: Final = 100
"""Of the tree, which a chain such as a + b + c makes higher too: what can be sent to Spark."""
TIME: Final = "time"
"""The name of when something happened."""

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|!=|<>|==|[-+*/%(),<>=]))"
)
_WORDS: Final = frozenset({"and", "or", "not", "in", "is", "null", "true", "false", "where"})
_COMPARISONS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<="} | {
    ">": ">",
    ">=": ">=",
}


class ExpressionError(ValueError):
    """The text can't be read as what it should be; the message says why, and what can be."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number, a text, true, false or null; a time is its milliseconds."""

    value: float | int | str | bool | None
    type: Type


@dataclass(frozen=True, slots=True)
class Name:
    """A field of the record, or `time`."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function with what it is applied to.

    `name` is one of + - * / % = != < <= > >= and or not negate, is null, in (the first argument
    among the others), or of FUNCTIONS.
    """

    name: str
    args: tuple[Expression, ...]
    type: Type


Expression: TypeAlias = Value | Name | Call

FUNCTIONS: Final[Mapping[str, tuple[tuple[Type, ...], Type]]] = {
    "hour": (("time",), "number"),
    "minute": (("time",), "number"),
    "day": (("time",), "number"),
    "month": (("time",), "number"),
    "year": (("time",), "number"),
    "weekday": (("time",), "number"),
    "date": (("time",), "text"),
    "floor": (("number",), "number"),
    "bucket": (("number", "number"), "number"),
    "lower": (("text",), "text"),
}
"""Types of the arguments, and of what comes out. `weekday` is 1 on Monday; `bucket(x, 15)` is the
multiple of 15 that isn't above x."""

AGGREGATES: Final[Mapping[str, Type | None]] = {
    "sum": "number",
    "mean": "number",
    "median": "number",
    "min": "number",
    "max": "number",
    "share": "boolean",
    "distinct": None,
}
"""What each of them is of; None: anything. Besides, `count`, and `p1` to `p99` and `p99.9`."""

_DIGITS_MAX: Final = 15
"""Longer numbers are no longer exact where they are calculated with."""

_QUANTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)")


@dataclass(frozen=True, slots=True)
class Measure:
    """A number for a group of records: `function` is one of AGGREGATES, `count` or `quantile`.

    Only records for which `where` is true count.
    """

    function: str
    of: Expression | None
    where: Expression | None
    quantile: float = 0.0


def parse_expression(text: str, types: Mapping[str, Type], zone: ZoneInfo) -> Expression:
    """An expression over fields of these types; times in it are of the zone unless they say.

    Raises ExpressionError.
    """
    parser = _Parser(text, types, zone)
    parsed = parser.expression()
    parser.end()
    return parsed


def parse_condition(text: str, types: Mapping[str, Type], zone: ZoneInfo) -> Expression:
    """An expression that is true or false. Raises ExpressionError."""
    parsed = parse_expression(text, types, zone)
    if parsed.type != "boolean":
        raise ExpressionError(f"{text!r} is a {parsed.type}, not a condition such as delay > 15")
    return parsed


def parse_measure(text: str, types: Mapping[str, Type], zone: ZoneInfo) -> Measure:
    """`count`, `mean(delay)`, `p90(delay) where origin = 'JFK'`. Raises ExpressionError."""
    return _Parser(text, types, zone).measure()


class _Parser:
    """Recursive descent; each level of precedence is a method."""

    def __init__(self, text: str, types: Mapping[str, Type], zone: ZoneInfo) -> None:
        if len(text) > TEXT_MAX_LENGTH:
            raise ExpressionError(f"it has more than {TEXT_MAX_LENGTH} characters")
        self._text = text
        self._types = types
        self._zone = zone
        self._depth = 0
        self._at = 0
        self._next()

    # -- tokens

    def _next(self) -> None:
        self._start = self._at
        rest = self._text[self._at :]
        if not rest.strip():
            self._kind, self._token = "end", ""
            return
        match = _TOKEN.match(rest)
        if match is None:
            raise self._wrong("this can't be read")
        self._kind = str(match.lastgroup)
        self._token = match[self._kind]
        self._at += match.end()
        if self._kind == "word" and self._token.lower() in _WORDS:
            self._kind, self._token = "sign", self._token.lower()

    def _takes(self, *tokens: str) -> str:
        """The next token if it is one of these, which is then behind us; else nothing."""
        if self._kind == "sign" and self._token in tokens:
            found = self._token
            self._next()
            return found
        return ""

    def _needs(self, token: str) -> None:
        if not self._takes(token):
            raise self._wrong(f"{token!r} is missing")

    def _wrong(self, what: str) -> ExpressionError:
        place = self._text[self._start :].strip()
        where = f"before {place[:40]!r}" if place else "at its end"
        return ExpressionError(f"{self._text!r:.200}: {what} {where}")

    def end(self) -> None:
        """Raises unless all has been read."""
        if self._kind != "end":
            raise self._wrong("something is missing or too much")

    # -- measures

    def measure(self) -> Measure:
        if self._kind != "word":
            raise self._wrong(f"a measure begins with {_MEASURES}")
        name = self._token.lower()
        if (match := _QUANTILE.fullmatch(name + self._fraction())) is not None:
            name, quantile = "quantile", float(match[1]) / 100
        else:
            quantile = 0.5 if name == "median" else 0.0
        wanted = {"count": None, "quantile": "number", **AGGREGATES}
        if name not in wanted:
            raise self._wrong(f"{name!r} is no measure: there are {_MEASURES};")
        self._next()
        of = None
        if name != "count":
            self._needs("(")
            of = self.expression()
            self._needs(")")
            kind = wanted[name]
            if kind is not None and of.type != kind:
                raise self._wrong(f"{name} is of a {kind}, and this is a {of.type}")
            if of.type in ("time", "null"):
                raise self._wrong(f"{name} can't be of a {of.type}")
        where = None
        if self._takes("where"):
            where = self.expression()
            if where.type != "boolean":
                raise self._wrong("behind `where` is a condition such as delay > 15")
        self.end()
        if name == "median":
            name = "quantile"
        return Measure(name, of, where, quantile)

    def _fraction(self) -> str:
        """The `.9` of `p99.9`, which isn't part of a word."""
        match = re.match(r"\.\d{1,3}", self._text[self._at :])
        if match is None or not _QUANTILE.fullmatch(self._token.lower()):
            return ""
        self._at += match.end()
        return match[0]

    # -- expressions

    def expression(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(f"it is nested more than {DEPTH_MAX} deep")
        left = self._conjunction()
        while self._takes("or"):
            left = self._both("or", left, self._conjunction())
        self._depth -= 1
        if not self._depth and _height(left) > HEIGHT_MAX:
            raise self._wrong(f"more than {HEIGHT_MAX} operators build on each other")
        return left

    def _conjunction(self) -> Expression:
        left = self._negation()
        while self._takes("and"):
            left = self._both("and", left, self._negation())
        return left

    def _both(self, name: str, left: Expression, right: Expression) -> Expression:
        for each in (left, right):
            if each.type != "boolean":
                raise self._wrong(f"{name!r} joins conditions, and one side is a {each.type};")
        return Call(name, (left, right), "boolean")

    def _negation(self) -> Expression:
        count = 0
        while self._takes("not"):
            count += 1
        found = self._comparison()
        if count and found.type != "boolean":
            raise self._wrong(f"'not' is said of a condition, and this is a {found.type};")
        return Call("not", (found,), "boolean") if count % 2 else found

    def _comparison(self) -> Expression:
        left = self._sum()
        if self._takes("is"):
            negated = self._takes("not")
            self._needs("null")
            found = Call("is null", (left,), "boolean")
            return Call("not", (found,), "boolean") if negated else found
        negated = self._takes("not")
        if negated or (self._kind, self._token) == ("sign", "in"):
            self._needs("in")
            found = self._among(left)
            return Call("not", (found,), "boolean") if negated else found
        if sign := self._takes(*_COMPARISONS):
            pair = self._alike(left, self._sum())
            if pair[0].type == "boolean" and _COMPARISONS[sign] not in ("=", "!="):
                raise self._wrong("conditions are equal or not, and not less or more;")
            return Call(_COMPARISONS[sign], pair, "boolean")
        return left

    def _among(self, left: Expression) -> Call:
        self._needs("(")
        found = [self._alike(left, self._sum())]
        while self._takes(","):
            found.append(self._alike(left, self._sum()))
        self._needs(")")
        return Call("in", (found[0][0], *(pair[1] for pair in found)), "boolean")

    def _alike(self, left: Expression, right: Expression) -> tuple[Expression, Expression]:
        """Both, of one type; a text beside a time is one."""
        if left.type == "time" and isinstance(right, Value) and right.type == "text":
            right = self._time(right)
        elif right.type == "time" and isinstance(left, Value) and left.type == "text":
            left = self._time(left)
        if "null" in (left.type, right.type):
            raise self._wrong("nothing equals null: write `is null` or `is not null`;")
        if left.type != right.type:
            raise self._wrong(f"a {left.type} can't be compared with a {right.type};")
        return left, right

    def _time(self, text: Value) -> Value:
        try:
            when = datetime.fromisoformat(str(text.value))
            when = when if when.tzinfo else when.replace(tzinfo=self._zone)
            return Value(round(when.timestamp() * 1000), "time")
        except (ValueError, OverflowError):
            raise self._wrong(f"{text.value!r:.40} is no time like 2026-03-01T12:00;") from None

    def _sum(self) -> Expression:
        left = self._product()
        while sign := self._takes("+", "-"):
            left = self._numbers(sign, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._unary()
        while sign := self._takes("*", "/", "%"):
            left = self._numbers(sign, left, self._unary())
        return left

    def _numbers(self, sign: str, left: Expression, right: Expression) -> Call:
        for each in (left, right):
            if each.type != "number":
                raise self._wrong(f"{sign!r} is for numbers, and one side is a {each.type};")
        return Call(sign, (left, right), "number")

    def _unary(self) -> Expression:
        count = 0
        while self._takes("-"):
            count += 1
        found = self._atom()
        if count and found.type != "number":
            raise self._wrong(f"'-' is for numbers, and this is a {found.type};")
        return Call("negate", (found,), "number") if count % 2 else found

    def _atom(self) -> Expression:
        kind, token = self._kind, self._token
        if kind == "number":
            self._next()
            small = token.isdigit() and len(token) <= _DIGITS_MAX
            return Value(int(token) if small else float(token), "number")
        if kind == "text":
            self._next()
            return Value(token[1:-1].replace(token[0] * 2, token[0]), "text")
        if kind == "word":
            return self._named()
        if word := self._takes("true", "false"):
            return Value(word == "true", "boolean")
        if self._takes("null"):
            return Value(None, "null")
        if self._takes("("):
            found = self.expression()
            self._needs(")")
            return found
        raise self._wrong("a field, a number or a 'text' is missing")

    def _named(self) -> Expression:
        token = self._token
        if self._text[self._at :].lstrip().startswith("("):
            return self._call(token)
        if token not in self._types:
            there = ", ".join(self._types)
            raise self._wrong(f"there is no field {token!r:.60} (there are {there});")
        self._next()
        return Name(token, self._types[token])

    def _call(self, name: str) -> Expression:
        if name not in FUNCTIONS:
            raise self._wrong(f"there is no function {name!r:.60} (there are {_FUNCTIONS});")
        wanted, result = FUNCTIONS[name]
        self._next()
        self._needs("(")
        args = [self.expression()]
        while self._takes(","):
            args.append(self.expression())
        self._needs(")")
        if tuple(arg.type for arg in args) != wanted:
            raise self._wrong(f"{name}({', '.join(wanted)}) is how it is written;")
        if name == "bucket" and not _is_positive(args[1]):
            raise self._wrong("the width of a bucket is a number above 0;")
        return Call(name, tuple(args), result)


def _height(tree: Expression) -> int:
    """Not by recursion, which is what has to be kept within limits."""
    highest, left = 0, [(tree, 1)]
    while left:
        one, height = left.pop()
        highest = max(highest, height)
        if isinstance(one, Call):
            left += [(arg, height + 1) for arg in one.args]
    return highest


def _is_positive(width: Expression) -> bool:
    return isinstance(width, Value) and isinstance(width.value, int | float) and width.value > 0


_FUNCTIONS: Final = ", ".join(FUNCTIONS)
_MEASURES: Final = "count, sum, mean, median, min, max, p90 and the like, share or distinct"
