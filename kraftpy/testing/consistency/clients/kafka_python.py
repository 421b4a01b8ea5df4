"""kafka-python.

It retries inside, so of what it raises only that is certain which would have been the same each
time: records too large. It can't commit as a member of a consumer
group (KIP-848), and its administration sends again what may have been done already, so its answers
say nothing of registers: it doesn't play those parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kafka
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError
from kafka.structs import OffsetAndMetadata, TopicPartition

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
    NotDoneError,
    Place,
    Records,
    UnknownError,
    Watch,
    key_of,
    values_of,
)

_TIMEOUT_MS = int(TIMEOUT_S * 1000)
_BATCH_MAX = 2_000  # so that a history has room for one in a line


def _base(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap.split(","),
        "reconnect_backoff_max_ms": 300,
        "metadata_max_age_ms": 2_000,
        **secured.keywords(),
    }


class _Sender:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = self._open()

    def _open(self) -> Any:
        try:
            return kafka.KafkaProducer(
                **_base(self._bootstrap),
                enable_idempotence=True,
                acks="all",
                linger_ms=1,
                delivery_timeout_ms=int(SEND_TIMEOUT_S * 1000),
                request_timeout_ms=2_000,
                max_block_ms=_TIMEOUT_MS,
            )
        except KafkaError as error:
            raise UnknownError(repr(error)) from None

    def send(self, records: Sequence[tuple[Place, str]]) -> list[int]:
        answers: list[int | None] = []
        futures = []
        problem: KafkaError | None = None
        too_large = 0
        try:
            for (topic, partition), value in records:
                futures.append(self._producer.send(topic, value.encode(), partition=partition))
        except KafkaError as error:
            problem = error
        for future in futures:
            try:
                answers.append(future.get(1.5 * SEND_TIMEOUT_S).offset)
            except KafkaError as error:
                problem = error
                too_large += isinstance(error, MessageSizeTooLargeError)
                answers.append(None)
        if problem is not None and too_large == len(records):
            raise self._refused(problem)
        if problem is not None:
            answers += [None] * (len(records) - len(answers))
            # It may not go on after an error of an idempotent producer.
            raise GoneError(repr(problem), answers)
        return [offset for offset in answers if offset is not None]

    def _refused(self, problem: KafkaError) -> Exception:
        """What to say of records that are too large; an idempotent producer ends with them."""
        self.close()
        try:
            self._producer = self._open()
        except UnknownError:
            return GoneError(repr(problem))
        return NotDoneError(repr(problem))

    def close(self) -> None:
        self._producer.close(timeout=1)


class _Stream:
    def __init__(self, bootstrap: str) -> None:
        try:
            self._producer = kafka.KafkaProducer(
                **_base(bootstrap),
                enable_idempotence=True,
                acks="all",
                linger_ms=5,
                delivery_timeout_ms=int(NEVER_S * 1000),
                request_timeout_ms=5_000,
                max_block_ms=1_000,
            )
        except KafkaError as error:
            raise UnknownError(repr(error)) from None

    def send(self, place: Place, value: str, answered: Answered) -> bool:
        topic, partition = place
        try:
            future = self._producer.send(topic, value.encode(), partition=partition)
        except KafkaTimeoutError:  # its buffer is full: nothing was taken
            return False
        except KafkaError as error:
            raise GoneError(repr(error)) from None
        future.add_callback(lambda found: answered(found.offset, ""))
        future.add_errback(lambda error: answered(None, repr(error)))
        return True

    def settle(self, timeout_s: float) -> None:
        with contextlib.suppress(KafkaTimeoutError):
            self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.close(timeout=1)


def _consumer(bootstrap: str, group: str | None, **settings: Any) -> Any:
    try:
        return kafka.KafkaConsumer(
            **_base(bootstrap),
            group_id=group,
            enable_auto_commit=False,
            request_timeout_ms=max(_TIMEOUT_MS, SESSION_TIMEOUT_MS + 1_000),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            **settings,
        )
    except KafkaError as error:
        raise UnknownError(repr(error)) from None


def _poll(consumer: Any, timeout_s: float) -> Records:
    try:
        found = consumer.poll(timeout_s * 1000, max_records=_BATCH_MAX)
    except KafkaError as error:
        raise GoneError(repr(error)) from None
    return values_of(found)


class _Reader:
    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._open: Any = None
        self._subscribed = False

    @property
    def _consumer(self) -> Any:
        if self._open is None:
            group = self._group if self._subscribed else None
            reset = "earliest" if self._subscribed else "none"
            self._open = _consumer(self._bootstrap, group, auto_offset_reset=reset)
        return self._open

    def assign(self, positions: Mapping[Place, int]) -> None:
        self._consumer.assign([TopicPartition(*place) for place in positions])
        for place, offset in positions.items():
            self._consumer.seek(TopicPartition(*place), offset)

    def subscribe(self, topics: Sequence[str]) -> None:
        self._subscribed = True
        self._consumer.subscribe(list(topics))

    def poll(self, timeout_s: float) -> Records:
        records = _poll(self._consumer, timeout_s)
        if records and self._subscribed:
            self._consumer.commit_async()
        return records

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        wanted = [TopicPartition(*place) for place in places]
        try:
            starts = self._consumer.beginning_offsets(wanted, timeout_ms=_TIMEOUT_MS)
            ends = self._consumer.end_offsets(wanted, timeout_ms=_TIMEOUT_MS)
        except KafkaError as error:
            raise UnknownError(repr(error)) from None
        return {tuple(each): (starts[each], ends[each]) for each in wanted}

    def close(self) -> None:
        if self._open is not None:
            self._open.close(timeout_ms=1_000)


class _Registers:
    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._open: Any = None

    @property
    def _consumer(self) -> Any:
        if self._open is None:
            self._open = _consumer(self._bootstrap, self._group)
        return self._open

    def commit(self, place: Place, offset: int) -> None:
        self.commit_all([place], offset)

    def commit_all(self, places: Sequence[Place], offset: int) -> None:
        wanted = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place in places}
        try:
            self._consumer.commit(wanted, timeout_ms=_TIMEOUT_MS)
        except KafkaError as error:
            raise UnknownError(repr(error)) from None

    def fetch(self, place: Place) -> int:
        (offset,) = self.fetch_all([place])
        return offset

    def fetch_all(self, places: Sequence[Place]) -> list[int]:
        wanted = [TopicPartition(*place) for place in places]
        coordinator = self._consumer._coordinator  # `committed` asks for one partition at a time
        try:
            found = coordinator.fetch_committed_offsets(wanted, timeout_ms=_TIMEOUT_MS)
        except KafkaError as error:
            # kafka-python keeps a fetch that it gave up waiting for, and hands its answer to the
            # next one who asks for the same, however old it is by then.
            self.close()
            raise UnknownError(repr(error)) from None
        return sorted({int(found[each].offset) if each in found else NO_OFFSET for each in wanted})

    def close(self) -> None:
        if self._open is not None:
            self._open.close(timeout_ms=1_000)
            self._open = None


class _Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: _Member, watch: Watch) -> None:
        self._member = member
        self._watch = watch

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._watch.assigned(_keys(assigned), *self._member.join())

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._watch.revoked(_keys(revoked))

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._watch.lost(_keys(lost))


class _Member:
    """One that goes on with what is committed once it has missed a generation.

    kafka-python 3.0 keeps its positions over a rebalance for partitions that it gets again, also
    when others had them in generations that it missed: it would go on where it was.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, watch: Watch) -> None:
        assert protocol == RangePartitionAssignor.name, "the only one here that all clients have"
        self._consumer = _consumer(
            bootstrap,
            group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        self._joined = (-1, "")
        self._missed = False
        self._consumer.subscribe([topic], listener=_Listener(self, watch))

    @property
    def epoch(self) -> int:
        return int(self._consumer._coordinator._generation.generation_id)

    def join(self) -> tuple[int, str]:
        """It is in a generation now: that and its member id."""
        member_id = str(self._consumer._coordinator._generation.member_id)
        self._missed |= self._joined != (self.epoch - 1, member_id)
        self._joined = (self.epoch, member_id)
        return self._joined

    def poll(self, timeout_s: float) -> Records:
        records = _poll(self._consumer, timeout_s)
        if not self._missed:
            return records
        self._seek_to_committed()
        self._missed = False
        return {}

    def _seek_to_committed(self) -> None:
        try:
            for place in self._consumer.assignment():
                offset = self._consumer.committed(place, timeout_ms=_TIMEOUT_MS)
                if offset is None:
                    self._consumer.seek_to_beginning(place)
                else:
                    self._consumer.seek(place, offset)
        except KafkaError as error:
            raise GoneError(repr(error)) from None

    def commit(self, place: Place, offset: int) -> None:
        wanted = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1)}
        try:
            self._consumer.commit(wanted, timeout_ms=_TIMEOUT_MS)
        except KafkaError as error:
            raise UnknownError(repr(error)) from None

    def close(self) -> None:
        self._consumer.close(timeout_ms=2_000)


def _keys(partitions: Iterable[TopicPartition]) -> list[str]:
    return [key_of((each.topic, each.partition)) for each in partitions]


class _KafkaPython:
    sender = staticmethod(_Sender)
    stream = staticmethod(_Stream)
    reader = staticmethod(_Reader)
    registers = staticmethod(_Registers)
    member = staticmethod(_Member)


ADAPTER = _KafkaPython()
