"""The KIP-848 groups of one partition of `__consumer_offsets`: who is judged when, and deadlines.

Rules:

* What changes a group is written as one batch, and a group has one such write in flight at most
  (`core.groups.line`).
* A member's session ends `group.consumer.session.timeout.ms` after its last accepted heartbeat. A
  member that has to give partitions up gets its own rebalance timeout for that. Deadlines are not
  in the log: they start afresh with every coordinator.
* Topics are looked at again by the next heartbeat after they changed, group by group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kraftpy.core.coordination import TOO_LARGE
from kraftpy.core.groups.config import (
    GROUPS_PER_PARTITION_MAX,
    RETRY_MS_MIN,
    GroupConfig,
    GroupTimes,
)
from kraftpy.core.groups.consumer.conversion import tombstones
from kraftpy.core.groups.consumer.describe import DescribedGroup, describe
from kraftpy.core.groups.consumer.heartbeat import (
    Caller,
    Settings,
    check_request,
    join_or_stay,
    leave,
)
from kraftpy.core.groups.consumer.migration import Departure, Migration
from kraftpy.core.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
)
from kraftpy.core.groups.consumer.state import JOIN_EPOCH, LEAVE_EPOCH, ConsumerGroup
from kraftpy.core.groups.consumer.topics import DescribableTopics, Topics
from kraftpy.core.groups.effects import Outbox, Write
from kraftpy.core.groups.events import tell_gone, tell_refused
from kraftpy.core.groups.group import Group
from kraftpy.core.groups.line import Line, Lines
from kraftpy.core.groups.membership import Client
from kraftpy.core.groups.memory import MachineMemory
from kraftpy.core.groups.rebalance import membership_error
from kraftpy.core.groups.records import CoordinatorRecord, GroupRecord
from kraftpy.core.groups.timers import Timer, TimerKind, TimerQueue
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

log = logging.getLogger(__name__)

# What is expected of members, and what is said of one that fails.
MEMBER_TIMERS = {
    TimerKind.CONSUMER_SESSION: "no heartbeat",
    TimerKind.CONSUMER_REVOCATION: "it did not give up its partitions in time",
    TimerKind.CLASSIC_REJOIN: "it did not rejoin in time",
    TimerKind.CLASSIC_SYNC: "it did not sync in time",
}


class _Live(Line):
    """What a group has beside its state; lost when the coordinator moves."""

    __slots__ = ("is_dying", "timers", "topics_version")

    def __init__(self, _group_id: str) -> None:
        super().__init__()
        self.is_dying = False
        self.timers: dict[tuple[TimerKind, str], Timer] = {}
        self.topics_version: int | None = None


class ConsumerGroups(Lines[_Live]):
    """Judges requests of consumer groups, and keeps their deadlines.

    `groups` is for reading: only committed records change it. `settings` are those of all groups.
    `classic` are the classic groups.
    """

    def __init__(
        self,
        config: GroupConfig,
        times: GroupTimes,
        classic: dict[str, Group],
        migration: Migration,
        timers: TimerQueue,
        outbox: Outbox,
        memory: MachineMemory,
    ) -> None:
        super().__init__(outbox, _Live)
        self._times = times
        self._classic = classic
        self._migration = migration
        self._timers = timers
        self.settings = Settings(
            config.consumer_max_size,
            config.consumer_heartbeat_interval_ms,
            config.consumer_assignors,
            max_metadata_bytes=config.group_max_metadata_bytes,
            has_room=memory.has_room,
        )
        self.groups: dict[str, ConsumerGroup] = {}

    def holds(self, group_id: str) -> bool:
        """Whether there is such a consumer group, or one is about to come or to go.

        Whatever concerns the classic group of that id has to wait its turn in the line then.
        """
        return group_id in self.groups or group_id in self._live

    def is_dying(self, group_id: str) -> bool:
        """Whether the group's tombstones are on their way."""
        live = self._live.get(group_id)
        return live is not None and live.is_dying

    # -- loading

    def load(self, record: ConsumerRecord) -> None:
        """Takes in one record of the log."""
        group = self.groups.get(record.group_id)
        if group is None:
            if record.value is None:
                return
            group = self.groups[record.group_id] = ConsumerGroup(record.group_id)
        group.replay(record)
        if group.is_vacant:
            del self.groups[record.group_id]

    def finish_load(self, now_ms: int) -> None:
        """The whole log has been read: every member gets a fresh session."""
        for group in list(self.groups.values()):
            strays = group.drop_strays()
            if strays:
                log.error(
                    "group %r: assignments of %s are dropped: the log does not know who that is",
                    group.group_id,
                    ", ".join(strays),
                )
            if group.is_vacant:
                del self.groups[group.group_id]
                continue
            live = self._live_of(group.group_id)
            for member_id, metadata in group.members.items():
                self._start_session(live, group.group_id, member_id, metadata, now_ms)
                self._watch_revocation(live, group, member_id, now_ms)

    # -- one at a time

    def bury(
        self,
        group_id: str,
        records: Sequence[CoordinatorRecord],
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Writes these records and the tombstones of an empty group; only from an operation."""
        group = self.groups[group_id]
        assert not group.members
        self.write(
            group_id,
            [*records, *tombstones(group)],
            lambda now_ms: done(ErrorCode.NONE),
            lambda error, now_ms: done(error),
        )
        self._live[group_id].is_dying = True

    def landed(self, write: Write, now_ms: int) -> None:
        """The write's fate is known, its requests are answered: the next ones have their turn."""
        for group_id in write.keys:
            live = self._live.get(group_id)
            if live is None or live.write is not write:
                continue
            live.is_dying = False
            classic = self._classic.get(group_id)
            if classic is not None:
                classic.is_converting = False
            live.go_on(now_ms)
            if live.write is None and group_id not in self.groups:
                del self._live[group_id]

    # -- committed records

    def replay(self, record: ConsumerRecord, now_ms: int) -> None:
        """A record has been committed: it takes effect, and deadlines follow it."""
        self.load(record)
        group_id = record.group_id
        if isinstance(record, MemberRecord):
            live = self._live_of(group_id)
            if record.value is None:
                self._forget_member(live, record.member_id)
            elif (TimerKind.CONSUMER_SESSION, record.member_id) not in live.timers:
                self._start_session(live, group_id, record.member_id, record.value, now_ms)
        elif isinstance(record, CurrentRecord) and record.value is not None:
            live = self._live_of(group_id)
            self._watch_revocation(live, self.groups[group_id], record.member_id, now_ms)

    def _forget_member(self, live: _Live, member_id: str) -> None:
        for kind in MEMBER_TIMERS:
            self._stop(live, kind, member_id)
        # It may have been the only one to subscribe to some topic.
        live.topics_version = None

    def _start_session(
        self, live: _Live, group_id: str, member_id: str, metadata: MemberMetadata, now_ms: int
    ) -> None:
        deadline_ms = now_ms + self._session_timeout_ms(group_id, metadata)
        self._start(live, TimerKind.CONSUMER_SESSION, group_id, member_id, deadline_ms)

    def _session_timeout_ms(self, group_id: str, metadata: MemberMetadata) -> int:
        if metadata.classic is not None:
            return metadata.classic.session_timeout_ms
        return self._times.of(group_id).session_timeout_ms

    def settings_of(self, group_id: str) -> Settings:
        """Those of all groups, with the group's own heartbeat interval."""
        interval_ms = self._times.of(group_id).heartbeat_interval_ms
        if interval_ms == self.settings.heartbeat_interval_ms:
            return self.settings
        return self.settings._replace(heartbeat_interval_ms=interval_ms)

    def touch(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """The member gave a sign of life: its session starts again."""
        live = self._live.get(group.group_id)
        key = (TimerKind.CONSUMER_SESSION, member_id)
        timer = None if live is None else live.timers.get(key)
        if timer is not None:
            timeout_ms = self._session_timeout_ms(group.group_id, group.members[member_id])
            self._timers.set(timer, now_ms + timeout_ms)

    def _watch_revocation(
        self, live: _Live, group: ConsumerGroup, member_id: str, now_ms: int
    ) -> None:
        """Gives a member that has to give partitions up its rebalance timeout for that."""
        metadata = group.members.get(member_id)
        self._stop(live, TimerKind.CONSUMER_REVOCATION, member_id)
        if metadata is None or metadata.classic is not None:
            return
        if group.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
            self._start(
                live,
                TimerKind.CONSUMER_REVOCATION,
                group.group_id,
                member_id,
                now_ms + max(metadata.rebalance_timeout_ms, 0),
            )

    def expect(self, kind: TimerKind, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """A classic member has its rebalance timeout for this, from the first call on."""
        live = self._live_of(group.group_id)
        if (kind, member_id) not in live.timers:
            deadline_ms = now_ms + max(group.members[member_id].rebalance_timeout_ms, 0)
            self._start(live, kind, group.group_id, member_id, deadline_ms)

    def fulfilled(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        """The member has done what was expected of it."""
        self._stop(self._live_of(group_id), kind, member_id)

    def _start(
        self, live: _Live, kind: TimerKind, group_id: str, member_id: str, deadline_ms: int
    ) -> None:
        timer = live.timers[kind, member_id] = Timer(kind, group_id, member_id)
        self._timers.set(timer, deadline_ms)

    def _stop(self, live: _Live, kind: TimerKind, member_id: str) -> None:
        timer = live.timers.pop((kind, member_id), None)
        if timer is not None:
            self._timers.cancel(timer)

    # -- what the group has seen of the topics

    def topics_changed(self, group_id: str, version: int) -> bool:
        """Whether the topics of this version may not be those of the group's metadata hash."""
        live = self._live.get(group_id)
        return live is None or live.topics_version != version

    def saw_topics(self, group_id: str, version: int) -> None:
        """The group's metadata hash is that of the topics of this version."""
        live = self._live.get(group_id)
        if live is not None:
            live.topics_version = version

    # -- ConsumerGroupHeartbeat

    def heartbeat(
        self,
        token: object,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        uuid: str,
        topics: Topics,
        now_ms: int,
    ) -> None:
        """A ConsumerGroupHeartbeat 0-1; `token` is answered now or when its records are in."""
        try:
            check_request(request, client.api_version, self.settings)
        except KafkaError as error:
            self._refuse(token, error.code, error.message)
            return
        caller = Caller(request.member_id or uuid, client.client_id, client.host)
        if client.may_describe is not None:
            topics = DescribableTopics(topics, client.may_describe)
        group_id = request.group_id
        live = self._live.get(group_id)
        if live is None or live.write is None:
            self._judge(token, request, caller, topics, now_ms)
            return
        group = self.groups.get(group_id)
        if live.overdue and group is not None and caller.member_id in group.members:
            # It is not the member's fault that it gets no answer.
            self.touch(group, caller.member_id, now_ms)
        self.submit(
            group_id,
            lambda now_ms: self._judge(token, request, caller, topics, now_ms),
            lambda error: self._refuse(token, error),
            now_ms,
        )

    def _judge(
        self,
        token: object,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        topics: Topics,
        now_ms: int,
    ) -> None:
        group_id = request.group_id
        group = self.groups.get(group_id)
        if group is None and self._classic_writes(group_id):
            self.submit(
                group_id,
                lambda now_ms: self._judge(token, request, caller, topics, now_ms),
                lambda error: self._refuse(token, error),
                now_ms,
            )
            return
        records: list[CoordinatorRecord] = []
        departure: Departure | None = None
        version = topics.version
        try:
            if group is None:
                group, records = self._make_way(request)
            if request.member_epoch < JOIN_EPOCH:
                decision = leave(group, request, now_ms)
                if request.member_epoch == LEAVE_EPOCH:
                    departure = self._migration.departure(group, [caller.member_id], now_ms)
            else:
                decision = join_or_stay(
                    group,
                    request,
                    caller,
                    self.settings_of(group.group_id),
                    topics,
                    now_ms,
                    topics_changed=self.topics_changed(group_id, version),
                    others_wait=self._others_wait(group_id),
                )
        except KafkaError as error:
            self._refuse(token, error.code, error.message)
            return
        member_id = caller.member_id
        stays = request.member_epoch >= JOIN_EPOCH
        if stays and member_id in group.members:
            self.touch(group, member_id, now_ms)

        def committed(now_ms: int) -> None:
            if departure is not None:
                departure.committed(now_ms)
            if stays:
                self.saw_topics(group_id, version)
            self._out.reply(token, decision.response)

        def failed(error: ErrorCode, now_ms: int) -> None:
            self._refuse(token, membership_error(error))

        records = [*records, *(decision.records if departure is None else departure.records)]
        if not records:
            committed(now_ms)
            return
        classic = self._classic.get(group_id)
        if classic is not None:
            classic.is_converting = True
        self.write(group_id, records, committed, failed)

    def _others_wait(self, group_id: str) -> bool:
        live = self._live.get(group_id)
        return live is not None and bool(live.waiting)

    def _classic_writes(self, group_id: str) -> bool:
        """Whether a record of a classic group is on its way; the line waits for it then."""
        for write in reversed(self._out.in_flight(group_id)):
            if any(isinstance(record, GroupRecord) for record in write.records):
                live = self._live_of(group_id)
                live.write, live.overdue = write, write.settled
                return True
        return False

    def _make_way(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
        """The group that somebody wants to join, as it is after these records."""
        group_id = request.group_id
        if request.member_epoch != JOIN_EPOCH:
            what = "is not a consumer group" if group_id in self._classic else "not found"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
        if len(self.groups) >= GROUPS_PER_PARTITION_MAX:
            tell_refused(group_id, "too many groups", "offsets.topic.num.partitions")
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._migration.make_way(group_id)

    def _refuse(self, token: object, error: ErrorCode, message: str | None = None) -> None:
        self._out.reply(
            token, ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)
        )

    # -- ConsumerGroupDescribe

    def describe(self, group_id: str, topics: Topics) -> DescribedGroup:
        """The group, or GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is not None:
            return describe(group, self.settings.assignors, topics)
        what = "is not a consumer group" if group_id in self._classic else "not found"
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
        )

    # -- deadlines

    def timer_fired(self, timer: Timer, now_ms: int) -> None:
        """A member's session is over, or its time to give partitions up."""
        self.submit(
            timer.group_id,
            lambda now_ms: self._expire(timer, now_ms),
            lambda error: self._put_off(timer, now_ms),
            now_ms,
        )

    def _expire(self, timer: Timer, now_ms: int, *, may_downgrade: bool = True) -> None:
        group = self.groups.get(timer.group_id)
        live = self._live.get(timer.group_id)
        if group is None or live is None or timer.deadline_ms is not None:
            return
        if live.timers.get((timer.kind, timer.member_id)) is not timer:
            return
        tell_gone(timer.group_id, timer.member_id, MEMBER_TIMERS[timer.kind])

        def failed(error: ErrorCode, now_ms: int) -> None:
            log.warning("group %r: could not record that: %s", timer.group_id, error.name)
            if may_downgrade and error in TOO_LARGE:
                # What it would be as a classic group may be too much for one batch. Its partitions
                # have to come free all the same.
                self.submit(
                    timer.group_id,
                    lambda now_ms: self._expire(timer, now_ms, may_downgrade=False),
                    lambda error: self._put_off(timer, now_ms),
                    now_ms,
                )
            else:
                self._put_off(timer, now_ms)

        departure = self._migration.departure(
            group, [timer.member_id], now_ms, may_downgrade=may_downgrade
        )
        self.write(timer.group_id, departure.records, departure.committed, failed)

    def _put_off(self, timer: Timer, now_ms: int) -> None:
        """The member could not be fenced: nobody was heard meanwhile, so it gets its time again."""
        group = self.groups.get(timer.group_id)
        metadata = None if group is None else group.members.get(timer.member_id)
        if metadata is None:
            return
        timeout_ms = metadata.rebalance_timeout_ms
        if timer.kind is TimerKind.CONSUMER_SESSION:
            timeout_ms = self._session_timeout_ms(timer.group_id, metadata)
        self._timers.set(timer, now_ms + max(timeout_ms, RETRY_MS_MIN))
