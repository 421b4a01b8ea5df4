"""How a group changes its protocol while it is in use (KIP-848, "Migration").

* Upgrade: a heartbeat of the consumer protocol comes to a classic group. Its members stay, as
  classic members of a consumer group, with what they were last given; who leads it and what it was
  in the middle of doing is forgotten. A cooperative member that has to give partitions up does so
  only after it was given the others: what it said that it owns is its own until it joins again.
* Downgrade: the last members of the consumer protocol go, and all others are classic. They go on in
  a classic group, which rebalances at once.

Either is one batch: tombstones of one kind and the records of the other. So the log always holds
one group or the other. Nothing here changes a group; what the records say happens when they are
committed.

In the record of a downgraded group those who go are still there, as in any classic group that has
not finished the rebalance which follows a departure: if the coordinator dies before that is over,
the next one finds that they don't heartbeat. Without, their partitions would lie idle, since who is
left has no reason to rejoin.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.embedded import (
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kraftpy.core.groups.consumer.records import (
    ClassicMember,
    ClassicProtocol,
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    Partitions,
    RegexRecord,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from kraftpy.core.groups.consumer.state import ConsumerGroup
from kraftpy.core.groups.consumer.topics import NO_TOPICS_HASH, Topics
from kraftpy.core.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from kraftpy.core.groups.records import (
    CoordinatorRecord,
    GroupRecord,
    GroupSnapshot,
    MemberSnapshot,
)
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError

log = logging.getLogger(__name__)


# -- upgrade


def upgrade(group: Group, topics: Topics) -> list[CoordinatorRecord]:
    """The records that make a consumer group of a classic one with members.

    Raises KafkaError: GROUP_ID_NOT_FOUND, if what a member said of itself can't be read.
    """
    epoch = group.generation
    try:
        subscriptions = {
            # All protocols of a consumer come with the same subscription.
            member_id: read_subscription(next(iter(member.protocols.values())), topics)
            for member_id, member in group.members.items()
        }
        given = [
            (member_id, read_assignment(member.assignment, topics))
            for member_id, member in group.members.items()
        ]
    except DecodeError as error:
        log.warning("group %r can't become a consumer group: %s", group.group_id, error)
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"group {group.group_id!r} can't be upgraded: {error}"
        ) from None
    said = [
        (member_id, {owned.topic_id: frozenset(owned.partitions) for owned in subscription.owned})
        for member_id, subscription in subscriptions.items()
    ]
    assignments = _disjoint([*given, *said])
    name = group.group_id
    return [
        GroupRecord(name, None),
        *(
            MemberRecord(name, member_id, _upgraded_member(member, subscriptions[member_id]))
            for member_id, member in group.members.items()
        ),
        GroupEpochRecord(name, GroupEpoch(epoch, NO_TOPICS_HASH)),
        *(TargetRecord(name, member_id, given) for member_id, given in assignments.items()),
        TargetEpochRecord(name, TargetEpoch(epoch, group.state_timestamp_ms)),
        *(
            CurrentRecord(name, member_id, _reconciled(given, epoch))
            for member_id, given in assignments.items()
        ),
    ]


def _upgraded_member(member: Member, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=subscription.topic_names,
        topic_regex=None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic=ClassicMember(
            member.session_timeout_ms,
            tuple(ClassicProtocol(*protocol) for protocol in member.protocols.items()),
        ),
    )


def _disjoint(claims: Iterable[tuple[str, Partitions]]) -> dict[str, Partitions]:
    """What classic members claim, each partition once: nobody checks what a leader assigns.

    The first claim counts; every member is in the result.
    """
    taken: dict[Uuid, set[int]] = {}
    result: dict[str, dict[Uuid, frozenset[int]]] = {}
    for member_id, claimed in claims:
        owned = result.setdefault(member_id, {})
        for topic_id, indexes in claimed.items():
            free = indexes - taken.setdefault(topic_id, set())
            if free:
                taken[topic_id] |= free
                owned[topic_id] = owned.get(topic_id, frozenset()) | free
    return dict(result)


def _reconciled(given: Partitions, epoch: int) -> CurrentAssignment:
    assigned = {topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in given.items()}
    return CurrentAssignment(epoch, epoch, MemberState.STABLE, assigned, {})


# -- downgrade


def leaves_classic_members_only(group: ConsumerGroup, going: Collection[str]) -> bool:
    """Whether these are the last of the consumer protocol, and some classic members stay."""
    staying = [metadata for known, metadata in group.members.items() if known not in going]
    return (
        bool(staying)
        and all(metadata.classic is not None for metadata in staying)
        and any(group.members[member_id].classic is None for member_id in going)
    )


def downgrade(
    group: ConsumerGroup,
    going: Collection[str],
    session_timeout_ms: int,
    topics: Topics,
    now_ms: int,
) -> list[CoordinatorRecord]:
    """The records that make a classic group of this one, from which members `going` go.

    `session_timeout_ms` is the time that those are waited for if the coordinator dies.
    """
    protocol_name = select_protocol(group)
    members = []
    for member_id, metadata in group.members.items():
        protocols = dict(metadata.classic.protocols) if metadata.classic else {}
        subscription = protocols.get(protocol_name)
        if subscription is None:
            subscription = write_subscription(group.subscribed_names(metadata))
        members.append(
            MemberSnapshot(
                member_id,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                metadata.rebalance_timeout_ms,
                metadata.classic.session_timeout_ms if metadata.classic else session_timeout_ms,
                subscription,
                # What it owns, not what it is to get: that may be another's still.
                write_assignment(group.current(member_id).assigned, topics, subscription),
            )
        )
    snapshot = GroupSnapshot(
        CONSUMER_PROTOCOL_TYPE,
        group.epoch,
        protocol_name,
        next(member.member_id for member in members if member.member_id not in going),
        now_ms,
        tuple(members),
    )
    return [*tombstones(group), GroupRecord(group.group_id, snapshot)]


def emptied(group: ConsumerGroup, now_ms: int) -> list[CoordinatorRecord]:
    """The records that make an empty classic group of an empty consumer group."""
    assert not group.members
    snapshot = GroupSnapshot(CONSUMER_PROTOCOL_TYPE, 0, None, None, now_ms, ())
    return [*tombstones(group), GroupRecord(group.group_id, snapshot)]


def select_protocol(group: ConsumerGroup) -> str:
    """The protocol that all classic members support and most like best."""
    preferences = [
        [protocol.name for protocol in metadata.classic.protocols]
        for metadata in group.members.values()
        if metadata.classic is not None
    ]
    candidates = set(preferences[0]).intersection(*preferences[1:])
    votes: dict[str, int] = {}
    for names in preferences:
        choice = next(name for name in names if name in candidates)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__)


def tombstones(group: ConsumerGroup) -> list[ConsumerRecord]:
    """Records after which the log holds nothing of the group."""
    name = group.group_id
    return [
        *(CurrentRecord(name, member_id, None) for member_id in group.currents),
        *(TargetRecord(name, member_id, None) for member_id in group.targets),
        TargetEpochRecord(name, None),
        *(MemberRecord(name, member_id, None) for member_id in group.members),
        *(RegexRecord(name, regex, None) for regex in group.regexes),
        GroupEpochRecord(name, None),
    ]
