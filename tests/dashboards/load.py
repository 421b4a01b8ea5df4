"""What clients do while the boards are looked at: a little of everything that they show.

Each piece of work is a thread that goes on until `Load.stop`, through every fault; what a client
can't do meanwhile it tries again. `stalled`, `silent`, `leases_nothing` and
`accepts_nothing` are for faults to set.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType

from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer as SharingConsumer
from kraftpy.protocol.errors import KafkaError

ORDERS = "orders"
STRICT = "strict"
TICKER = "ticker"
SYNCED = "synced"
LEDGER = "ledger"
PAYMENTS = "payments"
SHARED = "shared"
LEASED = "leased"
STALLED_GROUP = "stalled"
TIMEOUT_S = 30.0

TOPICS = [
    NewTopic(ORDERS, 6, 3),
    NewTopic(TICKER, 1, 3),
    NewTopic(STRICT, 1, 3, config={"min.insync.replicas": "3"}),
    NewTopic(PAYMENTS, 3, 3),
    NewTopic(LEASED, 2, 3),
    NewTopic(SHARED, 1, 3, config={"accept.range.fetch": "true"}),
    NewTopic(SYNCED, 3, 3, config={"flush.messages": "1"}),
    NewTopic(
        LEDGER,
        2,
        3,
        config={
            "cleanup.policy": "compact",
            "internal.segment.bytes": "65536",
            "min.cleanable.dirty.ratio": "0.01",
        },
    ),
]


class Load:
    """`with Load(bootstrap):` works until the end of the block."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.silent = threading.Event()
        self.leases_nothing = threading.Event()
        self.accepts_nothing = threading.Event()
        self.stalled = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def __enter__(self) -> Load:
        self.create(*TOPICS)
        self._start(self._produce, ORDERS, 0.05, 200)
        self._start(self._produce, LEDGER, 0.05, 2000)
        self._start(self._produce, SYNCED, 0.05, 100)
        self._start(self._produce, SHARED, 0.05, 100)
        self._start(self._share)
        self._start(self._produce, LEASED, 0.05, 100)
        self._start(self._lease)
        self._start(self._produce, STRICT, 0.05, 100)
        self._start(self._tick)
        self._start(self._transact)
        self._start(self._read, "billing", "classic")
        self._start(self._read, "shipping", "consumer")
        self._start(self._read_or_stall)
        self._start(self._err)
        self._start(self._administrate)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def create(self, *topics: NewTopic) -> None:
        """On return they exist."""
        for future in self.admin.create_topics(list(topics)).values():
            future.result(TIMEOUT_S)

    def delete(self, topic: str) -> None:
        """On return it is gone."""
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def produce(self, topic: str, count: int, size: int = 100, partition: int = 0) -> None:
        """So many records in small batches; on return they are acknowledged by all."""
        failed: list[object] = []
        producer = self.producer(batch_num_messages=20)
        for number in range(count):
            producer.produce(
                topic,
                bytes(size),
                str(number % 10),
                partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
        if producer.flush(TIMEOUT_S) or failed:
            raise KafkaException(failed[0] if failed else f"{topic} doesn't take records")

    def producer(self, **more: str | int) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "log_level": 0,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 100,
                "message.timeout.ms": 5_000,
                **{key.replace("_", "."): value for key, value in more.items()},
            }
        )

    def consumer(self, group: str, **more: str | int) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "log_level": 0,
                **{key.replace("_", "."): value for key, value in more.items()},
            }
        )

    def alter_topic(self, topic: str, key: str, value: str) -> None:
        """On return the setting holds."""
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(TIMEOUT_S)

    # -- the work

    def _start(self, work: Callable[..., None], *args: object) -> None:
        def run() -> None:
            while not self._stopping.is_set():
                with contextlib.suppress(KafkaException):
                    work(*args)
                self._stopping.wait(0.5)

        thread = threading.Thread(target=run, name=work.__name__, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _produce(self, topic: str, interval_s: float, size: int) -> None:
        # A hundred keys: the compacted topic has something to compact.
        producer = self.producer(linger_ms=0)
        number = 0
        while not self._stopping.wait(interval_s):
            number += 1
            with contextlib.suppress(BufferError):
                producer.produce(topic, bytes(size), str(number % 100))
            producer.poll(0)
        producer.purge()

    def _tick(self) -> None:
        producer = self.producer()
        while not self._stopping.wait(0.2):
            if not self.silent.is_set():
                producer.produce(TICKER, b"tick")
            producer.poll(0)

    def _transact(self) -> None:
        """Commits, and aborts every fifth transaction."""
        producer = self.producer(transactional_id="payments")
        producer.init_transactions(TIMEOUT_S)
        number = 0
        while not self._stopping.wait(0.1):
            number += 1
            producer.begin_transaction()
            for partition in range(3):
                producer.produce(PAYMENTS, bytes(100), partition=partition)
            if number % 5:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)

    def _read(self, group: str, protocol: str) -> None:
        consumer = self.consumer(group, group_protocol=protocol)
        consumer.subscribe([ORDERS])
        try:
            while not self._stopping.is_set():
                consumer.consume(100, 0.5)
        finally:
            consumer.close()

    def _share(self) -> None:
        """Two members that have a partition between them, with kraftpy's own client."""

        async def share() -> None:
            async with AsyncExitStack() as stack:
                cluster = await stack.enter_async_context(Cluster(self.bootstrap))
                members = [SharingConsumer(cluster, group_id="sharing") for _ in range(2)]
                for member in members:
                    await stack.enter_async_context(member)
                    member.subscribe([SHARED])
                while not self._stopping.is_set():
                    for member in members:
                        await member.poll(200)

        with contextlib.suppress(KafkaError, ConnectionError):
            asyncio.run(share())

    def _read_or_stall(self) -> None:
        """A member that hangs when it is told to, and goes on heartbeating."""
        consumer = self.consumer(STALLED_GROUP)
        consumer.subscribe([TICKER])
        try:
            while not self._stopping.is_set():
                if self.stalled.is_set():
                    self._stopping.wait(0.2)
                else:
                    consumer.consume(1000, 0.2)
        finally:
            consumer.close()

    def _lease(self) -> None:
        """A member of a share group, which hangs when it is told to, or gives all back."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "leasing",
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
        with ShareConsumer(settings) as consumer:
            consumer.subscribe([LEASED])
            while not self._stopping.is_set():
                if self.leases_nothing.is_set():
                    self._stopping.wait(0.2)
                    continue
                fails = self.accepts_nothing.is_set()
                for message in consumer.poll(0.5):
                    kind = AcknowledgeType.RELEASE if fails else AcknowledgeType.ACCEPT
                    consumer.acknowledge(message, kind)
                consumer.commit_sync()

    def _err(self) -> None:
        """Reads beyond the end, again and again."""
        consumer = self.consumer("lost", enable_auto_commit="false", auto_offset_reset="error")
        try:
            while not self._stopping.wait(0.5):
                consumer.assign([TopicPartition(ORDERS, 0, 2**40)])
                consumer.consume(1, 1.0)
        finally:
            consumer.close()

    def _administrate(self) -> None:
        """Commands for the quorum."""
        while not self._stopping.wait(0.3):
            self.alter_topic(LEDGER, "retention.ms", str(int(time.time()) * 1000))
