"""ShareGroupHeartbeat 1, judged against the committed state of the group (KIP-932).

A heartbeat joins (epoch 0), goes on (the member's epoch) or leaves (-1). The answer comes with the
records that make it true; state does not change here. The rules are Kafka 4.3's:

* A changed subscription, a change of the topics that somebody subscribes to, or share-partitions
  that have got their states since raise the group's epoch. With it comes a new target assignment.
* Nothing has to be given up before somebody else may have it, so a member is told its target at
  once, and has the group's epoch then.
* A member is believed with its own epoch, with the one before, since an answer may have been lost,
  and with epoch 0.
* The answer names the assignment if it changed, or if the request was a full one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.records import GroupEpoch, Partitions, TargetEpoch
from kraftpy.core.groups.consumer.topics import NO_TOPICS_HASH, Topics, metadata_hash
from kraftpy.core.groups.events import MAX_MEMORY, tell_rebalance, tell_refused
from kraftpy.core.groups.records import too_long
from kraftpy.core.groups.share.assignor import assign
from kraftpy.core.groups.share.records import (
    ShareAssignment,
    ShareAssignmentRecord,
    ShareEpochRecord,
    ShareMember,
    ShareMemberRecord,
    ShareRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
)
from kraftpy.core.groups.share.state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareGroup,
    members_bytes,
    subscribed_names,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

MEMBER_ID_MAX = 36
_NOBODY = ShareMember(None, "", "", ())


class Settings(NamedTuple):
    """group.share.*, as far as a heartbeat is concerned.

    `has_room` says whether members may take so many more bytes (`core.groups.memory`).
    """

    max_size: int
    heartbeat_interval_ms: int
    max_metadata_bytes: int = 1_048_576
    has_room: Callable[[int], bool] = lambda size_bytes: True


class Decision(NamedTuple):
    """The answer, due once the records are committed: at once if there are none.

    `looks_at_topics` says whether there may be share-partitions that want a state.
    """

    records: list[ShareRecord]
    response: ShareGroupHeartbeatResponse
    looks_at_topics: bool = False


def check_request(request: ShareGroupHeartbeatRequest, settings: Settings) -> None:
    """Raises KafkaError(INVALID_REQUEST) for what no group could accept.

    And UNKNOWN_SERVER_ERROR, as of consumer groups, for a subscription that no record holds.
    """
    if not request.member_id:
        raise _invalid("MemberId can't be empty.")
    if len(request.member_id) > MEMBER_ID_MAX:
        raise _invalid("Invalid member id in the request.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if request.rack_id is not None and too_long(request.rack_id):
        raise _invalid("RackId can't be longer than 32767 bytes.")
    names = request.subscribed_topic_names or ()
    if sum(map(len, names)) + 2 * len(names) > settings.max_metadata_bytes:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"A subscription can't be larger than {settings.max_metadata_bytes} bytes"
            " (group.max.metadata.bytes).",
        )
    if request.member_epoch == JOIN_EPOCH:
        if not names:
            raise _invalid("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")


def join_or_stay(
    group: ShareGroup,
    request: ShareGroupHeartbeatRequest,
    client_id: str,
    host: str,
    settings: Settings,
    topics: Topics,
    now_ms: int,
    *,
    topics_changed: bool,
    states_changed: bool,
) -> Decision:
    """A heartbeat with epoch 0 or more that `check_request` let pass.

    `topics_changed` says that the topics may not be those of the group's metadata hash,
    `states_changed` that other partitions have states than are in the targets. Raises KafkaError:
    GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, COORDINATOR_NOT_AVAILABLE.
    """
    member_id = request.member_id
    before = group.members.get(member_id)
    _check_member(group, request, settings)
    names = request.subscribed_topic_names
    known = before or _NOBODY
    member = ShareMember(
        known.rack_id if request.rack_id is None else request.rack_id,
        client_id,
        host,
        known.topic_names if names is None else tuple(sorted(set(names))),
    )
    records: list[ShareRecord] = []
    if member != before:
        if not settings.has_room(members_bytes(member) - members_bytes(before)):
            tell_refused(group.group_id, "no memory for another member", MAX_MEMORY)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{MAX_MEMORY} is used up.")
        records.append(ShareMemberRecord(group.group_id, member_id, member))
    members = {**group.members, member_id: member}
    resubscribed = group.group_epoch is None or before is None
    resubscribed = resubscribed or member.topic_names != known.topic_names
    epoch = group.epoch
    if resubscribed or topics_changed or states_changed:
        topics_hash = metadata_hash(subscribed_names(members.values()), topics)
        known_hash = NO_TOPICS_HASH if group.group_epoch is None else group.group_epoch[1]
        if resubscribed or states_changed or topics_hash != known_hash:
            epoch += 1
            reason = _reason(member_id, joins=before is None, resubscribed=resubscribed)
            tell_rebalance(group.group_id, epoch, len(members), reason)
            records.append(ShareEpochRecord(group.group_id, GroupEpoch(epoch, topics_hash)))
    target: Partitions = group.targets.get(member_id, {})
    if epoch > group.assignment_epoch:
        target = _assign(group, members, topics, records)[member_id]
        records.append(ShareTargetEpochRecord(group.group_id, TargetEpoch(epoch, now_ms)))
    current = group.assignment(member_id)
    after = current
    if current.epoch != epoch:
        after = ShareAssignment(epoch, current.epoch, target)
        records.append(ShareAssignmentRecord(group.group_id, member_id, after))
    response = ShareGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    is_full = request.member_epoch == JOIN_EPOCH or names is not None
    if is_full or request.member_epoch != after.epoch or current.assigned != after.assigned:
        response.assignment = _assignment(after.assigned)
    return Decision(records, response, resubscribed or topics_changed)


def _check_member(
    group: ShareGroup, request: ShareGroupHeartbeatRequest, settings: Settings
) -> None:
    """Raises KafkaError."""
    member_id, received = request.member_id, request.member_epoch
    if member_id not in group.members:
        if len(group.members) >= settings.max_size:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {settings.max_size} members.",
            )
        if received != JOIN_EPOCH:
            raise unknown_member(member_id, group.group_id)
        return
    current = group.assignment(member_id)
    if received not in (JOIN_EPOCH, current.epoch, current.previous_epoch):
        relation = "greater" if received > current.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a {relation} member epoch ({received}) than the one known"
            f" by the group coordinator ({current.epoch}). The member must abandon all its"
            " partitions and rejoin.",
        )


def _reason(member_id: str, *, joins: bool, resubscribed: bool) -> str:
    if joins:
        return f"member {member_id} joins"
    if resubscribed:
        return f"member {member_id} has changed its subscription"
    return "there are other topics or partitions to be read"


def unknown_member(member_id: str, group_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )


def _assign(
    group: ShareGroup,
    members: Mapping[str, ShareMember],
    topics: Topics,
    records: list[ShareRecord],
) -> dict[str, Partitions]:
    """Makes the target assignment, with records for the members whose target changes."""
    ids: dict[tuple[str, ...], frozenset[Uuid]] = {}
    asked = {}
    for member_id, member in members.items():
        if member.topic_names not in ids:
            found = (topics.find(name) for name in member.topic_names)
            ids[member.topic_names] = frozenset(each.topic_id for each in found if each is not None)
        asked[member_id] = ids[member.topic_names]
    ready = {topic_id: each.partitions for topic_id, each in group.states.initialized.items()}
    targets = assign(asked, group.targets, ready)
    for member_id, target in targets.items():
        if group.targets.get(member_id) != target:
            records.append(ShareTargetRecord(group.group_id, member_id, target))
    return targets


def covers_states(group: ShareGroup, topics: Topics) -> bool:
    """Whether the targets have all partitions with states that members ask for, and no others."""
    dealt: dict[Uuid, set[int]] = {}
    for target in group.targets.values():
        for topic_id, indexes in target.items():
            dealt.setdefault(topic_id, set()).update(indexes)
    found = (topics.find(name) for name in subscribed_names(group.members.values()))
    for topic in found:
        if topic is not None:
            shares = group.states.initialized.get(topic.topic_id)
            ready: Iterable[int] = () if shares is None else shares.partitions
            if dealt.get(topic.topic_id, set()) != set(ready):
                return False
    return True


# -- leaving


def leave(group: ShareGroup, request: ShareGroupHeartbeatRequest, topics: Topics) -> Decision:
    """A heartbeat with epoch -1. Raises KafkaError(UNKNOWN_MEMBER_ID)."""
    member_id = request.member_id
    if member_id not in group.members:
        raise unknown_member(member_id, group.group_id)
    response = ShareGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)
    return Decision(fence(group, [member_id], topics), response)


def fence(group: ShareGroup, member_ids: Collection[str], topics: Topics) -> list[ShareRecord]:
    """The records that take members out; the next heartbeat makes a new target for the others."""
    group_id = group.group_id
    records: list[ShareRecord] = []
    for member_id in member_ids:
        records += [
            ShareAssignmentRecord(group_id, member_id, None),
            ShareTargetRecord(group_id, member_id, None),
            ShareMemberRecord(group_id, member_id, None),
        ]
    rest = [member for known, member in group.members.items() if known not in member_ids]
    epoch = group.epoch + 1
    tell_rebalance(group_id, epoch, len(rest), f"{', '.join(member_ids)} left or was fenced")
    topics_hash = metadata_hash(subscribed_names(rest), topics)
    records.append(ShareEpochRecord(group_id, GroupEpoch(epoch, topics_hash)))
    return records


# -- answers


def _assignment(assigned: Partitions) -> ShareGroupHeartbeatResponse.Assignment:
    """The partitions in the form of a response."""
    kinds = ShareGroupHeartbeatResponse
    return kinds.Assignment(
        [kinds.TopicPartitions(topic_id, sorted(indexes)) for topic_id, indexes in assigned.items()]
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
