"""A topic of which every key was written ten times, compacted by a real broker.

The topic is filled while its cleanup.policy is `delete`; then it becomes `compact`, and the clock
runs until the broker has put the compacted segments into their place. Meanwhile another topic gets
200 records a second. Afterwards a consumer checks that the newest value of each key is there.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kraftpy.testing import Broker
from kraftpy.testing.process import BrokerError
from tests.bench.measure import Round, Say, latencies_ms, touch_memory
from tests.bench.probe import percentile

SIZES = {"1 KB": (1 << 30, 1000), "100 B": (1 << 27, 100)}  # name -> bytes in all, of a value
OVERWRITES = 10
SEGMENT_BYTES = 16 << 20
TIMEOUT_S = 120.0
POLL_S = 0.02
STRIDE = 1_000_003  # a prime: the keys come in another order than they were made
_COMPACTED = re.compile(
    r"compacted (\S+)-0 up to offset (\d+): (\d+) bytes of (\d+) are left, after (\S+) s"
)


def _value(number: int, key: int, filler: bytes) -> bytes:
    return b"%02d:%08d:" % (number, key) + filler


def fill(bootstrap: str, topic: str, keys: int, value_bytes: int) -> None:
    """Every key OVERWRITES times, in turn."""
    filler = os.urandom(value_bytes - len(_value(0, 0, b"")))
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 131_072,
            "queue.buffering.max.kbytes": 131_072,
            "log_level": 0,
        }
    )

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    for number in range(OVERWRITES):
        for step in range(keys):
            key = step * STRIDE % keys
            name, value = b"key-%08d" % key, _value(number, key, filler)
            while True:
                try:
                    producer.produce(topic, value, name, partition=0, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    if producer.flush(TIMEOUT_S) or errors:
        raise BrokerError(f"records were not acknowledged: {errors[:3]}")


def check(bootstrap: str, topic: str, keys: int) -> None:
    """Reads it all. BrokerError unless the newest value of every key is there."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    newest: dict[bytes, bytes] = {}
    end = False
    deadline = time.monotonic() + TIMEOUT_S
    while not end and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 1.0):
            if message.error():
                end = True
            else:
                newest[bytes(message.key() or b"")] = bytes(message.value() or b"")[:12]
    consumer.close()
    last = OVERWRITES - 1
    expected = {b"key-%08d" % key: _value(last, key, b"") for key in range(keys)}
    if newest != expected:
        raise BrokerError(
            f"{topic} is wrong after its compaction: {len(newest)} of {keys} keys are there, "
            f"{sum(newest.get(key) != value for key, value in expected.items())} are not the newest"
        )


def _make_compact(admin: AdminClient, topic: str) -> None:
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def _wait_for_the_cleaner(broker: Broker, topic: str) -> tuple[int, float]:
    """Until all but the segment that is written is clean, maybe in several passes.

    (bytes that they read, seconds that their processes took), as the broker's log says.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = _COMPACTED.findall(broker.log_path.read_text())
        passes = [numbers for name, *numbers in found if name == topic]
        active = max(int(path.stem) for path in (broker.log_dir / f"{topic}-0").glob("*.log"))
        if passes and int(passes[-1][0]) == active:
            read = sum(int(before) for _, _, before, _ in passes)
            return read, sum(float(seconds) for *_, seconds in passes)
        time.sleep(POLL_S)
    raise BrokerError(f"{topic} was not compacted within {TIMEOUT_S:g} s")


class _Beside:
    """200 records a second to another topic, on a thread."""

    def __init__(self, bootstrap: str) -> None:
        self._times_ms: list[float] = []
        self._thread = threading.Thread(target=self._run, args=(bootstrap,), daemon=True)
        self._thread.start()

    def _run(self, bootstrap: str) -> None:
        self._times_ms = latencies_ms(bootstrap, "beside", "1")

    def percentiles(self) -> tuple[float, float]:
        """p50 and p99 in ms, when all were sent."""
        self._thread.join()
        return percentile(self._times_ms, 50), percentile(self._times_ms, 99)


def compaction(folder: Path, say: Say) -> Round:
    """Both sizes of records, on one broker; the latency beside the first."""
    result: Round = {}
    with Broker(dir=folder / "broker", log_cleaner_backoff_ms=100) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("beside", 1)])["beside"].result(TIMEOUT_S)
        for name, (total, value_bytes) in SIZES.items():
            topic = f"compacted-{value_bytes}"
            config = {
                "segment.bytes": str(SEGMENT_BYTES),
                "min.cleanable.dirty.ratio": "0.01",
                "file.delete.delay.ms": "0",
            }
            admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(TIMEOUT_S)
            touch_memory(broker.log_dir)
            keys = total // value_bytes // OVERWRITES
            say(f"compaction, {name}: {keys:,} keys, {OVERWRITES} times each")
            fill(broker.bootstrap, topic, keys, value_bytes)
            before = _size(broker.log_dir / f"{topic}-0")
            probed = value_bytes == 1000
            if probed:
                say("latency without compaction")
                idle = _Beside(broker.bootstrap).percentiles()
                beside = _Beside(broker.bootstrap)
            say("compacting")
            started_at = time.perf_counter()
            _make_compact(admin, topic)
            read, seconds = _wait_for_the_cleaner(broker, topic)
            result[f"compaction, {name}: until clean"] = time.perf_counter() - started_at
            result[f"compaction, {name}"] = read / seconds / 1e6
            after = _size(broker.log_dir / f"{topic}-0")
            result[f"compaction, {name}: before"] = before / 2**20
            result[f"compaction, {name}: after"] = after / 2**20
            if probed:
                for part, alone, together in zip(
                    ("p50", "p99"), idle, beside.percentiles(), strict=True
                ):
                    result[f"latency at 200 msg/s, no compaction, {part}"] = alone
                    result[f"latency at 200 msg/s beside compaction, {part}"] = together
            say("reading what is left")
            check(broker.bootstrap, topic, keys)
    return result
