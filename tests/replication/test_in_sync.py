"""min.insync.replicas, replicas that leave and come back, logs that diverged or are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.server.wire import produce, produce_request
from tests.waiting import wait_until

from .conftest import NewTopicMaker
from .support import (
    Writer,
    assert_replicas_identical,
    batch,
    connect,
    in_sync,
    leader_of,
    log_bytes,
    read_all,
)


def test_too_few_replicas_refuse_acks_all_and_nothing_else(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    topic = new_topic(three, min_insync_replicas=3)
    leader = leader_of(three, topic)
    follower = next(node for node in three.nodes if node != leader)
    with connect(three, leader) as wire:
        assert produce(wire, topic, batch(b"three"), acks=-1).error_code == ErrorCode.NONE
        three.kill(follower)
        wait_until(lambda: len(in_sync(three, topic, leader)) == 2, "the ISR shrinks")
        refused = produce(wire, topic, batch(b"refused"), acks=-1)
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert produce(wire, topic, batch(b"acks=1"), acks=1).error_code == ErrorCode.NONE
        three.restart(follower)
        three.wait_healthy()
        assert produce(wire, topic, batch(b"back"), acks=-1).error_code == ErrorCode.NONE
    assert read_all(three.bootstrap, topic) == [b"three", b"acks=1", b"back"]
    assert_replicas_identical(three, topic)


def test_replicas_that_leave_after_the_append(three: Cluster, new_topic: NewTopicMaker) -> None:
    """docs/rules.md, rule 12: it is there, and may be committed later, but isn't yet."""
    topic = new_topic(three, min_insync_replicas=3)
    leader = leader_of(three, topic)
    # A controller would have to be replaced first, and then waits for a session of the broker's.
    follower = next(node for node in three.nodes if node not in (leader, three.controller()))
    with connect(three, leader) as wire:
        three.pause(follower)
        early = produce(wire, topic, batch(b"first"), acks=-1, timeout_ms=100)
        # It is answered at its end, by which the ISR has to have shrunk.
        late = produce_request(topic, batch(b"second"), acks=-1, timeout_ms=4_000)
        wire.send(ApiKey.PRODUCE, 9, late)
        wait_until(lambda: b"second" in log_bytes(three, leader, topic), "it is appended")
        three.kill(follower)
        assert early.error_code == ErrorCode.REQUEST_TIMED_OUT
        (answer,) = wire.receive(ApiKey.PRODUCE, 9)[1].responses[0].partition_responses
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    three.restart(follower)
    three.wait_healthy()
    assert read_all(three.bootstrap, topic) == [b"first", b"second"]


def test_a_deposed_leader_cuts_what_nobody_else_has(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """Rules 1-3 and 21: acks=1 at a leader that is cut off is lost, acks=all is not."""
    topic = new_topic(three)
    old = leader_of(three, topic)
    with connect(three, old) as wire:
        assert produce(wire, topic, batch(b"both"), acks=-1).error_code == ErrorCode.NONE
        three.isolate(old)
        for number in range(20):
            answer = produce(wire, topic, batch(b"lost %d" % number), acks=1)
            assert answer.error_code == ErrorCode.NONE
        others = [node for node in three.nodes if node != old]
        wait_until(lambda: leader_of(three, topic) in others, "another broker leads")
        with connect(three, leader_of(three, topic)) as other:
            for number in range(5):
                answer = produce(other, topic, batch(b"kept %d" % number), acks=-1)
                assert answer.error_code == ErrorCode.NONE

        def stepped_down() -> bool:
            answer = produce(wire, topic, batch(b"too late"), acks=1)
            return answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

        wait_until(stepped_down, "the old leader steps down by itself")
    three.heal()
    three.wait_healthy()
    expected = [b"both", *(b"kept %d" % number for number in range(5))]
    assert read_all(three.bootstrap, topic) == expected
    assert_replicas_identical(three, topic)


def test_a_follower_whose_log_is_gone_gets_all_of_it_again(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    topic = new_topic(three, internal_segment_bytes=20_000)
    writer = Writer(three, topic)
    writer.send(1000)
    writer.wait()
    leader = leader_of(three, topic)
    follower = next(node for node in three.nodes if node != leader)
    three.kill(follower)
    shutil.rmtree(Path(three.nodes[follower].log_dir) / f"{topic}-0")
    writer.send(500)
    three.restart(follower)
    writer.wait()
    three.wait_healthy()
    assert read_all(three.bootstrap, topic) == [b"%08d" % number for number in range(1500)]
    assert_replicas_identical(three, topic)
    # It counts in full: the others may go.
    for node in three.nodes:
        if node not in (leader, follower):
            three.kill(node)
            break
    wait_until(lambda: len(in_sync(three, topic, leader)) == 2, "the ISR shrinks")
    writer.send(10)
    writer.wait()
    three.restart(node)
    three.wait_healthy()
