"""Transactional producers of four clients, made alike, so that each test is one for all.

A library's error of any kind comes out as `FailedError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from kraftpy.client.cluster import Cluster
from kraftpy.client.transactional_producer import TransactionalProducer
from kraftpy.protocol.errors import KafkaError
from tests.clients.driver import TIMEOUT_S

TIMEOUT_MS = 60_000

T = TypeVar("T")


class FailedError(Exception):
    """The client says that it can't be done."""


class Transactor(Protocol):
    """A producer that has taken a transactional id over, and its transactions."""

    name: str

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TIMEOUT_MS) -> None: ...
    def begin(self) -> None: ...
    def produce(self, topic: str, *values: bytes) -> None:
        """Returns when they are written."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ConfluentTransactor:
    name = "confluent-kafka"

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        self._call(self._producer.init_transactions)

    def _call(self, method: Any) -> None:
        try:
            method(TIMEOUT_S)
        except (KafkaException, SystemError) as error:
            # The latter, if a fatal error comes while delivery reports are handed over.
            raise FailedError(str(error)) from error

    def begin(self) -> None:
        self._call(lambda _: self._producer.begin_transaction())

    def produce(self, topic: str, *values: bytes) -> None:
        failed = []
        for value in values:
            self._producer.produce(
                topic, value, on_delivery=lambda error, _: failed.append(error) if error else None
            )
        self._call(self._producer.flush)
        if failed:
            raise FailedError(str(failed[0]))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.purge()


class KafkaPythonTransactor:
    name = "kafka-python"

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=TIMEOUT_MS,
        )
        self._call(self._producer.init_transactions)

    def _call(self, method: Any, *args: Any) -> Any:
        try:
            return method(*args)
        except KafkaPythonError as error:
            raise FailedError(repr(error)) from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def produce(self, topic: str, *values: bytes) -> None:
        for sent in [self._call(self._producer.send, topic, value) for value in values]:
            self._call(sent.get, TIMEOUT_S)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=0)


class _OnALoop:
    """A producer of asyncio, used from outside."""

    _producer: Any

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(asyncio.wait_for(work, TIMEOUT_S))
        except (AioKafkaError, KafkaError) as error:
            raise FailedError(repr(error)) from error

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def produce(self, topic: str, *values: bytes) -> None:
        async def send() -> None:
            sent = [await self._producer.send(topic, value) for value in values]
            await asyncio.gather(*sent)

        self._run(send())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())


class AioKafkaTransactor(_OnALoop):
    name = "aiokafka"

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        super().__init__()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=name,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer = self._run(start())

    def close(self) -> None:
        # It ends what is open, which somebody else may have done.
        with self._runner:
            self._runner.run(self._producer.stop())


class OwnTransactor(_OnALoop):
    name = "kraftpy"

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        super().__init__()

        async def start() -> tuple[Cluster, TransactionalProducer]:
            cluster = await Cluster(bootstrap).__aenter__()
            producer = TransactionalProducer(cluster, name, transaction_timeout_ms=timeout_ms)
            # It takes the id over with its first transaction.
            await producer.begin_transaction()
            await producer.abort_transaction()
            return cluster, producer

        self._cluster, self._producer = self._run(start())

    def close(self) -> None:
        async def stop() -> None:
            await self._producer.close()
            await self._cluster.close()

        with self._runner:
            self._runner.run(stop())


TRANSACTORS: tuple[type[Transactor], ...] = (
    ConfluentTransactor,
    KafkaPythonTransactor,
    AioKafkaTransactor,
    OwnTransactor,
)
