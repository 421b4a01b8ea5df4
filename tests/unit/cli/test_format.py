"""Formats of produce and consume."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.cli.format import FormatError, InputRecord, RecordReader, record_formatter
from kraftpy.protocol.records import Record

RECORD = Record(42, 1_700_000_000_000, b"key", b"va\xfflue", [("a", b"1"), ("b", None)])


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"%v\n", b"va\xfflue\n"),
        ("%s", b"va\xfflue"),
        (r"%t\t%p\t%o\t%k", b"topic\t3\t42\tkey"),
        ("%K %V %S", b"3 6 6"),
        ("%T", b"1700000000000"),
        ("%h", b"a=1,b="),
        ("100%% %k", b"100% key"),
        ("%v{hex} %k{base64}", b"7661ff6c7565 a2V5"),
        (r"\x00\x41\0\r\\", b"\0A\0\r\\"),
        ("no fields: ü", "no fields: ü".encode()),
        ("%%{x}", b"%{x}"),
    ],
)
def test_writing(text: str, written: bytes) -> None:
    assert record_formatter(text)("topic", 3, RECORD) == written


def test_what_is_not_there_is_written_as_nothing() -> None:
    assert record_formatter("[%k][%v]%K")("t", 0, Record(0, 0, None, None, [])) == b"[][]0"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("%x", "%x is not a field here"),
        ("%", "ends with a single %"),
        (r"\q", r"\\q is not an escape"),
        (r"\xZZ", r"is not \\x and two hexadecimal digits"),
        ("%v{hax}", "{hax} does not go with %v"),
        ("%t{hex}", "{hex} does not go with %t"),
    ],
)
def test_formats_that_make_no_sense(text: str, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        record_formatter(text)


def read(text: str, *chunks: bytes) -> list[InputRecord]:
    reader = RecordReader(text)
    return [record for chunk in chunks for record in reader.feed(chunk)] + [*reader.finish()]


def test_lines_however_they_are_cut() -> None:
    assert [r.value for r in read(r"%v\n", b"a\nb", b"b\n", b"\nlast")] == [
        b"a",
        b"bb",
        b"",
        b"last",
    ]


def test_a_separator_may_occur_in_the_last_field() -> None:
    (record,) = read(r"%k %v\n", b"k one two\n")
    assert (record.key, record.value) == (b"k", b"one two")


def test_all_fields() -> None:
    (record,) = read(r"%p;%T;%h;%k{hex};%v{base64}\n", b"2;1234;a=1,b=;6b6579;dmFsdWU=\n")
    assert record == InputRecord(
        value=b"value",
        key=b"key",
        partition=2,
        timestamp_ms=1234,
        headers=[("a", b"1"), ("b", b"")],
    )


def test_without_a_record_end_all_input_is_one_record() -> None:
    (record,) = read("%v", b"one\n", b"two\n")
    assert record.value == b"one\ntwo\n"


def test_text_in_front_of_the_first_field() -> None:
    assert [r.value for r in read(r"> %v\n", b"> a\n> b\n")] == [b"a", b"b"]
    with pytest.raises(FormatError, match="record 2 has no '> ' where it should be"):
        read(r"> %v\n", b"> a\nb\n")


@pytest.mark.parametrize(
    ("text", "data", "complaint"),
    [
        (r"%k %v\n", b"a b\nnosep\n", "record 2 has no ' ' behind its %k"),
        (r"%p %v\n", b"x v\n", "record 1: 'x' is no %p"),
        (r"%v{hex}\n", b"xyz\n", "is no %v{hex}"),
        (r"%v{base64}\n", b"!!\n", "is no %v{base64}"),
        (r"%h %v\n", b"novalue v\n", "is no %h"),
    ],
)
def test_input_that_does_not_follow_the_format(text: str, data: bytes, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        read(text, data)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (r"%k%v\n", "nothing separates %k from %v"),
        (r"%v %v\n", "occurs twice"),
        (r"%p\n", "neither %k nor %v"),
        (r"%o %v\n", "%o is not a field here"),
    ],
)
def test_formats_that_cannot_be_read(text: str, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        RecordReader(text)


def test_a_record_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kraftpy.cli.format.MAX_RECORD_SIZE_BYTES", 1000)
    with pytest.raises(FormatError, match="does not end within 1000 bytes"):
        read(r"%v\n", *[b"x" * 100] * 20)


@given(st.text("ab;", max_size=20), st.integers(1, 5))
def test_an_end_of_several_characters_is_found_wherever_it_is_cut(text: str, size: int) -> None:
    data = text.encode()
    whole = [record.value for record in read("%v;a;", data)]
    cut = read("%v;a;", *[data[i : i + size] for i in range(0, len(data), size)])
    assert [record.value for record in cut] == whole


def test_what_has_no_end_yet_is_not_gone_through_again() -> None:
    reader = RecordReader(r"%v\r\n")
    chunks = [b"a" * 100] * 50
    assert not [record for chunk in chunks for record in reader.feed(chunk)]
    assert reader._rest == chunks
    (record,) = reader.feed(b"\r\nb")
    assert record.value == b"a" * 5000
    assert reader._rest == [b"b"]


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), min_size=1, max_size=5),
    st.integers(1, 7),
)
def test_what_consume_writes_produce_reads(pairs: list[tuple[bytes, bytes]], size: int) -> None:
    text = r"%k{hex} %v{base64}\n"
    write = record_formatter(text)
    data = b"".join(write("t", 0, Record(0, 0, key, value, [])) for key, value in pairs)
    records = read(text, *[data[i : i + size] for i in range(0, len(data), size)])
    assert [(record.key, record.value) for record in records] == pairs
