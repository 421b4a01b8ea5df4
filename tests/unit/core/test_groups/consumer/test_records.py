"""The records of consumer groups as bytes; `tests/conformance` has Apache Kafka read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups import decode_record, encode_record
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
    RegexRecord,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from kraftpy.protocol import messages
from kraftpy.protocol.codec import encode_versioned
from kraftpy.protocol.errors import DecodeError

TEXT = st.text(max_size=20)
NAMES = st.sets(TEXT, max_size=4).map(lambda names: tuple(sorted(names)))
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
EPOCH = st.integers(0, 2**31 - 1)
INDEX = st.integers(0, 2**31 - 1)
TOPIC_ID = st.binary(min_size=16, max_size=16)
TARGET = st.dictionaries(TOPIC_ID, st.frozensets(INDEX, min_size=1, max_size=4), max_size=3)
EPOCHED = st.dictionaries(
    TOPIC_ID, st.dictionaries(INDEX, INT32, min_size=1, max_size=4), max_size=3
)
CLASSIC = st.builds(
    ClassicMember,
    INT32,
    st.lists(st.builds(ClassicProtocol, TEXT, st.binary(max_size=9)), max_size=3).map(tuple),
)
MEMBER = st.builds(
    MemberMetadata,
    st.none() | TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
    NAMES,
    st.none() | TEXT,
    INT32,
    st.none() | TEXT,
    st.none() | CLASSIC,
)
CURRENT = st.builds(CurrentAssignment, INT32, INT32, st.sampled_from(MemberState), EPOCHED, EPOCHED)
RECORDS: st.SearchStrategy[ConsumerRecord] = st.one_of(
    st.builds(GroupEpochRecord, TEXT, st.none() | st.builds(GroupEpoch, EPOCH, INT64)),
    st.builds(MemberRecord, TEXT, TEXT, st.none() | MEMBER),
    st.builds(TargetEpochRecord, TEXT, st.none() | st.builds(TargetEpoch, EPOCH, INT64)),
    st.builds(TargetRecord, TEXT, TEXT, st.none() | TARGET),
    st.builds(CurrentRecord, TEXT, TEXT, st.none() | CURRENT),
    st.builds(RegexRecord, TEXT, TEXT, st.none() | st.builds(ResolvedRegex, NAMES, INT64, INT64)),
)

KEY = (8).to_bytes(2, "big") + b"\0\1g\0\1m"
Value = messages.ConsumerGroupCurrentMemberAssignmentValue


@given(RECORDS)
def test_what_is_written_is_read(record: ConsumerRecord) -> None:
    key, value = encode_record(record)
    assert decode_record(key, value) == record


@given(RECORDS, st.data())
def test_damaged_records_are_refused_or_read(record: ConsumerRecord, data: st.DataObject) -> None:
    key, value = encode_record(record)
    for damaged in (bytearray(key), bytearray(value or b"")):
        if damaged:
            position = data.draw(st.integers(0, len(damaged) - 1))
            damaged[position] = data.draw(st.integers(0, 255))
            del damaged[data.draw(st.integers(1, len(damaged))) :]
        try:
            decode_record(bytes(damaged), value)
            decode_record(key, bytes(damaged))
        except DecodeError:
            pass


def current(value: Value) -> CurrentAssignment:
    record = decode_record(KEY, encode_versioned(type(value).__name__, 0, value))
    assert isinstance(record, CurrentRecord)
    assert record.value is not None
    return record.value


def test_partitions_that_an_older_kafka_assigned_have_no_epochs() -> None:
    rows = [Value.TopicPartitions(b"t" * 16, [3, 1], None), Value.TopicPartitions(b"u" * 16, [])]
    assert current(Value(5, 4, 0, rows, [])).assigned == {b"t" * 16: {3: 0, 1: 0}}


@pytest.mark.parametrize(
    "value",
    [
        Value(5, 4, 3, [], []),
        Value(5, 4, 0, [Value.TopicPartitions(b"t" * 16, [1], [1, 2])], []),
        Value(5, 4, 0, [], [Value.TopicPartitions(b"t" * 16, [-1], [1])]),
    ],
)
def test_assignments_that_could_not_have_been(value: Value) -> None:
    with pytest.raises(DecodeError):
        current(value)


def test_epochs_that_could_not_have_been() -> None:
    for record in (
        GroupEpochRecord("g", GroupEpoch(-1, 0)),
        TargetEpochRecord("g", TargetEpoch(-1, 0)),
    ):
        with pytest.raises(DecodeError):
            decode_record(*encode_record(record))
