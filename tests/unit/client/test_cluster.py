"""The cluster: addresses, bootstrap, metadata, retries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import (
    AddressError,
    Cluster,
    NoBrokerError,
    Retry,
    is_retriable,
    parse_addresses,
)
from kraftpy.client.connection import ConnectionLostError
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .peer import HANG_UP, Peer, running


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        ("a", [("a", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("[::1]:9", [("::1", 9)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", "a:", ":1", "a:x", "a:0", "a:65536", "a:1,,b:2", "a:-1"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(AddressError, match="is not HOST:PORT"):
        parse_addresses(text)


def test_which_errors_are_retriable() -> None:
    assert is_retriable(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert is_retriable(ConnectionLostError("gone"))
    assert not is_retriable(KafkaError(ErrorCode.INVALID_CONFIG))
    assert not is_retriable(ValueError("a bug"))


def test_retry_gives_up_at_once_or_at_its_deadline() -> None:
    async def run() -> None:
        with pytest.raises(KafkaError, match="INVALID_CONFIG"):
            await Retry(10_000).wait(KafkaError(ErrorCode.INVALID_CONFIG))
        retry = Retry(200)
        await retry.wait(ConnectionLostError("gone"))
        with pytest.raises(ConnectionLostError):
            await asyncio.gather(*(retry.wait(ConnectionLostError("gone")) for _ in range(5)))

    asyncio.run(run())


def test_bootstraps_from_the_address_that_answers() -> None:
    peer = Peer({"t": 2})

    async def run() -> None:
        async with running(peer), Cluster(["127.0.0.1:1", peer.bootstrap]) as cluster:
            info = await cluster.topic("t")
            assert list(info.partitions) == [0, 1]
            assert cluster.cluster_id == "scripted"
            assert cluster.leader("t", 1) == 1
            with pytest.raises(KafkaError, match="no partition 2"):
                cluster.leader("t", 2)

    asyncio.run(run())


def test_no_broker_says_why_for_each_address() -> None:
    async def run() -> None:
        async with Cluster("127.0.0.1:1,localhost:2") as cluster:
            with pytest.raises(NoBrokerError) as caught:
                await cluster.refresh()
        assert not is_retriable(caught.value)
        assert "127.0.0.1:1: connection refused" in str(caught.value)
        assert "localhost:2: connection refused" in str(caught.value)

    asyncio.run(run())


def test_a_missing_topic_is_an_answer_unless_it_may_be_created() -> None:
    peer = Peer()

    def created_at_the_third_look(request: Any) -> Any:
        if len(peer.asked(ApiKey.METADATA)) == 3:
            peer.topics["t"] = 1
        return peer._metadata(request)

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap) as cluster:
            with pytest.raises(KafkaError) as caught:
                await cluster.topic("t")
            assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert len(peer.asked(ApiKey.METADATA)) == 1
            assert not peer.asked(ApiKey.METADATA)[0].allow_auto_topic_creation
            peer.answers[ApiKey.METADATA] = created_at_the_third_look
            assert (await cluster.topic("t", auto_create=True)).partitions
            assert peer.asked(ApiKey.METADATA)[-1].allow_auto_topic_creation

    asyncio.run(run())


def test_a_topic_is_asked_for_once() -> None:
    peer = Peer({"t": 1})

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap) as cluster:
            for _ in range(3):
                await cluster.topic("t")
        assert len(peer.asked(ApiKey.METADATA)) == 1

    asyncio.run(run())


def test_a_change_is_tried_again_until_the_controller_takes_it() -> None:
    peer = Peer()
    outcomes = [41, 41, 0]  # NOT_CONTROLLER
    kinds = messages.CreateTopicsResponse

    def create(request: Any) -> Any:
        if len(peer.asked(ApiKey.CREATE_TOPICS)) == 1:
            return HANG_UP
        return kinds(topics=[kinds.CreatableTopicResult(name="t", error_code=outcomes.pop(0))])

    peer.answers[ApiKey.CREATE_TOPICS] = create

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap) as cluster:
            await Admin(cluster).create_topic("t", partitions=3, configs={"retention.ms": "5"})
        asked = peer.asked(ApiKey.CREATE_TOPICS)
        assert len(asked) == 4
        assert (asked[0].topics[0].num_partitions, asked[0].topics[0].replication_factor) == (3, -1)
        assert asked[0].topics[0].configs[0].name == "retention.ms"

    asyncio.run(run())


def test_a_topic_that_is_coming_into_being_is_waited_for() -> None:
    peer = Peer({"t": 1})

    def not_yet(request: Any) -> Any:
        response = peer._metadata(request)
        if len(peer.asked(ApiKey.METADATA)) < 3:
            response.topics = [messages.MetadataResponse.MetadataResponseTopic(5, "t")]
        return response

    peer.answers[ApiKey.METADATA] = not_yet

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap) as cluster:
            (info,) = await Admin(cluster).describe_topics(["t"])
            assert info.name == "t"
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await Admin(cluster).describe_topics(["nowhere"])

    asyncio.run(run())


def test_a_refused_change_carries_the_brokers_words() -> None:
    peer = Peer()
    kinds = messages.CreateTopicsResponse
    result = kinds.CreatableTopicResult(name="t", error_code=38, error_message="only 1 is up")
    peer.answers[ApiKey.CREATE_TOPICS] = lambda request: kinds(topics=[result])

    async def run() -> None:
        async with running(peer), Cluster(peer.bootstrap) as cluster:
            with pytest.raises(KafkaError, match="only 1 is up") as caught:
                await Admin(cluster).create_topic("t", replication_factor=3)
            assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR

    asyncio.run(run())


def test_a_broker_that_knows_no_better_is_not_asked_for_ever() -> None:
    stale, fresh = Peer({"t": 1}), Peer({"t": 1})
    kinds = messages.MetadataResponse

    def telling(leader: int, epoch: int) -> Any:
        partition = kinds.MetadataResponsePartition(
            partition_index=0, leader_id=leader, leader_epoch=epoch
        )
        brokers = [
            kinds.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=peer.port)
            for node_id, peer in ((1, stale), (2, fresh))
        ]
        topics = [kinds.MetadataResponseTopic(name="t", partitions=[partition])]
        return kinds(brokers=brokers, topics=topics)

    stale.answers[ApiKey.METADATA] = lambda _: telling(1, 0)
    fresh.answers[ApiKey.METADATA] = lambda _: telling(2, 1)

    async def run() -> None:
        async with running(stale), running(fresh), Cluster(stale.bootstrap) as cluster:
            await cluster.refresh(["t"])
            assert cluster.leader("t", 0) == 1
            for _ in range(2):  # the first of these is how it finds out
                await cluster.refresh(["t"])
            assert cluster.leader("t", 0) == 2
            before = len(stale.asked(ApiKey.METADATA))
            for _ in range(2):
                await cluster.refresh(["t"])
            assert len(stale.asked(ApiKey.METADATA)) > before
            assert cluster.leader("t", 0) == 2, "an older epoch was believed"

    asyncio.run(run())
