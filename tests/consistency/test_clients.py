"""Clients as consistency runs use them: an answer belongs to the operation that gets it."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster
from kraftpy.testing.consistency.clients import (
    GoneError,
    NotDoneError,
    UnknownError,
    adapter,
    confluent,
    kafka_python,
)
from kraftpy.testing.consistency.workloads.play import ALL_CLIENTS

PLACE = ("t", 0)


def test_what_is_too_large_is_refused_for_certain_and_the_sender_goes_on() -> None:
    with Cluster(1, links=False) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic("t", 1, config={"max.message.bytes": "500"})
        admin.create_topics([topic])["t"].result(timeout=20)
        end = 0
        for name in ALL_CLIENTS:
            sender = adapter(name).sender(cluster.bootstrap)
            for _ in range(2):
                assert sender.send([(PLACE, "small")]) == [end], name
                end += 1
                with pytest.raises(NotDoneError):
                    sender.send([(PLACE, "x" * 600)])
            sender.close()
        assert end == 6
        # All of several records is all that is certain.
        sender = adapter("kraftpy").sender(cluster.bootstrap)
        with pytest.raises(NotDoneError):
            sender.send([(PLACE, "x" * 600), (PLACE, "y" * 600)])
        sender.close()
        reader = kafka_python._Reader(cluster.bootstrap, "g")
        assert reader.bounds([PLACE]) == {PLACE: (0, end)}
        reader.close()


def test_a_fetch_after_one_that_timed_out_reads_what_is_there_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kafka-python gives the next fetch the late answer of the one before."""
    with Cluster(1, links=False) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 2)])["t"].result(timeout=20)
        reading, writing = (kafka_python._Registers(cluster.bootstrap, "g") for _ in range(2))
        writing.commit(PLACE, 1)
        assert reading.fetch(PLACE) == 1
        monkeypatch.setattr(kafka_python, "_TIMEOUT_MS", 500)
        cluster.pause(1)
        with pytest.raises(UnknownError):
            reading.fetch(PLACE)
        cluster.resume(1)
        monkeypatch.setattr(kafka_python, "_TIMEOUT_MS", 10_000)
        # Whatever the fetch found, it found it before these.
        assert reading.fetch(("t", 1)) == -1
        writing.commit(PLACE, 2)
        assert reading.fetch(PLACE) == 2
        reading.close()
        writing.close()


def test_each_client_that_keeps_topics_makes_changes_and_deletes_them() -> None:
    with Cluster(1, links=False) as cluster:
        for name in ("confluent-kafka", "kraftpy"):
            topics = adapter(name).topics(cluster.bootstrap)
            topics.create(name, 1000)
            topics.alter(name, 2000)
            assert topics.describe(name) == 2000
            topics.delete(name)
            assert topics.describe(name) is None
            with pytest.raises(NotDoneError):
                topics.delete(name)
            topics.close()


class _Nobody:
    def assigned(self, keys: list[str], epoch: int, member_id: str) -> None: ...

    def revoked(self, keys: list[str]) -> None: ...

    def lost(self, keys: list[str]) -> None: ...


def test_a_member_reads_nothing_again_where_a_transaction_is_open_amid_a_rebalance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka takes an unstable offset for none when its assignment has changed since."""
    monkeypatch.setattr(confluent, "TIMEOUT_S", 1.0)
    with Cluster(1, links=False) as cluster:
        base = {"bootstrap.servers": cluster.bootstrap}
        admin = AdminClient(base)
        admin.create_topics([NewTopic("t", 2)])["t"].result(timeout=20)
        sender = confluent._Sender(cluster.bootstrap)
        for partition in range(2):
            sender.send([(("t", partition), str(number)) for number in range(20)])
        sender.close()
        registers = confluent._Registers(cluster.bootstrap, "g")
        for partition in range(2):
            registers.commit(("t", partition), 10)
        registers.close()
        nobody = Consumer(base | {"group.id": "g"})
        producer = Producer(base | {"transactional.id": "x"})
        producer.init_transactions(20)
        producer.begin_transaction()
        # Of both: which one the first member keeps, their ids decide.
        committed = [TopicPartition("t", partition, 12) for partition in range(2)]
        producer.send_offsets_to_transaction(committed, nobody.consumer_group_metadata(), 20)
        found: dict[str, int] = {}
        members = []
        # The second has the first one's assignment change.
        for _ in range(2):
            members.append(confluent._Member(cluster.bootstrap, "g", "t", "range", _Nobody()))
            until = time.monotonic() + 6
            while time.monotonic() < until:
                for member in list(members):
                    try:
                        records = member.poll(0.1)
                    except GoneError:
                        member.close()
                        members.remove(member)
                        continue
                    for key, each in records.items():
                        found.setdefault(key, each[0][0])
        assert not found  # nobody can know where to start
        producer.abort_transaction(20)
        members.append(confluent._Member(cluster.bootstrap, "g", "t", "range", _Nobody()))
        until = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < until:
            for member in members:
                for key, each in member.poll(0.1).items():
                    found.setdefault(key, each[0][0])
        assert found == {"t-0": 10, "t-1": 10}
        for member in members:
            member.close()
        nobody.close()
