"""Offsets of a group in a file."""

from __future__ import annotations

import json

import pytest

from kraftpy.cli.offsets_file import OffsetsFileError, offsets_csv, read_offsets

OFFSETS = {("orders", 0): 5, ("orders", 10): 2**63 - 1, ("pay", 2): 0}


def test_what_is_written_can_be_read() -> None:
    assert offsets_csv(OFFSETS) == f"orders,0,5\norders,10,{2**63 - 1}\npay,2,0\n"
    assert read_offsets(offsets_csv(OFFSETS).encode(), "g") == OFFSETS


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
                {"topic": "orders", "partition": 0, "offset": 5, "metadata": "m"},
                {"group": "g", "topic": "pay", "partition": 1, "offset": 7},
                {"group": "other", "topic": "pay", "partition": 1, "offset": 8},
            ]
        ),
    ],
)
def test_forms(text: str) -> None:
    assert read_offsets(text.encode(), "g") == {("orders", 0): 5, ("pay", 1): 7}


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
    ],
)
def test_what_makes_no_sense(text: str, why: str) -> None:
    with pytest.raises(OffsetsFileError, match=why):
        read_offsets(text.encode(), "g")


def test_what_is_not_utf8() -> None:
    with pytest.raises(OffsetsFileError, match="not UTF-8"):
        read_offsets(b"\xff,0,1\n", "g")
