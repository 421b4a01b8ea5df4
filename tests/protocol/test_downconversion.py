"""Batches as message sets of magic 0 and 1: kafka-python reads them, and so do we."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from kraftpy.protocol.compression import decompress
from kraftpy.protocol.downconversion import downconvert
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.legacy import iter_messages, upconvert
from kraftpy.protocol.record_batch import BatchHeader, InvalidBatch
from kraftpy.protocol.records import (
    LOG_APPEND_TIME,
    Record,
    batch_data,
    build_batch,
    iter_records,
    read_batch_header,
)

CODECS = ("none", "gzip", "snappy", "lz4")
MAGICS = (0, 1)
FIRST = 70_000_000_000

payloads = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), payloads), max_size=2)
contents = st.lists(
    st.tuples(st.integers(1, 3), st.integers(-1, 1 << 45), payloads, payloads, headers),
    min_size=1,
    max_size=15,
)


def records_of(content: list[Any]) -> list[Record]:
    """With the gaps that compaction leaves between offsets."""
    offset, found = FIRST - 1, []
    for gap, timestamp, key, value, own in content:
        offset += gap
        found.append(Record(offset, timestamp, key, value, own))
    return found


def opened(batch: bytes) -> tuple[BatchHeader, bytes]:
    header = read_batch_header(batch)
    return header, batch_data(header, batch)


def made(batch: bytes, magic: int, first_offset: int = 0) -> bytes:
    return downconvert(*opened(batch), magic, first_offset)[0]


def fields(records: Any) -> list[tuple[int, int | None, bytes | None, bytes | None]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in records]


def read_by_kafka_python(
    messages: bytes,
) -> list[tuple[int, int | None, bytes | None, bytes | None]]:
    reader, found = MemoryRecords(messages), []
    while (batch := reader.next_batch()) is not None:
        assert batch.validate_crc()
        found += fields(batch)
    return found


@pytest.mark.parametrize("codec", CODECS)
@given(magic=st.sampled_from(MAGICS), content=contents, data=st.data())
def test_301_what_is_made_has_the_same_records(
    codec: str, magic: int, content: list[Any], data: st.DataObject
) -> None:
    records = records_of(content)
    batch = build_batch(records, base_offset=FIRST - 5, compression=codec)
    first = data.draw(st.integers(0, records[-1].offset + 1))
    messages, count = downconvert(*opened(batch), magic, first)
    expected = [
        (offset, timestamp if magic else -1, key, value)
        for offset, timestamp, key, value in fields(records)
        if offset >= first
    ]
    assert fields(iter_messages(messages)) == expected
    assert count == len(expected)
    if (codec, magic) != ("lz4", 0):  # kafka-python needs another library for that one
        theirs = [(offset, time if magic else None, *rest) for offset, time, *rest in expected]
        assert read_by_kafka_python(messages) == theirs


@pytest.mark.parametrize("codec", CODECS)
@given(magic=st.sampled_from(MAGICS), content=contents)
def test_down_and_up_again_is_the_same_but_for_headers(
    codec: str, magic: int, content: list[Any]
) -> None:
    batch = build_batch([(timestamp, *rest) for _, timestamp, *rest in content], compression=codec)
    again = upconvert(made(batch, magic))
    assert read_batch_header(again).compression == codec
    assert fields(iter_records(again)) == [
        (offset, timestamp if magic else -1, key, value)
        for offset, timestamp, key, value in fields(iter_records(batch))
    ]


def test_offsets_inside_of_a_compressed_message() -> None:
    """KIP-31: from magic 1 on they count from the first one."""
    records = [Record(FIRST + n, 1, None, b"v", []) for n in (3, 5)]
    batch = build_batch(records, base_offset=FIRST, compression="gzip")
    for magic, offsets in ((0, [FIRST + 3, FIRST + 5]), (1, [0, 2])):
        messages = made(batch, magic)
        inner = decompress("gzip", messages[(26, 34)[magic] :], 1000)
        assert [record.offset for record in iter_messages(inner)] == offsets
        assert int.from_bytes(messages[:8], "big") == FIRST + 5


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_every_messages(codec: str) -> None:
    batch = build_batch(
        [(5, b"k", b"v", []), (77, b"k", b"w", [])],
        compression=codec,
        timestamp_type=LOG_APPEND_TIME,
    )
    messages = made(batch, 1)
    assert messages[17] & 8
    assert [record.timestamp for record in iter_messages(messages)] == [77, 77]
    found = MemoryRecords(messages).next_batch()
    assert next((record.timestamp, record.timestamp_type) for record in found) == (77, 1)
    assert [record.timestamp for record in iter_messages(made(batch, 0))] == [-1, -1]


def test_lz4_of_magic_0_has_the_wrong_header_checksum() -> None:
    """KAFKA-3160: its readers compute it over the frame's magic number as well."""
    batch = build_batch([(1, None, b"v" * 100, [])] * 10, compression="lz4")
    frames = [made(batch, magic) for magic in MAGICS]
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frames[0][26:])
    assert len(lz4.frame.decompress(frames[1][34:])) == 10 * 134


def test_zstd_is_unsupported() -> None:
    batch = build_batch([(1, None, b"v", [])], compression="zstd")
    for magic in MAGICS:
        with pytest.raises(KafkaError) as caught:
            made(batch, magic)
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_timestamps_of_more_than_64_bits_are_refused() -> None:
    header, data = opened(build_batch([(0, None, b"v", []), (5, None, b"v", [])]))
    header.base_timestamp = (1 << 63) - 2
    with pytest.raises(InvalidBatch, match="magic 1"):
        downconvert(header, data, 1, 0)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_records_raise_decode_error_only(seed: int) -> None:
    chosen = random.Random(seed)
    content = [(n, b"k" * n, b"v" * 3 * n, [("h", b"x")]) for n in range(30)]
    header, data = opened(build_batch(content))
    for _ in range(200):
        damaged = bytearray(data)
        damaged[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        for each in (damaged, damaged[: chosen.randrange(len(data))]):
            with contextlib.suppress(DecodeError):
                downconvert(header, bytes(each), chosen.choice(MAGICS), 0)
