"""The records of `__share_group_state`, in Kafka 4.3's formats (KIP-932).

Key 0 is a snapshot: all that is known of a group's partition. Key 1 is what has changed since. A
snapshot without a value is a tombstone. Both keys name group, topic id and partition.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kraftpy.core.leases.runs import RecordState
from kraftpy.core.leases.terms import StateBatch
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.messages import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)

_SNAPSHOT = 0
_UPDATE = 1
_VALUE_VERSION = 0

_WRITTEN_STATES = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)

# An id is 16 bytes in base64 without padding: of the last letter two bits count.
_KEY = re.compile(r"(.*\S.*):([A-Za-z0-9_-]{21}[AQgw]):(-?[0-9]{1,10})", re.ASCII | re.DOTALL)

NO_OFFSET = -1
"""The start offset of a partition that nobody has begun to read."""


class ShareKey(NamedTuple):
    """A share-partition: a group's leases on a partition."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """What its partition of `__share_group_state` is found by, and a FindCoordinator names."""
        topic_id = urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{self.group_id}:{topic_id}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> ShareKey:
        """That of a `coordinator_key`; a group's name may have colons. Raises ValueError."""
        found = _KEY.fullmatch(text)
        if found is None:
            raise ValueError("the key of a share-partition is group:topicId:partition")
        group_id, topic_id, partition = found.groups()
        return cls(group_id, urlsafe_b64decode(topic_id + "=="), int(partition))


class Snapshot(NamedTuple):
    """All of a share-partition; `epoch` counts its snapshots."""

    epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    finished_count: int
    created_ms: int
    written_ms: int
    batches: tuple[StateBatch, ...]


class Update(NamedTuple):
    """What has changed since the snapshot of this epoch; start offset -1: that hasn't."""

    epoch: int
    leader_epoch: int
    start_offset: int
    finished_count: int
    batches: tuple[StateBatch, ...]


class ShareRecord(NamedTuple):
    """A record: a tombstone has no value."""

    key: ShareKey
    value: Snapshot | Update | None


_Batch: TypeAlias = ShareSnapshotValue.StateBatch | ShareUpdateValue.StateBatch


def encode_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value bytes; ValueError for a name that is too long for its field."""
    key, value = record
    if isinstance(value, Update):
        update = ShareUpdateValue(
            value.epoch,
            value.leader_epoch,
            value.start_offset,
            value.finished_count,
            [ShareUpdateValue.StateBatch(*each) for each in value.batches],
        )
        return (
            encode_versioned("ShareUpdateKey", _UPDATE, ShareUpdateKey(*key)),
            encode_versioned("ShareUpdateValue", _VALUE_VERSION, update),
        )
    data = None
    if value is not None:
        snapshot = ShareSnapshotValue(
            value.epoch,
            value.state_epoch,
            value.leader_epoch,
            value.start_offset,
            value.finished_count,
            value.created_ms,
            value.written_ms,
            [ShareSnapshotValue.StateBatch(*each) for each in value.batches],
        )
        data = encode_versioned("ShareSnapshotValue", _VALUE_VERSION, snapshot)
    return encode_versioned("ShareSnapshotKey", _SNAPSHOT, ShareSnapshotKey(*key)), data


def decode_record(key: bytes | None, value: bytes | None) -> ShareRecord | None:
    """The record behind these bytes, None for a kind that is not known here.

    Raises `DecodeError` for bytes that are no such record, and for what can't have been written.
    """
    if key is None or len(key) < 2:
        raise DecodeError("a record of the share groups' topic needs a key with its kind")
    kind = int.from_bytes(key[:2], "big", signed=True)
    if kind not in (_SNAPSHOT, _UPDATE):
        return None
    name = "ShareUpdate" if kind == _UPDATE else "ShareSnapshot"
    _, decoded = decode_versioned(f"{name}Key", key)
    share = ShareKey(decoded.group_id, bytes(decoded.topic_id), decoded.partition)
    if share.partition < 0:
        raise DecodeError(f"group {share.group_id!r} has a partition {share.partition}")
    if value is None:
        if kind == _UPDATE:
            raise DecodeError(f"{share} has an update without a value")
        return ShareRecord(share, None)
    _, body = decode_versioned(f"{name}Value", value)
    batches = _batches(share, body.state_batches)
    if isinstance(body, ShareUpdateValue):
        return ShareRecord(
            share,
            Update(
                body.snapshot_epoch,
                body.leader_epoch,
                body.start_offset,
                body.delivery_complete_count,
                batches,
            ),
        )
    return ShareRecord(
        share,
        Snapshot(
            body.snapshot_epoch,
            body.state_epoch,
            body.leader_epoch,
            body.start_offset,
            body.delivery_complete_count,
            body.create_timestamp,
            body.write_timestamp,
            batches,
        ),
    )


def _batches(key: ShareKey, batches: Iterable[_Batch]) -> tuple[StateBatch, ...]:
    found = tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in batches
    )
    if not are_sound(found):
        raise DecodeError(f"{key} can't be in such a state: {found[:10]}")
    return found


def are_sound(batches: Sequence[StateBatch]) -> bool:
    """Whether a leader can have written these."""
    return all(
        0 <= first <= last and state in _WRITTEN_STATES and deliveries >= 0
        for first, last, state, deliveries in batches
    )
