"""Produce over the wire: offsets, errors, idempotence (KIP-98), durability waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    build_batch,
    iter_records,
    split_batches,
)
from kraftpy.testing import Broker
from tests.server.wire import Closed, Wire, fetch, produce, produce_request

NewTopic = Callable[..., str]


def now_ms() -> int:
    return int(time.time() * 1000)


def batch(
    *values: bytes, timestamp_ms: int | None = None, key: bytes | None = None, **kw: Any
) -> bytes:
    at = now_ms() if timestamp_ms is None else timestamp_ms
    return build_batch([(at, key, value, []) for value in values], **kw)


def read_values(wire: Wire, topic: str) -> list[tuple[int, bytes | None]]:
    data = fetch(wire, topic, 0, max_wait_ms=0)
    records = bytes(data.records)
    return [
        (record.offset, record.value)
        for position, _ in split_batches(records)
        for record in iter_records(records, position)
    ]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
def test_offsets_are_dense_in_every_version(
    wire: Wire, new_topic: NewTopic, version: int, acks: int
) -> None:
    topic = new_topic()
    first = produce(wire, topic, batch(b"a", b"b"), version=version, acks=acks)
    second = produce(wire, topic, batch(b"c"), version=version, acks=acks)
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (second.error_code, second.base_offset) == (0, 2)
    assert read_values(wire, topic) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_acks_0_gets_no_answer_and_is_written(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(b"silent"), acks=0))
    assert produce(wire, topic, batch(b"loud")).base_offset == 1
    assert read_values(wire, topic) == [(0, b"silent"), (1, b"loud")]


def test_acks_0_with_an_error_closes_the_connection(wire: Wire) -> None:
    wire.send(ApiKey.PRODUCE, 9, produce_request("no-such-topic", batch(b"x"), acks=0))
    with pytest.raises(Closed):
        wire.receive_frame()


def test_acks_2_is_refused(wire: Wire, new_topic: NewTopic) -> None:
    assert (
        produce(wire, new_topic(), batch(b"x"), acks=2).error_code
        == ErrorCode.INVALID_REQUIRED_ACKS
    )


def test_unknown_topic_and_partition(wire: Wire, new_topic: NewTopic) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(wire, "no-such-topic", batch(b"x")).error_code == unknown
    assert produce(wire, new_topic(), batch(b"x"), partition=7).error_code == unknown


def test_pipelined_requests_are_answered_in_order(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [
        wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(b"%d" % n))) for n in range(200)
    ]
    offsets = []
    for correlation_id in sent:
        received, response = wire.receive(ApiKey.PRODUCE, 9)
        assert received == correlation_id
        offsets.append(response.responses[0].partition_responses[0].base_offset)
    assert offsets == list(range(200))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:-1], ErrorCode.INVALID_RECORD),
        (lambda b: b + b, ErrorCode.INVALID_RECORD),
        (lambda b: b + b"\0", ErrorCode.INVALID_RECORD),
        (lambda b: b"", ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\1" + b[17:], ErrorCode.INVALID_RECORD),
    ],
    ids=["flipped bit", "cut short", "two batches", "a byte more", "nothing", "magic 1"],
)
def test_a_damaged_batch_is_refused_and_nothing_is_written(
    wire: Wire, new_topic: NewTopic, damage: Callable[[bytes], bytes], expected: ErrorCode
) -> None:
    topic = new_topic()
    refused = produce(wire, topic, damage(batch(b"value")))
    assert refused.error_code in (expected, ErrorCode.CORRUPT_MESSAGE)
    assert refused.base_offset == -1
    assert produce(wire, topic, batch(b"good")).base_offset == 0


def test_a_batch_over_max_message_bytes_is_refused(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes=1000)
    refused = produce(wire, topic, batch(bytes(2000)))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes=1000" in (refused.error_message or "")
    assert produce(wire, topic, batch(bytes(500))).base_offset == 0


def test_control_batches_of_clients_are_refused(wire: Wire, new_topic: NewTopic) -> None:
    refused = produce(wire, new_topic(), batch(b"x", control=True))
    assert refused.error_code == ErrorCode.INVALID_RECORD


def test_records_without_key_are_refused_on_a_compacted_topic(
    wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(cleanup_policy="compact")
    assert produce(wire, topic, batch(b"x")).error_code == ErrorCode.INVALID_RECORD
    assert produce(wire, topic, batch(b"x", key=b"k")).error_code == 0


def test_timestamps_far_ahead_or_behind_are_refused(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_before_max_ms=60_000, message_timestamp_after_max_ms=60_000)
    for at in (now_ms() - 120_000, now_ms() + 120_000):
        answer = produce(wire, topic, batch(b"x", timestamp_ms=at))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert produce(wire, topic, batch(b"x")).error_code == 0


def test_log_append_time_is_stamped_and_told(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = produce(wire, topic, batch(b"x", timestamp_ms=1))
    assert before - 1000 <= answer.log_append_time_ms <= now_ms() + 1000
    records = bytes(fetch(wire, topic, 0).records)
    assert next(iter_records(records)).timestamp == answer.log_append_time_ms


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_the_topics_compression_type_wins(
    wire: Wire, new_topic: NewTopic, compression: str
) -> None:
    topic = new_topic(compression_type=compression)
    sent = batch(
        b"a" * 1000, b"b" * 1000, compression="none" if compression != "uncompressed" else "gzip"
    )
    assert produce(wire, topic, sent).error_code == 0
    records = bytes(fetch(wire, topic, 0).records)
    header = split_batches(records)[0][1]
    assert header.compression == ("none" if compression == "uncompressed" else compression)
    assert [r.value for r in iter_records(records)] == [b"a" * 1000, b"b" * 1000]


def test_a_batch_that_is_too_large_as_the_topic_wants_it_is_refused(
    wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(compression_type="uncompressed", max_message_bytes=2000)
    refused = produce(wire, topic, batch(bytes(10_000), compression="gzip"))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(wire, topic, batch(bytes(1000), compression="gzip")).base_offset == 0


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2)])
def test_records_that_are_misnumbered_are_refused_on_recompression(
    wire: Wire, new_topic: NewTopic, deltas: tuple[int, int]
) -> None:
    topic = new_topic(compression_type="gzip")
    sent = bytearray(batch(b"a", b"b"))
    for at, delta in zip((RECORD_BATCH_OVERHEAD, RECORD_BATCH_OVERHEAD + 8), deltas, strict=True):
        assert sent[at] == 14  # a record of 7 bytes: length, attributes, timestamp, offset delta
        sent[at + 3] = 2 * delta
    sent[17:21] = crc32c(sent[21:]).to_bytes(4, "big")
    refused = produce(wire, topic, bytes(sent))
    assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert produce(wire, topic, batch(b"good")).base_offset == 0


def test_zstd_needs_a_produce_version_that_knows_it(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = batch(b"x" * 500, compression="zstd")
    refused = produce(wire, topic, sent, version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(wire, topic, sent, version=7).error_code == 0


class Idempotent:
    """A producer id with hand-made sequences."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        answer = wire.call(ApiKey.INIT_PRODUCER_ID, 4, messages.InitProducerIdRequest(None))
        assert answer.error_code == 0
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def send(
        self, sequence: int, count: int = 1, *, epoch: int | None = None
    ) -> messages.ProduceResponse.PartitionProduceResponse:
        return produce(
            self.wire,
            self.topic,
            batch(
                *[b"%d" % (sequence + n) for n in range(count)],
                producer_id=self.producer_id,
                producer_epoch=self.epoch if epoch is None else epoch,
                base_sequence=sequence,
            ),
            acks=-1,
        )


def test_producer_ids_are_never_given_twice(broker: Broker) -> None:
    seen = set()
    for _ in range(30):
        with Wire(broker.host, broker.port) as wire:
            seen.add(Idempotent(wire, "").producer_id)
    assert len(seen) == 30


def test_a_retry_within_the_window_gets_its_first_offset(wire: Wire, new_topic: NewTopic) -> None:
    producer = Idempotent(wire, new_topic())
    offsets = [producer.send(sequence).base_offset for sequence in range(7)]
    assert offsets == list(range(7))
    for sequence in range(2, 7):
        again = producer.send(sequence)
        assert (again.error_code, again.base_offset) == (0, sequence)
    too_old = producer.send(0)
    assert too_old.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert producer.send(7).base_offset == 7


def test_a_retry_is_told_the_log_append_time(wire: Wire, new_topic: NewTopic) -> None:
    producer = Idempotent(wire, new_topic(message_timestamp_type="LogAppendTime"))
    first, again = producer.send(0), producer.send(0)
    assert again.base_offset == first.base_offset
    assert again.log_append_time_ms == first.log_append_time_ms > 0


def test_a_gap_in_the_sequence_is_refused(wire: Wire, new_topic: NewTopic) -> None:
    producer = Idempotent(wire, new_topic())
    assert producer.send(0).error_code == 0
    assert producer.send(2).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(1).error_code == 0


def test_an_older_epoch_is_fenced(wire: Wire, new_topic: NewTopic) -> None:
    producer = Idempotent(wire, new_topic())
    assert producer.send(0).error_code == 0
    assert producer.send(0, epoch=1).error_code == 0
    assert producer.send(1, epoch=0).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_survive_kill_9(new_topic: NewTopic) -> None:
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            wire.call(
                ApiKey.METADATA,
                9,
                messages.MetadataRequest([messages.MetadataRequest.MetadataRequestTopic(name="t")]),
            )
            producer = Idempotent(wire, "t")
            assert [producer.send(n).base_offset for n in range(6)] == list(range(6))
        broker.kill()
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            producer.wire = wire
            again = producer.send(5)
            assert (again.error_code, again.base_offset) == (0, 5)
            assert producer.send(7).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert producer.send(6).base_offset == 6


def test_flush_messages_1_is_acknowledged_and_readable(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(flush_messages=1)
    sent = [
        wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(b"%d" % n), acks=acks))
        for n, acks in enumerate([1, -1] * 50)
    ]
    for n, correlation_id in enumerate(sent):
        received, response = wire.receive(ApiKey.PRODUCE, 9)
        answer = response.responses[0].partition_responses[0]
        assert (received, answer.error_code, answer.base_offset) == (correlation_id, 0, n)
    assert [value for _, value in read_values(wire, topic)] == [b"%d" % n for n in range(100)]


def test_flush_messages_counts_between_flushes(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(flush_messages=3)
    for n in range(10):
        assert produce(wire, topic, batch(b"x")).base_offset == n
    assert len(read_values(wire, topic)) == 10


def test_clients_cant_write_to_the_brokers_own_topics(wire: Wire) -> None:
    finding = messages.FindCoordinatorRequest(key="group", key_type=0)
    assert wire.call(ApiKey.FIND_COORDINATOR, 3, finding).error_code == 0
    refused = produce(wire, "__consumer_offsets", batch(b"x", key=b"k"))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
