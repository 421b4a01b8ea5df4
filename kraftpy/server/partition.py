"""One partition at this broker: the leader's append path, its watermarks, and who waits for them.

Rules that it keeps:

* Batches are opaque (architecture.md decision 2): checked (CRC-32C, magic, sizes, sequence),
  stamped in place with base offset and leader epoch, appended with one write. They are opened only
  where a topic's configuration demands it (`compression.type`, LogAppendTime, keys on compacted
  topics).
* An offset is below the high watermark once it is committed. With `flush.messages=1` that includes
  the fsync: nobody reads what a power cut could take back.
* A wait ends exactly once: with the watermark, or with the error of the event that made it
  pointless (deleted topic, lost leadership, shutdown); consistency.md §3.5 rules 13 and 38.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kraftpy.core.config import TopicConfig
from kraftpy.core.producers import Duplicate
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import BatchHeader, split_batches, stamp_batch
from kraftpy.server.record_policy import check_limits, conform, needs_conform
from kraftpy.storage.flusher import Flusher
from kraftpy.storage.log import Log
from kraftpy.storage.readable_log import ReadResult

Waiter = Callable[[ErrorCode], None]
FetchWaiter = Callable[["Partition"], None]

NO_TIMESTAMP = -1


class Appended:
    """Where a batch went; `flush_pending`: the flush policy wants it on disk before the answer."""

    __slots__ = ("base_offset", "end_offset", "flush_pending", "log_append_time_ms")

    def __init__(
        self, base_offset: int, end_offset: int, log_append_time_ms: int, flush_pending: bool
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.log_append_time_ms = log_append_time_ms
        self.flush_pending = flush_pending


class _Waiters:
    """Callbacks by the offset that a watermark must reach; offsets mostly come in order."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[int, Waiter]] = deque()

    def add(self, offset: int, waiter: Waiter) -> None:
        self._queue.append((offset, waiter))

    def advance(self, watermark: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= watermark:
            queue.popleft()[1](ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        queue, self._queue = self._queue, deque()
        for _, waiter in queue:
            waiter(error)


class Partition:
    """A partition that this broker leads.

    `log` holds its data; `config` is the topic's resolved configuration; offsets below
    `high_watermark` are committed.
    """

    __slots__ = (
        "_commit_waiters",
        "_fetch_waiters",
        "_flush_to",
        "_flush_waiters",
        "_flusher",
        "_loop",
        "_wake_scheduled",
        "closed",
        "config",
        "high_watermark",
        "index",
        "leader_epoch",
        "log",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        *,
        log: Log,
        config: TopicConfig,
        flusher: Flusher,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader_epoch = -1
        self.config = config
        if config.flush_messages == 1 and log.unflushed_messages:
            # What recovery found in the page cache becomes readable, so it has to be on disk.
            log.flush()
        self.high_watermark = log.log_end_offset
        self.closed = False
        self._flush_to = 0  # everything below has been flushed or is about to be
        self._flusher = flusher
        self._loop = loop
        self._commit_waiters = _Waiters()
        self._flush_waiters = _Waiters()
        self._fetch_waiters: dict[FetchWaiter, None] = {}
        self._wake_scheduled = False

    # -- writing

    def append(
        self,
        records: memoryview,
        now_ms: int,
        *,
        from_client: bool = True,
        allow_zstd: bool = True,
    ) -> Appended:
        """Appends one record batch as leader.

        `records`: a writable view of exactly one magic-2 batch; its first 21 bytes are stamped in
        place. `allow_zstd`: whether the client's Produce version knows zstd (KIP-110). Raises
        DecodeError for bytes that aren't a sound batch, and KafkaError: MESSAGE_TOO_LARGE,
        INVALID_RECORD, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, the sequence errors of
        KIP-98, KAFKA_STORAGE_ERROR.
        """
        batches = split_batches(records)
        if len(batches) != 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a partition takes exactly one record batch")
        header = batches[0][1]
        config, log = self.config, self.log
        if from_client:
            check_limits(header, config, now_ms)
            if not allow_zstd and header.compression == "zstd":
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this Produce version has no zstd"
                )
            if needs_conform(config, header):
                records = conform(records, config, now_ms)
                batches = split_batches(records)
                header = batches[0][1]
        if header.producer_id >= 0:
            duplicate = log.producers.check(header, now_ms)
            if duplicate is not None:
                return self._already_appended(duplicate)
        base_offset = log.log_end_offset
        stamp_batch(records, 0, base_offset, self.leader_epoch)
        header.base_offset = base_offset
        header.partition_leader_epoch = self.leader_epoch
        log.append(records, batches)
        return self._appended(header, base_offset)

    def _appended(self, header: BatchHeader, base_offset: int) -> Appended:
        log, config = self.log, self.config
        end_offset = log.log_end_offset
        flush_pending = log.unflushed_messages >= config.flush_messages
        if flush_pending:
            self._flush_to = end_offset
            self._flusher.request(log, end_offset, self._flushed)
        if config.flush_messages > 1:
            self._advance(end_offset)
        log_append_time_ms = header.max_timestamp if header.timestamp_type else NO_TIMESTAMP
        return Appended(base_offset, end_offset, log_append_time_ms, flush_pending)

    def _already_appended(self, duplicate: Duplicate) -> Appended:
        """A retry is acknowledged like the first try: not before its batch is as durable."""
        end_offset = duplicate.last_offset + 1
        flush_pending = self.log.recovery_point < end_offset <= self._flush_to
        append_time = self.config.message_timestamp_type == "LogAppendTime"
        log_append_time_ms = duplicate.timestamp if append_time else NO_TIMESTAMP
        return Appended(duplicate.base_offset, end_offset, log_append_time_ms, flush_pending)

    def _flushed(self, flushed_offset: int) -> None:
        """The flusher's callback, on the event loop: everything below the offset is on disk."""
        if self.closed:
            return
        if flushed_offset > self.high_watermark:
            self._advance(flushed_offset)
        self._flush_waiters.advance(flushed_offset)

    def _advance(self, watermark: int) -> None:
        self.high_watermark = watermark
        self.log.producers.advance_high_watermark(watermark)
        self._commit_waiters.advance(watermark)
        if self._fetch_waiters and not self._wake_scheduled:
            # After the producer's answer left: waking consumers is not on its account.
            self._wake_scheduled = True
            self._loop.call_soon(self.wake_fetches)

    def when_flushed(self, offset: int, waiter: Waiter) -> None:
        """Calls `waiter` once everything below `offset` is on disk, or with an error."""
        if self.closed:
            waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.recovery_point >= offset:
            waiter(ErrorCode.NONE)
        else:
            self._flush_waiters.add(offset, waiter)

    def when_committed(self, offset: int, waiter: Waiter) -> None:
        """Calls `waiter` once the high watermark reaches `offset`, or with an error."""
        if self.closed:
            waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.high_watermark >= offset:
            waiter(ErrorCode.NONE)
        else:
            self._commit_waiters.add(offset, waiter)

    # -- reading

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark (KIP-98)."""
        return self.log.producers.last_stable_offset(self.high_watermark)

    def read(self, offset: int, max_bytes: int, *, upper_offset: int, min_one: bool) -> ReadResult:
        """Slices of whole batches from `offset`; OFFSET_OUT_OF_RANGE beyond what is readable."""
        return self.log.read(offset, max_bytes, upper_offset=upper_offset, min_one=min_one)

    def add_fetch_waiter(self, wake: FetchWaiter) -> None:
        """`wake(self)` is called whenever more became readable or the partition closed."""
        self._fetch_waiters[wake] = None

    def remove_fetch_waiter(self, wake: FetchWaiter) -> None:
        self._fetch_waiters.pop(wake, None)

    def wake_fetches(self) -> None:
        """Has every waiting fetch look again."""
        self._wake_scheduled = False
        for wake in list(self._fetch_waiters):
            wake(self)

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """KIP-320: a client with older metadata is fenced, one with newer must wait."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    # -- changes

    def lead(self, leader_epoch: int) -> None:
        """Leads from this epoch on; it starts at the log end offset (KIP-101)."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.log.assign_leader_epoch(leader_epoch)

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.log.update_config(config)
        if config.flush_messages > 1:
            self._advance(self.log.log_end_offset)

    def close(self, error: ErrorCode) -> None:
        """Ends every wait with `error`; the partition takes no further request."""
        self.closed = True
        self._commit_waiters.fail(error)
        self._flush_waiters.fail(error)
        self.wake_fetches()
