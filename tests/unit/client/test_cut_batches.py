"""Batches that a broker finds too large are sent as two (KIP-126)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from kraftpy.client.batches import RecordMetadata
from kraftpy.client.interceptors import BatchInfo, ProducerInterceptor
from kraftpy.client.producer import Producer
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import read_batch_header

from .peer import HANG_UP, Peer
from .test_producer import produce, sequences

TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE


def at_most(peer: Peer, size_bytes: int, first: Callable[[bytes], int] = lambda data: 0) -> None:
    """The peer's brokers take no larger batches; `first` may find another error."""

    def judge(topic: str, partition: int, data: bytes) -> tuple[int, None]:
        code = first(data)
        return code or (TOO_LARGE if len(data) > size_bytes else 0), None

    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(request, judge)


def counts(peer: Peer) -> list[int]:
    return [read_batch_header(data, 0).records_count for data in peer.raw_batches]


@pytest.mark.parametrize("idempotent", [True, False])
def test_all_of_its_records_are_written_in_order(idempotent: bool) -> None:
    peer = Peer({"t": 1})
    at_most(peer, 1000)
    told: list[RecordMetadata | None] = []

    async def work(producer: Producer[bytes, bytes]) -> None:
        sent = [
            await producer.send("t", b"%099d" % n, on_delivery=lambda place, _: told.append(place))
            for n in range(30)
        ]
        await producer.flush()
        places = [RecordMetadata("t", 0, n) for n in range(30)]
        assert [await each for each in sent] == places
        await asyncio.sleep(0)
        assert told == places
        assert producer._buffered_bytes == 0

    produce(peer, work, idempotent=idempotent, linger_ms=1000)
    assert [value for _, value in peer.written["t", 0]] == [b"%099d" % n for n in range(30)]
    assert counts(peer) == [30, 15, 7, 8, 15, 7, 8]
    firsts = [0, 0, 0, 7, 15, 15, 22] if idempotent else [-1] * 7
    assert [each[2] for each in sequences(peer)] == firsts
    assert {each[:2] for each in sequences(peer)} == {(1001, 0) if idempotent else (-1, -1)}


def test_one_record_that_is_too_large_fails_alone() -> None:
    peer = Peer({"t": 1})
    at_most(peer, 1000)

    async def work(producer: Producer[bytes, bytes]) -> None:
        values = [b"%099d" % n for n in range(12)]
        values[5] = bytes(2000)
        sent = [await producer.send("t", value, headers=[("h", b"x" * 9)]) for value in values]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        failed = outcomes.pop(5)
        assert isinstance(failed, KafkaError)
        assert failed.code == TOO_LARGE
        assert [each.offset for each in outcomes if isinstance(each, RecordMetadata)] == [
            *range(11)
        ]
        await producer.flush()  # it was awaited

    produce(peer, work)
    assert len(peer.written["t", 0]) == 11


def test_an_error_of_a_half_is_raised_by_flush() -> None:
    peer = Peer({"t": 1})
    at_most(peer, 100)

    async def work(producer: Producer[bytes, bytes]) -> None:
        for _ in range(4):
            await producer.send("t", bytes(200))
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.flush()
        assert producer._buffered_bytes == 0
        await producer.flush()

    produce(peer, work)
    assert sorted(counts(peer), reverse=True)[:3] == [4, 2, 2]
    assert not peer.written["t", 0]


def test_batches_behind_it_are_made_no_larger() -> None:
    peer = Peer({"t": 1})
    at_most(peer, 3000)

    async def work(producer: Producer[bytes, bytes]) -> None:
        for _ in range(4):
            for _ in range(40):
                await producer.send("t", bytes(100))
            await producer.flush()

    produce(peer, work)
    refused = [size for size in map(len, peer.raw_batches) if size > 3000]
    assert len(refused) == 1
    assert len(peer.written["t", 0]) == 160


def test_what_may_have_been_written_is_not_cut() -> None:
    """The answer to the first attempt is lost; the second finds the topic's limit lowered."""
    peer = Peer({"t": 1})
    answers = [HANG_UP]
    at_most(peer, 1000)
    refuse = peer.answers[ApiKey.PRODUCE]
    peer.answers[ApiKey.PRODUCE] = lambda request: answers.pop() if answers else refuse(request)

    async def work(producer: Producer[bytes, bytes]) -> None:
        sent = [await producer.send("t", bytes(100)) for _ in range(20)]
        for each in sent:
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await each

    produce(peer, work)
    assert len(peer.asked(ApiKey.PRODUCE)) == 2
    assert counts(peer) == [20]


def test_a_producer_that_is_told_to_stop_cuts_nothing_and_stops() -> None:
    peer = Peer({"t": 1})
    at_most(peer, 100)

    async def work(producer: Producer[bytes, bytes]) -> None:
        sent = [await producer.send("t", bytes(200)) for _ in range(4)]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(each, KafkaError) for each in outcomes)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.send("t", b"later")

    produce(peer, work, stop_on_failure=True)
    # 4, 2, 1: the first record failed alone, and nothing goes out behind it.
    assert counts(peer) == [4, 2, 1]


def test_each_half_is_a_batch_to_interceptors() -> None:
    seen: list[tuple[str, int]] = []

    class Notes(ProducerInterceptor[bytes, bytes]):
        def on_batch(self, batch: BatchInfo) -> None:
            seen.append(("batch", batch.records_count))

        def on_done(self, batch: BatchInfo, base_offset: int, error: Exception | None) -> None:
            seen.append(("done", batch.records_count))

    peer = Peer({"t": 1})
    at_most(peer, 1000)

    async def work(producer: Producer[bytes, bytes]) -> None:
        await asyncio.gather(*[await producer.send("t", bytes(99)) for _ in range(12)])

    produce(peer, work, interceptors=[Notes()])
    assert seen == [("batch", 12), ("batch", 6), ("done", 6), ("batch", 6), ("done", 6)]


def test_what_is_sent_meanwhile_stays_behind() -> None:
    peer = Peer({"t": 1})
    at_most(peer, 1000)

    async def work(producer: Producer[bytes, bytes]) -> None:
        for n in range(300):
            await producer.send("t", b"%099d" % n)
            if n % 7 == 0:
                await asyncio.sleep(0.001)
        await producer.flush()

    produce(peer, work, linger_ms=0)
    assert [value for _, value in peer.written["t", 0]] == [b"%099d" % n for n in range(300)]
    written: list[tuple[int, int]] = [
        (header.base_sequence, header.records_count)
        for header in (read_batch_header(data, 0) for data in peer.raw_batches)
        if header.batch_length < 1000 - 12
    ]
    assert all(first + count == then for (first, count), (then, _) in pairwise(written))
