"""The share groups of one partition of `__consumer_offsets`: who is judged when, and deadlines.

Rules:

* What changes a group is written as one batch, and a group has one such write in flight at most
  (`core.groups.line`).
* A member's session ends `group.share.session.timeout.ms` after its last accepted heartbeat.
  Deadlines are not in the log: they start afresh with every coordinator.
* Share coordinators are asked (`StateWork`) once the record of that is committed, and asked again
  when nobody has said for `group.share.initialize.retry.interval.ms` what has become of it.
* An id is of one kind of group: who uses a share group's otherwise is refused, and the other way
  round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from kraftpy.core.groups.config import (
    GROUPS_PER_PARTITION_MAX,
    RETRY_MS_MIN,
    ConsumerTimes,
    GroupConfig,
)
from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.effects import Outbox, Write
from kraftpy.core.groups.events import tell_gone, tell_refused
from kraftpy.core.groups.line import Line, Lines
from kraftpy.core.groups.membership import Client
from kraftpy.core.groups.memory import MachineMemory
from kraftpy.core.groups.rebalance import membership_error
from kraftpy.core.groups.share.describe import DescribedGroup, describe
from kraftpy.core.groups.share.heartbeat import (
    Decision,
    Settings,
    check_request,
    covers_states,
    fence,
    join_or_stay,
    leave,
)
from kraftpy.core.groups.share.records import (
    ShareMemberRecord,
    ShareRecord,
    ShareStates,
    ShareStatesRecord,
)
from kraftpy.core.groups.share.state import JOIN_EPOCH, ShareGroup, subscribed_names
from kraftpy.core.groups.share.states import (
    UNKNOWN_OFFSET,
    DeleteStates,
    InitializeStates,
    StateWork,
    deleting,
    initialized,
    initializing,
    missing,
    pending,
    topic_names,
    without,
)
from kraftpy.core.groups.timers import Timer, TimerKind, TimerQueue
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

log = logging.getLogger(__name__)

SHARE_TIMERS = frozenset({TimerKind.SHARE_SESSION, TimerKind.SHARE_STATES})

# A share coordinator that has refused is asked again as soon as in Kafka: with a heartbeat.
REFUSED_RETRY_MS = 5_000


class _Live(Line):
    """What a group has beside its state; lost when the coordinator moves.

    `covered` is what the group had when its targets were found to cover its states.
    """

    __slots__ = ("covered", "sessions", "states_timer", "topics_version")

    def __init__(self, group_id: str) -> None:
        super().__init__()
        self.sessions: dict[str, Timer] = {}
        self.states_timer = Timer(TimerKind.SHARE_STATES, group_id)
        self.topics_version: int | None = None
        self.covered: tuple[ShareStates, int] | None = None


class ShareGroups(Lines[_Live]):
    """Judges requests of share groups, and keeps their deadlines.

    `groups` is for reading: only committed records change it. `is_taken` tells whether an id is
    that of another kind of group; `times` has those of groups that differ from the others'.
    """

    def __init__(
        self,
        config: GroupConfig,
        times: Mapping[str, ConsumerTimes],
        topics: Topics,
        is_taken: Callable[[str], bool],
        timers: TimerQueue,
        outbox: Outbox,
        memory: MachineMemory,
    ) -> None:
        super().__init__(outbox, _Live)
        self._config = config
        self._times = times
        self._topics = topics
        self._is_taken = is_taken
        self._timers = timers
        self._settings = Settings(
            config.share_max_size,
            config.share_heartbeat_interval_ms,
            config.group_max_metadata_bytes,
            memory.has_room,
        )
        self.groups: dict[str, ShareGroup] = {}

    def holds(self, group_id: str) -> bool:
        """Whether there is such a share group, or one is about to come or to go."""
        return group_id in self.groups or group_id in self._live

    # -- loading

    def load(self, record: ShareRecord) -> None:
        """Takes in one record of the log."""
        group = self.groups.get(record.group_id)
        if group is None:
            if record.value is None:
                return
            group = self.groups[record.group_id] = ShareGroup(record.group_id)
        group.replay(record)
        if group.is_vacant:
            del self.groups[record.group_id]

    def finish_load(self, now_ms: int) -> None:
        """The whole log has been read: every member gets a fresh session."""
        for group in list(self.groups.values()):
            group.drop_strays()
            if group.is_vacant:
                del self.groups[group.group_id]
                continue
            live = self._live_of(group.group_id)
            for member_id in group.members:
                self._start_session(live, group.group_id, member_id, now_ms)
            self._watch_states(live, group, now_ms + RETRY_MS_MIN)

    # -- one at a time

    def landed(self, write: Write, now_ms: int) -> None:
        """The write's fate is known, its requests are answered: the next ones have their turn."""
        for group_id in write.keys:
            live = self._live.get(group_id)
            if live is not None and live.write is write:
                live.go_on(now_ms)
                if live.write is None and group_id not in self.groups:
                    self._timers.cancel(live.states_timer)
                    del self._live[group_id]

    # -- committed records

    def replay(self, record: ShareRecord, now_ms: int) -> None:
        """A record has been committed: it takes effect, and deadlines follow it."""
        self.load(record)
        group_id = record.group_id
        if isinstance(record, ShareMemberRecord):
            live = self._live_of(group_id)
            if record.value is None:
                timer = live.sessions.pop(record.member_id, None)
                if timer is not None:
                    self._timers.cancel(timer)
                live.topics_version = None
            elif record.member_id not in live.sessions:
                self._start_session(live, group_id, record.member_id, now_ms)
        elif isinstance(record, ShareStatesRecord) and group_id in self.groups:
            retry_ms = now_ms + self._config.share_initialize_retry_ms
            self._watch_states(self._live_of(group_id), self.groups[group_id], retry_ms)

    def _start_session(self, live: _Live, group_id: str, member_id: str, now_ms: int) -> None:
        timer = live.sessions[member_id] = Timer(TimerKind.SHARE_SESSION, group_id, member_id)
        self._timers.set(timer, now_ms + self._times_of(group_id).session_timeout_ms)

    def _watch_states(self, live: _Live, group: ShareGroup, deadline_ms: int) -> None:
        """Share coordinators are asked again then, unless nothing is to be asked any more."""
        if group.states.initializing or group.states.deleting:
            self._timers.set(live.states_timer, deadline_ms)
        else:
            self._timers.cancel(live.states_timer)

    def _times_of(self, group_id: str) -> ConsumerTimes:
        own = self._times.get(group_id)
        if own is not None:
            return own
        config = self._config
        return ConsumerTimes(config.share_session_timeout_ms, config.share_heartbeat_interval_ms)

    # -- ShareGroupHeartbeat

    def heartbeat(
        self, token: object, request: ShareGroupHeartbeatRequest, client: Client, now_ms: int
    ) -> None:
        """A ShareGroupHeartbeat 1; `token` is answered now or when its records are in."""
        try:
            check_request(request, self._settings)
        except KafkaError as error:
            self._refuse(token, error.code, error.message)
            return
        live = self._live.get(request.group_id)
        if live is not None and live.overdue:
            # It is not the member's fault that it gets no answer.
            self._touch(request.group_id, request.member_id, now_ms)
        self.submit(
            request.group_id,
            lambda now_ms: self._judge(token, request, client, now_ms),
            lambda error: self._refuse(token, error),
            now_ms,
        )

    def _judge(
        self, token: object, request: ShareGroupHeartbeatRequest, client: Client, now_ms: int
    ) -> None:
        group_id = request.group_id
        version = self._topics.version
        stays = request.member_epoch >= JOIN_EPOCH
        try:
            group = self.groups.get(group_id)
            if group is None:
                group = self._new_group(group_id, may_come=request.member_epoch == JOIN_EPOCH)
            if stays:
                decision = self._stay(group, request, client, now_ms)
            else:
                decision = leave(group, request, self._topics)
        except KafkaError as error:
            self._refuse(token, error.code, error.message)
            return
        work = self._wanted_states(group, request, decision)
        if stays:
            self._touch(group_id, request.member_id, now_ms)

        def committed(now_ms: int) -> None:
            live = self._live.get(group_id)
            if stays and live is not None:
                live.topics_version = version
            self._out.reply(token, decision.response)
            if work is not None:
                self._out.send(work)

        if decision.records:
            self.write(
                group_id,
                decision.records,
                committed,
                lambda error, now_ms: self._refuse(token, membership_error(error)),
            )
        else:
            committed(now_ms)

    def _new_group(self, group_id: str, *, may_come: bool) -> ShareGroup:
        """A group that nobody has joined yet. Raises KafkaError."""
        if self._is_taken(group_id):
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
            )
        if not may_come:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        if len(self.groups) >= GROUPS_PER_PARTITION_MAX:
            tell_refused(group_id, "too many groups", "offsets.topic.num.partitions")
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return ShareGroup(group_id)

    def _stay(
        self,
        group: ShareGroup,
        request: ShareGroupHeartbeatRequest,
        client: Client,
        now_ms: int,
    ) -> Decision:
        live = self._live.get(group.group_id)
        interval_ms = self._times_of(group.group_id).heartbeat_interval_ms
        return join_or_stay(
            group,
            request,
            client.client_id,
            client.host,
            self._settings._replace(heartbeat_interval_ms=interval_ms),
            self._topics,
            now_ms,
            topics_changed=live is None or live.topics_version != self._topics.version,
            states_changed=live is not None and not self._is_covered(live, group),
        )

    def _is_covered(self, live: _Live, group: ShareGroup) -> bool:
        """Whether the targets have all that may be dealt out, as of the group's epoch."""
        if not group.members or group.epoch > group.assignment_epoch:
            return True  # they are made anew in any case
        known = (group.states, group.epoch)
        if live.covered is not None and live.covered[0] is known[0] and live.covered[1] == known[1]:
            return True
        if not covers_states(group, self._topics):
            return False
        live.covered = known
        return True

    def _wanted_states(
        self, group: ShareGroup, request: ShareGroupHeartbeatRequest, decision: Decision
    ) -> StateWork | None:
        """What share coordinators are to be asked when the decision's records are committed.

        Adds the record of that.
        """
        if not decision.looks_at_topics:
            return None
        names = subscribed_names(group.members.values()) | set(request.subscribed_topic_names or ())
        wanted = missing(group.states, sorted(names), self._topics)
        if not wanted:
            return None
        states = initializing(group.states, wanted)
        decision.records.append(ShareStatesRecord(group.group_id, states))
        offsets = {
            topic: dict.fromkeys(shares.partitions, UNKNOWN_OFFSET)
            for topic, shares in wanted.items()
        }
        return InitializeStates(group.group_id, decision.response.member_epoch, offsets)

    def _touch(self, group_id: str, member_id: str, now_ms: int) -> None:
        """The member gave a sign of life: its session starts again."""
        live = self._live.get(group_id)
        timer = None if live is None else live.sessions.get(member_id)
        if timer is not None:
            self._timers.set(timer, now_ms + self._times_of(group_id).session_timeout_ms)

    def _refuse(self, token: object, error: ErrorCode, message: str | None = None) -> None:
        self._out.reply(token, ShareGroupHeartbeatResponse(error_code=error, error_message=message))

    # -- ShareGroupDescribe

    def describe(self, group_id: str) -> DescribedGroup:
        """The group, or GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is not None:
            return describe(group, self._topics)
        what = "is not a share group" if self._is_taken(group_id) else "not found"
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
        )

    def empty_group(self, group_id: str, *, may_come: bool = False) -> ShareGroup:
        """A group without members. Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.groups.get(group_id)
        if group is None:
            return self._new_group(group_id, may_come=may_come)
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP.message)
        return group

    # -- topics that are gone

    def topics_gone(self, now_ms: int) -> None:
        """Forgets the states of topics that there aren't any more: their coordinators do, too."""
        for group_id, group in list(self.groups.items()):
            if self._gone_topics(group):
                self.submit(
                    group_id,
                    lambda now_ms, group_id=group_id: self._forget_gone(group_id),  # type: ignore[misc]
                    lambda error: None,
                    now_ms,
                )

    def topics_of_states(self) -> Iterable[tuple[Uuid, str]]:
        """The topics of states that there are, or are to be, by id and name."""
        for group in self.groups.values():
            yield from topic_names(group.states).items()

    def _gone_topics(self, group: ShareGroup) -> list[Uuid]:
        named = topic_names(group.states)
        return [topic_id for topic_id in named if self._topics.name_of(topic_id) is None]

    def _forget_gone(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        gone = [] if group is None else self._gone_topics(group)
        if group is not None and gone:
            record = ShareStatesRecord(group_id, without(group.states, gone))
            self.write(group_id, [record], lambda now_ms: None, lambda error, now_ms: None)

    # -- deadlines

    def states_refused(self, group_id: str, now_ms: int) -> None:
        """A share coordinator has said no: it's asked again soon."""
        group = self.groups.get(group_id)
        if group is not None:
            self._watch_states(self._live_of(group_id), group, now_ms + REFUSED_RETRY_MS)

    def timer_fired(self, timer: Timer, now_ms: int) -> None:
        """A member's session is over, or share coordinators have been silent for long."""
        act = self._expire if timer.kind is TimerKind.SHARE_SESSION else self._ask_again
        self.submit(
            timer.group_id,
            lambda now_ms: act(timer, now_ms),
            lambda error: self._put_off(timer, now_ms),
            now_ms,
        )

    def _expire(self, timer: Timer, now_ms: int) -> None:
        group_id, member_id = timer.group_id, timer.member_id
        group = self.groups.get(group_id)
        live = self._live.get(group_id)
        if group is None or live is None or timer.deadline_ms is not None:
            return
        if live.sessions.get(member_id) is not timer:
            return
        tell_gone(group_id, member_id, "no heartbeat")

        def failed(error: ErrorCode, now_ms: int) -> None:
            log.warning("group %r: could not record that: %s", group_id, error.name)
            self._put_off(timer, now_ms)

        records = fence(group, [member_id], self._topics)
        self.write(group_id, records, lambda now_ms: None, failed)

    def _ask_again(self, timer: Timer, now_ms: int) -> None:
        group = self.groups.get(timer.group_id)
        if group is None or timer.deadline_ms is not None:
            return
        self._timers.set(timer, now_ms + self._config.share_initialize_retry_ms)
        if self._gone_topics(group):
            self._forget_gone(timer.group_id)
            return
        wanted = pending(group.states)
        if wanted:
            offsets = {
                topic: dict.fromkeys(indexes, UNKNOWN_OFFSET) for topic, indexes in wanted.items()
            }
            self._out.send(InitializeStates(timer.group_id, group.epoch, offsets))
        elif group.states.initializing:
            # Somebody had set offsets of what has states, and nobody knows what has become of that.
            had = {topic: each.partitions for topic, each in group.states.initializing.items()}
            record = ShareStatesRecord(timer.group_id, initialized(group.states, had, {}))
            self.write(timer.group_id, [record], lambda now_ms: None, lambda error, now_ms: None)
        _, partitions = deleting(group.states, list(group.states.deleting), self._topics)
        if partitions:
            self._out.send(DeleteStates(timer.group_id, partitions))

    def _put_off(self, timer: Timer, now_ms: int) -> None:
        """It could not be done: nobody was heard meanwhile, so there is as much time again."""
        timeout_ms = self._times_of(timer.group_id).session_timeout_ms
        if timer.kind is TimerKind.SHARE_STATES:
            timeout_ms = self._config.share_initialize_retry_ms
        self._timers.set(timer, now_ms + max(timeout_ms, RETRY_MS_MIN))
