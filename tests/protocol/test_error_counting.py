"""Errors inside answers are found wherever the schema has them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given

from kraftpy.protocol import messages
from kraftpy.protocol.api import RESPONSE_NAMES, ApiKey
from kraftpy.protocol.codec import error_counter
from kraftpy.protocol.message import Message
from tests.protocol.random_messages import SEEDS, RandomMessages, all_versions, examples

LATEST = [(key, all_versions(RESPONSE_NAMES[key])[-1]) for key in ApiKey]


def everywhere(value: Any) -> Counter[int]:
    """Every error code, the slow way."""
    found: Counter[int] = Counter()
    if isinstance(value, list):
        for each in value:
            found += everywhere(each)
    elif isinstance(value, Message):
        if getattr(value, "error_code", 0):
            found[value.error_code] += 1
        for name in value.__slots__:
            if not name.startswith("_"):
                found += everywhere(getattr(value, name))
    return found


def counted(message: Any, version: int, parts_max: int) -> dict[int, int]:
    errors: Counter[int] = Counter()
    count = error_counter(type(message).__name__, version, parts_max)
    if count is not None:
        count(message, errors)
    return {code: n for code, n in errors.items() if n}


@pytest.mark.parametrize(("key", "version"), LATEST, ids=str)
@examples(10)
@given(seed=SEEDS)
def test_all_are_counted_and_nothing_else(key: ApiKey, version: int, seed: int) -> None:
    response = RandomMessages(seed, plausible=True).message(RESPONSE_NAMES[key], version)
    assert counted(response, version, 1 << 20) == dict(everywhere(response))


def test_what_is_looked_at_is_bounded() -> None:
    kinds = messages.OffsetCommitResponse
    partition = kinds.OffsetCommitResponsePartition(partition_index=0, error_code=16)
    topic = kinds.OffsetCommitResponseTopic(name="t", partitions=[partition] * 4)
    assert counted(kinds(topics=[topic] * 4), 9, 5) == {16: 5}


def test_each_kind_is_looked_at_for_itself() -> None:
    kinds = messages.MetadataResponse
    partition = kinds.MetadataResponsePartition(error_code=5)
    topic = kinds.MetadataResponseTopic(error_code=3, name="t", partitions=[partition] * 3)
    assert counted(kinds(topics=[topic] * 4), 12, 4) == {3: 4, 5: 4}


def test_the_parts_can_be_left_out() -> None:
    kinds = messages.FetchResponse
    partition = kinds.PartitionData(error_code=1)
    topic = kinds.FetchableTopicResponse(partitions=[partition])
    assert counted(kinds(error_code=70, responses=[topic]), 13, 0) == {70: 1}


def test_an_answer_without_errors_has_no_counter() -> None:
    assert error_counter("ProduceResponse", 11, 0) is None
    assert error_counter("SaslHandshakeResponse", 1, 0) is not None
