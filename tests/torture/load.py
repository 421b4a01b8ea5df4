"""Stock clients under torture: writers that remember all they know, readers that note all they see.

The writers are idempotent with acks=all and never give up on a record within a round, so a record
that is refused is a failure. Each writer has a name and numbers its values in each partition.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from tests.torture.checker import History

GIVE_UP_S = 600.0
BURST = 30
PAUSE_S = 0.05
VALUE_BYTES = (10, 400)


class Client:
    """A thread that works until it is told to stop; what kills it is kept in `failures`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # whatever it is, the round has failed
            self.failures.append(f"{self.name} failed: {error!r}")

    def _run(self) -> None:
        raise NotImplementedError


class Writer(Client):
    """Bursts of numbered values to random partitions."""

    def __init__(self, name: str, topic: str, partitions: int, rng: random.Random) -> None:
        super().__init__(name)
        self.topic = topic
        self.histories = [History() for _ in range(partitions)]
        self.answered = 0
        self._rng = rng

    @property
    def sent(self) -> int:
        return sum(len(history.sent) for history in self.histories)

    def _run(self) -> None:
        while not self._stop.is_set():
            for _ in range(self._rng.randrange(1, BURST)):
                partition = self._rng.randrange(len(self.histories))
                sent = self.histories[partition].sent
                padding = self._rng.randbytes(self._rng.randrange(*VALUE_BYTES))
                value = b"%s-%d-%d-" % (self.name.encode(), partition, len(sent)) + padding
                sent.append(value)
                self._send(partition, value)
            self._stop.wait(PAUSE_S)

    def _acknowledged(self, partition: int, value: bytes, offset: int) -> None:
        self.histories[partition].acknowledged[value] = offset
        self.answered += 1

    def _refused(self, error: object) -> None:
        self.failures.append(f"{self.name}: a record was refused: {error!r}")
        self.answered += 1

    def _send(self, partition: int, value: bytes) -> None:
        raise NotImplementedError

    def settle(self, timeout_s: float) -> None:
        """Get an answer for all that is under way."""
        raise NotImplementedError


class ConfluentWriter(Writer):
    def __init__(
        self, bootstrap: str, name: str, topic: str, partitions: int, rng: random.Random
    ) -> None:
        super().__init__(name, topic, partitions, rng)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": int(GIVE_UP_S * 1000),
                "socket.timeout.ms": 5000,
                "request.timeout.ms": 5000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2000,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(f"{self.name}: fatal error: {error!r}")

    def _send(self, partition: int, value: bytes) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    self.topic, value, partition=partition, on_delivery=self._delivered
                )
                break
            except BufferError:  # its queue is full while nobody answers
                self._producer.poll(0.1)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._acknowledged(message.partition(), message.value(), message.offset())
        else:
            self._refused(error)

    def settle(self, timeout_s: float) -> None:
        if left := self._producer.flush(timeout_s):
            self.failures.append(f"{self.name}: {left} records not answered in {timeout_s:.0f} s")


class KafkaPythonWriter(Writer):
    def __init__(
        self, bootstrap: str, name: str, topic: str, partitions: int, rng: random.Random
    ) -> None:
        super().__init__(name, topic, partitions, rng)
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            delivery_timeout_ms=int(GIVE_UP_S * 1000),
            request_timeout_ms=5000,
            max_block_ms=1000,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=2000,
        )

    def _send(self, partition: int, value: bytes) -> None:
        while not self._stop.is_set():
            try:
                future = self._producer.send(self.topic, value, partition=partition)
            except KafkaTimeoutError:  # its buffer is full: nothing was taken
                continue
            future.add_callback(lambda meta: self._acknowledged(partition, value, meta.offset))
            future.add_errback(self._refused)
            return

    def settle(self, timeout_s: float) -> None:
        with contextlib.suppress(KafkaTimeoutError):
            self._producer.flush(timeout_s)
        # At most one was not taken because the writer was stopped.
        if (left := self.sent - self.answered) > 1:
            self.failures.append(f"{self.name}: {left} records not answered")
        self._producer.close(timeout=1)


class Reader(Client):
    """Notes (offset, value) by partition; `once`: in order and each offset once."""

    once: bool

    def __init__(self, name: str, topic: str, partitions: int) -> None:
        super().__init__(name)
        self.topic = topic
        self.seen: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]

    def has_seen(self, ends: list[int]) -> bool:
        """Whether the last record below each of these offsets was read."""
        return all(
            not end or any(offset == end - 1 for offset, _ in reversed(seen))
            for seen, end in zip(self.seen, ends, strict=True)
        )

    def wait_for(self, ends: list[int], timeout_s: float) -> None:
        """Go on reading until the ends, and stop."""
        deadline = time.monotonic() + timeout_s
        while not self.has_seen(ends) and self._thread.is_alive():
            if time.monotonic() > deadline:
                self.failures.append(f"{self.name}: not at the end after {timeout_s:.0f} s")
                break
            time.sleep(0.05)
        self.stop()


class ConfluentReader(Reader):
    """A member of a group that commits what it has read, again and again."""

    once = False

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int) -> None:
        super().__init__(name, topic, partitions)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 1000,
                "check.crcs": True,
                "socket.timeout.ms": 5000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])

    def _run(self) -> None:
        while not self._stop.is_set():
            read = False
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self.seen[message.partition()].append((message.offset(), message.value()))
                    read = True
            if read:
                # Coordinators come and go; what could not be committed is read again.
                with contextlib.suppress(KafkaException):
                    self._consumer.commit(asynchronous=True)
        self._consumer.close()


class KafkaPythonReader(Reader):
    """Every partition from its start, without a group.

    (In a group kafka-python 3.0.12 may stop for good: when a poll times out between SyncGroup's
    answer and the assignment, it believes to have joined, reads nothing and sends no heartbeat.)

    It names no leader epoch when it fetches, and believes old metadata. So it may ask a leader that
    was cut off for what only the new one has, and hear OFFSET_OUT_OF_RANGE: it asks again then.
    """

    once = True

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int) -> None:
        super().__init__(name, topic, partitions)
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="none",  # it must not skip anything
            request_timeout_ms=7000,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=2000,
        )
        places = [TopicPartition(topic, i) for i in range(partitions)]
        self._consumer.assign(places)
        for place in places:
            self._consumer.seek(place, 0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                batches = self._consumer.poll(200, max_records=500)
            except OffsetOutOfRangeError as error:
                for place, offset in error.args[0].items():
                    self._consumer.seek(place, offset)
                self._stop.wait(PAUSE_S)
                continue
            for batch in batches.values():
                self.seen[batch[0].partition] += [(r.offset, r.value) for r in batch]
        self._consumer.close()
