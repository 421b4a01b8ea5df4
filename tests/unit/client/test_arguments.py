"""What is given by mistake is refused where it is given, with what to give instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster
from kraftpy.client.cluster_admin import ClusterAdmin
from kraftpy.client.consumer import Consumer
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.producer import Producer
from kraftpy.client.share_group.consumer import ShareConsumer
from kraftpy.client.simple_consumer import SimpleConsumer
from kraftpy.client.transactional_producer import TransactionalProducer

from .peer import Peer, running


@pytest.mark.parametrize(
    "make",
    [
        Admin,
        GroupAdmin,
        Producer,
        lambda given: TransactionalProducer(given, "me"),
        Consumer,
        SimpleConsumer,
        lambda given: Consumer(given, group_id="g"),
        lambda given: ShareConsumer(given, group_id="g"),
    ],
)
@pytest.mark.parametrize("given", ["127.0.0.1:9092", ["127.0.0.1:9092"]])
async def test_addresses_are_no_cluster(make: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a Cluster, .*: async with Cluster\(.*127.0.0.1"):
        make(given)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (["foo"], ValueError, r"no assignor 'foo'; those there are: cooperative-sticky, .*range"),
        ("range", TypeError, r"assignors takes a list, not one str: \['range'\]"),
    ],
)
def test_assignors_are_named_that_there_are(given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Consumer(Cluster("a:1"), group_id="g", assignors=given)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"headers": {"a": "b"}}, r"topic 't': headers are a dict.* give a list of names and by"),
        ({"headers": {"ab": b"c"}}, r"headers are a dict"),
        ({"headers": ("trace", b"1")}, r"header 'trace' has to be a name and bytes, as \(\"tra"),
        ({"headers": [b"1"]}, r"header b'1' has to be a name and bytes"),
        ({"partition": "0"}, r"topic 't': partition='0' has to be a number, not str"),
        ({"key": b"k"}, r"the key .* its serializer gave str: have the key_serializer return byt"),
    ],
)
async def test_records_are_refused_with_what_to_give(record: dict[str, Any], said: str) -> None:
    async with (
        running(Peer({"t": 1})) as peer,
        Cluster(peer.bootstrap) as cluster,
        Producer(cluster, key_serializer=repr) as producer,  # type: ignore[arg-type, return-value]
    ):
        with pytest.raises(TypeError, match=said):
            await producer.send("t", b"v", **record)
        await producer.send_and_wait("t", b"v", headers=[("a", b"b")], partition=0)


@pytest.mark.parametrize(
    ("given", "shown"),
    [(["c1"], "'c1'"), ("c1", "'c1'"), (("c1", 0), "'c1'"), ([["c1", 0]], r"\['c1', 0\]")],
)
def test_partitions_are_topics_and_numbers(given: Any, shown: str) -> None:
    consumer = Consumer(Cluster("a:1"))
    with pytest.raises(TypeError, match=rf"as \[\(\"orders\", 0\)\], not {shown}$"):
        consumer.assign(given)
    consumer.assign(iter([("c1", 0)]))
    assert consumer.assignment == {("c1", 0)}


@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster, names: Admin(cluster).describe_topics(names),
        lambda cluster, names: ClusterAdmin(cluster).describe_partitions(names),
        lambda cluster, names: ClusterAdmin(cluster).topic_configs(names, ["retention.ms"]),
        lambda cluster, names: GroupAdmin(cluster).delete_share_offsets("g", names),
    ],
)
def test_one_str_is_no_list_of_topics(ask: Callable[[Cluster, Any], Awaitable[Any]]) -> None:
    async def run() -> None:
        with pytest.raises(TypeError, match=r"takes a list of topics, not one str: \['c1'\]"):
            await ask(Cluster("a:1"), "c1")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retention.ms": 5}, r"'retention.ms' has the value 5, .* are str: give \"5\"$"),
        ({"preallocate": True}, r"'preallocate' has the value True, .*: give \"true\"$"),
        ({"retention.ms": None}, r"'retention.ms' has the value None, .* are str$"),
        (["retention.ms=5"], r"are a dict of names and values, not list$"),
    ],
)
async def test_configurations_are_str(given: Any, said: str) -> None:
    admin = Admin(Cluster("a:1"))
    with pytest.raises(TypeError, match=said):
        await admin.create_topic("c1", configs=given)
    with pytest.raises(TypeError, match=said):
        await admin.alter_configs("c1", values=given)
