"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords over the wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.server.test_produce import batch, now_ms, read_values
from tests.server.wire import Wire, fetch, produce

NewTopic = Callable[..., str]
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6


def list_offset(
    wire: Wire, topic: str, timestamp: int, *, version: int = 7, leader_epoch: int = -1
) -> messages.ListOffsetsResponse.ListOffsetsPartitionResponse:
    request = messages.ListOffsetsRequest
    response = wire.call(
        ApiKey.LIST_OFFSETS,
        version,
        request(
            topics=[
                request.ListOffsetsTopic(
                    topic, [request.ListOffsetsPartition(0, leader_epoch, timestamp)]
                )
            ]
        ),
    )
    return response.topics[0].partitions[0]


def delete_before(
    wire: Wire, topic: str, offset: int
) -> messages.DeleteRecordsResponse.DeleteRecordsPartitionResult:
    request = messages.DeleteRecordsRequest
    response = wire.call(
        ApiKey.DELETE_RECORDS,
        2,
        request(
            [request.DeleteRecordsTopic(topic, [request.DeleteRecordsPartition(0, offset)])], 5000
        ),
    )
    return response.topics[0].partitions[0]


def test_offsets_before_as_the_first_clients_ask(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    start = now_ms() - 10_000
    for n in (0, 1, 2, 3):
        produce(wire, topic, batch(b"x", timestamp_ms=start + n * 1000))
    delete_before(wire, topic, 1)
    kinds = messages.ListOffsetsRequest

    def offsets(timestamp: int, count: int) -> list[int]:
        partition = kinds.ListOffsetsPartition(0, timestamp=timestamp, max_num_offsets=count)
        request = kinds(topics=[kinds.ListOffsetsTopic(topic, [partition])])
        response = wire.call(ApiKey.LIST_OFFSETS, 0, request)
        (answer,) = response.topics[0].partitions
        assert answer.error_code == ErrorCode.NONE
        return list(answer.old_style_offsets)

    assert offsets(LATEST, 1) == [4]
    assert offsets(LATEST, 5) == [4, 1]
    assert offsets(EARLIEST, 1) == offsets(EARLIEST, 5) == [1]
    assert offsets(start + 2000, 2) == [2, 1]
    assert offsets(now_ms(), 1) == [4]
    assert offsets(LATEST, 0) == offsets(LATEST, -1) == []


@pytest.mark.parametrize("version", range(1, 12))
def test_positions_and_times(wire: Wire, new_topic: NewTopic, version: int) -> None:
    topic = new_topic()
    start = now_ms() - 10_000
    for n in (0, 1, 5, 3):  # the largest timestamp isn't the last one
        produce(wire, topic, batch(b"x", timestamp_ms=start + n * 1000))

    def offset(timestamp: int) -> int:
        return list_offset(wire, topic, timestamp, version=version).offset

    assert offset(EARLIEST) == 0
    assert offset(LATEST) == 4
    assert offset(start) == 0
    assert offset(start + 1) == 1
    assert offset(start + 1001) == 2
    assert offset(start + 5001) == -1
    found = list_offset(wire, topic, MAX_TIMESTAMP, version=version)
    if version >= 7:
        assert (found.offset, found.timestamp) == (2, start + 5000)
    else:
        assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize(
    ("timestamp", "since", "offset"),
    [
        (EARLIEST_LOCAL, 8, 1),
        (LATEST_TIERED, 9, -1),
        (EARLIEST_PENDING_UPLOAD, 11, -1),
        (-7, 12, None),
        (-(2**63), 12, None),
    ],
)
def test_positions_of_tiered_storage(
    wire: Wire, new_topic: NewTopic, timestamp: int, since: int, offset: int | None
) -> None:
    """As Apache Kafka 4.4 answers without tiered storage."""
    topic = new_topic()
    for _ in range(3):
        produce(wire, topic, batch(b"x"))
    delete_before(wire, topic, 1)
    for version in range(1, 12):
        found = list_offset(wire, topic, timestamp, version=version)
        assert found.timestamp == -1
        if version < since:
            assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        else:
            assert (found.error_code, found.offset) == (ErrorCode.NONE, offset)
            assert found.leader_epoch == (0 if offset == 1 else -1)


def test_a_partition_that_is_named_twice(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    kinds = messages.ListOffsetsRequest
    first, second, third = (kinds.ListOffsetsPartition(n, timestamp=LATEST) for n in (0, 1, 0))
    named = [kinds.ListOffsetsTopic(topic, [first, second]), kinds.ListOffsetsTopic(topic, [third])]
    for version in (0, 1, 11):
        (answer,) = wire.call(ApiKey.LIST_OFFSETS, version, kinds(topics=named)).topics
        found = {each.partition_index: each.error_code for each in answer.partitions}
        assert found == {0: ErrorCode.INVALID_REQUEST, 1: ErrorCode.NONE}


def test_an_empty_partition(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert list_offset(wire, topic, LATEST).offset == 0
    assert list_offset(wire, topic, EARLIEST).offset == 0
    assert list_offset(wire, topic, MAX_TIMESTAMP).offset == -1
    assert list_offset(wire, topic, 0).offset == -1


def test_unknown_places_and_epochs(wire: Wire, new_topic: NewTopic) -> None:
    unknown = list_offset(wire, "nothing", LATEST)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ahead = list_offset(wire, new_topic(), LATEST, leader_epoch=99)
    assert ahead.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_deleted_records_are_gone_for_good() -> None:
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            wanted = messages.MetadataRequest.MetadataRequestTopic(name="t")
            wire.call(ApiKey.METADATA, 9, messages.MetadataRequest([wanted]))
            for n in range(10):
                produce(wire, "t", batch(b"%d" % n))
            answer = delete_before(wire, "t", 4)
            assert (answer.error_code, answer.low_watermark) == (0, 4)
            assert fetch(wire, "t", 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert list_offset(wire, "t", EARLIEST).offset == 4
        broker.kill()
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            assert list_offset(wire, "t", EARLIEST).offset == 4
            assert list_offset(wire, "t", 0).offset == 4
            assert fetch(wire, "t", 4).log_start_offset == 4


def test_deleting_to_the_end_and_beyond(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(wire, topic, batch(b"a", b"b"))
    assert delete_before(wire, topic, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_before(wire, topic, -1).low_watermark == 2
    assert not fetch(wire, topic, 2).records
    assert produce(wire, topic, batch(b"c")).base_offset == 2
    compacted = new_topic(cleanup_policy="compact")
    assert delete_before(wire, compacted, 0).error_code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_an_epoch_ends(wire: Wire, new_topic: NewTopic, version: int) -> None:
    topic = new_topic()
    produce(wire, topic, batch(b"a", b"b"))
    epoch = list_offset(wire, topic, LATEST).leader_epoch
    request = messages.OffsetForLeaderEpochRequest

    def ask(leader_epoch: int) -> tuple[int, int]:
        response = wire.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            version,
            request(
                topics=[
                    request.OffsetForLeaderTopic(
                        topic,
                        [request.OffsetForLeaderPartition(0, -1, leader_epoch)],
                    )
                ]
            ),
        )
        answer = response.topics[0].partitions[0]
        assert answer.error_code == 0
        return answer.leader_epoch, answer.end_offset

    assert ask(epoch) == (epoch, 2)
    assert ask(epoch + 1) == (-1, -1)


def test_a_restart_begins_a_new_epoch_where_the_log_ended() -> None:
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            wanted = messages.MetadataRequest.MetadataRequestTopic(name="t")
            wire.call(ApiKey.METADATA, 9, messages.MetadataRequest([wanted]))
            produce(wire, "t", batch(b"a"))
            before = list_offset(wire, "t", LATEST).leader_epoch
        broker.kill()
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            produce(wire, "t", batch(b"b"))
            after = list_offset(wire, "t", LATEST).leader_epoch
            assert after > before
            assert list_offset(wire, "t", EARLIEST).leader_epoch == before
            assert read_values(wire, "t") == [(0, b"a"), (1, b"b")]
