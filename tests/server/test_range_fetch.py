"""Fetches of the records with keys in some slices: what comes, what is told, when they wait."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import KEY_RANGES_TAG, encode_ranges
from kraftpy.protocol.key_hash import HASH_MAX
from kraftpy.protocol.record_batch import COMPRESSION_MASK, assemble_batch
from kraftpy.protocol.records import build_batch, check_batch, read_batch_header, split_batches
from kraftpy.testing import Broker
from tests.server.slices import (
    ALL,
    VERSION,
    Ranges,
    fetch_slice,
    just,
    read_slice,
    scanned,
    sent,
    slice_request,
    slices,
    wanted,
)
from tests.server.test_metrics import scrape
from tests.server.test_produce import now_ms
from tests.server.test_transactions import Id
from tests.server.wire import Wire, fetch, fetch_request, produce, produce_request
from tests.waiting import wait_until

NewTopic = Callable[..., str]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SOON_S = 10.0
LONG_MS = 15_000


@pytest.fixture
def shared(new_topic: NewTopic) -> NewTopic:
    """`new_topic` for topics of which slices may be fetched."""
    return lambda **configs: new_topic(accept_range_fetch="true", **configs)


def keyed(*keys: bytes | None, size: int = 100, **options: Any) -> bytes:
    return build_batch([(now_ms(), key, bytes(size), []) for key in keys], **options)


def send(wire: Wire, topic: str, *keys: bytes | None, **options: Any) -> None:
    assert produce(wire, topic, keyed(*keys, **options)).error_code == 0


@contextmanager
def quickly() -> Iterator[None]:
    """What isn't to wait for its time."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SOON_S


# -- what comes


@pytest.mark.parametrize("members", [1, 2, 7])
def test_members_get_each_record_once(wire: Wire, shared: NewTopic, members: int) -> None:
    topic = shared()
    chosen = random.Random(members)
    end = 0
    for number in range(25):
        keys = [chosen.choice([None, b"%d" % chosen.randrange(99)]) for _ in range(20)]
        send(wire, topic, *keys, compression=CODECS[number % len(CODECS)])
        end += len(keys)
    everything, _ = read_slice(wire, topic, ALL, end)
    assert [record.offset for record in everything] == list(range(end))
    got: list[int] = []
    for ranges in slices(members):
        found, _ = read_slice(wire, topic, ranges, end)
        mine = wanted(found, ranges)
        assert mine == wanted(everything, ranges)
        assert len(found) <= 1.4 * len(mine), "most is what was asked for"
        got += mine
    assert sorted(got) == list(range(end))


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_cut_is_a_sound_batch(wire: Wire, shared: NewTopic, codec: str) -> None:
    topic = shared()
    send(wire, topic, b"x")
    send(wire, topic, b"a", b"b", b"a", b"c", compression=codec)
    data = fetch_slice(wire, topic, 0, just(b"a"))
    header = check_batch(bytes(data.records))
    assert (header.base_offset, header.last_offset, header.records_count) == (1, 4, 2)
    assert header.compression == ("none" if codec == "none" else "lz4")
    assert [(record.offset, record.key) for record in sent(data)] == [(1, b"a"), (3, b"a")]
    assert (scanned(data), data.high_watermark) == (5, 5)


def test_most_of_a_batch_comes_as_it_is(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    send(wire, topic, b"a", b"a", b"a", b"b")
    send(wire, topic, b"a", b"a", b"b", b"b")
    data = fetch_slice(wire, topic, 0, just(b"a"))
    assert [record.offset for record in sent(data)] == [0, 1, 2, 3, 4, 5]


def test_an_answer_of_nothing_but_whole_batches_is_what_is_in_the_file(
    wire: Wire, shared: NewTopic
) -> None:
    topic = shared()
    for _ in range(9):
        send(wire, topic, b"a", b"a", b"a", b"b")
    data, plain = fetch_slice(wire, topic, 0, just(b"a")), fetch(wire, topic, 0)
    assert bytes(data.records) == bytes(plain.records)
    assert scanned(data) == 36
    assert scanned(plain) is None


@pytest.mark.parametrize(("records", "codec"), [(4000, "none"), (9000, "zstd"), (12_000, "gzip")])
def test_batches_that_take_long_to_open(
    wire: Wire, shared: NewTopic, records: int, codec: str
) -> None:
    topic = shared(max_message_bytes=10_000_000)
    send(wire, topic, *(b"%d" % number for number in range(records)), compression=codec)
    plain = sent(fetch(wire, topic, 0, partition_max_bytes=1 << 26, max_bytes=1 << 26))
    for ranges in slices(3):
        data = fetch_slice(wire, topic, 0, ranges, partition_max_bytes=1 << 26)
        found = sent(data)
        assert [record.offset for record in found] == wanted(plain, ranges)
        assert scanned(data) == records


def test_what_cannot_be_opened_comes_whole(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    good = keyed(b"a", b"b")
    header = read_batch_header(good)
    header.attributes |= 4 & COMPRESSION_MASK
    assert produce(wire, topic, assemble_batch(header, b"this is no zstd")).error_code == 0
    header = read_batch_header(good)
    header.records_count, header.last_offset_delta = 1, 0
    assert produce(wire, topic, assemble_batch(header, b"this is no record")).error_code == 0
    send(wire, topic, b"a", b"b")
    data = fetch_slice(wire, topic, 0, just(b"b"))
    batches = [each for _, each in split_batches(bytes(data.records))]
    assert [(each.base_offset, each.records_count) for each in batches] == [(0, 2), (2, 1), (3, 1)]
    assert scanned(data) == 5


def test_the_values_may_be_kept(wire: Wire, shared: NewTopic) -> None:
    topic = shared(reserve_message_value_range_fetch="true")
    send(wire, topic, *(b"%d" % number for number in range(200)), compression="zstd")
    found: list[int] = []
    for ranges in slices(4):
        found += [record.offset for record in sent(fetch_slice(wire, topic, 0, ranges))]
    assert sorted(found) == list(range(200))


def test_an_offset_inside_a_batch(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    send(wire, topic, b"a", b"b", b"b", b"a")
    data = fetch_slice(wire, topic, 2, just(b"a"))
    assert [record.offset for record in sent(data)] == [0, 3]
    assert scanned(data) == 4


# -- limits


def test_limits_count_what_is_sent(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    for _ in range(10):
        send(wire, topic, b"a", b"b", b"b", b"b", size=1000)
    data = fetch_slice(wire, topic, 0, just(b"a"), partition_max_bytes=3500)
    assert [record.offset for record in sent(data)] == [0, 4, 8]
    assert scanned(data) == 12
    data = fetch_slice(wire, topic, 12, just(b"a"), max_bytes=1)
    assert [record.offset for record in sent(data)] == [12], "one comes all the same"
    assert scanned(data) == 16


def test_no_match_is_told_and_not_fetched_for_ever(wire: Wire, shared: NewTopic) -> None:
    """Each fetch looks through so much and no more, says how far it came, and doesn't wait."""
    topic = shared()
    for _ in range(100):
        send(wire, topic, b"a", size=1000)
    with quickly():
        found, fetches = read_slice(
            wire, topic, just(b"nobody"), 100, partition_max_bytes=1000, max_wait_ms=200
        )
    assert found == []
    assert fetches == pytest.approx(100 / 8, abs=2)
    with quickly():
        data = fetch_slice(
            wire, topic, 0, just(b"nobody"), partition_max_bytes=1000, max_wait_ms=LONG_MS
        )
    assert scanned(data) in (8, 9)


def test_two_partitions_have_slices_of_their_own(wire: Wire, shared: NewTopic) -> None:
    topics = [shared() for _ in range(3)]
    for topic in topics:
        send(wire, topic, b"a", b"b")
    request = slice_request(topics[0], 0, just(b"a"))
    request.topics += slice_request(topics[1], 0, just(b"b")).topics
    request.topics += fetch_request(topics[2], 0).topics
    answers = wire.call(ApiKey.FETCH, VERSION, request).responses
    got = {each.topic: [r.offset for r in sent(each.partitions[0])] for each in answers}
    assert got == dict(zip(topics, ([0], [1], [0, 1]), strict=True))


def test_while_too_much_is_unsent_batches_come_whole() -> None:
    with (
        Broker(max_bytes_fetcher_filtering=0, max_bytes_key_range_cache=0) as broker,
        Wire(broker.host, broker.port) as wire,
    ):
        topics = messages.CreateTopicsRequest
        accept = topics.CreatableTopicConfig("accept.range.fetch", "true")
        wire.call(
            ApiKey.CREATE_TOPICS,
            7,
            topics(topics=[topics.CreatableTopic("t", 1, 1, configs=[accept])], timeout_ms=9000),
        )
        send(wire, "t", b"a", b"b", b"b")
        send(wire, "t", b"b", b"b", b"b")
        data = fetch_slice(wire, "t", 0, just(b"a"))
        assert [record.offset for record in sent(data)] == [0, 1, 2]
        assert scanned(data) == 6


def test_what_was_looked_through_is_counted(broker: Broker, wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    name = "kraftpy_range_fetch"
    for keys in ((b"a", b"b"), (b"a", b"a"), (b"b", b"b")):
        send(wire, topic, *keys)
    before = scrape(broker.config)
    data = fetch_slice(wire, topic, 0, just(b"a"))
    after = scrape(broker.config)
    grown = {key: value - before[key] for key, value in after.items() if key[0].startswith(name)}
    assert {key[1]: grown.pop(key) for key in list(grown) if len(key) == 2} == {
        "none": 1,
        "cut": 1,
        "whole": 1,
    }
    assert grown[f"{name}_sent_bytes_total",] == len(bytes(data.records))
    everything = len(bytes(fetch(wire, topic, 0).records))
    assert grown[f"{name}_scanned_bytes_total",] == everything
    assert grown[f"{name}_cache_bytes",] > 3 * 1000
    fetch_slice(wire, topic, 0, ALL)
    assert scrape(broker.config)[f"{name}_cache_bytes",] == before[f"{name}_cache_bytes",]


# -- what is refused


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(5, 4)],
        [(-1, 4)],
        [(0, 5), (5, 9)],
        [(number * 2, number * 2) for number in range(65)],
    ],
    ids=["none", "backwards", "negative", "overlapping", "65"],
)
def test_what_no_slices_can_be(wire: Wire, shared: NewTopic, ranges: Ranges) -> None:
    topic = shared()
    response = wire.call(ApiKey.FETCH, VERSION, slice_request(topic, 0, ranges))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert fetch_slice(wire, topic, 0, [(n * 2, n * 2) for n in range(64)]).error_code == 0


@pytest.mark.parametrize("content", [b"", b"\xff", encode_ranges(ALL)[:-1], encode_ranges(ALL) * 2])
def test_what_does_not_say_slices(wire: Wire, shared: NewTopic, content: bytes) -> None:
    request = fetch_request(shared(), 0)
    request.topics[0].partitions[0]._tags = {KEY_RANGES_TAG: content}
    response = wire.call(ApiKey.FETCH, VERSION, request)
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_has_to_allow_it(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(wire, topic, b"a")
    data = fetch_slice(wire, topic, 0, ALL, max_wait_ms=LONG_MS)
    assert data.error_code == ErrorCode.TOPIC_RANGE_FETCH_NOT_ALLOWED
    assert fetch(wire, topic, 0).error_code == 0


def test_outside_the_log_and_of_no_topic(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    send(wire, topic, b"a")
    for offset in (-1, 2):
        data = fetch_slice(wire, topic, offset, ALL, max_wait_ms=LONG_MS)
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert scanned(data) is None
    data = fetch_slice(wire, "nothing", 0, ALL, max_wait_ms=LONG_MS)
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_replica_has_all_records(broker: Broker, wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    described = wire.call(ApiKey.METADATA, 12, messages.MetadataRequest(None))
    (topic_id,) = [each.topic_id for each in described.topics if each.name == topic]
    request = slice_request(topic, 0, ALL)
    request.topics[0].topic, request.topics[0].topic_id = "", topic_id
    request.replica_state = messages.FetchRequest.ReplicaState(
        described.brokers[0].node_id, 1 << 40
    )
    answer = wire.call(ApiKey.FETCH, 16, request)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST


# -- waiting


def test_a_fetch_waits_for_what_it_wants_where_it_stopped(
    broker: Broker, wire: Wire, shared: NewTopic
) -> None:
    topic = shared()
    send(wire, topic, b"b")
    wire.send(ApiKey.FETCH, VERSION, slice_request(topic, 0, just(b"a"), max_wait_ms=LONG_MS))
    with Wire(broker.host, broker.port) as other, quickly():
        for key in (b"b", b"c", b"a"):
            send(other, topic, key)
            assert sent(fetch(other, topic, 0))[-1].key == key
        _, response = wire.receive(ApiKey.FETCH, VERSION)
    data = response.responses[0].partitions[0]
    assert [record.offset for record in sent(data)] == [3]
    assert scanned(data) == 4


def test_a_fetch_waits_for_as_much_as_it_wants(
    broker: Broker, wire: Wire, shared: NewTopic
) -> None:
    topic, plain = shared(), shared()
    request = slice_request(topic, 0, just(b"a"), max_wait_ms=LONG_MS, min_bytes=3500)
    request.topics += fetch_request(plain, 0).topics
    wire.send(ApiKey.FETCH, VERSION, request)
    with Wire(broker.host, broker.port) as other, quickly():
        for _ in range(2):
            send(other, topic, b"a", b"b", size=1000)
            send(other, topic, b"b", b"b", size=5000)
        send(other, plain, b"b", b"b", size=1000)
        _, response = wire.receive(ApiKey.FETCH, VERSION)
    got = {e.topic: [r.offset for r in sent(e.partitions[0])] for e in response.responses}
    assert got == {topic: [0, 4], plain: [0, 1]}


def test_what_comes_to_many_partitions_at_once_is_within_the_limit(
    broker: Broker, wire: Wire, shared: NewTopic
) -> None:
    topic, batch = shared(partitions=8), keyed(b"a", size=1000)
    request = slice_request(topic, 0, ALL, max_wait_ms=LONG_MS, max_bytes=2500)
    partitions = request.topics[0].partitions
    for index in range(1, 8):
        partitions.append(copy(partitions[0]))
        partitions[index].partition = index
    wire.send(ApiKey.FETCH, VERSION, request)
    with Wire(broker.host, broker.port) as other, quickly():
        assert other.call(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[])).brokers
        sending = produce_request(topic, batch)
        sending.topic_data[0].partition_data = [
            messages.ProduceRequest.PartitionProduceData(index, batch) for index in range(8)
        ]
        other.send(ApiKey.PRODUCE, 9, sending)
        _, response = wire.receive(ApiKey.FETCH, VERSION)
    found = [len(bytes(each.records or b"")) for each in response.responses[0].partitions]
    assert 1000 < sum(found) <= 2500


def test_a_fetch_whose_time_is_over_says_how_far_it_came(
    broker: Broker, wire: Wire, shared: NewTopic
) -> None:
    topic = shared()
    send(wire, topic, b"b")
    wire.send(ApiKey.FETCH, VERSION, slice_request(topic, 0, just(b"a"), max_wait_ms=1500))
    with Wire(broker.host, broker.port) as other:
        send(other, topic, b"b")
    _, response = wire.receive(ApiKey.FETCH, VERSION)
    data = response.responses[0].partitions[0]
    assert (sent(data), scanned(data)) == ([], 2)


def test_a_fetch_that_waits_ends_when_the_topic_goes(
    broker: Broker, wire: Wire, shared: NewTopic
) -> None:
    topic = shared()
    send(wire, topic, b"b")
    wire.send(ApiKey.FETCH, VERSION, slice_request(topic, 0, just(b"a"), max_wait_ms=LONG_MS))
    with Wire(broker.host, broker.port) as other, quickly():
        request = messages.DeleteTopicsRequest
        gone = request(topics=[request.DeleteTopicState(topic)], timeout_ms=5000)
        assert other.call(ApiKey.DELETE_TOPICS, 6, gone).responses[0].error_code == 0
        _, response = wire.receive(ApiKey.FETCH, VERSION)
    error = response.responses[0].partitions[0].error_code
    assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- sessions


class Session:
    """A client's fetch session."""

    def __init__(self, wire: Wire, topic: str, ranges: Ranges | None) -> None:
        self._wire, self._topic = wire, topic
        request = slice_request(topic, 0, ranges, session=(0, 0))
        response = wire.call(ApiKey.FETCH, VERSION, request)
        self.first = response.responses[0].partitions[0]
        self._id, self._epoch = response.session_id, 0

    def fetch(self) -> messages.FetchResponse.PartitionData | None:
        """Names nothing; the partition's answer, None if there is none."""
        return self._ask([])

    def go_on(
        self, offset: int, ranges: Ranges | None, **options: Any
    ) -> messages.FetchResponse.PartitionData | None:
        return self._ask(slice_request(self._topic, offset, ranges, **options).topics)

    def _ask(
        self, topics: list[messages.FetchRequest.FetchTopic]
    ) -> messages.FetchResponse.PartitionData | None:
        self._epoch += 1
        request = messages.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=topics,
        )
        response = self._wire.call(ApiKey.FETCH, VERSION, request)
        assert response.error_code == 0
        return response.responses[0].partitions[0] if response.responses else None


def offsets(data: messages.FetchResponse.PartitionData | None) -> list[int]:
    assert data is not None
    return [record.offset for record in sent(data)]


def test_a_session_keeps_a_slice_until_the_partition_is_named(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    send(wire, topic, b"a", b"b", b"c")
    session = Session(wire, topic, just(b"a"))
    assert offsets(session.first) == [0]
    assert offsets(session.fetch()) == [0], "it is where it was"
    assert offsets(session.go_on(0, just(b"b", b"c"))) == [1, 2]
    assert offsets(session.fetch()) == [1, 2]
    assert offsets(session.go_on(0, None)) == [0, 1, 2], "without slices it's the partition"
    assert offsets(session.fetch()) == [0, 1, 2]
    assert offsets(session.go_on(0, just(b"c"))) == [2]


def test_slices_that_change_while_a_fetch_waits_are_those_of_the_next(
    broker: Broker, wire: Wire, shared: NewTopic
) -> None:
    """It was begun without: a client that has given a connection up goes on over another one."""
    topics = [shared(), shared()]
    request = slice_request(topics[0], 0, just(b"a"), session=(0, 0))
    request.topics += slice_request(topics[1], 0, None).topics
    session_id = wire.call(ApiKey.FETCH, VERSION, request).session_id
    waiting = slice_request(topics[0], 0, just(b"a"), max_wait_ms=LONG_MS, session=(session_id, 1))
    wire.send(ApiKey.FETCH, VERSION, waiting)
    changed = slice_request(topics[1], 0, just(b"b"), session=(session_id, 2))
    changed.topics += slice_request(topics[0], 0, None).topics
    with Wire(broker.host, broker.port) as other:
        wait_until(
            lambda: other.call(ApiKey.FETCH, VERSION, changed).error_code == 0,
            "the epoch of the fetch that waits",
        )
        send(other, topics[0], b"a")
    _, response = wire.receive(ApiKey.FETCH, VERSION)
    assert response.error_code == 0
    (answer,) = [each for each in response.responses if each.topic == topics[0]]
    assert offsets(answer.partitions[0]) == [0]


def test_a_session_is_told_of_progress_without_records(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    session = Session(wire, topic, just(b"a"))
    assert session.fetch() is None
    send(wire, topic, b"b")
    data = session.fetch()
    assert data is not None
    assert scanned(data) == 1
    assert session.go_on(1, just(b"a")) is None
    assert session.fetch() is None


def test_a_session_goes_through_what_is_not_its_own(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    for _ in range(30):
        send(wire, topic, b"b", size=1000)
    session, offset, fetches = Session(wire, topic, None), 0, 0
    while offset < 30:
        data = session.go_on(offset, just(b"a"), partition_max_bytes=1000)
        assert data is not None
        assert sent(data) == []
        went_on = scanned(data)
        assert went_on is not None
        assert went_on > offset
        offset, fetches = went_on, fetches + 1
    assert fetches <= 5


# -- transactions


def write(wire: Wire, topic: str, by: Id, sequence: int, *keys: bytes) -> None:
    producer_id, epoch = by.producer
    records = keyed(
        *keys,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    request = produce_request(topic, records, acks=-1)
    request.transactional_id = by.name
    answer = wire.call(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]
    assert answer.error_code == 0


def committed_slice(
    wire: Wire, topic: str, offset: int, ranges: Ranges, **options: Any
) -> messages.FetchResponse.PartitionData:
    request = slice_request(topic, offset, ranges, **options)
    request.isolation_level = 1
    data: messages.FetchResponse.PartitionData = (
        wire.call(ApiKey.FETCH, VERSION, request).responses[0].partitions[0]
    )
    return data


def test_committed_records_and_what_tells_them(wire: Wire, shared: NewTopic) -> None:
    """Markers come whatever is asked for, and the aborted span all that was looked through."""
    topic = shared()
    producers = [Id(wire, f"{topic}-{number}").begin() for number in range(3)]
    for number, producer in enumerate(producers):
        assert producer.add((topic, 0)) == [ErrorCode.NONE]
        write(wire, topic, producer, 0, b"a", b"b", b"b", b"b" if number else b"c")
    assert producers[0].end(commit=False) is ErrorCode.NONE
    assert producers[1].end(commit=True) is ErrorCode.NONE
    for each in producers[:2]:
        each.wait_ended()
    data = committed_slice(wire, topic, 0, just(b"a"))
    stable = data.last_stable_offset
    assert (stable, scanned(data)) == (8, 8), "the third one is open"
    assert [record.offset for record in sent(data)] == [0, 4]
    aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
    assert aborted == [(producers[0].producer[0], 0)]
    assert producers[2].end(commit=True) is ErrorCode.NONE
    producers[2].wait_ended()
    data = committed_slice(wire, topic, 8, just(b"c"))
    markers = [each.is_control for _, each in split_batches(bytes(data.records))]
    assert markers == [True] * 3
    assert scanned(data) == data.high_watermark == 15
    uncommitted = fetch_slice(wire, topic, 0, just(b"c"))
    assert uncommitted.aborted_transactions is None or not uncommitted.aborted_transactions
    assert [record.offset for record in sent(uncommitted) if record.key == b"c"] == [3]


def test_all_hashes_are_the_partition(wire: Wire, shared: NewTopic) -> None:
    topic = shared()
    send(wire, topic, b"a", None, b"")
    assert offsets(fetch_slice(wire, topic, 0, [(0, HASH_MAX)])) == [0, 1, 2]
