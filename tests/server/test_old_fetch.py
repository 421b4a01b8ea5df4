"""Fetch of versions 0 to 3: batches are sent as message sets of magic 0 and 1."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.legacy import iter_messages
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Broker
from tests.server.old_wire import MAGIC_OF_FETCH, old_fetch
from tests.server.test_metrics import scrape
from tests.server.test_opened_batches import helpers
from tests.server.test_produce import batch
from tests.server.test_transactions import Id
from tests.server.wire import Wire, fetch, fetch_request, produce, produce_request

NewTopic = Callable[..., str]
T0_MS = 1_700_000_000_000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", MAGIC_OF_FETCH)
def test_301_batches_become_message_sets(
    wire: Wire, new_topic: NewTopic, version: int, codec: str
) -> None:
    topic = new_topic()
    expected = []
    for number in range(3):
        content = [
            (T0_MS + n, None if n % 3 else b"key", b"%d" % n, [("h", b"")]) for n in range(9)
        ]
        produce(wire, topic, build_batch(content, compression=codec))
        expected += [
            (9 * number + n, time_ms if version >= 2 else -1, key, value)
            for n, (time_ms, key, value, _) in enumerate(content)
        ]
    for first in (0, 13, 26):
        data, found = old_fetch(wire, topic, first, version)
        assert (data.error_code, data.high_watermark) == (0, 27)
        assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == expected[first:]
    assert old_fetch(wire, topic, 27, version)[1] == []


def test_301_the_limits_are_those_of_what_is_sent(wire: Wire, new_topic: NewTopic) -> None:
    topic, other = new_topic(), new_topic()
    for each in (topic, other):
        for _ in range(5):
            produce(wire, each, batch(*[b"v" * 10] * 50))
    size = 50 * (34 + 10)
    for limit, count in ((3 * size, 3), (3 * size - 1, 2), (size, 1), (1, 1), (0, 1)):
        _, found = old_fetch(wire, topic, 0, 3, partition_max_bytes=limit)
        assert len(found) == 50 * count
    request = fetch_request(topic, 0, max_bytes=6 * size)
    request.topics += fetch_request(other, 0).topics
    answer = wire.call(ApiKey.FETCH, 3, request)
    sizes = [len(bytes(each.partitions[0].records)) for each in answer.responses]
    assert sizes == [5 * size, size]
    request.max_bytes = 1
    answer = wire.call(ApiKey.FETCH, 3, request)
    assert [len(bytes(each.partitions[0].records)) for each in answer.responses] == [size, 0]


def test_301_a_fetch_waits_for_messages(broker: Broker, wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(wire, topic, batch(b"a"))
    request = fetch_request(topic, 1, min_bytes=80, max_wait_ms=20_000)
    started = time.monotonic()
    wire.send(ApiKey.FETCH, 2, request)
    with Wire(broker.host, broker.port) as beside:
        for value in (b"b" * 10, b"c" * 10):
            produce(beside, topic, batch(value))
    data = wire.receive(ApiKey.FETCH, 2)[1].responses[0].partitions[0]
    assert [record.value for record in iter_messages(bytes(data.records))] == [b"b" * 10, b"c" * 10]
    assert time.monotonic() - started < 15
    assert old_fetch(wire, topic, 3, 2, max_wait_ms=100)[1] == []


def test_301_what_comes_to_many_partitions_at_once_is_within_the_limit(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic, sent = new_topic(partitions=8), batch(b"a" * 1000)
    request = fetch_request(topic, 0, max_wait_ms=20_000, max_bytes=2500)
    partitions = request.topics[0].partitions
    for index in range(1, 8):
        partitions.append(copy(partitions[0]))
        partitions[index].partition = index
    wire.send(ApiKey.FETCH, 3, request)
    with Wire(broker.host, broker.port) as beside:
        assert beside.call(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[])).brokers
        sending = produce_request(topic, sent)
        sending.topic_data[0].partition_data = [
            messages.ProduceRequest.PartitionProduceData(index, sent) for index in range(8)
        ]
        beside.send(ApiKey.PRODUCE, 9, sending)
        _, response = wire.receive(ApiKey.FETCH, 3)
    found = [len(bytes(each.records or b"")) for each in response.responses[0].partitions]
    assert 1000 < sum(found) <= 2500


def test_301_a_fetch_waits_for_a_mebibyte_at_most(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    for _ in range(3):
        produce(wire, topic, batch(bytes(500_000)))
    started = time.monotonic()
    limits = {"partition_max_bytes": 8 << 20, "max_bytes": 8 << 20, "min_bytes": 4 << 20}
    _, found = old_fetch(wire, topic, 0, 3, max_wait_ms=20_000, **limits)
    assert len(found) == 3
    assert time.monotonic() - started < 15


def test_301_markers_are_left_out_and_waited_behind(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic()
    transactional = Id(wire, "old-readers").begin()
    for commit in (True, False):
        transactional.add((topic, 0))
        assert transactional.write(topic, 0 if commit else 1) is ErrorCode.NONE
        _, open_too = old_fetch(wire, topic, 2 * (not commit), 1)
        assert [record.offset for record in open_too] == [2 * (not commit)]
        transactional.end(commit=commit)
        transactional.wait_ended()
    assert [record.offset for record in old_fetch(wire, topic, 0, 3)[1]] == [0, 2]
    assert [record.offset for record in old_fetch(wire, topic, 1, 3)[1]] == [2]
    # Nothing but a marker is there: as at the log's end.
    wire.send(ApiKey.FETCH, 3, fetch_request(topic, 3, max_wait_ms=20_000))
    wire.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        wire.sock.recv(1)
    wire.sock.settimeout(20)
    with Wire(broker.host, broker.port) as beside:
        produce(beside, topic, batch(b"behind"))
    data = wire.receive(ApiKey.FETCH, 3)[1].responses[0].partitions[0]
    assert [record.offset for record in iter_messages(bytes(data.records))] == [4]


def test_301_zstd_is_unsupported_where_it_begins(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(wire, topic, batch(b"a"))
    produce(wire, topic, batch(b"b" * 500, compression="zstd"))
    data, found = old_fetch(wire, topic, 0, 3)
    assert (data.error_code, [record.offset for record in found]) == (0, [0])
    data, found = old_fetch(wire, topic, 1, 3, max_wait_ms=20_000)
    assert (data.error_code, found) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, [])
    assert fetch(wire, topic, 1).error_code == 0


def test_old_fetches_have_the_errors_of_others(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    for name, offset, code in (
        ("nothing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic, 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (topic, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ):
        assert old_fetch(wire, name, offset, 0, max_wait_ms=20_000)[0].error_code == code


def test_a_replica_id_says_nothing_in_old_versions(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(wire, topic, batch(b"a"))
    request = fetch_request(topic, 0)
    request.replica_id = 1
    data = wire.call(ApiKey.FETCH, 1, request).responses[0].partitions[0]
    assert [record.value for record in iter_messages(bytes(data.records))] == [b"a"]


def test_301_what_takes_long_is_converted_elsewhere(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic, other = new_topic(max_message_bytes=10_000_000), new_topic()
    content = [(T0_MS + n, b"k", b"%d" % n, []) for n in range(9_000)]
    produce(wire, topic, build_batch(content, compression="gzip"))
    limits = {"partition_max_bytes": 10 << 20, "max_bytes": 10 << 20}
    wire.send(ApiKey.FETCH, 3, fetch_request(topic, 2_000, **limits))
    with Wire(broker.host, broker.port) as beside:
        for number in range(10):
            assert produce(beside, other, batch(b"x")).base_offset == number
    data = wire.receive(ApiKey.FETCH, 3)[1].responses[0].partitions[0]
    found = list(iter_messages(bytes(data.records)))
    assert [record.value for record in found] == [b"%d" % n for n in range(2_000, 9_000)]
    assert len(helpers(broker)) == 1


def test_301_many_partitions(wire: Wire, new_topic: NewTopic) -> None:
    partitions = 600
    topic = new_topic(partitions)
    data_of = batch(b"v")
    made = messages.ProduceRequest
    rows = [made.PartitionProduceData(index, data_of) for index in range(partitions)]
    topics = [made.TopicProduceData(topic, partition_data=rows)]
    wire.call(ApiKey.PRODUCE, 9, made(acks=1, timeout_ms=10_000, topic_data=topics))
    wanted = messages.FetchRequest
    asked = [
        wanted.FetchPartition(index, fetch_offset=0, partition_max_bytes=1000)
        for index in [*range(partitions), 7]
    ]
    request = wanted(
        max_wait_ms=0, min_bytes=1, topics=[wanted.FetchTopic(topic, partitions=asked)]
    )
    (answer,) = wire.call(ApiKey.FETCH, 0, request).responses
    assert sorted(each.partition_index for each in answer.partitions) == list(range(partitions))
    assert {len(list(iter_messages(bytes(each.records)))) for each in answer.partitions} == {1}


def test_converted_records_are_counted(broker: Broker, wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(wire, topic, batch(*[b"v"] * 30))
    old_fetch(wire, topic, 10, 2)
    found = scrape(broker.config)
    counted = found["kafka_server_brokertopicmetrics_fetchmessageconversions_total", topic]
    assert counted == 20
