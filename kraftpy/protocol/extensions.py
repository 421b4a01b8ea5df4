"""What kraftpy adds to Kafka's messages.

Tagged fields have numbers from 10000 up and are in flexible versions only. A broker or client that
does not know them skips them (KIP-482).

Cooperative consumption (seed 001) has contents of several fields: they are as Kafka's generator
would write them, so compact arrays of structs, each with a section of tagged fields that is empty.
There are very many ranges in some, so they are read by `struct`. Bytes that don't form them raise
DecodeError, and so do more of them than the reader allows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import cast

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.message import Message
from kraftpy.protocol.varint import decode_uvarint, encode_uvarint

# OffsetCommitRequestPartition, version 8 and later: commit only if the committed offset is this
# one, -1 if there is none; eight bytes, big-endian. Refused with UNEXPECTED_OFFSET.
EXPECTED_OFFSET_TAG = 10_000

# OffsetCommitRequest, version 8 and later: if one partition is refused, no offset is committed, and
# the others are answered with OPERATION_NOT_ATTEMPTED. NO allows some to be committed and some not,
# as in Kafka; without the tag that is so unless a partition has EXPECTED_OFFSET_TAG.
ALL_OR_NONE_TAG = 10_000

# DeleteTopicsRequest, version 4 and later: topics of the brokers' own are to be deleted, too.
FORCE_INTERNAL_TAG = 10_000

# DescribeClusterBroker of DescribeClusterResponse: when the broker registered, by its clock, in
# milliseconds since 1970 (`encode_int64`); and where its node serves metrics, as `host:port`. Not
# there if that isn't known.
REGISTERED_TAG = 10_000
METRICS_TAG = 10_001

# TransactionLogValue, a record of `__transaction_state`: the epoch that the producer had before, an
# int16. Kafka forgets it with the coordinator (KAFKA-20357).
LAST_PRODUCER_EPOCH_TAG = 10_000
# The same: nothing but zeros, in the place of what the end of the transaction will have more.
ROOM_TAG = 10_001

# The client id of requests that one broker passes on to another, which must not pass them on again.
FORWARDED_CLIENT_ID = "kraftpy-forwarded"

# The feature (KIP-584) that says what may be in the metadata, as all nodes know it.
METADATA_LEVEL_FEATURE = "kraftpy.metadata.level"

# The feature (KIP-584) that says that brokers serve cooperative consumption. To one without it no
# client may send any of what follows.
COOPERATIVE_FEATURE = "kraftpy.cooperative"

# -- claims: tagged fields of a partition, but for the one that asks for them

# OffsetCommitRequestPartition, version 8 and later, and TxnOffsetCommitRequestPartition, version 5:
# ranges of offsets of which all records are done (`encode_ranges`). The offset is -1 then.
OFFSET_RANGES_TAG = 10_001
# The same: ranges of which the records of a slice of hashes are done (`encode_slices`).
SLICES_TAG = 10_002
# The same: claims from this offset on are void, as the log was cut there (`encode_int64`).
DISCARD_FROM_TAG = 10_003
# TxnOffsetCommitRequestPartition: a flag, to be answered when all below the first offset is done.
WAIT_FOR_STABLE_TAG = 10_004

# OffsetCommitResponsePartition, with errors, too: the offset from which on not all is done
# (`encode_int64`).
LAST_STABLE_OFFSET_TAG = 10_000

# OffsetFetchRequest, version 8 and later: a flag, claims are wanted, too. They come in the tags
# OFFSET_RANGES_TAG and SLICES_TAG of OffsetFetchResponsePartition and ...Partitions, with epochs
# (`encode_ranges`, `encode_slices`).
WANT_RANGES_TAG = 10_000
# OffsetFetchResponseGroup, to who wants claims: the group's generation (`encode_int64`). Not there:
# it has no members whose generations count, or whoever answered doesn't say so.
GENERATION_TAG = 10_000

# -- fetches of some of a partition's records

# FetchPartition, version 12 and later: the slices that are wanted (`encode_ranges`); without it,
# all.
KEY_RANGES_TAG = 10_000

# PartitionData of FetchResponse: the offset to go on from (`encode_int64`).
SCANNED_OFFSET_TAG = 10_000

# -- cooperative fetches: several members have a partition, and its leader leases them batches

# FetchRequest, version 12 and later: whose (`Cooperation`). Only to brokers with the feature at
# level 2: another one would give the whole partition to everybody.
COOPERATION_TAG = 10_001
# FetchPartition of such a one: ranges of offsets that the member has committed claims on
# (`encode_ranges`), of those that it was leased.
DONE_TAG = 10_002
# PartitionData of FetchResponse: the offsets that are the member's now (`encode_ranges`). Of what
# else the batches have nothing is. Not there: whoever answered knows nothing of all this.
ACQUIRED_TAG = 10_001

# MetadataRequest and MetadataResponseTopic: a flag, whether the topic has `accept.range.fetch` is
# asked, and whether it has.
ACCEPT_RANGE_FETCH_TAG = 10_000

# JoinGroupRequest and JoinGroupResponse: the same of `accept.individual.commit`, the coordinator's.
ACCEPT_INDIVIDUAL_COMMIT_TAG = 10_000

RANGES_MAX = 60_000
"""How many ranges the claims of a commit have at most."""

DONE_MAX = 1_000
"""How many ranges a cooperative fetch may say done of a partition."""

KEY_RANGES_MAX = 64
"""How many slices may be wanted of a partition in a fetch."""

TEXT_MAX = 32_767
"""How many bytes a text has at most, as in Kafka's messages."""

YES, NO = b"\1", b"\0"
"""The content of a tagged field that is a flag."""

_NO_TAGS = b"\0"
_INT64 = struct.Struct(">q")
_TWO_INT32 = struct.Struct(">iix")
_RANGE = struct.Struct(">qqx")
_EPOCH_RANGE = struct.Struct(">qqix")
_SLICE = struct.Struct(">qq")
# A field of one slice that has one range: most claims of a member.
_ONE_SLICE = struct.Struct(">BqqBqqBB")
_ONE_SLICE_REST = (2, 2, 0, 0)


Range = tuple[int, int]
"""The first and the last of offsets or hashes."""

EpochRange = tuple[int, int, int]
"""The first and the last of offsets, and the leader epoch of the last one."""

Slice = tuple[int, int, Sequence[Range]]
"""The first and the last of hashes, and ranges of offsets."""

EpochSlice = tuple[int, int, Sequence[EpochRange]]
"""The same, with epochs."""


def is_set(message: Message, tag: int) -> bool:
    """Whether the message has this flag."""
    return message._tags is not None and message._tags.get(tag) == YES


def encode_int64(number: int) -> bytes:
    """The content of a tagged field that is an int64."""
    return _INT64.pack(number)


def decode_int64(data: bytes) -> int:
    """The number in such a field."""
    if len(data) != _INT64.size:
        raise DecodeError(f"an int64 has {_INT64.size} bytes, not {len(data)}")
    number: int = _INT64.unpack(data)[0]
    return number


class Cooperation(NamedTuple):
    """Whose a cooperative fetch is, and for how long a lease is its."""

    group: str
    member: str
    generation: int
    session_timeout_ms: int


def encode_cooperation(cooperation: Cooperation) -> bytes:
    """The content of the field that says whose a fetch is."""
    group, member, *numbers = cooperation
    parts = [_encoded_text(group), _encoded_text(member), _TWO_INT32.pack(*numbers)]
    return b"".join(parts)


def decode_cooperation(data: bytes) -> Cooperation:
    """Whose a fetch is."""
    view = memoryview(data)
    group, at = _text(view, 0)
    member, at = _text(view, at)
    if at + _TWO_INT32.size != len(view) or view[-1:] != _NO_TAGS:
        raise DecodeError(f"a cooperation has {at + _TWO_INT32.size} bytes, not {len(view)}")
    return Cooperation(group, member, *_TWO_INT32.unpack_from(view, at))


def _encoded_text(text: str) -> bytes:
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data


def _text(view: memoryview, at: int) -> tuple[str, int]:
    """The text that begins here, and where it ends."""
    length, at = _count(view, at, TEXT_MAX)
    if at + length > len(view):
        raise DecodeError(f"a text of {length} bytes ends within them, at byte {len(view)}")
    try:
        return str(view[at : at + length], "utf-8"), at + length
    except UnicodeDecodeError as error:
        raise DecodeError(f"a text isn't UTF-8: {error}") from None


def encode_ranges(ranges: Sequence[Range]) -> bytes:
    """The content of a field that is ranges."""
    return _encoded(_RANGE, ranges)


def decode_ranges(data: bytes, count_max: int) -> list[Range]:
    """The ranges in such a field, as they stand there: in any order, if they are ranges at all."""
    return cast("list[Range]", _decoded_ranges(_RANGE, data, count_max))


def encode_epoch_ranges(ranges: Sequence[EpochRange]) -> bytes:
    """The content of a field that is ranges with epochs."""
    return _encoded(_EPOCH_RANGE, ranges)


def decode_epoch_ranges(data: bytes, count_max: int) -> list[EpochRange]:
    """The ranges in such a field, as they stand there."""
    return cast("list[EpochRange]", _decoded_ranges(_EPOCH_RANGE, data, count_max))


def encode_slices(slices: Sequence[Slice]) -> bytes:
    """The content of a field that is slices."""
    return _encoded_slices(_RANGE, slices)


def decode_slices(data: bytes, count_max: int) -> list[Slice]:
    """The slices in such a field, as they stand there, with so many ranges at most.

    A slice without ranges counts as one.
    """
    one = decode_one_slice(data) if count_max > 0 else None
    if one is not None:
        return [(*one[:2], [one[2:]])]
    return cast("list[Slice]", _decoded_slices(_RANGE, data, count_max))


def decode_one_slice(data: bytes) -> tuple[int, int, int, int] | None:
    """First and last hash and first and last offset of one slice with one range; else None."""
    if len(data) != _ONE_SLICE.size:
        return None
    slices, low, high, ranges, first, last, *ends = _ONE_SLICE.unpack(data)
    return (low, high, first, last) if (slices, ranges, *ends) == _ONE_SLICE_REST else None


def encode_epoch_slices(slices: Sequence[EpochSlice]) -> bytes:
    """The content of a field that is slices with epochs."""
    return _encoded_slices(_EPOCH_RANGE, slices)


def decode_epoch_slices(data: bytes, count_max: int) -> list[EpochSlice]:
    """The slices in such a field, as they stand there, with so many ranges at most.

    A slice without ranges counts as one.
    """
    return cast("list[EpochSlice]", _decoded_slices(_EPOCH_RANGE, data, count_max))


def cut_ranges(data: bytes, count_max: int, together: int) -> Iterator[list[Range]]:
    """What `decode_ranges` gives, so many at a time."""
    view = memoryview(data)
    count, at = _count(view, 0, count_max)
    yield from _cut(view, at, count, together)
    _check_end(view, at + count * _RANGE.size)


def cut_slices(
    data: bytes, count_max: int, together: int
) -> Iterator[tuple[int, int, list[Range], bool]]:
    """What `decode_slices` gives, one behind the other; a long one comes in pieces.

    Of each it's said whether it's the first of its slice.
    """
    view = memoryview(data)
    count, at = _count(view, 0, count_max)
    left = count_max
    for _ in range(count):
        if at + _SLICE.size > len(view):
            raise DecodeError(f"a slice ends within its hashes, at byte {len(view)}")
        low, high = _SLICE.unpack_from(view, at)
        ranges, at = _count(view, at + _SLICE.size, left)
        left -= max(1, ranges)
        if left < 0:
            raise DecodeError(f"there are more than {count_max} slices and ranges")
        if not ranges:
            yield low, high, [], True
        for number, some in enumerate(_cut(view, at, ranges, together)):
            yield low, high, some, not number
        at += ranges * _RANGE.size
        if view[at : at + 1] != _NO_TAGS:
            raise DecodeError(f"a slice doesn't end at byte {at}, and nothing more is known of one")
        at += 1
    _check_end(view, at)


def _cut(view: memoryview, at: int, count: int, together: int) -> Iterator[list[Range]]:
    for done in range(0, count, together):
        some = min(together, count - done)
        start = at + done * _RANGE.size
        end = start + some * _RANGE.size
        if end > len(view):
            raise DecodeError(f"{count} ranges have more than the {len(view) - at} bytes here")
        if any(view[start + _RANGE.size - 1 : end : _RANGE.size]):
            raise DecodeError("a range has tagged fields, of which none is known")
        yield list(_RANGE.iter_unpack(view[start:end]))


_Row = tuple[int, ...]
_Rows = Sequence[_Row]


def _encoded(format_: struct.Struct, rows: _Rows) -> bytes:
    pack = format_.pack
    return encode_uvarint(len(rows) + 1) + b"".join([pack(*row) for row in rows])


def _encoded_slices(format_: struct.Struct, slices: Sequence[tuple[int, int, _Rows]]) -> bytes:
    parts = [encode_uvarint(len(slices) + 1)]
    for low, high, ranges in slices:
        parts += (_SLICE.pack(low, high), _encoded(format_, ranges), _NO_TAGS)
    return b"".join(parts)


def _decoded_ranges(format_: struct.Struct, data: bytes, count_max: int) -> list[_Row]:
    view = memoryview(data)
    rows, end = _decoded(format_, view, 0, count_max)
    _check_end(view, end)
    return rows


def _decoded_slices(
    format_: struct.Struct, data: bytes, count_max: int
) -> list[tuple[int, int, list[_Row]]]:
    view = memoryview(data)
    count, at = _count(view, 0, count_max)
    left = count_max
    slices = []
    for _ in range(count):
        start = at + _SLICE.size
        if start > len(view):
            raise DecodeError(f"a slice ends within its hashes, at byte {len(view)}")
        low, high = _SLICE.unpack_from(view, at)
        rows, at = _decoded(format_, view, start, left)
        left -= max(1, len(rows))
        if left < 0:
            raise DecodeError(f"there are more than {count_max} slices and ranges")
        if view[at : at + 1] != _NO_TAGS:
            raise DecodeError(f"a slice doesn't end at byte {at}, and nothing more is known of one")
        at += 1
        slices.append((low, high, rows))
    _check_end(view, at)
    return slices


def _decoded(
    format_: struct.Struct, view: memoryview, at: int, count_max: int
) -> tuple[list[_Row], int]:
    """The rows of the array that begins here, and where it ends."""
    count, start = _count(view, at, count_max)
    end = start + count * format_.size
    if end > len(view):
        raise DecodeError(f"{count} ranges have {end - start} bytes, not {len(view) - start}")
    if any(view[start + format_.size - 1 : end : format_.size]):
        raise DecodeError("a range has tagged fields, of which none is known")
    return list(format_.iter_unpack(view[start:end])), end


def _count(view: memoryview, at: int, count_max: int) -> tuple[int, int]:
    """How many elements the array that begins here has, and where they begin."""
    try:
        length, at = decode_uvarint(view, at)
    except IndexError:
        raise DecodeError(f"an array ends within its length, at byte {len(view)}") from None
    if not length:
        raise DecodeError("an array can't be null")
    if length - 1 > count_max:
        raise DecodeError(f"there are {length - 1} ranges, and at most {count_max} may be")
    return length - 1, at


def _check_end(view: memoryview, end: int) -> None:
    if end != len(view):
        raise DecodeError(f"{len(view) - end} bytes are left over behind the ranges")
