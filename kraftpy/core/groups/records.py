"""The records of `__consumer_offsets`, in Kafka's own formats.

Four families: a committed offset (OffsetCommitKey version 0-1, value version 0-4), the state of a
classic group (GroupMetadataKey version 2, value version 0-4), what makes up a KIP-848 group
(`consumer.records`), and a share group (`share.records`). A record without a value is a tombstone.
What members exchange inside a group (ConsumerProtocol) stays opaque bytes.

Written versions are those that every Kafka since 2.1 reads: 3, and 1 for an offset with an expiry
time of its own (only that version has the field).
"""

from __future__ import annotations

import contextlib
import struct
from functools import lru_cache
from typing import TypeAlias

from kraftpy.core.groups.consumer.records import (
    KINDS,
    ConsumerRecord,
    decode_consumer_record,
    encode_consumer_record,
)
from kraftpy.core.groups.share import records as share_records
from kraftpy.core.groups.share.records import SHARE_RECORDS, ShareRecord
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import DecodeError

NO_TIMESTAMP = -1

# The string fields of these versions have a 16-bit length.
STRING_MAX_BYTES = 32_767

_OFFSET_KEY_VERSION = 1
_OFFSET_VALUE_VERSION = 3
_OFFSET_VALUE_WITH_EXPIRY_VERSION = 1
_GROUP_KEY_VERSION = 2
_GROUP_VALUE_VERSION = 3

# Nearly all records are offsets without metadata, and many of one group and topic follow each
# other: their values have one layout (version, offset, leader epoch, length of the metadata, time),
# and their keys differ in the last field.
PLAIN_OFFSET_VALUE = struct.Struct(">hqihq")
_INT32 = struct.Struct(">i")
_KNOWN_PREFIXES = 1024


class CommittedOffset(NamedTuple):
    """What a group committed for one partition; times in milliseconds since 1970.

    `expire_timestamp_ms` is -1 unless the client asked for a retention of its own (OffsetCommit
    version 2-4).
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int


class OffsetRecord(NamedTuple):
    """A committed offset, or its tombstone (`committed` None)."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


class MemberSnapshot(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupSnapshot(NamedTuple):
    """A classic group's state at the end of a rebalance: stable with members, or empty."""

    protocol_type: str | None
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberSnapshot, ...]


class GroupRecord(NamedTuple):
    """A group's state, or its tombstone (`snapshot` None)."""

    group_id: str
    snapshot: GroupSnapshot | None


CoordinatorRecord: TypeAlias = OffsetRecord | GroupRecord | ConsumerRecord | ShareRecord


def too_long(text: str) -> bool:
    """Whether the text does not fit into a record's string field."""
    # A code point takes at most four bytes, so most texts need no encoding to be sure.
    return len(text) * 4 > STRING_MAX_BYTES and len(text.encode()) > STRING_MAX_BYTES


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value bytes."""
    if isinstance(record, OffsetRecord):
        return _encode_offset(record)
    if isinstance(record, GroupRecord):
        return _encode_group(record)
    if isinstance(record, SHARE_RECORDS):
        return share_records.encode_share_record(record)
    return encode_consumer_record(record)


def _encode_offset(record: OffsetRecord) -> tuple[bytes, bytes | None]:
    group_id, topic, partition, committed = record
    key = offset_key_prefix(group_id, topic) + _INT32.pack(partition)
    if committed is None:
        return key, None
    offset, epoch, metadata, time_ms, expire_ms = committed
    if metadata or expire_ms != NO_TIMESTAMP:
        value = messages.OffsetCommitValue(offset, epoch, metadata, time_ms, expire_ms)
        version = (
            _OFFSET_VALUE_VERSION
            if expire_ms == NO_TIMESTAMP
            else _OFFSET_VALUE_WITH_EXPIRY_VERSION
        )
        return key, encode_versioned("OffsetCommitValue", version, value)
    return key, PLAIN_OFFSET_VALUE.pack(_OFFSET_VALUE_VERSION, offset, epoch, 0, time_ms)


@lru_cache(maxsize=_KNOWN_PREFIXES)
def offset_key_prefix(group_id: str, topic: str) -> bytes:
    """The key of an offset without the partition, which is its last field."""
    key = messages.OffsetCommitKey(group_id, topic, 0)
    return encode_versioned("OffsetCommitKey", _OFFSET_KEY_VERSION, key)[: -_INT32.size]


def _encode_group(record: GroupRecord) -> tuple[bytes, bytes | None]:
    key = encode_versioned(
        "GroupMetadataKey", _GROUP_KEY_VERSION, messages.GroupMetadataKey(record.group_id)
    )
    snapshot = record.snapshot
    if snapshot is None:
        return key, None
    value = messages.GroupMetadataValue(
        protocol_type=snapshot.protocol_type or "",
        generation=snapshot.generation,
        protocol=snapshot.protocol_name,
        leader=snapshot.leader,
        current_state_timestamp=snapshot.state_timestamp_ms,
        members=[
            messages.GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in snapshot.members
        ],
    )
    return key, encode_versioned("GroupMetadataValue", _GROUP_VALUE_VERSION, value)


def decode_record(key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """The record behind these bytes, None for a kind that is not known here.

    Kafka skips unknown kinds too: a newer coordinator may have written them. Raises `DecodeError`
    for bytes that are no such record, and for a group that could not have been.
    """
    if key is None or len(key) < 2:
        raise DecodeError("a record of the offsets topic needs a key that starts with its version")
    kind = int.from_bytes(key[:2], "big", signed=True)
    if kind in (0, 1):
        return _decode_offset(key, value)
    if kind == _GROUP_KEY_VERSION:
        return _decode_group(key, value)
    if kind in KINDS:
        return decode_consumer_record(kind, key, value)
    if kind in share_records.KINDS:
        return share_records.decode_share_record(kind, key, value)
    return None


def _decode_offset(key: bytes, value: bytes | None) -> OffsetRecord:
    group_id, topic = decode_key_prefix(bytes(key[: -_INT32.size]))
    (partition,) = _INT32.unpack_from(key, len(key) - _INT32.size)
    if partition < 0:
        raise DecodeError(f"group {group_id!r}: {topic!r} can't have a partition {partition}")
    committed = None
    if value is not None:
        if len(value) == PLAIN_OFFSET_VALUE.size:
            version, offset, epoch, length, time_ms = PLAIN_OFFSET_VALUE.unpack(value)
            if version == _OFFSET_VALUE_VERSION and not length:
                committed = CommittedOffset(offset, epoch, "", time_ms, NO_TIMESTAMP)
                return OffsetRecord(group_id, topic, partition, committed)
        _, decoded = decode_versioned("OffsetCommitValue", value)
        assert isinstance(decoded, messages.OffsetCommitValue)
        committed = CommittedOffset(
            decoded.offset,
            decoded.leader_epoch,
            decoded.metadata,
            decoded.commit_timestamp,
            decoded.expire_timestamp,
        )
    return OffsetRecord(group_id, topic, partition, committed)


@lru_cache(maxsize=_KNOWN_PREFIXES)
def decode_key_prefix(prefix: bytes) -> tuple[str, str]:
    """Group and topic of an offset's key without its partition; raises `DecodeError`."""
    # After the version, either text has its length in front. A log may have a million groups.
    group_end = 4 + int.from_bytes(prefix[2:4], "big")
    topic_start = group_end + 2
    if topic_start + int.from_bytes(prefix[group_end:topic_start], "big") == len(prefix):
        with contextlib.suppress(UnicodeDecodeError):
            return prefix[4:group_end].decode(), prefix[topic_start:].decode()
    _, decoded = decode_versioned("OffsetCommitKey", prefix + bytes(_INT32.size))
    assert isinstance(decoded, messages.OffsetCommitKey)
    return decoded.group, decoded.topic


def _decode_group(key: bytes, value: bytes | None) -> GroupRecord:
    _, decoded_key = decode_versioned("GroupMetadataKey", key)
    assert isinstance(decoded_key, messages.GroupMetadataKey)
    if value is None:
        return GroupRecord(decoded_key.group, None)
    version, decoded = decode_versioned("GroupMetadataValue", value)
    assert isinstance(decoded, messages.GroupMetadataValue)
    members = tuple(
        MemberSnapshot(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            # Version 0 had no rebalance timeout: the session timeout stood for both.
            member.session_timeout
            if version == 0 or member.rebalance_timeout == -1
            else member.rebalance_timeout,
            member.session_timeout,
            member.subscription,
            member.assignment,
        )
        for member in decoded.members
    )
    snapshot = GroupSnapshot(
        decoded.protocol_type or None,
        decoded.generation,
        decoded.protocol,
        decoded.leader,
        decoded.current_state_timestamp,
        members,
    )
    _check_group(decoded_key.group, snapshot)
    return GroupRecord(decoded_key.group, snapshot)


def _check_group(group_id: str, snapshot: GroupSnapshot) -> None:
    """Refuses a group that no coordinator can have written, before it breaks a rule elsewhere."""
    members = snapshot.members
    if not members:
        return
    if snapshot.protocol_type is None or snapshot.protocol_name is None:
        raise DecodeError(f"group {group_id!r} has members but no protocol")
    member_ids = {member.member_id for member in members}
    if len(member_ids) != len(members):
        raise DecodeError(f"group {group_id!r} lists a member twice")
    if snapshot.leader not in member_ids:
        raise DecodeError(f"group {group_id!r} is led by {snapshot.leader!r}, which is no member")
    instances = [m.group_instance_id for m in members if m.group_instance_id is not None]
    if len(set(instances)) != len(instances):
        raise DecodeError(f"group {group_id!r} lists a static member twice")
