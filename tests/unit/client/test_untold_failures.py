"""What `flush` raises: errors that nobody got by awaiting a delivery."""

from __future__ import annotations

import pytest

from kraftpy.client.producer import Producer
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import KafkaError

from .peer import Peer
from .test_producer import produce


def refusing(peer: Peer) -> None:
    peer.answers[ApiKey.PRODUCE] = lambda request: peer.produce_response(
        request, lambda *_: (10, None)
    )


def test_an_error_that_was_awaited_is_not_raised_again() -> None:
    peer = Peer({"t": 1})
    refusing(peer)

    async def work(producer: Producer[bytes, bytes]) -> None:
        async with producer:
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await producer.send_and_wait("t", b"a")
            delivery = await producer.send("t", b"b")
            for _ in range(2):
                with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                    await delivery

    produce(peer, work)


def test_who_awaits_one_record_of_a_batch_is_not_told_of_the_others() -> None:
    peer = Peer({"t": 1})
    refusing(peer)

    async def work(producer: Producer[bytes, bytes]) -> None:
        delivery, _ = await producer.send("t", b"a"), await producer.send("t", b"b")
        for _ in range(2):
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await delivery
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.flush()
        await producer.flush()

    produce(peer, work)


def test_of_very_many_failures_those_before_are_known_and_little_is_kept() -> None:
    peer = Peer({"t": 1})
    refusing(peer)

    async def work(producer: Producer[bytes, bytes]) -> None:
        for _ in range(150):
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await producer.send_and_wait("t", b"told")
        sent = [await producer.send("t", bytes(200)) for _ in range(150)]
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await sent[-1]
        assert len(producer._failed) == 100
        assert not any(batch.records or batch.encoded for batch in producer._failed)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.flush()
        assert not producer._failed

    produce(peer, work, batch_size_bytes=100, linger_ms=0)
