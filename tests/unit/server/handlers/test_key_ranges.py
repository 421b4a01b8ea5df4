"""Which slices of a partition a fetch wants, as its handler reads them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE, KEY_RANGES_TAG, encode_ranges
from kraftpy.server.handlers.range_fetch import note_key_ranges, read_key_ranges
from kraftpy.server.replication.fetch_sessions import FetchPartition, Key

KEY = "t", 0
SLICES = encode_ranges([(7, 9), (0, 3)])


def noted(level: int | None, tags: dict[int, bytes]) -> dict[Key, bytes]:
    features = {} if level is None else {COOPERATIVE_FEATURE: level}
    broker: Any = SimpleNamespace(metadata=SimpleNamespace(features=features))
    found: dict[Key, bytes] = {}
    note_key_ranges(broker, KEY, tags, found)
    return found


@pytest.mark.parametrize("level", [None, 0])
def test_without_the_feature_the_tag_is_nobodys(level: int | None) -> None:
    assert noted(1, {KEY_RANGES_TAG: SLICES}) == {KEY: SLICES}
    assert noted(level, {KEY_RANGES_TAG: SLICES}) == {}


def test_other_tags_are_nobodys() -> None:
    assert noted(1, {KEY_RANGES_TAG + 1: SLICES}) == {}


def test_slices_are_put_in_order() -> None:
    wanted = [FetchPartition("t", index, 0, 1, -1, -1) for index in range(2)]
    asyncio.run(read_key_ranges(wanted, {KEY: SLICES}))
    assert [each.key_ranges for each in wanted] == [((0, 3), (7, 9)), None]


@pytest.mark.parametrize("content", [b"", encode_ranges([]), encode_ranges([(3, 2)])])
def test_what_no_slices_can_be(content: bytes) -> None:
    wanted = [FetchPartition(*KEY, 0, 1, -1, -1)]
    with pytest.raises(KafkaError) as refused:
        asyncio.run(read_key_ranges(wanted, {KEY: content}))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
