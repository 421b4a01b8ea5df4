"""A compacted topic on a real broker: it shrinks to its live keys, also after kill -9 half-way."""

from __future__ import annotations

import threading
import time
import uuid

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Broker
from tests.waiting import wait_until

from .compacted import (
    DEADLINE_S,
    KEYS,
    ROUNDS,
    create_compacted,
    is_clean,
    number_in,
    overwrite,
    replay,
    size,
)


def test_a_compacted_topic_shrinks_to_its_live_keys() -> None:
    with Broker(log_cleaner_backoff_ms=100) as broker:
        create_compacted(broker.bootstrap)
        newest = overwrite(broker.bootstrap)
        wait_until(lambda: is_clean(broker.log_dir), "all is compacted", DEADLINE_S)
        state, count = replay(broker.bootstrap)
        assert state == newest
        assert count < KEYS * ROUNDS / 2
        broker.restart()
        assert replay(broker.bootstrap) == (state, count)


def test_kill_nine_while_a_topic_is_compacted() -> None:
    slow = {"log_cleaner_backoff_ms": 100, "log_cleaner_io_max_bytes_per_second": 1_500_000}
    with Broker(**slow) as broker:
        create_compacted(broker.bootstrap)
        newest = overwrite(broker.bootstrap)
        for pattern in ("t-0/*.log.cleaned", "t-0/*.swap"):
            wait_until(
                lambda pattern=pattern: (
                    any(broker.log_dir.glob(pattern)) or is_clean(broker.log_dir)
                ),
                f"there is {pattern}",
                DEADLINE_S,
            )
            broker.kill()
            broker.restart()
            assert replay(broker.bootstrap)[0] == newest
        wait_until(lambda: is_clean(broker.log_dir), "all is compacted", DEADLINE_S)
        assert replay(broker.bootstrap)[0] == newest


def test_who_reads_over_and_over_sees_the_newest_of_each_key_while_it_is_compacted() -> None:
    with Broker(log_cleaner_backoff_ms=50) as broker:
        create_compacted(broker.bootstrap)
        written = [overwrite(broker.bootstrap, rounds=1)]
        ended = threading.Event()

        def write() -> None:
            number = 1
            while not ended.wait(0.1):  # else a reader never gets to the end
                written.append(overwrite(broker.bootstrap, number, rounds=1))
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        reads = 0
        try:
            deadline = time.monotonic() + 60
            while reads < 10 or broker.log_path.read_text().count("compacted t-0") < 5:
                assert time.monotonic() < deadline
                known = written[-1]
                state, _ = replay(broker.bootstrap)
                assert state.keys() == known.keys()
                assert all(number_in(state[key]) >= number_in(known[key]) for key in known)
                reads += 1
        finally:
            ended.set()
            writer.join()
        assert replay(broker.bootstrap)[0] == written[-1]


def test_the_offsets_log_is_compacted_and_loads_the_same_map() -> None:
    partitions = 50
    settings = {"offsets_topic_num_partitions": 1, "offsets_topic_segment_bytes": 65536}
    with Broker(log_cleaner_backoff_ms=100, **settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", partitions)])["t"].result(30)
        newest = {}
        config = {
            "bootstrap.servers": broker.bootstrap,
            "enable.auto.commit": False,
            "log_level": 0,
        }
        consumers = [Consumer({**config, "group.id": uuid.uuid4().hex}) for _ in range(3)]
        for number in range(60):
            for index, consumer in enumerate(consumers):
                offsets = [
                    TopicPartition("t", i, number * 1000 + index * 100 + i)
                    for i in range(number % 7, partitions)
                ]
                consumer.commit(offsets=offsets, asynchronous=False)
                newest.update({(index, each.partition): each.offset for each in offsets})

        def committed() -> dict[tuple[int, int], int]:
            asked = [TopicPartition("t", i) for i in range(partitions)]
            return {
                (index, each.partition): each.offset
                for index, consumer in enumerate(consumers)
                for each in consumer.committed(asked, timeout=30)
            }

        assert committed() == newest
        # An entry takes about 100 bytes; what was never compacted may be as much as what was.
        wait_until(
            lambda: size(broker.log_dir, "__consumer_offsets-0") < 2 * 65536 + 15_000 * 2,
            "the offsets log is compacted",
            DEADLINE_S,
        )
        wait_until(
            lambda: "compacted __consumer_offsets-0" in broker.log_path.read_text(),
            "the broker's log says so",
            DEADLINE_S,
        )
        broker.kill()
        broker.restart()
        assert committed() == newest
        for consumer in consumers:
            consumer.close()
