"""Fetch over the wire: whole batches, limits, long polls, sessions (KIP-74, KIP-227, KIP-516)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import iter_records, split_batches
from kraftpy.testing import Broker
from tests.server.test_produce import batch
from tests.server.wire import Wire, fetch, fetch_request, produce
from tests.waiting import wait_until

NewTopic = Callable[..., str]


def offsets(data: messages.FetchResponse.PartitionData) -> list[int]:
    records = bytes(data.records or b"")
    return [
        record.offset
        for position, _ in split_batches(records)
        for record in iter_records(records, position)
    ]


@pytest.fixture
def filled(wire: Wire, new_topic: NewTopic) -> str:
    """Ten batches of three records, 1 KB each."""
    topic = new_topic()
    for _ in range(10):
        produce(wire, topic, batch(*[bytes(1000)] * 3))
    return topic


def test_everything_is_there_in_order(wire: Wire, filled: str) -> None:
    data = fetch(wire, filled, 0)
    assert offsets(data) == list(range(30))
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (30, 30, 0)


def test_an_offset_inside_a_batch_gets_the_whole_batch(wire: Wire, filled: str) -> None:
    assert offsets(fetch(wire, filled, 16))[:3] == [15, 16, 17]


def test_limits_cut_between_batches(wire: Wire, filled: str) -> None:
    assert offsets(fetch(wire, filled, 0, partition_max_bytes=7000)) == list(range(6))
    assert offsets(fetch(wire, filled, 0, max_bytes=7000)) == list(range(6))


def test_the_first_batch_comes_even_if_it_is_over_the_limit(wire: Wire, filled: str) -> None:
    assert offsets(fetch(wire, filled, 3, partition_max_bytes=1)) == [3, 4, 5]
    assert offsets(fetch(wire, filled, 3, max_bytes=1)) == [3, 4, 5]


def test_outside_the_log(wire: Wire, filled: str) -> None:
    for offset in (31, 1000, -5):
        assert fetch(wire, filled, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(fetch(wire, filled, 30)) == []


def test_epochs_are_fenced(wire: Wire, filled: str) -> None:
    assert fetch(wire, filled, 0, leader_epoch=99).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    response = wire.call(
        ApiKey.METADATA,
        12,
        messages.MetadataRequest([messages.MetadataRequest.MetadataRequestTopic(name=filled)]),
    )
    epoch = response.topics[0].partitions[0].leader_epoch
    assert fetch(wire, filled, 0, leader_epoch=epoch).error_code == 0


def test_unknown_names_and_ids(wire: Wire) -> None:
    assert fetch(wire, "nothing", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = fetch_request("", 0)
    request.topics[0].topic_id = b"x" * 16
    response = wire.call(ApiKey.FETCH, 13, request)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(13, 19))
def test_topics_by_id(wire: Wire, filled: str, version: int) -> None:
    metadata = wire.call(
        ApiKey.METADATA,
        12,
        messages.MetadataRequest([messages.MetadataRequest.MetadataRequestTopic(name=filled)]),
    )
    request = fetch_request("", 0)
    request.topics[0].topic_id = metadata.topics[0].topic_id
    response = wire.call(ApiKey.FETCH, version, request)
    assert response.responses[0].topic_id == metadata.topics[0].topic_id
    assert offsets(response.responses[0].partitions[0]) == list(range(30))


def test_a_long_poll_ends_when_enough_came(broker: Broker, wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    wire.send(ApiKey.FETCH, 12, fetch_request(topic, 0, min_bytes=2500, max_wait_ms=15_000))
    with Wire(broker.host, broker.port) as other:
        started = time.monotonic()
        for _ in range(3):
            produce(other, topic, batch(bytes(1000)))
    _, response = wire.receive(ApiKey.FETCH, 12)
    assert offsets(response.responses[0].partitions[0]) == [0, 1, 2]
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "limits",
    [
        {"min_bytes": 50_000_000, "max_bytes": 4000},
        {"min_bytes": 4000, "partition_max_bytes": 4000},
    ],
    ids=["more than may be sent", "as much as may be sent, which no batch fits to the byte"],
)
def test_a_full_answer_leaves_at_once(wire: Wire, filled: str, limits: dict[str, int]) -> None:
    started = time.monotonic()
    assert offsets(fetch(wire, filled, 0, max_wait_ms=15_000, **limits)) == [0, 1, 2]
    assert time.monotonic() - started < 10


def test_a_long_poll_counts_the_bytes_of_all_its_partitions(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topics = [new_topic() for _ in range(4)]
    request = fetch_request(topics[0], 0, min_bytes=6000, max_wait_ms=15_000)
    for topic in topics[1:]:
        request.topics += fetch_request(topic, 0).topics
    wire.send(ApiKey.FETCH, 12, request)
    started = time.monotonic()
    with Wire(broker.host, broker.port) as other:
        for topic in topics[:3] * 2:
            produce(other, topic, batch(bytes(1000)))
    _, response = wire.receive(ApiKey.FETCH, 12)
    assert time.monotonic() - started < 10
    got = {each.topic: offsets(each.partitions[0]) for each in response.responses}
    assert got == {**{topic: [0, 1] for topic in topics[:3]}, topics[3]: []}


def test_a_long_poll_ends_at_its_time(wire: Wire, new_topic: NewTopic) -> None:
    started = time.monotonic()
    data = fetch(wire, new_topic(), 0, max_wait_ms=200)
    assert 0.15 < time.monotonic() - started < 10
    assert (data.error_code, offsets(data)) == (0, [])


def test_a_long_poll_ends_when_the_topic_goes(
    broker: Broker, wire: Wire, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wire.send(ApiKey.FETCH, 12, fetch_request(topic, 0, max_wait_ms=15_000))
    with Wire(broker.host, broker.port) as other:
        request = messages.DeleteTopicsRequest
        answer = other.call(
            ApiKey.DELETE_TOPICS,
            6,
            request(topics=[request.DeleteTopicState(topic)], timeout_ms=5000),
        )
        assert answer.responses[0].error_code == 0
    started = time.monotonic()
    _, response = wire.receive(ApiKey.FETCH, 12)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert time.monotonic() - started < 10


def test_large_fetches_arrive_byte_for_byte(wire: Wire, new_topic: NewTopic) -> None:
    """Through sendfile, with a reader slow enough for partial sends."""
    topic = new_topic()
    sent = [batch(b"%d" % n * 100_000) for n in range(9)]
    for each in sent:
        produce(wire, topic, each)
    data = fetch(wire, topic, 0, max_bytes=50_000_000, partition_max_bytes=50_000_000)
    received = bytes(data.records or b"")
    # The broker stamps base offset and leader epoch (the first 16 bytes); all else is the client's.
    position = 0
    for each in sent:
        assert received[position + 16 : position + len(each)] == each[16:]
        position += len(each)
    assert position == len(received)


def incremental(session_id: int, epoch: int) -> messages.FetchRequest:
    return messages.FetchRequest(
        max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch
    )


def test_a_session_answers_only_news(wire: Wire, new_topic: NewTopic) -> None:
    topic, quiet = new_topic(), new_topic()
    request = fetch_request(topic, 0, session=(0, 0))
    request.topics += fetch_request(quiet, 0).topics
    full = wire.call(ApiKey.FETCH, 12, request)
    assert full.session_id > 0
    assert {t.topic for t in full.responses} == {topic, quiet}
    assert wire.call(ApiKey.FETCH, 12, incremental(full.session_id, 1)).responses == []
    produce(wire, topic, batch(b"news"))
    news = wire.call(ApiKey.FETCH, 12, incremental(full.session_id, 2))
    assert [t.topic for t in news.responses] == [topic]
    assert offsets(news.responses[0].partitions[0]) == [0]


def test_wrong_sessions_are_refused(wire: Wire, new_topic: NewTopic) -> None:
    opened = wire.call(ApiKey.FETCH, 12, fetch_request(new_topic(), 0, session=(0, 0)))
    wrong_epoch = wire.call(ApiKey.FETCH, 12, incremental(opened.session_id, 5))
    assert wrong_epoch.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = wire.call(ApiKey.FETCH, 12, incremental(opened.session_id ^ 1, 1))
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_keeps_to_names_or_ids(wire: Wire, new_topic: NewTopic) -> None:
    opened = wire.call(ApiKey.FETCH, 12, fetch_request(new_topic(), 0, session=(0, 0)))
    mixed = wire.call(ApiKey.FETCH, 13, incremental(opened.session_id, 1))
    assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_names_a_diverging_partition_every_time(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(wire, topic, batch(b"x"))
    request = fetch_request(topic, 5, session=(0, 0))
    request.topics[0].partitions[0].last_fetched_epoch = 0
    opened = wire.call(ApiKey.FETCH, 12, request)
    again = wire.call(ApiKey.FETCH, 12, incremental(opened.session_id, 1))
    for response in (opened, again):
        assert response.responses[0].partitions[0].diverging_epoch.end_offset == 1


def test_a_session_waits_for_a_topic_that_isnt_there_yet(wire: Wire, new_topic: NewTopic) -> None:
    number = int(new_topic().removeprefix("topic-"))
    request = fetch_request(f"topic-{number + 1}", 0, session=(0, 0))
    opened = wire.call(ApiKey.FETCH, 12, request)
    answer = opened.responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = new_topic()
    produce(wire, topic, batch(b"first"))
    news = wire.call(ApiKey.FETCH, 12, incremental(opened.session_id, 1))
    assert [(t.topic, offsets(t.partitions[0])) for t in news.responses] == [(topic, [0])]


def wide(partitions: int) -> messages.FetchRequest:
    """Opens a session of so many partitions of a topic that doesn't exist."""
    request = fetch_request("nobody-has-it", 0, session=(0, 0))
    request.topics[0].partitions = [
        messages.FetchRequest.FetchPartition(index) for index in range(partitions)
    ]
    return request


def test_what_sessions_hold_is_bounded_and_ends_with_its_connection() -> None:
    """Room for two such sessions; who finds none is served all the same."""
    request = wide(50_000)
    with (
        Broker(max_incremental_fetch_session_cache_slots=100) as broker,
        ExitStack() as connections,
    ):

        def opened() -> int:
            wire = connections.enter_context(Wire(broker.host, broker.port, timeout_s=60))
            answer = wire.call(ApiKey.FETCH, 12, request)
            assert answer.error_code == 0
            assert len(answer.responses[0].partitions) == 50_000
            return int(answer.session_id)

        assert [opened() > 0 for _ in range(3)] == [True, True, False]
        connections.close()
        # Their ends may be seen after the next request; a session then has its room soon.
        wait_until(lambda: opened() > 0, "what the sessions held is free")


def test_an_epoch_that_the_log_never_had_is_out_of_range(wire: Wire, filled: str) -> None:
    request = fetch_request(filled, 30)
    request.topics[0].partitions[0].last_fetched_epoch = 90
    answer = wire.call(ApiKey.FETCH, 12, request).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_many_readers_wait_and_all_wake(broker: Broker, wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    got: list[list[int]] = []

    def read() -> None:
        with Wire(broker.host, broker.port) as reader:
            got.append(offsets(fetch(reader, topic, 0, max_wait_ms=15_000)))

    readers = [threading.Thread(target=read) for _ in range(20)]
    for reader in readers:
        reader.start()
    produce(wire, topic, batch(b"wake up"))
    for reader in readers:
        reader.join(20)
    assert got == [[0]] * 20
