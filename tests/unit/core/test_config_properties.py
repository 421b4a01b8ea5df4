"""server.properties is read as java.util.Properties reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.config import ConfigError, parse_properties
from kraftpy.core.config.properties import ENTRIES_MAX, FILE_LENGTH_MAX


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", {}),
        ("# comment\n  ! another=1\n\n \t\n", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a:1", {"a": "1"}),
        ("a : = 1", {"a": "= 1"}),
        ("a 1", {"a": "1"}),
        ("a\t1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1#2", {"a": "1#2"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=x,\\\n   y,\\\n\tz\nb=1", {"a": "x,y,z", "b": "1"}),
        ("a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        ("a=x\\\\\\\n  y", {"a": "x\\y"}),
        ("a=x\\\n# no comment", {"a": "x# no comment"}),
        ("a=x\\", {"a": "x"}),
        ("a\\=b=1", {"a=b": "1"}),
        ("a\\ b\\:c=1", {"a b:c": "1"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("a=\x85b", {"a": "\x85b"}),
        ("a=\u2028b", {"a": "\u2028b"}),
        (
            "listeners=PLAINTEXT://:9092,CONTROLLER://:9093",
            {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"},
        ),
    ],
)
def test_what_a_text_means(text: str, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a=1\n=2", "line 2 has no key before the separator: '=2'; write key=value, or # in"),
        (
            "\n\na=\\u12",
            "line 3: \\u must be followed by four hexadecimal digits; write a backslash",
        ),
        ("a=\\u12g4", "line 1: \\u must be followed by four hexadecimal digits"),
        ("a=\\u+123", "line 1: \\u must be followed by four hexadecimal digits"),
        ("x=1\\\n2\n:3", "line 3 has no key"),
        ("#" * (FILE_LENGTH_MAX + 1), "the properties file is longer than 1048576 characters"),
        ("\n".join(f"k{n}=1" for n in range(ENTRIES_MAX + 1)), "has more than 4096 entries"),
    ],
)
def test_a_bad_file_is_refused_with_the_line(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties(text)
    assert sentence in str(caught.value)


def test_an_error_does_not_repeat_a_long_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties("=" + "x" * 100_000)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=200))
def test_any_text_parses_or_is_a_config_error(text: str) -> None:
    try:
        entries = parse_properties(text)
    except ConfigError:
        return
    assert all(entries)


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


@given(
    st.dictionaries(
        st.text(st.characters(max_codepoint=0xFFFF), min_size=1),
        st.text(st.characters(max_codepoint=0xFFFF)),
    )
)
def test_every_character_can_be_escaped(entries: dict[str, str]) -> None:
    text = "\n".join(f"{_escaped(key)}={_escaped(value)}" for key, value in entries.items())
    assert parse_properties(text) == entries
