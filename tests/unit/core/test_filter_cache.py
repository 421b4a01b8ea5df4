"""What is kept of batches whose slices are read by several consumers."""

from __future__ import annotations

import random
import sys
import tracemalloc
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.filter_cache import (
    BOUND_BYTES,
    ENTRY_BYTES,
    HOT_BYTES,
    RECORD_OBJECT_BYTES,
    SERVED_MAX,
    SERVED_STEP,
    TOGETHER_MAX,
    BatchKey,
    FilterCache,
    FilterEntry,
)
from kraftpy.protocol.key_hash import HASH_MAX
from kraftpy.protocol.key_index import KeyIndex, KeyRanges
from kraftpy.protocol.record_batch import RECORD_BATCH_OVERHEAD
from kraftpy.protocol.records import build_batch, read_batch_header

HALF = HASH_MAX // 2


def key(number: int) -> BatchKey:
    return b"topic", 0, number.to_bytes(RECORD_BATCH_OVERHEAD, "big")


def serve(cache: FilterCache, number: int, ranges: KeyRanges) -> None:
    """As who reads does."""
    entry = cache.get(key(number))
    if entry is not None:
        cache.serve(key(number), entry, ranges)


def entry(records: int) -> FilterEntry:
    numbers = range(records)
    header = read_batch_header(build_batch([(0, b"", b"", [])]))
    return FilterEntry(
        header, KeyIndex(array("q", numbers), array("I", numbers), array("I", numbers))
    )


def test_what_was_used_longest_ago_goes() -> None:
    cache = FilterCache(3 * (ENTRY_BYTES + 160))
    for number in range(3):
        cache.put(key(number), entry(10))
    assert cache.used_bytes == 3 * (ENTRY_BYTES + 160)
    assert cache.get(key(0)) is not None
    cache.put(key(3), entry(10))
    assert [cache.get(key(n)) is not None for n in range(4)] == [True, False, True, True]
    assert len(cache) == 3


def test_what_alone_does_not_fit_is_not_kept() -> None:
    cache = FilterCache(ENTRY_BYTES + 160)
    cache.put(key(0), entry(11))
    assert (len(cache), cache.used_bytes) == (0, 0)
    cache.put(key(0), entry(10))
    assert len(cache) == 1
    cache.hold(key(0), bytes(1), lasting=True)
    assert cache.used_bytes == ENTRY_BYTES + 160, "its records aren't kept"


def test_nothing_goes_for_what_alone_does_not_fit() -> None:
    cache = FilterCache(3 * (ENTRY_BYTES + 160))
    for number in range(3):
        cache.put(key(number), entry(10))
    cache.put(key(3), entry(1000))
    assert not cache.make_room(4 * ENTRY_BYTES)
    for lasting in (True, False):
        cache.hold(key(2), bytes(3 * ENTRY_BYTES), lasting=lasting)
    assert [cache.get(key(n)) is not None for n in range(4)] == [True, True, True, False]


def test_room_for_much_is_made_in_turns() -> None:
    cache = FilterCache(3000 * (ENTRY_BYTES + 16))
    for number in range(3000):
        cache.put(key(number), entry(1))
    left = [len(cache)]
    while cache.make_room(2500 * (ENTRY_BYTES + 16)):
        left.append(len(cache))
    assert all(0 < before - after <= TOGETHER_MAX for before, after in pairwise(left))
    assert (len(left), len(cache)) == (3, 500)
    assert cache.get(key(2500)) is not None


def test_kept_records_count() -> None:
    cache = FilterCache(10_000)
    cache.put(key(0), entry(2))
    cache.hold(key(0), bytes(500), lasting=True)
    cache.hold(key(0), bytes(600), lasting=False)
    cache.hold(key(1), bytes(600), lasting=True)
    assert cache.used_bytes == ENTRY_BYTES + 32 + 500
    kept = cache.get(key(0))
    assert kept is not None
    assert kept.records == bytes(500)
    cache.put(key(0), entry(2))
    assert (len(cache), cache.used_bytes) == (1, ENTRY_BYTES + 32)


def test_records_that_are_kept_one_by_one_count_each() -> None:
    cache = FilterCache(10_000)
    cache.put(key(0), entry(2))
    cache.hold(key(0), [bytes(300), bytes(200)], lasting=False)
    assert cache.used_bytes == ENTRY_BYTES + 32 + 500 + 2 * RECORD_OBJECT_BYTES
    kept = cache.get(key(0))
    assert kept is not None
    assert kept.records == [bytes(300), bytes(200)]
    cache.discard(key(0))
    assert cache.used_bytes == 0


def test_records_that_nobody_asked_to_keep_stay_for_a_moment() -> None:
    cache = FilterCache(1 << 30)
    third = HOT_BYTES // 3
    for number in range(4):
        cache.put(key(number), entry(1))
        cache.hold(key(number), bytes(third), lasting=False)
    held = [made.records is not None for n in range(4) if (made := cache.get(key(n)))]
    assert held == [False, True, True, True]
    assert cache.used_bytes == 4 * (ENTRY_BYTES + 16) + 3 * third
    cache.discard(key(2))
    cache.hold(key(0), bytes(third), lasting=False)
    held = [made.records is not None for n in range(4) if (made := cache.get(key(n)))]
    assert held == [True, True, True]
    cache.put(key(9), entry(1))
    cache.hold(key(9), bytes(HOT_BYTES + 1), lasting=False)
    assert cache.used_bytes == 4 * (ENTRY_BYTES + 16) + 3 * third
    for number in (0, 1, 3, 9):
        cache.discard(key(number))
    assert cache.used_bytes == 0


def test_an_entry_goes_when_all_hashes_have_been_served() -> None:
    cache = FilterCache(10_000)
    cache.put(key(0), entry(1))
    serve(cache, 0, ((0, HALF),))
    serve(cache, 0, ((0, HALF),))
    serve(cache, 0, ((HALF + 2, HASH_MAX),))
    assert cache.get(key(0)) is not None
    serve(cache, 0, ((HALF + 1, HALF + 1),))
    assert (cache.get(key(0)), cache.used_bytes) == (None, 0)
    serve(cache, 0, ((0, HASH_MAX),))  # somebody comes late


def test_slices_in_any_order() -> None:
    cache, numbers = FilterCache(10_000), random.Random(3)
    bounds = [0, *sorted(numbers.sample(range(1, HASH_MAX), 63)), HASH_MAX + 1]
    slices = [(low, high - 1) for low, high in pairwise(bounds)]
    numbers.shuffle(slices)
    cache.put(key(0), entry(1))
    for place, each in enumerate(slices):
        assert len(cache) == 1, place
        serve(cache, 0, (each,))
    assert len(cache) == 0


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12))
def test_slices_of_several_deals(pairs: list[tuple[int, int]]) -> None:
    """Those of another deal overlap: what counts is that all hashes have been served."""
    cache, unserved = FilterCache(10_000), set(range(13))
    step = (HASH_MAX + 1) // 13 + 1
    cache.put(key(0), entry(1))
    for pair in pairs:
        first, last = sorted(pair)
        unserved -= set(range(first, last + 1))
        serve(cache, 0, ((first * step, min((last + 1) * step - 1, HASH_MAX)),))
        assert len(cache) == (1 if unserved else 0)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="measures its objects")
def test_it_takes_what_it_says() -> None:
    cache = FilterCache(1 << 30)
    tracemalloc.start()
    try:
        for number in range(200):
            made, its_key = (
                entry(500),
                (b"t" * 16, 0, number.to_bytes(RECORD_BATCH_OVERHEAD, "big")),
            )
            cache.put(its_key, made)
            if number % 2:
                records = [b"%0100d" % each for each in range(500)]
                cache.hold(its_key, records, lasting=False)
            for lane in range(SERVED_STEP // 2):
                cache.serve(its_key, made, ((lane << 50, lane << 50),))
            behind = (number + 1000).to_bytes(RECORD_BATCH_OVERHEAD, "big")
            made.following = number << 32, (b"t" * 16, 0, behind)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= cache.used_bytes
    assert taken >= 0.9 * 200 * 500 * 16


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="measures its objects")
def test_what_is_noted_of_slices_counts_and_has_a_limit() -> None:
    cache = FilterCache(1 << 30)
    for number in range(100):
        cache.put(key(number), entry(1))
    before = cache.used_bytes
    keys = [key(number) for number in range(100)]
    tracemalloc.start()
    try:
        for number, its_key in enumerate(keys):
            made = cache.get(its_key)
            assert made is not None
            for lane in range(number, SERVED_MAX // 2):
                cache.serve(its_key, made, ((lane << 50, lane << 50),))
            assert len(made.served) == SERVED_MAX - 2 * number
            del made
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * taken <= cache.used_bytes - before <= 1.3 * taken
    most = BOUND_BYTES * (SERVED_MAX - SERVED_STEP)
    for lane in range(10_000):
        serve(cache, 99, ((lane << 40, lane << 40),))
        made = cache.get(key(99))
        assert made is not None
        assert len(made.served) <= SERVED_MAX
        assert made.size_bytes <= ENTRY_BYTES + 16 + most
    for number in range(100):
        cache.discard(key(number))
    assert cache.used_bytes == 0


def test_what_is_noted_of_slices_finds_its_place_or_goes() -> None:
    cache = FilterCache(2 * (ENTRY_BYTES + 16) + 100)
    for number in range(2):
        cache.put(key(number), entry(1))
    for lane in range(SERVED_STEP):
        serve(cache, 1, ((lane << 50, lane << 50),))
    assert [cache.get(key(number)) is not None for number in range(2)] == [False, True]
    assert cache.used_bytes == ENTRY_BYTES + 16 + BOUND_BYTES * SERVED_STEP
