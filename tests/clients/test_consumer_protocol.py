"""Stock librdkafka consumers in groups whose coordinator assigns partitions (KIP-848)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kraftpy.testing import Broker
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Deadline, Message

Join = Callable[..., Consumer]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Members hear of changes within a moment, not within Kafka's five seconds."""
    settings = {"group_consumer_heartbeat_interval_ms": 100}
    with Broker(group_consumer_min_heartbeat_interval_ms=100, **settings) as started:
        yield started


@pytest.fixture
def driver(broker: Broker) -> ConfluentKafka:
    return ConfluentKafka(broker.bootstrap)


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def join(driver: ConfluentKafka, group: str) -> Iterator[Join]:
    """`join(*topics, **configs)` gives a member of this test's group."""
    with contextlib.ExitStack() as stack:

        def start(*topics: str, **configs: str) -> Consumer:
            consumer = driver.consumer(
                group_protocol="consumer",
                group_id=group,
                auto_offset_reset="earliest",
                topic_metadata_refresh_interval_ms=200,
                **configs,
            )
            stack.callback(consumer.close)
            consumer.subscribe(list(topics))
            return consumer

        yield start


def owned(consumer: Consumer) -> set[tuple[str, int]]:
    return {(place.topic, place.partition) for place in consumer.assignment()}


def poll_until(what: str, condition: Callable[[], bool], *members: Consumer) -> None:
    deadline = Deadline(what)
    while not condition() and deadline.left():
        for member in members:
            member.poll(0.02)


def counts(members: Sequence[Consumer]) -> list[int]:
    return sorted(len(owned(member)) for member in members)


def places(topic: str, partitions: int) -> set[tuple[str, int]]:
    return {(topic, index) for index in range(partitions)}


def test_members_share_and_commit(
    driver: ConfluentKafka, topic: str, group: str, join: Join
) -> None:
    driver.create_topic(topic, 6)
    driver.produce(topic, [Message(b"%d" % n, partition=n % 6) for n in range(60)])
    members = [join(topic)]
    poll_until("the first member's share", lambda: len(owned(members[0])) == 6, *members)
    members += [join(topic), join(topic)]
    poll_until("equal shares", lambda: counts(members) == [2, 2, 2], *members)
    assert set.union(*map(owned, members)) == places(topic, 6)

    for member in members:
        member.commit(
            offsets=[TopicPartition(*place, 7) for place in owned(member)], asynchronous=False
        )
    before = [owned(member) for member in members]
    members.pop().close()
    poll_until("shares of two", lambda: counts(members) == [3, 3], *members)
    # Nobody loses what it had because another one leaves.
    assert all(had <= owned(member) for had, member in zip(before, members, strict=False))
    assert [driver.committed(topic, index, group) for index in range(6)] == [7] * 6


def test_a_pattern_finds_topics_that_come_later(
    driver: ConfluentKafka, topic: str, join: Join
) -> None:
    driver.create_topic(f"{topic}-eu", 2)
    driver.create_topic(f"other-{topic}", 2)
    member = join(f"^{topic}-.*")
    poll_until("the share", lambda: owned(member) == places(f"{topic}-eu", 2), member)
    driver.create_topic(f"{topic}-us", 1)
    both = places(f"{topic}-eu", 2) | places(f"{topic}-us", 1)
    poll_until("the new topic", lambda: owned(member) == both, member)
    driver.delete_topic(f"{topic}-eu")
    poll_until("the end", lambda: owned(member) == places(f"{topic}-us", 1), member)


def test_new_partitions_are_read(driver: ConfluentKafka, topic: str, join: Join) -> None:
    driver.create_topic(topic, 1)
    members = [join(topic), join(topic)]
    poll_until("a share", lambda: counts(members) == [0, 1], *members)
    driver.grow_topic(topic, 4)
    poll_until("equal shares", lambda: counts(members) == [2, 2], *members)


def test_a_static_member_comes_back_to_what_it_had(
    driver: ConfluentKafka, topic: str, join: Join
) -> None:
    driver.create_topic(topic, 4)
    first, second = join(topic, group_instance_id="a"), join(topic, group_instance_id="b")
    poll_until("equal shares", lambda: counts([first, second]) == [2, 2], first, second)
    had, kept = owned(first), owned(second)
    first.close()
    again = join(topic, group_instance_id="a")
    poll_until("the same share", lambda: owned(again) == had, again, second)
    assert owned(second) == kept


def test_members_choose_the_assignor(driver: ConfluentKafka, topic: str, join: Join) -> None:
    left, right = f"{topic}-a", f"{topic}-b"
    driver.create_topic(left, 4)
    driver.create_topic(right, 4)
    members = [join(left, right, group_remote_assignor="range") for _ in range(2)]
    poll_until("equal shares", lambda: counts(members) == [4, 4], *members)
    for member in members:
        indexes = {name: {p for t, p in owned(member) if t == name} for name in (left, right)}
        assert indexes[left] == indexes[right]


def test_what_an_administrator_sees(
    broker: Broker, driver: ConfluentKafka, topic: str, group: str, join: Join
) -> None:
    driver.create_topic(topic, 2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def listed(kind: ConsumerGroupType) -> list[str]:
        found = admin.list_consumer_groups(types={kind}).result()
        return [g.group_id for g in found.valid if g.group_id == group]

    member = join(topic)
    poll_until("the share", lambda: len(owned(member)) == 2, member)
    assert listed(ConsumerGroupType.CONSUMER) == [group]
    assert listed(ConsumerGroupType.CLASSIC) == []
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state.name == "STABLE"
    assert described.type is ConsumerGroupType.CONSUMER
    (seen,) = described.members
    assigned = seen.assignment.topic_partitions
    assert {(place.topic, place.partition) for place in assigned} == places(topic, 2)
    with pytest.raises(KafkaException, match="NON_EMPTY"):
        admin.delete_consumer_groups([group])[group].result()
    member.close()
    admin.delete_consumer_groups([group])[group].result()
    assert listed(ConsumerGroupType.CONSUMER) == []
