"""The group coordinator of one partition of `__consumer_offsets`, as a deterministic machine.

`core.coordination.machine` is its contract with the shell. Beyond that:

* What groups take is counted in `memory` whenever they may have changed.
* Claims (`individual`) are in a log of their own (`claims_log`).
* What is of share groups alone is in `share.operations`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from kraftpy.core.coordination import PRIMARY
from kraftpy.core.groups.claims_log import CLAIM_TIMERS, ClaimsLogOperations
from kraftpy.core.groups.commits import Commits
from kraftpy.core.groups.config import (
    NO_OWN_TIMES,
    PROTOCOLS_MAX,
    RETRY_MS_MIN,
    ConsumerTimes,
    GroupConfig,
    GroupTimes,
)
from kraftpy.core.groups.consumer.classic_service import ClassicService
from kraftpy.core.groups.consumer.migration import Migration
from kraftpy.core.groups.consumer.offset_rules import check_fetch
from kraftpy.core.groups.consumer.service import MEMBER_TIMERS, ConsumerGroups
from kraftpy.core.groups.consumer.topics import PartitionsOf, Topics
from kraftpy.core.groups.describing import CLASSIC_GROUP_TYPE, CONSUMER_GROUP_TYPE, KnownGroups
from kraftpy.core.groups.effects import Effects, Outbox, Write
from kraftpy.core.groups.group import Group, GroupState
from kraftpy.core.groups.individual.commits import Claims
from kraftpy.core.groups.individual.memory import ClaimMemory
from kraftpy.core.groups.individual.places import TWIN, ClaimsLog
from kraftpy.core.groups.individual.plan import Key
from kraftpy.core.groups.membership import Client, Membership
from kraftpy.core.groups.memory import GroupMemory, MachineMemory
from kraftpy.core.groups.offset_runs import OffsetRun, OffsetRuns
from kraftpy.core.groups.offsets import OffsetMap, OffsetRow
from kraftpy.core.groups.pending_offsets import (
    PendingOffsets,
    TransactionalOffsets,
    TransactionEnds,
)
from kraftpy.core.groups.rebalance import Rebalance
from kraftpy.core.groups.records import CoordinatorRecord, GroupRecord, OffsetRecord
from kraftpy.core.groups.share.offsets import ShareOffsets
from kraftpy.core.groups.share.operations import ShareOperations
from kraftpy.core.groups.share.records import SHARE_RECORDS
from kraftpy.core.groups.share.service import SHARE_TIMERS, ShareGroups
from kraftpy.core.groups.timers import Timer, TimerQueue
from kraftpy.core.groups.transactions import TransactionalCommits
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

log = logging.getLogger(__name__)

DescribedConsumerGroup = ConsumerGroupDescribeResponse.DescribedGroup


class GroupMachine(ClaimsLogOperations, ShareOperations, KnownGroups):
    """Groups and committed offsets; see the module for how to drive it.

    `offsets` and `pending` are for reading: only committed records change them. `own_times` has
    those of consumer groups that differ from `config`, `share_times` those of share groups; both
    may change.
    """

    def __init__(
        self,
        config: GroupConfig,
        topics: Topics,
        memory: GroupMemory,
        own_times: Mapping[str, ConsumerTimes] = NO_OWN_TIMES,
        claim_memory: ClaimMemory | None = None,
        share_times: Mapping[str, ConsumerTimes] = NO_OWN_TIMES,
    ) -> None:
        self._config = config
        self._memory = MachineMemory(memory)
        self._topics = topics
        self._groups: dict[str, Group] = {}
        self.offsets = OffsetMap()
        self.pending = PendingOffsets()
        self._timers = TimerQueue()
        self._out = Outbox()
        self._rebalance = Rebalance(config, self._groups, self._timers, self._out)
        self._membership = Membership(
            config, self._groups, self._timers, self._out, self._rebalance, self._memory
        )
        times = GroupTimes(config, own_times)
        migration = Migration(config, times, self._groups, self._rebalance, topics)
        self._consumers = ConsumerGroups(
            config, times, self._groups, migration, self._timers, self._out, self._memory
        )
        self._classic_service = ClassicService(
            topics, self._consumers, migration, self._membership, self._out
        )
        shares = ShareGroups(
            config,
            share_times,
            topics,
            self._is_no_share_group,
            self._timers,
            self._out,
            self._memory,
        )
        share_offsets = ShareOffsets(shares, topics, self._out)
        ShareOperations.__init__(self, shares, share_offsets, self._out)
        claim_memory = claim_memory or ClaimMemory(config.individual_commit_max_bytes)
        ranges_max = config.individual_commit_max_ranges
        self.claims = Claims(self.offsets, self._out, claim_memory, ranges_max, self._timers)
        self._commits = Commits(
            config,
            self._groups,
            self.offsets,
            self.pending,
            self._rebalance,
            self._consumers,
            self._out,
            self.claims,
        )
        KnownGroups.__init__(
            self, self._groups, self._consumers.groups, shares.groups, self.offsets, self.pending
        )
        self._transactions = TransactionalCommits(
            config,
            self._groups,
            self.offsets,
            self.pending,
            self._consumers,
            self._out,
            self._memory,
            self.claims,
            self._commits.shares,
            self._timers,
        )
        waiting = self._transactions.waiting
        ClaimsLogOperations.__init__(self, self.claims, waiting, topics, self._out, self._settle)

    def _is_no_share_group(self, group_id: str) -> bool:
        """Whether the id is that of another kind of group, or is about to be."""
        return (
            group_id in self._groups
            or self._consumers.holds(group_id)
            or group_id in self.offsets
            or group_id in self.pending
            or (bool(self._out.in_flight(group_id)) and not self._shares.holds(group_id))
        )

    # -- loading

    def load(self, record: CoordinatorRecord) -> None:
        """Takes in one record of the log, oldest first."""
        if isinstance(record, OffsetRecord):
            self._replay_offset(record)
            self._overtaken(record.group_id, record.topic, (record.partition,))
        elif isinstance(record, SHARE_RECORDS):
            self._shares.load(record)
        elif not isinstance(record, GroupRecord):
            self._consumers.load(record)
        elif record.snapshot is None:
            self._groups.pop(record.group_id, None)
        else:
            self._groups[record.group_id] = Group.from_snapshot(record.group_id, record.snapshot)

    def load_offsets(self, run: OffsetRun) -> None:
        """The same for many committed offsets at once."""
        self.offsets.put_run(run)
        if len(self.pending) and run.group_id in self.pending:
            self._overtaken(run.group_id, run.topic, run.partitions)

    def load_pending(self, producer_id: int, record: OffsetRecord) -> None:
        """Takes in an offset, no tombstone, that a producer committed in a transaction."""
        self.pending.put(producer_id, record)

    def load_marker(self, producer_id: int, *, committed: bool) -> None:
        """Takes in that the producer's transaction has ended."""
        self._transactions.replay(TransactionEnds([(producer_id, committed)]))

    def _overtaken(self, group_id: str, topic: str, partitions: Iterable[int]) -> None:
        """What is pending here is older than what the log has now."""
        if group_id in self.pending:
            for partition in partitions:
                self.pending.drop(group_id, topic, partition)
            self._account(group_id)

    def finish_load(self, now_ms: int) -> Effects:
        """The whole log has been read: the machine takes requests from here on."""
        for group_id in self._groups.keys() & self._consumers.groups.keys():
            # Only a record that could not be read leaves both behind. The end of a consumer group
            # takes its epoch away.
            is_classic = self._consumers.groups[group_id].group_epoch is None
            log.error(
                "group %r: the log has a classic and a consumer group; it is taken for a %s one",
                group_id,
                CLASSIC_GROUP_TYPE if is_classic else CONSUMER_GROUP_TYPE,
            )
            if is_classic:
                del self._consumers.groups[group_id]
            else:
                del self._groups[group_id]
        for group in list(self._groups.values()):
            self._rebalance.loaded(group, now_ms)
        self._consumers.finish_load(now_ms)
        self._shares.finish_load(now_ms)
        named = self._groups, self._consumers.groups, self._shares.groups
        self._account(*{group_id for of in named for group_id in of}, *self.pending.group_ids())
        return self._out.take()

    # -- requests

    def join(
        self, token: object, request: JoinGroupRequest, client: Client, uuid: str, now_ms: int
    ) -> Effects:
        """JoinGroup 0-9; `uuid` is a random one in case that a member id is due."""
        if len(request.protocols) > PROTOCOLS_MAX:
            self._out.reply(token, JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
            return self._out.take()
        if self._refuses(token, request):
            return self._out.take()
        if self._consumers.holds(request.group_id):
            self._classic_service.join(token, request, client, uuid, now_ms)
        else:
            self._membership.join(token, request, client, uuid, now_ms)
        self._account(request.group_id)
        return self._out.take()

    def abandon(self, group_id: str, member_id: str, token: object, now_ms: int) -> Effects:
        """The connection of a parked JoinGroup has ended, which `token` was to answer."""
        self._membership.abandon(group_id, member_id, token, now_ms)
        self._account(group_id)
        return self._out.take()

    def sync(self, token: object, request: SyncGroupRequest, now_ms: int) -> Effects:
        """SyncGroup 0-5."""
        if self._consumers.holds(request.group_id):
            self._classic_service.sync(token, request, now_ms)
        else:
            self._membership.sync(token, request, now_ms)
        return self._out.take()

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat 0-4, answered at once; it never has effects."""
        if request.group_id in self._consumers.groups:
            return self._classic_service.heartbeat(request, now_ms)
        return self._membership.heartbeat(request, now_ms)

    def leave(self, token: object, request: LeaveGroupRequest, now_ms: int) -> Effects:
        """LeaveGroup in the batched form of version 3-5."""
        if self._consumers.holds(request.group_id):
            self._classic_service.leave(token, request, now_ms)
        else:
            self._out.reply(token, self._membership.leave(request, now_ms))
        self._account(request.group_id)
        return self._out.take()

    def consumer_heartbeat(
        self,
        token: object,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        uuid: str,
        now_ms: int,
    ) -> Effects:
        """ConsumerGroupHeartbeat 0-1; `uuid` is a random one in case that a member id is due."""
        if not self._refuses(token, request):
            self._consumers.heartbeat(token, request, client, uuid, self._topics, now_ms)
        return self._out.take()

    def consumer_describe(self, group_id: str) -> DescribedConsumerGroup:
        """ConsumerGroupDescribe 0-1 of one group."""
        return self._consumers.describe(group_id, self._topics)

    def commit(
        self,
        token: object,
        request: OffsetCommitRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
        *,
        api_version: int = 8,
    ) -> Effects:
        """OffsetCommit 0-10; `partitions_of(topic)` has the indexes of a topic's partitions."""
        if not self._refuses(token, request):
            self._commits.commit(token, request, partitions_of, now_ms, api_version, self._topics)
        return self._out.take()

    def commit_in_transaction(
        self,
        token: object,
        request: TxnOffsetCommitRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
        *,
        api_version: int = 5,
    ) -> Effects:
        """TxnOffsetCommit 0-5, of a producer whose transaction the partition is in.

        That is the partition of the claims' log, too, if it claims something that it may.
        """
        if self._refuses(token, request):
            return self._out.take()
        self._transactions.commit(token, request, partitions_of, now_ms, self._topics, api_version)
        return self._out.take()

    def wait_for_stable(
        self,
        token: object,
        request: TxnOffsetCommitRequest,
        partitions_of: PartitionsOf,
        now_ms: int,
        timeout_ms: int,
    ) -> Effects:
        """What a TxnOffsetCommit wants that waits for others' claims; `token`: an `ErrorCode`."""
        deadline_ms = now_ms + timeout_ms
        self._transactions.wait(token, request, partitions_of, self._topics, deadline_ms)
        return self._out.take()

    def abandon_wait(self, group_id: str, token: object) -> Effects:
        """Who waited has gone."""
        self._waiting.abandon(group_id, token)
        return self._out.take()

    def markers(
        self, token: object, ends: Sequence[tuple[int, bool]], log_number: int = PRIMARY
    ) -> Write:
        """The write of markers, which the shell appends; `token` is answered with an `ErrorCode`.

        Of each the producer's id, and whether it commits.
        """
        return self._transactions.markers(token, ends, log_number)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """NONE if an OffsetFetch 9 of this member may be answered with `fetch`."""
        group = self._consumers.groups.get(group_id)
        return ErrorCode.NONE if group is None else check_fetch(group, member_id, member_epoch)

    def fetch(
        self,
        group_id: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        *,
        require_stable: bool = False,
        asker: str | None = None,
    ) -> list[tuple[str, list[OffsetRow]]]:
        """Committed offsets by topic; of all the group's partitions if `topics` is None.

        `require_stable`: with an error where a transaction may be about to change them (KIP-447).
        `asker` is a member that wants to know of claims, too.
        """
        if topics is None:
            found = self.offsets.rows_of_group(group_id)
        else:
            found = [(name, self.offsets.rows(group_id, name, indexes)) for name, indexes in topics]
        return self._transactions.stable(group_id, found, asker) if require_stable else found

    def delete_offsets(
        self, token: object, request: OffsetDeleteRequest, partitions_of: PartitionsOf, now_ms: int
    ) -> Effects:
        """OffsetDelete 0."""
        self._commits.delete_offsets(token, request, partitions_of, now_ms)
        return self._out.take()

    def delete_topic(self, topic: str, now_ms: int) -> Effects:
        """The topic is gone: its committed offsets must not meet a new one of the same name."""
        self._commits.delete_topic(topic, now_ms)
        self._shares.topics_gone(now_ms)
        return self._out.take()

    def delete_group(self, token: object, group_id: str, now_ms: int) -> Effects:
        """One group of a DeleteGroups; `token` is answered with an `ErrorCode`."""
        if self._shares.holds(group_id):
            self._share_offsets.bury(token, group_id, now_ms)
            return self._out.take()
        self._commits.delete_group(group_id, now_ms, lambda error: self._out.reply(token, error))
        self._account(group_id)
        return self._out.take()

    # -- outcomes

    def committed(self, write: Write, now_ms: int) -> Effects:
        """The batch is below the high watermark: its records take effect, its requests end."""
        self._out.landed(write)
        claimed: Sequence[Key] = ()
        if write.log == TWIN:
            has_groups = False
            claimed = self.claims.committed(write)
            if self._waiting.groups and isinstance(write.records, TransactionEnds):
                for producer_id, _ in write.records.ends:
                    self._waiting.transaction_ended(producer_id)
        else:
            has_groups = self._replay(write.records, now_ms)
            if self.claims.places:
                claimed = self.claims.concerned(write)
                self.claims.moved(claimed)
        if not write.settled:
            write.settled = True
            write.on_committed(now_ms)
        self._go_on(write, now_ms)
        if has_groups:
            self._account(*write.keys)
        if claimed:
            self.claims.landed(claimed, now_ms)
        if self._waiting.groups:
            for group_id in {*write.keys, *(key[0] for key in claimed)}:
                self._waiting.look(group_id)
        return self._out.take()

    def _replay(self, records: Sequence[CoordinatorRecord], now_ms: int) -> bool:
        """Whether there was something else than offsets."""
        if isinstance(records, OffsetRuns):
            for run in records.runs:
                self.load_offsets(run)
            return False
        if isinstance(records, TransactionalOffsets | TransactionEnds):
            group_ids = self._transactions.replay(records)
            self._account(*group_ids)
            self.claims.moved([key for each in group_ids for key in self.claims.keys_of(each)])
            for group_id in group_ids:
                self._waiting.look(group_id)
            return False
        offsets = [record for record in records if isinstance(record, OffsetRecord)]
        self.offsets.replay(offsets)
        if len(self.pending):
            for each in offsets:
                self._overtaken(each.group_id, each.topic, (each.partition,))
        has_groups = len(offsets) < len(records)
        for record in records if has_groups else ():
            if isinstance(record, OffsetRecord):
                continue
            if isinstance(record, SHARE_RECORDS):
                self._shares.replay(record, now_ms)
            elif not isinstance(record, GroupRecord):
                self._consumers.replay(record, now_ms)
            elif record.snapshot is not None:
                self._rebalance.replay(record.group_id, record.snapshot, now_ms)
            else:
                self._replay_tombstone(record.group_id)
        return has_groups

    def _go_on(self, write: Write, now_ms: int) -> None:
        """Those have their turn who waited for the write to land."""
        self._consumers.landed(write, now_ms)
        self._shares.landed(write, now_ms)
        self._discard_unused(write)

    def failed(self, write: Write, error: ErrorCode, now_ms: int) -> Effects:
        """The batch is not in the log and never will be."""
        self._out.landed(write)
        if write.log == TWIN:
            self.claims.lost(write)
        self._settle(write, error, now_ms)
        self._go_on(write, now_ms)
        self._account(*write.keys)
        self.claims.landed(self.claims.concerned(write), now_ms, failed=True)
        return self._out.take()

    def timed_out(self, write: Write, now_ms: int) -> Effects:
        """The batch is in the log but not committed yet: its requests stop waiting for it."""
        self._settle(write, ErrorCode.REQUEST_TIMED_OUT, now_ms)
        self._consumers.overdue(write)
        self._shares.overdue(write)
        self._discard_unused(write)
        self._account(*write.keys)
        return self._out.take()

    def _settle(self, write: Write, error: ErrorCode, now_ms: int) -> None:
        if not write.settled:
            write.settled = True
            write.on_failed(error, now_ms)

    def _discard_unused(self, write: Write) -> None:
        for group_id in write.keys:
            group = self._groups.get(group_id)
            if group is not None:
                self._rebalance.discard_if_unused(group)
                if group_id not in self._groups:
                    self._account(group_id)

    def _account(self, *group_ids: str) -> None:
        """Counts what these groups take now, as they may have changed."""
        for group_id in group_ids:
            if group_id in self._waiting.groups:
                self._waiting.check(group_id)
            group = self._groups.get(group_id)
            if group is not None and group.is_awaited:
                self._memory.waits_for(group_id, group.size_bytes, self._forget_awaited)
                continue
            named = group, self._consumers.groups.get(group_id), self._shares.groups.get(group_id)
            self._memory.stop_waiting(group_id)
            size_bytes = sum(each.size_bytes for each in named if each is not None)
            self._memory.holds(group_id, size_bytes + self.pending.size_bytes(group_id))

    def _forget_awaited(self, group_id: str) -> None:
        """Others that nobody has joined yet need the room."""
        group = self._groups.get(group_id)
        if group is not None and group.is_awaited:
            self._rebalance.forget(group, ErrorCode.UNKNOWN_MEMBER_ID)
            self._rebalance.discard_if_unused(group)

    def _replay_offset(self, record: OffsetRecord) -> None:
        group_id, topic, partition, committed = record
        if committed is None:
            self.offsets.remove(group_id, topic, partition)
        else:
            self.offsets.put(group_id, topic, partition, committed)

    def _replay_tombstone(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is None:
            return
        if group.state is GroupState.DEAD:
            del self._groups[group_id]
        elif group.is_converting:
            self._rebalance.retire(group)
        else:
            # The deletion was given up as timed out, and somebody uses the group again.
            group.persisted = False

    # -- time

    def next_deadline(self) -> int | None:
        """When `handle_timers` has something to do, None if there is nothing to wait for."""
        return self._timers.next_deadline()

    def handle_timers(self, now_ms: int) -> Effects:
        """Carries out every deadline that has passed."""
        while (timer := self._timers.pop_due(now_ms)) is not None:
            if timer.kind in MEMBER_TIMERS:
                self._consumers.timer_fired(timer, now_ms)
            elif timer.kind in SHARE_TIMERS:
                self._shares.timer_fired(timer, now_ms)
            elif timer.kind in CLAIM_TIMERS:
                self._claims_timer_fired(timer, now_ms)
            elif self._consumers.holds(timer.group_id):
                self._put_off(timer, now_ms)
            else:
                self._rebalance.timer_fired(timer, now_ms)
            self._account(timer.group_id)
        return self._out.take()

    def _put_off(self, timer: Timer, now_ms: int) -> None:
        """A deadline of a classic group that may be about to become a consumer group."""

        def fire(now_ms: int) -> None:
            if timer.deadline_ms is None:
                self._rebalance.timer_fired(timer, now_ms)

        self._consumers.submit(
            timer.group_id,
            fire,
            lambda error: self._timers.set(timer, now_ms + RETRY_MS_MIN),
            now_ms,
        )

    def shift_deadlines(self, delta_ms: int) -> None:
        """The clock that `now_ms` comes from was set by this much; waits last as long as before."""
        self._timers.shift(delta_ms)

    def expire_offsets(self, group_ids: Sequence[str], now_ms: int) -> tuple[int, Effects]:
        """Looks for expired offsets in these groups; how many there were, and what to write."""
        count = sum(
            self._commits.expire(group_id, now_ms)
            for group_id in group_ids
            if not self._shares.holds(group_id)
        )
        return count, self._out.take()

    # -- the end

    def close(self, error: ErrorCode, now_ms: int) -> Effects:
        """This broker does not lead the partition any more: every parked request is answered."""
        self._waiting.close(error)
        self.claims.closed(ClaimsLog.CLOSED, error, now_ms)
        for write in self._out.all_in_flight():
            if not write.settled:
                write.settled = True
                write.on_failed(error, now_ms)
        for group in self._groups.values():
            self._rebalance.forget(group, error)
        self._consumers.close(error)
        self._shares.close(error)
        self._memory.close(self._groups)
        return self._out.take()._replace(writes=[])
