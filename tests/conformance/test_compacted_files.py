"""Kafka's own tool reads what our cleaner wrote, and finds it in order."""

from __future__ import annotations

import re
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Broker
from tests.apache_kafka import run_tool

CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "65536",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}
BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*?compresscodec: (\w+) .*?isvalid: (\w+)"
)


def write(broker: Broker, codec: str, first: int, last: int) -> None:
    """Every key in each round, but key 7 is deleted; idempotent, so with sequences."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 20,
        }
    )
    for number in range(first, last):
        for key in range(50):
            value = None if key == 7 else b"%04d" % number * 100
            producer.produce("t", key=b"key-%d" % key, value=value)
        assert producer.flush(30) == 0


def test_kafka_dump_log_of_a_compacted_partition() -> None:
    with Broker(log_cleaner_backoff_ms=100) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, config=CONFIG)])["t"].result(30)
        write(broker, "none", 0, 20)
        write(broker, "zstd", 20, 300)
        write(broker, "none", 300, 310)
        deadline = time.monotonic() + 60
        while "compacted t-0" not in broker.log_path.read_text() or any(
            (broker.log_dir / "t-0").glob("*.swap")
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        broker.stop()
        folder = broker.log_dir / "t-0"
        segments = sorted(folder.glob("*.log"))
        assert len(segments) >= 2
        files = ",".join(map(str, segments))
        out = run_tool("kafka-dump-log", "--files", files, "--print-data-log", "--deep-iteration")
        batches = BATCH.findall(out)
        assert {valid for *_, valid in batches} == {"true"}
        ends = [-1, *(int(batch[1]) for batch in batches)]
        assert all(end < int(batch[0]) for end, batch in zip(ends, batches, strict=False))
        assert any(int(last) - int(first) + 1 > int(count) for first, last, count, *_ in batches)
        assert "deleteHorizonMs: OptionalLong[" in out
        newest = dict(re.findall(r"key: (key-\d+)(?: payload: (\d{4}))?", out))
        assert newest == {f"key-{key}": "" if key == 7 else "0309" for key in range(50)}
        indexes = sorted(path for path in folder.glob("*.*index") if path.stat().st_size)
        assert indexes
        out = run_tool("kafka-dump-log", "--files", ",".join(map(str, indexes)))
        assert not re.search("(?i)mismatch|non-|not found|incomplete|exception", out), out
