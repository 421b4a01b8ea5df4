"""The lake's small files: what is written is read back, and damage is told."""

import json
from typing import Any

import pytest

from kraftpy.pipeline.manifests import (
    DataFile,
    Manifest,
    ManifestError,
    Plan,
    TopicIdentity,
    decode_manifest,
    decode_plan,
    encode,
)
from kraftpy.pipeline.ranges import OffsetRange

TOPICS = {"flights": TopicIdentity("cluster", "topic-id")}
RANGES = (OffsetRange("flights", 0, 5, 9), OffsetRange("flights", 1, 0, 0))
FILE = DataFile("topic=flights/partition=0/x.parquet", "flights", 0, 5, 8, 4, 100, -1, 7, "ab")
MANIFEST = Manifest(
    3, "run-1", "rerun", 1_000, TOPICS, RANGES, (FILE,), ("gone.parquet",), TOPICS, 7
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode_manifest("m", encode(MANIFEST)) == MANIFEST


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = Plan("run-1", "load", TOPICS, RANGES, {"isolation": "read_committed"}, 1_000)
    assert decode_plan("p", encode(plan)) == plan


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("version", "3"),
        ("version", True),
        ("run", None),
        ("kind", "delete"),
        ("topics", []),
        ("topics", {"flights": {}}),
        ("topics", {"flights": {"cluster_id": "c"}}),
        ("ranges", [["flights", 0, 5]]),
        ("ranges", [["flights", 0, 5, 4]]),
        ("ranges", [["flights", -1, 0, 4]]),
        ("ranges", [[0, 0, 0, 4]]),
        ("add", [{"path": "x"}]),
        ("add", [{**json.loads(encode(MANIFEST))["add"][0], "path": "../x"}]),
        ("add", [{**json.loads(encode(MANIFEST))["add"][0], "path": "/x"}]),
        ("add", [{**json.loads(encode(MANIFEST))["add"][0], "rows": "4"}]),
        ("remove", [1]),
        ("remove", None),
        ("written", None),
        ("add", [{**json.loads(encode(MANIFEST))["add"][0], "colour": "red"}]),
    ],
)
def test_a_field_of_another_kind_is_named_with_its_file(key: str, value: Any) -> None:
    content = {**json.loads(encode(MANIFEST)), key: value}
    with pytest.raises(ManifestError, match=r"versions/3\.json"):
        decode_manifest("versions/3.json", json.dumps(content).encode())


@pytest.mark.parametrize("name", ["targets", "written", "add", "remove", "ranges", "topics"])
def test_a_manifest_has_all_of_its_fields(name: str) -> None:
    """One that lacks some may be of a later format, and isn't the same as one that has none."""
    content = json.loads(encode(MANIFEST))
    del content[name]
    with pytest.raises(ManifestError, match=f"m has no {name}"):
        decode_manifest("m", json.dumps(content).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", encode(MANIFEST)[:-40]])
def test_what_is_no_json_object_is_told(data: bytes) -> None:
    with pytest.raises(ManifestError, match="m isn't"):
        decode_manifest("m", data)
