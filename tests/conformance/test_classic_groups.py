"""The classic group protocol: each story is told to Apache Kafka and to kraftpy, and ends alike.

Two answers differ on purpose, and no story asks for them: a group that nobody ever joined and that
holds no offsets does not exist here (there it does, until the offsets' retention ends), and a
member id that is pending together with an instance id is an unknown member, not a server error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.group import GroupTimes
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Message
from tests.conformance.conversation import (
    TIMEOUT_S,
    Conversation,
    rebalance,
    share,
    stable,
    subscription,
    tell,
)
from tests.processes import running

BOTH = {"range": subscription("t"), "roundrobin": subscription("t")}
SHORT = {"rebalance_ms": 2_000}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of both, with the same settings and topics."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), group_max_size=3)
    with running(kafka), Broker(group_initial_rebalance_delay_ms=0, group_max_size=3) as ours:
        addresses = {"Apache Kafka": kafka.bootstrap, "kraftpy": ours.bootstrap}
        for address in addresses.values():
            with Conversation(address, "first") as talk:
                talk.create_topics("t", "u")
        yield addresses


def restarts_of_static_members(talk: Conversation) -> None:
    leader, follower = stable(talk, 2, static=True)
    talk.describe()
    again = talk.member(instance="i1")
    again.join()
    again.sync()
    follower.beat()
    follower.join()
    follower.sync()
    talk.commit(1, follower.generation, follower.id, "i1")
    follower.leave()
    talk.describe()
    lead = talk.member(instance="i0")
    lead.join()
    lead.sync()
    leader.beat()
    old_client = talk.member(instance="i0", version=8)
    old_client.join()
    old_client.sync()
    old_client.beat()
    again.beat()
    talk.describe()
    talk.leave(("", "i0"), ("", "nobody"), ("", "i1"))
    talk.describe()
    talk.list()


def a_static_member_with_other_topics(talk: Conversation) -> None:
    leader, follower = stable(talk, 2, static=True)
    other = talk.member(instance="i1", protocols={"range": subscription("t", "u")})
    other.join()
    leader.beat()
    other.beat()
    talk.describe()
    lead = talk.member(instance="i0", protocols={"range": subscription("t", "u")})
    lead.join()
    other.beat()
    follower.beat()
    talk.describe()


def a_static_member_with_another_protocol(talk: Conversation) -> None:
    leader, _ = stable(talk, 2, static=True, protocols=BOTH)
    other = talk.member(instance="i1", protocols={"roundrobin": subscription("t")})
    other.ask_join()
    other.is_answered()
    talk.describe()
    leader.beat()
    leader.join()
    other.hear()


def a_static_member_that_restarts_before_the_assignment(talk: Conversation) -> None:
    leader, follower = (talk.member(instance=name) for name in ("i0", "i1"))
    leader.join()
    rebalance([leader], follower)
    follower.ask_sync()
    again = talk.member(instance="i1")
    again.ask_join()
    follower.hear()
    again.is_answered()
    leader.beat()
    leader.join()
    again.hear()
    talk.describe()


def a_static_leader_that_restarts_while_it_waits(talk: Conversation) -> None:
    leader, follower = stable(talk, 2, static=True)
    leader.ask_join()
    again = talk.member(instance="i0")
    again.ask_join()
    leader.hear()
    follower.beat()
    follower.join()
    again.hear()


def a_static_member_that_does_not_rejoin(talk: Conversation) -> None:
    leader, follower = stable(talk, 2, static=True, **SHORT)
    leader.join()
    talk.describe()
    follower.beat()


def more_members_than_the_group_may_have(talk: Conversation) -> None:
    members = [talk.member(rebalance_ms=4_000) for _ in range(5)]
    for member in members:
        member.join()
    for member in members:
        member.ask_join()
    for member in members:
        if member.is_answered():
            member.hear()
    talk.describe()


def a_full_group(talk: Conversation) -> None:
    stable(talk, 3, static=True)
    talk.member().join()
    talk.member(version=3).join()
    talk.member(instance="i9").join()
    talk.member(instance="i2").join()
    talk.describe()


def strangers(talk: Conversation) -> None:
    ghost = talk.member(member_id="ghost")
    ghost.join()
    ghost.join(instance="i")
    ghost.sync(member_id="ghost", generation=1)
    ghost.beat(member_id="ghost", generation=1)
    talk.leave(("ghost", None))
    talk.leave(("ghost", None), version=2)
    talk.describe()
    talk.delete()
    talk.delete_offsets("t")
    talk.list()
    talk.commit(3, 4, "ghost")
    talk.describe()


def a_group_of_offsets_only(talk: Conversation) -> None:
    talk.commit(3)
    talk.fetch()
    talk.describe()
    talk.list()
    talk.list(types=["classic"])
    talk.list(types=["CLASSIC"], states=["empty"])
    talk.list(types=["consumer"])
    talk.list(types=["nonsense"])
    talk.list(states=["Stable"])
    talk.commit(4)
    talk.delete()
    talk.fetch()
    talk.describe()


def requests_that_do_not_fit(talk: Conversation) -> None:
    (member,) = stable(talk, 1)
    now = member.generation
    for generation in (now - 1, now + 1, -1):
        member.beat(generation=generation)
        member.sync(generation=generation)
        talk.commit(1, generation, member.id)
    for how in ({"member_id": "x"}, {"instance": "i"}):
        member.beat(**how)
        member.sync(**how)
        member.join(**how)
    member.sync(protocol_type="x")
    member.sync(protocol_name="x")
    member.sync(version=4)
    member.join(protocols={"sticky": b""})
    newcomer = talk.member()
    newcomer.join(session_ms=10)
    newcomer.join(session_ms=10_000_000)
    newcomer.join(protocol_type="connect")
    newcomer.join(protocol_type="")
    newcomer.join(protocols={"sticky": b""})
    newcomer.join(protocols={})
    talk.commit(1, now, member.id)
    talk.commit(1, now, "x")
    talk.commit(1, now, member.id, "i")
    talk.commit(1)
    talk.delete()
    talk.delete_offsets("t")
    talk.delete_offsets("t", "nowhere")
    talk.list(states=["sTaBle"], types=["CLASSIC"])
    talk.leave((member.id, "i"), ("x", None), ("", None), (member.id, None), (member.id, None))
    talk.describe()
    talk.delete_offsets("t")
    talk.delete()
    talk.describe()


def leaves(talk: Conversation) -> None:
    dynamic, static = talk.member(), talk.member(instance="i1")
    dynamic.enter()
    rebalance([dynamic], static)
    share(dynamic, static)
    talk.leave(
        ("", "i1"),
        (dynamic.id, "i1"),
        (static.id, "i9"),
        (static.id, None),
        (dynamic.id, None),
        ("ghost", None),
    )
    talk.describe()
    dynamic.join()
    dynamic.beat()
    dynamic.sync()
    dynamic.id = ""
    dynamic.enter()
    share(dynamic)
    talk.leave(("x", None), version=2)
    talk.leave((dynamic.id, None), version=2)
    talk.leave((dynamic.id, None), version=2)
    talk.describe()


def a_pending_member_that_leaves(talk: Conversation) -> None:
    (member,) = stable(talk, 1)
    pending = talk.member()
    pending.join()
    member.ask_join()
    member.is_answered()
    talk.describe()
    pending.leave()
    member.hear()


def a_newcomer_while_the_leader_is_missing(talk: Conversation) -> None:
    leader, follower = talk.member(), talk.member()
    leader.enter()
    follower.join()
    rebalance([leader], follower)
    follower.ask_sync()
    follower.is_answered()
    newcomer = talk.member()
    newcomer.join()
    newcomer.ask_join()
    follower.hear()
    talk.describe()
    leader.beat()
    leader.sync({leader.id: b"overtaken"})
    leader.ask_join()
    follower.join()
    leader.hear()
    newcomer.hear()
    leader.sync({leader.id: b"all"})
    follower.sync()
    talk.describe()


def joins_that_are_repeated(talk: Conversation) -> None:
    leader, follower = stable(talk, 2)
    follower.join()
    follower.join(version=5)
    talk.describe()
    leader.ask_join()
    follower.beat()
    follower.join()
    leader.hear()
    follower.join()
    leader.join()
    talk.describe()
    follower.ask_join(protocols={"range": subscription("u")})
    leader.beat()
    leader.join()
    follower.hear()


def commits_during_a_rebalance(talk: Conversation) -> None:
    leader, follower = stable(talk, 2)
    leader.ask_join()
    for member in (leader, follower):
        talk.commit(5, member.generation, member.id)
    talk.commit(6)
    follower.join()
    leader.hear()
    talk.commit(7, follower.generation, follower.id)
    talk.commit(7, follower.generation - 1, follower.id)
    talk.fetch()
    talk.delete_offsets("t")
    talk.delete_offsets("u")
    talk.delete()


def a_member_without_heartbeats(talk: Conversation) -> None:
    leader, _ = stable(talk, 2)
    deadline_s = time.monotonic() + 20
    while leader.heartbeat() is ErrorCode.NONE and time.monotonic() < deadline_s:
        time.sleep(0.5)
    leader.beat()
    talk.describe()
    leader.join()
    talk.describe()


def a_leader_that_never_syncs(talk: Conversation) -> None:
    leader, follower = talk.member(**SHORT), talk.member(**SHORT)
    leader.enter()
    follower.join()
    rebalance([leader], follower)
    follower.sync()
    talk.describe()
    follower.join()
    leader.beat()
    talk.describe()


def a_leader_that_does_not_rejoin(talk: Conversation) -> None:
    leader, follower = stable(talk, 2, **SHORT)
    follower.join(protocols={"range": subscription("u")})
    talk.describe()
    leader.beat()


def votes(talk: Conversation) -> None:
    first = talk.member(protocols={"a": b"", "b": b"", "c": b""})
    second, third = (talk.member(protocols={"c": b"", "b": b""}) for _ in range(2))
    first.enter()
    second.join()
    rebalance([first], second)
    third.join()
    rebalance([first, second], third)
    talk.member(protocols={"a": b""}).join()


def another_protocol_type(talk: Conversation) -> None:
    worker = talk.member(protocol_type="connect", protocols={"sessioned": b"x"})
    worker.enter()
    how = {"protocol_type": "connect", "protocol_name": "sessioned"}
    worker.sync({worker.id: b"work"}, **how)
    talk.describe()
    talk.list()
    talk.delete_offsets("t")
    talk.commit(1, worker.generation, worker.id)
    worker.leave()
    talk.list()
    talk.delete_offsets("t")
    consumer = talk.member()
    consumer.enter()
    talk.list(states=["completingrebalance"])


def old_versions(talk: Conversation) -> None:
    old = talk.member(version=0)
    old.join()
    old.beat()
    old.sync({old.id: b"all"}, version=0)
    newer = talk.member(version=3)
    newer.ask_join()
    old.join()
    newer.hear()
    talk.describe()


STORIES = [
    restarts_of_static_members,
    a_static_member_with_other_topics,
    a_static_member_with_another_protocol,
    a_static_member_that_restarts_before_the_assignment,
    a_static_leader_that_restarts_while_it_waits,
    a_static_member_that_does_not_rejoin,
    more_members_than_the_group_may_have,
    a_full_group,
    strangers,
    a_group_of_offsets_only,
    requests_that_do_not_fit,
    leaves,
    a_pending_member_that_leaves,
    a_newcomer_while_the_leader_is_missing,
    joins_that_are_repeated,
    commits_during_a_rebalance,
    a_member_without_heartbeats,
    a_leader_that_never_syncs,
    a_leader_that_does_not_rejoin,
    votes,
    another_protocol_type,
    old_versions,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_it_ends_as_with_apache_kafka(
    story: Callable[[Conversation], None], brokers: dict[str, str]
) -> None:
    records = tell(Conversation, story, brokers)
    assert records["kraftpy"] == records["Apache Kafka"]
    assert records["kraftpy"]


async def test_members_of_ours_have_whole_partitions_of_apache_kafka(
    brokers: dict[str, str],
) -> None:
    """It is sent no claims, of which it would store the offset -1 that goes with one."""
    name, stock = ("shared", 0), ConfluentKafka(brokers["Apache Kafka"])
    stock.create_topic("shared", 1)
    stock.produce("shared", [Message(b"x", b"%d" % number) for number in range(20)])
    async with Cluster(brokers["Apache Kafka"]) as cluster, AsyncExitStack() as members:
        readers = [
            await members.enter_async_context(
                Consumer(
                    cluster,
                    group_id="shared",
                    assignors=["kraftpy-cooperative-sticky"],
                    times=GroupTimes(6_000, 100),
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    explicit_done=True,
                )
            )
            for _ in range(2)
        ]
        had: list[dict[int, ConsumerRecord]] = [{}, {}]
        for reader in readers:
            reader.subscribe(["shared"])
        async with asyncio.timeout(TIMEOUT_S):
            # Until both are in one generation, and who has the partition has read it.
            while (
                readers[0].generation.id != readers[1].generation.id
                or [len(each.shares) * 20 for each in readers] != list(map(len, had))
                or not any(had)
            ):
                for reader, its in zip(readers, had, strict=True):
                    its |= {each.offset: each for each in await reader.poll(20)}
        owner, records = (readers[0], had[0]) if had[0] else (readers[1], had[1])
        assert owner.shares == {name: []}
        for offset in range(19, -1, -1):
            if offset != 3:
                owner.done(records[offset])
        await owner.commit()
        assert await owner.committed([name]) == {name: 3}
        owner.done(records[3])
        await owner.commit()
        assert await owner.committed_ranges([name]) == {name: []}
    assert stock.committed("shared", 0, "shared") == 20
