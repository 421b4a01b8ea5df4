"""The records of `__consumer_offsets`: Kafka's bytes, and what happens to damaged ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.coordination import java_string_hash, partition_for
from kraftpy.core.groups import (
    CommittedOffset,
    GroupMachine,
    GroupMemory,
    GroupRecord,
    GroupSnapshot,
    MemberSnapshot,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kraftpy.core.groups.config import GroupConfig
from kraftpy.protocol import messages
from kraftpy.protocol.codec import encode_versioned
from kraftpy.protocol.errors import DecodeError

from .topics import KnownTopics

names = st.text(st.characters(codec="utf-8"), max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
# A record with an expiry time is of version 1, which has no leader epoch.
committed = st.builds(CommittedOffset, int64s, int32s, names, int64s, st.just(-1)) | st.builds(
    CommittedOffset, int64s, st.just(-1), names, int64s, st.integers(0, 2**63 - 1)
)
partitions = st.integers(0, 2**31 - 1)
offset_records = st.builds(OffsetRecord, names, names, partitions, st.none() | committed)
timeouts = st.integers(0, 2**31 - 1)
member_snapshots = st.builds(
    MemberSnapshot,
    names,
    st.none() | names,
    names,
    names,
    timeouts,
    timeouts,
    st.binary(max_size=20),
    st.binary(max_size=20),
)


def _static_identity(member: MemberSnapshot) -> object:
    """Equal for two members with one instance id, the empty one included."""
    return object() if member.group_instance_id is None else member.group_instance_id


@st.composite
def group_records(draw: st.DrawFn) -> GroupRecord:
    members = draw(
        st.lists(
            member_snapshots,
            max_size=4,
            unique_by=(lambda m: m.member_id, _static_identity),
        )
    )
    texts = st.text(min_size=1, max_size=10)
    optional = st.none() | texts
    protocol_type = draw(texts if members else optional)
    protocol = draw(texts if members else optional)
    leader = draw(st.sampled_from([m.member_id for m in members]) if members else optional)
    snapshot = GroupSnapshot(
        protocol_type, draw(int32s), protocol, leader, draw(int64s), tuple(members)
    )
    return GroupRecord(draw(names), draw(st.sampled_from([snapshot, None])))


@given(offset_records | group_records())
def test_what_is_written_is_what_is_read(record: OffsetRecord | GroupRecord) -> None:
    assert decode_record(*encode_record(record)) == record


def test_the_bytes_of_a_committed_offset_are_kafkas() -> None:
    key, value = encode_record(OffsetRecord("g", "tt", 7, CommittedOffset(258, 3, "md", 1000, -1)))
    assert key == b"\0\1\0\1g\0\2tt\0\0\0\7"
    assert value == (
        b"\0\3" b"\0\0\0\0\0\0\1\2" b"\0\0\0\3" b"\0\2md" b"\0\0\0\0\0\0\3\xe8"
    )  # fmt: skip


def test_the_bytes_of_a_group_are_kafkas() -> None:
    member = MemberSnapshot("m", "i", "c", "/h", 300, 10, b"sub", b"part")
    snapshot = GroupSnapshot("consumer", 2, "range", "m", 5, (member,))
    key, value = encode_record(GroupRecord("g", snapshot))
    assert key == b"\0\2\0\1g"
    assert value == (
        b"\0\3" b"\0\x08consumer" b"\0\0\0\2" b"\0\5range" b"\0\1m" b"\0\0\0\0\0\0\0\5"
        b"\0\0\0\1" b"\0\1m" b"\0\1i" b"\0\1c" b"\0\2/h" b"\0\0\1\x2c" b"\0\0\0\x0a"
        b"\0\0\0\3sub" b"\0\0\0\4part"
    )  # fmt: skip


def test_older_versions_of_a_group_can_be_read() -> None:
    member = messages.GroupMetadataValue.MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=10,
        subscription=b"s", assignment=b"a",
    )  # fmt: skip
    value = messages.GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader="m", members=[member]
    )
    key = encode_versioned("GroupMetadataKey", 2, messages.GroupMetadataKey("g"))
    record = decode_record(key, encode_versioned("GroupMetadataValue", 0, value))
    assert isinstance(record, GroupRecord)
    assert record.snapshot is not None
    (loaded,) = record.snapshot.members
    assert (loaded.session_timeout_ms, loaded.rebalance_timeout_ms) == (10, 10)


def test_unknown_kinds_of_records_are_skipped() -> None:
    for kind in (4, 9, 17):  # topics of groups before 4.1: of KIP-848, shared; a streams group
        assert decode_record(kind.to_bytes(2, "big") + b"\0\1g", b"whatever") is None


MEMBER = MemberSnapshot("m", None, "c", "/h", 300, 10, b"", b"")


@pytest.mark.parametrize(
    "snapshot",
    [
        GroupSnapshot(None, 1, "range", "m", 0, (MEMBER,)),
        GroupSnapshot("consumer", 1, None, "m", 0, (MEMBER,)),
        GroupSnapshot("consumer", 1, "range", None, 0, (MEMBER,)),
        GroupSnapshot("consumer", 1, "range", "other", 0, (MEMBER,)),
        GroupSnapshot("consumer", 1, "range", "m", 0, (MEMBER, MEMBER)),
        GroupSnapshot(
            "consumer", 1, "range", "m", 0,
            (MEMBER._replace(group_instance_id="i"),
             MEMBER._replace(member_id="n", group_instance_id="i")),
        ),
    ],
)  # fmt: skip
def test_a_group_that_can_not_have_been_is_refused(snapshot: GroupSnapshot) -> None:
    with pytest.raises(DecodeError):
        decode_record(*encode_record(GroupRecord("g", snapshot)))


@given(offset_records | group_records(), st.data())
def test_damaged_records_never_do_more_than_fail_to_decode(
    record: OffsetRecord | GroupRecord, data: st.DataObject
) -> None:
    def damage(raw: bytes | None) -> bytes | None:
        if raw is None:
            return None
        cut = raw[: data.draw(st.integers(0, len(raw)))]
        return data.draw(st.sampled_from([raw, cut, cut + data.draw(st.binary(max_size=8))]))

    key, value = encode_record(record)
    machine = GroupMachine(GroupConfig(), KnownTopics(), GroupMemory(1 << 40))
    with contextlib.suppress(DecodeError):
        decoded = decode_record(damage(key), damage(value))
        if decoded is not None:
            machine.load(decoded)
    machine.finish_load(0)
    machine.handle_timers(2**40)


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_garbage_is_refused(key: bytes | None, value: bytes | None) -> None:
    with contextlib.suppress(DecodeError):
        decode_record(key, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("hello", 99_162_322),
        ("polygenelubricants", -(2**31)),
        ("ä", 228),
        ("\U0001f600", 1_772_899),
    ],
)
def test_the_hash_is_javas(text: str, value: int) -> None:
    assert java_string_hash(text) == value & 0xFFFFFFFF


def test_a_negative_hash_gives_a_partition_too() -> None:
    """As Kafka 4.3's `Utils.abs`: half of all groups have one."""
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("my-group", 50) == 12  # -1906497762
    assert partition_for("hello", 50) == 22
