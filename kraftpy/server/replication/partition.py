"""One replica at this broker: its role, the append paths, its watermarks, and who waits for them.

`core.replication` decides (who is in sync, what is committed, where to cut); here it is carried
out. Rules that it keeps:

* Batches are opaque (docs/architecture.md, decision 2): checked (CRC-32C, magic, sizes, sequence),
  stamped in place with base offset and leader epoch, appended with one write. They are opened only
  where a topic's configuration demands it (`compression.type`, LogAppendTime, keys on compacted
  topics).
* A replica leads or follows as the committed metadata says, in one leader epoch at a time. An epoch
  that begins here starts at the log end offset, before its first append (docs/rules.md, rule
  5); several changes may be seen as one (rule 20).
* An offset is below the high watermark once it is committed. With `flush.messages=1` this replica's
  own part in that is the fsync: nobody reads what a power cut could take back.
* A wait ends exactly once: with the watermark, or with the error of the event that made it
  pointless (deleted topic, lost leadership, shutdown); rules 13 and 38.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from kraftpy.core.config import TopicConfig
from kraftpy.core.metadata import PartitionState
from kraftpy.core.producers import Duplicate
from kraftpy.core.replication import (
    Following,
    IsrProposal,
    Leadership,
    Truncation,
    check_leader_epoch,
    divergence,
)
from kraftpy.core.transactions.admission import Admission, Ask, Token
from kraftpy.metrics.instruments import TIMED_EVERY, TopicNumbers
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import NO_TIMESTAMP, TRANSACTIONAL_BIT
from kraftpy.protocol.records import BatchHeader, read_batch_header, split_batches, stamp_batch
from kraftpy.server.replication.appended import Appended
from kraftpy.server.replication.recent_batches import RecentBatches
from kraftpy.server.replication.record_policy import Door
from kraftpy.server.replication.waiters import FetchWaiters, Waiter, Waiters
from kraftpy.storage.log import Log

if TYPE_CHECKING:
    from kraftpy.server.replication.partition_host import Follower, PartitionHost

logger = logging.getLogger(__name__)


class Partition:
    """A replica of a partition.

    `log` holds its data; `config` is the topic's resolved configuration; offsets below
    `high_watermark` are committed. `leadership` is there while it leads, `following` while it
    follows; neither is while nobody leads. `in_sync`: the follower is in the ISR. `fetches` are
    woken whenever more can be read, and when it is closed. `admission` is of this leadership.
    """

    __slots__ = (
        "_commit_waiters",
        "_counted",
        "_deletion_waiters",
        "_door",
        "_flush_to",
        "_flush_waiters",
        "_followers",
        "_host",
        "_resigned_from",
        "_timed",
        "_untimed",
        "admission",
        "closed",
        "config",
        "fetches",
        "following",
        "high_watermark",
        "in_sync",
        "index",
        "leader_epoch",
        "leadership",
        "log",
        "numbers",
        "recent",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        *,
        host: PartitionHost[Partition],
        log: Log,
        config: TopicConfig,
        high_watermark: int,
        numbers: TopicNumbers,
    ) -> None:
        self.topic = topic
        self.numbers = numbers
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader_epoch = -1
        self.config, self._door = config, Door(config)
        if config.flush_messages == 1 and log.unflushed_messages:
            # What recovery found in the page cache becomes readable, so it has to be on disk.
            log.flush()
        self.high_watermark = high_watermark
        self.leadership: Leadership | None = None
        self.admission = Admission()
        self.following: Following | None = None
        self._resigned_from: Leadership | None = None
        self.in_sync = False
        self.closed = False
        self._host = host
        self._timed = self._untimed = 0  # appends that were timed, and those until one is again
        self._counted = (0, 0, 0)  # what `numbers` know of `_appended_so_far`
        self._flush_to = 0  # everything below has been flushed or is about to be
        self._commit_waiters = Waiters()
        self._deletion_waiters = Waiters()
        self._flush_waiters = Waiters()
        self.fetches: FetchWaiters[Partition] = FetchWaiters()
        self._followers: list[Follower] = []
        self.recent = RecentBatches()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # -- roles

    def lead(self, state: PartitionState) -> None:
        """Leads in the state's epoch, or takes note of what changed in it. Raises KafkaError."""
        now_ms = self._host.monotonic_ms()
        min_isr = min(self.config.min_insync_replicas, len(state.replicas))
        leadership = self.leadership
        if leadership is not None and leadership.leader_epoch == state.leader_epoch:
            if leadership.update(state, min_isr, self.log.log_end_offset, now_ms):
                self._advanced(leadership.high_watermark)
            if leadership.expansion_due:
                self._host.isr_may_grow(self)
            self.look_at_low_watermark()
            return
        former, self._resigned_from = self._resigned_from, None
        self._end_role()
        # Before the epoch's first append (docs/rules.md, rule 5).
        self.log.assign_leader_epoch(state.leader_epoch)
        self.leader_epoch = state.leader_epoch
        self._counted = self._appended_so_far()
        self._flush_to = self.log.recovery_point  # what an earlier role asked for may be cut off
        self.leadership = Leadership(
            self._host.node_id,
            state,
            epoch_start_offset=self.log.log_end_offset,
            high_watermark=self.high_watermark,
            min_isr=min_isr,
            lag_max_ms=self._host.lag_max_ms,
            active=self._host.active_brokers,
            now_ms=now_ms,
            former=former,
        )
        self.admission = Admission()
        self._own_records_count()

    def follow(self, state: PartitionState) -> bool:
        """Follows in the state's epoch, or nobody if it has no leader; whether that is new."""
        self.in_sync = self._host.node_id in state.isr
        following = self.following
        if following is not None and (following.leader, following.leader_epoch) == (
            state.leader,
            state.leader_epoch,
        ):
            return False
        self._end_role()
        self.leader_epoch = state.leader_epoch
        if state.leader >= 0:
            self.following = Following(state, self.log, self.high_watermark)
            self._set_high_watermark(self.following.high_watermark)
        return True

    def resign(self) -> None:
        """Neither leads nor follows, until it is told again."""
        leadership = self.leadership
        self._end_role()
        self._resigned_from = leadership

    def _end_role(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Nothing that waited for the old role is left waiting (rule 13)."""
        self.count_received()
        self.leadership = self.following = self._resigned_from = None
        self._fail_waiters(error)

    def _fail_waiters(self, error: ErrorCode) -> None:
        self._commit_waiters.fail(error)
        self._deletion_waiters.fail(error)
        self._flush_waiters.fail(error)
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.failed(error)
        self.fetches.wake(self)

    def count_received(self) -> None:
        """Has `numbers` count what was appended as leader since the last call; no append does."""
        if self.leadership is None or (now := self._appended_so_far()) == self._counted:
            return
        self.numbers.count_received(*map(operator.sub, now, self._counted))
        self._counted = now

    def _appended_so_far(self) -> tuple[int, int, int]:
        """Batches as leader; records (by their offsets) and bytes of the log."""
        batches = TIMED_EVERY * self._timed - self._untimed
        return batches, self.log.log_end_offset, self.log.appended_bytes

    # -- writing

    def append(
        self,
        records: memoryview,
        now_ms: int,
        *,
        from_client: bool = True,
        conforms: bool = False,
        allow_zstd: bool = True,
        named: bool = False,
        token: Token | None = None,
        ask: Ask | None = None,
    ) -> Appended:
        """Appends one record batch as leader.

        `records`: a writable view of exactly one magic-2 batch; its header is stamped in place.
        `conforms`: it was held against the topic's rules. `allow_zstd`: its client knows it
        (KIP-110). `named`, `token`, `ask` are for `Admission.check`. Raises what that does,
        TakesLong for what has to be opened elsewhere, DecodeError for an unsound batch, KafkaError:
        MESSAGE_TOO_LARGE, INVALID_*, UNSUPPORTED_COMPRESSION_TYPE, sequence and storage errors.
        """
        log = self.log
        if from_client:
            batches = split_batches(records)
            if len(batches) != 1:
                raise KafkaError(ErrorCode.INVALID_RECORD, "a partition takes exactly one batch")
            header = batches[0][1]
            if header.attributes & TRANSACTIONAL_BIT and header.producer_id >= 0:
                self.admission.check(header, log.producers, log.uptime_ms(), named, token, ask)
            records, batches = self._door.take(
                records, batches, now_ms, conforms=conforms, allow_zstd=allow_zstd
            )
        else:
            # Made here just now: sound, but as large as a client's request made it.
            batches = [(0, read_batch_header(records))]
            self._door.check_size(batches[0][1])
        header = batches[0][1]
        if self.leadership is None:  # it may have ended while the batch was opened elsewhere
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if header.producer_id >= 0:
            duplicate = log.producers.check(header, log.uptime_ms())
            if duplicate is not None:
                return self._already_appended(duplicate)
        base_offset = log.log_end_offset
        stamp_batch(records, 0, base_offset, self.leader_epoch)
        header.base_offset = base_offset
        header.partition_leader_epoch = self.leader_epoch
        if untimed := self._untimed:
            log.append(records, batches)
            self._untimed = untimed - 1
        else:
            started_s = perf_counter()
            log.append(records, batches)
            self.numbers.appends.observe(perf_counter() - started_s)
            self._untimed, self._timed = TIMED_EVERY - 1, self._timed + 1
        return self._appended(header, base_offset)

    def append_markers(self, records: memoryview, batches: list[tuple[int, BatchHeader]]) -> None:
        """Appends control batches that were checked, in one write. Raises KafkaError."""
        self.log.append(records, batches)
        count = self._appended_so_far()[0] + len(batches)
        self._timed = -(-count // TIMED_EVERY)
        self._untimed = TIMED_EVERY * self._timed - count
        self._appended(batches[-1][1], batches[0][1].base_offset)

    def _appended(self, header: BatchHeader, base_offset: int) -> Appended:
        log, config, leadership = self.log, self.config, self.leadership
        assert leadership is not None
        end_offset = log.log_end_offset
        flush_pending = log.unflushed_messages >= config.flush_messages
        if flush_pending:
            self._flush_to = end_offset
            self._host.flusher.request(log, end_offset, self._flushed)
        if config.flush_messages > 1 and leadership.advance(end_offset):
            self._advanced(leadership.high_watermark)
        for follower in self._followers:
            follower.appended()
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
        if self.leadership is not None:
            self._own_records_count()
        self._flush_waiters.advance(flushed_offset)

    def _own_records_count(self) -> None:
        """Takes this replica's part in committing to where its log is, or is on disk."""
        leadership, log = self.leadership, self.log
        assert leadership is not None
        end_offset = log.log_end_offset
        if self.config.flush_messages == 1 and log.recovery_point < end_offset:
            self._flush_to = end_offset
            self._host.flusher.request(log, end_offset, self._flushed)
            end_offset = log.recovery_point
        if leadership.advance(end_offset):
            self._advanced(leadership.high_watermark)

    def _advanced(self, watermark: int) -> None:
        self._set_high_watermark(watermark)
        self._commit_waiters.advance(watermark)
        for follower in self._followers:
            follower.moved()

    def _set_high_watermark(self, watermark: int) -> None:
        self.high_watermark = watermark
        self.log.producers.advance_high_watermark(watermark)
        if self.fetches.waiting:
            self.fetches.wake_soon(self, self._host.loop)

    def when_flushed(self, offset: int, waiter: Waiter) -> None:
        """Calls `waiter` once everything below `offset` is on disk, or with an error."""
        if self.leadership is None:
            waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.recovery_point >= offset:
            waiter(ErrorCode.NONE)
        else:
            self._flush_waiters.add(offset, waiter)

    def when_committed(self, offset: int, waiter: Waiter) -> None:
        """Calls `waiter` once the high watermark reaches `offset`, or with an error."""
        if self.leadership is None:
            waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.high_watermark >= offset:
            waiter(ErrorCode.NONE)
        else:
            self._commit_waiters.add(offset, waiter)

    @property
    def acks_all_error(self) -> ErrorCode:
        """Why an append with acks=all can't be taken now; NONE if it can."""
        leadership = self.leadership
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if leadership is None else leadership.acks_all_error

    @property
    def timeout_error(self) -> ErrorCode:
        """What an append is told that waited too long for the watermark."""
        leadership = self.leadership
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if leadership is None else leadership.timeout_error

    # -- reading

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark (KIP-98)."""
        return self.log.producers.last_stable_offset(self.high_watermark)

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """KIP-320: a client with older metadata is fenced, one with newer must wait."""
        return check_leader_epoch(current_leader_epoch, self.leader_epoch)

    def divergence(self, offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Where a log that was fetched up to `offset` parts from this one: (epoch, end offset).

        None if it doesn't. Raises OFFSET_OUT_OF_RANGE when that isn't known any more.
        """
        return divergence(self.log, offset, last_fetched_epoch)

    def check_settled(self) -> None:
        """Raises OFFSET_NOT_AVAILABLE while a new leader doesn't know what is committed."""
        if self.leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not self.leadership.settled:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)

    # -- as leader: the followers

    def add_follower(self, follower: Follower) -> None:
        """`follower` is told of appends, watermarks, and the end of the leadership."""
        self._followers.append(follower)

    def remove_follower(self, follower: Follower) -> None:
        if follower in self._followers:
            self._followers.remove(follower)

    def check_fetch(self, replica_id: int, broker_epoch: int, leader_epoch: int) -> None:
        """Raises KafkaError if this is no fetch of a follower in this epoch."""
        leadership = self.leadership
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if leadership is not None:
            error = leadership.check_fetch(replica_id, broker_epoch, leader_epoch)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

    def fetched(
        self,
        replica_id: int,
        broker_epoch: int,
        fetch_offset: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        """A follower has everything below `fetch_offset`; `check_fetch` and `divergence` passed."""
        leadership = self.leadership
        assert leadership is not None
        if leadership.fetched(
            replica_id,
            broker_epoch,
            fetch_offset,
            log_start_offset,
            self.log.log_end_offset,
            now_ms,
        ):
            self._advanced(leadership.high_watermark)
        if leadership.expansion_due:
            self._host.isr_may_grow(self)
        self.look_at_low_watermark()

    def propose_isr(self, now_ms: int) -> IsrProposal | None:
        """The change of the ISR that is due; see `Leadership.propose`."""
        leadership = self.leadership
        if leadership is None:
            return None
        for follower in self._followers:
            leadership.caught_up(follower.replica_id, follower.caught_up_ms)
        moved, proposal = leadership.propose(now_ms, self.log.log_end_offset)
        if moved:
            self._advanced(leadership.high_watermark)
        return proposal

    def delete_records_before(self, offset: int) -> None:
        """Moves the log start to `offset`, durably, and tells the followers. Raises KafkaError."""
        self.log.delete_records_before(offset)
        for follower in list(self._followers):  # whoever is answered may leave
            follower.moved(at_once=True)

    @property
    def low_watermark(self) -> int:
        """Below which offset no replica that is up has records; -1 while that isn't known."""
        start = self.log.log_start_offset
        return start if self.leadership is None else self.leadership.low_watermark(start)

    def when_deleted(self, offset: int, waiter: Waiter) -> None:
        """Calls `waiter` once the low watermark reaches `offset`, or with an error."""
        if self.leadership is None:
            waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._deletion_waiters.add(offset, waiter)
            self.look_at_low_watermark()

    def look_at_low_watermark(self) -> None:
        """A follower's log start, or who follows and is up, may be another one than before."""
        if self._deletion_waiters:
            self._deletion_waiters.advance(self.low_watermark)

    def may_take_in(self, node_id: int) -> bool:
        """Whether this broker leads, and that one is a replica that isn't in sync."""
        leadership = self.leadership
        if leadership is None or node_id in leadership.isr:
            return False
        return node_id in leadership.state.replicas

    def isr_answered(self, proposal: IsrProposal, error: ErrorCode, now_ms: int) -> None:
        """The quorum's verdict on what `propose_isr` gave."""
        if self.leadership is not None:
            self.leadership.answered(proposal, error, now_ms)

    def isr_unanswered(self, proposal: IsrProposal, now_ms: int) -> None:
        """Nobody knows what became of what `propose_isr` gave."""
        if self.leadership is not None:
            self.leadership.unanswered(proposal, now_ms)

    def is_throttled_for(self, replica_id: int) -> bool:
        """Whether what the follower is sent counts for the leader's throttle (KIP-73)."""
        throttled = self.config.leader_replication_throttled_replicas
        return throttled.includes(self.index, self._host.node_id) and (
            self.leadership is None or replica_id not in self.leadership.isr
        )

    # -- as follower: the leader's records

    @property
    def is_throttled(self) -> bool:
        """Whether what this follower fetches counts for its throttle (KIP-73)."""
        throttled = self.config.follower_replication_throttled_replicas
        return throttled.includes(self.index, self._host.node_id) and not self.in_sync

    def fetch_position(self) -> tuple[int, int]:
        """(fetch offset, last fetched epoch) of the next fetch from the leader."""
        assert self.following is not None
        return self.following.fetch_position(self.log)

    def accepts(self, leader_epoch: int, offset: int) -> bool:
        """Whether the answer to a fetch in this epoch and from this offset may be used."""
        return self.following is not None and self.following.accepts(self.log, leader_epoch, offset)

    def append_as_follower(
        self, records: memoryview | None, high_watermark: int, log_start_offset: int
    ) -> int:
        """Takes over what the leader sent, byte for byte; returns how many bytes of records.

        Raises DecodeError for what are no sound batches, KafkaError.
        """
        log, following = self.log, self.following
        assert following is not None
        size_bytes = 0
        if records:
            if log.log_end_offset == log.log_start_offset:
                # The leader's log may start inside a batch (DeleteRecords); it sends all of it.
                base_offset = read_batch_header(records, 0).base_offset
                if base_offset < log.log_end_offset:
                    log.truncate_fully_and_start_at(base_offset)
            size_bytes = log.append_as_follower(records, self.leader_epoch)
        if following.appended(log, high_watermark):
            self._set_high_watermark(following.high_watermark)
        log.advance_log_start(following.log_start(log, log_start_offset))
        return size_bytes

    def flush_after(self, flushed: Callable[[int], None]) -> bool:
        """Flushes what the policy wants on disk; whether `flushed` is called when that is done.

        If not, what was appended may be acknowledged at once.
        """
        log = self.log
        if not log.unflushed_messages or log.unflushed_messages < self.config.flush_messages:
            return False
        wait = self.config.flush_messages == 1
        self._host.flusher.request(log, log.log_end_offset, flushed if wait else None)
        return wait

    def cut_divergence(self, epoch: int, end_offset: int, leader_start_offset: int) -> None:
        """The leader's log parts from this one at (epoch, end offset). Raises KafkaError."""
        assert self.following is not None
        truncation = self.following.truncation(self.log, epoch, end_offset, leader_start_offset)
        if truncation is not None:
            self._cut(truncation)

    def restart(self, leader_start_offset: int, leader_end_offset: int) -> bool:
        """What was asked for lies outside of the leader's log; whether anything had to be cut.

        Raises KafkaError.
        """
        assert self.following is not None
        truncation = self.following.restart(self.log, leader_start_offset, leader_end_offset)
        if truncation is not None:
            self._cut(truncation)
        return truncation is not None

    def _cut(self, truncation: Truncation) -> None:
        following = self.following
        assert following is not None
        if truncation.offset < self.high_watermark:
            logger.warning(
                "%s is cut to offset %d, below its high watermark %d, as its leader %d has it",
                self,
                truncation.offset,
                self.high_watermark,
                following.leader,
            )
        if truncation.fully:
            self.log.truncate_fully_and_start_at(truncation.offset)
        else:
            self.log.truncate_to(truncation.offset)
        following.truncated(self.log)
        self._set_high_watermark(following.high_watermark)

    # -- changes

    def update_config(self, config: TopicConfig) -> None:
        """Takes a changed configuration of the topic."""
        self.config, self._door = config, Door(config)
        self.log.update_config(config)
        if self.leadership is not None:
            self.lead(self.leadership.state)
            self._own_records_count()

    def close(self, error: ErrorCode) -> None:
        """Ends every wait with `error`; the partition takes no further request."""
        self.closed = True
        self._end_role(error)
