"""What clients from before Kafka 0.11 send and get: message sets of magic 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.record.memory_records import MemoryRecordsBuilder

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.legacy import iter_messages
from kraftpy.protocol.messages import FetchResponse, ProduceResponse
from kraftpy.protocol.records import COMPRESSION_NAMES, Record
from tests.server.wire import Wire, fetch_request, produce

MAGIC_OF_PRODUCE = {0: 0, 1: 0, 2: 1}
MAGIC_OF_FETCH = {0: 0, 1: 0, 2: 1, 3: 1}

Message = tuple[int, bytes | None, bytes | None]
"""Timestamp, key, value."""


def message_set(magic: int, messages: Iterable[Message], codec: str = "none") -> bytes:
    """As kafka-python makes it, which has no lz4 of magic 0."""
    builder = MemoryRecordsBuilder(magic, COMPRESSION_NAMES.index(codec), batch_size=1 << 28)
    for timestamp, key, value in messages:
        builder.append(timestamp, key, value)
    builder.close()
    return bytes(builder.buffer())


def old_produce(
    wire: Wire, topic: str, version: int, messages: bytes, acks: int = 1
) -> ProduceResponse.PartitionProduceResponse:
    return produce(wire, topic, messages, version=version, acks=acks)


def old_fetch(
    wire: Wire, topic: str, offset: int, version: int, **options: Any
) -> tuple[FetchResponse.PartitionData, list[Record]]:
    """The partition's answer, and the messages in it."""
    answer = wire.call(ApiKey.FETCH, version, fetch_request(topic, offset, **options))
    data = answer.responses[0].partitions[0]
    records = bytes(data.records)
    assert not records or records[16] == MAGIC_OF_FETCH[version]
    return data, list(iter_messages(records))
