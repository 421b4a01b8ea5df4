"""A compacted topic on a real broker: it shrinks to its live keys, also after kill -9 half-way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Broker

KEYS = 200
ROUNDS = 10
VALUE_BYTES = 500
DEADLINE_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def create_compacted(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "65536",
        "min.cleanable.dirty.ratio": "0.01",
        "file.delete.delay.ms": "0",
    }
    topic = NewTopic("t", num_partitions=1, replication_factor=1, config=config)
    for future in admin.create_topics([topic]).values():
        future.result(30)


def overwrite(broker: Broker) -> dict[bytes, bytes]:
    """Writes every key ROUNDS times; returns the newest values."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    newest = {}
    for number in range(ROUNDS):
        for key in range(KEYS):
            name, value = b"%d" % key, b"%d:" % number + b"v" * VALUE_BYTES
            producer.produce("t", key=name, value=value)
            newest[name] = value
        assert producer.flush(30) == 0
    return newest


def replay(broker: Broker) -> tuple[dict[bytes, bytes], int]:
    """(the newest value of each key, how many records there are), as a consumer sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    state: dict[bytes, bytes] = {}
    count, last_offset = 0, -1
    try:
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                return state, count  # the end
            offset, key, value = message.offset(), message.key(), message.value()
            assert offset is not None
            assert key is not None
            assert value is not None
            assert offset > last_offset
            last_offset, count = offset, count + 1
            state[bytes(key)] = bytes(value)
    finally:
        consumer.close()
    raise AssertionError("the end of the partition was not reached")


def sizes(broker: Broker) -> Mapping[Path, int]:
    return {path: path.stat().st_size for path in broker.log_dir.glob("t-0/*.log")}


def is_clean(broker: Broker) -> bool:
    """What isn't live is at most in the segment that is being written."""
    try:
        return sum(sizes(broker).values()) < (KEYS * (VALUE_BYTES + 100)) + 2 * 65536
    except FileNotFoundError:  # one left its place meanwhile
        return False


def test_a_compacted_topic_shrinks_to_its_live_keys() -> None:
    with Broker(log_cleaner_backoff_ms=100) as broker:
        create_compacted(broker)
        newest = overwrite(broker)
        wait_for(lambda: is_clean(broker))
        state, count = replay(broker)
        assert state == newest
        assert count < KEYS * ROUNDS / 2
        broker.restart()
        assert replay(broker) == (state, count)


def test_kill_nine_while_a_topic_is_compacted() -> None:
    slow = {"log_cleaner_backoff_ms": 100, "log_cleaner_io_max_bytes_per_second": 300_000}
    with Broker(**slow) as broker:
        create_compacted(broker)
        newest = overwrite(broker)
        for pattern in ("t-0/*.log.cleaned", "t-0/*.swap"):
            wait_for(lambda pattern=pattern: any(broker.log_dir.glob(pattern)) or is_clean(broker))
            broker.kill()
            broker.restart()
            assert replay(broker)[0] == newest
        wait_for(lambda: is_clean(broker))
        assert replay(broker)[0] == newest
