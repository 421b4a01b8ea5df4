"""Members of a consumer group that speak the classic protocol (KIP-848, "Migration").

The coordinator takes the part of the leader. The rules are Kafka 4.3's:

* A member's epoch is its generation. JoinGroup leads it one step towards its target, as a heartbeat
  does for the others, and says which generation that is; SyncGroup says what the member owns in it.
  Nobody is the leader.
* Heartbeat tells the member to rejoin when there is a step to take: the group has a new epoch, it
  has partitions to give up, or all that it waits for is free.
* A member that joins owns what its subscription says: nothing, if it is an eager one.
* It must support a protocol that all classic members support, so that a downgrade stays possible.

Like `heartbeat`, this judges against the committed state and gives records; nothing changes here.
"""

from __future__ import annotations

from kraftpy.core.groups.consumer.embedded import read_subscription, write_assignment
from kraftpy.core.groups.consumer.heartbeat import (
    Caller,
    Settings,
    admit,
    check_static,
    subscription_too_large,
    unknown_member,
)
from kraftpy.core.groups.consumer.records import (
    ClassicMember,
    ClassicProtocol,
    ConsumerRecord,
    MemberMetadata,
    MemberState,
)
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import Topics
from kraftpy.core.groups.group import CONSUMER_PROTOCOL_TYPE
from kraftpy.core.groups.membership import rebalance_timeout_ms
from kraftpy.core.groups.memory import protocols_bytes
from kraftpy.core.groups.records import too_long
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class Joined(NamedTuple):
    """The answer to a JoinGroup, due once the records are committed."""

    records: list[ConsumerRecord]
    response: JoinGroupResponse


class Left(NamedTuple):
    """The answer to a LeaveGroup, and the members that have to go first."""

    response: LeaveGroupResponse
    member_ids: list[str]


# -- JoinGroup


def check_join(group: ConsumerGroup, request: JoinGroupRequest, settings: Settings) -> None:
    """Refuses who can't be a member.

    GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL; INVALID_REQUEST for names and
    UNKNOWN_SERVER_ERROR for a subscription that no record can hold.
    """
    if request.member_id not in group.members and len(group.members) >= settings.max_size:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    names = {protocol.name for protocol in request.protocols}
    for metadata in group.members.values():
        if metadata.classic is not None:
            names.intersection_update(protocol.name for protocol in metadata.classic.protocols)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    names.update(protocol.name for protocol in request.protocols)
    if any(map(too_long, (request.member_id, request.group_instance_id or "", *names))):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    said = ((protocol.name, protocol.metadata) for protocol in request.protocols)
    if protocols_bytes(said) > settings.max_metadata_bytes:
        raise subscription_too_large(settings)


def join(
    group: ConsumerGroup,
    request: JoinGroupRequest,
    caller: Caller,
    settings: Settings,
    topics: Topics,
    now_ms: int,
    *,
    topics_changed: bool,
) -> Joined:
    """A JoinGroup that `check_join` let pass, of the member that `caller` names.

    Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL.
    """
    member_id = caller.member_id
    known_id = member_id if member_id in group.members else None
    instance_id = request.group_instance_id
    if instance_id is not None:
        holder = group.static_members.get(instance_id)
        if request.member_id:
            check_static(holder, instance_id, member_id)
        elif holder is not None:
            known_id = holder
    try:
        subscription = read_subscription(request.protocols[0].metadata, topics)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
    metadata = MemberMetadata(
        instance_id=instance_id,
        rack_id=subscription.rack_id,
        client_id=caller.client_id,
        client_host=caller.host,
        topic_names=subscription.topic_names,
        topic_regex=None,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        server_assignor=None,
        classic=ClassicMember(
            request.session_timeout_ms,
            tuple(ClassicProtocol(each.name, each.metadata) for each in request.protocols),
        ),
    )
    records, current = admit(
        group,
        member_id,
        known_id,
        metadata,
        subscription.owned,
        settings,
        topics,
        now_ms,
        topics_changed=topics_changed,
    )
    response = JoinGroupResponse(
        generation_id=current.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
        member_id=member_id,
    )
    return Joined(records, response)


# -- SyncGroup


def sync(group: ConsumerGroup, request: SyncGroupRequest, topics: Topics) -> SyncGroupResponse:
    """What the member owns in the generation that it joined.

    Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
    """
    member_id = request.member_id
    classic = _classic(group, member_id, request.group_instance_id)
    current = group.current(member_id)
    if request.generation_id != current.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    name, metadata = classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        name,
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # A member that has partitions to give up does that first; only then it has a new epoch to join.
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    return SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(current.assigned, topics, metadata),
    )


# -- Heartbeat


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
    """NONE or REBALANCE_IN_PROGRESS, which both are signs of life.

    Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
    """
    member_id = request.member_id
    _classic(group, member_id, request.group_instance_id)
    if request.generation_id != group.current(member_id).epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return ErrorCode.REBALANCE_IN_PROGRESS if must_rejoin(group, member_id) else ErrorCode.NONE


def must_rejoin(group: ConsumerGroup, member_id: str) -> bool:
    """Whether there is a step towards its target that the member can take."""
    current = group.current(member_id)
    if current.epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return current.state is MemberState.UNRELEASED_PARTITIONS and all(
        index in current.assigned.get(topic_id, ()) or group.owner(topic_id, index) is None
        for topic_id, indexes in group.targets.get(member_id, {}).items()
        for index in indexes
    )


# -- LeaveGroup


def leave(group: ConsumerGroup, request: LeaveGroupRequest) -> Left:
    """Members leave, or an administrator takes them out: those of the consumer protocol too."""
    left = Left(LeaveGroupResponse(), [])
    for identity in request.members:
        error = ErrorCode.NONE
        member_id = identity.member_id
        instance_id = identity.group_instance_id
        try:
            if instance_id is not None:
                holder = group.static_members.get(instance_id)
                # An administrator knows a static member by the name that it was given.
                member_id = member_id or holder or ""
                check_static(holder, instance_id, member_id)
            if member_id not in group.members:
                raise unknown_member(member_id, group.group_id)
            if member_id not in left.member_ids:
                left.member_ids.append(member_id)
        except KafkaError as raised:
            error = raised.code
        left.response.members.append(
            LeaveGroupResponse.MemberResponse(identity.member_id, instance_id, error)
        )
    return left


def _classic(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ClassicMember:
    """The classic side of the member; UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID if there is none."""
    if instance_id is not None:
        check_static(group.static_members.get(instance_id), instance_id, member_id)
    metadata = group.members.get(member_id)
    if metadata is None or metadata.classic is None:
        raise unknown_member(member_id, group.group_id)
    return metadata.classic
