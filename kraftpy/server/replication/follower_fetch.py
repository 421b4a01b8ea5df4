"""Fetch as follower brokers send it (KIP-227, KIP-320, KIP-595's diverging epochs, KIP-903).

What a follower asks for is also what it has: its fetch offsets move the leader's view of it, hence
the high watermark and the ISR. That comes first, so that producers are answered before anything
else is done with the request.

Rules: followers read up to the log end offset; the epoch that they fetch in must be the leader's
(docs/rules.md, rules 4 and 8); one whose last epoch ends elsewhere here is told where instead
of getting records or watermarks. A partition that can't be fetched is answered with its error and
leaves the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import KEY_RANGES_TAG
from kraftpy.protocol.messages import FetchRequest, FetchResponse
from kraftpy.server.network.prompt_future import PromptFuture
from kraftpy.server.replication.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from kraftpy.server.replication.follower_sessions import (
    FollowedPartition,
    FollowerSession,
    FollowerSessions,
)

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState
    from kraftpy.server.network.dispatch import RequestContext
    from kraftpy.server.network.throttle import Throttle
    from kraftpy.server.replication.replicas import ReplicaManager
    from kraftpy.storage.segment import FileSlice

PartitionData = FetchResponse.PartitionData
TopicResponse = FetchResponse.FetchableTopicResponse


class LeaderHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def metadata(self) -> MetadataState: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def follower_sessions(self) -> FollowerSessions: ...
    @property
    def leader_throttle(self) -> Throttle: ...
    @property
    def stopping(self) -> bool: ...
    def monotonic_ms(self) -> int: ...


def fetch_for_follower(
    broker: LeaderHost, ctx: RequestContext, request: FetchRequest
) -> FetchResponse | asyncio.Future[FetchResponse]:
    """Notes how far the follower is, and sends it what it lacks; waits if that's nothing."""
    state = request.replica_state
    if state is None:
        # Versions before 15 don't say which life of the follower it is.
        return FetchResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    replica_id, broker_epoch = state.replica_id, state.replica_epoch
    try:
        registered = broker.metadata.brokers.get(replica_id)
        # A broker that isn't registered follows nothing, and gets no session that would be kept.
        if registered is None or broker_epoch < registered.epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        session = _session(broker, request, replica_id)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if session.parked is not None:
        session.parked.finish()
    operation = _FollowerFetch(broker, request, session)
    operation.note_progress(request, broker_epoch)
    return operation.start(ctx)


def _session(broker: LeaderHost, request: FetchRequest, replica_id: int) -> FollowerSession:
    sessions = broker.follower_sessions
    if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        return sessions.create(replica_id)
    return sessions.resume(replica_id, request.session_id, request.session_epoch)


class _FollowerFetch:
    """One fetch of a follower."""

    __slots__ = (
        "_broker",
        "_errors",
        "_future",
        "_max_bytes",
        "_session",
        "_wait_ms",
        "_wake_scheduled",
    )

    def __init__(self, broker: LeaderHost, request: FetchRequest, session: FollowerSession) -> None:
        self._broker = broker
        self._session = session
        self._max_bytes = request.max_bytes
        self._wait_ms = request.max_wait_ms
        # What the request named and can't be fetched here.
        self._errors: list[tuple[bytes, FetchResponse.PartitionData]] = []
        self._future: asyncio.Future[FetchResponse] | None = None
        self._wake_scheduled = False

    # -- what the follower has

    def note_progress(self, request: FetchRequest, broker_epoch: int) -> None:
        """Moves the leader's view of every partition that the request names."""
        session, now_ms = self._session, self._broker.monotonic_ms()
        session.heard_ms = now_ms
        for forgotten in request.forgotten_topics_data:
            session.forget((forgotten.topic_id, index) for index in forgotten.partitions)
        for topic in request.topics:
            for wanted in topic.partitions:
                try:
                    self._note(topic.topic_id, wanted, broker_epoch, now_ms)
                except KafkaError as error:
                    session.forget([(topic.topic_id, wanted.partition)])
                    data = PartitionData(wanted.partition, error.code, -1, records=[])
                    self._errors.append((topic.topic_id, data))

    def _note(
        self,
        topic_id: bytes,
        wanted: FetchRequest.FetchPartition,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        if wanted._tags is not None and KEY_RANGES_TAG in wanted._tags:
            raise KafkaError(ErrorCode.INVALID_REQUEST)  # a replica has all records
        session = self._session
        entry = session.followed(topic_id, wanted.partition)
        if entry is None:
            partition = self._broker.replicas.led_by_id(topic_id, wanted.partition)
        else:
            partition = entry.partition
        partition.check_fetch(session.replica_id, broker_epoch, wanted.current_leader_epoch)
        if entry is None:
            entry = session.follow(topic_id, partition)
        if wanted.fetch_offset == entry.sent_offset:
            # What it was sent it could not use: are the records sound?
            entry.sent_offset = -1
            self._broker.replicas.refetched(partition, wanted.fetch_offset, entry.max_bytes)
        entry.offset = wanted.fetch_offset
        entry.last_fetched_epoch = wanted.last_fetched_epoch
        entry.max_bytes = wanted.partition_max_bytes
        entry.due = True
        session.moved[entry] = None
        log = partition.log
        if wanted.fetch_offset != log.log_end_offset:
            session.ready[entry] = None
        try:
            if partition.divergence(wanted.fetch_offset, wanted.last_fetched_epoch) is not None:
                session.ready[entry] = None
                return
        except KafkaError:
            session.ready[entry] = None
            return
        if log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            partition.fetched(
                session.replica_id,
                broker_epoch,
                wanted.fetch_offset,
                wanted.log_start_offset,
                now_ms,
            )

    # -- waiting

    def start(self, ctx: RequestContext) -> FetchResponse | asyncio.Future[FetchResponse]:
        """The answer if there is something to say, else the promise of one."""
        response = self._gather(at_once=self._wait_ms <= 0 or self._broker.stopping)
        if response is not None:
            return response
        ctx.may_overlap = True
        ctx.patience_s = ctx.session.patience_s(self._wait_ms, self._broker.loop.time())
        self._future = PromptFuture(loop=self._broker.loop)
        self._session.park(self, self._broker.loop, ctx.patience_s)
        return self._future

    def wake(self) -> None:
        """There is news; it is answered after the other events of this turn of the loop."""
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._broker.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._wake_scheduled = False
        self._answer(at_once=False)

    def finish(self) -> None:
        """Answers with what there is."""
        self._answer(at_once=True)

    def _answer(self, *, at_once: bool) -> None:
        future, session = self._future, self._session
        assert future is not None
        response = None if future.done() else self._gather(at_once=at_once)
        if response is not None or future.done():
            if session.parked is self:
                session.parked = None
            if response is not None:
                future.set_result(response)

    # -- answering

    def _gather(self, *, at_once: bool) -> FetchResponse | None:
        """The answer; None if there is nothing to say that can't wait, unless `at_once`."""
        session = self._session
        if not (session.ready or self._errors or at_once or session.eager):
            return None
        found = list(self._errors)
        size_bytes = 0
        throttle, now_s = self._broker.leader_throttle, self._broker.loop.time()
        for entry in list(session.ready):
            if size_bytes >= self._max_bytes:
                break
            throttled = entry.partition.is_throttled_for(session.replica_id)
            if throttled and throttle.is_exceeded(now_s):
                continue  # looked at again with the next fetch
            data, sent_bytes = self._read(entry, self._max_bytes - size_bytes, not size_bytes)
            if data is not None:
                found.append((entry.topic_id, data))
                size_bytes += sent_bytes
                if throttled:
                    throttle.spend(sent_bytes)
            elif entry in session.ready:
                break  # its next batch doesn't fit any more; it comes first next time
        if not (found or at_once or (session.eager and session.has_moved)):
            return None
        # Watermarks alone say that the logs agree: not before that is known and everything is sent.
        for entry in [each for each in session.moved if each.due and each not in session.ready]:
            del session.moved[entry]
            found.append((entry.topic_id, _watermarks(entry)))
        topics: dict[bytes, FetchResponse.FetchableTopicResponse] = {}
        for topic_id, data in found:
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = TopicResponse(topic_id=topic_id)
            topic.partitions.append(data)
        return FetchResponse(session_id=session.id, responses=list(topics.values()))

    def _read(
        self, entry: FollowedPartition, left_bytes: int, first: bool
    ) -> tuple[FetchResponse.PartitionData | None, int]:
        """What to send of a partition that has news, and how many bytes of records that is."""
        session, partition = self._session, entry.partition
        if entry.error is not ErrorCode.NONE:
            session.drop(entry)
            return PartitionData(entry.index, entry.error, -1, records=[]), 0
        log = partition.log
        data = _watermarks(entry)
        try:
            diverging = partition.divergence(entry.offset, entry.last_fetched_epoch)
            if diverging is not None:
                data.diverging_epoch = FetchResponse.EpochEndOffset(*diverging)
                session.sent(entry)
                return data, 0
            max_bytes = min(entry.max_bytes, left_bytes)
            end_offset = log.log_end_offset
            recent = partition.recent.since(partition.leader_epoch, entry.offset, end_offset)
            if recent and entry.offset >= log.log_start_offset:
                size_bytes = sum(map(len, recent))
                if size_bytes <= max_bytes:
                    return self._send(entry, data, recent, size_bytes)
            result = log.read(entry.offset, max_bytes, upper_offset=end_offset, min_one=first)
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self._broker.replicas.suspect(partition, entry.offset, entry.max_bytes)
            data.error_code = error.code
            # How far the log goes, so that a follower that lies outside of it can start anew.
            data.last_stable_offset = log.log_end_offset
            session.drop(entry)
            return data, 0
        if not result.slices:
            if entry.offset >= end_offset:
                del session.ready[entry]
            return None, 0
        return self._send(entry, data, result.slices, result.size_bytes)

    def _send(
        self,
        entry: FollowedPartition,
        data: FetchResponse.PartitionData,
        records: Sequence[memoryview | FileSlice],
        size_bytes: int,
    ) -> tuple[FetchResponse.PartitionData, int]:
        data.records = records
        entry.sent_offset = entry.offset
        entry.partition.numbers.replicated.sent_bytes += size_bytes
        self._session.sent(entry)
        return data, size_bytes


def _watermarks(entry: FollowedPartition) -> FetchResponse.PartitionData:
    partition = entry.partition
    entry.told_high_watermark = partition.high_watermark
    return PartitionData(
        entry.index,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log.log_start_offset,
        records=[],
    )
