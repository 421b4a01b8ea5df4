"""The records of `__share_group_state`, by value."""

from __future__ import annotations

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.core.leases.state_records import (
    ShareKey,
    ShareRecord,
    Snapshot,
    Update,
    decode_record,
    encode_record,
)
from kraftpy.core.leases.terms import StateBatch
from kraftpy.protocol.errors import DecodeError

KEY = ShareKey("g", bytes(range(16)), 3)
BATCHES = (StateBatch(5, 9, 2, 1), StateBatch(10, 10, 0, 3))
SNAPSHOT = Snapshot(7, 1, 4, 5, 6, 100, 200, BATCHES)
UPDATE = Update(7, 4, 5, 6, BATCHES)

KEY_BYTES = b"\x00\x01g" + bytes(range(16)) + b"\x00\x00\x00\x03"
BATCH_BYTES = (
    b"\x03"
    + (5).to_bytes(8, "big")
    + (9).to_bytes(8, "big")
    + b"\x02\x00\x01\x00"
    + (10).to_bytes(8, "big")
    + (10).to_bytes(8, "big")
    + b"\x00\x00\x03\x00"
)
COUNT_BYTES = b"\x01\x00\x04\x00\x00\x00\x06"


# What Kafka 4.3's SharePartitionKey says, and its partition of 50.
KAFKAS_KEYS = [
    ("g", "0001020304050607ffeeddccbbaa9988", 0, "g:AAECAwQFBgf_7t3Mu6qZiA:0", 1),
    ("g", "ffeeddccbbaa9988ffffffffffffffff", 7, "g:_-7dzLuqmYj__________w:7", 6),
    ("a:b", "ffffffffffffffff0001020304050607", 14, "a:b:__________8AAQIDBAUGBw:14", None),
    ("grüße", "0001020304050607ffeeddccbbaa9988", 0, "grüße:AAECAwQFBgf_7t3Mu6qZiA:0", 7),
    ("😀", "ffffffffffffffff0001020304050607", 14, "😀:__________8AAQIDBAUGBw:14", 20),
    ("x" * 200, "0001020304050607ffeeddccbbaa9988", 0, None, 4),
    ("x" * 200, "ffeeddccbbaa9988ffffffffffffffff", 7, None, 11),
]


@pytest.mark.parametrize(("group", "topic_id", "partition", "key", "index"), KAFKAS_KEYS)
def test_the_coordinator_is_where_kafka_has_it(
    group: str, topic_id: str, partition: int, key: str | None, index: int | None
) -> None:
    share = ShareKey(group, bytes.fromhex(topic_id), partition)
    assert key in (None, share.coordinator_key)
    assert index in (None, partition_for(share.coordinator_key, 50))
    assert ShareKey.parse(share.coordinator_key) == share


@pytest.mark.parametrize(
    "text",
    [
        "",
        "g",
        "g:0",
        ":AAECAwQFBgf_7t3Mu6qZiA:0",
        " :AAECAwQFBgf_7t3Mu6qZiA:0",
        "g:AAECAwQFBgf_7t3Mu6qZiA:",
        "g:AAECAwQFBgf_7t3Mu6qZiA:x",
        "g:AAECAwQFBgf_7t3Mu6qZiB:0",
        "g:AAECAwQFBg:0",
    ],
)
def test_what_is_no_key_of_a_coordinator(text: str) -> None:
    with pytest.raises(ValueError, match="group:topicId:partition"):
        ShareKey.parse(text)


def test_a_snapshot() -> None:
    key, value = encode_record(ShareRecord(KEY, SNAPSHOT))
    assert key == b"\x00\x00" + KEY_BYTES
    assert value == (
        b"\x00\x00"
        b"\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x04"
        + (5).to_bytes(8, "big")
        + (100).to_bytes(8, "big")
        + (200).to_bytes(8, "big")
        + BATCH_BYTES
        + COUNT_BYTES
    )
    assert decode_record(key, value) == ShareRecord(KEY, SNAPSHOT)


def test_an_update() -> None:
    key, value = encode_record(ShareRecord(KEY, UPDATE))
    assert key == b"\x00\x01" + KEY_BYTES
    assert value == (
        b"\x00\x00\x00\x00\x00\x07\x00\x00\x00\x04"
        + (5).to_bytes(8, "big")
        + BATCH_BYTES
        + COUNT_BYTES
    )
    assert decode_record(key, value) == ShareRecord(KEY, UPDATE)


def test_a_tombstone() -> None:
    key, value = encode_record(ShareRecord(KEY, None))
    assert (key, value) == (b"\x00\x00" + KEY_BYTES, None)
    assert decode_record(key, value) == ShareRecord(KEY, None)


def test_a_count_that_is_not_known_is_not_written() -> None:
    _, value = encode_record(ShareRecord(KEY, UPDATE._replace(finished_count=-1, batches=())))
    assert value is not None
    assert value.endswith(b"\x01\x00")
    assert decode_record(b"\x00\x01" + KEY_BYTES, value) == ShareRecord(
        KEY, UPDATE._replace(finished_count=-1, batches=())
    )


def test_other_kinds_are_passed_over() -> None:
    assert decode_record(b"\x00\x02" + KEY_BYTES, b"\x00\x00") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\x00", b""),
        (b"\x00\x00", b"\x00\x00"),
        (b"\x00\x01" + KEY_BYTES, None),
        (b"\x00\x00" + KEY_BYTES[:-4] + b"\xff\xff\xff\xff", None),
        (b"\x00\x00" + KEY_BYTES, b"\x00"),
        (b"\x00\x00" + KEY_BYTES, b"\x00\x09" + bytes(60)),
        (b"\x00\x00" + KEY_BYTES, bytes(20)),
    ],
)
def test_what_is_no_record(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        decode_record(key, value)


@pytest.mark.parametrize("batch", [(9, 5, 2, 1), (-1, 5, 2, 1), (5, 9, 1, 1), (5, 9, 2, -1)])
def test_what_cannot_have_been_written(batch: tuple[int, int, int, int]) -> None:
    key, value = encode_record(ShareRecord(KEY, UPDATE._replace(batches=(StateBatch(*batch),))))
    with pytest.raises(DecodeError, match="can't be in such a state"):
        decode_record(key, value)
