"""What an operator's client asks about groups, and how it reads the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.offsets import OffsetAndMetadata
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import EXPECTED_OFFSET_TAG

from .peer import HANG_UP, Peer, running

KEYS = {
    ApiKey.FIND_COORDINATOR: (0, 3),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 7),
}
COMMIT = messages.OffsetCommitResponse
FETCH = messages.OffsetFetchResponse
DESCRIBED = messages.DescribeGroupsResponse


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.versions |= KEYS

    def find(request: Any) -> Any:
        return messages.FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=peer.port)

    peer.answers[ApiKey.FIND_COORDINATOR] = find
    return peer


def ask(peer: Peer, work: Callable[[GroupAdmin], Awaitable[Any]], timeout_ms: int = 5000) -> Any:
    async def run() -> Any:
        async with running(peer), Cluster(peer.bootstrap, request_timeout_ms=timeout_ms) as cluster:
            return await work(GroupAdmin(cluster, timeout_ms=timeout_ms))

    return asyncio.run(run())


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    """One answer after the other; one that is a function is called with the request."""
    left = list(answers)

    def answer(request: Any) -> Any:
        this = left.pop(0)
        return this(request) if callable(this) else this

    return answer


def commit_answer(request: Any, error: int = 0, *indexes: int) -> Any:
    """The answer to a commit: an error for some partitions, or for all."""
    return COMMIT(
        topics=[
            COMMIT.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    COMMIT.OffsetCommitResponsePartition(
                        p.partition_index,
                        error if p.partition_index in indexes or not indexes else 0,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def fetch_answer(offsets: dict[int, int]) -> Any:
    rows = [
        FETCH.OffsetFetchResponsePartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=7, metadata="m"
        )
        for index, offset in offsets.items()
    ]
    return FETCH(topics=[FETCH.OffsetFetchResponseTopic(name="t", partitions=rows)])


def test_a_commit_says_what_it_replaces(peer: Peer) -> None:
    peer.answers[ApiKey.OFFSET_COMMIT] = commit_answer
    places = {("t", 0): 5, ("t", 1): OffsetAndMetadata(6, "six", 2)}
    assert ask(peer, lambda admin: admin.commit("g", places, {("t", 0): 3, ("t", 1): -1})) == {}
    (request,) = peer.asked(ApiKey.OFFSET_COMMIT)
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == (
        "g",
        -1,
        "",
    )
    partitions = request.topics[0].partitions
    assert [p.committed_offset for p in partitions] == [5, 6]
    assert [p.committed_metadata for p in partitions] == ["", "six"]
    assert [p.committed_leader_epoch for p in partitions] == [-1, 2]
    expected = [bytes(p._tags[EXPECTED_OFFSET_TAG]) for p in partitions]
    assert [int.from_bytes(each, "big", signed=True) for each in expected] == [3, -1]


def test_a_large_commit_goes_in_parts_that_fit_into_a_batch(peer: Peer) -> None:
    peer.answers[ApiKey.OFFSET_COMMIT] = commit_answer
    group = "g" * 500
    places = {("t", index): OffsetAndMetadata(index, "m" * 500) for index in range(1000)}
    assert ask(peer, lambda admin: admin.commit(group, places, dict.fromkeys(places, -1))) == {}
    requests = peer.asked(ApiKey.OFFSET_COMMIT)
    sent = [p.partition_index for request in requests for p in request.topics[0].partitions]
    assert sent == list(range(1000))
    assert all(len(request.topics[0].partitions) * 1064 < 300_000 for request in requests)
    assert len(requests) < 10


def test_what_an_unanswered_attempt_committed_is_no_error(peer: Peer) -> None:
    unexpected = int(ErrorCode.UNEXPECTED_OFFSET)
    peer.answers[ApiKey.OFFSET_COMMIT] = in_turn(
        HANG_UP, lambda request: commit_answer(request, unexpected)
    )
    peer.answers[ApiKey.OFFSET_FETCH] = lambda request: fetch_answer({0: 5, 1: 4, 2: 7})
    places = {("t", 0): OffsetAndMetadata(5, "m"), ("t", 1): 6, ("t", 2): 7}
    errors = ask(peer, lambda admin: admin.commit("g", places, dict.fromkeys(places, -1)))
    assert {name: error.code for name, error in errors.items()} == {
        ("t", 1): ErrorCode.UNEXPECTED_OFFSET,
        ("t", 2): ErrorCode.UNEXPECTED_OFFSET,  # the offset, with a text that isn't ours
    }


def test_a_commit_follows_the_coordinator_and_gives_up_no_partition(peer: Peer) -> None:
    moved, missing = int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    peer.answers[ApiKey.OFFSET_COMMIT] = in_turn(
        lambda request: commit_answer(request, moved),
        lambda request: commit_answer(request, missing, 1),
    )
    places = {("t", 0): 5, ("t", 1): 6}
    errors = ask(peer, lambda admin: admin.commit("g", places, dict.fromkeys(places, -1)))
    assert {name: error.code for name, error in errors.items()} == {
        ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert len(peer.asked(ApiKey.FIND_COORDINATOR)) == 2


def test_offsets(peer: Peer) -> None:
    loading = FETCH(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    peer.answers[ApiKey.OFFSET_FETCH] = in_turn(loading, fetch_answer({3: 9, 0: 5, 1: -1}))
    assert ask(peer, lambda admin: admin.committed("g")) == {
        ("t", 0): CommittedOffset(5, 7, "m"),
        ("t", 3): CommittedOffset(9, 7, "m"),
    }
    assert [request.topics for request in peer.asked(ApiKey.OFFSET_FETCH)] == [None, None]


def test_a_list_waits_for_every_broker(peer: Peer) -> None:
    kinds = messages.ListGroupsResponse
    loading = kinds(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    listed = [kinds.ListedGroup(name, "consumer", "Stable", "Classic") for name in ("b", "a")]
    peer.answers[ApiKey.LIST_GROUPS] = in_turn(loading, HANG_UP, kinds(groups=listed))
    found = ask(peer, lambda admin: admin.list_groups(states=["Stable"]))
    assert [(group.id, group.type, group.coordinator) for group in found] == [
        ("a", "classic", 1),
        ("b", "classic", 1),
    ]
    assert peer.asked(ApiKey.LIST_GROUPS)[0].states_filter == ["Stable"]


def test_a_group_of_something_else_than_consumers(peer: Peer) -> None:
    """Kafka Connect's members have metadata of their own."""
    member = DESCRIBED.DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_metadata=b"?", member_assignment=b"?"
    )
    group = DESCRIBED.DescribedGroup(
        group_id="g", group_state="Stable", protocol_type="connect", members=[member]
    )
    peer.answers[ApiKey.DESCRIBE_GROUPS] = lambda request: DESCRIBED(groups=[group])
    described = ask(peer, lambda admin: admin.describe_group("g"))
    assert (described.type, described.epoch, described.coordinator.id) == ("classic", None, 1)
    (found,) = described.members
    assert (found.id, found.host, found.topics, found.partitions) == ("m", "h", (), ())


@pytest.mark.parametrize(
    "group",
    [
        DESCRIBED.DescribedGroup(group_id="g", group_state="Dead"),
        DESCRIBED.DescribedGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_group_that_there_is_not(peer: Peer, group: Any) -> None:
    peer.answers[ApiKey.DESCRIBE_GROUPS] = lambda request: DESCRIBED(groups=[group])
    with pytest.raises(KafkaError) as raised:
        ask(peer, lambda admin: admin.describe_group("g"))
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_damaged_consumers_metadata_hides_nothing_else(peer: Peer) -> None:
    member = DESCRIBED.DescribedGroupMember(
        member_id="m", client_id="c", client_host="h", member_metadata=b"\x00\x01\x7f"
    )
    group = DESCRIBED.DescribedGroup(
        group_id="g", group_state="Stable", protocol_type="consumer", members=[member]
    )
    peer.answers[ApiKey.DESCRIBE_GROUPS] = lambda request: DESCRIBED(groups=[group])
    (found,) = ask(peer, lambda admin: admin.describe_group("g")).members
    assert (found.topics, found.partitions) == ((), ())
