"""Batches that the broker has to open: bounded, their bad records named, never on the event loop.

What takes long is opened by another process, and a producer's batches stay in their order.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import assemble_batch
from kraftpy.protocol.record_walk import MAX_BATCH_RECORDS
from kraftpy.protocol.records import (
    build_batch,
    build_batch_of_data,
    encode_varint,
    read_batch_header,
)
from kraftpy.testing import Broker
from tests.server.test_produce import batch, now_ms, read_values
from tests.server.wire import Closed, Wire, produce, produce_request
from tests.waiting import wait_until

NewTopic = Callable[..., str]


def crowded(count: int, **options: Any) -> bytes:
    """Records with a key and a value of one byte each, as zstd."""
    deltas = (encode_varint(number) for number in range(count))
    parts = [b"%c\0\0%b\x02k\x02v\0" % (2 * (7 + len(delta)), delta) for delta in deltas]
    return build_batch_of_data(b"".join(parts), count, now_ms(), compression="zstd", **options)


def helpers(broker: Broker) -> list[int]:
    """Pids of the processes that open batches for this node."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            parents = (path.parent / "status").read_text()
        except OSError:
            continue
        if (
            b"kraftpy.server.replication.opening_process" in words
            and f"PPid:\t{broker.pid}\n" in parents
        ):
            found.append(int(path.parent.name))
    return found


def produced(wire: Wire, request: messages.ProduceRequest) -> Any:
    wire.send(ApiKey.PRODUCE, 9, request)
    return wire.receive(ApiKey.PRODUCE, 9)[1].responses[0].partition_responses[0]


def test_a_producers_batches_stay_in_order(broker: Broker, wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact", max_message_bytes=10_000_000)
    count, sent = 300_000, []
    sequence: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    for data in (
        batch(b"a", key=b"k", base_sequence=0, **sequence),
        crowded(count, base_sequence=1, **sequence),
        batch(b"b", key=b"k", base_sequence=count + 1, **sequence),
        batch(b"c", key=b"k", base_sequence=count + 2, **sequence),
    ):
        sent.append(wire.send(ApiKey.PRODUCE, 9, produce_request(topic, data, acks=-1)))
    answers = []
    for correlation_id in sent:
        received, response = wire.receive(ApiKey.PRODUCE, 9)
        assert received == correlation_id
        answers.append(response.responses[0].partition_responses[0])
    assert [answer.error_code for answer in answers] == [0, 0, 0, 0]
    assert [answer.base_offset for answer in answers] == [0, 1, count + 1, count + 2]
    assert len(helpers(broker)) == 1
    again = produce(wire, topic, crowded(count, base_sequence=1, **sequence))
    assert (again.error_code, again.base_offset) == (0, 1)


def test_a_partition_twice_in_a_request_stays_in_order(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(compression_type="lz4")
    request = produce_request(topic, crowded(10_000))
    data = messages.ProduceRequest.PartitionProduceData
    request.topic_data[0].partition_data.append(data(0, batch(b"behind")))
    wire.send(ApiKey.PRODUCE, 9, request)
    answers = wire.receive(ApiKey.PRODUCE, 9)[1].responses[0].partition_responses
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 10_000)]
    assert len(read_values(wire, topic)) == 10_001


def test_others_are_served_while_a_batch_is_opened(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(cleanup_policy="compact", max_message_bytes=10_000_000)
    other = new_topic()
    wire.send(ApiKey.PRODUCE, 9, produce_request(topic, crowded(300_000)))
    with Wire(broker.host, broker.port) as beside:
        for number in range(20):
            assert produce(beside, other, batch(b"x")).base_offset == number
    answer = wire.receive(ApiKey.PRODUCE, 9)[1].responses[0].partition_responses[0]
    assert answer.error_code == 0


def test_acks_0_is_written_though_its_producer_left(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(cleanup_policy="compact")
    with Wire(broker.host, broker.port) as leaving:
        leaving.send(ApiKey.PRODUCE, 9, produce_request(topic, crowded(50_000), acks=0))
    deadline = time.monotonic() + 20
    while produce(wire, topic, batch(b"x", key=b"k")).base_offset < 50_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_acks_0_with_an_error_found_elsewhere_closes_the_connection(
    wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(cleanup_policy="compact")
    keyless = build_batch([(now_ms(), None, b"v", [])] * 10_000, compression="zstd")
    wire.send(ApiKey.PRODUCE, 9, produce_request(topic, keyless, acks=0))
    with pytest.raises(Closed):
        wire.receive_frame()


def test_a_dead_helper_is_replaced(broker: Broker, wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    assert produce(wire, topic, crowded(10_000)).base_offset == 0
    (pid,) = helpers(broker)
    os.kill(pid, signal.SIGKILL)
    assert produce(wire, topic, crowded(10_000)).base_offset == 10_000
    assert pid not in helpers(broker)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_more_than_anybody_opens_is_too_large(wire: Wire, new_topic: NewTopic, policy: str) -> None:
    topic = new_topic(cleanup_policy=policy)
    bomb = build_batch(
        [(now_ms(), b"k", b"v" * 9_600_000, []) for _ in range(7)], compression="zstd"
    )
    assert len(bomb) < 10_000
    assert produce(wire, topic, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE
    header = read_batch_header(bomb)
    header.records_count, header.last_offset_delta = MAX_BATCH_RECORDS + 1, MAX_BATCH_RECORDS
    crowd = assemble_batch(header, bomb[61:])
    refused = produce(wire, topic, crowd)
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert f"{MAX_BATCH_RECORDS} are the most" in refused.error_message
    assert produce(wire, topic, batch(b"x", key=b"k")).base_offset == 0


def test_a_large_message_size_raises_the_limit(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact", max_message_bytes=80_000_000)
    large = build_batch([(now_ms(), b"k", b"v" * 70_000_000, [])], compression="zstd")
    assert produce(wire, topic, large).error_code == 0


@pytest.mark.parametrize("count", [100, 10_000])
def test_bad_records_are_named(wire: Wire, new_topic: NewTopic, count: int) -> None:
    compacted, plain = new_topic(cleanup_policy="compact"), new_topic()
    at = now_ms()
    keyless = [(at, None if n % (count // 10) == 3 else b"k", b"v", []) for n in range(count)]
    late = [(at + 7_200_000 * (n % (count // 10) == 3), b"k", b"v", []) for n in range(count)]
    for topic, records, code in (
        (compacted, keyless, ErrorCode.INVALID_RECORD),
        (plain, late, ErrorCode.INVALID_TIMESTAMP),
    ):
        refused = produce(wire, topic, build_batch(records, compression="lz4"))
        assert (refused.error_code, refused.base_offset) == (code, -1)
        named = [error.batch_index for error in refused.record_errors]
        assert named == list(range(3, count, count // 10))
        assert all(error.batch_index_error_message for error in refused.record_errors)
        assert produce(wire, topic, build_batch(records), version=7).error_code == code
        assert produce(wire, topic, batch(b"x", key=b"k")).base_offset == 0


def test_an_answer_names_a_bounded_number_of_records(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    keyless = build_batch([(now_ms(), None, b"v", [])] * 200, compression="zstd")
    request = produce_request(topic, keyless)
    data = messages.ProduceRequest.PartitionProduceData
    request.topic_data[0].partition_data += [data(0, keyless) for _ in range(2000)]
    wire.send(ApiKey.PRODUCE, 9, request)
    frame = wire.receive_frame()
    assert len(frame) < 2_000_000


@pytest.mark.parametrize("timestamp_ms", [-2, -(2**63) + 5])
def test_negative_timestamps_are_refused(
    wire: Wire, new_topic: NewTopic, timestamp_ms: int
) -> None:
    for topic in (new_topic(), new_topic(cleanup_policy="compact")):
        refused = produce(wire, topic, build_batch([(timestamp_ms, b"k", None, [])]))
        assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in refused.record_errors] == [0]
        assert produce(wire, topic, build_batch([(-1, b"k", None, [])])).error_code == 0


RECORDS = 100


@pytest.fixture
def librdkafka(broker: Broker) -> Iterator[Producer]:
    # Sent when it has RECORDS, and not before: of a batch with one bad record, which a flush may
    # cut off, librdkafka calls all bad.
    whole = {"linger.ms": 60_000, "batch.num.messages": RECORDS}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **whole})
    yield producer
    producer.flush(20)


def test_librdkafka_tells_the_bad_records_from_the_others(
    librdkafka: Producer, new_topic: NewTopic
) -> None:
    topic = new_topic(cleanup_policy="compact")
    told: dict[int, KafkaError | None] = {}
    for number in range(RECORDS):
        key = None if number % 10 == 3 else b"k"

        def delivered(error: KafkaError | None, _: Any, number: int = number) -> None:
            told[number] = error

        librdkafka.produce(topic, b"v", key, partition=0, on_delivery=delivered)
    wait_until(lambda: librdkafka.poll(0.05) >= 0 and len(told) == RECORDS, "all are told of")
    assert librdkafka.flush(20) == 0
    bad = {n for n, error in told.items() if error and error.code() == KafkaError.INVALID_RECORD}
    assert bad == set(range(3, 100, 10))
    assert {error.code() for n, error in told.items() if n not in bad and error} == {
        KafkaError._INVALID_DIFFERENT_RECORD
    }
    assert len(told) == 100


def test_a_search_by_time_is_done_elsewhere_too(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(max_message_bytes=10_000_000)
    at = now_ms()
    records = [(at + number, b"k", b"v", []) for number in range(20_000)]
    assert produce(wire, topic, build_batch(records, compression="zstd")).error_code == 0
    request = messages.ListOffsetsRequest
    for timestamp, expected in ((at + 15_000, (at + 15_000, 15_000)), (-3, (at + 19_999, 19_999))):
        wanted = request.ListOffsetsTopic(topic, [request.ListOffsetsPartition(0, -1, timestamp)])
        answer = wire.call(ApiKey.LIST_OFFSETS, 7, request(-1, 0, [wanted])).topics[0].partitions[0]
        assert (answer.error_code, answer.timestamp, answer.offset) == (0, *expected)
    assert len(helpers(broker)) == 1
