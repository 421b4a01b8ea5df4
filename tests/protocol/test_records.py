"""Record batches against kafka-python and aiokafka, in both directions, and against damage."""

from __future__ import annotations

import random
import struct
import subprocess
import sys

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.records import (
    COMPRESSION_NAMES,
    RECORD_BATCH_OVERHEAD,
    CorruptBatch,
    EndTxnMarker,
    InvalidBatch,
    Record,
    UnsupportedMagic,
    build_batch,
    build_end_txn_marker,
    check_batch,
    check_producer_batch,
    find_timestamp,
    iter_records,
    max_timestamp_of,
    read_batch_header,
    read_end_txn_marker,
    split_batches,
    stamp_batch,
    stamp_log_append_time,
)

CODECS = range(5)

timestamps = st.integers(-(1 << 40), 1 << 50)
payloads = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), payloads), max_size=3)
record_lists = st.lists(st.tuples(timestamps, payloads, payloads, headers), min_size=1, max_size=20)


def refresh_crc(batch: bytes) -> bytes:
    """The batch with the checksum that its bytes should have."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def with_field(batch: bytes, fmt: str, at: int, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(fmt, changed, at, value)
    return refresh_crc(bytes(changed))


def with_body(body: bytes, count: int = 1) -> bytes:
    """An uncompressed batch with these bytes as its records."""
    batch = build_batch([(0, None, None, [])])[:RECORD_BATCH_OVERHEAD] + body
    batch = with_field(batch, ">i", 8, len(batch) - 12)
    return with_field(batch, ">i", 57, count)


def as_tuples(batch: bytes) -> list[tuple]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in iter_records(batch)]


# The checksum


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksum_is_crc_32c(data, expected):
    """Vectors of RFC 3720, B.4; docs/rules.md, rule 24: zlib.crc32 is another checksum."""
    assert crc32c(data) == expected


def test_checksum_leaves_out_what_the_leader_stamps():
    batch = bytearray(build_batch([(5, b"k", b"v", [])]))
    stamp_batch(batch, 0, 1 << 40, 77)
    header = check_batch(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 40, 77)
    assert next(iter_records(batch)).offset == 1 << 40


def test_stamping_touches_only_the_batch_at_its_position():
    one = build_batch([(5, b"k", b"v", [])])
    two = bytearray(one + one)
    stamp_batch(memoryview(two), len(one), 9, 3)
    assert two[: len(one)] == one
    assert [h.base_offset for _, h in split_batches(two)] == [0, 9]


# Against other implementations


@given(records=record_lists)
def test_others_read_what_we_build(records):
    expected = [(i, *record) for i, record in enumerate(records)]
    for codec in COMPRESSION_NAMES:
        batch = build_batch(records, compression=codec, producer_id=4, producer_epoch=2)
        aiokafkas = AiokafkaBatch(batch)
        assert aiokafkas.validate_crc(), codec
        for batch_of_theirs in (MemoryRecords(batch).next_batch(), aiokafkas):
            read = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch_of_theirs]
            assert read == expected, codec


@given(records=record_lists)
def test_we_read_what_kafka_python_builds(records):
    for codec in CODECS:
        builder = MemoryRecordsBuilder(
            magic=2,
            compression_type=codec,
            batch_size=1 << 20,
            producer_id=9,
            producer_epoch=3,
            base_sequence=70,
            transactional=True,
        )
        for timestamp, key, value, record_headers in records:
            builder.append(timestamp, key, value, record_headers)
        builder.close()
        buf = bytes(builder.buffer())
        ((_, header),) = split_batches(buf)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 70)
        assert header.is_transactional
        assert not header.is_control
        assert header.last_sequence == 69 + len(records)
        assert header.max_timestamp == max(r[0] for r in records)
        assert as_tuples(buf) == [(i, *record) for i, record in enumerate(records)], codec
        check_producer_batch(header)


@given(records=record_lists)
def test_same_bytes_as_aiokafka(records):
    builder = AiokafkaBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, record_headers) in enumerate(records):
        assert builder.append(offset, timestamp, key, value, record_headers) is not None
    expected = bytearray(builder.build())
    ours = build_batch(records, leader_epoch=struct.unpack_from(">i", expected, 12)[0])
    # aiokafka takes the record with the largest timestamp of all as its start; Kafka the first.
    assert ours == bytes(expected)


# Building


def test_records_keep_their_offsets_and_gaps():
    records = [Record(10, 5, b"a", None, []), Record(17, 3, None, b"b", [("h", None)])]
    batch = build_batch(records, base_offset=10)
    header = check_batch(batch)
    assert (header.last_offset, header.records_count, header.max_timestamp) == (17, 2, 5)
    assert list(iter_records(batch)) == records


@pytest.mark.parametrize(
    ("records", "base_offset"),
    [
        ([], 0),
        ([Record(4, 0, None, None, [])], 5),
        ([Record(5, 0, None, None, []), Record(5, 0, None, None, [])], 5),
        ([(-(1 << 63), None, None, []), ((1 << 63) - 1, None, None, [])], 0),
    ],
)
def test_build_refuses_what_the_format_cannot_hold(records, base_offset):
    with pytest.raises(ValueError):  # noqa: PT011 - several messages
        build_batch(records, base_offset=base_offset)


def test_extreme_timestamps_survive():
    for timestamp in (-(1 << 63), (1 << 63) - 1, -1, 0):
        assert next(iter_records(build_batch([(timestamp, None, None, [])]))).timestamp == timestamp


# The header


def test_header_fields():
    batch = build_batch(
        [(100, None, b"x", []), (90, None, b"y", [])],
        base_offset=7,
        compression="lz4",
        producer_id=1 << 40,
        producer_epoch=32767,
        base_sequence=2**31 - 1,
        leader_epoch=6,
        transactional=True,
        control=True,
        timestamp_type=1,
    )
    header = read_batch_header(b"??" + batch, 2)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (7, 8, 6)
    assert (header.producer_id, header.producer_epoch) == (1 << 40, 32767)
    assert (header.base_sequence, header.last_sequence) == (2**31 - 1, 0)
    assert (header.base_timestamp, header.max_timestamp) == (100, 100)
    assert (header.compression, header.timestamp_type) == ("lz4", 1)
    assert header.is_transactional
    assert header.is_control
    assert not header.has_delete_horizon
    assert "producer_epoch=32767" in repr(header)


def test_last_sequence_without_a_sequence():
    header = check_batch(build_batch([(0, None, None, [])] * 3))
    assert header.last_sequence == -1


def test_the_header_is_read_without_the_rest():
    batch = build_batch([(0, None, b"x" * 100, [])])
    assert read_batch_header(batch[:RECORD_BATCH_OVERHEAD]).size_bytes == len(batch)
    with pytest.raises(CorruptBatch):
        read_batch_header(batch[: RECORD_BATCH_OVERHEAD - 1])


@pytest.mark.parametrize(
    ("fmt", "at", "value"),
    [(">i", 8, 48), (">i", 8, -1), (">q", 0, -1), (">i", 23, -1), (">i", 57, -1), (">b", 16, 3)],
)
def test_implausible_headers_are_refused(fmt, at, value):
    batch = with_field(build_batch([(0, None, None, [])]), fmt, at, value)
    with pytest.raises(DecodeError):
        read_batch_header(batch)
    with pytest.raises(DecodeError):
        check_batch(batch)


# Splitting and damage


@given(st.lists(record_lists, max_size=4))
def test_split_finds_every_batch(batches):
    built = [build_batch(records) for records in batches]
    found = split_batches(memoryview(bytearray(b"".join(built))))
    assert [header.size_bytes for _, header in found] == [len(b) for b in built]
    assert [pos for pos, _ in found] == [sum(map(len, built[:i])) for i in range(len(built))]


def test_split_must_cover_the_buffer():
    batch = build_batch([(0, b"k", b"v", [])])
    for junk in (b"\0", b"\0" * 61, batch[:-1], b"\0" * 16 + b"\x02" + b"\0" * 60):
        with pytest.raises(DecodeError):
            split_batches(batch + junk)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_magic_is_named_and_not_called_damage(magic):
    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=1000)
    builder.append(1, None, None)
    builder.close()
    buf = bytes(builder.buffer())
    assert len(buf) < RECORD_BATCH_OVERHEAD
    for function in (split_batches, check_batch, read_batch_header):
        with pytest.raises(UnsupportedMagic, match=f"magic {magic}") as caught:
            function(buf)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        with pytest.raises(UnsupportedMagic):
            function(buf * 3)


@given(record_lists, st.data())
def test_any_flipped_bit_is_found(records, data):
    batch = bytearray(build_batch(records))
    index = data.draw(st.integers(0, len(batch) - 1))
    batch[index] ^= 1 << data.draw(st.integers(0, 7))
    if index < 8 or 12 <= index < 16:  # what the leader stamps is outside of the checksum
        if batch[0] < 0x80:
            check_batch(batch)
        return
    with pytest.raises(DecodeError):
        split_batches(batch)


@given(record_lists, st.integers(0, 10_000))
def test_any_truncation_is_found(records, cut):
    batch = build_batch(records)
    cut %= len(batch)
    with pytest.raises(CorruptBatch):
        check_batch(batch[:cut])


@given(st.binary(max_size=200))
def test_random_bytes_raise_decode_error_only(data):
    for function in (split_batches, check_batch, iter_records, read_batch_header):
        try:
            function(data)
        except DecodeError:
            pass
        else:
            assert function is split_batches
            assert data == b""


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists, data=st.data())
def test_damage_behind_a_valid_checksum_raises_decode_error_only(codec, records, data):
    batch = bytearray(build_batch(records, compression=COMPRESSION_NAMES[codec]))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = list(iter_records(refresh_crc(bytes(batch)), max_size_bytes=1 << 20))
    except DecodeError:
        return
    assert all(isinstance(record, Record) for record in read)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_random_records_raise_decode_error_only(body, count):
    try:
        read = list(iter_records(with_body(body, count)))
    except DecodeError:
        return
    assert len(read) == count


RECORD = b"\x0c\0\0\0\x01\x01\0"  # six bytes: attributes, two deltas, no key, no value, no headers


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (RECORD + b"\0", 1),  # a byte too many after the records
        (RECORD, 2),  # a record too few
        (b"\x0e" + RECORD[1:], 1),  # longer than its bytes
        (b"\x0a" + RECORD[1:], 1),  # shorter than its fields
        (b"\x01" + RECORD[1:], 1),  # negative length
        (b"\x0c\0\0\0\x03\x01\0", 1),  # key of length -2
        (b"\x0c\0\0\0\x08\x01\0", 1),  # key past the end
        (b"\x0c\0\0\x02\x01\x01\0", 1),  # offset delta past the last one
        (b"\x0c\0\0\x01\x01\x01\0", 1),  # negative offset delta
        (RECORD + RECORD, 2),  # the same offset twice
        (b"\x0c\0\0\0\x01\x01\x01", 1),  # -1 headers
        (b"\x0c\0\0\0\x01\x01\x02", 1),  # one header in no bytes
        (b"\x10\0\0\0\x01\x01\x02\x01\x01", 1),  # header without a key
        (b"\x12\0\0\0\x01\x01\x02\x02\xff\x01", 1),  # header key that is not UTF-8
        (b"\x14\0\0\xff\xff\xff\xff\x1f\x01\x01\0", 1),  # varint of 33 bits
        (b"\x16\0\0\x80\x80\x80\x80\x80\0\x01\x01\0", 1),  # varint of six bytes
        (b"\x20\0" + b"\xff" * 9 + b"\x03\0\x01\x01\0", 1),  # varlong of 65 bits
    ],
)
def test_malformed_records_are_invalid(body, count):
    with pytest.raises(InvalidBatch) as caught:
        list(iter_records(with_body(body, count)))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_the_well_formed_neighbour_of_those_is_read():
    assert as_tuples(with_body(RECORD)) == [(0, 0, None, None, [])]
    assert as_tuples(with_body(b"\x12\0\0\0\x01\x01\x02\x02h\x01")) == [
        (0, 0, None, None, [("h", None)])
    ]
    assert as_tuples(with_body(b"", 0)) == []


def test_a_timestamp_may_not_leave_64_bits():
    batch = with_field(with_body(b"\x0c\0\x02\0\x01\x01\0"), ">q", 27, (1 << 63) - 1)
    with pytest.raises(InvalidBatch, match="64 bits"):
        list(iter_records(batch))


def test_a_huge_record_count_costs_nothing():
    """The loop ends where the bytes end, whatever the header claims."""
    batch = with_field(with_body(RECORD), ">i", 57, 2**31 - 1)
    with pytest.raises(InvalidBatch):
        list(iter_records(batch))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompression_stops_at_the_limit(codec):
    batch = build_batch([(0, None, bytes(1 << 20), [])], compression=COMPRESSION_NAMES[codec])
    with pytest.raises(DecodeError, match="more than 65536 bytes"):
        iter_records(batch, max_size_bytes=1 << 16)
    assert len(next(iter_records(batch, max_size_bytes=(1 << 20) + 20)).value) == 1 << 20


# What a producer may send


def producer_batch(**kwargs) -> bytes:
    return build_batch([(0, b"k", b"v", [])] * 3, **kwargs)


@pytest.mark.parametrize(
    "batch",
    [
        producer_batch(),
        producer_batch(compression="zstd"),
        producer_batch(producer_id=0, producer_epoch=0, base_sequence=0),
        producer_batch(producer_id=5, producer_epoch=1, base_sequence=7, transactional=True),
        # kafkajs and sarama write these beside a producer id of -1
        producer_batch(producer_epoch=0, base_sequence=0),
    ],
)
def test_a_producers_batch_is_accepted(batch):
    check_producer_batch(check_batch(batch))


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (with_field(producer_batch(), ">i", 57, 0), ErrorCode.INVALID_RECORD),
        (with_field(producer_batch(), ">i", 57, 2), ErrorCode.INVALID_RECORD),
        (with_field(producer_batch(), ">i", 23, 9), ErrorCode.INVALID_RECORD),
        (
            with_field(with_field(producer_batch(), ">i", 23, 999), ">i", 57, 1000),
            ErrorCode.INVALID_RECORD,
        ),
        (producer_batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (producer_batch(control=True), ErrorCode.INVALID_RECORD),
        (producer_batch(producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (producer_batch(producer_id=1, base_sequence=0), ErrorCode.INVALID_RECORD),
        (
            producer_batch(producer_id=-2, producer_epoch=0, base_sequence=0),
            ErrorCode.INVALID_RECORD,
        ),
        (producer_batch(transactional=True), ErrorCode.INVALID_RECORD),
        (producer_batch(timestamp_type=1), ErrorCode.INVALID_TIMESTAMP),
        (with_field(producer_batch(), ">h", 21, 0x40), ErrorCode.INVALID_RECORD),
        (with_field(producer_batch(), ">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (with_field(producer_batch(), ">h", 21, 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_a_producers_batch_is_refused(batch, code):
    header = check_batch(batch)
    with pytest.raises(KafkaError) as caught:
        check_producer_batch(header)
    assert caught.value.code is code


def test_an_undefined_codec_is_a_decode_error_when_opened():
    with pytest.raises(DecodeError):
        iter_records(with_field(producer_batch(), ">h", 21, 6))


# Timestamps


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_stamped_in_place(codec):
    """KIP-32: with LogAppendTime every record has the batch's largest timestamp."""
    batch = build_batch(
        [(100, b"a", b"", []), (50, b"b", b"", [])], compression=COMPRESSION_NAMES[codec]
    )
    buf = bytearray(b"pad" + batch)
    header = check_batch(buf, 3)
    stamp_log_append_time(memoryview(buf), 3, header, 777)
    again = check_batch(buf, 3)
    assert repr(again) == repr(header)
    assert (again.timestamp_type, again.max_timestamp) == (1, 777)
    assert [(r.timestamp, r.key) for r in iter_records(buf, 3)] == [(777, b"a"), (777, b"b")]
    read = list(MemoryRecords(bytes(buf[3:])).next_batch())
    assert [(r.timestamp, r.timestamp_type) for r in read] == [(777, 1), (777, 1)]


@given(record_lists, timestamps, st.integers(0, 20))
def test_timestamp_search_is_a_scan(records, wanted, min_offset):
    batch = build_batch(records)
    matching = [
        (record[0], offset)
        for offset, record in enumerate(records)
        if record[0] >= wanted and offset >= min_offset
    ]
    expected = matching[0] if matching else None
    assert find_timestamp(batch, 0, wanted, min_offset=min_offset) == expected
    largest = max(record[0] for record in records)
    assert max_timestamp_of(batch) == (largest, [r[0] for r in records].index(largest))


def test_the_first_of_several_largest_timestamps_counts():
    batch = build_batch([(timestamp, None, None, []) for timestamp in (1, 9, 9, 3)])
    assert max_timestamp_of(batch) == (9, 1)
    assert find_timestamp(batch, 0, 9) == (9, 1)


def test_a_batch_emptied_by_compaction_has_no_timestamps():
    batch = with_body(b"", 0)
    assert max_timestamp_of(batch) is None
    assert find_timestamp(batch, 0, 0) is None


# Control records


@pytest.mark.parametrize("committed", [True, False])
def test_end_of_transaction_marker(committed):
    marker = EndTxnMarker(committed, 12)
    batch = build_end_txn_marker(
        marker, producer_id=8, producer_epoch=3, timestamp_ms=99, base_offset=40, leader_epoch=2
    )
    header = check_batch(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.base_sequence, header.records_count) == (40, -1, 1)
    assert read_end_txn_marker(batch) == marker
    control = MemoryRecords(batch).next_batch()
    assert control.is_control_batch
    (record,) = control
    assert (record.abort, record.commit) == (not committed, committed)


def control_batch(key: bytes | None, value: bytes | None) -> bytes:
    return build_batch([(0, key, value, [])], control=True, producer_id=1)


def test_other_control_records_are_skipped():
    assert read_end_txn_marker(control_batch(b"\0\0\0\x02", b"")) is None  # leader change
    assert read_end_txn_marker(with_body(b"", 0)) is None
    later = control_batch(b"\0\0\0\x01more", b"\0\x01\0\0\0\x05more")
    assert read_end_txn_marker(later) == EndTxnMarker(True, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\0\0\0", b""), (b"\0\0\0\x01", None), (b"\0\0\0\x01", b"\0\0\0")],
)
def test_damaged_control_records_are_invalid(key, value):
    with pytest.raises(InvalidBatch):
        read_end_txn_marker(control_batch(key, value))


def test_importing_records_loads_no_codec_library():
    code = "import sys, kraftpy.protocol.records; sys.exit('cramjam' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_many_batches_in_one_buffer():
    source = random.Random(5)
    batches = [
        build_batch([(i, None, source.randbytes(source.randrange(500)), [])]) for i in range(50)
    ]
    assert len(split_batches(b"".join(batches))) == 50
