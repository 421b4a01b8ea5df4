"""A report's definition: what is read from it, and what is said of one that is wrong."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.pipeline.report.definition import (
    DefinitionError,
    load_definition,
    read_definition,
    shipped,
)
from kraftpy.pipeline.report.expressions import (
    Call,
    ExpressionError,
    Name,
    Type,
    Value,
    parse_condition,
    parse_expression,
    parse_measure,
)

README = Path(__file__).resolve().parents[3] / "kraftpy" / "pipeline" / "README.md"
UTC = ZoneInfo("UTC")
TYPES: dict[str, Type] = {
    "time": "time",
    "delay": "number",
    "origin": "text",
    "cancelled": "boolean",
}
GOOD = """
name = "Clicks"
topic = "clicks"
zone = "Europe/Berlin"
late = "90s"

[time]
field = "at"
format = "ms"

[fields]
user = { from = "key" }
page = { path = "page.url" }
price = "number"
hour = { is = "hour(time)" }

[[tables]]
name = "By hour"
window = "1h"
by = ["page"]
measures.clicks = "count"

[[sessions]]
name = "Visits"
by = ["user"]
gap = "30m"
"""


def test_a_definition_is_read() -> None:
    found = read_definition(GOOD)
    assert (found.name, found.topic, found.zone.key, found.late_ms) == (
        "Clicks",
        "clicks",
        "Europe/Berlin",
        90_000,
    )
    assert [(each.name, each.type, each.source, each.path) for each in found.fields] == [
        ("user", "text", "key", ()),
        ("page", "text", "value", ("page", "url")),
        ("price", "number", "value", ("price",)),
    ]
    (table,) = found.tables
    assert table.window is not None
    assert (table.window.span_ms, table.by, table.plot) == (3_600_000, ("page",), ("clicks",))
    (sessions,) = found.sessions
    assert (sessions.gap_ms, sessions.measures) == (1_800_000, ())


@pytest.mark.parametrize("name", shipped())
def test_what_is_shipped_can_be_read(name: str) -> None:
    assert load_definition(name).topic == name


def test_the_documents_example_can_be_read() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    found = read_definition(example)
    assert [each.name for each in found.tables] == ["Pages by the hour"]
    assert found.fields[2].path == ("timing", "total.ms")


def test_paths_have_names_places_and_quoted_names() -> None:
    text = GOOD.replace('"page.url"', "\"$.a['b.c'][2].d\"")
    assert read_definition(text).fields[1].path == ("a", "b.c", 2, "d")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[time]", "[time", "this isn't TOML"),
        ('topic = "clicks"', "", 'topic: this is missing: write topic = "..."'),
        ('topic = "clicks"', "topic = 3", "topic: this is a text of 1 to"),
        ('topic = "clicks"', 'topic = ""', "topic: this is a text of 1 to"),
        ("Europe/Berlin", "Berlin", "zone: 'Berlin' is no time zone such as Europe/Berlin"),
        ("Europe/Berlin", "../../etc/passwd", "is no time zone"),
        ('"90s"', '"soon"', "late: 'soon' is no length of time: write \"90s\""),
        ('field = "at"', "", "time.field: this is missing"),
        ('[time]\nfield = "at"\nformat = "ms"', "", "time: this is missing: write [time]"),
        ('format = "ms"', 'format = "epoch"', "time.format: 'epoch' is none of iso, s, ms"),
        ('format = "ms"', 'format = "%Q"', "time.format: '%Q' can't be read: write %Y-%m-%d"),
        ('format = "ms"', 'format = "%Y-%m-%d %"', "time.format: '%Y-%m-%d %' can't be read"),
        ('format = "ms"', 'format = "%d/%m/%Y %Y"', "time.format: '%d/%m/%Y %Y' can't be read"),
        ('format = "ms"', 'plus = "page"', "time.plus: this is a number of seconds"),
        ('format = "ms"', 'plus = "minutes * 60"', "there is no field 'minutes'"),
        ('format = "ms"', 'plus = "hour * 60"', "time.plus: 'hour * 60': there is no field 'hour'"),
        ('price = "number"', 'Price = "number"', "fields.Price: a field is called by small"),
        ('price = "number"', 'late = "number"', "fields.late: a field is called by small"),
        ('price = "number"', 'price = "money"', "fields.price.type: there are text, integer"),
        ('price = "number"', "price = 1", "fields.price: write price = "),
        ('price = "number"', 'price = { is = "delay" }', "there is no field 'delay'"),
        ('price = "number"', 'price = { is = "time" }', "'time' is a time: write hour(time)"),
        ('{ from = "key" }', '{ from = "header" }', "fields.user.from: there are value, key"),
        ('{ from = "key" }', '{ from = "offset" }', "offset is an integer: write type"),
        ('{ from = "key" }', '{ from = "key", path = "a" }', "a key has no parts"),
        ('"page.url"', '"page..url"', "'page..url' is no path"),
        ('"page.url"', '"$"', "leads nowhere"),
        ('window = "1h"', 'window = "7h"', "tables[1].window: '7h' doesn't divide a day"),
        ('window = "1h"', 'windows = "1h"', "tables[1].windows: this isn't known here; there are"),
        ('window = "1h"\nby = ["page"]', "", "tables[1].by: group by something"),
        ('by = ["page"]', 'by = ["pages"]', "there is no field 'pages' (there are user, page"),
        ('by = ["page"]', 'by = "page"', "tables[1].by: this is a list of names"),
        ('by = ["page"]', 'by = ["page", "page"]', "a field is named twice"),
        ('by = ["page"]', 'plot = ["price"]', "there is no measure 'price' (clicks)"),
        ('by = ["page"]', 'plot = ["clicks", "clicks"]', "plot: a measure is named twice"),
        ('by = ["page"]', 'where = "price"', "'price' is a number, not a condition"),
        ('measures.clicks = "count"', "", "tables[1].measures: there have to be 1 to"),
        ('measures.clicks = "count"', 'measures.page = "count"', "no name for a measure"),
        ('measures.clicks = "count"', "measures.clicks = 1", "measures.clicks: this is a text"),
        ('"count"', '"counts"', "'counts' is no measure: there are count, sum, mean"),
        ('"count"', '"mean(page)"', "mean is of a number, and this is a text"),
        ("[[tables]]", "[tables]", "tables: there may be several: write [[tables]]"),
        ('gap = "30m"', "", "sessions[1].gap: this is missing"),
        ('by = ["user"]', "", "sessions[1].by: say whose sessions these are"),
        ('name = "Visits"', 'name = "by HOUR"', "two tables would be called 'by-hour'"),
        (GOOD[GOOD.index("[[tables]]") :], "", "there is nothing to show"),
    ],
)
def test_a_wrong_definition_gives_a_sentence(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(DefinitionError) as raised:
        read_definition(GOOD.replace(old, new))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%dT%H:%M:%S.%f%z", "%a, %d %b %Y %H:%M:%S %Z", "%I:%M %p %d.%m.%y", "%G-W%V-%u 100%%"],
)
def test_patterns_of_times_are_those_of_python(form: str) -> None:
    assert read_definition(GOOD.replace('"ms"', f'"{form}"')).time.format == form


def test_a_file_that_is_no_definition_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    for content, said in (
        (b"name = 1", "own.toml: name: this is a text"),
        (b"\xff", "own.toml: this isn't UTF-8"),
        (b"#" * 300_000, "own.toml: this is larger than 256 KiB"),
    ):
        path.write_bytes(content)
        with pytest.raises(DefinitionError) as raised:
            load_definition(str(path))
        assert said in str(raised.value)
    with pytest.raises(DefinitionError, match="there is no such file: name one, or a report that"):
        load_definition(str(tmp_path / "absent.toml"))
    with pytest.raises(DefinitionError, match="can't be read"):
        load_definition(str(tmp_path))


def test_operators_bind_as_they_do_everywhere() -> None:
    delay = Name("delay", "number")

    def number(value: int) -> Value:
        return Value(value, "number")

    product = Call("*", (number(2), delay), "number")
    left = Call("=", (Call("+", (number(1), product), "number"), number(3)), "boolean")
    right = Call("not", (Name("cancelled", "boolean"),), "boolean")
    both = Call("and", (left, right), "boolean")
    either = Call("or", (both, Name("cancelled", "boolean")), "boolean")
    text = "1 + 2 * delay = 3 and not cancelled or cancelled"
    assert parse_expression(text, TYPES, UTC) == either
    text = "((1 + (2 * delay)) == 3 AND (NOT cancelled)) OR cancelled"
    assert parse_expression(text, TYPES, UTC) == either


def test_texts_may_hold_quotes_and_times_are_of_the_zone() -> None:
    found = parse_condition("origin in ('O''Hare', \"a 'b'\")", TYPES, UTC)
    assert isinstance(found, Call)
    assert found.args[1:] == (Value("O'Hare", "text"), Value("a 'b'", "text"))
    found = parse_condition("time >= '2026-03-01T12:00'", TYPES, ZoneInfo("Europe/Berlin"))
    assert isinstance(found, Call)
    assert found.args[1] == Value(1_772_362_800_000, "time")


def test_a_chain_may_have_a_hundred_links_and_a_list_more() -> None:
    assert parse_expression(" - ".join(["delay"] * 100), TYPES, UTC).type == "number"
    assert parse_condition(f"delay in ({', '.join(['1'] * 500)})", TYPES, UTC).type == "boolean"


def test_measures() -> None:
    assert parse_measure("count", TYPES, UTC).where is None
    found = parse_measure("p99.9(delay) where origin = 'JFK'", TYPES, UTC)
    assert (found.function, found.quantile) == ("quantile", 0.9990000000000001)
    assert found.where == parse_condition("origin = 'JFK'", TYPES, UTC)
    assert parse_measure("median(delay)", TYPES, UTC).quantile == 0.5
    assert parse_measure("share(delay > 15)", TYPES, UTC).of is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a field, a number or a 'text' is missing at its end"),
        ("delay >", "is missing at its end"),
        ("delay > 'x'", "a number can't be compared with a text"),
        ("delay = null", "write `is null`"),
        ("delay and cancelled", "'and' joins conditions, and one side is a number"),
        ("not delay", "'not' is said of a condition, and this is a number"),
        ("origin + 1 > 2", "'+' is for numbers, and one side is a text"),
        ("-origin > 2", "'-' is for numbers"),
        ("cancelled < true", "equal or not"),
        ("delays > 1", "there is no field 'delays' (there are time, delay, origin, cancelled)"),
        ("exec('x') = 1", "there is no function 'exec' (there are hour, minute"),
        ("hour(delay) = 1", "hour(time) is how it is written"),
        ("bucket(delay, 0) = 1", "the width of a bucket is a number above 0"),
        ("time > 'noon'", "'noon' is no time like"),
        ("delay > 1; drop", "this can't be read before '; drop'"),
        ("delay > 1 delay", "something is missing or too much before 'delay'"),
        ("delay in ()", "is missing before ')'"),
        ("(" * 60 + "delay", "nested more than 50 deep"),
        ("delay > 1 or " * 300, "more than 2000 characters"),
        (" + ".join(["delay"] * 101) + " > 1", "more than 100 operators build on each other"),
        (" or ".join(["cancelled"] * 101), "more than 100 operators build on each other"),
        (
            "(1 + 2 * " * 49 + "3" + ")" * 49 + " - 1 + 1 + 1" * 2 + " > 1",
            "more than 100 operators",
        ),
        ("delay", "is a number, not a condition"),
    ],
)
def test_a_wrong_condition_gives_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_condition(text, TYPES, UTC)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a measure begins with count, sum"),
        ("count(delay)", "something is missing or too much"),
        ("mean delay", "'(' is missing before 'delay'"),
        ("mean(delay", "')' is missing at its end"),
        ("p100(delay)", "'p100' is no measure"),
        ("distinct(time)", "distinct can't be of a time"),
        ("count where delay", "behind `where` is a condition"),
        ("share(delay)", "share is of a boolean, and this is a number"),
    ],
)
def test_a_wrong_measure_gives_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_measure(text, TYPES, UTC)
    assert said in str(raised.value)


_TEXT = (
    "delay origin cancelled time and or not in is null ( ) , + - * / % = < >= 'a' 1 2.5 hour"
    " bucket where count p90 mean share true"
)
_WORDS = st.sampled_from(_TEXT.split())


@given(st.lists(_WORDS, max_size=14).map(" ".join) | st.text(max_size=40))
def test_no_text_does_more_than_be_wrong(text: str) -> None:
    for parse in (parse_expression, parse_condition, parse_measure):
        with suppress(ExpressionError):
            assert getattr(parse(text, TYPES, UTC), "type", "number") in get_args(Type)


@given(st.text(max_size=200), st.integers(0, len(GOOD)), st.integers(0, 30))
def test_no_definition_does_more_than_be_wrong(text: str, at: int, length: int) -> None:
    for wrong in (text, GOOD[:at] + text + GOOD[at + length :]):
        with suppress(DefinitionError):
            assert read_definition(wrong).topic
