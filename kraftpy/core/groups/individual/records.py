"""The records of `__individual_commit_offsets`: one claim each.

Rules:
* Key, version 0: group and topic (strings with a 16-bit length), partition (int32), the slice's
  first and last hash and the claim's first offset (int64 each). Value, version 0: topic id, last
  offset (int64), leader epoch of the last offset (int32), commit time (int64, ms since 1970), and
  tagged fields, of which none is known. All big-endian. No value is a tombstone.
* What a transaction claims has keys of version 1, which end with its producer's id (int64) and
  epoch (int16). So it never takes the place of another claim in the log, nor another one its place,
  however the transaction ends.
* A claim that grows at its end overwrites itself. One that goes into another has a tombstone, in
  the same batch.
* What a later release wrote is passed over and stays: it may come again as repeats, never as a gap.

Source: seed 001, "Individual Commit", with a claim in the place of its offset range.
"""

from __future__ import annotations

import struct

from kraftpy.core.groups.individual.coverage import Claim
from kraftpy.core.groups.records import STRING_MAX_BYTES
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.key_hash import HASH_MAX

_VERSION = 0
_IN_TRANSACTION = 1
_INT16 = struct.Struct(">h")
_KEY_FRONT = struct.Struct(">hh")
_PARTITION = struct.Struct(">i")
_KEY_END = struct.Struct(">iqqq")
_TRANSACTION = struct.Struct(">qh")
CLAIM_VALUE = struct.Struct(">h16sqiq")
"""What a value consists of besides tagged fields."""
_NO_TAGS = b"\0"


class ClaimState(NamedTuple):
    """What the log keeps of a claim besides its key.

    `topic_id` tells a topic from one that was made anew under its name.
    """

    topic_id: bytes
    last: int
    leader_epoch: int
    commit_timestamp_ms: int


Transaction = tuple[int, int]
"""A producer's id and epoch."""


class ClaimRecord(NamedTuple):
    """The claim of a slice that begins at the offset `first`, or its tombstone (`state` None).

    It's a transaction's while that is open, and until it has been written anew as everybody's.
    """

    group_id: str
    topic: str
    partition: int
    low: int
    high: int
    first: int
    state: ClaimState | None
    transaction: Transaction | None = None

    @property
    def claim(self) -> Claim | None:
        if self.state is None:
            return None
        return Claim(self.low, self.high, self.first, self.state.last)


def encode_record(record: ClaimRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value bytes; ValueError for a name that is too long for its field."""
    group_id, topic, partition, low, high, first, state, transaction = record
    version = _VERSION if transaction is None else _IN_TRANSACTION
    key = encode_key_front(group_id, topic, version) + _KEY_END.pack(partition, low, high, first)
    if transaction is not None:
        key += _TRANSACTION.pack(*transaction)
    return key, None if state is None else CLAIM_VALUE.pack(_VERSION, *state) + _NO_TAGS


def encode_key_front(group_id: str, topic: str, version: int = _VERSION) -> bytes:
    """A key up to its partition; ValueError for a name that is too long for its field."""
    group, name = group_id.encode(), topic.encode()
    if len(group) > STRING_MAX_BYTES or len(name) > STRING_MAX_BYTES:
        size, text = max((len(group), group_id), (len(name), topic))
        raise ValueError(f"{text[:50]!r}... is too long for a claim: {size} bytes")
    return _KEY_FRONT.pack(version, len(group)) + group + _INT16.pack(len(name)) + name


def decode_record(key: bytes | None, value: bytes | None) -> ClaimRecord | None:
    """The record behind these bytes, None for a version that is not known here.

    Raises `DecodeError` for bytes that are no such record, and for claims that could not have been.
    """
    if key is None or len(key) < _INT16.size:
        raise DecodeError("a record of the claims' topic needs a key that starts with its version")
    version = int.from_bytes(key[: _INT16.size], "big", signed=True)
    if version not in (_VERSION, _IN_TRANSACTION):
        return None
    group_id, at = _read_text(key, _INT16.size)
    topic, at = _read_text(key, at)
    end = at + _KEY_END.size
    expected = end + (_TRANSACTION.size if version == _IN_TRANSACTION else 0)
    if len(key) != expected:
        raise DecodeError(f"the key of a claim has {len(key)} bytes and would have {expected}")
    partition, low, high, first = _KEY_END.unpack_from(key, at)
    transaction = None
    if version == _IN_TRANSACTION:
        transaction = _TRANSACTION.unpack_from(key, end)
    if partition < 0 or first < 0 or not 0 <= low <= high <= HASH_MAX:
        raise DecodeError(
            f"group {group_id!r} can't claim of {topic!r}-{partition} the hashes {low} to {high} "
            f"from offset {first} on"
        )
    state = None
    if value is not None:
        if len(value) < _INT16.size:
            raise DecodeError("the value of a claim has to start with its version")
        if value[: _INT16.size] != _INT16.pack(_VERSION):
            return None
        if len(value) <= CLAIM_VALUE.size:
            raise DecodeError(f"the value of a claim ends after {len(value)} bytes")
        _, *fields = CLAIM_VALUE.unpack_from(value)
        state = ClaimState(*fields)
        if state.last < first:
            raise DecodeError(
                f"group {group_id!r} can't claim of {topic!r}-{partition} what ends at "
                f"{state.last} and begins at {first}"
            )
    return ClaimRecord(group_id, topic, partition, low, high, first, state, transaction)


def decode_key_prefix(data: bytes) -> tuple[str, str, int]:
    """Group, topic and partition of a key that ends behind these and is no transaction's.

    Raises `DecodeError` for anything else.
    """
    if data[: _INT16.size] != _INT16.pack(_VERSION):
        raise DecodeError("the key has another version")
    group_id, at = _read_text(data, _INT16.size)
    topic, at = _read_text(data, at)
    if len(data) != at + _PARTITION.size:
        raise DecodeError(f"the key goes on for {len(data) - at} bytes behind the topic")
    (partition,) = _PARTITION.unpack_from(data, at)
    if partition < 0:
        raise DecodeError(f"there is no partition {partition}")
    return group_id, topic, partition


def _read_text(key: bytes, at: int) -> tuple[str, int]:
    """The text at this place and the place behind it."""
    start = at + _INT16.size
    length = int.from_bytes(key[at:start], "big", signed=True)
    end = start + length
    if length < 0 or end > len(key):
        raise DecodeError(f"the key of a claim ends within a text, at byte {len(key)}")
    try:
        return key[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise DecodeError(f"the key of a claim has a text that isn't UTF-8: {error}") from None
