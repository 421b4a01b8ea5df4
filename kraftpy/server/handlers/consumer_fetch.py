"""What a consumer's fetch gathers and answers, and how it waits for more (KIP-74, KIP-98, KIP-392).

The rules are in `fetch`, which begins them. `LongFetch` is one of very many partitions; those that
want some of a partition's keys only are `range_fetch`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from kraftpy.core.replication import Leadership, preferred_read_replica
from kraftpy.protocol.api import READ_COMMITTED
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import FetchRequest, FetchResponse
from kraftpy.server.handlers.leader_hints import naming_leaders_of_fetch
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, at_once, in_slices
from kraftpy.server.replication.fetch_sessions import NO_SESSION_ID, FetchPartition, FetchSession
from kraftpy.server.replication.partition import Partition

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

FIRST_VERSION_WITH_RACK = 11

T = TypeVar("T")
PartitionData = FetchResponse.PartitionData
TopicResponse = FetchResponse.FetchableTopicResponse
AbortedTransaction = FetchResponse.AbortedTransaction
# A fetch of more partitions works on so many at a time, and others have the loop in between.
TOGETHER_MAX = 500
# What was wanted, what was found, and how many bytes could be sent of the partition.
Result = tuple[FetchPartition, FetchResponse.PartitionData, int]


class Fetch:
    """One fetch: gathers, and if it may, waits and gathers again."""

    __slots__ = (
        "_broker",
        "_by_id",
        "_ctx",
        "_deposed",
        "_errors",
        "_from_followers",
        "_future",
        "_incremental",
        "_isolation",
        "_max_bytes",
        "_min_bytes",
        "_partitions",
        "_rack",
        "_ready_bytes",
        "_session",
        "_size_bytes",
        "_timer",
        "_wait_ms",
        "_watched",
    )

    def __init__(
        self,
        broker: Broker,
        ctx: RequestContext,
        request: FetchRequest,
        session: FetchSession | None,
        wanted: list[FetchPartition],
        incremental: bool,
        by_id: bool,
    ) -> None:
        self._broker = broker
        self._ctx = ctx
        self._session = session
        self._partitions = wanted if session is None else list(session)
        self._incremental = incremental
        self._by_id = by_id
        self._max_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        # As in Kafka; else a client that asks for more than may be sent gets it all, but late.
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._wait_ms = request.max_wait_ms
        self._isolation = request.isolation_level
        self._from_followers = ctx.api_version >= FIRST_VERSION_WITH_RACK
        self._rack = request.rack_id if broker.config.replica_selector_class else ""
        # What was led here when the wait began, and isn't any more.
        self._deposed: set[Partition] = set()
        self._size_bytes = 0
        self._ready_bytes = 0
        self._errors = False
        # What is waited for, with the bytes that are ready there, and in which role it was.
        self._watched: dict[Partition, tuple[FetchPartition, int, Leadership | None]] = {}
        self._future: asyncio.Future[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> FetchResponse | asyncio.Future[FetchResponse]:
        results = self._gather()
        if self._is_enough() or self._wait_ms <= 0:
            return self._respond(results)
        self._future = self._broker.loop.create_future()
        self._future.add_done_callback(self._unwatch)
        self._timer = self._wait_for(self._finish)
        self._watch(results)
        return self._future

    # -- waiting

    def _wait_for(self, end: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls `end` when the client doesn't want to wait longer, or may not (KIP-368)."""
        loop, ctx = self._broker.loop, self._ctx
        ctx.patience_s = ctx.session.patience_s(self._wait_ms, loop.time())
        return loop.call_later(ctx.patience_s, end)

    def _is_enough(self) -> bool:
        if self._broker.stopping:
            return True
        return self._errors or self._ready_bytes >= self._min_bytes or not self._partitions

    def _watch(self, results: list[Result]) -> None:
        """Only reached when every partition was found: an error ends a fetch at once."""
        for wanted, _, ready_bytes in results:
            partition = self._find(wanted)
            partition.fetches.add(self._wake)
            self._watched[partition] = wanted, ready_bytes, partition.leadership

    def _unwatch(self, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.fetches.remove(self._wake)
        self._watched.clear()

    def _wake(self, partition: Partition) -> None:
        if self._future is None or self._future.done():
            return
        self._look_again(partition)
        if self._is_enough():
            self._future.set_result(self._respond(self._gather()))

    def _look_again(self, partition: Partition) -> None:
        # An append costs a look at its own partition, however many are waited for.
        wanted, ready_bytes, leadership = self._watched[partition]
        if partition.leadership is not leadership:
            self._deposed.add(partition)
        self._size_bytes = 0
        self._ready_bytes -= ready_bytes
        self._watched[partition] = wanted, self._look(wanted)[2], leadership

    def _finish(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(self._respond(self._gather()))

    # -- reading

    def _name_of(self, wanted: FetchPartition) -> str:
        """The topic's name; raises UNKNOWN_TOPIC_ID."""
        if isinstance(wanted.topic, str):
            return wanted.topic
        topic = self._broker.metadata.topics_by_id.get(wanted.topic)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic.name

    def _find(self, wanted: FetchPartition) -> Partition:
        """The partition if it can be read here in the client's epoch; raises KafkaError."""
        partition = self._broker.readable_partition(
            self._name_of(wanted),
            wanted.index,
            wanted.current_leader_epoch,
            from_follower=self._from_followers,
        )
        if partition in self._deposed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def _gather(self) -> list[Result]:
        self._size_bytes = self._ready_bytes = 0
        self._errors = False
        return [self._look(wanted) for wanted in self._partitions]

    def _look(self, wanted: FetchPartition) -> Result:
        before = self._ready_bytes
        data = self._read(wanted)
        if data.error_code:
            self._errors = True
        return wanted, data, self._ready_bytes - before

    def _read(self, wanted: FetchPartition) -> FetchResponse.PartitionData:
        data = PartitionData(wanted.index, records=[])
        try:
            partition = self._find(wanted)
        except KafkaError as failure:
            data.error_code = failure.code
            data.high_watermark = -1
            return data
        high_watermark = partition.high_watermark
        stable_offset = partition.last_stable_offset
        partition.numbers.reads += 1
        data.high_watermark = high_watermark
        data.last_stable_offset = stable_offset
        data.log_start_offset = partition.log.log_start_offset
        if self._rack and self._prefers_replica(partition, wanted, data):
            return data
        committed = self._isolation == READ_COMMITTED
        limit = max(min(wanted.max_bytes, self._max_bytes - self._size_bytes), 0)
        upper_offset = stable_offset if committed else high_watermark
        try:
            if self._diverges(partition, wanted, data):
                return data
            result = partition.log.read(
                wanted.fetch_offset,
                limit,
                upper_offset=upper_offset,
                min_one=self._size_bytes == 0,
            )
            if committed:
                data.aborted_transactions = [
                    AbortedTransaction(aborted.producer_id, aborted.first_offset)
                    for aborted in partition.log.aborted_transactions(
                        wanted.fetch_offset, result.next_offset
                    )
                ]
        except KafkaError as failure:
            data.error_code = self._believable(failure.code, partition, wanted)
            data.high_watermark = -1
            return data
        if result.slices:
            data.records = result.slices
            self._size_bytes += result.size_bytes
        self._ready_bytes += result.size_bytes
        if result.next_offset < upper_offset:
            # Whole batches rarely fill a limit to the byte: there is more, so the limit is reached.
            self._ready_bytes += max(limit - result.size_bytes, 0)
        return data

    def _believable(
        self, error: ErrorCode, partition: Partition, wanted: FetchPartition
    ) -> ErrorCode:
        """A consumer that hears OFFSET_OUT_OF_RANGE goes elsewhere in the log, and skips records.

        So only who leads says it of an offset beyond its end, and while it hears of the quorum: a
        newer leader may well have it. A follower may be asked by a client that takes it for
        the leader; a broker that lost the end of its logs in a crash is one. The client looks
        for the leader instead. (Clients that send their leader epoch, KIP-320, are told by that.)
        """
        beyond = error == ErrorCode.OFFSET_OUT_OF_RANGE and (
            wanted.fetch_offset > partition.log.log_end_offset
        )
        if beyond and (partition.leadership is None or not self._broker.in_touch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error

    def _prefers_replica(
        self, partition: Partition, wanted: FetchPartition, data: FetchResponse.PartitionData
    ) -> bool:
        """Whether the client is sent to a follower in its rack (KIP-392)."""
        if partition.leadership is None:
            return False
        brokers = self._broker.metadata.brokers
        racks = {id_: broker.rack for id_, broker in brokers.items() if not broker.fenced}
        own_rack = racks.get(self._broker.node_id)
        replica = preferred_read_replica(
            partition.leadership, racks, own_rack, self._rack, wanted.fetch_offset
        )
        if replica is None:
            return False
        data.preferred_read_replica = replica
        self._errors = True  # ends the wait: the client has to know
        return True

    def _diverges(
        self, partition: Partition, wanted: FetchPartition, data: FetchResponse.PartitionData
    ) -> bool:
        """KIP-595's check in Fetch: the client's last fetched epoch ends elsewhere in our log."""
        if wanted.last_fetched_epoch < 0:
            return False
        diverging = partition.divergence(wanted.fetch_offset, wanted.last_fetched_epoch)
        if diverging is None:
            return False
        data.diverging_epoch = FetchResponse.EpochEndOffset(*diverging)
        self._errors = True
        return True

    # -- answering

    def _suspect(self, wanted: FetchPartition) -> None:
        """A consumer comes back for the same offset again and again: can it use what it gets?"""
        with suppress(KafkaError):
            partition = self._find(wanted)
            self._broker.replicas.refetched(partition, wanted.fetch_offset, wanted.max_bytes)

    def _respond(self, results: list[Result]) -> FetchResponse:
        if self._is_too_much():
            return self._nothing()
        response = self._response()
        self._add(response, {}, results)
        if self._errors:
            at_once(naming_leaders_of_fetch(self._broker, self._ctx, response))
        return response

    def _is_too_much(self) -> bool:
        """Whether what was found would be over the client's quota; else it's counted."""
        used = self._ctx.used
        return used is not None and not used.may_send(self._size_bytes)

    def _nothing(self) -> FetchResponse:
        """The answer while the client is over its quota: a session remains as it was (KIP-219)."""
        if self._session is None or self._incremental:
            return self._response()
        # Who gets nothing for a whole fetch begins another session (Kafka's clients do).
        self._broker.fetch_sessions.close(self._session.id)
        return FetchResponse()

    def _response(self) -> FetchResponse:
        session = self._session
        return FetchResponse(session_id=NO_SESSION_ID if session is None else session.id)

    def _add(
        self,
        response: FetchResponse,
        topics: dict[str | bytes, FetchResponse.FetchableTopicResponse],
        results: list[Result],
    ) -> None:
        """Puts what is to be told into the response; `topics`: those that it has already."""
        session = self._session
        traffic, rereads = self._broker.replicas.traffic, self._broker.replicas.rereads
        for wanted, data, _ in results:
            has_data = bool(data.records)
            if has_data or data.error_code:
                traffic.read(wanted.topic, data.records or (), data.error_code)
                reader = self._ctx.session.peer, wanted.topic, wanted.index, wanted.key_ranges
                if has_data and rereads.note(reader, wanted.fetch_offset):
                    self._suspect(wanted)
                if data.error_code:
                    self._ctx.errors[data.error_code] += 1
            if session is not None:
                served = has_data or data._tags is not None  # which tell how far it was scanned
                named = wanted.must_answer(
                    data.error_code,
                    data.high_watermark,
                    data.last_stable_offset,
                    data.log_start_offset,
                    served or data.diverging_epoch is not None,
                )
                if served:
                    session.served(wanted.key)
                if self._incremental and not named:
                    continue
            topic = topics.get(wanted.topic)
            if topic is None:
                topic = topics[wanted.topic] = TopicResponse()
                if isinstance(wanted.topic, bytes):
                    topic.topic_id = wanted.topic
                else:
                    topic.topic = wanted.topic
                response.responses.append(topic)
            topic.partitions.append(data)


class LongFetch(Fetch):
    """A fetch of many partitions, which yields to the loop between some and the next."""

    __slots__ = ("_enough",)

    async def run(self) -> FetchResponse:
        """As `start` does it for few."""
        self._enough: asyncio.Future[None] = self._broker.loop.create_future()
        try:
            results = await self._gather_all()
            if not self._is_enough() and self._wait_ms > 0:
                await self._wait()
                results = await self._gather_all()
            return await self._respond_all(results)
        finally:
            self._unwatch(None)

    async def _wait(self) -> None:
        self._timer = self._wait_for(self._stop_waiting)
        self._size_bytes = self._ready_bytes = 0
        for some in self._pieces(self._partitions):
            # Whatever comes from this look on wakes the fetch.
            results = [self._look(wanted) for wanted in some]
            if self._errors:
                return
            self._watch(results)
            if self._is_enough():
                return
            await asyncio.sleep(0)
        await self._enough

    def _wake(self, partition: Partition) -> None:
        self._look_again(partition)
        if self._is_enough():
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if not self._enough.done():
            self._enough.set_result(None)

    async def _gather_all(self) -> list[Result]:
        self._size_bytes = self._ready_bytes = 0
        self._errors = False
        results: list[Result] = []
        pace = Pace()
        for some in self._pieces(self._partitions):
            results += [self._look(wanted) for wanted in some]
            await pace.keep()
        return results

    async def _respond_all(self, results: list[Result]) -> FetchResponse:
        if self._is_too_much():
            return self._nothing()
        response = self._response()
        topics: dict[str | bytes, FetchResponse.FetchableTopicResponse] = {}
        pace = Pace()
        for some in self._pieces(results):
            self._add(response, topics, some)
            await pace.keep()
        if self._errors:
            await in_slices(naming_leaders_of_fetch(self._broker, self._ctx, response))
        return response

    def _pieces(self, all_: list[T]) -> Iterator[list[T]]:
        for start in range(0, len(all_), TOGETHER_MAX):
            yield all_[start : start + TOGETHER_MAX]
