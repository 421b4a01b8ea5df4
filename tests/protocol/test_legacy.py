"""Message sets of magic 0 and 1 as kafka-python builds them, and damaged ones."""

from __future__ import annotations

import contextlib
import struct
import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder

from kraftpy.protocol.compression import compress, xxh32_short
from kraftpy.protocol.errors import DecodeError, ErrorCode
from kraftpy.protocol.legacy import iter_messages, upconvert
from kraftpy.protocol.record_walk import OversizedBatch
from kraftpy.protocol.records import (
    COMPRESSION_NAMES,
    CorruptBatch,
    InvalidBatch,
    check_batch,
    check_producer_batch,
    iter_records,
)

payloads = st.none() | st.binary(max_size=200)
messages = st.lists(st.tuples(st.integers(0, 1 << 45), payloads, payloads), min_size=1, max_size=15)


def message(magic, value, *, attributes=0, offset=0, timestamp=0, key=None, junk=b"") -> bytes:
    """One entry of a message set, put together by hand."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for field in (key, value):
        body += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    body += junk
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def built_by_kafka_python(magic: int, codec: int, records) -> bytes:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for timestamp, key, value in records:
        builder.append(timestamp, key, value)
    builder.close()
    return bytes(builder.buffer())


# kafka-python needs another library for the lz4 of magic 0; that one is made by hand below.
KAFKA_PYTHON_FORMS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize(("magic", "codec"), KAFKA_PYTHON_FORMS)
@given(records=messages)
def test_we_read_what_kafka_python_builds(magic, codec, records):
    buf = built_by_kafka_python(magic, codec, records)
    expected = [
        (offset, timestamp if magic else -1, key, value)
        for offset, (timestamp, key, value) in enumerate(records)
    ]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in iter_messages(buf)] == expected

    batch = upconvert(memoryview(buf))
    header = check_batch(batch)
    check_producer_batch(header)
    assert header.compression == COMPRESSION_NAMES[codec]
    assert header.timestamp_type == 0
    assert [(r.offset, r.timestamp, r.key, r.value) for r in iter_records(batch)] == expected


@given(records=messages)
def test_uncompressed_messages_are_the_bytes_of_kafka_python(records):
    """The hand-made messages of this file are what others write."""
    for magic in (0, 1):
        by_hand = b"".join(
            message(magic, value, offset=offset, timestamp=timestamp, key=key)
            for offset, (timestamp, key, value) in enumerate(records)
        )
        builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
        for offset, (timestamp, key, value) in enumerate(records):
            builder.append(offset, timestamp, key, value)
        assert bytes(builder.build()) == by_hand


def with_kafkas_old_lz4_checksum(frame: bytes) -> bytes:
    """KAFKA-3160: the checksum went over the frame's magic too."""
    checksum = xxh32_short(frame[:6]) >> 8 & 0xFF
    return frame[:6] + bytes((checksum,)) + frame[7:]


def test_lz4_of_magic_0_has_a_wrong_header_checksum():
    inner = b"".join(message(0, b"v%d" % i, offset=i) for i in range(100))
    frame = with_kafkas_old_lz4_checksum(lz4.frame.compress(inner, store_size=False))
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frame)
    read = list(iter_messages(message(0, frame, attributes=3, offset=99)))
    assert [(r.offset, r.value) for r in read] == [(i, b"v%d" % i) for i in range(100)]


def test_relative_offsets_of_magic_1():
    """KIP-31: the wrapper has the offset of its last message; compaction leaves gaps."""
    inner = b"".join(message(1, b"", offset=offset) for offset in (0, 2, 7))
    wrapper = message(1, compress("gzip", inner), attributes=1, offset=1007)
    assert [r.offset for r in iter_messages(wrapper)] == [1000, 1002, 1007]
    assert [r.offset for r in iter_records(upconvert(wrapper))] == [0, 1, 2]


def test_absolute_offsets_of_magic_0():
    inner = b"".join(message(0, b"", offset=offset) for offset in (1000, 1007))
    wrapper = message(0, compress("gzip", inner), attributes=1, offset=1007)
    assert [r.offset for r in iter_messages(wrapper)] == [1000, 1007]


def test_log_append_time_of_the_wrapper_goes_to_all():
    inner = message(1, b"", timestamp=5, offset=0) + message(1, b"", timestamp=6, offset=1)
    for attributes, expected in ((1, [5, 6]), (1 | 8, [77, 77])):
        wrapper = message(1, compress("gzip", inner), attributes=attributes, timestamp=77)
        assert [r.timestamp for r in iter_messages(wrapper)] == expected
        assert [r.timestamp for r in iter_records(upconvert(wrapper))] == expected


def test_a_set_may_mix_plain_and_compressed_messages():
    inner = message(1, b"b", offset=0) + message(1, b"c", offset=1)
    mixed = (
        message(1, b"a", offset=4)
        + message(1, compress("snappy", inner), attributes=2, offset=6)
        + message(1, b"d", offset=7)
    )
    assert [(r.offset, r.value) for r in iter_messages(mixed)] == [
        (4, b"a"),
        (5, b"b"),
        (6, b"c"),
        (7, b"d"),
    ]
    assert check_batch(upconvert(mixed)).compression == "snappy"


PLAIN = message(1, b"value", key=b"key")


@pytest.mark.parametrize(
    ("buf", "error", "code"),
    [
        (b"", InvalidBatch, ErrorCode.INVALID_RECORD),
        (PLAIN[:-1], CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
        (PLAIN + b"\0" * 11, CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
        (PLAIN + b"\0" * 12, CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
        (PLAIN[:-1] + b"?", CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
        (message(2, b""), CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
        (struct.pack(">qi", 0, -5), CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
        (message(1, b"", junk=b"?"), InvalidBatch, ErrorCode.INVALID_RECORD),
        (message(0, b"", attributes=4), InvalidBatch, ErrorCode.INVALID_RECORD),
        (message(0, b"", attributes=5), InvalidBatch, ErrorCode.INVALID_RECORD),
        (message(1, None, attributes=1), InvalidBatch, ErrorCode.INVALID_RECORD),
        (message(1, compress("gzip", b""), attributes=1), InvalidBatch, ErrorCode.INVALID_RECORD),
        (
            message(1, compress("gzip", message(0, b"")), attributes=1),
            InvalidBatch,
            ErrorCode.INVALID_RECORD,
        ),
        (
            message(1, compress("gzip", message(1, b"", attributes=1)), attributes=1),
            InvalidBatch,
            ErrorCode.INVALID_RECORD,
        ),
        (
            message(1, compress("gzip", PLAIN[:-1]), attributes=1),
            CorruptBatch,
            ErrorCode.CORRUPT_MESSAGE,
        ),
        (
            message(1, compress("gzip", struct.pack(">qi", 0, -5)), attributes=1),
            CorruptBatch,
            ErrorCode.CORRUPT_MESSAGE,
        ),
        (
            message(1, b"", timestamp=-(1 << 63)) + message(1, b"", timestamp=(1 << 63) - 1),
            InvalidBatch,
            ErrorCode.INVALID_RECORD,
        ),
    ],
)
def test_bad_message_sets_are_refused(buf, error, code):
    with pytest.raises(error) as caught:
        upconvert(buf)
    assert type(caught.value) is error
    assert caught.value.code is code


def test_300_a_set_has_so_many_messages_and_no_more():
    plain = message(1, b"v") * 4
    wrapped = message(1, compress("gzip", plain), attributes=1)
    for messages_ in (plain, wrapped):
        assert check_batch(upconvert(messages_, max_records=4)).records_count == 4
        with pytest.raises(OversizedBatch) as caught:
            upconvert(messages_, max_records=3)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_wrapper_inside_of_a_wrapper_is_not_opened():
    """Each layer of compression could multiply by a thousand."""
    bomb = message(0, compress("gzip", bytes(1 << 20)), attributes=1)
    with pytest.raises(InvalidBatch, match="inside"):
        upconvert(message(0, compress("gzip", bomb), attributes=1))


def test_the_limit_counts_all_wrappers_together():
    inner = message(1, bytes(60_000))
    wrapper = message(1, compress("gzip", inner), attributes=1)
    assert len(list(iter_messages(wrapper * 2, max_size_bytes=2 * len(inner)))) == 2
    with pytest.raises(OversizedBatch, match="more than"):
        list(iter_messages(wrapper * 2, max_size_bytes=2 * len(inner) - 1))
    with pytest.raises(OversizedBatch, match="more than"):
        upconvert(wrapper * 2, max_size_bytes=2 * len(inner) - 1)


@pytest.mark.parametrize(("magic", "codec"), KAFKA_PYTHON_FORMS)
@given(records=messages, data=st.data())
def test_damage_raises_decode_error_only(magic, codec, records, data):
    buf = bytearray(built_by_kafka_python(magic, codec, records))
    cut = data.draw(st.integers(0, len(buf)))
    for at in data.draw(st.lists(st.integers(0, len(buf) - 1), max_size=3)):
        buf[at] = data.draw(st.integers(0, 255))
    for damaged in (bytes(buf[:cut]), with_valid_checksum(bytes(buf))):
        with contextlib.suppress(DecodeError):
            check_batch(upconvert(damaged, max_size_bytes=1 << 20))


def with_valid_checksum(buf: bytes) -> bytes:
    """Damage that the first message's checksum does not give away."""
    (size,) = struct.unpack_from(">i", buf, 8)
    body = buf[16 : 12 + size] if size >= 4 else b""
    return buf[:12] + struct.pack(">I", zlib.crc32(body)) + body + buf[16 + len(body) :]


@given(st.binary(max_size=150), st.integers(0, 3))
def test_random_wrapped_bytes_raise_decode_error_only(data, codec):
    packed = compress(COMPRESSION_NAMES[codec], data) if codec else data
    for magic in (0, 1):
        for buf in (data, message(magic, packed, attributes=codec)):
            with contextlib.suppress(DecodeError):
                list(iter_messages(buf, max_size_bytes=1000))


def test_short_lz4_frames_of_old_messages():
    for size in range(12):
        with pytest.raises(DecodeError):
            upconvert(message(0, (b"\x04\x22\x4d\x18" + bytes(9))[:size], attributes=3))
