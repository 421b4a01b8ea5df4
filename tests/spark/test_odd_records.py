"""Records at the edges of the format are the same through both doors, from one topic."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kraftpy.protocol.records import COMPRESSION_NAMES, build_batch
from kraftpy.testing import Broker
from tests.server.wire import Wire, produce
from tests.spark.topics import START_MS

LARGE_BYTES = 17 << 20


def batches() -> list[bytes]:
    """One after the other in all codecs: a fetch's answer has several of them."""
    rng = random.Random(3)
    made = []
    for codec in COMPRESSION_NAMES:
        many = [(f"name {n % 7}", None if n % 5 == 0 else b"%d" % n) for n in range(1000)]
        rows = [
            (-1, b"", None, []),
            (-1, None, b"", [("", None)]),
            (0, b"\x00", b"\xff" * 3, [("same", b"1"), ("same", b"2")]),
            (START_MS + 7, "schlüssel".encode(), b"value", many),
            (START_MS - 5, rng.randbytes(129), rng.randbytes(8193), []),
        ]
        made += [build_batch(rows, compression=codec), build_batch(rows[3:], compression=codec)]
    large = [(START_MS, b"large", rng.randbytes(LARGE_BYTES), [("h", rng.randbytes(1 << 20))])]
    packed = [(START_MS, b"packed", b"\0" * LARGE_BYTES, [])]
    return [*made, build_batch(large), build_batch(packed, compression="zstd"), *made]


def test_odd_records_through_both_doors(
    spark: Any, broker: Broker, new_topic: Callable[..., str]
) -> None:
    plain = new_topic(1, max_message_bytes=40 << 20)
    stamped = new_topic(1, max_message_bytes=40 << 20, message_timestamp_type="LogAppendTime")
    with Wire(broker.host, broker.port) as wire:
        for topic in (plain, stamped):
            for one in batches():
                assert produce(wire, topic, one).error_code == 0
    columns = (
        "topic", "partition", "offset", "timestamp", "timestampType",
        "sha2(key, 256) as key", "sha2(value, 256) as value", "length(value) as size",
        "size(headers) as count", "sha2(to_json(headers), 256) as headers",
    )  # fmt: skip
    found: dict[str, list[Any]] = {}
    for door in ("kraftpy", "kafka"):
        reader = spark.read.format(door).options(includeHeaders="true")
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
        frame = reader.option("subscribe", f"{plain},{stamped}").load()
        found[door] = frame.selectExpr(*columns).orderBy("topic", "offset").collect()
    assert found["kraftpy"] == found["kafka"]
    assert len(found["kafka"]) == 2 * (2 * 7 * len(COMPRESSION_NAMES) + 2)
    assert max(row["size"] or 0 for row in found["kraftpy"]) == LARGE_BYTES
    assert max(row["count"] or 0 for row in found["kraftpy"]) == 1000
