"""A group moves from the classic to the consumer protocol and back, member by member, under load.

No partition is read by two members at a time, nothing is skipped, and committed offsets never go
back.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kraftpy.testing import Broker
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Deadline

PARTITIONS = 6
MEMBERS = 3
CLASSIC = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 100}
EAGER = {**CLASSIC, "partition_assignment_strategy": "range"}
COOPERATIVE = {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"}
CONSUMER = {"group_protocol": "consumer"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Members hear of changes within a moment, not within Kafka's five seconds."""
    with Broker(
        group_initial_rebalance_delay_ms=0,
        group_consumer_heartbeat_interval_ms=100,
        group_consumer_min_heartbeat_interval_ms=100,
    ) as started:
        yield started


class Owners:
    """Who reads what, and what was read and committed so far; notes whatever must not be."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[int, Member] = {}
        self.read: dict[int, set[int]] = defaultdict(set)
        self.committed: dict[int, int] = {}
        self.wrong: list[str] = []

    def take(self, member: Member, partitions: set[int]) -> None:
        with self.lock:
            for partition in partitions:
                other = self.of.setdefault(partition, member)
                if other is not member:
                    self.wrong.append(f"{partition} is {other.name}'s and {member.name}'s")

    def give_up(self, member: Member, partitions: set[int]) -> None:
        with self.lock:
            for partition in partitions:
                if self.of.get(partition) is member:
                    del self.of[partition]

    def shares(self) -> list[int]:
        with self.lock:
            members = list(self.of.values())
        return sorted(members.count(member) for member in set(members))


class Member:
    """A consumer in a thread: reads, commits what it has read, and goes on until `leave`."""

    def __init__(
        self, owners: Owners, driver: ConfluentKafka, topic: str, name: str, how: dict[str, object]
    ) -> None:
        self.name = name
        self._owners = owners
        self._topic = topic
        self._leaves = threading.Event()
        self._consumer = driver.consumer(
            group_id=f"g-{topic}", auto_offset_reset="earliest", client_id=name, **how
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, places: owners.take(self, indexes(places)),
            on_revoke=lambda _, places: owners.give_up(self, indexes(places)),
            on_lost=lambda _, places: owners.give_up(self, indexes(places)),
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._leaves.is_set():
            ends: dict[int, int] = {}
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    with self._owners.lock:
                        self._owners.read[message.partition()].add(message.offset())
                    ends[message.partition()] = message.offset() + 1
            if ends:
                self._commit(ends)
        self._consumer.close()

    def _commit(self, ends: dict[int, int]) -> None:
        wanted = [TopicPartition(self._topic, *end) for end in ends.items()]
        try:
            done = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # a rebalance came first: whoever owns the partition now reads it again
        with self._owners.lock:
            for place in done:
                if place.error is None:
                    before = self._owners.committed.get(place.partition, 0)
                    if place.offset < before:
                        self._owners.wrong.append(f"{place.partition}: {before} -> {place.offset}")
                    self._owners.committed[place.partition] = place.offset

    def leave(self) -> None:
        self._leaves.set()
        self._thread.join()


def indexes(places: list[TopicPartition]) -> set[int]:
    return {place.partition for place in places}


class Load:
    """Writes to all partitions in turn until it is stopped; counts what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        def delivered(error: object, message: object) -> None:
            assert error is None
            self.acknowledged[message.partition()] += 1  # type: ignore[attr-defined]

        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self._topic, b"x", partition=partition, on_delivery=delivered
                )
            self._producer.poll(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(20) == 0


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = Deadline(what)
    while not condition():
        threading.Event().wait(min(0.02, deadline.left()))


def group_type(admin: AdminClient, group: str) -> str:
    listed = admin.list_consumer_groups().result(timeout=20).valid
    return next(each.type.name for each in listed if each.group_id == group)


def begin_at_the_start(driver: ConfluentKafka, topic: str) -> None:
    """Commits offset 0 everywhere, so that no member has to look for the start.

    librdkafka repeats such a look-up after a pause, forgets that it has found the answer meanwhile,
    and reads everything again from there.
    """
    consumer = driver.consumer(group_id=f"g-{topic}")
    places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("classic", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_a_rolling_upgrade_and_the_way_back(
    broker: Broker, topic: str, classic: dict[str, object]
) -> None:
    driver = ConfluentKafka(broker.bootstrap)
    driver.create_topic(topic, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    begin_at_the_start(driver, topic)
    owners, load = Owners(), Load(broker.bootstrap, topic)
    members: list[Member] = []

    def all_read() -> bool:
        return owners.shares() == [PARTITIONS // MEMBERS] * MEMBERS

    def start(name: str, how: dict[str, object]) -> Member:
        members.append(Member(owners, driver, topic, name, how))
        return members[-1]

    try:
        for number in range(MEMBERS):
            start(f"classic-{number}", classic)
        wait("shared topic", all_read)
        assert group_type(admin, f"g-{topic}") == "CLASSIC"
        types = []
        for name, how in (("new", CONSUMER), ("old", classic)):
            for number in range(MEMBERS):
                members.pop(0).leave()
                start(f"{name}-{number}", how)
                wait("shared topic", all_read)
                types.append(group_type(admin, f"g-{topic}"))
        assert types == ["CONSUMER"] * 5 + ["CLASSIC"]
        load.stop()
        expected = load.acknowledged
        wait("end of the topic", lambda: owners.committed == expected)
    finally:
        load.stop()
        for member in members:
            member.leave()
    assert owners.wrong == []
    assert {p: len(offsets) for p, offsets in owners.read.items()} == expected
    assert {p: driver.committed(topic, p, f"g-{topic}") for p in expected} == expected
