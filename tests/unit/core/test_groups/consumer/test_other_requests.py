"""What else a consumer group is asked: its offsets, its end, its description."""

from __future__ import annotations

from kraftpy.core.groups.consumer.records import CurrentRecord
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import OffsetCommitRequest, TxnOffsetCommitRequest

from .story import NONE, Story
from .world import GROUP

# -- offsets


def commit(
    story: Story, epoch: int, member_id: str = "", index: int = 0, version: int = 9
) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="beer",
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=7
                    )
                ],
            )
        ],
    )
    token = story.token()
    effects = story.machine.commit(
        token,
        request,
        lambda name: range(100),
        story.now_ms,
        api_version=version,
    )
    story.carry_out(effects)
    while story.in_flight:
        story.land()
    return ErrorCode(story.replies[token].topics[0].partitions[0].error_code)


def test_commits_are_checked_against_epochs() -> None:
    story = Story()
    assert commit(story, 3, "a") is ErrorCode.GROUP_ID_NOT_FOUND
    assert commit(story, 3, "a", version=8) is ErrorCode.ILLEGAL_GENERATION
    story.two_members()
    assert commit(story, 2, "a") is NONE
    assert commit(story, 2, "a", version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(story, 3, "a") is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(story, 2, "c") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(story, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    story.beat("a", -1)
    story.beat("b", -1)
    assert commit(story, -1) is NONE


def test_commits_of_an_earlier_epoch_are_for_partitions_had_since() -> None:
    story = Story()
    story.two_members()  # a has 0, 1, 2 since epoch 1, b has 3, 4, 5 since epoch 2
    assert commit(story, 1, "a", 0) is NONE
    assert commit(story, 1, "a", 3) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(story, 1, "b", 3) is ErrorCode.STALE_MEMBER_EPOCH
    story.beat("c", 0)
    story.beat("a", 2)  # it has to give one up, and may commit it until then
    assert commit(story, 1, "a", 2) is NONE
    story.beat("a", 2, owned=story.beer(0, 1))
    assert commit(story, 3, "a", 2) is NONE, "in its very epoch nobody asks for the partition"
    assert commit(story, 2, "a", 2) is ErrorCode.STALE_MEMBER_EPOCH


def commit_in_transaction(
    story: Story, epoch: int, member_id: str = "", index: int = 0, instance: str | None = None
) -> ErrorCode:
    kinds = TxnOffsetCommitRequest
    request = kinds(
        group_id=GROUP,
        producer_id=7,
        producer_epoch=0,
        generation_id=epoch,
        member_id=member_id,
        group_instance_id=instance,
        topics=[
            kinds.TxnOffsetCommitRequestTopic(
                "beer", [kinds.TxnOffsetCommitRequestPartition(index, 7)]
            )
        ],
    )
    token = story.token()
    story.carry_out(
        story.machine.commit_in_transaction(token, request, lambda name: range(100), story.now_ms)
    )
    while story.in_flight:
        story.land()
    return ErrorCode(story.replies[token].topics[0].partitions[0].error_code)


def test_commits_in_transactions_are_checked_against_epochs() -> None:
    """As other commits, but those of clients that say nothing of themselves are taken."""
    story = Story()
    assert commit_in_transaction(story, 3, "a") is ErrorCode.ILLEGAL_GENERATION
    story.two_members()
    assert commit_in_transaction(story, 2, "a") is NONE
    assert commit_in_transaction(story, 3, "a") is ErrorCode.ILLEGAL_GENERATION
    assert commit_in_transaction(story, 1, "a", 0) is NONE
    assert commit_in_transaction(story, 1, "a", 3) is ErrorCode.ILLEGAL_GENERATION
    assert commit_in_transaction(story, 2, "c") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_in_transaction(story, -1) is NONE
    assert commit_in_transaction(story, -1, instance="i") is ErrorCode.UNKNOWN_MEMBER_ID
    story.beat("a", -1)
    story.beat("b", -1)
    assert commit_in_transaction(story, -1, "c") is NONE


def test_fetches_of_members_are_checked() -> None:
    story = Story()
    check = story.machine.check_fetch
    assert check(GROUP, "a", 2) is NONE
    story.two_members()
    assert check(GROUP, None, -1) is NONE
    assert check(GROUP, "a", 2) is NONE
    assert check(GROUP, "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert check(GROUP, "c", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(GROUP, None, 2) is ErrorCode.UNKNOWN_MEMBER_ID


# -- deleting and listing


def delete(story: Story) -> ErrorCode:
    token = story.token()
    story.carry_out(story.machine.delete_group(token, GROUP, story.now_ms))
    while story.in_flight:
        story.land()
    return ErrorCode(story.replies[token])


def test_an_empty_group_can_be_deleted() -> None:
    story = Story()
    story.two_members()
    assert delete(story) is ErrorCode.NON_EMPTY_GROUP
    story.beat("a", -1)
    story.beat("b", -1)
    commit(story, -1)
    assert delete(story) is NONE
    assert list(story.machine.group_ids()) == []
    assert delete(story) is ErrorCode.GROUP_ID_NOT_FOUND
    again = story.load(story.log)
    assert list(again.group_ids()) == []


def test_who_comes_while_a_group_is_deleted() -> None:
    story = Story()
    story.beat("a", 0)
    story.beat("a", -1)
    deletion = story.token()
    story.carry_out(story.machine.delete_group(deletion, GROUP, story.now_ms))
    join = story.transmit(story.request("b", 0))
    assert commit_while_in_flight(story) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    while story.in_flight:
        story.land()
    assert story.replies[deletion] is NONE
    assert story.replies[join].member_epoch == 1, "a new group"


def commit_while_in_flight(story: Story) -> ErrorCode:
    writes, story.in_flight = story.in_flight, []
    error = commit(story, -1)
    story.in_flight = writes
    return error


def test_groups_are_listed_with_type_and_state() -> None:
    story = Story()
    story.two_members()
    (row,) = story.machine.list_groups([], [])
    assert (row.group_id, row.protocol_type) == (GROUP, "consumer")
    assert (row.group_state, row.group_type.lower()) == ("Stable", "consumer")
    assert story.machine.list_groups(["stable"], ["Consumer"]) == [row]
    assert story.machine.list_groups(["Empty"], []) == []
    assert story.machine.list_groups([], ["classic"]) == []


def test_offsets_expire_from_when_the_last_member_left() -> None:
    story = Story(offsets_retention_ms=1_000_000)
    story.beat("a", 0)
    commit(story, 1, "a")
    for _ in range(3):
        story.advance(400_000)
        while story.in_flight:
            story.land()
    story.beat("a", 0)  # its session was over
    assert story.machine.expire_offsets([GROUP], story.now_ms)[0] == 0, "it is read"
    story.beat("a", -1)
    story.now_ms += 999_999
    assert story.machine.expire_offsets([GROUP], story.now_ms)[0] == 0
    story.fail_over()
    story.now_ms += 1
    count, effects = story.machine.expire_offsets([GROUP], story.now_ms)
    assert count == 1
    story.carry_out(effects)
    story.land()
    assert list(story.machine.group_ids()) == [], "an empty group without offsets goes too"


# -- describing


def test_a_described_group_names_topics() -> None:
    story = Story()
    story.two_members()
    described = story.machine.consumer_describe(GROUP)
    assert (described.group_epoch, described.assignment_epoch) == (2, 2)
    assert [member.member_id for member in described.members] == ["a", "b"]
    (row,) = described.members[0].assignment.topic_partitions
    assert (row.topic_name, row.partitions) == ("beer", [0, 1, 2])
    story.topics.delete("beer")
    described = story.machine.consumer_describe(GROUP)
    assert described.members[0].assignment.topic_partitions == []


def test_groups_of_the_other_kind_are_not_described() -> None:
    story = Story()
    story.beat("a", 0)
    assert story.machine.describe(GROUP).group_state == "Dead"
    missing = story.machine.consumer_describe("h")
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_strays_in_the_log_hold_no_partitions() -> None:
    """The record of a member could not be read: its assignment must not block others."""
    story = Story()
    story.two_members()
    group = story.there
    machine = story.load([])
    record = CurrentRecord(GROUP, "a", group.current("a"))
    machine.load(record)
    machine.finish_load(story.now_ms)
    assert machine._consumers.groups == {}
