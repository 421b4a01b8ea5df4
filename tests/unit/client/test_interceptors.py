"""What interceptors see and may change, and that they break nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from kraftpy.client.interceptors import BatchInfo, ProducerInterceptor, ProducerRecord
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import KafkaError

from .peer import Peer
from .test_producer import produce

Record = ProducerRecord[bytes, bytes]


class Notes(ProducerInterceptor[bytes, bytes]):
    """Writes down what it's told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_enqueue(self, record: Record) -> Record:
        self.seen.append(("enqueue", record.value))
        return replace(record, headers=[*record.headers, ("trace", b"1")])

    def on_batch(self, batch: BatchInfo) -> None:
        self.seen.append(("batch", batch.topic, batch.partition, batch.records_count))

    def on_send(self, batch: BatchInfo, broker_id: int) -> None:
        self.seen.append(("send", broker_id, batch.size_bytes))

    def on_done(self, batch: BatchInfo, base_offset: int, error: Exception | None) -> None:
        self.seen.append(("done", base_offset, type(error)))


class Broken(ProducerInterceptor[bytes, bytes]):
    """Fails wherever it's asked."""

    def on_enqueue(self, record: Record) -> Record:
        return None  # type: ignore[return-value]

    def on_batch(self, batch: BatchInfo) -> None:
        raise RuntimeError("no")

    def on_send(self, batch: BatchInfo, broker_id: int) -> None:
        raise RuntimeError("no")

    def on_done(self, batch: BatchInfo, base_offset: int, error: Exception | None) -> None:
        raise RuntimeError("no")


def test_a_record_s_way_is_told_and_what_comes_of_enqueue_is_sent() -> None:
    peer = Peer({"t": 1})
    notes = Notes()

    async def work(producer: Any) -> None:
        deliveries = [await producer.send("t", b"a"), await producer.send("t", b"b")]
        assert [(await each).offset for each in deliveries] == [0, 1]

    produce(peer, work, interceptors=[notes])
    (raw,) = peer.raw_batches
    assert notes.seen == [
        ("enqueue", b"a"),
        ("enqueue", b"b"),
        ("batch", "t", 0, 2),
        ("send", 1, len(raw)),
        ("done", 0, type(None)),
    ]
    assert raw.count(b"trace") == 2


def test_each_attempt_is_a_send_and_there_is_one_done(quick: None) -> None:
    peer = Peer({"t": 1})
    notes = Notes()
    codes = [6, 6, 87]  # NOT_LEADER_OR_FOLLOWER twice, INVALID_RECORD

    def answer(request: Any) -> Any:
        return peer.produce_response(request, lambda *_: (codes.pop(0), None))

    peer.answers[ApiKey.PRODUCE] = answer

    async def work(producer: Any) -> None:
        with pytest.raises(KafkaError):
            await producer.send_and_wait("t", b"a")
        await producer.flush()

    produce(peer, work, interceptors=[notes])
    assert [each[0] for each in notes.seen] == ["enqueue", "batch", "send", "send", "send", "done"]
    assert notes.seen[-1] == ("done", -1, KafkaError)


def test_what_they_raise_is_logged_once_and_records_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = Peer({"t": 1})
    notes = Notes()

    async def work(producer: Any) -> None:
        for value in (b"a", b"b", b"c"):
            await producer.send_and_wait("t", value)

    with caplog.at_level(logging.ERROR, "kraftpy.client.interceptors"):
        produce(peer, work, interceptors=[Broken(), notes])
    assert [value for _, value in peer.written["t", 0]] == [b"a", b"b", b"c"]
    assert [r.getMessage().split(" ")[0] for r in caplog.records] == [
        "on_enqueue",
        "on_batch",
        "on_send",
        "on_done",
    ]
    assert "has to return a ProducerRecord, not NoneType" in str(caplog.records[0].exc_info)
    assert len(notes.seen) == 12


def test_what_is_no_interceptor_is_refused() -> None:
    async def nothing(producer: Any) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"a subclass of kraftpy\.client\.ProducerInterceptor"):
        produce(Peer({"t": 1}), nothing, interceptors=[print])


def test_records_that_are_sent_together_are_told_one_by_one() -> None:
    peer = Peer({"t": 1})
    notes = Notes()

    async def work(producer: Any) -> None:
        await producer.send_many([ProducerRecord("t", b"a"), ProducerRecord("t", b"b")])

    produce(peer, work, interceptors=[notes])
    assert [each[0] for each in notes.seen] == ["enqueue", "enqueue", "batch", "send", "done"]
