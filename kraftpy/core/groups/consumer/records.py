"""The records of KIP-848 consumer groups in `__consumer_offsets`, in Kafka 4.3's formats.

Six kinds, by the number that starts the key: 3 the group's epoch, 5 a member's subscription, 6 the
epoch of the target assignment, 7 a member's target, 8 a member's current assignment, 16 a resolved
regular expression. No value is a tombstone. Kind 4, which held the metadata of topics before Kafka
4.1 (KIP-1101), is not read.

What is replayed is a function of the last value of each key alone, as compaction demands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeAlias

from kraftpy.core.groups.consumer.assignors import Uuid
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.codec import decode_versioned, decoder, encode_versioned, encoder
from kraftpy.protocol.errors import DecodeError

# Partitions by topic id; those of a current assignment with the epoch in which each was assigned.
Partitions: TypeAlias = Mapping[Uuid, frozenset[int]]
EpochedPartitions: TypeAlias = Mapping[Uuid, Mapping[int, int]]

# A partition assigned by a Kafka older than 4.3 has no epoch: it was assigned before all that have.
NO_ASSIGNMENT_EPOCH = 0

_VALUE_VERSION = 0

# The classic side of a member is a tagged field that Kafka writes even if it is null, since its
# readers take a missing one for a classic member without anything. A byte says what follows.
_CLASSIC_TAG = 0
_CLASSIC_NAME = "ConsumerGroupClassicMemberMetadata"
_NO_CLASSIC = b"\0"
_CLASSIC_FOLLOWS = b"\1"


class MemberState(IntEnum):
    """How far a member is on its way to its target; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ClassicProtocol(NamedTuple):
    name: str
    metadata: bytes


class ClassicMember(NamedTuple):
    """What a member of a consumer group that speaks the classic protocol brought with it."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]


class MemberMetadata(NamedTuple):
    """Who a member is and what it asks for.

    `topic_names` are sorted; `topic_regex` "" or None is no regex; `server_assignor` None is no
    wish; `classic` is for members that speak the classic protocol.
    """

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMember | None


class CurrentAssignment(NamedTuple):
    """What a member may own: `assigned`, and `revoking` until it says that it gave that up."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: EpochedPartitions
    revoking: EpochedPartitions


class GroupEpoch(NamedTuple):
    """`metadata_hash` is of the subscribed topics as they were in this epoch (signed 64 bits)."""

    epoch: int
    metadata_hash: int


class TargetEpoch(NamedTuple):
    """The group epoch that the target assignment was made for, and when (ms since 1970)."""

    epoch: int
    timestamp_ms: int


class ResolvedRegex(NamedTuple):
    """The topics that matched when looked at, sorted; `version` is of the metadata at the time."""

    topic_names: tuple[str, ...]
    version: int
    timestamp_ms: int


class GroupEpochRecord(NamedTuple):
    group_id: str
    value: GroupEpoch | None


class MemberRecord(NamedTuple):
    group_id: str
    member_id: str
    value: MemberMetadata | None


class TargetEpochRecord(NamedTuple):
    group_id: str
    value: TargetEpoch | None


class TargetRecord(NamedTuple):
    group_id: str
    member_id: str
    value: Partitions | None


class CurrentRecord(NamedTuple):
    group_id: str
    member_id: str
    value: CurrentAssignment | None


class RegexRecord(NamedTuple):
    group_id: str
    regex: str
    value: ResolvedRegex | None


ConsumerRecord: TypeAlias = (
    GroupEpochRecord | MemberRecord | TargetEpochRecord | TargetRecord | CurrentRecord | RegexRecord
)

_KEY_NAMES = {
    3: "ConsumerGroupMetadataKey",
    5: "ConsumerGroupMemberMetadataKey",
    6: "ConsumerGroupTargetAssignmentMetadataKey",
    7: "ConsumerGroupTargetAssignmentMemberKey",
    8: "ConsumerGroupCurrentMemberAssignmentKey",
    16: "ConsumerGroupRegularExpressionKey",
}
KINDS = frozenset(_KEY_NAMES)


# -- encoding


def encode_consumer_record(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value bytes."""
    kind, value = _KIND_AND_VALUE[type(record)](record)
    key_name = _KEY_NAMES[kind]
    # Keys are what the records start with: the group, then the member or the regex if there is one.
    key = encode_versioned(key_name, kind, getattr(messages, key_name)(*record[:-1]))
    if value is None:
        return key, None
    return key, encode_versioned(type(value).__name__, _VALUE_VERSION, value)


def _epoch_value(record: GroupEpochRecord) -> tuple[int, Any]:
    value = record.value
    return 3, None if value is None else messages.ConsumerGroupMetadataValue(*value)


def _member_value(record: MemberRecord) -> tuple[int, Any]:
    value = record.value
    if value is None:
        return 5, None
    return 5, messages.ConsumerGroupMemberMetadataValue(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=list(value.topic_names),
        subscribed_topic_regex=value.topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        _tags={_CLASSIC_TAG: _encode_classic(value.classic)},
    )


def _encode_classic(classic: ClassicMember | None) -> bytes:
    if classic is None:
        return _NO_CLASSIC
    parts = [_CLASSIC_FOLLOWS]
    protocols = [
        messages.ConsumerGroupClassicMemberMetadata.ClassicProtocol(*protocol)
        for protocol in classic.protocols
    ]
    encoder(_CLASSIC_NAME, _VALUE_VERSION)(
        messages.ConsumerGroupClassicMemberMetadata(classic.session_timeout_ms, protocols),
        parts.append,
    )
    return b"".join(parts)


def _target_epoch_value(record: TargetEpochRecord) -> tuple[int, Any]:
    value = record.value
    return 6, None if value is None else messages.ConsumerGroupTargetAssignmentMetadataValue(*value)


def _target_value(record: TargetRecord) -> tuple[int, Any]:
    value = record.value
    if value is None:
        return 7, None
    return 7, messages.ConsumerGroupTargetAssignmentMemberValue(
        [
            messages.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(
                topic_id, sorted(value[topic_id])
            )
            for topic_id in sorted(value)
        ]
    )


def _current_value(record: CurrentRecord) -> tuple[int, Any]:
    value = record.value
    if value is None:
        return 8, None
    return 8, messages.ConsumerGroupCurrentMemberAssignmentValue(
        value.epoch,
        value.previous_epoch,
        value.state,
        _epoched(value.assigned),
        _epoched(value.revoking),
    )


def _epoched(
    partitions: EpochedPartitions,
) -> list[messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    rows = []
    for topic_id in sorted(partitions):
        indexes = sorted(partitions[topic_id])
        epochs = [partitions[topic_id][index] for index in indexes]
        rows.append(
            messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
                topic_id, indexes, epochs
            )
        )
    return rows


def _regex_value(record: RegexRecord) -> tuple[int, Any]:
    value = record.value
    if value is None:
        return 16, None
    return 16, messages.ConsumerGroupRegularExpressionValue(
        list(value.topic_names), value.version, value.timestamp_ms
    )


_KIND_AND_VALUE: dict[type, Any] = {
    GroupEpochRecord: _epoch_value,
    MemberRecord: _member_value,
    TargetEpochRecord: _target_epoch_value,
    TargetRecord: _target_value,
    CurrentRecord: _current_value,
    RegexRecord: _regex_value,
}


# -- decoding


def decode_consumer_record(kind: int, key: bytes, value: bytes | None) -> ConsumerRecord:
    """The record of one of `KINDS` behind these bytes.

    Raises `DecodeError` for bytes that are no such record, and for values that could not have been.
    """
    key_name = _KEY_NAMES[kind]
    _, decoded_key = decode_versioned(key_name, key)
    decoded: Any = None
    if value is not None:
        _, decoded = decode_versioned(key_name.removesuffix("Key") + "Value", value)
    group_id = decoded_key.group_id
    if kind == 3:
        return GroupEpochRecord(
            group_id, decoded and GroupEpoch(_epoch(decoded.epoch), decoded.metadata_hash)
        )
    if kind == 6:
        return TargetEpochRecord(
            group_id,
            decoded and TargetEpoch(_epoch(decoded.assignment_epoch), decoded.assignment_timestamp),
        )
    if kind == 16:
        regex = decoded_key.regular_expression
        return RegexRecord(
            group_id,
            regex,
            decoded
            and ResolvedRegex(
                tuple(sorted(set(decoded.topics))), decoded.version, decoded.timestamp
            ),
        )
    member_id = decoded_key.member_id
    if kind == 5:
        return MemberRecord(group_id, member_id, decoded and _decode_member(decoded))
    if kind == 7:
        return TargetRecord(group_id, member_id, decoded and _decode_target(decoded))
    return CurrentRecord(group_id, member_id, decoded and _decode_current(decoded))


def _decode_member(value: messages.ConsumerGroupMemberMetadataValue) -> MemberMetadata:
    return MemberMetadata(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=tuple(sorted(set(value.subscribed_topic_names))),
        topic_regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=_decode_classic((value._tags or {}).get(_CLASSIC_TAG, _NO_CLASSIC)),
    )


def _decode_classic(data: bytes) -> ClassicMember | None:
    if data[:1] != _CLASSIC_FOLLOWS:
        return None
    decoded, end = decoder(_CLASSIC_NAME, _VALUE_VERSION)(data, 1)
    if end != len(data):
        raise DecodeError(f"{_CLASSIC_NAME} ends {len(data) - end} bytes early")
    return ClassicMember(
        decoded.session_timeout_ms,
        tuple(ClassicProtocol(each.name, each.metadata) for each in decoded.supported_protocols),
    )


def _decode_target(value: messages.ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return {
        row.topic_id: frozenset(_indexes(row.partitions))
        for row in value.topic_partitions
        if row.partitions
    }


def _decode_current(
    value: messages.ConsumerGroupCurrentMemberAssignmentValue,
) -> CurrentAssignment:
    try:
        state = MemberState(value.state)
    except ValueError:
        raise DecodeError(f"a member of a consumer group can't be in state {value.state}") from None
    return CurrentAssignment(
        value.member_epoch,
        value.previous_member_epoch,
        state,
        _decode_epoched(value.assigned_partitions),
        _decode_epoched(value.partitions_pending_revocation),
    )


def _decode_epoched(
    rows: Iterable[messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions],
) -> EpochedPartitions:
    result = {}
    for row in rows:
        indexes = _indexes(row.partitions)
        epochs = row.assignment_epochs
        if epochs is None:
            epochs = [NO_ASSIGNMENT_EPOCH] * len(indexes)
        elif len(epochs) != len(indexes):
            raise DecodeError("an assignment has not as many epochs as partitions")
        if indexes:
            result[row.topic_id] = dict(zip(indexes, epochs, strict=True))
    return result


def _indexes(partitions: list[int]) -> list[int]:
    if any(index < 0 for index in partitions):
        raise DecodeError("an assignment has a negative partition")
    return partitions


def _epoch(epoch: int) -> int:
    if epoch < 0:
        raise DecodeError(f"a consumer group can't be in epoch {epoch}")
    return epoch
