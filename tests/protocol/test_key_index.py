"""The index of a batch by the hashes of its keys, and the batch with some of its records."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, hashes_of, key_hash
from kraftpy.protocol.key_index import (
    RECORD_BYTES,
    BatchCutter,
    KeyIndex,
    KeyRanges,
    Part,
    checked_key_ranges,
    index_records,
    key_index,
)
from kraftpy.protocol.record_batch import (
    LOG_APPEND_TIME,
    RECORD_BATCH_OVERHEAD,
    InvalidBatch,
)
from kraftpy.protocol.records import (
    Record,
    batch_data,
    build_batch,
    check_batch,
    encode_varint,
    iter_records,
    read_batch_header,
)

NOW = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
KEYS = [None, b"", b"a", b"b", b"c" * 63, b"d" * 64, b"e" * 9000]
ALL: KeyRanges = ((0, HASH_MAX),)


def slices(count: int) -> list[KeyRanges]:
    return [(hashes_of(SLOTS * i // count, SLOTS * (i + 1) // count - 1),) for i in range(count)]


def indexed(batch: bytes) -> tuple[Any, bytes, KeyIndex]:
    header = check_batch(batch)
    data = batch_data(header, batch)
    return header, data, key_index(header, data)


def cut(batch: bytes, ranges: KeyRanges) -> bytes | None:
    header, data, index = indexed(batch)
    pieces = index.pieces(data, index.numbers(ranges))
    assert len(pieces) == count(index, ranges)
    if not pieces:
        assert index.wanted(ranges, len(index)) is Part.NONE
    elif len(pieces) < 0.75 * len(index):
        assert index.wanted(ranges, len(index)) == index.numbers(ranges)
    else:
        assert index.wanted(ranges, len(index)) is Part.WHOLE
    return b"".join(BatchCutter(header).cut(pieces)) if pieces else None


def cut_one_by_one(batch: bytes, ranges: KeyRanges) -> bytes | None:
    """The same by way of records that are kept by themselves, of a batch as it is if it's plain."""
    header = check_batch(batch)
    data, start = batch_data(header, batch), 0
    if header.compression == "none":
        data, start = batch, RECORD_BATCH_OVERHEAD
    index, records = index_records(header, data, start)
    assert records == index.split(data, start)
    assert index.to_bytes() == indexed(batch)[2].to_bytes()
    pieces = index.pieces(records, index.numbers(ranges))
    return b"".join(BatchCutter(header).cut(pieces)) if pieces else None


def count(index: KeyIndex, ranges: KeyRanges) -> int:
    return len(index.numbers(ranges))


def cut_to(index: KeyIndex, ranges: KeyRanges) -> list[int]:
    numbers = index.wanted(ranges, 100)
    assert isinstance(numbers, list)
    return numbers


def wanted(record: Any, ranges: KeyRanges) -> bool:
    hash_ = key_hash(record.key, record.offset)
    return any(low <= hash_ <= high for low, high in ranges)


def test_the_halves_of_three_records() -> None:
    # Hashes: "" 0, "a" 8608764366449303928, no key at offset 1 5700357409661599242.
    records: list[Any] = [
        (NOW, b"", b"0", []),
        (NOW + 5, None, b"1", []),
        (NOW + 9, b"a", b"2", [("h", b"")]),
    ]
    batch = build_batch(records, producer_id=7, producer_epoch=2, base_sequence=40, leader_epoch=3)
    low, high = slices(2)
    first, second = cut(batch, low), cut(batch, high)
    assert first is not None
    assert second is not None
    assert [(r.offset, r.key, r.value) for r in iter_records(first)] == [(0, b"", b"0")]
    assert [(r.offset, r.timestamp, r.value, r.headers) for r in iter_records(second)] == [
        (1, NOW + 5, b"1", []),
        (2, NOW + 9, b"2", [("h", b"")]),
    ]
    assert cut(batch, ((1, 5), (9, 9))) is None
    assert cut(batch, ((0, 0), (5700357409661599242, 5700357409661599242))) is not None
    assert cut(batch, ((5700357409661599243, 8608764366449303927),)) is None
    same = (
        *("base_offset", "last_offset_delta", "base_timestamp", "max_timestamp", "producer_id"),
        *("producer_epoch", "base_sequence", "partition_leader_epoch", "attributes", "magic"),
    )
    for part, count in ((first, 1), (second, 2)):
        header, whole = check_batch(part), check_batch(batch)
        assert header.records_count == count
        assert [getattr(header, name) for name in same] == [getattr(whole, name) for name in same]


def test_a_record_takes_sixteen_bytes() -> None:
    _, data, index = indexed(build_batch([(NOW, b"%d" % n, b"v", []) for n in range(300)]))
    assert len(index.to_bytes()) == 300 * RECORD_BYTES == 4800
    assert len(index) == 300
    again = KeyIndex.from_bytes(index.to_bytes())
    assert len(again) == 300
    for ranges in slices(8):
        assert again.numbers(ranges) == index.numbers(ranges)
        assert again.pieces(data, again.numbers(ranges)) == index.pieces(
            data, index.numbers(ranges)
        )
        assert again.wanted(ranges, 100) == again.numbers(ranges)


@pytest.mark.parametrize("codec", CODECS)
def test_plain_stays_plain_and_the_rest_is_lz4(codec: str) -> None:
    records: list[Any] = [(NOW + n, b"%d" % n, b"v" * 100, []) for n in range(200)]
    batch = build_batch(
        records,
        compression=codec,
        transactional=True,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        timestamp_type=LOG_APPEND_TIME,
    )
    found = []
    for ranges in slices(8):
        part = cut(batch, ranges)
        assert part is not None
        header = check_batch(part)
        assert header.compression == ("none" if codec == "none" else "lz4")
        assert header.is_transactional
        assert header.timestamp_type == LOG_APPEND_TIME
        assert {record.timestamp for record in iter_records(part)} == {NOW + 199}
        found += [record.offset for record in iter_records(part)]
    assert sorted(found) == list(range(200))


def test_most_of_a_batch_is_all_of_it() -> None:
    _, _, index = indexed(build_batch([(NOW, b"%d" % n, b"", []) for n in range(100)]))
    hashes = sorted(key_hash(b"%d" % n, 0) for n in range(100))
    assert index.wanted(((0, hashes[0] - 1),), 100) is Part.NONE
    assert index.wanted(((0, hashes[0]),), 100) == index.numbers(((0, hashes[0]),))
    assert len(cut_to(index, ((0, hashes[73]),))) == 74
    assert index.wanted(((0, hashes[74]),), 100) is Part.WHOLE
    assert index.wanted(ALL, 100) is Part.WHOLE
    # Of two slices.
    first = (0, hashes[39])
    assert len(cut_to(index, (first, (hashes[40], hashes[73])))) == 74
    assert index.wanted((first, (hashes[40], hashes[74])), 100) is Part.WHOLE
    assert (
        index.wanted(((hashes[3] + 1, hashes[4] - 1), (hashes[4] + 1, hashes[5] - 1)), 100)
        is Part.NONE
    )


def test_more_than_are_looked_for_at_once_are_counted() -> None:
    _, _, index = indexed(build_batch([(NOW, b"%d" % n, b"", []) for n in range(100)]))
    hashes = sorted(key_hash(b"%d" % n, 0) for n in range(100))
    one, two = ((0, hashes[9]),), ((0, hashes[4]), (hashes[5], hashes[9]))
    for ranges in (one, two):
        assert index.wanted(ranges, 10) == index.numbers(ranges)
        assert index.wanted(ranges, 9) is Part.CUT


_keys = st.one_of(st.sampled_from(KEYS), st.binary(max_size=5))
_records = st.lists(
    st.tuples(
        st.integers(0, 10**10),
        _keys,
        st.one_of(st.none(), st.binary(max_size=200)),
        st.lists(st.tuples(st.sampled_from(["", "h"]), st.none()), max_size=2),
        st.integers(1, 300),
    ),
    min_size=1,
    max_size=40,
)
_bounds = st.lists(st.integers(0, HASH_MAX), min_size=2, max_size=10, unique=True).map(sorted)


@given(_records, _bounds, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_it_filters_as_one_would_by_hand(
    rows: list[Any], bounds: list[int], codec: str, base_offset: int
) -> None:
    records: list[Record] = []
    offset = base_offset - 1
    for timestamp, key, value, headers, gap in rows:
        offset += gap
        records.append(Record(offset, timestamp, key, value, headers))
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    ranges = tuple((low, high - 1) for low, high in zip(bounds[::2], bounds[1::2], strict=False))
    others = [-1, *(bound for pair in ranges for bound in (pair[0] - 1, pair[1])), HASH_MAX]
    rest = tuple(
        (low + 1, high) for low, high in zip(others[::2], others[1::2], strict=True) if low < high
    )
    for each in (ranges, rest, ALL):
        part = cut(batch, each)
        assert cut_one_by_one(batch, each) == part
        by_hand = [record for record in iter_records(batch) if wanted(record, each)]
        assert ([] if part is None else list(iter_records(part))) == by_hand
        if part is not None:
            before, after = read_batch_header(batch), check_batch(part)
            assert (after.base_offset, after.last_offset) == (base_offset, before.last_offset)


@pytest.mark.parametrize("base_offset", [0, 2**31 - 1000, 2**63 - 100_000])
def test_many_records_with_numbers_of_every_length(base_offset: int) -> None:
    """They are hashed some thousand at a time."""
    chosen = random.Random(base_offset)
    records, offset = [], base_offset
    for number in range(5001):
        key = chosen.choice([None, b"%d" % number, bytes(chosen.choice([0, 63, 64, 9000]))])
        timestamp = NOW + chosen.choice([0, 63, 64, 8191, 8192, 10**9])
        value = bytes(chosen.choice([0, 40, 100, 9000]))
        records.append(Record(offset, timestamp, key, value, []))
        offset += chosen.choice([1, 1, 1, 20])
    batch = build_batch(records, base_offset=base_offset)
    _, data, index = indexed(batch)
    assert [len(index), count(index, ALL)] == [5001, 5001]
    assert b"".join(index.pieces(data, index.numbers(ALL))) == data
    found = []
    for ranges in slices(3):
        part = cut(batch, ranges)
        assert part is not None
        assert cut_one_by_one(batch, ranges) == part
        mine = [record.offset for record in iter_records(part)]
        assert mine == [record.offset for record in records if wanted(record, ranges)]
        found += mine
    assert sorted(found) == [record.offset for record in records]


@given(st.binary(max_size=60), st.integers(0, 5))
def test_what_is_no_record_is_an_invalid_batch_and_nothing_worse(data: bytes, count: int) -> None:
    header = read_batch_header(build_batch([(NOW, b"k", b"v", [])]))
    header.records_count = count
    try:
        index = key_index(header, data)
    except InvalidBatch:
        return
    assert len(index) == count


@given(st.data())
def test_damaged_records_are_invalid_or_lie_within_their_batch(data: Any) -> None:
    batch = build_batch([(NOW, key, b"v" * 70, []) for key in KEYS[:6]])
    header = read_batch_header(batch)
    damaged = bytearray(batch_data(header, batch))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        index = key_index(header, bytes(damaged))
    except InvalidBatch:
        return
    pieces = index.pieces(bytes(damaged), index.numbers(ALL))
    assert b"".join(pieces) == damaged
    assert len(pieces) == header.records_count


def test_bytes_behind_the_records_are_no_part_of_a_batch() -> None:
    batch = build_batch([(NOW, b"k", b"v", [])])
    header = read_batch_header(batch)
    with pytest.raises(InvalidBatch, match="1 bytes left"):
        key_index(header, batch_data(header, batch) + b"\0")


@pytest.mark.parametrize("size", [11, 500_000])
def test_a_timestamp_of_more_than_ten_bytes_is_none(size: int) -> None:
    """Its bytes were counted one by one to its end, 20 ms for as much as is indexed at once."""
    batch = build_batch([(NOW, b"k", b"v", [])])
    data = batch_data(read_batch_header(batch), batch)
    longer = bytes([data[1]]) + b"\x80" * (size - 1) + data[2:]
    with pytest.raises(InvalidBatch, match="more than 64 bits"):
        key_index(read_batch_header(batch), encode_varint(len(longer)) + longer)


@pytest.mark.parametrize("late_ms", [63, 64, 8191, 8192, 1 << 20, 1 << 40, 2**63 - 1 - NOW])
def test_timestamps_of_every_length(late_ms: int) -> None:
    records: list[Any] = [
        (NOW, b"a", b"v", []),
        (NOW + late_ms, b"b", b"v", []),
        (NOW, None, None, []),
    ]
    _, data, index = indexed(build_batch(records))
    got = index.pieces(data, index.numbers(ALL))
    assert b"".join(got) == data
    for key in (b"a", b"b"):
        (number,) = index.numbers(((key_hash(key, 0), key_hash(key, 0)),))
        assert records[number][1] == key


def test_a_batch_without_records_has_an_empty_index() -> None:
    index = KeyIndex(array("q"), array("I"), array("I"))
    assert index.wanted(ALL, 100) is Part.NONE
    assert index.pieces(b"", index.numbers(ALL)) == []


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(5, 4)],
        [(-1, 4)],
        [(0, HASH_MAX + 1)],
        [(0, 5), (5, 9)],
        [(7, 9), (0, 7)],
        [(0, 5), (0, 5)],
        [(0, HASH_MAX), (3, 4)],
    ],
)
def test_what_no_slices_can_be(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(DecodeError):
        checked_key_ranges(ranges)


def test_slices_are_put_in_order() -> None:
    assert checked_key_ranges([(7, 9), (0, 0), (1, 5)]) == ((0, 0), (1, 5), (7, 9))
    assert checked_key_ranges([(0, HASH_MAX)]) == ALL
