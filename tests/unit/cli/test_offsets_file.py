"""Offsets of a group in a file."""

from __future__ import annotations

import json

import pytest

from kraftpy.cli.offsets_file import OffsetsFileError, WrittenOffset, offsets_csv, read_offsets
from kraftpy.client.offsets import OffsetAndMetadata, Partition

OFFSETS = {("orders", 0): 5, ("orders", 10): 2**63 - 1, ("pay", 2): 0}


def silent(offsets: dict[Partition, int]) -> dict[Partition, WrittenOffset]:
    """As read from a file that says nothing of metadata."""
    return {name: WrittenOffset(offset, None) for name, offset in offsets.items()}


def test_what_is_written_can_be_read() -> None:
    offsets = {name: OffsetAndMetadata(offset) for name, offset in OFFSETS.items()}
    text = offsets_csv("g", offsets)
    assert text == f"orders,0,5\norders,10,{2**63 - 1}\npay,2,0\n"
    assert read_offsets(text.encode(), "g") == silent(OFFSETS)


def test_metadata_takes_five_cells_in_every_line() -> None:
    texts = {("orders", 0): 'a, "b"\n', ("orders", 1): "", ("pay", 2): " ü "}
    offsets = {name: OffsetAndMetadata(5, text) for name, text in texts.items()}
    written = offsets_csv("g", offsets)
    assert written == 'g,orders,0,5,"a, ""b""\n"\ng,orders,1,5,\ng,pay,2,5, ü \n'
    found = read_offsets(written.encode(), "g")
    assert found == {name: WrittenOffset(5, text) for name, text in texts.items()}


@pytest.mark.parametrize("group", ["[a]", '{"a"', "[1", " g ", "a,b", '"g"', "a\r"])
@pytest.mark.parametrize("text", ["a\rb", "\r", "a\r\nb", "\n", '"', "x"])
def test_what_is_written_of_odd_groups_and_texts_can_be_read(group: str, text: str) -> None:
    written = offsets_csv(group, {("orders", 0): OffsetAndMetadata(5, text)})
    assert read_offsets(written.encode(), group) == {("orders", 0): WrittenOffset(5, text)}


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,5\npay,1,7\n",
        "\ufefforders,0,5\r\n\r\npay,1,7",
        '"orders",0,5\n"pay",1,7\n',
        "g,orders,0,5\nother,orders,0,9\ng,pay,1,7\n",
        " orders, 0, 5\npay ,1 ,7\n",
        json.dumps(
            [
                {"topic": "orders", "partition": 0, "offset": 5, "leader_epoch": 3},
                {"group": "g", "topic": "pay", "partition": 1, "offset": 7},
                {"group": "other", "topic": "pay", "partition": 1, "offset": 8},
            ]
        ),
    ],
)
def test_forms(text: str) -> None:
    assert read_offsets(text.encode(), "g") == silent({("orders", 0): 5, ("pay", 1): 7})


def test_metadata_in_json() -> None:
    rows = [
        {"topic": "t", "partition": n, "offset": 5, "metadata": m} for n, m in ((0, "m"), (1, ""))
    ]
    found = read_offsets(json.dumps(rows).encode(), "g")
    assert found == {("t", 0): WrittenOffset(5, "m"), ("t", 1): WrittenOffset(5, "")}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no offsets of group 'g'"),
        ("other,orders,0,5\n", "no offsets of group 'g'"),
        ("orders,0,5\norders,0,5\n", "line 2: orders-0 comes twice"),
        ("orders,0\n", "line 1 is not TOPIC,PARTITION,OFFSET"),
        ("orders,-1,5\n", "line 1: '-1' is no partition"),
        (f"orders,{2**31},5\n", "is no partition"),
        ("orders,0,-5\n", "line 1: '-5' is no offset"),
        (f"orders,0,{2**63}\n", "is no offset"),
        ("orders,٣,5\n", "is no partition"),
        (",0,5\n", "line 1: '' is no topic"),
        ('"orders,0,5\n', "line 1: "),
        ("[1]", "entry 1 is no object"),
        ("{}", "no list of objects"),
        ("[" * 100_000, "no JSON"),
        ('[{"topic": "t", "partition": true, "offset": 1}]', "entry 1: True is no partition"),
        ('[{"topic": "t", "partition": 1, "offset": 1.5}]', "entry 1: 1.5 is no offset"),
        ('[{"topic": 1, "partition": 1, "offset": 1}]', "entry 1: 1 is no topic"),
        (r'[{"topic": "\ud800", "partition": 1, "offset": 1}]', r"'\\ud800' is no topic"),
        ('[{"topic": "t", "partition": 1, "offset": 1, "metadata": 1}]', "entry 1: '1' is no met"),
        (f"g,t,1,1,{'x' * 2**15}\n", "line 1: 'x+' is no metadata"),
    ],
)
def test_what_makes_no_sense(text: str, why: str) -> None:
    with pytest.raises(OffsetsFileError, match=why):
        read_offsets(text.encode(), "g")


def test_what_is_not_utf8() -> None:
    with pytest.raises(OffsetsFileError, match="not UTF-8"):
        read_offsets(b"\xff,0,1\n", "g")
