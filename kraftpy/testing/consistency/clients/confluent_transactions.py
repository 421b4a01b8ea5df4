"""Transactions through confluent-kafka (librdkafka).

A call that timed out and may be repeated is, until its time is up: librdkafka goes on with what it
has begun (KIP-588).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kraftpy.testing.consistency.clients import (
    TIMEOUT_S,
    TRANSACTION_TIMEOUT_MS,
    GoneError,
    Member,
    Place,
    Records,
    UnknownError,
    key_of,
)
from kraftpy.testing.consistency.clients.confluent import base, bounds_of, group_metadata_of

_BATCH_MAX = 2_000
_POLL_S = 0.01  # a call takes that long, whatever there is
_UNDER_WAY_S = 0.01
_FETCH_WAIT_MS = 20
_PATIENCE_S = 2 * TIMEOUT_S


class _Transactor:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            base(bootstrap)
            | {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "request.timeout.ms": 2_000,
                "linger.ms": 1,
            }
        )

    def take_over(self) -> None:
        self._patiently(self._producer.init_transactions)

    def begin(self) -> None:
        self._try(self._producer.begin_transaction)

    def append(self, place: Place, values: Sequence[str]) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failed.append(error)

        topic, partition = place
        for value in values:
            self._try(
                lambda value: self._producer.produce(
                    topic, value.encode(), partition=partition, on_delivery=delivered
                ),
                value,
            )
        try:
            unanswered = self._producer.flush(TRANSACTION_TIMEOUT_MS / 1000)
        except (KafkaException, SystemError) as error:  # the latter is one amid callbacks
            raise GoneError(repr(error)) from error
        if unanswered:
            raise UnknownError("no answer in time")
        if failed:
            raise _unknown(failed[0])

    def throw(self, place: Place, value: str) -> None:
        topic, partition = place
        self._try(lambda: self._producer.produce(topic, value.encode(), partition=partition))
        self._producer.poll(_UNDER_WAY_S)

    def send_offsets(self, offsets: Mapping[Place, int], group: str) -> None:
        consumer = Consumer(base(self._bootstrap) | {"group.id": group})
        try:
            self._send_offsets(offsets, consumer.consumer_group_metadata())
        finally:
            consumer.close()

    def send_offsets_of(self, member: Member, offsets: Mapping[Place, int], group: str) -> None:
        self._send_offsets(offsets, group_metadata_of(member))

    def _send_offsets(self, offsets: Mapping[Place, int], metadata: Any) -> None:
        positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._patiently(
            lambda timeout_s: self._producer.send_offsets_to_transaction(
                positions, metadata, timeout_s
            )
        )

    def commit(self) -> None:
        self._patiently(self._producer.commit_transaction)

    def abort(self) -> None:
        self._patiently(self._producer.abort_transaction)

    def _patiently(self, call: Callable[[float], object]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                call(TIMEOUT_S)
            except KafkaException as raised:
                if not raised.args[0].retriable() or time.monotonic() > deadline:
                    raise _unknown(raised.args[0]) from None
            else:
                return

    def _try(self, call: Callable[..., object], *args: object) -> None:
        try:
            call(*args)
        except KafkaException as raised:
            raise _unknown(raised.args[0]) from None
        except BufferError:
            raise UnknownError("its queue is full") from None

    def close(self) -> None:
        with contextlib.suppress(
            KafkaException, SystemError
        ):  # it has been fenced, and says so again
            self._producer.purge()
            self._producer.flush(0.5)


def _unknown(error: KafkaError) -> UnknownError:
    return (GoneError if error.fatal() else UnknownError)(str(error))


class _Committed:
    """librdkafka says nothing of what it leaves out, but that it is at the end."""

    def __init__(self, bootstrap: str, positions: Mapping[Place, int]) -> None:
        self._reached = dict(positions)
        self._found: Records = {}
        self._consumer = Consumer(
            base(bootstrap)
            | {
                "group.id": "nobody",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "check.crcs": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
                "fetch.error.backoff.ms": 50,
            }
        )
        self._consumer.assign([TopicPartition(*place, at) for place, at in positions.items()])

    def catch_up(self, places: Sequence[Place]) -> Records:
        wanted = {place: end for place, (_, end) in self.bounds(places).items()}
        deadline = time.monotonic() + _PATIENCE_S
        while any(self._reached[place] < end for place, end in wanted.items()):
            if time.monotonic() > deadline:
                raise UnknownError("not at the end in time")
            for message in self._consumer.consume(_BATCH_MAX, _POLL_S):
                self._take(message)
        found, self._found = self._found, {}
        return found

    def _take(self, message: Any) -> None:
        error, place = message.error(), (message.topic(), message.partition())
        if error is None:
            record = message.offset(), message.value().decode()
            self._found.setdefault(key_of(place), []).append(record)
            self._reached[place] = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._reached[place] = max(self._reached[place], message.offset())
        elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise GoneError(str(error))

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        return bounds_of(self._consumer, places)

    def close(self) -> None:
        self._consumer.close()


class _Confluent:
    transactor = staticmethod(_Transactor)
    committed = staticmethod(_Committed)


ADAPTER = _Confluent()
