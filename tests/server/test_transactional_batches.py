"""Transactions that nobody coordinates: refused at once, and in a log they hold no reader back.

What there is of them in a partition can be asked for, and ended (KIP-664).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from crc32c import crc32c
from kafka import KafkaProducer
from kafka.errors import KafkaError

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import read_batch_header
from kraftpy.testing import Broker
from tests.server.test_produce import batch
from tests.server.wire import Wire, produce, produce_request

READ_COMMITTED = 1
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


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [
        (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("mine", ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_producers_transactional_batches_are_refused(
    wire: Wire, new_topic: Callable[..., str], transactional_id: str | None, error: ErrorCode
) -> None:
    topic = new_topic()
    sequence: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    request = produce_request(topic, batch(b"x", transactional=True, **sequence), acks=-1)
    request.transactional_id = transactional_id
    refused = wire.call(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]
    assert refused.error_code == error
    assert "transactional.id" in refused.error_message
    assert produce(wire, topic, batch(b"x", **sequence)).base_offset == 0
    assert latest(wire, topic) == 1


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


def make_transactional(broker: Broker) -> None:
    """Turns the first batch in the topic's log into one that a transaction has begun with."""
    (path,) = broker.log_dir.glob("t-0/*.log")
    data = bytearray(path.read_bytes())
    header = read_batch_header(data)
    struct.pack_into(">h", data, ATTRIBUTES_AT, header.attributes | 0x10)
    struct.pack_into(">I", data, CRC_AT, crc32c(data[ATTRIBUTES_AT : header.size_bytes]))
    path.write_bytes(data)


def test_a_log_with_an_unended_transaction_is_read_by_everybody() -> None:
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            topic = messages.MetadataRequest.MetadataRequestTopic(name="t")
            wire.call(ApiKey.METADATA, 9, messages.MetadataRequest([topic]))
            for number in range(3):
                sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
                assert produce(wire, "t", batch(b"%d" % number, **sequence)).error_code == 0
        broker.kill()
        make_transactional(broker)
        for end in (broker.kill, broker.stop):  # recovered, then from a snapshot
            broker.restart()
            with Wire(broker.host, broker.port) as wire:
                assert latest(wire, "t") == 3
            assert read_by_librdkafka(broker) == [b"0", b"1", b"2"]
            end()


def read_by_librdkafka(broker: Broker) -> list[bytes]:
    """With its default isolation.level, read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    try:
        found = consumer.consume(3, timeout=20)
        return [message.value() for message in found if not message.error()]
    finally:
        consumer.close()


def librdkafka_begins(bootstrap: str) -> Exception:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "mine"})
    with pytest.raises(KafkaException) as ended:
        producer.init_transactions(PATIENCE_S)
    assert ended.value.args[0].fatal()
    return ended.value


def kafka_python_begins(bootstrap: str) -> Exception:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="mine")
    with pytest.raises(KafkaError) as ended:
        producer.init_transactions()
    producer.close(timeout=0)
    return ended.value


def aiokafka_begins(bootstrap: str) -> Exception:
    async def begin() -> Exception:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="mine")
        with pytest.raises(AioKafkaError) as ended:
            await asyncio.wait_for(producer.start(), PATIENCE_S)
        await producer.stop()
        return ended.value

    return asyncio.run(begin())


@pytest.mark.parametrize("begins", [librdkafka_begins, kafka_python_begins, aiokafka_begins])
def test_a_transactional_producer_ends_at_once(
    broker: Broker, begins: Callable[[str], Exception]
) -> None:
    """With an error that isn't a timeout: asking again for ever helps nobody."""
    said = str(begins(broker.bootstrap))
    assert "timed out" not in said.lower()


def test_a_producer_id_for_a_transaction_is_unsupported(wire: Wire) -> None:
    request = messages.InitProducerIdRequest("mine", 1000)
    answer = wire.call(ApiKey.INIT_PRODUCER_ID, 4, request)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
