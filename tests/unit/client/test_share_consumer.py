"""The share consumer against a scripted broker: what goes wrong, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.connection import ConnectionLostError
from kraftpy.client.share_group.acknowledgements import Acknowledgements
from kraftpy.client.share_group.consumer import ShareConsumer
from kraftpy.client.share_group.leased import Lease, ShareRecord, Tenure
from kraftpy.protocol import messages
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import EndTxnMarker, build_end_txn_marker
from tests.waiting import until

from .peer import HANG_UP, SILENCE, running
from .share_peer import SharePeer, failing, numbers

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
T0 = ("t", 0)


@asynccontextmanager
async def sharing(peer: SharePeer, **options: Any) -> AsyncIterator[ShareConsumer]:
    """A consumer of the topic, explicit if nothing else is said."""
    options = {"share_acknowledgement_mode": "explicit", "fetch_max_wait_ms": 1} | options
    async with (
        asyncio.timeout(20),
        Cluster(peer.bootstrap, request_timeout_ms=2_000) as cluster,
        ShareConsumer(cluster, group_id="g", **options) as consumer,
    ):
        consumer.subscribe(["t"])
        yield consumer


async def take(consumer: ShareConsumer, count: int) -> list[Any]:
    records: list[Any] = []
    while len(records) < count:
        records += await consumer.poll(200)
    return records


def epochs(peer: SharePeer, key: ApiKey) -> list[int]:
    return [request.share_session_epoch for request in peer.asked(key)]


async def test_a_session_is_told_only_what_changes() -> None:
    peer = SharePeer(2)
    peer.leases = [(numbers(0, 3), [(0, 2, 1)])]
    async with running(peer), sharing(peer) as consumer:
        for record in await take(consumer, 3):
            consumer.accept(record)
        while len(peer.asked(ApiKey.SHARE_FETCH)) < 3:
            await consumer.poll(10)
        first, second, third = peer.asked(ApiKey.SHARE_FETCH)[:3]
    assert [len(topic.partitions) for topic in first.topics] == [2]
    assert [(p.partition_index) for topic in second.topics for p in topic.partitions] == [0]
    assert peer.said == [(0, 2, ACCEPT)]
    assert (third.topics, third.share_session_epoch) == ([], 2)


async def test_what_is_no_record_is_a_gap_and_what_did_not_come_is_released() -> None:
    peer = SharePeer()
    marker = build_end_txn_marker(
        EndTxnMarker(committed=True, coordinator_epoch=0),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=4,
    )
    records = numbers(2, 2) + marker
    peer.leases = [(records + numbers(7, 2), [(0, 7, 1), (8, 9, 3)])]
    async with running(peer), sharing(peer) as consumer:
        found = [(each.offset, each.delivery_count) for each in await take(consumer, 4)]
        assert found == [(2, 1), (3, 1), (7, 1), (8, 3)]
        assert await consumer.commit() == {}  # nobody said anything of them
    assert peer.said == [(0, 1, GAP), (4, 6, GAP), (9, 9, RELEASE)]


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_a_connection_lost_with_acknowledgements_under_way_is_told(
    hangs_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The session is over then, and what it has leased isn't for this consumer any more."""
    peer = SharePeer()
    peer.leases = [(numbers(0, 4), [(0, 3, 1)]), (numbers(9, 1), [(9, 9, 1)])]
    async with running(peer), sharing(peer, max_poll_records=3) as consumer:
        one, two, three = await take(consumer, 3)
        consumer.accept(one)
        if hangs_up:
            peer.answers[ApiKey.SHARE_ACKNOWLEDGE] = lambda _: HANG_UP
        else:
            failing(ErrorCode.SHARE_SESSION_NOT_FOUND, peer, ApiKey.SHARE_ACKNOWLEDGE)
        outcomes = await consumer.commit()
        refusal = outcomes[T0]
        if hangs_up:
            assert isinstance(refusal, ConnectionLostError)
            assert str(refusal).endswith("whether what was said counts isn't known")
        else:
            assert isinstance(refusal, KafkaError)
            assert refusal.code is ErrorCode.SHARE_SESSION_NOT_FOUND
        assert caplog.records == []
        del peer.answers[ApiKey.SHARE_ACKNOWLEDGE]
        consumer.accept(two)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        # The fourth was leased in that session: it isn't handed out.
        assert [each.offset for each in await take(consumer, 1)] == [9]
        consumer.reject(three)
        assert list(await consumer.commit()) == [T0]
    assert epochs(peer, ApiKey.SHARE_FETCH)[:2] == [0, 0]
    assert peer.said == []


async def test_a_leader_that_is_not_among_the_brokers_hears_it_while_the_connection_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unknown(*_: object) -> None:
        raise ConnectionLostError("broker 1 is not known to the cluster")

    peer = SharePeer()
    peer.leases = [(numbers(0, 1), [(0, 0, 1)])]
    async with running(peer), sharing(peer) as consumer:
        (record,) = await take(consumer, 1)
        consumer.accept(record)
        monkeypatch.setattr(consumer._fetching._cluster, "connection", unknown)
        async with asyncio.timeout(5):
            await consumer.commit()
    assert peer.said == [(0, 0, ACCEPT)]


async def test_a_poll_that_goes_on_does_not_bring_a_closed_member_back() -> None:
    peer = SharePeer()
    async with running(peer), sharing(peer) as consumer:
        await consumer.poll(50)

        def still_polled(request: Any) -> Any:
            if request.member_epoch < 0:
                consumer._member.polled()
            return peer._share_group_heartbeat(request)

        peer.answers[ApiKey.SHARE_GROUP_HEARTBEAT] = still_polled
        await consumer.close()
        assert consumer._member._heart is None


async def test_a_close_that_is_cancelled_lets_go_of_the_leases() -> None:
    peer = SharePeer()
    peer.leases = [(numbers(0, 1), [(0, 0, 1)])]
    async with running(peer), sharing(peer) as consumer:
        (record,) = await take(consumer, 1)
        consumer.accept(record)
        peer.answers[ApiKey.SHARE_ACKNOWLEDGE] = lambda request: SILENCE
        cluster, lane = consumer._fetching._cluster, consumer._fetching._lane
        closing = asyncio.create_task(consumer.close())
        await until(lambda: bool(peer.asked(ApiKey.SHARE_ACKNOWLEDGE)))
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert not [name for name in cluster._connections if name[1] == lane]


async def test_what_was_not_sent_when_a_connection_breaks_is_told() -> None:
    peer = SharePeer()
    peer.leases = [(numbers(0, 2), [(0, 1, 1)])]
    async with running(peer), sharing(peer) as consumer:
        consumer.accept(*await consumer.poll(5_000, max_records=1))
        peer.hang_up()
        connection = consumer._fetching._sessions[1]._connection
        assert connection is not None
        await until(lambda: connection.closed)
        refusal = (await consumer.commit())[T0]
        assert isinstance(refusal, ConnectionLostError)
        assert "the connection to 127.0.0.1" in str(refusal)
    assert peer.said == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ],
)
async def test_a_session_begins_anew(code: ErrorCode) -> None:
    peer = SharePeer()
    peer.leases = [(numbers(0, 1), [(0, 0, 1)])]
    async with running(peer), sharing(peer) as consumer:
        consumer.accept(*await take(consumer, 1))
        connections = peer.connections
        failing(code, peer, ApiKey.SHARE_FETCH)
        peer.leases = [(numbers(1, 1), [(1, 1, 1)])]
        assert [each.offset for each in await take(consumer, 1)] == [1]
        assert [getattr(each, "code", None) for each in (await consumer.commit()).values()] == [
            code
        ]
        assert peer.connections == connections + 1
    assert epochs(peer, ApiKey.SHARE_FETCH)[:3] == [0, 1, 0]


async def test_an_error_that_stays_is_raised_and_reading_goes_on_afterwards() -> None:
    peer = SharePeer()
    async with running(peer), sharing(peer) as consumer:
        failing(ErrorCode.SHARE_SESSION_LIMIT_REACHED, peer, ApiKey.SHARE_FETCH, 1_000)
        with pytest.raises(KafkaError, match="as many share sessions as it allows"):
            await take(consumer, 1)
        failing(ErrorCode.GROUP_AUTHORIZATION_FAILED, peer, ApiKey.SHARE_FETCH)
        with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
            await take(consumer, 1)
        peer.leases = [(numbers(0, 1), [(0, 0, 1)])]
        await take(consumer, 1)


@pytest.mark.parametrize("by_fetch", [True, False])
async def test_a_refusal_is_told_of_its_partition(by_fetch: bool) -> None:
    peer = SharePeer(2)
    told: list[Any] = []
    record = (numbers(0, 1), [(0, 0, 1)])
    peer.answers[ApiKey.SHARE_FETCH] = lambda request: peer.share_fetch(
        request, {} if request.share_session_epoch else {0: record, 1: record}
    )
    async with (
        running(peer),
        sharing(peer, acknowledgement_callback=lambda *words: told.append(words)) as consumer,
    ):
        for each in await take(consumer, 2):
            consumer.accept(each)
        peer.refuse = {1: ErrorCode.INVALID_RECORD_STATE}
        while by_fetch and len(told) < 2:
            await consumer.poll(10)
        outcomes = await consumer.commit()
        refusal = outcomes["t", 1]
        assert outcomes[T0] is None
        assert isinstance(refusal, KafkaError)
        assert refusal.code is ErrorCode.INVALID_RECORD_STATE
        assert str(refusal).startswith("INVALID_RECORD_STATE: t-1: ")
        assert await consumer.commit() == {}
    assert sorted(told, key=str) == [(T0, [(0, 0)], None), (("t", 1), [(0, 0)], refusal)]


async def test_what_a_callback_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    peer = SharePeer()
    peer.leases = [(numbers(0, 1), [(0, 0, 1)])]

    def callback(*_: object) -> None:
        raise ZeroDivisionError

    async with running(peer), sharing(peer, acknowledgement_callback=callback) as consumer:
        consumer.accept(*await take(consumer, 1))
        assert await consumer.commit() == {T0: None}
    (logged,) = caplog.records
    assert logged.getMessage() == "group 'g': the acknowledgement_callback failed"


async def test_what_has_timed_out_is_not_said_and_not_handed_out() -> None:
    """What is said of a partition is refused as a whole: this would have the rest refused."""
    peer = SharePeer()
    peer.lock_ms = 100
    peer.leases = [(numbers(0, 3), [(0, 2, 1)])]
    async with running(peer), sharing(peer) as consumer:
        one, two = await consumer.poll(5_000, max_records=2)
        consumer.accept(one)
        await asyncio.sleep(0.15)
        consumer.accept(two)
        refusal = (await consumer.commit())[T0]
        assert isinstance(refusal, KafkaError)
        assert refusal.code is ErrorCode.INVALID_RECORD_STATE
        assert "renew()" in refusal.message
        assert await consumer.poll(50) == []
    assert peer.said == [(0, 0, ACCEPT)]


async def test_a_lease_is_renewed() -> None:
    peer = SharePeer()
    peer.lock_ms = 200
    peer.leases = [(numbers(0, 2), [(0, 1, 1)])]
    async with running(peer), sharing(peer) as consumer:
        one, two = await take(consumer, 2)
        before = one.lease.deadline_s
        consumer.renew(one)
        consumer.renew(two)
        consumer.accept(two)
        peer.lock_ms = 30_000
        assert await consumer.commit() == {T0: None}
        assert one.lease.deadline_s > before + 10
        consumer.accept(one)
    assert peer.said == [(0, 0, RENEW), (1, 1, ACCEPT), (0, 0, ACCEPT)]
    renewing, last = peer.asked(ApiKey.SHARE_ACKNOWLEDGE)
    assert (renewing.is_renew_ack, last.is_renew_ack, last.share_session_epoch) == (True, False, -1)


async def test_a_leader_that_is_too_old_is_told_of() -> None:
    peer = SharePeer()
    peer.versions |= {ApiKey.SHARE_FETCH: (1, 1), ApiKey.SHARE_ACKNOWLEDGE: (1, 1)}
    peer.leases = [(numbers(0, 1), [(0, 0, 1)])]
    async with running(peer), sharing(peer) as consumer:
        (record,) = await take(consumer, 1)
        consumer.renew(record)
        refusal = (await consumer.commit())[T0]
        assert isinstance(refusal, KafkaError)
        assert "SHARE_ACKNOWLEDGE 1 only, and a lease is to be renewed" in refusal.message
    async with running(peer), sharing(peer, share_acquire_mode="record_limit") as consumer:
        with pytest.raises(KafkaError, match="record_limit: that needs Apache Kafka"):
            await take(consumer, 1)


async def test_who_is_fenced_joins_again_and_keeps_its_leases() -> None:
    peer = SharePeer()
    peer.leases = [(numbers(0, 2), [(0, 1, 1)])]
    async with running(peer), sharing(peer) as consumer:
        records = await take(consumer, 2)
        for code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            failing(code, peer, ApiKey.SHARE_GROUP_HEARTBEAT)
            asked = len(peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT))
            while len(peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT)) < asked + 3:
                await consumer.poll(10)
            beats = [
                (beat.member_epoch, beat.subscribed_topic_names)
                for beat in peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT)[asked:]
            ]
            assert beats[:3] == [(1, None), (0, ["t"]), (1, None)]
        for record in records:
            consumer.accept(record)
        assert await consumer.commit() == {T0: None}
    assert peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT)[-1].member_epoch == -1


async def test_what_a_lost_answer_may_not_have_told_is_said_again() -> None:
    peer = SharePeer()
    async with running(peer), sharing(peer) as consumer:
        while not consumer.assignment:
            await consumer.poll(10)
        peer.answers[ApiKey.SHARE_GROUP_HEARTBEAT] = lambda _: HANG_UP
        asked = len(peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT))
        await until(lambda: len(peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT)) > asked)
        del peer.answers[ApiKey.SHARE_GROUP_HEARTBEAT]
        await until(lambda: len(peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT)) > asked + 1)
        beat = peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT)[asked + 1]
        assert (beat.member_epoch, beat.subscribed_topic_names) == (1, ["t"])


async def test_a_fetch_renews_nothing() -> None:
    """Who says RENEW fetches nothing with that, so that it's said by itself."""
    words = Acknowledgements("g", None)
    lease = Lease((b"t" * 16, 0), T0, Tenure(1), float("inf"))
    record = ShareRecord(*T0, 5, -1, None, b"", [], 1, lease)
    words.say(record, AcknowledgeType.RENEW)
    assert words.take(lease.tenure, [lease.key]) == {}
    assert words.renews(lease.tenure)
    assert list(words.take(lease.tenure)) == [lease.key]


async def test_who_is_not_polled_leaves_and_comes_back() -> None:
    peer = SharePeer()
    async with running(peer), sharing(peer, max_poll_interval_ms=100) as consumer:
        await consumer.poll(50)

        def epochs() -> list[int]:
            return [each.member_epoch for each in peer.asked(ApiKey.SHARE_GROUP_HEARTBEAT)]

        await until(lambda: epochs()[-1] == -1)
        beats = len(epochs())
        while len(epochs()) < beats + 2:
            await consumer.poll(10)
        assert epochs()[beats:][:2] == [0, 1]


async def test_a_leader_that_is_not_one_says_who_is() -> None:
    peer, other = SharePeer(), SharePeer()
    other.leases = [(numbers(5, 1), [(5, 5, 1)])]
    peer.answers[ApiKey.SHARE_FETCH] = lambda request: peer.share_fetch(
        request, {}, {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    )
    async with running(peer), running(other), sharing(peer) as consumer:
        while not peer.asked(ApiKey.SHARE_FETCH):
            await consumer.poll(10)
        asked = len(peer.asked(ApiKey.METADATA))
        peer.leader = (2, 1)
        endpoint = messages.ShareFetchResponse.NodeEndpoint(2, "127.0.0.1", other.port, None)
        peer.endpoints = [endpoint]
        assert [record.offset for record in await take(consumer, 1)] == [5]
        assert len(peer.asked(ApiKey.METADATA)) <= asked + 2


async def test_a_cluster_without_share_groups_says_what_to_do() -> None:
    peer = SharePeer()
    del peer.versions[ApiKey.SHARE_GROUP_HEARTBEAT]
    async with running(peer), sharing(peer) as consumer:
        with pytest.raises(KafkaError, match="no share groups in this cluster yet: raise its"):
            await take(consumer, 1)


async def test_records_in_hand_are_acknowledged_while_others_wait() -> None:
    """A fetch takes what was said along; until there is one it doesn't wait for ever."""
    peer = SharePeer()
    peer.leases = [(numbers(0, 500), [(0, 499, 1)])]
    async with running(peer), sharing(peer, share_acknowledgement_mode="implicit") as consumer:
        async for record in consumer:
            await asyncio.sleep(0.01)
            last = record.offset
            if peer.said:
                break
        assert 50 < last < 200
        assert peer.said[0][0] == 0
    assert peer.said[-1][1] == last
    assert {what for _, _, what in peer.said} == {ACCEPT}


@pytest.mark.parametrize("arrives", ["before", "after"])
async def test_what_is_leased_of_a_topic_that_was_given_up_is_released(arrives: str) -> None:
    """Be it there when others are subscribed to, or on its way."""
    peer = SharePeer()
    peer.leases = [(numbers(0, 5), [(0, 4, 1)])]
    async with running(peer), sharing(peer) as consumer:
        handed_out = 0
        if arrives == "before":
            (record,) = await consumer.poll(5_000, max_records=1)
            consumer.accept(record)
            handed_out = 1
        else:
            while not peer.asked(ApiKey.SHARE_FETCH):
                await consumer.poll(0)
                await asyncio.sleep(0.001)
        consumer.subscribe(["other"])
        while (handed_out, 4, RELEASE) not in peer.said:
            assert await consumer.poll(10) == []
        consumer.subscribe(["t"])
        peer.leases = [(numbers(5, 1), [(5, 5, 1)])]
        assert [record.offset for record in await take(consumer, 1)] == [5]
    assert [each for each in peer.said if each[2] == ACCEPT] == [(0, 0, ACCEPT)][:handed_out]


async def test_what_makes_no_sense_is_refused() -> None:
    peer = SharePeer()
    async with running(peer), Cluster(peer.bootstrap) as cluster:
        with pytest.raises(ValueError, match="implicit or explicit"):
            ShareConsumer(cluster, group_id="g", share_acknowledgement_mode="some")
        with pytest.raises(ValueError, match="batch_optimized or record_limit"):
            ShareConsumer(cluster, group_id="g", share_acquire_mode="some")
        consumer = ShareConsumer(cluster, group_id="g")
        with pytest.raises(TypeError, match="list of topics"):
            consumer.subscribe("t")
        with pytest.raises(ValueError, match=r"unsubscribe\(\) leaves"):
            consumer.subscribe([])
        await consumer.close()
        with pytest.raises(RuntimeError, match="closed"):
            consumer.subscribe(["t"])
        with pytest.raises(RuntimeError, match="closed"):
            async for _ in consumer:
                pass
