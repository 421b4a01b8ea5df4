"""Stock clients put records in and get the same records out."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kraftpy.protocol.errors import ErrorCode
from tests.clients.driver import CODECS, T0_MS, Driver, Message, RefusedError

TEN_MIB = 10 * 1024 * 1024


def stream(count: int) -> list[Message]:
    """Records with every optional part present, absent and empty; timestamps one second apart.

    A record without a value has a key: some clients refuse to send one with neither.
    """
    rng = random.Random(count)
    return [
        Message(
            value=None if i % 15 == 14 else rng.randbytes(rng.randrange(200)),
            key=(None, b"", b"key-%d" % i)[i % 3],
            headers=(("trace", b"%d" % i), ("empty", b""))[: i % 3],
            timestamp_ms=T0_MS + i * 1000,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_goes_in_comes_out(
    client: Driver, reference: Driver, new_topic: Callable[..., str], codec: str
) -> None:
    topic, sent = new_topic(), stream(50)
    offsets = client.produce(topic, sent, codec=codec)
    assert offsets == list(range(50))
    for reader in (client, reference):
        received = reader.read(topic, 0, 0, 50)
        assert [record.as_sent() for record in received] == sent
        assert [record.offset for record in received] == offsets


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_idempotent_producer(client: Driver, new_topic: Callable[..., str], codec: str) -> None:
    topic, sent = new_topic(), stream(200)
    assert client.produce(topic, sent, codec=codec, idempotent=True) == list(range(200))
    # A second producer of its own id follows after the first.
    assert client.produce(topic, sent[:5], idempotent=True) == list(range(200, 205))
    assert [r.as_sent() for r in client.read(topic, 0, 0, 205)] == [*sent, *sent[:5]]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(client: Driver, new_topic: Callable[..., str], acks: str) -> None:
    topic, sent = new_topic(), stream(20)
    offsets = client.produce(topic, sent, acks=acks)
    if acks != "0":  # acks=0 asks for no answer, so there is no offset to know
        assert offsets == list(range(20))
    assert [record.as_sent() for record in client.read(topic, 0, 0, 20)] == sent


def test_read_from_an_offset(client: Driver, new_topic: Callable[..., str]) -> None:
    topic, sent = new_topic(), stream(100)
    client.produce(topic, sent, codec="gzip")
    for offset in (0, 1, 57, 99):  # inside a batch too: the broker hands out whole batches
        received = client.read(topic, 0, offset, 100 - offset)
        assert received[0].offset == offset
        assert [record.as_sent() for record in received] == sent[offset:]
    assert client.watermarks(topic, 0) == (0, 100)


def test_read_from_a_timestamp(client: Driver, new_topic: Callable[..., str]) -> None:
    topic, sent = new_topic(), stream(60)
    for first in (0, 20, 40):
        client.produce(topic, sent[first : first + 20])
    assert client.offset_for_time(topic, 0, T0_MS) == 0
    assert client.offset_for_time(topic, 0, T0_MS - 86_400_000) == 0
    assert client.offset_for_time(topic, 0, T0_MS + 33_000) == 33
    assert client.offset_for_time(topic, 0, T0_MS + 32_001) == 33
    assert client.offset_for_time(topic, 0, T0_MS + 60_000) is None


def test_log_append_time(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    client.produce(topic, stream(3))
    stamps = {record.timestamp_ms for record in client.read(topic, 0, 0, 3)}
    assert min(stamps) > T0_MS + 3_000_000


def test_partitions_are_apart(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    for partition in range(3):
        sent = [Message(b"%d" % partition, partition=partition)] * (partition + 1)
        assert client.produce(topic, sent) == list(range(partition + 1))
    for partition in range(3):
        assert client.watermarks(topic, partition) == (0, partition + 1)
        received = client.read(topic, partition, 0, partition + 1)
        assert {record.value for record in received} == {b"%d" % partition}


def test_topic_is_created_by_its_first_use(client: Driver, topic: str) -> None:
    assert client.produce(topic, [Message(b"first")]) == [0]
    assert client.partition_count(topic) == 1
    assert [record.value for record in client.read(topic, 0, 0, 1)] == [b"first"]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_10_mib_message_where_the_topic_allows_it(
    client: Driver, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(max_message_bytes=str(TEN_MIB + 1024 * 1024))
    sent = Message(random.Random(7).randbytes(TEN_MIB), key=b"large")
    around = [Message(b"before"), sent, Message(b"after")]
    for message in around:
        client.produce(topic, [message], codec=codec, max_size_bytes=2 * TEN_MIB)
    assert [record.as_sent() for record in client.read(topic, 0, 0, 3)] == around


def test_10_mib_message_where_it_is_not_allowed(
    client: Driver, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    large = Message(random.Random(7).randbytes(TEN_MIB))
    with pytest.raises(RefusedError) as refused:
        client.produce(topic, [large], max_size_bytes=2 * TEN_MIB)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.watermarks(topic, 0) == (0, 0)
    assert client.produce(topic, [Message(b"small")]) == [0]
