"""confluent-kafka (librdkafka).

It retries inside, so the only certain failures are those of an answer to a request that it sends
once (administration), and of one that would have been the same each time: records too large.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka.admin
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kraftpy.testing.consistency import secured
from kraftpy.testing.consistency.clients import (
    HEARTBEAT_INTERVAL_MS,
    NEVER_S,
    NO_OFFSET,
    SEND_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    Answered,
    GoneError,
    Member,
    NotDoneError,
    Place,
    Records,
    UnknownError,
    Watch,
    key_of,
)

_admin: Any = confluent_kafka.admin  # whose names its types don't export

_BATCH_MAX = 2_000  # so that a history has room for one in a line
_REGISTER = "retention.ms"
# How librdkafka writes down ConsumerGroupMetadata: this, then the generation in native order.
_METADATA_MAGIC = b"CGMDv2:"
# The protocols by which a member is told what it gains, not all that it has.
_INCREMENTAL = ("consumer", "cooperative-sticky")


def base(bootstrap: str) -> dict[str, Any]:
    """Settings that all of its clients share."""
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "socket.timeout.ms": int(TIMEOUT_S * 1000),
        "socket.connection.setup.timeout.ms": 2_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 300,
        "topic.metadata.refresh.interval.ms": 2_000,
        **secured.librdkafkas(),
    }


class _Offsets:
    """Where the records of one idempotent producer are, as its reports say in their order.

    Some are delivered and nobody told at which offset: those whose answer was an error, when one
    behind them was written, and those that the broker called a duplicate (KIP-98). Of a duplicate's
    records librdkafka says -1 for the first and goes on from there, with 0, 1, 2; these can't be
    true, for as many records of this producer lie before them, and one more.
    """

    def __init__(self) -> None:
        self._untrue: dict[Place, int] = {}
        """Of a partition whose last record was one of those: what would be said of the next."""

    def of(self, message: Any) -> int:
        """The offset of a delivered record, NO_OFFSET where it isn't known."""
        place = message.topic(), message.partition()
        offset = message.offset()
        if offset is None:
            self._untrue[place] = 0
            return NO_OFFSET
        if offset == self._untrue.pop(place, None):
            self._untrue[place] = offset + 1
            return NO_OFFSET
        return int(offset)


class _Sender:
    def __init__(self, bootstrap: str) -> None:
        self._offsets = _Offsets()
        self._producer = Producer(
            base(bootstrap)
            | {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": int(SEND_TIMEOUT_S * 1000),
                "request.timeout.ms": 2_000,
            }
        )

    def send(self, records: Sequence[tuple[Place, str]]) -> list[int]:
        answers: dict[int, int | KafkaError] = {}

        def answered(number: int) -> Any:
            def take(error: KafkaError | None, message: Any) -> None:
                answers[number] = self._offsets.of(message) if error is None else error

            return take

        for number, ((topic, partition), value) in enumerate(records):
            self._producer.produce(
                topic, value.encode(), partition=partition, on_delivery=answered(number)
            )
        deadline = time.monotonic() + 1.5 * SEND_TIMEOUT_S
        while len(answers) < len(records) and time.monotonic() < deadline:
            self._producer.poll(0.1)
        found = [answers.get(number) for number in range(len(records))]
        offsets = [each for each in found if isinstance(each, int)]
        if len(offsets) == len(records):
            return offsets
        errors = [each for each in found if isinstance(each, KafkaError)]
        text = str(errors[0]) if errors else "no answer in time"
        if [each.code() for each in errors] == [KafkaError.MSG_SIZE_TOO_LARGE] * len(records):
            raise NotDoneError(text)
        known = [each if isinstance(each, int) else None for each in found]
        kind = GoneError if not errors or any(each.fatal() for each in errors) else UnknownError
        raise kind(text, known)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(0.5)


class _Stream:
    def __init__(self, bootstrap: str) -> None:
        self._offsets = _Offsets()
        self._producer = Producer(
            base(bootstrap)
            | {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": int(NEVER_S * 1000),
                "request.timeout.ms": 5_000,
            }
        )

    def send(self, place: Place, value: str, answered: Answered) -> bool:
        def take(error: KafkaError | None, message: Any) -> None:
            if error is None:
                answered(self._offsets.of(message), "")
            else:
                answered(None, str(error))

        topic, partition = place
        try:
            self._producer.produce(topic, value.encode(), partition=partition, on_delivery=take)
        except BufferError:  # its queue is full while nobody answers
            self._producer.poll(0.1)
            return False
        except KafkaException as error:
            raise GoneError(str(error)) from None
        self._producer.poll(0)
        return True

    def settle(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(0.5)


class _Reader:
    def __init__(self, bootstrap: str, group: str) -> None:
        self._consumer = Consumer(
            base(bootstrap)
            | {
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
                "fetch.error.backoff.ms": 50,
            }
        )
        self._subscribed = False

    def assign(self, positions: Mapping[Place, int]) -> None:
        self._consumer.assign([TopicPartition(*place, at) for place, at in positions.items()])

    def subscribe(self, topics: Sequence[str]) -> None:
        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            """Where nothing is committed, from the start; `earliest` would hide skips."""
            places = consumer.committed(partitions, TIMEOUT_S)
            for place in places:
                place.offset = max(place.offset, 0)
            consumer.assign(places)

        self._subscribed = True
        self._consumer.subscribe(list(topics), on_assign=assigned)

    def poll(self, timeout_s: float) -> Records:
        records: Records = {}
        for message in self._consumer.consume(_BATCH_MAX, timeout_s):
            error = message.error()
            if error is None:
                _take(records, message)
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise GoneError(str(error))
        if records and self._subscribed:
            # Coordinators come and go; what could not be committed is read again.
            with contextlib.suppress(KafkaException):
                self._consumer.commit(asynchronous=True)
        return records

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        return bounds_of(self._consumer, places)

    def close(self) -> None:
        self._consumer.close()


class _Registers:
    def __init__(self, bootstrap: str, group: str) -> None:
        self._consumer = Consumer(
            base(bootstrap) | {"group.id": group, "enable.auto.commit": False}
        )

    def commit(self, place: Place, offset: int) -> None:
        self.commit_all([place], offset)

    def commit_all(self, places: Sequence[Place], offset: int) -> None:
        _commit(self._consumer, [TopicPartition(*place, offset) for place in places])

    def fetch(self, place: Place) -> int:
        (offset,) = self.fetch_all([place])
        return offset

    def fetch_all(self, places: Sequence[Place]) -> list[int]:
        try:
            wanted = [TopicPartition(*place) for place in places]
            found = self._consumer.committed(wanted, TIMEOUT_S)
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
        except KafkaException as error:
            raise UnknownError(str(error.args[0])) from None
        return sorted({max(each.offset, NO_OFFSET) for each in found})

    def close(self) -> None:
        self._consumer.close()


class _Topics:
    def __init__(self, bootstrap: str) -> None:
        self._admin = _admin.AdminClient(base(bootstrap))

    def _result(self, futures: Mapping[Any, Any], meanings: Mapping[int, Any]) -> Any:
        """`meanings` are codes of errors that say for certain what the register held."""
        (future,) = futures.values()
        try:
            return future.result(2 * TIMEOUT_S)
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in meanings:
                raise NotDoneError(str(error), meanings[error.code()]) from None
            raise UnknownError(str(error)) from None
        except TimeoutError:
            raise GoneError("no answer in time") from None

    def create(self, name: str, config: int) -> None:
        topic = _admin.NewTopic(name, 1, config={_REGISTER: str(config)})
        futures = self._admin.create_topics([topic], request_timeout=TIMEOUT_S)
        self._result(futures, {KafkaError.TOPIC_ALREADY_EXISTS: {"saw_not": None}})

    def alter(self, name: str, config: int) -> None:
        operation = _admin.AlterConfigOpType.SET
        entry = _admin.ConfigEntry(_REGISTER, str(config), incremental_operation=operation)
        kind = _admin.ResourceType.TOPIC
        resource = _admin.ConfigResource(kind, name, incremental_configs=[entry])
        futures = self._admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)
        self._result(futures, {KafkaError.UNKNOWN_TOPIC_OR_PART: {"saw": None}})

    def delete(self, name: str) -> None:
        futures = self._admin.delete_topics([name], request_timeout=TIMEOUT_S)
        self._result(futures, {KafkaError.UNKNOWN_TOPIC_OR_PART: {"saw": None}})

    def describe(self, name: str) -> int | None:
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, name)
        futures = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)
        try:
            entries = self._result(futures, {KafkaError.UNKNOWN_TOPIC_OR_PART: None})
        except NotDoneError:
            return None
        return int(entries[_REGISTER].value)

    def close(self) -> None:
        pass  # it ends with the last reference to it


class _Member:
    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, watch: Watch) -> None:
        settings = base(bootstrap) | {
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
        self._incremental = protocol in _INCREMENTAL
        if protocol == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "partition.assignment.strategy": protocol,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            }
        self._consumer = Consumer(settings)

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            watch.assigned(_keys(partitions), self.epoch, consumer.memberid() or "")
            self._start(partitions)

        self._consumer.subscribe(
            [topic],
            on_assign=assigned,
            on_revoke=lambda _, parts: watch.revoked(_keys(parts)),
            on_lost=lambda _, parts: watch.lost(_keys(parts)),
        )

    def _start(self, partitions: list[TopicPartition]) -> None:
        """Has each read from what is committed, and from the start where nothing is.

        librdkafka itself, amid a rebalance, takes an offset that a transaction may still change
        for none at all, and `earliest` would read all again. What can't be told in time is left
        to it, and if it knows no offset, this member is gone.
        """
        try:
            places = self._consumer.committed(partitions, TIMEOUT_S)
        except KafkaException:
            return
        if any(place.error is not None for place in places):
            return
        for place in places:
            place.offset = max(place.offset, 0)
        if self._incremental:
            self._consumer.incremental_assign(places)
        else:
            self._consumer.assign(places)

    @property
    def epoch(self) -> int:
        metadata = bytes(self._consumer.consumer_group_metadata())
        if not metadata.startswith(_METADATA_MAGIC):
            return -1
        return int(struct.unpack_from("=i", metadata, len(_METADATA_MAGIC))[0])

    def poll(self, timeout_s: float) -> Records:
        records: Records = {}
        for message in self._consumer.consume(_BATCH_MAX, timeout_s):
            error = message.error()
            if error is None:
                _take(records, message)
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise GoneError(str(error))
        return records

    def commit(self, place: Place, offset: int) -> None:
        _commit(self._consumer, [TopicPartition(*place, offset)])

    def close(self) -> None:
        self._consumer.close()


def group_metadata_of(member: Member) -> Any:
    """As whom a transaction commits offsets of this member."""
    assert isinstance(member, _Member), "a member of this library"
    return member._consumer.consumer_group_metadata()


def bounds_of(consumer: Consumer, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
    """Where each partition begins and ends; raises UnknownError."""
    found = {}
    for place in places:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(*place), TIMEOUT_S)
        except KafkaException as error:
            raise UnknownError(str(error)) from None
        found[place] = (low, high)
    return found


def _commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    try:
        for each in consumer.commit(offsets=offsets, asynchronous=False):
            if each.error is not None:
                raise KafkaException(each.error)
    except KafkaException as error:
        raise UnknownError(str(error.args[0])) from None


def _take(records: Records, message: Any) -> None:
    place = message.topic(), message.partition()
    records.setdefault(key_of(place), []).append((message.offset(), message.value().decode()))


def _keys(partitions: Sequence[TopicPartition]) -> list[str]:
    return [key_of((each.topic, each.partition)) for each in partitions]


class _Confluent:
    sender = staticmethod(_Sender)
    stream = staticmethod(_Stream)
    reader = staticmethod(_Reader)
    registers = staticmethod(_Registers)
    topics = staticmethod(_Topics)
    member = staticmethod(_Member)


ADAPTER = _Confluent()
