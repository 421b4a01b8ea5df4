"""Offsets of consume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kraftpy.cli import offset_spec
from kraftpy.cli.offset_spec import OffsetError, OffsetSpec, parse_offset, resolve
from kraftpy.client.cluster import Cluster
from kraftpy.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, Partition


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("start", OffsetSpec("start")),
        ("end", OffsetSpec("end")),
        ("-10", OffsetSpec("last", 10)),
        ("+5", OffsetSpec("after", 5)),
        ("42", OffsetSpec("exact", 42)),
        ("0", OffsetSpec("exact", 0)),
        ("@1700000000000", OffsetSpec("time", 1_700_000_000_000)),
        ("@2023-11-14T22:13:20Z", OffsetSpec("time", 1_700_000_000_000)),
        ("@2023-11-14T23:13:20+01:00", OffsetSpec("time", 1_700_000_000_000)),
        (":end", OffsetSpec("start", until_end=True)),
        ("-10:end", OffsetSpec("last", 10, until_end=True)),
        ("@1700000000000:end", OffsetSpec("time", 1_700_000_000_000, until_end=True)),
    ],
)
def test_offsets(text: str, spec: OffsetSpec) -> None:
    assert parse_offset(text) == spec


@pytest.mark.parametrize(
    ("text", "value"),
    [("@-30s", 1_699_999_970_000), ("@-90m", 1_699_994_600_000), ("@-1d", 1_699_913_600_000)],
)
def test_times_ago(text: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_spec.time, "time", lambda: 1_700_000_000.0)
    assert parse_offset(text) == OffsetSpec("time", value)
    assert parse_offset("@-999999999d") == OffsetSpec("time", 0)


@pytest.mark.parametrize(
    "text", ["", "begin", "--5", "5-", "1.5", "+", "-", "@", "@noon", "@-5", "@5m", "1" * 19]
)
def test_invalid_offsets(text: str) -> None:
    with pytest.raises(OffsetError, match=r"is none of start, end|is neither milliseconds"):
        parse_offset(text)


A, B = ("t", 0), ("t", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", {A: 5, B: 0}),
        ("end", {A: 100, B: 0}),
        ("-10", {A: 90, B: 0}),
        ("-1000", {A: 5, B: 0}),
        ("+5", {A: 10, B: 0}),
        ("+1000", {A: 100, B: 0}),
        ("42", {A: 42, B: 42}),
        ("@77", {A: 77, B: 0}),
    ],
)
def test_where_they_are(
    text: str, expected: dict[Partition, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 holds offsets 5 to 99, each with itself as timestamp; partition 1 is empty."""

    async def list_offsets(
        cluster: Any, asked: Mapping[Partition, int], *, isolation: int = READ_UNCOMMITTED
    ) -> dict[Partition, int]:
        assert isolation == READ_UNCOMMITTED
        logs = {A: {EARLIEST: 5, LATEST: 100, 77: 77}, B: {EARLIEST: 0, LATEST: 0, 77: -1}}
        return {name: logs[name][when] for name, when in asked.items()}

    monkeypatch.setattr(offset_spec, "list_offsets", list_offsets)
    cluster = Cluster("unused:1")
    found, ends = asyncio.run(resolve(cluster, [A, B], parse_offset(text)))
    assert found == expected
    assert ends == {A: 100, B: 0}
