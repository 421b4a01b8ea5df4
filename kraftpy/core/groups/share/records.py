"""The records of share groups in `__consumer_offsets`, in Kafka 4.3's formats (KIP-932).

Six kinds, by the number that starts the key: 10 a member's subscription, 11 the group's epoch, 12
the epoch of the target assignment, 13 a member's target, 14 what a member has been told to read, 15
which share-partitions have a state at their share coordinator, are to have one, or to lose it. No
value is a tombstone.

What is replayed is a function of the last value of each key alone, as compaction demands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.core.groups.consumer.records import GroupEpoch, Partitions, TargetEpoch
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import DecodeError

_VALUE_VERSION = 0
_STABLE = 0


class ShareMember(NamedTuple):
    """Who a member is and what it asks for; `topic_names` are sorted."""

    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]


class ShareAssignment(NamedTuple):
    """What a member has been told to read, and its epoch."""

    epoch: int
    previous_epoch: int
    assigned: Partitions


class TopicShares(NamedTuple):
    """Partitions of a topic."""

    name: str
    partitions: frozenset[int]


class ShareStates(NamedTuple):
    """The states that the share coordinators keep for the group, or are to keep, by topic id.

    All states of what is in `deleting`, by id and name, are to go.
    """

    initializing: Mapping[Uuid, TopicShares]
    initialized: Mapping[Uuid, TopicShares]
    deleting: Mapping[Uuid, str]


class ShareEpochRecord(NamedTuple):
    group_id: str
    value: GroupEpoch | None


class ShareMemberRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ShareMember | None


class ShareTargetEpochRecord(NamedTuple):
    group_id: str
    value: TargetEpoch | None


class ShareTargetRecord(NamedTuple):
    group_id: str
    member_id: str
    value: Partitions | None


class ShareAssignmentRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ShareAssignment | None


class ShareStatesRecord(NamedTuple):
    group_id: str
    value: ShareStates | None


ShareRecord: TypeAlias = (
    ShareEpochRecord
    | ShareMemberRecord
    | ShareTargetEpochRecord
    | ShareTargetRecord
    | ShareAssignmentRecord
    | ShareStatesRecord
)

_NAMES = {
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
}
KINDS = frozenset(_NAMES)

_KIND_OF: dict[type, int] = {
    ShareMemberRecord: 10,
    ShareEpochRecord: 11,
    ShareTargetEpochRecord: 12,
    ShareTargetRecord: 13,
    ShareAssignmentRecord: 14,
    ShareStatesRecord: 15,
}
# As a tuple of its own, for `isinstance`.
SHARE_RECORDS = (
    ShareEpochRecord,
    ShareMemberRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    ShareAssignmentRecord,
    ShareStatesRecord,
)


# -- encoding


def encode_share_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value bytes."""
    kind = _KIND_OF[type(record)]
    name = _NAMES[kind]
    # Keys are what the records start with: the group, then the member if there is one.
    key_class = getattr(messages, f"{name}Key")
    key = encode_versioned(f"{name}Key", kind, key_class(*record[:-1]))
    value = _value_of(record)
    return key, None if value is None else encode_versioned(f"{name}Value", _VALUE_VERSION, value)


def _value_of(record: ShareRecord) -> Any:
    if record.value is None:
        return None
    if isinstance(record, ShareEpochRecord):
        return messages.ShareGroupMetadataValue(*record.value)
    if isinstance(record, ShareMemberRecord):
        rack_id, client_id, host, names = record.value
        return messages.ShareGroupMemberMetadataValue(rack_id, client_id, host, list(names))
    if isinstance(record, ShareTargetEpochRecord):
        return messages.ShareGroupTargetAssignmentMetadataValue(*record.value)
    if isinstance(record, ShareTargetRecord):
        targets = messages.ShareGroupTargetAssignmentMemberValue
        return targets(
            [
                targets.TopicPartition(topic_id, sorted(record.value[topic_id]))
                for topic_id in sorted(record.value)
            ]
        )
    if isinstance(record, ShareAssignmentRecord):
        currents = messages.ShareGroupCurrentMemberAssignmentValue
        epoch, previous_epoch, assigned = record.value
        rows = [
            currents.TopicPartitions(topic_id, sorted(assigned[topic_id]))
            for topic_id in sorted(assigned)
        ]
        return currents(epoch, previous_epoch, _STABLE, rows)
    return _states_value(record.value)


def _states_value(states: ShareStates) -> messages.ShareGroupStatePartitionMetadataValue:
    kinds = messages.ShareGroupStatePartitionMetadataValue

    def rows(topics: Mapping[Uuid, TopicShares]) -> list[Any]:
        return [
            kinds.TopicPartitionsInfo(topic_id, shares.name, sorted(shares.partitions))
            for topic_id, shares in sorted(topics.items())
        ]

    deleting = [kinds.TopicInfo(*each) for each in sorted(states.deleting.items())]
    return kinds(rows(states.initializing), rows(states.initialized), deleting)


# -- decoding


def decode_share_record(kind: int, key: bytes, value: bytes | None) -> ShareRecord:
    """The record of one of `KINDS` behind these bytes.

    Raises `DecodeError` for bytes that are no such record, and for values that could not have been.
    """
    name = _NAMES[kind]
    _, decoded_key = decode_versioned(f"{name}Key", key)
    decoded: Any = None
    if value is not None:
        _, decoded = decode_versioned(f"{name}Value", value)
    group_id = decoded_key.group_id
    if kind == 11:
        return ShareEpochRecord(
            group_id, decoded and GroupEpoch(_epoch(decoded.epoch), decoded.metadata_hash)
        )
    if kind == 12:
        return ShareTargetEpochRecord(
            group_id,
            decoded and TargetEpoch(_epoch(decoded.assignment_epoch), decoded.assignment_timestamp),
        )
    if kind == 15:
        return ShareStatesRecord(group_id, decoded and _states(decoded))
    member_id = decoded_key.member_id
    if kind == 10:
        return ShareMemberRecord(group_id, member_id, decoded and _member(decoded))
    if kind == 13:
        return ShareTargetRecord(
            group_id, member_id, None if decoded is None else _partitions(decoded.topic_partitions)
        )
    return ShareAssignmentRecord(
        group_id,
        member_id,
        decoded
        and ShareAssignment(
            decoded.member_epoch,
            decoded.previous_member_epoch,
            _partitions(decoded.assigned_partitions),
        ),
    )


def _member(value: messages.ShareGroupMemberMetadataValue) -> ShareMember:
    return ShareMember(
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(sorted(set(value.subscribed_topic_names))),
    )


def _partitions(rows: Any) -> Partitions:
    return {row.topic_id: _indexes(row.partitions) for row in rows if row.partitions}


def _states(value: messages.ShareGroupStatePartitionMetadataValue) -> ShareStates:
    def topics(rows: Any) -> dict[Uuid, TopicShares]:
        return {
            row.topic_id: TopicShares(row.topic_name, _indexes(row.partitions))
            for row in rows
            if row.partitions
        }

    return ShareStates(
        topics(value.initializing_topics),
        topics(value.initialized_topics),
        {row.topic_id: row.topic_name for row in value.deleting_topics},
    )


def _indexes(partitions: list[int]) -> frozenset[int]:
    if any(index < 0 for index in partitions):
        raise DecodeError("a share group has a negative partition")
    return frozenset(partitions)


def _epoch(epoch: int) -> int:
    if epoch < 0:
        raise DecodeError(f"a share group can't be in epoch {epoch}")
    return epoch
