"""The vectorised encoder against the protocol's own reader."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.client.partitioner import partition_of_key
from kraftpy.protocol.records import build_batch_of_data, iter_records, read_batch_header
from kraftpy.spark.encoder import Rows, encode_rows, partitions_of_keys
from kraftpy.spark.source import SCHEMA_WITH_HEADERS

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
texts = st.none() | st.binary(max_size=300)
header = st.builds(lambda k, v: {"key": k, "value": v}, st.text(max_size=9), texts)
rows = st.lists(
    st.tuples(texts, texts, st.none() | st.lists(header, max_size=3)), min_size=1, max_size=40
)


@settings(max_examples=150)
@given(
    rows=rows,
    size=st.integers(1, 3000),
    front=st.integers(0, 3),
    plain=st.booleans(),
    times=st.none() | st.lists(st.integers(-1, 1 << 45), min_size=40, max_size=40),
)
def test_what_is_encoded_is_read_back(
    rows: list, size: int, front: int, plain: bool, times: list[int] | None
) -> None:
    front = min(front, len(rows) - 1)
    keys, values, headers = (pa.array(c, t) for c, t in zip(
        zip(*rows, strict=True), (pa.binary(), pa.binary(), HEADERS), strict=True))  # fmt: skip
    ages = None if times is None else np.array(times[front : len(rows)], np.int64)
    part = Rows(keys[front:], values[front:], None if plain else headers[front:], ages)
    found, stamped = [], []
    for batch in encode_rows(part, size, 5):
        raw = build_batch_of_data(*batch)
        records = list(iter_records(raw))
        assert [record.offset for record in records] == list(range(batch.records_count))
        assert read_batch_header(raw).max_timestamp == max(r.timestamp for r in records)
        assert batch.records_count == 1 or len(batch.data) <= size
        stamped += [record.timestamp for record in records]
        found += [(r.key, r.value, r.headers) for r in records]
    assert stamped == ([5] * len(found) if times is None else times[front : len(rows)])
    assert found == [
        (k, v, [] if plain else [(h["key"], h["value"]) for h in hs or []])
        for k, v, hs in rows[front:]
    ]


@settings(max_examples=100)
@given(keys=st.lists(texts, min_size=1, max_size=50), count=st.integers(1, 50))
def test_keys_go_where_every_client_puts_them(keys: list[bytes | None], count: int) -> None:
    wanted = [-1 if key is None else partition_of_key(key, count) for key in keys]
    assert partitions_of_keys(pa.array([b"x", *keys], pa.binary())[1:], count).tolist() == wanted


def test_types_are_sparks() -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    from kraftpy.spark.decoder import COLUMNS

    for field in SCHEMA_WITH_HEADERS.fields:
        assert to_arrow_type(field.dataType, timezone="UTC") == COLUMNS[field.name]
