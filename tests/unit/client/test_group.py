"""A group member against a scripted coordinator: what it does about each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kraftpy.client.assignors import ASSIGNORS
from kraftpy.client.cluster import Cluster
from kraftpy.client.coordinator import Coordinator, Generation
from kraftpy.client.group import (
    GroupTimes,
    Member,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .peer import HANG_UP, Peer, running

T0 = ("t", 0)
TOPICS = frozenset({"t"})


class CoordinatorPeer(Peer):
    """A broker that coordinates a group of one; `codes` are error codes to answer first."""

    def __init__(self) -> None:
        super().__init__({"t": 1})
        self.versions |= {
            ApiKey.FIND_COORDINATOR: (0, 3),
            ApiKey.JOIN_GROUP: (2, 9),
            ApiKey.SYNC_GROUP: (0, 5),
            ApiKey.HEARTBEAT: (0, 4),
            ApiKey.LEAVE_GROUP: (3, 5),
            ApiKey.OFFSET_COMMIT: (2, 8),
        }
        self.codes: dict[ApiKey, list[int]] = {}
        self.generation = 0

    def _default(self, request: Any) -> Any:
        codes = self.codes.get(ApiKey(request.API_KEY))
        code = codes.pop(0) if codes else 0
        if code < -1:
            return HANG_UP
        return getattr(self, "_" + ApiKey(request.API_KEY).name.lower())(request, code)

    def _api_versions(self, request: Any, code: int = 0) -> Any:
        return super()._api_versions(request)

    def _metadata(self, request: Any, code: int = 0) -> Any:
        return super()._metadata(request)

    def _find_coordinator(self, request: Any, code: int) -> Any:
        return messages.FindCoordinatorResponse(
            error_code=code, node_id=1, host="127.0.0.1", port=self.port
        )

    def _join_group(self, request: Any, code: int) -> Any:
        kinds = messages.JoinGroupResponse
        if not request.member_id:
            code = code or 79
        if code:
            return kinds(
                error_code=code, protocol_name="", leader="", member_id=request.member_id or "me"
            )
        self.generation += 1
        protocol = request.protocols[0]
        return kinds(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=protocol.name,
            leader=request.member_id,
            member_id=request.member_id,
            members=[
                kinds.JoinGroupResponseMember(
                    member_id=request.member_id, metadata=protocol.metadata
                )
            ],
        )

    def _sync_group(self, request: Any, code: int) -> Any:
        assignment = request.assignments[0].assignment if request.assignments else b""
        return messages.SyncGroupResponse(error_code=code, assignment=bytes(assignment))

    def _heartbeat(self, request: Any, code: int) -> Any:
        return messages.HeartbeatResponse(error_code=code)

    def _leave_group(self, request: Any, code: int) -> Any:
        return messages.LeaveGroupResponse(error_code=code)

    def _offset_commit(self, request: Any, code: int) -> Any:
        kinds = messages.OffsetCommitResponse
        partition = kinds.OffsetCommitResponsePartition(partition_index=0, error_code=code)
        topic = kinds.OffsetCommitResponseTopic(name="t", partitions=[partition])
        return kinds(topics=[topic])


def with_member(
    peer: CoordinatorPeer,
    work: Callable[[Member, Coordinator, asyncio.Event], Coroutine[Any, Any, None]],
    **times: int,
) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(20),
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=5000) as cluster,
        ):
            coordinator = Coordinator(cluster, "g")
            changed = asyncio.Event()
            limits = {"session_timeout_ms": 2000, "heartbeat_interval_ms": 20} | times
            member = Member(
                cluster,
                coordinator,
                [ASSIGNORS["range"]],
                GroupTimes(**limits),
                changed=changed.set,
            )
            try:
                await work(member, coordinator, changed)
            finally:
                await member.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (ApiKey.FIND_COORDINATOR, 15),  # COORDINATOR_NOT_AVAILABLE
        (ApiKey.JOIN_GROUP, 16),  # NOT_COORDINATOR
        (ApiKey.JOIN_GROUP, 14),  # COORDINATOR_LOAD_IN_PROGRESS
        (ApiKey.JOIN_GROUP, -2),
        (ApiKey.SYNC_GROUP, 27),  # REBALANCE_IN_PROGRESS
        (ApiKey.SYNC_GROUP, 16),
        (ApiKey.SYNC_GROUP, -2),
    ],
)
def test_joins_in_spite_of_retriable_errors(key: ApiKey, code: int) -> None:
    peer = CoordinatorPeer()
    peer.codes[key] = [code]

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        assert await member.join(TOPICS, [], []) == [T0]
        assert member.generation == Generation(peer.generation, "me")
        assert not member.lost

    with_member(peer, work)
    assert [request.members[0].member_id for request in peer.asked(ApiKey.LEAVE_GROUP)] == ["me"]


@pytest.mark.parametrize("code", [22, 25])  # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID
@pytest.mark.parametrize("key", [ApiKey.HEARTBEAT, ApiKey.SYNC_GROUP])
def test_a_member_that_the_group_went_on_without_has_lost_its_partitions(
    key: ApiKey, code: int
) -> None:
    peer = CoordinatorPeer()

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, [], [])
        peer.codes[key] = [code]
        if key == ApiKey.HEARTBEAT:
            while not member.lost:
                changed.clear()
                await changed.wait()
            assert member.needs_join
            assert member.generation.id == -1
        await member.join(TOPICS, [T0], [T0])
        assert member.lost
        *_, request = peer.asked(ApiKey.JOIN_GROUP)
        assert decode_subscription(request.protocols[0].metadata, None).owned == ()

    with_member(peer, work)


def test_heartbeats_tell_of_a_rebalance_and_go_on_until_it_is_joined() -> None:
    peer = CoordinatorPeer()
    peer.codes[ApiKey.HEARTBEAT] = [0, -2, 16, 27]

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, [], [])
        while not member.needs_join:
            changed.clear()
            await changed.wait()
        beats = len(peer.asked(ApiKey.HEARTBEAT))
        assert beats == 4
        while len(peer.asked(ApiKey.HEARTBEAT)) < beats + 3:
            await asyncio.sleep(0.01)
        assert not member.lost
        assert member.failure is None

    with_member(peer, work)


def test_a_fenced_member_stays_out() -> None:
    peer = CoordinatorPeer()
    peer.codes[ApiKey.HEARTBEAT] = [82]

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, [], [])
        await changed.wait()
        assert member.failure is not None
        assert member.failure.code == ErrorCode.FENCED_INSTANCE_ID

    with_member(peer, work)


def test_a_member_that_is_not_polled_leaves() -> None:
    peer = CoordinatorPeer()

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, [], [])
        await changed.wait()
        assert member.lost
        assert len(peer.asked(ApiKey.LEAVE_GROUP)) == 1

    with_member(peer, work, max_poll_interval_ms=100)


def test_a_refused_join_is_raised() -> None:
    peer = CoordinatorPeer()
    peer.codes[ApiKey.JOIN_GROUP] = [23]

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL"):
            await member.join(TOPICS, [], [])

    with_member(peer, work)


def test_commits_are_tried_again_only_if_that_helps() -> None:
    peer = CoordinatorPeer()

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        peer.codes[ApiKey.OFFSET_COMMIT] = [16, 14, -2]
        await coordinator.commit({T0: 5}, Generation(3, "me", "static"))
        requests = peer.asked(ApiKey.OFFSET_COMMIT)
        assert len(requests) == 4
        assert {
            (r.generation_id_or_member_epoch, r.member_id, r.group_instance_id) for r in requests
        } == {(3, "me", "static")}
        peer.codes[ApiKey.OFFSET_COMMIT] = [27]
        with pytest.raises(KafkaError, match="REBALANCE_IN_PROGRESS"):
            await coordinator.commit({T0: 5}, Generation(3, "me"))
        assert len(peer.asked(ApiKey.OFFSET_COMMIT)) == 5

    with_member(peer, work)


def test_metadata_and_assignments_come_back_as_they_went() -> None:
    data = encode_subscription({"b", "a"}, [("b", 2), ("a", 1), ("b", 0)], 7, b"user")
    found = decode_subscription(data, "i")
    assert (found.topics, found.generation) == (frozenset("ab"), 7)
    assert found.owned == (("a", 1), ("b", 0), ("b", 2))
    assert (found.instance_id, found.user_data) == ("i", b"user")
    assert decode_subscription(b"\0\0\xff", None).topics == frozenset()
    assert decode_assignment(encode_assignment([("b", 2), ("b", 0)])) == [("b", 0), ("b", 2)]
    assert decode_assignment(b"") == []
    with pytest.raises(KafkaError, match="can't be read"):
        decode_assignment(b"\0\0\xff")
