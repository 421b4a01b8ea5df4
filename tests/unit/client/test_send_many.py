"""Many records at once, and from plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.client.blocking import BlockingProducer
from kraftpy.client.interceptors import ProducerRecord
from kraftpy.client.producer import Producer, SendManyError, UnknownPartitionError
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .peer import Peer, running
from .test_producer import produce


def record(value: bytes, partition: int = 0, topic: str = "t") -> ProducerRecord[bytes, bytes]:
    return ProducerRecord(topic, value, partition=partition)


def test_results_are_in_the_order_of_the_records_and_nothing_lingers() -> None:
    peer = Peer({"t": 2})

    async def work(producer: Producer[bytes, bytes]) -> None:
        records = [record(b"%d" % n, n % 2) for n in range(10)]
        async with asyncio.timeout(10):
            found = await producer.send_many(iter(records))
        assert [(each.partition, each.offset) for each in found] == [
            (n % 2, n // 2) for n in range(10)
        ]
        assert await producer.send_many([]) == []

    produce(peer, work, linger_ms=60_000)


def test_nothing_is_sent_if_one_can_t_be() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer[bytes, bytes]) -> None:
        with pytest.raises(TypeError, match="topic 't': the value has to be bytes") as caught:
            await producer.send_many([record(b"a"), record("b")])  # type: ignore[arg-type]
        assert caught.value.__notes__ == ["it's about records[1]; none of them was sent"]
        with pytest.raises(UnknownPartitionError, match="topic 't' has partitions 0 to 0, not 7"):
            await producer.send_many([record(b"a"), record(b"b", 7)])
        with pytest.raises(KafkaError, match="larger than the producer's buffer"):
            await producer.send_many([record(b"a"), record(b"b" * 2000)])

    produce(peer, work, buffer_size_bytes=1000)
    assert not peer.raw_batches


def test_more_than_the_buffer_holds_is_sent() -> None:
    peer = Peer({"t": 1})

    async def work(producer: Producer[bytes, bytes]) -> None:
        found = await producer.send_many([record(b"x" * 500) for _ in range(20)])
        assert [each.offset for each in found] == list(range(20))

    produce(peer, work, buffer_size_bytes=1000)


def test_what_failed_is_told_beside_what_was_written() -> None:
    peer = Peer({"t": 2})

    def answer(request: Any) -> Any:
        return peer.produce_response(request, lambda _, partition, __: (87 * partition, None))

    peer.answers[ApiKey.PRODUCE] = answer

    async def work(producer: Producer[bytes, bytes]) -> None:
        with pytest.raises(SendManyError) as caught:
            await producer.send_many([record(b"a"), record(b"b", 1), record(b"c")])
        results = caught.value.results
        assert [getattr(each, "offset", None) for each in results] == [0, None, 1]
        assert isinstance(results[1], KafkaError)
        assert results[1].code is ErrorCode.INVALID_RECORD
        assert caught.value.__cause__ is results[1]
        expected = "1 of 3 records not written; the first of them, records[1] for topic 't'"
        assert str(caught.value).startswith(expected)
        await producer.flush()

    produce(peer, work)


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A broker on a loop of its own, in a thread."""
    peer = Peer({"t": 2})
    loop = asyncio.new_event_loop()
    up = threading.Event()
    down: list[asyncio.Event] = []

    async def serve() -> None:
        async with running(peer):
            down.append(asyncio.Event())
            up.set()
            await down[0].wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert up.wait(10)
    yield peer
    loop.call_soon_threadsafe(down[0].set)
    thread.join()
    loop.close()


def test_plain_threads_send_and_wait(peer: Peer) -> None:
    found: list[int] = []
    with BlockingProducer(peer.bootstrap, value_serializer=str.encode) as producer:

        def send(number: int) -> None:
            found.extend(producer.send("t", f"{number}", partition=0).offset for _ in range(5))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(found) == list(range(20))
        many = producer.send_many([ProducerRecord("t", "a", partition=1) for _ in range(3)])
        assert [each.offset for each in many] == [0, 1, 2]
        with pytest.raises(TypeError) as caught:
            producer.send("t", b"bytes")  # type: ignore[arg-type]
        assert caught.value.__notes__ == ["when the value of a record for topic 't' was serialized"]
    assert producer._thread.is_alive() is False
    producer.close()
    with pytest.raises(RuntimeError, match="the producer is closed"):
        producer.send("t", "late")


def test_an_error_is_raised_where_it_was_sent_and_not_at_the_end(peer: Peer) -> None:
    def answer(request: Any) -> Any:
        return peer.produce_response(request, lambda *_: (87, None))

    peer.answers[ApiKey.PRODUCE] = answer
    with BlockingProducer(peer.bootstrap) as producer:
        with pytest.raises(KafkaError, match="t-0") as caught:
            producer.send("t", b"a", partition=0)
        assert caught.value.__notes__ == ["when a record for topic 't' was sent"]


def test_who_waits_when_it_is_closed_is_told(peer: Peer) -> None:
    """Whose topic isn't known yet has nothing in the producer that could be flushed."""
    asked = threading.Event()
    errors: list[BaseException] = []

    def answer(request: Any) -> Any:
        asked.set()
        return peer._metadata(request)

    peer.answers[ApiKey.METADATA] = answer
    producer = BlockingProducer(peer.bootstrap)

    def send() -> None:
        try:
            producer.send("unknown", b"a")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert asked.wait(10)
    producer.close()
    thread.join(10)
    assert [str(each) for each in errors] == ["the producer was closed"]


async def test_an_event_loop_is_not_held_up() -> None:
    with pytest.raises(RuntimeError, match="use Producer here, and await it"):
        BlockingProducer("127.0.0.1:1")


def test_an_option_that_there_is_not_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="acks=7 must be"):
        BlockingProducer("127.0.0.1:1", acks=7)
    assert threading.active_count() == before
