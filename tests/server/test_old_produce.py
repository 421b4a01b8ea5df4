"""Produce of versions 0 to 2: message sets of magic 0 and 1 become one batch each."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.compression import compress
from kraftpy.protocol.downconversion import downconvert
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import (
    batch_data,
    build_batch,
    iter_records,
    read_batch_header,
    split_batches,
)
from kraftpy.testing import Broker
from tests.server.old_wire import MAGIC_OF_PRODUCE, Message, message_set, old_produce
from tests.server.test_metrics import scrape
from tests.server.test_opened_batches import helpers
from tests.server.test_produce import batch, now_ms
from tests.server.wire import Closed, Wire, fetch, produce, produce_request

NewTopic = Callable[..., str]

CONTENT: list[Message] = [
    (1_700_000_000_000 + n, None if n % 3 == 0 else b"key %d" % n, None if n % 5 == 0 else b"v" * n)
    for n in range(40)
]


def stored(wire: Wire, topic: str) -> list[bytes]:
    records = bytes(fetch(wire, topic, 0, partition_max_bytes=50 << 20, max_bytes=50 << 20).records)
    found = split_batches(records)
    return [records[at : at + header.size_bytes] for at, header in found]


def message(magic: int, value: bytes | None, attributes: int = 0) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", 5) if magic else b"")
    body += struct.pack(">ii", -1, -1 if value is None else len(value)) + (value or b"")
    return struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", MAGIC_OF_PRODUCE)
def test_300_a_message_set_becomes_one_batch(
    wire: Wire, new_topic: NewTopic, version: int, codec: str
) -> None:
    topic, magic = new_topic(), MAGIC_OF_PRODUCE[version]
    if (magic, codec) == (0, "lz4"):
        made = build_batch([(*each, []) for each in CONTENT], compression="lz4")
        header = read_batch_header(made)
        sent, _ = downconvert(header, batch_data(header, made), 0, 0)
    else:
        sent = message_set(magic, CONTENT, codec)
    for number, acks in enumerate((1, -1)):
        answer = old_produce(wire, topic, version, sent, acks)
        assert (answer.error_code, answer.base_offset) == (0, number * len(CONTENT))
    first, second = stored(wire, topic)
    assert read_batch_header(first).compression == codec
    assert [(r.timestamp, r.key, r.value) for r in iter_records(first)] == [
        (time if magic else -1, key, value) for time, key, value in CONTENT
    ]
    assert read_batch_header(second).base_offset == len(CONTENT)


def test_300_acks_0_is_written_and_ends_with_an_error(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = message_set(1, CONTENT)
    wire.send(ApiKey.PRODUCE, 2, produce_request(topic, sent, acks=0))
    assert old_produce(wire, topic, 2, sent).base_offset == len(CONTENT)
    wire.send(ApiKey.PRODUCE, 2, produce_request(topic, sent[:-1] + b"?", acks=0))
    with pytest.raises(Closed):
        wire.receive_frame()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (message(1, b"v" * 60)[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (message(1, b"v" * 60)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (message(0, b"")[:-3], ErrorCode.CORRUPT_MESSAGE),
        (message(1, compress("gzip", message(1, b"", 1)), 1), ErrorCode.INVALID_RECORD),
        (message(1, b"", 4), ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (
            b"".join(message(1, compress("gzip", message(1, bytes(40 << 20))), 1) for _ in "ab"),
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        (message_set(1, [(5, None, b"v" * 4_000)] * 200), ErrorCode.MESSAGE_TOO_LARGE),
        (message_set(1, [(5, None, b"v" * 4_000)] * 1300), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["flipped", "cut", "short", "nested", "zstd", "empty", "bomb", "large", "hopeless"],
)
def test_300_bad_message_sets_are_refused(
    wire: Wire, new_topic: NewTopic, sent: bytes, code: ErrorCode
) -> None:
    topic = new_topic(max_message_bytes=500_000)
    refused = old_produce(wire, topic, 2, sent)
    assert (refused.error_code, refused.base_offset) == (code, -1)
    assert old_produce(wire, topic, 2, message(1, b"good")).base_offset == 0


def test_newer_versions_take_no_message_sets(wire: Wire, new_topic: NewTopic) -> None:
    for magic in (0, 1):
        refused = produce(wire, new_topic(), message_set(magic, CONTENT), version=3)
        assert refused.error_code == ErrorCode.INVALID_RECORD


def test_old_versions_take_batches_as_in_kafka(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert produce(wire, topic, batch(b"v"), version=2).base_offset == 0
    zstd = produce(wire, topic, batch(b"v" * 500, compression="zstd"), version=2)
    assert zstd.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_300_a_topics_rules_hold(wire: Wire, new_topic: NewTopic) -> None:
    keyless = old_produce(wire, new_topic(cleanup_policy="compact"), 2, message_set(1, CONTENT))
    assert keyless.error_code == ErrorCode.INVALID_RECORD
    late = new_topic(message_timestamp_before_max_ms=1000)
    assert old_produce(wire, late, 2, message(1, b"")).error_code == ErrorCode.INVALID_TIMESTAMP
    assert old_produce(wire, late, 0, message(0, b"")).error_code == 0
    squeezed = new_topic(compression_type="lz4", message_timestamp_type="LogAppendTime")
    answer = old_produce(wire, squeezed, 2, message_set(1, CONTENT, "gzip"))
    assert abs(answer.log_append_time_ms - now_ms()) < 60_000
    (made,) = stored(wire, squeezed)
    assert read_batch_header(made).compression == "lz4"
    assert {record.timestamp for record in iter_records(made)} == {answer.log_append_time_ms}


def test_300_what_takes_long_is_converted_elsewhere_and_in_order(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(max_message_bytes=20_000_000, cleanup_policy="compact")
    other = new_topic()
    many = message_set(1, [(5, b"k", b"v%d" % n) for n in range(6_000)], "gzip")
    few = message_set(1, [(5, b"k", b"few")])
    sent = [
        wire.send(ApiKey.PRODUCE, 2, produce_request(topic, each, acks=-1))
        for each in (few, many, few)
    ]
    with Wire(broker.host, broker.port) as beside:
        for number in range(10):
            started = time.monotonic()
            assert produce(beside, other, batch(b"x")).base_offset == number
            assert time.monotonic() - started < 5
    found = []
    for correlation_id in sent:
        received, response = wire.receive(ApiKey.PRODUCE, 2)
        assert received == correlation_id
        found.append(response.responses[0].partition_responses[0])
    assert [each.error_code for each in found] == [0, 0, 0]
    assert [each.base_offset for each in found] == [0, 1, 6_001]
    assert len(helpers(broker)) == 1


def test_300_a_set_that_was_converted_at_once_may_have_to_be_opened_elsewhere(
    wire: Wire, new_topic: NewTopic
) -> None:
    """The outline of lz4 tells of up to 64 KiB, which take too long to be compressed so well."""
    topic = new_topic(compression_type="gzip", compression_gzip_level=9)
    answer = old_produce(wire, topic, 2, message_set(1, CONTENT, "lz4"))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    (made,) = stored(wire, topic)
    assert read_batch_header(made).compression == "gzip"
    assert [record.key for record in iter_records(made)] == [key for _, key, _ in CONTENT]


def test_300_many_message_sets_of_one_request_stay_in_order(
    wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    kinds = messages.ProduceRequest
    sets = [message_set(1, [(5, None, b"%d" % n)] * 150) for n in range(40)]
    rows = [kinds.PartitionProduceData(n % 2, each) for n, each in enumerate(sets)]
    rows.append(kinds.PartitionProduceData(0, sets[0][:-1]))
    data = [kinds.TopicProduceData(topic, partition_data=rows)]
    answer = wire.call(ApiKey.PRODUCE, 2, kinds(acks=-1, timeout_ms=10_000, topic_data=data))
    *found, refused = answer.responses[0].partition_responses
    assert [each.base_offset for each in found] == [n // 2 * 150 for n in range(40)]
    assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
    values = [next(iter_records(each)).value for each in stored(wire, topic)]
    assert values == [b"%d" % n for n in range(0, 40, 2)]


def test_converted_records_are_counted(broker: Broker, wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    old_produce(wire, topic, 0, message_set(0, CONTENT))
    old_produce(wire, topic, 2, message_set(1, CONTENT * 10))
    produce(wire, topic, batch(b"x"))
    found = scrape(broker.config)
    counted = found["kafka_server_brokertopicmetrics_producemessageconversions_total", topic]
    assert counted == 11 * len(CONTENT)
