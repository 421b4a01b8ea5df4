"""kill -9 at a random moment under load, restart, and a look at what is left. Again and again.

Three topics with the flush policies that a user chooses between, each written to by two writers:

* partition 0: an idempotent producer that lives through all rounds. What it had under way when the
  broker died it sends again afterwards, and the broker has to recognize it: exactly once, in order.
* partition 1: a producer that gives up when the broker dies. What it had under way may or may not
  be in the log, but not twice, not out of order, and never in the place of an acknowledged one.

Only the process dies, not the machine: what was acknowledged is in the page cache at least. So
under every flush policy nothing acknowledged may be missing. Each round is checked twice: by
reading the segment files (dense offsets, CRCs, names) and through a stock client.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.consistency.checker import Anomaly, check, read_segments
from tests.processes import Broker

FLUSH_POLICIES = {
    "each": {"flush.messages": "1"},
    "hundredth": {"flush.messages": "100"},
    "never": {},
}
SEGMENT_BYTES = 1 << 20  # small, so that some kills hit the moment of a roll
LOAD_S = (0.1, 1.0)
BURST = 60
PAUSE_S = 0.02
TIMEOUT_S = 30.0


class Writer:
    """One producer that has one partition to itself; remembers all that it knows."""

    def __init__(self, bootstrap: str, topic: str, partition: int, survives: bool) -> None:
        self.topic, self.partition, self.survives = topic, partition, survives
        self.sent: list[bytes] = []
        self.acknowledged: dict[bytes, int] = {}
        self.refused: list[str] = []
        self.checked_up_to = 0
        self._bootstrap = bootstrap
        self._name = uuid.uuid4().hex[:8]
        self._rng = random.Random(self._name)
        self._producer = self._new_producer()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _new_producer(self) -> Producer:
        configs: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "log_level": 0,
            "acks": "all",
            "linger.ms": 1,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
        kind = {"enable.idempotence": True} if self.survives else {"message.send.max.retries": 0}
        return Producer(configs | kind)

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.is_set():
            for _ in range(self._rng.randrange(1, BURST)):
                value = b"%s-%d-" % (self._name.encode(), len(self.sent))
                value += self._rng.randbytes(self._rng.randrange(10, 600)).hex().encode()
                self.sent.append(value)
                self._producer.produce(
                    self.topic, value, partition=self.partition, on_delivery=self._answered
                )
            self._producer.poll(0)
            self._stop.wait(PAUSE_S)  # enough load to have requests under way, few enough to check

    def _answered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.value()] = message.offset()
        elif self.survives:  # the others are told that the broker is gone, and that is all right
            self.refused.append(f"{self.topic}-{self.partition}: {error}")

    def stop(self) -> None:
        """Write nothing new. One that doesn't survive forgets what it had under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if not self.survives:
            self._producer.purge()
            self._producer.flush(TIMEOUT_S)
            self._producer = self._new_producer()

    def settle(self) -> None:
        """Get an answer for everything that is still under way."""
        if left := self._producer.flush(TIMEOUT_S):
            self.refused.append(f"{self.topic}-{self.partition}: {left} never answered")


@dataclass
class Report:
    """What one round showed."""

    seconds_down: float
    acknowledged: int
    anomalies: list[str] = field(default_factory=list)


class Rounds:
    """`Rounds(broker, seed).run()` plays one round; the folder and its data live on in between."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self._broker = broker
        self._rng = random.Random(seed)
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topics = [
            NewTopic(name, 2, config=configs | {"segment.bytes": str(SEGMENT_BYTES)})
            for name, configs in FLUSH_POLICIES.items()
        ]
        for future in admin.create_topics(topics).values():
            future.result(TIMEOUT_S)
        self._writers = [
            Writer(broker.bootstrap, name, partition, survives=partition == 0)
            for name in FLUSH_POLICIES
            for partition in range(2)
        ]

    def run(self) -> Report:
        before = sum(len(writer.acknowledged) for writer in self._writers)
        for writer in self._writers:
            writer.start()
        time.sleep(self._rng.uniform(*LOAD_S))  # the random moment
        self._broker.kill()
        for writer in self._writers:
            writer.stop()
        seconds_down = self._broker.start()
        for writer in self._writers:
            writer.settle()
        after = sum(len(writer.acknowledged) for writer in self._writers)
        report = Report(seconds_down, after - before)
        for writer in self._writers:
            report.anomalies += self._check(writer)
        return report

    def check_everything(self) -> list[str]:
        """Both checks once more, for every record since the first round."""
        for writer in self._writers:
            writer.checked_up_to = 0
        return [anomaly for writer in self._writers for anomaly in self._check(writer)]

    def _check(self, writer: Writer) -> list[str]:
        """From the first offset of this round to the end of the partition, in both ways."""
        start = writer.checked_up_to
        through_client = read_through_client(
            self._broker.bootstrap, writer.topic, writer.partition, start
        )
        raw = read_raw(self._broker.log_dir / f"{writer.topic}-{writer.partition}")
        writer.checked_up_to = through_client[-1][0] + 1 if through_client else start
        found: list[Anomaly] = check(writer.sent, writer.acknowledged, raw)
        found += check(writer.sent, writer.acknowledged, through_client, start)
        refused, writer.refused = writer.refused, []
        return refused + [f"{writer.topic}-{writer.partition}: {anomaly}" for anomaly in found]


def read_raw(folder: Path) -> list[tuple[int, bytes]]:
    segments = sorted(folder.glob("*.log"))
    return read_segments((int(segment.stem), segment.read_bytes()) for segment in segments)


def read_through_client(
    bootstrap: str, topic: str, partition: int, start: int
) -> list[tuple[int, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        place = TopicPartition(topic, partition, start)
        _, end = consumer.get_watermark_offsets(place, TIMEOUT_S)
        consumer.assign([place])
        records: list[tuple[int, bytes]] = []
        while start + len(records) < end:
            batch = consumer.consume(min(10_000, end - start - len(records)), TIMEOUT_S)
            if not batch:
                raise TimeoutError(f"{topic}-{partition}: only {len(records)} records came")
            for message in batch:
                if message.error():
                    raise RuntimeError(f"{topic}-{partition}: {message.error()}")
                records.append((message.offset(), message.value()))
        return records
    finally:
        consumer.close()
