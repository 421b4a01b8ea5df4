"""The records of share groups as bytes; `tests/conformance` has Apache Kafka read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups import decode_record, encode_record
from kraftpy.core.groups.consumer.records import GroupEpoch, TargetEpoch
from kraftpy.core.groups.share.records import (
    ShareAssignment,
    ShareAssignmentRecord,
    ShareEpochRecord,
    ShareMember,
    ShareMemberRecord,
    ShareRecord,
    ShareStates,
    ShareStatesRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    TopicShares,
)
from kraftpy.protocol import messages
from kraftpy.protocol.codec import encode_versioned
from kraftpy.protocol.errors import DecodeError

TEXT = st.text(max_size=20)
NAMES = st.sets(TEXT, max_size=4).map(lambda names: tuple(sorted(names)))
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
EPOCH = st.integers(0, 2**31 - 1)
TOPIC_ID = st.binary(min_size=16, max_size=16)
INDEXES = st.frozensets(EPOCH, min_size=1, max_size=4)
TARGET = st.dictionaries(TOPIC_ID, INDEXES, max_size=3)
SHARES = st.dictionaries(TOPIC_ID, st.builds(TopicShares, TEXT, INDEXES), max_size=3)
STATES = st.builds(ShareStates, SHARES, SHARES, st.dictionaries(TOPIC_ID, TEXT, max_size=3))
RECORDS: st.SearchStrategy[ShareRecord] = st.one_of(
    st.builds(ShareEpochRecord, TEXT, st.none() | st.builds(GroupEpoch, EPOCH, INT64)),
    st.builds(
        ShareMemberRecord,
        TEXT,
        TEXT,
        st.none() | st.builds(ShareMember, st.none() | TEXT, TEXT, TEXT, NAMES),
    ),
    st.builds(ShareTargetEpochRecord, TEXT, st.none() | st.builds(TargetEpoch, EPOCH, INT64)),
    st.builds(ShareTargetRecord, TEXT, TEXT, st.none() | TARGET),
    st.builds(
        ShareAssignmentRecord,
        TEXT,
        TEXT,
        st.none() | st.builds(ShareAssignment, INT32, INT32, TARGET),
    ),
    st.builds(ShareStatesRecord, TEXT, st.none() | STATES),
)


@given(record=RECORDS)
def test_what_is_written_is_read(record: ShareRecord) -> None:
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (10, ShareMemberRecord("g", "m", None)),
        (11, ShareEpochRecord("g", None)),
        (12, ShareTargetEpochRecord("g", None)),
        (13, ShareTargetRecord("g", "m", None)),
        (14, ShareAssignmentRecord("g", "m", None)),
        (15, ShareStatesRecord("g", None)),
    ],
)
def test_keys_begin_with_kafkas_numbers(kind: int, record: ShareRecord) -> None:
    key, value = encode_record(record)
    assert (int.from_bytes(key[:2], "big"), value) == (kind, None)


def test_what_cannot_have_been_written_is_refused() -> None:
    key, _ = encode_record(ShareEpochRecord("g", None))
    value = encode_versioned("ShareGroupMetadataValue", 0, messages.ShareGroupMetadataValue(-1, 0))
    with pytest.raises(DecodeError, match="epoch -1"):
        decode_record(key, value)
    key, _ = encode_record(ShareTargetRecord("g", "m", None))
    kinds = messages.ShareGroupTargetAssignmentMemberValue
    row = kinds.TopicPartition(bytes(16), [-1])
    value = encode_versioned("ShareGroupTargetAssignmentMemberValue", 0, kinds([row]))
    with pytest.raises(DecodeError, match="negative"):
        decode_record(key, value)
