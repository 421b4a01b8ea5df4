"""What there is of transactions in a partition can be asked for, and ended (KIP-664)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import READ_COMMITTED, ApiKey
from kraftpy.protocol.errors import ErrorCode
from tests.server.test_produce import batch
from tests.server.wire import Wire, produce

PATIENCE_S = 20.0
LATEST = -1
ATTRIBUTES_AT, CRC_AT = 21, 17


def latest(wire: Wire, topic: str) -> int:
    request = messages.ListOffsetsRequest
    wanted = request.ListOffsetsTopic(topic, [request.ListOffsetsPartition(0, timestamp=LATEST)])
    asked = request(replica_id=-1, isolation_level=READ_COMMITTED, topics=[wanted])
    answer = wire.call(ApiKey.LIST_OFFSETS, 7, asked).topics[0].partitions[0]
    assert answer.error_code == 0
    return int(answer.offset)


def described(wire: Wire, **topics: list[int]) -> dict[tuple[str, int], tuple[int, list[Any]]]:
    """What DescribeProducers says of each partition: its error, its producers."""
    request = messages.DescribeProducersRequest
    asked = request([request.TopicRequest(*topic) for topic in topics.items()])
    answer = wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, asked)
    return {
        (topic.name, each.partition_index): (each.error_code, each.active_producers)
        for topic in answer.topics
        for each in topic.partitions
    }


def test_producers_of_a_partition_are_described(wire: Wire, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    assert described(wire, **{topic: [0, 0]}) == {(topic, 0): (0, [])}
    for producer_id, epoch in ((7, 3), (8, 0)):
        sent = batch(b"a", b"b", producer_id=producer_id, producer_epoch=epoch, base_sequence=5)
        assert produce(wire, topic, sent).error_code == 0
    found = described(wire, **{topic: [0, 1, 2], "nowhere": [0], "no name": [0]})
    error, producers = found.pop((topic, 0))
    assert error == 0
    assert [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.coordinator_epoch) for p in producers
    ] == [(7, 3, 6, -1), (8, 0, 6, -1)]
    assert {p.current_txn_start_offset for p in producers} == {-1}
    assert all(p.last_timestamp > 0 for p in producers)
    assert {key: error for key, (error, _) in found.items()} == {
        (topic, 1): ErrorCode.NONE,
        (topic, 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no name", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_fences(wire: Wire, new_topic: Callable[..., str], version: int) -> None:
    """It is in the log when it is answered, and whoever wrote with an older epoch is refused."""
    topic = new_topic()
    sequence = {"producer_id": 7, "base_sequence": 0}
    assert produce(wire, topic, batch(b"x", producer_epoch=3, **sequence)).error_code == 0
    wanted = messages.WriteTxnMarkersRequest.WritableTxnMarker(
        7,
        4,
        False,
        [messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic(topic, [0])],
        coordinator_epoch=2,
    )
    asked = messages.WriteTxnMarkersRequest([wanted])
    for _ in range(2):
        answer = wire.call(ApiKey.WRITE_TXN_MARKERS, version, asked)
        assert answer.markers[0].topics[0].partitions[0].error_code == 0
        assert latest(wire, topic) == 2
    late = produce(wire, topic, batch(b"y", producer_epoch=3, producer_id=7, base_sequence=1))
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    ((error, (producer,)),) = described(wire, **{topic: [0]}).values()
    assert error == 0
    assert (producer.producer_epoch, producer.coordinator_epoch) == (4, 2)
    assert producer.last_sequence == -1
    assert produce(wire, topic, batch(b"z", producer_epoch=4, **sequence)).base_offset == 2
