"""Records that make a consumer group of a classic one and the other way round (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from kraftpy.core.groups import GroupRecord, decode_record, encode_record
from kraftpy.core.groups.config import MigrationPolicy
from kraftpy.core.groups.consumer.conversion import (
    downgrade,
    emptied,
    leaves_classic_members_only,
    select_protocol,
    upgrade,
)
from kraftpy.core.groups.consumer.embedded import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kraftpy.core.groups.consumer.records import (
    ClassicMember,
    ClassicProtocol,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from kraftpy.core.groups.consumer.state import ConsumerGroup, ConsumerGroupState
from kraftpy.core.groups.group import Group
from kraftpy.core.groups.records import CoordinatorRecord
from kraftpy.protocol import messages
from kraftpy.protocol.codec import encode_versioned
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError

from .driver import Driver
from .topics import KnownTopics, topic_id

TOPICS = KnownTopics(t=4, u=2)
T, U = topic_id("t"), topic_id("u")


def subscription(
    version: int, *topics: str, owned: Mapping[str, Sequence[int]] | None = None, rack: str = ""
) -> bytes:
    kinds = messages.ConsumerProtocolSubscription
    return encode_versioned(
        "ConsumerProtocolSubscription",
        version,
        kinds(
            topics=list(topics),
            owned_partitions=[
                kinds.TopicPartition(name, list(indexes)) for name, indexes in (owned or {}).items()
            ],
            rack_id=rack or None,
        ),
    )


def assigned(version: int = 1, **partitions: Sequence[int]) -> bytes:
    kinds = messages.ConsumerProtocolAssignment
    rows = [kinds.TopicPartition(name, list(indexes)) for name, indexes in partitions.items()]
    return encode_versioned("ConsumerProtocolAssignment", version, kinds(assigned_partitions=rows))


def replayed(records: Sequence[CoordinatorRecord]) -> ConsumerGroup:
    """The consumer group that the log holds after these, which went through it."""
    group = ConsumerGroup("g")
    for record in records:
        decoded = decode_record(*encode_record(record))
        assert decoded == record
        if not isinstance(record, GroupRecord):
            group.replay(record)  # type: ignore[arg-type]
    return group


class TestEmbedded:
    @pytest.mark.parametrize("version", [0, 1, 2, 3])
    def test_a_subscription_of_each_version(self, version: int) -> None:
        owned = {"t": [2, 0], "gone": [1]} if version else None
        data = subscription(version, "u", "t", "u", owned=owned, rack="r" if version == 3 else "")
        read = read_subscription(data, TOPICS)
        assert read.topic_names == ("t", "u")
        assert read.rack_id == ("r" if version == 3 else None)
        assert read.owned == (((T, [0, 2]),) if version else ())

    def test_a_subscription_of_a_version_to_come(self) -> None:
        data = bytearray(subscription(3, "t") + b"more")
        data[1] = 9
        assert read_subscription(bytes(data), TOPICS).topic_names == ("t",)

    @pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0\0\0\5", b"\xff\xff" + bytes(8)])
    def test_what_is_no_subscription(self, data: bytes) -> None:
        with pytest.raises(DecodeError):
            read_subscription(data, TOPICS)

    @pytest.mark.parametrize(("version", "answered"), [(0, 0), (1, 1), (3, 3), (7, 3)])
    def test_an_assignment_is_in_the_version_of_the_subscription(
        self, version: int, answered: int
    ) -> None:
        data = write_assignment({U: [0], T: {3, 1}}, TOPICS, version.to_bytes(2, "big"))
        assert data == assigned(answered, t=[1, 3], u=[0])
        assert read_assignment(data, TOPICS) == {T: {1, 3}, U: {0}}

    def test_who_was_given_nothing_yet(self) -> None:
        assert read_assignment(b"", TOPICS) == {}

    def test_topics_that_are_gone_are_not_named(self) -> None:
        assert write_assignment({topic_id("gone"): [1]}, TOPICS, b"\0\1") == assigned()


def classic_group(driver: Driver, *assignments: bytes) -> Group:
    """A stable classic group whose members were given this."""
    protocols = {"range": subscription(1, "t"), "sticky": subscription(1, "t")}
    members, generation = driver.stable_group(len(assignments), protocols=protocols)
    joins = [driver.join(member, protocols=protocols) for member in members]
    generation = driver.replies[joins[0]].generation_id
    driver.sync(members[0], generation, dict(zip(members, assignments, strict=True)))
    for member in members[1:]:
        driver.sync(member, generation)
    return driver.machine._groups["g"]


class TestUpgrade:
    def test_members_stay_with_what_they_have(self) -> None:
        group = classic_group(Driver(), assigned(t=[0, 1]), assigned(t=[2, 3], gone=[1]))
        records = upgrade(group, TOPICS)
        assert records[0] == GroupRecord("g", None)
        new = replayed(records)
        first, second = group.members
        assert new.epoch == new.assignment_epoch == group.generation
        assert new.state is ConsumerGroupState.STABLE
        assert new.targets == {first: {T: {0, 1}}, second: {T: {2, 3}}}
        epoch = group.generation
        assert new.current(first) == CurrentAssignment(
            epoch, epoch, MemberState.STABLE, {T: {0: epoch, 1: epoch}}, {}
        )
        assert new.members[first] == MemberMetadata(
            instance_id=None,
            rack_id=None,
            client_id="c",
            client_host="/127.0.0.1",
            topic_names=("t",),
            topic_regex=None,
            rebalance_timeout_ms=60_000,
            server_assignor=None,
            classic=ClassicMember(
                10_000,
                (
                    ClassicProtocol("range", subscription(1, "t")),
                    ClassicProtocol("sticky", subscription(1, "t")),
                ),
            ),
        )

    def test_a_partition_that_was_given_out_twice_has_one_owner(self) -> None:
        group = classic_group(Driver(), assigned(t=[0, 1]), assigned(t=[1, 2]))
        new = replayed(upgrade(group, TOPICS))
        first, second = group.members
        assert new.targets == {first: {T: {0, 1}}, second: {T: {2}}}
        assert {i: new.owner(T, i) for i in range(4)} == {0: first, 1: first, 2: second, 3: None}

    def test_in_the_middle_of_the_first_rebalance(self) -> None:
        driver = Driver()
        member = driver.new_member()
        driver.join(member, protocols={"range": subscription(0, "t")})
        new = replayed(upgrade(driver.machine._groups["g"], TOPICS))
        assert new.members.keys() == {member}
        assert (new.epoch, new.current(member).assigned) == (0, {})

    @pytest.mark.parametrize("what", ["subscription", "assignment"])
    def test_members_whose_metadata_cannot_be_read(self, what: str) -> None:
        group = classic_group(Driver(), assigned(t=[0]))
        (member,) = group.members.values()
        if what == "subscription":
            group.update_protocols(member, {"range": b"?"})
        else:
            member.assignment = b"?"
        with pytest.raises(KafkaError) as raised:
            upgrade(group, TOPICS)
        assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def classic(*names: str, session_ms: int = 10_000) -> MemberMetadata:
    protocols = tuple(ClassicProtocol(name, subscription(1, "t")) for name in names)
    return MODERN._replace(classic=ClassicMember(session_ms, protocols))


MODERN = MemberMetadata(None, None, "c", "/h", ("t",), None, 60_000, None, None)


def consumer_group(**members: MemberMetadata) -> ConsumerGroup:
    """A group in epoch 7 in which the first member still owns all, and all are to share."""
    group = ConsumerGroup("g")
    group.replay(GroupEpochRecord("g", GroupEpoch(7, 1)))
    group.replay(TargetEpochRecord("g", TargetEpoch(7, 1)))
    for number, (member_id, metadata) in enumerate(members.items()):
        group.replay(MemberRecord("g", member_id, metadata))
        group.replay(TargetRecord("g", member_id, {T: frozenset([number])}))
        state = MemberState.UNRELEASED_PARTITIONS if number else MemberState.UNREVOKED_PARTITIONS
        kept, revoking = ({}, {}) if number else ({T: {0: 6}}, {T: {1: 6, 2: 6}})
        current = CurrentAssignment(7 if number else 6, 6, state, kept, revoking)
        group.replay(CurrentRecord("g", member_id, current))
    return group


class TestDowngrade:
    def test_the_log_holds_the_classic_group_alone(self) -> None:
        group = consumer_group(a=classic("range"), b=classic("range"), new=MODERN)
        records = downgrade(group, ["new"], 45_000, TOPICS, 123)
        assert replayed([*records]).is_vacant
        for record in records[:-1]:
            assert not isinstance(record, GroupRecord)
            group.replay(record)  # type: ignore[arg-type]
        assert group.is_vacant

    def test_members_have_what_they_own_and_not_what_they_are_to_get(self) -> None:
        group = consumer_group(a=classic("range"), b=classic("range"), new=MODERN)
        record = downgrade(group, ["new"], 45_000, TOPICS, 123)[-1]
        assert isinstance(record, GroupRecord)
        assert record.snapshot is not None
        snapshot = record.snapshot
        assert (snapshot.protocol_type, snapshot.protocol_name) == ("consumer", "range")
        assert (snapshot.generation, snapshot.state_timestamp_ms) == (7, 123)
        given = {m.member_id: read_assignment(m.assignment, TOPICS) for m in snapshot.members}
        assert given == {"a": {T: {0}}, "b": {}, "new": {}}
        assert snapshot.leader == "a"

    def test_who_goes_is_waited_for(self) -> None:
        """So that a coordinator which takes over now finds out that somebody is missing."""
        group = consumer_group(new=MODERN, a=classic("range", session_ms=9_000))
        record = downgrade(group, ["new"], 45_000, TOPICS, 123)[-1]
        assert isinstance(record, GroupRecord)
        assert record.snapshot is not None
        sessions = {m.member_id: m.session_timeout_ms for m in record.snapshot.members}
        assert sessions == {"new": 45_000, "a": 9_000}
        assert record.snapshot.leader == "a"
        assert record.snapshot.members[0].subscription == write_subscription(["t"])
        loaded = Group.from_snapshot("g", record.snapshot)
        assert loaded.subscribed_topics() == {"t"}

    def test_the_protocol_is_one_that_all_support(self) -> None:
        group = consumer_group(
            a=classic("x", "sticky", "range"), b=classic("range", "sticky"), c=classic("sticky")
        )
        assert select_protocol(group) == "sticky"
        group = consumer_group(a=classic("x", "y"), b=classic("y", "x"), c=classic("y", "x"))
        assert select_protocol(group) == "y"

    def test_when_it_is_due(self) -> None:
        mixed = consumer_group(a=classic("range"), new=MODERN)
        assert leaves_classic_members_only(mixed, ["new"])
        assert not leaves_classic_members_only(mixed, ["a"])
        assert not leaves_classic_members_only(mixed, ["a", "new"])
        assert not leaves_classic_members_only(consumer_group(new=MODERN), ["new"])
        two = consumer_group(a=classic("range"), new=MODERN, other=MODERN)
        assert not leaves_classic_members_only(two, ["new"])
        assert leaves_classic_members_only(two, ["new", "other"])

    def test_an_empty_group(self) -> None:
        group = ConsumerGroup("g")
        group.replay(GroupEpochRecord("g", GroupEpoch(7, 0)))
        group.replay(TargetEpochRecord("g", TargetEpoch(7, 1)))
        *gone, record = emptied(group, 123)
        assert isinstance(record, GroupRecord)
        assert record.snapshot is not None
        assert record.snapshot.members == ()
        for each in gone:
            group.replay(each)  # type: ignore[arg-type]
        assert group.is_vacant


def test_policies() -> None:
    allowed = {policy.value: (policy.upgrades, policy.downgrades) for policy in MigrationPolicy}
    assert allowed == {
        "disabled": (False, False),
        "upgrade": (True, False),
        "downgrade": (False, True),
        "bidirectional": (True, True),
    }
