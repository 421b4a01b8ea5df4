"""Stock clients subscribe in a group, commit and go on where they stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Deadline, Driver, numbered


def test_subscribe_commit_resume(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    client.produce(topic, numbered(60))
    assert client.committed(topic, 0, f"g-{topic}") is None
    first = client.group_read(topic, f"g-{topic}", 25)
    assert client.committed(topic, 0, f"g-{topic}") == 25
    second = client.group_read(topic, f"g-{topic}", 35)
    assert [record.offset for record in first + second] == list(range(60))
    other = client.group_read(topic, f"other-{topic}", 60)
    assert [record.offset for record in other] == list(range(60))


def test_one_member_gets_all_partitions(client: Driver, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=4)
    client.produce(topic, numbered(40, partitions=4))
    received = client.group_read(topic, f"g-{topic}", 40)
    assert sorted(int(record.value or b"") for record in received) == list(range(40))
    assert [client.committed(topic, p, f"g-{topic}") for p in range(4)] == [10] * 4


def test_a_group_is_shared_between_clients(
    client: Driver, reference: Driver, new_topic: Callable[..., str]
) -> None:
    """What one client commits, another one resumes from."""
    topic = new_topic()
    reference.produce(topic, numbered(20))
    assert len(reference.group_read(topic, f"g-{topic}", 8)) == 8
    assert [r.offset for r in client.group_read(topic, f"g-{topic}", 12)] == list(range(8, 20))
    assert reference.committed(topic, 0, f"g-{topic}") == 20


def test_partitions_move_when_members_come_and_go(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=4)
    driver = ConfluentKafka(bootstrap)

    def join() -> Consumer:
        options = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest"}
        consumer = driver.consumer(**options, session_timeout_ms=6000, heartbeat_interval_ms=200)
        consumer.subscribe([topic])
        return consumer

    def owned(consumer: Consumer) -> set[int]:
        return {place.partition for place in consumer.assignment()}

    def poll_until(condition: Callable[[], bool], *members: Consumer) -> None:
        deadline = Deadline("settled group")
        while not condition() and deadline.left():
            for member in members:
                member.poll(0.05)

    first = join()
    poll_until(lambda: len(owned(first)) == 4, first)
    second = join()
    poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    # Leaving is a conversation with the group, so the other member has to keep talking meanwhile.
    leaving = threading.Thread(target=first.close)
    leaving.start()
    poll_until(lambda: len(owned(second)) == 4, second)
    leaving.join()
    second.close()


class Watched:
    """A consumer that remembers what it was given and what was taken from it."""

    def __init__(self, bootstrap: str, topic: str, **options: object) -> None:
        self.events: list[tuple[str, set[int]]] = []
        self.consumer = ConfluentKafka(bootstrap).consumer(
            group_id=f"g-{topic}",
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            **options,
        )
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, places: self._note("given", places),
            on_revoke=lambda _, places: self._note("taken", places),
            on_lost=lambda _, places: self._note("lost", places),
        )

    def _note(self, what: str, places: list[TopicPartition]) -> None:
        self.events.append((what, {place.partition for place in places}))

    @property
    def owned(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}


def poll_until(condition: Callable[[], bool], *members: Watched) -> None:
    deadline = Deadline("settled group")
    while not condition() and deadline.left():
        for member in members:
            member.consumer.poll(0.02)


def test_a_static_member_that_restarts_disturbs_nobody(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=4)
    leader = Watched(bootstrap, topic, group_instance_id="i0")
    poll_until(lambda: len(leader.owned) == 4, leader)
    follower = Watched(bootstrap, topic, group_instance_id="i1")
    poll_until(lambda: len(leader.owned) == len(follower.owned) == 2, leader, follower)
    theirs, events = (leader.owned, follower.owned), [*leader.events]
    follower.consumer.close()  # a static member doesn't leave
    follower = Watched(bootstrap, topic, group_instance_id="i1")
    poll_until(lambda: bool(follower.owned), leader, follower)
    assert (leader.owned, follower.owned) == theirs
    assert leader.events == events
    leader.consumer.close()
    again = Watched(bootstrap, topic, group_instance_id="i0")
    poll_until(lambda: bool(again.owned), again, follower)
    assert (again.owned, follower.owned) == theirs
    assert follower.events == [("given", theirs[1])]
    again.consumer.close()
    follower.consumer.close()


def test_cooperative_members_keep_what_they_need_not_give_up(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=6)
    how = {"partition_assignment_strategy": "cooperative-sticky"}
    members = [Watched(bootstrap, topic, **how)]
    poll_until(lambda: len(members[0].owned) == 6, *members)
    for count in (2, 3):
        before = [member.owned for member in members]
        members.append(Watched(bootstrap, topic, **how))
        share = 6 // count
        poll_until(lambda share=share: all(len(m.owned) == share for m in members), *members)
        for member, had in zip(members, before, strict=False):
            assert member.owned < had
    assert set.union(*(member.owned for member in members)) == set(range(6))
    for member in members:
        taken = [places for what, places in member.events if what == "taken"]
        kept = member.owned
        assert not any(places & kept for places in taken)
        assert all(what != "lost" for what, _ in member.events)
    for member in members:
        member.consumer.close()
