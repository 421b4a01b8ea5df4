"""A compacted topic `t` of one partition: what is written to it, and what a consumer sees."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

KEYS = 200
ROUNDS = 10
VALUE_BYTES = 500
SEGMENT_BYTES = 65536
LIVE_BYTES = KEYS * (VALUE_BYTES + 100)
DEADLINE_S = 60.0


def create_compacted(bootstrap: str, replicas: int = 1, **more: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01",
        "file.delete.delay.ms": "0",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    topic = NewTopic("t", num_partitions=1, replication_factor=replicas, config=config)
    for future in admin.create_topics([topic]).values():
        future.result(30)


def value_of(number: int) -> bytes:
    return b"%d:" % number + b"v" * VALUE_BYTES


def number_in(value: bytes) -> int:
    return int(value.partition(b":")[0])


def overwrite(bootstrap: str, first: int = 0, rounds: int = ROUNDS) -> dict[bytes, bytes]:
    """Writes every key in each of the rounds, whose numbers begin with `first`; acks=all.

    Returns the newest values.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    newest = {}
    for number in range(first, first + rounds):
        for key in range(KEYS):
            name, value = b"%d" % key, value_of(number)
            producer.produce("t", key=name, value=value)
            newest[name] = value
        assert producer.flush(30) == 0
    return newest


def replay(bootstrap: str) -> tuple[dict[bytes, bytes], int]:
    """(the newest value of each key, how many records there are), as a consumer sees them.

    Up to where the log ends when it begins: its last record is never compacted.
    """
    consumer, end = _connected(bootstrap)
    state: dict[bytes, bytes] = {}
    count, last_offset = 0, -1
    try:
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + DEADLINE_S
        while last_offset < end - 1:
            assert time.monotonic() < deadline, f"at {last_offset} of {end}"
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                offset, key, value = message.offset(), message.key(), message.value()
                assert offset is not None
                assert key is not None
                assert offset > last_offset
                last_offset, count = offset, count + 1
                if value is None:
                    state.pop(bytes(key), None)
                else:
                    state[bytes(key)] = bytes(value)
    finally:
        consumer.close()
    return state, count


def _connected(bootstrap: str) -> tuple[Consumer, int]:
    """A consumer and the high watermark, as soon as there is a leader."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            return consumer, consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=5)[1]
        except KafkaException:  # and it goes on to believe in the leader that died
            consumer.close()
            if time.monotonic() > deadline:
                raise


def size(log_dir: Path, partition: str = "t-0") -> int:
    """Bytes of the partition's segments."""
    try:
        return sum(path.stat().st_size for path in log_dir.glob(f"{partition}/*.log"))
    except FileNotFoundError:  # one left its place meanwhile
        return size(log_dir, partition)


def is_clean(log_dir: Path) -> bool:
    """What isn't live is at most in the segment that is being written."""
    return size(log_dir) < LIVE_BYTES + 2 * SEGMENT_BYTES
