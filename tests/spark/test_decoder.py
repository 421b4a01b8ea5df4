"""The vectorised decoder against the protocol's own, on batches of every kind and on damage."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kraftpy.client.isolation import Aborted
from kraftpy.protocol.compression import compress
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.record_batch import read_batch_header
from kraftpy.protocol.records import (
    EndTxnMarker,
    Record,
    UnsupportedMagic,
    build_batch,
    build_end_txn_marker,
    encode_varint,
    iter_records,
)
from kraftpy.spark import decoder
from kraftpy.spark.decoder import COLUMNS, Slice, decode, find_batches

ALL = tuple(COLUMNS)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

texts = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), texts), max_size=4)
deltas = st.integers(-100, 10_000_000)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Batches that follow each other, with gaps as compaction leaves them."""
    offset = draw(st.integers(0, 1 << 40))
    made = []
    for _ in range(draw(st.integers(1, 5))):
        base = offset
        records = []
        for _ in range(draw(st.integers(1, 6))):
            offset += draw(st.integers(0, 3))
            time_ms = 1_700_000_000_000 + draw(deltas)
            records.append(Record(offset, time_ms, draw(texts), draw(texts), draw(headers)))
            offset += 1
        codec, kind = draw(st.sampled_from(CODECS)), draw(st.sampled_from((0, 1)))
        made.append(build_batch(records, base_offset=base, compression=codec, timestamp_type=kind))
        offset += draw(st.integers(0, 2))
    return made


def expected(made: list[bytes], wanted: Slice, codes: list[int] | None = None) -> list[dict]:
    rows = []
    for batch in made:
        kind = read_batch_header(batch).timestamp_type
        rows += [
            {
                "key": record.key,
                "value": record.value,
                "topic": wanted.topic,
                "partition": wanted.partition,
                "offset": record.offset,
                "timestamp": record.timestamp * 1000,
                "timestampType": kind,
                "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
            }
            for record in iter_records(batch)
            if wanted.start <= record.offset < wanted.end
        ]
    return rows


def rows_of(tables: list[pa.RecordBatch]) -> list[dict]:
    rows = []
    for each in tables:
        each.validate(full=True)
        table = each
        if "timestamp" in table.schema.names:
            at = table.schema.get_field_index("timestamp")
            assert table.schema.field(at).type == pa.timestamp("us", tz="UTC")
            table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
        rows += table.to_pylist()
    return rows


def read(data: bytes, wanted: Slice, columns: tuple[str, ...] = ALL, aborted=()) -> list[dict]:
    found, _ = find_batches(data, wanted, aborted)
    return rows_of(list(decode(data, found, wanted, columns)))


def whole(made: list[bytes]) -> Slice:
    return Slice("flights", 3, read_batch_header(made[0]).base_offset, 1 << 62)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(made=batches(), data=st.data(), lockstep=st.sampled_from((1, 24)))
def test_the_same_records_as_the_plain_decoder(
    made: list[bytes], data: st.DataObject, lockstep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.spark.varints.LOCKSTEP_MIN", lockstep)
    monkeypatch.setattr("kraftpy.spark.decoder.LOCKSTEP_MIN", lockstep)
    first, end = read_batch_header(made[0]).base_offset, read_batch_header(made[-1]).last_offset + 1
    start = data.draw(st.integers(first, end))
    stop = data.draw(st.integers(start, end + 1))
    cut = data.draw(st.integers(0, 80))
    wanted = Slice("flights", 3, start, stop)
    raw = b"".join(made)
    rows = expected(made, wanted)
    assert read(raw, wanted) == rows
    columns = tuple(data.draw(st.lists(st.sampled_from(ALL), min_size=1, unique=True)))
    pruned = [{name: row[name] for name in columns} for row in rows]
    assert read(raw, wanted, columns) == pruned
    # The last batch cut off: what is whole comes out, and the position stays before the rest.
    if cut:
        found, next_offset = find_batches(raw[:-cut], wanted)
        shorter = rows_of(list(decode(raw[:-cut], found, wanted, ALL)))
        assert shorter == [row for row in rows if row["offset"] < next_offset]


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(made=batches(), data=st.data())
def test_damage_behind_a_right_checksum(made: list[bytes], data: st.DataObject) -> None:
    """What a hostile producer may write: both decoders refuse it, or read the same of it."""
    batch = bytearray(made[0])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(23, len(batch) - 1) | st.integers(57, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    wanted = Slice("flights", 3, read_batch_header(made[0]).base_offset, 1 << 62)
    try:
        rows: object = expected([bytes(batch)], wanted)
    except DecodeError as error:
        rows = str(error)
    try:
        assert read(bytes(batch), wanted) == rows
    except DecodeError:
        # Spark's timestamps are narrower than Kafka's.
        assert isinstance(rows, str) or any(abs(r["timestamp"]) >= 1 << 63 for r in rows)
    except AssertionError:
        # Spark's source replaces what is no UTF-8 in the name of a header.
        assert "UTF-8" in rows


@pytest.mark.parametrize("codec", CODECS)
def test_many_batches_in_lockstep(codec: str) -> None:
    rng = random.Random(7)
    offset, made = 0, []
    for _ in range(60):
        records = [
            Record(
                offset + n,
                rng.randrange(1 << 42),
                None if rng.random() < 0.1 else rng.randbytes(rng.randrange(20)),
                None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 1, 60, 64, 9000))),
                [("h", rng.randbytes(rng.randrange(70)))] * rng.choice((0, 1, 2, 30, 70)),
            )
            for n in range(rng.randrange(1, 40))
        ]
        made.append(build_batch(records, base_offset=offset, compression=codec))
        offset += len(records)
    wanted = Slice("flights", 0, 5, offset - 3)
    assert read(b"".join(made), wanted) == expected(made, wanted)


def test_batches_for_spark_stay_small() -> None:
    made = [
        build_batch([(0, None, b"x" * size, []) for _ in range(n)], base_offset=at)
        for size, n, at in ((1, 25_000, 0), (1 << 20, 9, 25_000), (6 << 20, 2, 25_009))
    ]
    raw = b"".join(made)
    wanted = Slice("t", 0, 0, 1 << 60)
    found, _ = find_batches(raw, wanted)
    sizes = [(t.num_rows, t.nbytes) for t in decode(raw, found, wanted, ("value", "topic"))]
    assert sum(rows for rows, _ in sizes) == 25_011
    assert all(rows <= 10_000 for rows, _ in sizes)
    assert all(size <= (4 << 20) + (1 << 16) or rows == 1 for rows, size in sizes)


def test_raw_snappy_is_read() -> None:
    import cramjam

    plain = build_batch([(5, b"k", b"v" * 50, [("h", None)])] * 3)
    packed = bytes(cramjam.snappy.compress_raw(plain[61:]))
    batch = bytearray(plain[:61] + packed)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[22] |= 2
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    made = [bytes(batch)]
    assert read(made[0], whole(made)) == expected(made, whole(made))
    assert len(expected(made, whole(made))) == 3


def transactional(base: int, producer_id: int, count: int = 2) -> bytes:
    return build_batch(
        [(0, None, b"%d" % producer_id, [])] * count,
        base_offset=base,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base,
        transactional=True,
    )


def ended(base: int, producer_id: int, *, committed: bool) -> bytes:
    return build_end_txn_marker(
        EndTxnMarker(committed, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=0,
        base_offset=base,
    )


def test_aborted_transactions_and_control_batches_are_left_out() -> None:
    log = [
        transactional(0, 1),  # aborted
        transactional(2, 2),  # committed
        build_batch([(0, None, b"plain", [])], base_offset=4),
        transactional(5, 1),  # aborted
        ended(7, 1, committed=False),
        transactional(8, 1),  # a later one of the same producer, committed
        ended(10, 2, committed=True),
        ended(11, 1, committed=True),
    ]
    raw, wanted = b"".join(log), Slice("t", 0, 0, 100)
    offsets = [row["offset"] for row in read(raw, wanted, ("offset",), [Aborted(1, 0)])]
    assert offsets == [2, 3, 4, 8, 9]
    assert find_batches(raw, wanted, [Aborted(1, 0)])[1] == 12
    uncommitted = [row["offset"] for row in read(raw, wanted, ("offset",))]
    assert uncommitted == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    # The position moves past a response that has nothing to show.
    assert find_batches(ended(7, 1, committed=False), Slice("t", 0, 7, 100)) == ([], 8)


@pytest.mark.parametrize("codec", range(5))
def test_an_emptied_batch_is_passed(codec: int) -> None:
    """Java's client doesn't look at the codec of a batch without records either."""
    emptied = bytearray(build_batch([(0, None, None, [])], base_offset=4)[:61])
    emptied[22] |= codec
    struct.pack_into(">i", emptied, 8, 49)
    struct.pack_into(">i", emptied, 57, 0)
    struct.pack_into(">I", emptied, 17, crc32c(bytes(emptied[21:])))
    raw = bytes(emptied) + build_batch([(0, None, b"v", [])], base_offset=5)
    wanted = Slice("t", 0, 4, 9)
    assert [row["offset"] for row in read(raw, wanted)] == [5]
    assert read(bytes(emptied), wanted) == []
    assert find_batches(bytes(emptied), wanted)[1] == 5


def test_memory_does_not_depend_on_how_many_records_are_in_a_byte() -> None:
    """4 M records that aren't opened: in 400 batches of 9 KB, and in one that says so."""
    packed = build_batch([(9, None, b"", [])] * 10_000, compression="zstd", timestamp_type=1)
    many = b"".join(struct.pack(">q", number * 10_000) + packed[8:] for number in range(400))
    claims = bytearray(packed)
    struct.pack_into(">i", claims, 57, 4_000_000)
    struct.pack_into(">i", claims, 23, 3_999_999)
    struct.pack_into(">I", claims, 17, crc32c(bytes(claims[21:])))
    columns = ("offset", "timestamp", "timestampType")
    for raw in (many, bytes(claims)):
        wanted = Slice("t", 0, 5, 3_999_990)
        found, _ = find_batches(raw, wanted)
        tracemalloc.start()
        seen = wanted.start
        for table in decode(raw, found, wanted, columns):
            offsets = table.column("offset")
            assert (offsets[0].as_py(), offsets[-1].as_py()) == (seen, seen + table.num_rows - 1)
            seen += table.num_rows
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen == wanted.end
        assert peak < 200 << 20, peak


def test_a_record_of_seventeen_megabytes() -> None:
    value = random.Random(1).randbytes(17 << 20)
    made = [
        build_batch([(5, b"k", value, [("h", value[: 1 << 20])])], base_offset=n, compression=codec)
        for n, codec in enumerate(CODECS)
    ]
    wanted = whole(made)
    for one in made:
        (row,) = read(one, wanted)
        assert (row["value"], row["headers"][0]["value"]) == (value, value[: 1 << 20])


def test_an_old_message_set_behind_new_batches_is_refused_by_name() -> None:
    for magic in (0, 1):
        old = struct.pack(">qiIbbii", 1, 14, 0, magic, 0, -1, -1)
        for padding in (b"", bytes(100)):
            raw = build_batch([(0, None, b"v", [])]) + old + padding
            with pytest.raises(UnsupportedMagic, match=f"magic {magic}"):
                read(raw, Slice("t", 0, 0, 9))


def test_times_that_nobody_gave() -> None:
    """-1, as Java's client shows it, in both kinds of time."""
    made = [
        build_batch([(-1, None, b"v", [])] * 2, base_offset=2 * kind, timestamp_type=kind)
        for kind in (0, 1)
    ]
    rows = read(b"".join(made), whole(made), ("timestamp", "timestampType"))
    assert [(row["timestamp"], row["timestampType"]) for row in rows] == [
        (-1000, 0),
        (-1000, 0),
        (-1000, 1),
        (-1000, 1),
    ]


def test_a_thousand_headers_in_each_of_many_records() -> None:
    headers = [(f"name {n % 7}", None if n % 5 == 0 else b"%d" % n) for n in range(1000)]
    records = [(0, None, b"", headers[: 1000 - n]) for n in range(60)]
    made = [build_batch(records, compression="lz4")]
    began = time.monotonic()
    assert read(made[0], whole(made), ("headers",)) == [
        {"headers": each["headers"]} for each in expected(made, whole(made))
    ]
    assert time.monotonic() - began < 20


def test_headers_of_batches_without_gaps_are_enough_for_offsets() -> None:
    """The records are not opened: bytes that can't be decompressed don't matter."""
    good = build_batch([(9, None, b"v" * 99, [])] * 4, compression="zstd", timestamp_type=1)
    batch = bytearray(good[:61] + b"\0" * 40)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    raw, wanted = bytes(batch), Slice("t", 0, 1, 3)
    rows = read(raw, wanted, ("offset", "timestamp", "timestampType"))
    assert rows == [{"offset": n, "timestamp": 9000, "timestampType": 1} for n in (1, 2)]
    with pytest.raises(DecodeError):
        read(raw, wanted)


def test_what_is_refused() -> None:
    batch = build_batch([(0, b"k", b"value", [])] * 3)
    wanted = Slice("t", 0, 0, 9)
    flipped = bytearray(batch)
    flipped[70] ^= 1
    with pytest.raises(DecodeError, match="CRC-32C"):
        read(bytes(flipped), wanted)
    again = build_batch([(0, None, b"v", [])] * 2, base_offset=2)
    with pytest.raises(DecodeError, match="offset 2 after one that ends at 2"):
        read(batch + again, wanted)
    old = bytearray(batch)
    old[16] = 1
    with pytest.raises(UnsupportedMagic, match="magic 1"):
        read(bytes(old), wanted)
    many = bytearray(batch)
    struct.pack_into(">i", many, 57, 2_000_000_000)
    struct.pack_into(">i", many, 23, 1_999_999_999)
    struct.pack_into(">I", many, 17, crc32c(bytes(many[21:])))
    for columns in (ALL, ("offset",)):
        with pytest.raises(DecodeError, match="more records than"):
            read(bytes(many), wanted, columns)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_bomb_is_refused(codec: str) -> None:
    plain = bytearray(build_batch([(0, None, b"v", [])])[:61])
    packed = compress(codec, b"\0" * (65 << 20))
    batch = plain + packed
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[22] |= CODECS.index(codec)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    with pytest.raises(DecodeError, match="more than"):
        read(bytes(batch), Slice("t", 0, 0, 9))


def test_a_record_with_very_many_headers_takes_no_numpy_step_for_each() -> None:
    made = [build_batch([(0, None, b"", [("", None)] * 200_000)])]
    began = time.monotonic()
    assert len(read(made[0], whole(made), ("headers",))[0]["headers"]) == 200_000
    assert time.monotonic() - began < 5


def test_a_header_name_that_is_no_text_is_replaced() -> None:
    body = b"\0" + encode_varint(0) * 2 + encode_varint(-1) * 2 + encode_varint(1)
    body += encode_varint(3) + b"a\xff\xfe" + encode_varint(-1)
    batch = bytearray(build_batch([(0, None, b"v", [])])[:61] + encode_varint(len(body)) + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    (row,) = read(bytes(batch), Slice("t", 0, 0, 9), ("headers",))
    assert row["headers"] == [{"key": "a\ufffd\ufffd", "value": None}]


def test_chunks_of_a_large_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "CHUNK_BYTES", 1000)
    made = [
        build_batch([(n, b"k", b"v" * 300, [])] * 3, base_offset=n * 3, compression="lz4")
        for n in range(20)
    ]
    assert read(b"".join(made), whole(made)) == expected(made, whole(made))
