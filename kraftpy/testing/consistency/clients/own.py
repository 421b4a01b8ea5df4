"""kraftpy's own client, whose calls run on an event loop in a thread of its own.

`compare_and_commit` and changes of topics are sent once, so what a broker answers is all there is
to know.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster, is_retriable
from kraftpy.client.commits import compare_and_commit, read_committed
from kraftpy.client.consumer import Consumer, RebalanceListener
from kraftpy.client.coordinator import Coordinator, Generation, GroupMetadata
from kraftpy.client.group import GroupTimes
from kraftpy.client.offsets import Partition
from kraftpy.client.producer import Producer
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
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

_T = TypeVar("_T")
_TIMEOUT_MS = int(TIMEOUT_S * 1000)
_SEND_TIMEOUT_MS = int(SEND_TIMEOUT_S * 1000)
_BATCH_MAX = 2_000  # so that a history has room for one in a line
_REGISTER = "retention.ms"
_EARLIEST, _LATEST = -2, -1


class Session:
    """A cluster's connections and the loop on which they live."""

    def __init__(self, bootstrap: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, daemon=True).start()
        self._bootstrap = bootstrap
        self.cluster = self.run(self._open())

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _open(self) -> Cluster:
        return Cluster(self._bootstrap, request_timeout_ms=_TIMEOUT_MS, security=secured.own())

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float = 2 * TIMEOUT_S) -> _T:
        """The result. UnknownError if it failed, GoneError if there is none in time."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except (TimeoutError, concurrent.futures.TimeoutError):
            future.cancel()
            raise GoneError("no answer in time") from None
        except (ConnectionError, KafkaError) as error:
            raise UnknownError(repr(error)) from error

    def close(self, *closing: Coroutine[Any, Any, None]) -> None:
        for work in (*closing, self.cluster.close()):
            try:
                self.run(work)
            except UnknownError:
                continue  # what it was to tell the cluster, the cluster has to find out
        self._loop.call_soon_threadsafe(self._loop.stop)


class OwnSender:
    """`record_key` says of a value what its record's key is."""

    def __init__(
        self, bootstrap: str, record_key: Callable[[str], bytes | None] = lambda _: None
    ) -> None:
        self._session = Session(bootstrap)
        self._record_key = record_key
        self._producer = self._session.run(self._open())

    async def _open(self) -> Producer[bytes, bytes]:
        return Producer(self._session.cluster, linger_ms=1, delivery_timeout_ms=_SEND_TIMEOUT_MS)

    def send(self, records: Sequence[tuple[Place, str]]) -> list[int]:
        async def send() -> list[int | BaseException]:
            deliveries = [
                await self._producer.send(
                    topic, value.encode(), key=self._record_key(value), partition=partition
                )
                for (topic, partition), value in records
            ]
            return await asyncio.gather(*map(_offset, deliveries), return_exceptions=True)

        found = self._session.run(send(), 1.5 * SEND_TIMEOUT_S)
        offsets = [each for each in found if isinstance(each, int)]
        if len(offsets) < len(found):
            error = next(each for each in found if not isinstance(each, int))
            if all(map(_is_too_large, found)):
                raise NotDoneError(repr(error))
            known = [each if isinstance(each, int) else None for each in found]
            raise UnknownError(repr(error), known)
        return offsets

    def close(self) -> None:
        self._session.close(self._producer.close(flush=False))


class _Stream:
    def __init__(self, bootstrap: str) -> None:
        self._session = Session(bootstrap)
        self._unanswered: set[asyncio.Future[int]] = set()
        self._producer = self._session.run(self._open())

    async def _open(self) -> Producer[bytes, bytes]:
        timeout_ms = int(NEVER_S * 1000)
        return Producer(self._session.cluster, linger_ms=5, delivery_timeout_ms=timeout_ms)

    def send(self, place: Place, value: str, answered: Answered) -> bool:
        async def send() -> None:
            topic, partition = place
            delivery = await self._producer.send(topic, value.encode(), partition=partition)
            task = asyncio.ensure_future(_offset(delivery))
            self._unanswered.add(task)
            task.add_done_callback(take)

        def take(task: asyncio.Future[int]) -> None:
            self._unanswered.discard(task)
            if task.cancelled():
                answered(None, "cancelled")
            elif (error := task.exception()) is not None:
                answered(None, repr(error))
            else:
                answered(task.result(), "")

        self._session.run(send())
        return True

    def settle(self, timeout_s: float) -> None:
        async def settle() -> None:
            await self._producer.flush()
            # Who waits for a delivery goes on a moment after it.
            await asyncio.gather(*self._unanswered, return_exceptions=True)

        with contextlib.suppress(UnknownError):
            self._session.run(settle(), timeout_s)

    def close(self) -> None:
        self._session.close(self._producer.close(flush=False))


def _is_too_large(answer: int | BaseException) -> bool:
    """Which it would have been at every attempt: none of them was appended."""
    return isinstance(answer, KafkaError) and answer.code == ErrorCode.MESSAGE_TOO_LARGE


async def _offset(delivery: Any) -> int:
    found = await delivery
    return int(found.offset)


class _Reader:
    def __init__(self, bootstrap: str, group: str) -> None:
        self._session = Session(bootstrap)
        self._group = group
        self._subscribed = False
        self._consumer: Consumer[bytes, bytes] | None = None

    async def _open(self, group: str | None) -> Consumer[bytes, bytes]:
        if self._consumer is not None:
            return self._consumer
        return Consumer(
            self._session.cluster,
            group_id=group,
            times=GroupTimes(SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS),
            auto_offset_reset="earliest" if group else "none",
            enable_auto_commit=False,
        )

    def assign(self, positions: Mapping[Place, int]) -> None:
        async def assign() -> Consumer[bytes, bytes]:
            consumer = await self._open(None)
            consumer.assign(list(positions))
            for place, offset in positions.items():
                consumer.seek(place, offset)
            return consumer

        self._consumer = self._session.run(assign())

    def subscribe(self, topics: Sequence[str]) -> None:
        async def subscribe() -> Consumer[bytes, bytes]:
            consumer = await self._open(self._group)
            consumer.subscribe(topics)
            return consumer

        self._subscribed = True
        self._consumer = self._session.run(subscribe())

    def poll(self, timeout_s: float) -> Records:
        consumer = self._consumer
        assert consumer is not None, "assign or subscribe comes first"

        async def poll() -> Records:
            found: Records = {}
            for record in await consumer.poll(int(timeout_s * 1000), max_records=_BATCH_MAX):
                found.setdefault(key_of((record.topic, record.partition)), []).append(
                    (record.offset, (record.value or b"").decode())
                )
            if found and self._subscribed:
                consumer.commit_async().add_done_callback(lambda task: task.exception())
            return found

        return self._session.run(poll())

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        async def bounds() -> dict[Place, tuple[int, int]]:
            consumer = await self._open(None)
            starts = await consumer.offsets_for_times(dict.fromkeys(places, _EARLIEST))
            ends = await consumer.offsets_for_times(dict.fromkeys(places, _LATEST))
            if self._consumer is None:
                await consumer.close()
            return {place: (starts[place], ends[place]) for place in places}

        return self._session.run(bounds())

    def close(self) -> None:
        self._session.close(*([self._consumer.close()] if self._consumer is not None else []))


class OfGroup:
    """Asks a group's coordinator."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._session = Session(bootstrap)
        self._coordinator = self._session.run(self._open(group))

    async def _open(self, group: str) -> Coordinator:
        return Coordinator(self._session.cluster, group, shared=True)

    def close(self) -> None:
        self._session.close(self._coordinator.close())


class _Registers(OfGroup):
    def commit(self, place: Place, offset: int) -> None:
        self.commit_all([place], offset)

    def commit_all(self, places: Sequence[Place], offset: int) -> None:
        offsets = dict.fromkeys(places, offset)
        commit = self._coordinator.commit(offsets, Generation(), timeout_ms=_TIMEOUT_MS)
        self._session.run(commit)

    def compare_and_commit(self, place: Place, expected: int, offset: int) -> None:
        commit = compare_and_commit(
            self._coordinator, place, expected, offset, timeout_ms=_TIMEOUT_MS
        )
        try:
            done = self._session.run(commit)
        except UnknownError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaError) and not is_retriable(cause):
                raise NotDoneError(str(cause)) from None
            raise
        if not done:
            raise NotDoneError("another offset is committed, or about to be")

    def fetch(self, place: Place) -> int:
        read = read_committed(self._coordinator, place, timeout_ms=_TIMEOUT_MS)
        return self._session.run(read).offset

    def fetch_all(self, places: Sequence[Place]) -> list[int]:
        found = self._session.run(self._coordinator.committed(places, timeout_ms=_TIMEOUT_MS))
        return sorted({found.get(place, NO_OFFSET) for place in places})


class _Forwarded:
    """Asks another broker each time, whoever coordinates the group, and once."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._session = Session(bootstrap)
        self._group = group

    def commit(self, place: Place, offset: int) -> None:
        self.commit_all([place], offset)

    def commit_all(self, places: Sequence[Place], offset: int) -> None:
        kinds = messages.OffsetCommitRequest
        topics = [
            kinds.OffsetCommitRequestTopic(
                topic,
                partitions=[kinds.OffsetCommitRequestPartition(each, offset) for each in numbers],
            )
            for topic, numbers in _by_topic(places).items()
        ]
        self._check(self._ask(kinds(self._group, topics=topics)))

    def fetch(self, place: Place) -> int:
        (offset,) = self.fetch_all([place])
        return offset

    def fetch_all(self, places: Sequence[Place]) -> list[int]:
        kinds = messages.OffsetFetchRequest
        topics = [kinds.OffsetFetchRequestTopic(*each) for each in _by_topic(places).items()]
        answer = self._ask(kinds(self._group, topics))
        if answer.error_code:
            raise UnknownError(ErrorCode(answer.error_code).name)
        found = self._check(answer)
        if len(found) != len(places):
            raise UnknownError(f"{len(found)} partitions are answered of {len(places)}")
        return sorted({each.committed_offset for each in found})

    def _ask(self, request: Any) -> Any:
        async def ask() -> Any:
            cluster = self._session.cluster
            if not cluster.brokers:
                await cluster.refresh()
            node_id = random.choice(list(cluster.brokers))  # noqa: S311 - no secret
            return await cluster.request(request, node_id=node_id)

        return self._session.run(ask())

    def _check(self, answer: Any) -> list[Any]:
        """The partitions of an answer, if none has an error: it may be of the forwarding."""
        found = [each for topic in answer.topics for each in topic.partitions]
        for code in {each.error_code for each in found} - {ErrorCode.NONE}:
            raise UnknownError(ErrorCode(code).name)
        return found

    def close(self) -> None:
        self._session.close()


def _by_topic(places: Sequence[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return topics


class _Topics:
    def __init__(self, bootstrap: str) -> None:
        self._session = Session(bootstrap)

    def _ask(self, request: Any, results: str, meanings: Mapping[ErrorCode, Any]) -> Any:
        async def ask() -> Any:
            response = await self._session.cluster.request(request)
            (item,) = getattr(response, results)
            return item

        item = self._session.run(ask())
        code = ErrorCode(item.error_code)
        if code in meanings:
            raise NotDoneError(code.name, meanings[code])
        if code != ErrorCode.NONE:
            raise UnknownError(code.name)
        return item

    def create(self, name: str, config: int) -> None:
        kinds = messages.CreateTopicsRequest
        configs = [kinds.CreatableTopicConfig(name=_REGISTER, value=str(config))]
        topic = kinds.CreatableTopic(
            name=name, num_partitions=1, replication_factor=-1, configs=configs
        )
        request = kinds(topics=[topic], timeout_ms=_TIMEOUT_MS)
        self._ask(request, "topics", {ErrorCode.TOPIC_ALREADY_EXISTS: {"saw_not": None}})

    def alter(self, name: str, config: int) -> None:
        kinds = messages.IncrementalAlterConfigsRequest
        configs = [kinds.AlterableConfig(name=_REGISTER, config_operation=0, value=str(config))]
        resource = kinds.AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
        meanings = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: {"saw": None}}
        self._ask(kinds(resources=[resource]), "responses", meanings)

    def delete(self, name: str) -> None:
        kinds = messages.DeleteTopicsRequest
        topics = [kinds.DeleteTopicState(name=name)]
        request = kinds(topics=topics, topic_names=[name], timeout_ms=_TIMEOUT_MS)
        meanings = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: {"saw": None}}
        self._ask(request, "responses", meanings)

    def describe(self, name: str) -> int | None:
        admin = Admin(self._session.cluster, timeout_ms=_TIMEOUT_MS)
        try:
            values = self._session.run(admin.describe_configs(name))
        except UnknownError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaError) and cause.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise
        (value,) = [each.value for each in values if each.name == _REGISTER]
        return int(value or 0)

    def close(self) -> None:
        self._session.close()


class _Listener(RebalanceListener):
    def __init__(self, member: _Member, watch: Watch) -> None:
        self._member = member
        self._watch = watch

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        keys = list(map(key_of, partitions))
        self._watch.assigned(keys, self._member.epoch, self._member.member_id)

    async def revoked(self, partitions: Sequence[Partition]) -> None:
        self._watch.revoked(list(map(key_of, partitions)))

    async def lost(self, partitions: Sequence[Partition]) -> None:
        self._watch.lost(list(map(key_of, partitions)))


class _Member:
    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, watch: Watch) -> None:
        self._session = Session(bootstrap)
        self._consumer = self._session.run(self._open(group, protocol))
        self._subscribe(topic, watch)

    async def _open(self, group: str, protocol: str) -> Consumer[bytes, bytes]:
        return Consumer(
            self._session.cluster,
            group_id=group,
            assignors=[protocol],
            times=GroupTimes(SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    def _subscribe(self, topic: str, watch: Watch) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe([topic], listener=_Listener(self, watch))

        self._session.run(subscribe())

    @property
    def epoch(self) -> int:
        return self._consumer.generation.id

    @property
    def member_id(self) -> str:
        return self._consumer.generation.member_id

    def poll(self, timeout_s: float) -> Records:
        async def poll() -> Records:
            found: Records = {}
            for record in await self._consumer.poll(int(timeout_s * 1000), max_records=_BATCH_MAX):
                found.setdefault(key_of((record.topic, record.partition)), []).append(
                    (record.offset, (record.value or b"").decode())
                )
            return found

        return self._session.run(poll(), 6 * TIMEOUT_S)

    def commit(self, place: Place, offset: int) -> None:
        self._session.run(self._consumer.commit({place: offset}))

    def close(self) -> None:
        self._session.close(self._consumer.close())


def group_metadata_of(member: Member) -> GroupMetadata:
    """As whom a transaction commits offsets of this member."""
    assert isinstance(member, _Member), "a member of this library"
    return member._consumer.group_metadata


class _Own:
    sender = staticmethod(OwnSender)
    stream = staticmethod(_Stream)
    reader = staticmethod(_Reader)
    registers = staticmethod(_Registers)
    forwarded = staticmethod(_Forwarded)
    topics = staticmethod(_Topics)
    member = staticmethod(_Member)


ADAPTER = _Own()
