"""A group member against a scripted coordinator: what it does about each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kraftpy.client.assignors import ASSIGNORS
from kraftpy.client.cluster import BrokerInfo, Cluster
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
from kraftpy.protocol.extensions import (
    COOPERATIVE_FEATURE,
)
from kraftpy.protocol.key_shares import (
    ALL_SLOTS,
    MAGIC,
    Shares,
    ShareSubscription,
    decode_share_subscription,
)

from .group_peer import CoordinatorPeer
from .peer import SILENCE, running

T0 = ("t", 0)
TOPICS = frozenset({"t"})


def with_member(
    peer: CoordinatorPeer,
    work: Callable[[Member, Coordinator, asyncio.Event], Coroutine[Any, Any, None]],
    *,
    assignors: Sequence[str] = ("range",),
    allow_key_share: bool = True,
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
                [ASSIGNORS[name] for name in assignors],
                GroupTimes(**limits),
                allow_key_share=allow_key_share,
                share_host="here",
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
        assert await member.join(TOPICS, {}, []) == {T0: ALL_SLOTS}
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
        await member.join(TOPICS, {}, [])
        peer.codes[key] = [code]
        if key == ApiKey.HEARTBEAT:
            while not member.lost:
                changed.clear()
                await changed.wait()
            assert member.needs_join
            assert member.generation.id == -1
        await member.join(TOPICS, {T0: ALL_SLOTS}, [T0])
        assert member.lost
        *_, request = peer.asked(ApiKey.JOIN_GROUP)
        assert decode_subscription(request.protocols[0].metadata, None).owned == ()

    with_member(peer, work)


def test_heartbeats_tell_of_a_rebalance_and_go_on_until_it_is_joined() -> None:
    peer = CoordinatorPeer()
    peer.codes[ApiKey.HEARTBEAT] = [0, -2, 16, 27]

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, {}, [])
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
        await member.join(TOPICS, {}, [])
        await changed.wait()
        assert member.failure is not None
        assert member.failure.code == ErrorCode.FENCED_INSTANCE_ID

    with_member(peer, work)


def test_a_member_that_is_not_polled_leaves() -> None:
    peer = CoordinatorPeer()

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, {}, [])
        await changed.wait()
        assert member.lost
        assert len(peer.asked(ApiKey.LEAVE_GROUP)) == 1

    with_member(peer, work, max_poll_interval_ms=100)


def test_a_refused_join_is_raised() -> None:
    peer = CoordinatorPeer()
    peer.codes[ApiKey.JOIN_GROUP] = [23]

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        with pytest.raises(KafkaError, match="INCONSISTENT_GROUP_PROTOCOL"):
            await member.join(TOPICS, {}, [])

    with_member(peer, work)


def test_a_coordinator_is_asked_where_it_says_that_it_is() -> None:
    peer = CoordinatorPeer()

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        cluster = coordinator._cluster
        await cluster.refresh([])
        cluster.brokers[1] = replace(cluster.brokers[1], port=1, rack="here")
        await coordinator.commit({T0: 1}, Generation(), timeout_ms=1000)
        assert cluster.brokers[1] == BrokerInfo(1, "127.0.0.1", peer.port, "here")

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
    whole: Shares = {("b", 0): ALL_SLOTS, ("b", 2): ALL_SLOTS}
    assert decode_assignment(encode_assignment(whole)) == whole
    assert MAGIC not in encode_assignment(whole), "others never see what they needn't"
    parts: Shares = {("b", 0): ((5, 9), (20, 30)), ("b", 2): ALL_SLOTS}
    assert decode_assignment(encode_assignment(parts)) == parts
    assert decode_assignment(b"") == {}
    with pytest.raises(KafkaError, match="can't be read"):
        decode_assignment(b"\0\0\xff")
    with pytest.raises(KafkaError, match="can't be read"):
        decode_assignment(encode_assignment(parts).replace(b"\0\5\0\x09", b"\0\x09\0\5"))


HALF: Shares = {T0: ((0, 32767),)}


@pytest.mark.parametrize(
    ("feature", "topic", "coordinator", "expected"),
    [
        (1, True, True, HALF),
        (1, False, True, {}),
        (1, True, False, {}),
        (0, True, True, {}),
    ],
)
def test_a_leader_deals_out_parts_where_topic_and_coordinator_allow_it(
    feature: int, topic: bool, coordinator: bool, expected: Shares
) -> None:
    peer = CoordinatorPeer()
    peer.features[COOPERATIVE_FEATURE] = feature
    peer.accepts_fetch, peer.accepts_commit = topic, coordinator
    peer.others = ["a"]
    found: list[Shares] = []

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, {}, [])
        (request,) = peer.asked(ApiKey.SYNC_GROUP)
        found.extend(decode_assignment(bytes(each.assignment)) for each in request.assignments)

    with_member(peer, work)
    asked = peer.asked(ApiKey.JOIN_GROUP)[-1]
    said = decode_subscription(asked.protocols[0].metadata, None).user_data
    if feature:
        assert decode_share_subscription(said) == ShareSubscription(True, "here", {})
    else:
        assert said == b""
        assert not asked._tags
    whole = {T0: ALL_SLOTS}
    assert found == ([{T0: ((32768, 65535),)}, expected] if expected else [{}, whole])


@pytest.mark.parametrize(
    ("assignors", "allow", "shares"),
    [
        (["kraftpy-cooperative-sticky"], True, True),
        (["kraftpy-cooperative-sticky"], False, False),
        # A stock leader would give away what this member keeps a part of.
        (["kraftpy-cooperative-sticky", "cooperative-sticky"], True, False),
        # All is given up before.
        (["range", "cooperative-sticky"], True, True),
    ],
)
def test_who_could_lose_a_slice_to_a_leader_that_sees_none_shares_nothing(
    assignors: list[str], allow: bool, shares: bool
) -> None:
    peer = CoordinatorPeer()
    peer.features[COOPERATIVE_FEATURE] = 1

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        await member.join(TOPICS, HALF if shares else {}, [])

    with_member(peer, work, assignors=assignors, allow_key_share=allow)
    asked = peer.asked(ApiKey.JOIN_GROUP)[-1]
    said = decode_subscription(asked.protocols[0].metadata, None)
    sharing = decode_share_subscription(said.user_data)
    assert sharing == (ShareSubscription(True, "here", HALF) if shares else None)


def test_who_does_not_share_refuses_a_part() -> None:
    peer = CoordinatorPeer()
    part = encode_assignment(HALF)
    peer.answers[ApiKey.SYNC_GROUP] = lambda request: messages.SyncGroupResponse(assignment=part)

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        with pytest.raises(KafkaError) as caught:
            await member.join(TOPICS, {}, [])
        assert caught.value.code == ErrorCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED

    with_member(peer, work, allow_key_share=False)


def test_a_member_that_hears_nothing_for_a_session_s_time_may_have_been_replaced() -> None:
    peer = CoordinatorPeer()

    async def work(member: Member, coordinator: Coordinator, changed: asyncio.Event) -> None:
        assert not member.in_touch
        await member.join(TOPICS, {}, [])
        assert member.in_touch
        peer.answers[ApiKey.HEARTBEAT] = lambda request: SILENCE
        async with asyncio.timeout(5):
            while member.in_touch:
                await asyncio.sleep(0.01)

    with_member(peer, work, session_timeout_ms=200)
