"""kafka-python as a client from before Kafka 0.11, which it can be: message formats 0 and 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kraftpy.testing import Broker
from tests.knowing import knowing
from tests.server.old_wire import old_fetch
from tests.server.wire import Wire

NewTopic = Callable[..., str]
T0_MS = 1_700_000_000_000
COUNT = 20


@pytest.mark.parametrize(
    ("version", "codec"),
    [((0, 8, 2), "gzip"), ((0, 9), "snappy"), ((0, 10, 0), None), ((0, 10, 2), "lz4")],
    ids=str,
)
def test_old_clients_write_and_read(
    broker: Broker, wire: Wire, new_topic: NewTopic, version: tuple[int, ...], codec: str | None
) -> None:
    topic = new_topic(retention_ms=-1)
    own = {"bootstrap_servers": broker.bootstrap, "api_version": version}
    producer = KafkaProducer(**own, enable_idempotence=False, compression_type=codec, acks="all")
    sent = [
        producer.send(topic, b"%d" % n, b"key", partition=0, timestamp_ms=T0_MS + n)
        for n in range(COUNT)
    ]
    assert [each.get(20).offset for each in sent] == list(range(COUNT))
    producer.close()

    partition = TopicPartition(topic, 0)
    has_groups = version >= (0, 9)
    consumer = KafkaConsumer(
        **own,
        group_id=f"group-{topic}" if has_groups else None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=20_000,
    )
    if has_groups:
        knowing(consumer, topic).subscribe([topic])
    else:
        consumer.assign([partition])
    found = [next(consumer) for _ in range(COUNT)]
    assert [(each.offset, each.key, each.value) for each in found] == [
        (n, b"key", b"%d" % n) for n in range(COUNT)
    ]
    has_times = version >= (0, 10)
    times = [T0_MS + n if has_times else None for n in range(COUNT)]
    assert [each.timestamp for each in found] == times
    if has_groups:
        consumer.commit()
        assert consumer.committed(partition) == COUNT
    consumer.close()
    assert [r.timestamp for r in old_fetch(wire, topic, 0, 3)[1]] == [each or -1 for each in times]
