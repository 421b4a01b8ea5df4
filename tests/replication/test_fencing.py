"""Brokers that die or hang, as the others and their clients see it."""

from __future__ import annotations

import os
import signal

from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.server.wire import Wire
from tests.waiting import wait_until

from .conftest import NewTopicMaker
from .support import Writer, connect, in_sync, read_all


class Witness:
    """What one broker answers to Metadata on one partition."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self._wire = wire
        wanted = messages.MetadataRequest.MetadataRequestTopic(name=topic)
        self._request = messages.MetadataRequest([wanted])
        self.seen: list[tuple[ErrorCode, int]] = []
        self.listed: set[int] = set()

    def look(self) -> tuple[ErrorCode, int]:
        answer = self._wire.call(ApiKey.METADATA, 9, self._request)
        self.listed = {broker.node_id for broker in answer.brokers}
        partition = answer.topics[0].partitions[0]
        found = ErrorCode(partition.error_code), partition.leader_id
        if not self.seen or self.seen[-1] != found:
            self.seen.append(found)
        return found


def test_clients_are_not_sent_to_a_leader_that_has_just_died(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """From the moment on when its connections broke; the list of brokers shrinks later.

    The third node stands still meanwhile, so that nobody can elect another leader.
    """
    topic = new_topic(three)
    victim = three.leader_of(topic)
    assert victim is not None
    other, third = (node for node in three.nodes if node != victim)
    with connect(three, other) as wire:
        witness = Witness(wire, topic)
        witness.look()
        three.pause(third)
        three.kill(victim)
        wait_until(lambda: witness.look()[1] != victim, "the death to be noticed")
        assert witness.listed == {1, 2, 3}, "librdkafka forgets too much with one that isn't"
        three.resume(third)
        wait_until(lambda: witness.look()[1] not in (victim, -1), "another leader")
        assert witness.seen == [
            (ErrorCode.NONE, victim),
            (ErrorCode.LEADER_NOT_AVAILABLE, -1),
            (ErrorCode.NONE, witness.seen[-1][1]),
        ]
        wait_until(lambda: witness.look() and victim not in witness.listed, "the list to shrink")
    three.restart(victim)
    three.wait_healthy()


def test_a_broker_that_hangs_beside_its_controller_loses_its_partitions_and_comes_back(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """Only the broker's process stands still: connections stay up, its controller goes on."""
    topic = new_topic(three)
    writer = Writer(three, topic)
    writer.send(100)
    writer.wait()
    victim = three.leader_of(topic)
    assert victim is not None
    os.kill(three.nodes[victim].pid, signal.SIGSTOP)
    try:
        other = next(node for node in three.nodes if node != victim)
        with connect(three, other) as wire:
            witness = Witness(wire, topic)
            wait_until(lambda: witness.look()[1] not in (victim, -1), "another leader")
        another = Writer(three, topic)  # the first one waits for an answer of who hangs
        another.send(100)
        another.wait()
    finally:
        os.kill(three.nodes[victim].pid, signal.SIGCONT)
    three.wait_healthy()
    assert read_all(three.bootstrap, topic) == 2 * [b"%08d" % number for number in range(100)]


def test_a_running_broker_that_is_unregistered_registers_again(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """It can't be left a zombie, and its node may vote: who wants it gone stops it first."""
    topic = new_topic(three, partitions=3)
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    alone = f"{topic}-alone"
    created = admin.create_topics([NewTopic(alone, 1, replica_assignment=[[3]])])
    created[alone].result(timeout=20)
    three.wait_healthy()
    before = Writer(three, alone)
    before.send(1)
    before.wait()
    with connect(three, 1) as wire:
        answer = wire.call(ApiKey.UNREGISTER_BROKER, 0, messages.UnregisterBrokerRequest(3))
    assert answer.error_code == ErrorCode.NONE
    everybody = frozenset({1, 2, 3})
    for partition in range(3):
        wait_until(
            lambda at=partition: in_sync(three, topic, 1, at) == everybody,  # type: ignore[misc]
            "broker 3 is back in sync",
        )
    three.wait_healthy()
    for name in (topic, alone):
        writer = Writer(three, name)
        writer.send(10)
        writer.wait()
    assert len(read_all(three.bootstrap, alone)) == 11
    assert "broker 3 was unregistered while it runs; registering it again" in three.log_tail()
