"""Offsets of groups, committed at copies; what a mirror does behind a cycle, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer

from kraftpy.client.cluster import Cluster
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.offsets import OffsetAndMetadata, Partition
from kraftpy.client.share_group.consumer import ShareConsumer
from kraftpy.pipeline.groups import Translated, translate_groups
from kraftpy.pipeline.offset_syncs import Sync
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.settings import ClientSettings
from kraftpy.testing import Broker
from tests.spark.topics import create_topic, on_cluster
from tests.waiting import wait_until

NewTopic = Callable[..., str]


@pytest.fixture
def brokers(broker: Broker) -> Iterator[Brokers]:
    with Brokers(ClientSettings(broker.bootstrap)) as client:
        yield client


def commit(broker: Broker, group: str, offsets: dict[Partition, int]) -> None:
    async def work(cluster: Cluster) -> None:
        admin = GroupAdmin(cluster)
        before = await admin.committed(group)
        expected = {name: before[name].offset if name in before else -1 for name in offsets}
        named = {
            name: OffsetAndMetadata(offset, f"at {offset}") for name, offset in offsets.items()
        }
        assert await admin.commit(group, named, expected) == {}

    on_cluster(broker.bootstrap, work)


def committed(broker: Broker, group: str) -> dict[Partition, CommittedOffset]:
    found: dict[Partition, CommittedOffset] = on_cluster(
        broker.bootstrap, lambda cluster: GroupAdmin(cluster).committed(group)
    )
    return found


def test_343_groups_are_translated_and_never_set_back(
    broker: Broker, brokers: Brokers, new_topic: NewTopic
) -> None:
    """The copy of `topic` is on the same broker here."""
    topic, copy = new_topic(3), new_topic(3)
    group, mirrors = f"readers-{topic}", f"kraftpy-mirror.{topic}"
    syncs = {
        (topic, 0): [Sync(0, 100, True), Sync(50, 150, True), Sync(80, 170, False)],
        (topic, 1): [Sync(40, 7, False)],
    }

    def translate() -> Translated:
        return translate_groups(brokers, brokers, syncs, lambda _: copy, "lag", set())

    for name in (group, mirrors, "lag"):
        commit(broker, name, {(topic, 0): 20, (topic, 1): 39, (topic, 2): 5})
    # What is not known (partition 1), or not copied (2), is left.
    assert translate() == (1, 0)
    assert committed(broker, group)[copy, 0] == CommittedOffset(120, -1, "at 20")
    assert {name for name in committed(broker, group) if name[0] == copy} == {(copy, 0)}
    assert (copy, 0) not in committed(broker, mirrors)
    assert (copy, 0) not in committed(broker, "lag")
    assert translate() == (0, 0)

    commit(broker, group, {(topic, 0): 60, (topic, 1): 41})
    assert translate() == (2, 0)
    assert [committed(broker, group)[copy, number].offset for number in (0, 1)] == [150, 7]
    commit(broker, group, {(topic, 0): 10})
    commit(broker, group, {(copy, 1): 9})
    assert translate() == (0, 0)
    assert [committed(broker, group)[copy, number].offset for number in (0, 1)] == [150, 9]


def test_343_groups_in_use_at_the_copy_are_left(
    broker: Broker, brokers: Brokers, new_topic: NewTopic
) -> None:
    topic, copy = new_topic(1), new_topic(1)
    group = f"busy-{topic}"
    commit(broker, group, {(topic, 0): 20})
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        member.subscribe([copy])
        wait_until(lambda: bool(member.poll(0.05) or member.assignment()), "an assignment")
        syncs = {(topic, 0): [Sync(0, 0, True), Sync(50, 50, True)]}
        translate = lambda: translate_groups(brokers, brokers, syncs, lambda _: copy, None, set())  # noqa: E731
        assert translate() == (0, 1)
        assert (copy, 0) not in committed(broker, group)
    finally:
        member.close()
    assert translate() == (1, 0)
    assert committed(broker, group)[copy, 0].offset == 20


def test_343_what_the_copy_does_not_take_is_told_once_and_other_groups_go_on(
    broker: Broker, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """There the name of a group is that of a share group, and texts have to be shorter."""
    topic = new_topic(1)
    syncs = {(topic, 0): [Sync(0, 0, True), Sync(50, 50, True)]}
    shared, long, other = (f"{name}-{topic}" for name in ("a-shared", "b-long", "c-other"))
    with Broker(offset_metadata_max_bytes=4) as there:
        copy = f"copy-of-{topic}"
        create_topic(there.bootstrap, copy, 1)
        commit(broker, shared, {(topic, 0): 5})
        commit(broker, long, {(topic, 0): 50})  # "at 50"
        commit(broker, other, {(topic, 0): 5})  # "at 5"
        told: set[str] = set()

        def translate() -> Translated:
            with (
                Brokers(ClientSettings(broker.bootstrap)) as near,
                Brokers(ClientSettings(there.bootstrap)) as far,
            ):
                return translate_groups(near, far, syncs, lambda _: copy, None, told)

        async def twice(cluster: Cluster) -> list[Translated]:
            async with ShareConsumer(cluster, group_id=shared) as member:
                member.subscribe([copy])
                while not member.assignment:
                    await member.poll(100)
                return [await asyncio.to_thread(translate) for _ in range(2)]

        first, second = on_cluster(there.bootstrap, twice)
        assert committed(there, other)[copy, 0].offset == 5
    assert (first.left, second) == (2, (0, 2))
    assert told == {shared, long}
    assert caplog.text.count("can't be translated") == 2
