"""ConsumerGroupHeartbeat 0-1, judged against the committed state of the group (KIP-848).

A heartbeat joins (epoch 0), goes on (the member's epoch), leaves (-1) or steps aside for the same
static member to come back (-2). The answer comes with the records that make it true; state does not
change here. The rules are Kafka 4.4's:

* A changed subscription, a change of the topics that somebody subscribes to, or another assignor
  that most members now wish for (since 4.4) raises the group's epoch. With it comes a new target
  assignment, and `reconcile` leads the member towards it.
* A member is believed with its own epoch only. One exception: with the epoch before, if it owns
  nothing but what it was assigned, since the answer that raised the epoch may have been lost.
* Epoch 0 is always welcome: whoever sends it has given up all that it had.
* The answer names the assignment if it changed, if the request was a full one, or if the member
  has missed an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kraftpy.core.groups.consumer.assignors import ASSIGNORS, MemberSpec, Uuid
from kraftpy.core.groups.consumer.reconcile import Owned, next_assignment, owns_only
from kraftpy.core.groups.consumer.records import (
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    EpochedPartitions,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    Partitions,
    RegexRecord,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from kraftpy.core.groups.consumer.state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOTHING_YET,
    ConsumerGroup,
    all_subscribed_names,
    metadata_bytes,
    subscribed_names,
)
from kraftpy.core.groups.consumer.topics import NO_TOPICS_HASH, Topics, metadata_hash
from kraftpy.core.groups.events import MAX_MEMORY, tell_rebalance, tell_refused
from kraftpy.core.groups.records import too_long
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

NO_TIMEOUT = -1

_FIRST_WITH_CLIENT_MADE_ID = 1

_NOBODY = MemberMetadata(None, None, "", "", (), None, NO_TIMEOUT, None, None)


class Caller(NamedTuple):
    """Who sends a heartbeat: the member id that holds for it, its client id and its host."""

    member_id: str
    client_id: str
    host: str


class Settings(NamedTuple):
    """group.consumer.*, as far as a heartbeat is concerned; the first assignor is the default.

    A group of `large_size` members makes its target assignment once for all requests in its line.
    `has_room` says whether members may take so many more bytes (`core.groups.memory`).
    """

    max_size: int
    heartbeat_interval_ms: int
    assignors: tuple[str, ...]
    large_size: int = 100
    max_metadata_bytes: int = 1_048_576
    has_room: Callable[[int], bool] = lambda size_bytes: True


class Decision(NamedTuple):
    """The answer, due once the records are committed: at once if there are none."""

    records: list[ConsumerRecord]
    response: ConsumerGroupHeartbeatResponse


# -- the request on its own


def check_request(
    request: ConsumerGroupHeartbeatRequest, api_version: int, settings: Settings
) -> None:
    """Refuses what no group could accept: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR.

    And UNKNOWN_SERVER_ERROR, as Kafka, for a subscription that no record holds.

    INVALID_REGULAR_EXPRESSION comes from `join_or_stay`, which knows whether the regex is new.
    """
    epoch = request.member_epoch
    if not request.member_id and (epoch != JOIN_EPOCH or api_version >= _FIRST_WITH_CLIENT_MADE_ID):
        raise _invalid("MemberId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    for text in (request.member_id, request.instance_id, request.rack_id):
        if text is not None and too_long(text):
            raise _invalid("MemberId, InstanceId and RackId can't be longer than 32767 bytes.")
    names = request.subscribed_topic_names or ()
    # Each name has two bytes for its length, so that empty ones count too.
    said_bytes = sum(map(len, names)) + 2 * len(names) + len(request.subscribed_topic_regex or "")
    if said_bytes > settings.max_metadata_bytes:
        raise subscription_too_large(settings)
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == NO_TIMEOUT:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null"
                " when (re-)joining."
            )
    elif epoch == LEAVE_STATIC_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    assignor, assignors = request.server_assignor, settings.assignors
    if assignor is not None and assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def subscription_too_large(settings: Settings) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"A subscription can't be larger than {settings.max_metadata_bytes} bytes"
        " (group.max.metadata.bytes).",
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request says all there is to say, so that the answer has to as well."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != NO_TIMEOUT
        and request.topic_partitions is not None
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
    )


# -- who is it


def _identify(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str
) -> str | None:
    """The id under which the group knows the caller, None if it is new.

    It is another than `member_id` only if a static member comes back. Raises KafkaError:
    UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID.
    """
    joins = request.member_epoch == JOIN_EPOCH
    instance_id = request.instance_id
    known_id: str | None = member_id if member_id in group.members else None
    if instance_id is not None:
        holder = group.static_members.get(instance_id)
        if not joins:
            check_static(holder, instance_id, member_id)
        # The very member may join again: its first answer was lost, or it was fenced.
        elif holder is not None and holder != member_id:
            # A classic member does not say that it steps aside.
            steps_aside = group.current(holder).epoch == LEAVE_STATIC_EPOCH
            if not steps_aside and group.members[holder].classic is None:
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} cannot join the"
                    f" group because the instance id is owned by {holder} member.",
                )
            return holder
    if known_id is None and not joins:
        raise unknown_member(member_id, group.group_id)
    if not joins:
        _check_epoch(group.current(member_id), request)
    return known_id


def unknown_member(member_id: str, group_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )


def check_static(holder: str | None, instance_id: str, member_id: str) -> None:
    """Whether the instance id is the member's; UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID if not."""
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member"
            f" {holder}.",
        )


def _check_epoch(current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest) -> None:
    received = request.member_epoch
    if received == current.epoch:
        return
    if (
        received < current.epoch
        and received == current.previous_epoch
        and owns_only(request.topic_partitions, current.assigned)
    ):
        return
    relation = "greater" if received > current.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({received}) than the one known"
        f" by the group coordinator ({current.epoch}). The member must abandon all its partitions"
        " and rejoin.",
    )


# -- joining and staying


def join_or_stay(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    settings: Settings,
    topics: Topics,
    now_ms: int,
    *,
    topics_changed: bool,
    others_wait: bool,
) -> Decision:
    """A heartbeat with epoch 0 or more that `check_request` let pass.

    `topics_changed` says that the topics may not be those of the group's metadata hash,
    `others_wait` that the next request of the group will be judged as soon as this is done. Raises
    KafkaError: those of `_identify`, GROUP_MAX_SIZE_REACHED, INVALID_REGULAR_EXPRESSION.
    """
    member_id = caller.member_id
    known_id = _identify(group, request, member_id)
    if known_id is None and len(group.members) >= settings.max_size:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {settings.max_size} members.",
        )
    metadata = _updated(group.members.get(known_id or "", _NOBODY), request, caller)
    records, current = admit(
        group,
        member_id,
        known_id,
        metadata,
        request.topic_partitions,
        settings,
        topics,
        now_ms,
        topics_changed=topics_changed,
        others_wait=others_wait,
    )
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    before = group.current(member_id)
    missed_answer = request.member_epoch != before.epoch
    if is_full(request) or missed_answer or not _same_partitions(before.assigned, current.assigned):
        response.assignment = _assignment(current.assigned)
    return Decision(records, response)


def admit(
    group: ConsumerGroup,
    member_id: str,
    known_id: str | None,
    metadata: MemberMetadata,
    owned: Owned,
    settings: Settings,
    topics: Topics,
    now_ms: int,
    *,
    topics_changed: bool,
    others_wait: bool = False,
) -> tuple[list[ConsumerRecord], CurrentAssignment]:
    """Takes a member in, or lets it stay, and leads it one step towards its target.

    The group knows the member as `known_id`, if at all; `metadata` is what holds from now on and
    `owned` what the member says that it owns. Gives the records and what the member may own then.
    Raises KafkaError(INVALID_REGULAR_EXPRESSION).
    """
    current = NOTHING_YET if known_id is None else group.current(known_id)
    is_replaced = known_id is not None and known_id != member_id
    records: list[ConsumerRecord] = []
    if known_id is not None and is_replaced:
        records += removal(group.group_id, known_id)
        current = current._replace(epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH, revoking={})
    if group.members.get(member_id) != metadata:
        known = group.members.get(known_id or "")
        if not settings.has_room(
            metadata_bytes(metadata) - (metadata_bytes(known) if known else 0)
        ):
            tell_refused(group.group_id, "no memory for another member", MAX_MEMORY)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{MAX_MEMORY} is used up.")
        records.append(MemberRecord(group.group_id, member_id, metadata))
    plan = _Plan(group, member_id, known_id, metadata, dict(group.regexes))
    epoch = _raise_epoch(plan, settings.assignors, topics, records, now_ms, topics_changed)
    target_epoch = group.assignment_epoch
    target: Partitions = group.targets.get(known_id or member_id, {})
    # The first target can't wait: epoch 0 would tell the member to join again.
    may_wait = others_wait and target_epoch and len(group.members) >= settings.large_size
    if epoch > target_epoch and not may_wait:
        target_epoch = epoch
        target = _assign(plan, settings, topics, records)
        records.append(TargetEpochRecord(group.group_id, TargetEpoch(epoch, now_ms)))
    elif is_replaced:
        records.append(TargetRecord(group.group_id, member_id, target))

    def owner(topic_id: Uuid, partition: int) -> str | None:
        holder = group.owner(topic_id, partition)
        return member_id if holder == known_id else holder

    after = next_assignment(member_id, current, target_epoch, target, owner, owned)
    if after is not current or is_replaced:
        records.append(CurrentRecord(group.group_id, member_id, after))
    return records, after


class _Plan(NamedTuple):
    """The group as it will be with the member: `known_id` gives way to `member_id`."""

    group: ConsumerGroup
    member_id: str
    known_id: str | None
    metadata: MemberMetadata
    regexes: dict[str, ResolvedRegex]

    def members(self) -> dict[str, MemberMetadata]:
        members = dict(self.group.members)
        if self.known_id is not None and self.known_id != self.member_id:
            del members[self.known_id]
        members[self.member_id] = self.metadata
        return members


def _updated(
    before: MemberMetadata, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> MemberMetadata:
    """The member's metadata with what the request says; what it leaves out stays."""
    names = request.subscribed_topic_names
    regex = request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        caller.client_id,
        caller.host,
        before.topic_names if names is None else tuple(sorted(set(names))),
        before.topic_regex if regex is None else regex or None,
        before.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms,
        before.server_assignor if request.server_assignor is None else request.server_assignor,
        None,
    )


def _raise_epoch(
    plan: _Plan,
    assignors: tuple[str, ...],
    topics: Topics,
    records: list[ConsumerRecord],
    now_ms: int,
    topics_changed: bool,
) -> int:
    """The group's epoch from now on, with the records that say so."""
    group = plan.group
    metadata = plan.metadata
    before = group.members.get(plan.known_id or "", _NOBODY)
    resubscribed = (
        metadata.topic_names != before.topic_names
        or metadata.topic_regex != before.topic_regex
        or group.group_epoch is None  # epochs start at 1, even if the first asks for nothing
    )
    wishes_changed = metadata.server_assignor != before.server_assignor
    if not (resubscribed or wishes_changed or topics_changed):
        return group.epoch
    members = plan.members()
    former = preferred_assignor(group.members, assignors)
    outvoted = wishes_changed and preferred_assignor(members, assignors) != former
    _match_regexes(plan, members, topics, records, now_ms, topics_changed)
    topics_hash = metadata_hash(all_subscribed_names(members.values(), plan.regexes), topics)
    known_hash = NO_TOPICS_HASH if group.group_epoch is None else group.group_epoch.metadata_hash
    if not resubscribed and not outvoted and topics_hash == known_hash:
        return group.epoch
    epoch = group.epoch
    # An epoch for which nobody has a target yet can take in changed topics as well.
    if resubscribed or outvoted or epoch <= group.assignment_epoch:
        epoch += 1
        if plan.known_id is None:
            reason = f"member {plan.member_id} joins"
        elif resubscribed:
            reason = f"member {plan.member_id} has changed its subscription"
        elif outvoted:
            reason = f"member {plan.member_id} wishes for another assignor, and most with it"
        else:
            reason = "the topics that it subscribes to have changed"
        tell_rebalance(group.group_id, epoch, len(members), reason)
    records.append(GroupEpochRecord(group.group_id, GroupEpoch(epoch, topics_hash)))
    return epoch


def _match_regexes(
    plan: _Plan,
    members: Mapping[str, MemberMetadata],
    topics: Topics,
    records: list[ConsumerRecord],
    now_ms: int,
    topics_changed: bool,
) -> None:
    """Finds the topics of regexes that are new, or of all if there are other topics than before.

    One of another member that is none here (the log may be Kafka's, which has other limits) keeps
    what it had: it is not this member's fault.
    """
    for record in unused_regexes(plan.group, members):
        records.append(record)
        del plan.regexes[record.regex]
    for regex in sorted({metadata.topic_regex or "" for metadata in members.values()}):
        known = plan.regexes.get(regex)
        if regex and (known is None or topics_changed):
            try:
                names = topics.match(regex)
            except KafkaError:
                if regex == plan.metadata.topic_regex:
                    raise
                continue
            if known is not None and regex != plan.metadata.topic_regex:
                # This member may not know of all that its owners may.
                hidden = [name for name in known.topic_names if topics.find(name) is not None]
                names = tuple(sorted({*names, *hidden}))
            if known is None or known.topic_names != names:
                plan.regexes[regex] = ResolvedRegex(names, topics.version, now_ms)
                records.append(RegexRecord(plan.group.group_id, regex, plan.regexes[regex]))


def _assign(
    plan: _Plan, settings: Settings, topics: Topics, records: list[ConsumerRecord]
) -> Partitions:
    """Makes the target assignment, with records for the members whose target changes.

    Gives the caller's target.
    """
    group = plan.group
    members = plan.members()
    counts: dict[Uuid, int] = {}
    ids: dict[tuple[tuple[str, ...], str | None], frozenset[Uuid]] = {}
    specs = {}
    for member_id, metadata in members.items():
        asked = (metadata.topic_names, metadata.topic_regex)
        topic_ids = ids.get(asked)
        if topic_ids is None:
            found = (topics.find(name) for name in subscribed_names(metadata, plan.regexes))
            known = {topic.topic_id: topic.partition_count for topic in found if topic is not None}
            counts.update(known)
            topic_ids = ids[asked] = frozenset(known)
        is_caller = member_id == plan.member_id
        target = group.targets.get((plan.known_id or member_id) if is_caller else member_id, {})
        specs[member_id] = MemberSpec(metadata.instance_id, metadata.rack_id, topic_ids, target)
    result = ASSIGNORS[preferred_assignor(members, settings.assignors)](specs, counts)
    for member_id, given in result.items():
        if group.targets.get(member_id) != given:
            records.append(TargetRecord(group.group_id, member_id, given))
    return result[plan.member_id]


def preferred_assignor(members: Mapping[str, MemberMetadata], assignors: tuple[str, ...]) -> str:
    """The assignor that most members wish for; the first of `assignors` breaks a tie."""
    votes = dict.fromkeys(assignors, 0)
    for metadata in members.values():
        if metadata.server_assignor in votes:
            votes[metadata.server_assignor] += 1
    return max(votes, key=votes.__getitem__)


# -- leaving


def leave(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Decision:
    """A heartbeat with epoch -1 or -2.

    Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    member_id = request.member_id
    if request.instance_id is not None:
        holder = group.static_members.get(request.instance_id)
        check_static(holder, request.instance_id, member_id)
    elif member_id not in group.members:
        raise unknown_member(member_id, group.group_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=request.member_epoch
    )
    if request.member_epoch == LEAVE_EPOCH:
        return Decision(fence(group, [member_id], now_ms), response)
    current = group.current(member_id)
    away = current._replace(epoch=LEAVE_STATIC_EPOCH, revoking={})
    if away == current:
        return Decision([], response)
    return Decision([CurrentRecord(group.group_id, member_id, away)], response)


def fence(group: ConsumerGroup, member_ids: Collection[str], now_ms: int) -> list[ConsumerRecord]:
    """The records that take members out; the next heartbeat makes a new target for the others."""
    group_id = group.group_id
    rest = {known: metadata for known, metadata in group.members.items() if known not in member_ids}
    records: list[ConsumerRecord] = []
    for member_id in member_ids:
        records += removal(group_id, member_id)
    records += unused_regexes(group, rest)
    epoch = group.epoch + 1
    reason = f"{', '.join(member_ids)} left or was fenced"
    tell_rebalance(group_id, epoch, len(rest), reason)
    if rest:
        known_hash = (
            NO_TOPICS_HASH if group.group_epoch is None else group.group_epoch.metadata_hash
        )
        records.append(GroupEpochRecord(group_id, GroupEpoch(epoch, known_hash)))
    else:
        # Nobody is left to assign anything to. The time is that from which offsets expire.
        records.append(GroupEpochRecord(group_id, GroupEpoch(epoch, NO_TOPICS_HASH)))
        records.append(TargetEpochRecord(group_id, TargetEpoch(epoch, now_ms)))
    return records


def removal(group_id: str, member_id: str) -> list[ConsumerRecord]:
    """The tombstones of a member, in Kafka's order."""
    return [
        CurrentRecord(group_id, member_id, None),
        TargetRecord(group_id, member_id, None),
        MemberRecord(group_id, member_id, None),
    ]


def unused_regexes(
    group: ConsumerGroup, members: Mapping[str, MemberMetadata]
) -> list[RegexRecord]:
    """Tombstones of the resolved regexes that none of these members uses."""
    if not group.regexes:
        return []
    used = {metadata.topic_regex for metadata in members.values()}
    return [
        RegexRecord(group.group_id, regex, None) for regex in group.regexes if regex not in used
    ]


# -- answers


def _assignment(assigned: EpochedPartitions) -> ConsumerGroupHeartbeatResponse.Assignment:
    """The partitions in the form of a response."""
    return ConsumerGroupHeartbeatResponse.Assignment(
        [
            ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id, sorted(indexes))
            for topic_id, indexes in assigned.items()
        ]
    )


def _same_partitions(one: EpochedPartitions, other: EpochedPartitions) -> bool:
    return one is other or (
        one.keys() == other.keys()
        and all(indexes.keys() == other[topic_id].keys() for topic_id, indexes in one.items())
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
