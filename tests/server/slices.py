"""What clients ask that want some of a partition's keys, and what they make of the answers."""

from __future__ import annotations

from typing import Any

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.extensions import (
    KEY_RANGES_TAG,
    SCANNED_OFFSET_TAG,
    decode_int64,
    encode_ranges,
)
from kraftpy.protocol.key_hash import HASH_MAX, SLOTS, hashes_of, key_hash
from kraftpy.protocol.records import Record, iter_records, split_batches
from tests.server.wire import Wire, fetch_request

VERSION = 12
Ranges = list[tuple[int, int]]
PartitionData = messages.FetchResponse.PartitionData

ALL: Ranges = [(0, HASH_MAX)]


def slices(count: int) -> list[Ranges]:
    """The hashes in equal parts."""
    return [[hashes_of(SLOTS * i // count, SLOTS * (i + 1) // count - 1)] for i in range(count)]


def just(*keys: bytes) -> Ranges:
    """The hashes of these keys, and no others."""
    return [(key_hash(key, 0), key_hash(key, 0)) for key in keys]


def slice_request(
    topic: str, offset: int, ranges: Ranges | None, **options: Any
) -> messages.FetchRequest:
    request = fetch_request(topic, offset, **options)
    if ranges is not None:
        request.topics[0].partitions[0]._tags = {KEY_RANGES_TAG: encode_ranges(ranges)}
    return request


def fetch_slice(
    wire: Wire, topic: str, offset: int, ranges: Ranges | None, **options: Any
) -> PartitionData:
    """One partition's answer to a fetch of these hashes, without a session."""
    response = wire.call(ApiKey.FETCH, VERSION, slice_request(topic, offset, ranges, **options))
    assert response.error_code == 0
    data: PartitionData = response.responses[0].partitions[0]
    return data


def scanned(data: PartitionData) -> int | None:
    """Up to where the partition was looked through, None if that isn't said."""
    content = (data._tags or {}).get(SCANNED_OFFSET_TAG)
    return None if content is None else decode_int64(content)


def sent(data: PartitionData) -> list[Record]:
    """All records of an answer; each batch is whole and has its checksum."""
    records = bytes(data.records or b"")
    return [
        record
        for position, _ in split_batches(records)
        for record in iter_records(records, position)
    ]


def wanted(records: list[Record], ranges: Ranges) -> list[int]:
    """The offsets of those with such hashes, as a client filters what it gets."""
    return [
        record.offset
        for record in records
        if any(low <= key_hash(record.key, record.offset) <= high for low, high in ranges)
    ]


def read_slice(
    wire: Wire, topic: str, ranges: Ranges, end: int, **options: Any
) -> tuple[list[Record], int]:
    """All that a client gets which goes on where it is told, and in how many fetches."""
    offset, fetches = 0, 0
    found: list[Record] = []
    while offset < end:
        data = fetch_slice(wire, topic, offset, ranges, **options)
        assert data.error_code == 0
        went_on = scanned(data)
        assert went_on is not None
        assert went_on > offset, "a fetch below the end moves"
        found += sent(data)
        offset, fetches = went_on, fetches + 1
    return found, fetches
