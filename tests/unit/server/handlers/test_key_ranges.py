"""Which slices of a partition a fetch wants, as its handler reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE, KEY_RANGES_TAG, encode_ranges
from kraftpy.protocol.key_index import KeyRanges
from kraftpy.protocol.messages import FetchRequest
from kraftpy.server.handlers.range_fetch import note_key_ranges


def broker(level: int | None) -> Any:
    features = {} if level is None else {COOPERATIVE_FEATURE: level}
    return SimpleNamespace(metadata=SimpleNamespace(features=features))


def partition(content: bytes, tag: int = KEY_RANGES_TAG) -> FetchRequest.FetchPartition:
    wanted = FetchRequest.FetchPartition(0)
    wanted._tags = {tag: content}
    return wanted


def test_slices_in_order() -> None:
    found: list[KeyRanges] = []
    content = encode_ranges([(7, 9), (0, 3)])
    assert note_key_ranges(broker(1), partition(content), found) == ((0, 3), (7, 9))
    assert found == [((0, 3), (7, 9))]


@pytest.mark.parametrize("level", [None, 0])
@pytest.mark.parametrize("content", [encode_ranges([(0, 3)]), b"what a later release puts there"])
def test_without_the_feature_the_tag_is_nobodys(level: int | None, content: bytes) -> None:
    found: list[KeyRanges] = []
    assert note_key_ranges(broker(level), partition(content), found) is None
    assert found == []


def test_other_tags_are_nobodys() -> None:
    assert note_key_ranges(broker(1), partition(b"x", KEY_RANGES_TAG + 1), []) is None


@pytest.mark.parametrize("content", [b"", encode_ranges([]), encode_ranges([(3, 2)])])
def test_what_no_slices_can_be(content: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        note_key_ranges(broker(1), partition(content), [])
    assert refused.value.code is ErrorCode.INVALID_REQUEST
