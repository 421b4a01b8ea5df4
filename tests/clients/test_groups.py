"""Stock clients subscribe in a group, commit and go on where they stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer

from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Deadline, Driver, Message


def numbered(count: int, partitions: int = 1) -> list[Message]:
    return [Message(b"%d" % i, partition=i % partitions) for i in range(count)]


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
