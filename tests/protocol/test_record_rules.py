"""What a topic demands of a batch's records, and the bounds on opening one."""

from __future__ import annotations

import contextlib
import random
import zlib
from typing import Any

import pytest

from kraftpy.protocol.compression import OversizedData, compress, decompress, may_exceed
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import InvalidBatch, assemble_batch
from kraftpy.protocol.record_rules import MAX_RECORD_ERRORS, InvalidRecords, RecordRules, conform
from kraftpy.protocol.record_walk import MAX_BATCH_RECORDS, OversizedBatch, iter_times, summarize
from kraftpy.protocol.records import batch_data, build_batch, iter_records, read_batch_header

NOW = 1_700_000_000_000
DAY_MS = 86_400_000
CODECS = ["gzip", "snappy", "lz4", "zstd"]


def rules(**changes: Any) -> RecordRules:
    loose = RecordRules(False, (0, NOW + DAY_MS), None, None, 1 << 20)
    return loose._replace(**changes)


def random_records(seed: int) -> list[Any]:
    """Keys, values, headers and timestamps of all lengths that a number may have."""
    chosen = random.Random(seed)

    def field() -> bytes | None:
        return chosen.choice([None, b"", b"k", b"x" * 63, b"x" * 64, b"x" * 9000])

    return [
        (
            NOW + chosen.choice([0, 1, -64, 63, 64, -9000, 10**7, -(10**9)]),
            field(),
            field(),
            [("name", field())] * chosen.choice([0, 0, 1, 70]),
        )
        for _ in range(chosen.choice([1, 2, 63, 64, 65, 200]))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_walk_sees_what_the_records_say(seed: int) -> None:
    built = build_batch(random_records(seed), base_offset=7)
    records = list(iter_records(built))
    header, data = read_batch_header(built), batch_data(read_batch_header(built), built)
    summary = summarize(header, data, 3)
    times = [record.timestamp - header.base_timestamp for record in records]
    assert (summary.min_timestamp_delta, summary.max_timestamp_delta) == (min(times), max(times))
    assert summary.keyless == [n for n, record in enumerate(records) if record.key is None][:3]
    assert list(iter_times(header, data)) == [(r.timestamp, r.offset) for r in records]


@pytest.mark.parametrize("seed", range(20))
def test_damaged_records_are_invalid_and_nothing_worse(seed: int) -> None:
    chosen = random.Random(seed)
    built = build_batch(random_records(seed))
    header = read_batch_header(built)
    for _ in range(200):
        data = bytearray(batch_data(header, built))
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        for walk in (lambda d: summarize(header, d, 3), lambda d: list(iter_times(header, d))):
            with contextlib.suppress(InvalidBatch):
                walk(bytes(data[: chosen.choice([len(data), len(data) // 2])]))


def test_each_bad_record_is_named() -> None:
    records = [(NOW, None if n % 10 == 3 else b"k", b"v", []) for n in range(100)]
    with pytest.raises(InvalidRecords) as refused:
        conform(bytearray(build_batch(records)), rules(needs_keys=True))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.value.record_errors] == list(range(3, 100, 10))
    assert "record 3: a compacted topic" in refused.value.message


def test_bad_timestamps_are_named_and_none_is_fine() -> None:
    times = [NOW, -1, NOW + 2 * DAY_MS, 5, -2, -(2**62), NOW + DAY_MS]
    batch = build_batch([(time, b"k", b"v", []) for time in times])
    with pytest.raises(InvalidRecords) as refused:
        conform(bytearray(batch), rules(bounds_ms=(6, NOW + DAY_MS)))
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in refused.value.record_errors] == [2, 3, 4, 5]
    conform(bytearray(batch), rules(bounds_ms=None))  # the broker's own time counts


def test_a_bounded_number_of_records_is_named() -> None:
    records = [(2 * NOW, None, b"v", [])] * 3000
    with pytest.raises(InvalidRecords) as refused:
        conform(bytearray(build_batch(records)), rules(needs_keys=True))
    assert len(refused.value.record_errors) == MAX_RECORD_ERRORS
    assert len(refused.value.message) < 500


def test_a_base_timestamp_that_no_record_has_is_refused() -> None:
    built = build_batch([(5, b"k", b"v", [])])
    header, data = read_batch_header(built), batch_data(read_batch_header(built), built)
    header.base_timestamp -= 5 + 2
    with pytest.raises(KafkaError) as refused:
        conform(bytearray(assemble_batch(header, b"\x10\0\x0e" + data[3:])), rules())
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP


def test_the_largest_timestamp_is_that_of_the_records() -> None:
    built = build_batch([(NOW, b"k", b"v", []), (NOW - 5, b"k", b"v", [])])
    header = read_batch_header(built)
    header.max_timestamp = NOW + 9 * DAY_MS
    lying = assemble_batch(header, batch_data(header, built))
    assert conform(bytearray(lying), rules()) == built


@pytest.mark.parametrize("source", ["none", *CODECS])
@pytest.mark.parametrize("target", ["none", *CODECS])
def test_recompressed_records_are_the_same(source: str, target: str) -> None:
    records = random_records(5)
    sequence = {"producer_id": 3, "producer_epoch": 1, "base_sequence": 8}
    batch = build_batch(records, compression=source, **sequence)  # type: ignore[arg-type]
    made = conform(bytearray(batch), rules(compression=target))
    assert list(iter_records(made)) == list(iter_records(batch))
    before, after = read_batch_header(batch), read_batch_header(made)
    assert after.compression == target
    for name in ("producer_id", "producer_epoch", "base_sequence", "base_timestamp"):
        assert getattr(before, name) == getattr(after, name)


def test_more_than_anybody_opens_is_refused() -> None:
    bomb = build_batch([(NOW, b"k", b"v" * (1 << 20), [])], compression="zstd")
    with pytest.raises(OversizedBatch):
        conform(bytearray(bomb), rules())
    header = read_batch_header(bomb)
    header.records_count = MAX_BATCH_RECORDS + 1
    with pytest.raises(OversizedBatch):
        conform(bytearray(assemble_batch(header, bomb[61:])), rules())


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_that_may_be_too_large_is_told_by_its_outline(codec: str) -> None:
    chosen = random.Random(codec)
    for size in (0, 1, 1000, 100_000, 3_000_000):
        for content in (bytes(size), chosen.randbytes(size), b'{"some": "text"},' * (size // 17)):
            stream = compress(codec, content)
            for limit in (0, len(content) - 1, len(content), len(content) + 140_000):
                if not may_exceed(codec, stream, limit):
                    assert decompress(codec, stream, max(limit, 0)) == content
            # Frames say their size up to a block.
            assert not may_exceed(codec, stream, 2 * len(content) + 140_000)
            if len(content) > 140_000:
                assert may_exceed(codec, stream, len(content) - 140_000)


@pytest.mark.parametrize(
    ("codec", "stream"),
    [
        ("zstd", b"\x28\xb5\x2f\xfd\0\0" + bytes(3) * 300_000 + b"\1\0\0"),
        ("lz4", compress("lz4", b"x")[:7] + b"\1\0\0\0x" * 200_000 + bytes(4)),
        ("snappy", compress("snappy", b"x") + compress("snappy", b"x")[16:] * 100_000),
    ],
)
def test_a_stream_of_crumbs_isnt_followed_to_its_end(codec: str, stream: bytes) -> None:
    assert may_exceed(codec, stream, 1 << 20)


def test_a_gzip_trailer_that_lies_is_found_out_while_it_is_opened() -> None:
    stream = bytearray(zlib.compress(bytes(9 << 20), wbits=31))
    stream[-4:] = bytes(4)
    assert not may_exceed("gzip", stream, 1 << 20)
    with pytest.raises(OversizedData):
        decompress("gzip", stream, 1 << 20)
