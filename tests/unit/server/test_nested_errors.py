"""Errors inside answers are found wherever the schema has them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given

from kraftpy.protocol import messages
from kraftpy.protocol.api import ADVERTISED, RESPONSE_NAMES, ApiKey
from kraftpy.protocol.messages import Message
from kraftpy.server import nested_errors
from kraftpy.server.nested_errors import count_errors, error_paths
from tests.protocol.random_messages import SEEDS, RandomMessages, examples

LATEST = [(key, high) for key, (_, high) in ADVERTISED.items() if key in RESPONSE_NAMES]
OURS = [row for row in LATEST if row[0] not in (ApiKey.PRODUCE, ApiKey.FETCH)]


def everywhere(value: Any, *, nested: bool = False) -> Counter[int]:
    """Every error code below the top, the slow way."""
    found: Counter[int] = Counter()
    if isinstance(value, list):
        for each in value:
            found += everywhere(each, nested=True)
    elif isinstance(value, Message):
        if nested and getattr(value, "error_code", 0):
            found[value.error_code] += 1
        for name in value.__slots__:
            if not name.startswith("_"):
                found += everywhere(getattr(value, name), nested=nested)
    return found


@pytest.mark.parametrize(("key", "version"), OURS, ids=str)
@examples(10)
@given(seed=SEEDS)
def test_all_are_counted_and_nothing_else(key: ApiKey, version: int, seed: int) -> None:
    response = RandomMessages(seed, plausible=True).message(RESPONSE_NAMES[key], version)
    errors: Counter[int] = Counter()
    count_errors(response, error_paths(key, version), errors)
    wanted = everywhere(response)
    assert {code: n for code, n in errors.items() if n} == dict(wanted)


def test_what_is_looked_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested_errors, "LOOKED_AT_MAX", 5)
    kinds = messages.OffsetCommitResponse
    partition = kinds.OffsetCommitResponsePartition(partition_index=0, error_code=16)
    topic = kinds.OffsetCommitResponseTopic(name="t", partitions=[partition] * 4)
    errors: Counter[int] = Counter()
    count_errors(kinds(topics=[topic] * 4), error_paths(ApiKey.OFFSET_COMMIT, 9), errors)
    assert errors == {16: 5}


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH])
def test_the_hot_paths_are_not_looked_through(key: ApiKey) -> None:
    assert error_paths(key, ADVERTISED[key][1]) == ()
