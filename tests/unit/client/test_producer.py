"""The producer: batches, order over retries, idempotence, limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kraftpy.client.batches import Batch, EncodedRecords, RecordMetadata
from kraftpy.client.cluster import Cluster
from kraftpy.client.partitioner import partition_of_key
from kraftpy.client.producer import Producer, UnknownPartitionError
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    build_batch,
    iter_records,
    read_batch_header,
)

from .peer import HANG_UP, SILENCE, Peer, running


def produce(
    peer: Peer, work: Callable[[Producer], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def run() -> None:
        async with (
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=5000) as cluster,
            Producer(cluster, **options) as producer,
        ):
            await work(producer)

    asyncio.run(run())


def test_records_of_a_partition_share_batches_and_know_their_offsets() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer) -> None:
        deliveries = [await producer.send("t", b"v%d" % n) for n in range(100)]
        assert [(await delivery).offset for delivery in deliveries] == list(range(100))

    produce(peer, work)
    assert [value for _, value in peer.written["t", 0]] == [b"v%d" % n for n in range(100)]
    assert len(peer.raw_batches) == 1


def test_a_batch_that_is_encoded_already_keeps_its_place() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer) -> None:
        await producer.send("t", b"a")
        data = build_batch([(5, None, b"b", []), (5, b"k", b"c", [])])[RECORD_BATCH_OVERHEAD:]
        delivery = await producer.send_encoded("t", 0, EncodedRecords(data, 2, 5))
        after = await producer.send("t", b"d")
        assert ((await delivery).offset, (await after).offset) == (1, 3)
        with pytest.raises(UnknownPartitionError):
            await producer.send_encoded("t", 1, EncodedRecords(data, 2, 5))

    produce(peer, work, compression="gzip")
    assert peer.written["t", 0] == [(None, b"a"), (None, b"b"), (b"k", b"c"), (None, b"d")]
    assert [read_batch_header(raw).base_sequence for raw in peer.raw_batches] == [0, 1, 3]


def test_encoded_records_have_their_own_timestamps() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer) -> None:
        data = build_batch([(7, None, b"b", []), (9, None, b"c", [])])[RECORD_BATCH_OVERHEAD:]
        await producer.send_encoded("t", 0, EncodedRecords(data, 2, 7, 9))

    produce(peer, work)
    (raw,) = peer.raw_batches
    assert [record.timestamp for record in iter_records(raw)] == [7, 9]
    assert read_batch_header(raw).max_timestamp == 9


def test_keys_choose_partitions_as_in_java_and_keep_their_order() -> None:
    peer = Peer({"t": 3})

    async def work(producer: Producer) -> None:
        for n in range(200):
            await producer.send("t", b"%d" % n, key=b"k%d" % (n % 7))

    produce(peer, work, batch_size_bytes=500)
    for partition in range(3):
        records = peer.written["t", partition]
        assert {partition_of_key(key or b"", 3) for key, _ in records} == {partition}
        numbers = [int(value or b"") for _, value in records]
        assert numbers == sorted(numbers)
    assert sum(len(records) for records in peer.written.values()) == 200


def test_one_request_carries_all_partitions_of_a_broker() -> None:
    peer = Peer({"t": 4})

    async def work(producer: Producer) -> None:
        for partition in range(4):
            await producer.send("t", b"v", partition=partition)

    produce(peer, work)
    (request,) = peer.asked(ApiKey.PRODUCE)
    assert len(request.topic_data[0].partition_data) == 4


def test_retries_keep_order_and_bytes() -> None:
    peer = Peer({"t": 1})
    refusals = iter([HANG_UP, 6, 19])  # the connection, NOT_LEADER, NOT_ENOUGH_REPLICAS

    def answer(request: Any) -> Any:
        refusal = next(refusals, 0)
        if refusal is HANG_UP:
            peer.raw_batches.append(bytes(request.topic_data[0].partition_data[0].records))
            return HANG_UP
        return peer.produce_response(request, lambda *_: (refusal, None))

    peer.answers[ApiKey.PRODUCE] = answer

    async def work(producer: Producer) -> None:
        for n in range(50):
            await producer.send("t", b"%d" % n)

    produce(peer, work, batch_size_bytes=300, idempotent=True)
    assert [int(value or b"") for _, value in peer.written["t", 0]] == list(range(50))
    assert len(set(peer.raw_batches[:4])) == 1


def test_idempotent_batches_number_their_records() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer) -> None:
        for n in range(30):
            await producer.send("t", b"x" * 100)
            if n % 10 == 9:
                await producer.flush()

    produce(peer, work, idempotent=True)
    headers = [read_batch_header(data, 0) for data in peer.raw_batches]
    assert [header.base_sequence for header in headers] == [0, 10, 20]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(1001, 0)}


def test_a_duplicate_was_delivered() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (46, None)
    )

    async def work(producer: Producer) -> None:
        assert (await (await producer.send("t", b"v"))).offset == -1

    produce(peer, work, idempotent=True)


def test_after_a_lost_batch_numbers_begin_again_in_the_next_epoch() -> None:
    peer = Peer({"t": 1})
    codes = iter([0, 10])  # MESSAGE_TOO_LARGE
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (next(codes, 0), None)
    )

    async def work(producer: Producer) -> None:
        await (await producer.send("t", b"a"))
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await (await producer.send("t", b"b"))
        await producer.flush()
        await (await producer.send("t", b"c"))

    produce(peer, work, idempotent=True)
    assert sequences(peer) == [(1001, 0, 0), (1001, 0, 1), (1001, 1, 0)]


def sequences(peer: Peer) -> list[tuple[int, int, int]]:
    """Producer id, epoch and first sequence of each batch that was sent."""
    headers = [read_batch_header(data, 0) for data in peer.raw_batches]
    return [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers]


@pytest.mark.parametrize("code", [45, 59])  # OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID
def test_a_batch_whose_predecessors_the_leader_lost_is_sent_in_the_next_epoch(code: int) -> None:
    peer = Peer({"t": 2})
    codes = iter([0, code])
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (next(codes, 0), None)
    )

    async def work(producer: Producer) -> None:
        for value, partition in ((b"a", 0), (b"b", 0), (b"c", 0), (b"d", 1)):
            await producer.send_and_wait("t", value, partition=partition)

    produce(peer, work)
    assert sequences(peer) == [
        (1001, 0, 0),
        (1001, 0, 1),
        (1001, 1, 0),
        (1001, 1, 1),
        (1001, 1, 0),
    ]
    assert [value for _, value in peer.written["t", 0]] == [b"a", b"b", b"c"]


def test_a_batch_on_retry_keeps_its_epoch_when_another_partition_starts_one() -> None:
    peer = Peer({"t": 2})
    refusals = {0: iter([10]), 1: iter([6, 6])}  # MESSAGE_TOO_LARGE, NOT_LEADER_OR_FOLLOWER
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda topic, partition, data: (next(refusals[partition], 0), None)
    )

    async def work(producer: Producer) -> None:
        lost = await producer.send("t", b"lost", partition=0)
        kept = await producer.send("t", b"kept", partition=1)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await lost
        await producer.send("t", b"next", partition=1)
        await kept
        await producer.flush()

    produce(peer, work, linger_ms=50)
    assert [value for _, value in peer.written["t", 1]] == [b"kept", b"next"]
    assert sequences(peer) == [(1001, 0, 0)] * 4 + [(1001, 1, 0)]


def test_a_producer_without_epochs_left_asks_for_a_new_id() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.INIT_PRODUCER_ID] = lambda request: messages.InitProducerIdResponse(
        producer_id=1000 + len(peer.asked(ApiKey.INIT_PRODUCER_ID)), producer_epoch=0x7FFF
    )
    codes = iter([10])
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (next(codes, 0), None)
    )

    async def work(producer: Producer) -> None:
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.send_and_wait("t", b"a")
        await producer.flush()
        await producer.send_and_wait("t", b"b")

    produce(peer, work)
    assert sequences(peer) == [(1001, 0x7FFF, 0), (1002, 0x7FFF, 0)]


def test_serializers_partitioner_and_callbacks() -> None:
    peer = Peer({"t": 3})
    told: list[Any] = []

    def last_partition(topic: str, key: bytes | None, count: int) -> int | None:
        return None if key is None else count - 1

    async def work(producer: Producer) -> None:
        for n in range(3):
            await producer.send(
                "t", n, key=f"k{n}", on_delivery=lambda place, error: told.append((place, error))
            )
        await producer.flush()
        refused = await producer.send(
            "t", 9, key="k", on_delivery=lambda place, error: told.append((place, error))
        )
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await refused
        await producer.flush()

    codes = iter([0, 10])
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (next(codes), None)
    )
    produce(
        peer,
        work,
        partitioner=last_partition,
        key_serializer=str.encode,
        value_serializer=lambda value: b"%d" % value,
    )
    assert peer.written["t", 2] == [(b"k0", b"0"), (b"k1", b"1"), (b"k2", b"2")]
    assert [place for place, _ in told[:3]] == [RecordMetadata("t", 2, n) for n in range(3)]
    assert told[3][0] is None
    assert told[3][1].code == ErrorCode.MESSAGE_TOO_LARGE


def test_gives_up_after_the_delivery_timeout_with_the_last_error() -> None:
    peer = Peer({"t": 1})
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (19, None)
    )

    async def work(producer: Producer) -> None:
        delivery = await producer.send("t", b"v")
        with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
            await producer.flush()
        with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
            await delivery

    produce(peer, work, delivery_timeout_ms=300)
    assert len(peer.asked(ApiKey.PRODUCE)) > 1


def test_nothing_is_sent_behind_a_failure_if_that_is_asked_for() -> None:
    peer = Peer({"t": 2})
    refused = iter([10])  # MESSAGE_TOO_LARGE, once
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (next(refused, 0), None)
    )

    async def work(producer: Producer) -> None:
        sent = [await producer.send("t", b"%d" % n, partition=0) for n in range(30)]
        for each in sent:
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await each
        for partition in (0, 1):
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await producer.send("t", b"later", partition=partition)
        await producer.flush()

    produce(peer, work, batch_size_bytes=100, stop_on_failure=True)
    assert len(peer.asked(ApiKey.PRODUCE)) == 1


def test_waits_for_a_leader() -> None:
    peer = Peer({"t": 1})

    def without_leader_at_first(request: Any) -> Any:
        response = peer._metadata(request)
        if len(peer.asked(ApiKey.METADATA)) < 3:
            response.topics = [peer.topic_metadata("t", leader=-1)]
        return response

    peer.answers[ApiKey.METADATA] = without_leader_at_first

    async def work(producer: Producer) -> None:
        assert (await (await producer.send("t", b"v"))).offset == 0

    produce(peer, work)


def test_acks_0_waits_for_nothing() -> None:
    peer = Peer({"t": 1})

    arrived = asyncio.Event()

    def swallow(request: Any) -> Any:
        arrived.set()
        return SILENCE

    peer.answers[ApiKey.PRODUCE] = swallow

    async def work(producer: Producer) -> None:
        assert (await (await producer.send("t", b"v"))).offset == -1
        await asyncio.wait_for(arrived.wait(), 5)

    produce(peer, work, acks=0)


def test_waits_for_room_in_the_buffer() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer) -> None:
        for _ in range(20):
            await producer.send("t", bytes(1000))
        with pytest.raises(KafkaError, match="larger than the producer's buffer") as caught:
            await producer.send("t", bytes(3000))
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE

    produce(peer, work, buffer_size_bytes=3000, linger_ms=60_000, batch_size_bytes=100_000)
    assert len(peer.written["t", 0]) == 20
    assert len(peer.raw_batches) >= 10


def test_timestamps_are_the_callers_or_now() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer) -> None:
        await (await producer.send("t", b"v", timestamp_ms=0))
        await (await producer.send("t", b"v"))

    before = int(time.time() * 1000)
    produce(peer, work)
    first, second = (read_batch_header(data, 0).base_timestamp for data in peer.raw_batches)
    assert first == 0
    assert before <= second <= int(time.time() * 1000)


def test_names_the_partitions_that_there_are() -> None:
    async def work(producer: Producer) -> None:
        with pytest.raises(UnknownPartitionError, match="partitions 0 to 1, not 2"):
            await producer.send("t", b"v", partition=2)

    produce(Peer({"t": 2}), work)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"timestamp_ms": 1 << 63}, "timestamp_ms 9223372036854775808 is no 64-bit number"),
        ({"headers": [("\ud800", b"")]}, "topic 't': header '.*surrogates"),
    ],
)
def test_what_cannot_be_encoded_is_refused_when_it_is_sent(
    record: dict[str, Any], said: str
) -> None:
    async def work(producer: Producer) -> None:
        with pytest.raises(ValueError, match=said):
            await producer.send("t", b"v", **record)

    produce(Peer({"t": 1}), work)


def test_a_batch_that_cannot_be_encoded_fails_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Batch.encode

    def encode_unless_0(self: Batch, *args: Any, **named: Any) -> bytes:
        if self.partition == 0:
            raise ValueError("not this one")
        return encode(self, *args, **named)

    monkeypatch.setattr(Batch, "encode", encode_unless_0)
    peer = Peer({"t": 2})

    async def work(producer: Producer) -> None:
        sent = [await producer.send("t", b"v", partition=each) for each in (0, 1)]
        with pytest.raises(ValueError, match="not this one"):
            await producer.flush()
        assert (await sent[1]).offset == 0
        with pytest.raises(ValueError, match="not this one"):
            await sent[0]

    produce(peer, work, linger_ms=60_000)


def test_what_waits_for_too_long_fails_with_what_it_waits_for() -> None:
    """Batches behind one that is overdue don't get their own attempts, each for so long."""
    peer = Peer({"t": 1})
    peer.answers[ApiKey.PRODUCE] = lambda request: SILENCE

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap, request_timeout_ms=300) as cluster:
            producer = Producer(cluster, batch_size_bytes=100, delivery_timeout_ms=200)
            sent = [await producer.send("t", bytes(90)) for _ in range(4)]
            for each in sent:
                with pytest.raises((ConnectionError, KafkaError)):
                    await each
            await producer.close(flush=False)

    asyncio.run(run())
    assert len(peer.asked(ApiKey.PRODUCE)) == 1


def test_what_lingers_for_longer_than_it_may_be_under_way_is_sent_once() -> None:
    async def work(producer: Producer) -> None:
        delivery = await producer.send("t", b"v")
        assert (await delivery).offset == 0

    produce(Peer({"t": 1}), work, linger_ms=300, delivery_timeout_ms=100)


def test_with_acks_0_a_broker_that_takes_nothing_is_given_up() -> None:
    peer = Peer({"t": 1})

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap, request_timeout_ms=300) as cluster:
            producer = Producer(cluster, acks=0, delivery_timeout_ms=500)
            await producer.send("t", b"v")
            await producer.flush()
            connection = await cluster.connection(1)
            connection.pause_writing()
            delivery = await producer.send("t", b"v")
            async with asyncio.timeout(5):
                assert (await delivery).offset == -1  # on another connection
            assert connection.closed
            await producer.close()

    asyncio.run(run())


def test_a_flush_waits_for_what_was_sent_before_it_alone() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer) -> None:
        async def go_on() -> None:
            while True:
                await (await producer.send("t", b"v"))

        others = [asyncio.create_task(go_on()) for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(20):
            async with asyncio.timeout(5):
                await producer.flush()
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    produce(peer, work)


def test_closing_without_flush_fails_what_is_left() -> None:
    peer = Peer({"t": 1})

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap) as cluster:
            producer = Producer(cluster, linger_ms=60_000)
            delivery = await producer.send("t", b"v")
            await producer.close(flush=False)
            with pytest.raises(ConnectionError, match="was closed"):
                await delivery

    asyncio.run(run())
    assert not peer.written


def test_idempotence_needs_all_replicas() -> None:
    with pytest.raises(ValueError, match="acks=-1"):
        Producer(Cluster("a:1"), acks=1, idempotent=True)


# -- what is wrong names the topic and the field


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            {"value": "v"},
            r"topic 't': the value has to be bytes, but it is str: .*value_serializer",
        ),
        ({"value": b"v", "key": 4}, r"topic 't': the key has to be bytes, but it is int"),
        ({"value": b"v", "headers": [("h", "1")]}, r"topic 't': header 'h' has to be .* not str"),
    ],
)
def test_what_is_not_bytes_is_refused_when_it_is_sent(record: dict[str, Any], said: str) -> None:
    async def work(producer: Producer[Any, Any]) -> None:
        with pytest.raises(TypeError, match=said):
            await producer.send("t", **record)
        await producer.send_and_wait("t", b"good")

    produce(Peer({"t": 1}), work)


def test_what_a_serializer_raises_says_of_which_topic_and_field() -> None:
    async def work(producer: Producer[Any, Any]) -> None:
        with pytest.raises(UnicodeEncodeError) as raised:
            await producer.send("t", b"v", key="\ud800")
        assert raised.value.__notes__ == ["when the key of a record for topic 't' was serialized"]

    produce(Peer({"t": 1}), work, key_serializer=str.encode)


@pytest.mark.parametrize("options", [{"compression": "brotli"}, {"acks": 2}])
def test_an_option_that_there_is_not_is_refused(options: dict[str, Any]) -> None:
    async def work(producer: Producer[Any, Any]) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="must be"):
        produce(Peer({"t": 1}), work, **options)
