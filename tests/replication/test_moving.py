"""Replicas that come and go: reassignments, throttles, deleted records, nodes with other data."""

from __future__ import annotations

import time
from pathlib import Path

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster
from tests.server.wire import fetch
from tests.waiting import wait_until

from .conftest import NewTopicMaker
from .support import (
    Writer,
    assert_replicas_identical,
    connect,
    in_sync,
    leader_of,
    log_bytes,
    read_all,
)


def reassign(cluster: Cluster, topic: str, replicas: list[int]) -> None:
    kinds = messages.AlterPartitionReassignmentsRequest
    request = kinds(
        timeout_ms=10_000,
        topics=[kinds.ReassignableTopic(topic, [kinds.ReassignablePartition(0, replicas)])],
    )
    with connect(cluster, next(iter(cluster.nodes))) as wire:
        answer = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)


def set_topic_configs(cluster: Cluster, topic: str, **configs: str) -> None:
    kinds = messages.IncrementalAlterConfigsRequest
    changes = [
        kinds.AlterableConfig(key.replace("_", "."), 0, value) for key, value in configs.items()
    ]
    request = kinds([kinds.AlterConfigsResource(2, topic, changes)])
    with connect(cluster, next(iter(cluster.nodes))) as wire:
        answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


def set_broker_configs(cluster: Cluster, **configs: str) -> None:
    kinds = messages.IncrementalAlterConfigsRequest
    changes = [
        kinds.AlterableConfig(key.replace("_", "."), 0, value) for key, value in configs.items()
    ]
    request = kinds([kinds.AlterConfigsResource(4, "", changes)])
    with connect(cluster, next(iter(cluster.nodes))) as wire:
        answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


def folder(cluster: Cluster, node: int, topic: str) -> Path:
    return Path(cluster.nodes[node].log_dir) / f"{topic}-0"


def test_a_replica_leaves_and_comes_back(three: Cluster, new_topic: NewTopicMaker) -> None:
    topic = new_topic(three)
    writer = Writer(three, topic)
    writer.send(200)
    writer.wait()
    leader = leader_of(three, topic)
    first, second = (node for node in three.nodes if node != leader)
    reassign(three, topic, [first, second])
    wait_until(lambda: leader_of(three, topic) in (first, second), "the leadership moves")
    wait_until(lambda: not folder(three, leader, topic).exists(), "the old replica is deleted")
    writer.send(200)
    writer.wait()
    reassign(three, topic, [first, second, leader])
    wait_until(lambda: len(in_sync(three, topic, first)) == 3, "the new replica is in sync")
    writer.send(200)
    writer.wait()
    assert read_all(three.bootstrap, topic) == [b"%08d" % number for number in range(600)]
    assert_replicas_identical(three, topic)


def test_a_throttled_replica_takes_its_time_and_one_in_sync_does_not(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    """KIP-73."""
    topic = new_topic(three)
    leader = leader_of(three, topic)
    first, second = (node for node in three.nodes if node != leader)
    reassign(three, topic, [leader, first])
    wait_until(lambda: not folder(three, second, topic).exists(), "the replica is deleted")
    writer = Writer(three, topic, padding=1000)
    writer.send(3000)
    writer.wait()
    set_topic_configs(
        three,
        topic,
        leader_replication_throttled_replicas="*",
        follower_replication_throttled_replicas="*",
    )
    set_broker_configs(
        three,
        leader_replication_throttled_rate="1000000",
        follower_replication_throttled_rate="1000000",
    )
    try:
        began = time.monotonic()
        reassign(three, topic, [leader, first, second])
        writer.send(100)
        writer.wait()
        assert len(in_sync(three, topic, leader)) == 2
        wait_until(lambda: len(in_sync(three, topic, leader)) == 3, "the new replica is in sync")
        # 3 MB at 1 MB/s, of which the first second's worth flows at once.
        assert time.monotonic() - began > 1
    finally:
        set_broker_configs(
            three,
            leader_replication_throttled_rate=str(2**63 - 1),
            follower_replication_throttled_rate=str(2**63 - 1),
        )
    assert_replicas_identical(three, topic)


def test_deleted_records_are_deleted_everywhere(three: Cluster, new_topic: NewTopicMaker) -> None:
    topic = new_topic(three)
    writer = Writer(three, topic)
    writer.send(100)
    writer.wait()
    kinds = messages.DeleteRecordsRequest
    request = kinds(
        [kinds.DeleteRecordsTopic(topic, [kinds.DeleteRecordsPartition(0, 60)])], 10_000
    )
    leader = leader_of(three, topic)
    with connect(three, leader) as wire:
        answer = wire.call(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 60)
    for node in three.nodes:
        with connect(three, node) as wire:
            assert fetch(wire, topic, 59).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert fetch(wire, topic, 60).log_start_offset == 60
    # A follower with nothing begins where the leader's log does (docs/rules.md, rule 26).
    first, second = (node for node in three.nodes if node != leader)
    reassign(three, topic, [leader, first])
    wait_until(lambda: not folder(three, second, topic).exists(), "the replica is deleted")
    reassign(three, topic, [leader, first, second])
    wait_until(lambda: len(in_sync(three, topic, leader)) == 3, "the new replica is in sync")
    assert read_all(three.bootstrap, topic) == [b"%08d" % number for number in range(60, 100)]
    assert log_bytes(three, second, topic)


def test_a_topic_that_is_deleted_is_gone_everywhere(
    three: Cluster, new_topic: NewTopicMaker
) -> None:
    topic = new_topic(three)
    writer = Writer(three, topic)
    writer.send(10)
    writer.wait()
    kinds = messages.DeleteTopicsRequest
    with connect(three, leader_of(three, topic)) as wire:
        answer = wire.call(ApiKey.DELETE_TOPICS, 5, kinds(topic_names=[topic], timeout_ms=10_000))
        assert answer.responses[0].error_code == ErrorCode.NONE
    for node in three.nodes:
        wait_until(
            lambda node=node: not folder(three, node, topic).exists(), f"broker {node} deletes it"
        )
    three.wait_healthy()
