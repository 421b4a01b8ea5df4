"""Nodes whose wall clock is set: nothing is lost by that, nothing is written twice."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import CreateTopicsRequest, ProduceRequest
from kraftpy.protocol.records import build_batch
from kraftpy.testing import Cluster, clocks

TEN_DAYS_S = 10 * 86_400.0  # more than log.retention.hours and producer.id.expiration.ms
TIMEOUT_S = 20.0


def ask(cluster: Cluster, key: ApiKey, version: int, request: Any) -> Any:
    node = cluster.nodes[1]
    frame = b"".join(map(bytes, codec.encode_request(key, version, 1, "test", request)))
    with socket.create_connection((node.host, node.port), timeout=TIMEOUT_S) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        with sock.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            return codec.decode_response(key, version, answer.read(size))[1]


def send(cluster: Cluster, sequence: int, timestamp_ms: int = -1, topic: str = "t") -> Any:
    """Send a record as an idempotent producer does: (error code, offset, time of the log)."""
    batch = build_batch(
        [(timestamp_ms, b"", b"value", [])], producer_id=7, producer_epoch=0, base_sequence=sequence
    )
    kinds = ProduceRequest
    partitions = [kinds.PartitionProduceData(0, batch)]
    data = kinds.TopicProduceData(topic, partition_data=partitions)
    answer = ask(
        cluster,
        ApiKey.PRODUCE,
        9,
        kinds(acks=-1, timeout_ms=5000, topic_data=[data]),
    )
    return answer.responses[0].partition_responses[0]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if missing := clocks.missing():
        pytest.skip(missing)
    with Cluster(
        1,
        links=False,
        clocks=True,
        log_retention_check_interval_ms=300,
    ) as started:
        stamped = CreateTopicsRequest.CreatableTopicConfig(
            "message.timestamp.type", "LogAppendTime"
        )
        topic = CreateTopicsRequest.CreatableTopic("t", 1, 1, [], [stamped])
        plain = CreateTopicsRequest.CreatableTopic("plain", 1, 1, [], [])
        ask(started, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest([topic, plain], 5000))
        yield started


def test_a_clock_that_is_set_forward_deletes_nothing_and_forgets_no_producer(
    cluster: Cluster,
) -> None:
    first = send(cluster, 0)
    assert (first.error_code, first.base_offset) == (0, 0)
    second = send(cluster, 1)
    cluster.set_clock(1, TEN_DAYS_S)
    sequence, deadline = 2, time.monotonic() + TIMEOUT_S
    while True:  # until the node has seen it, and then some rounds of retention
        later = send(cluster, sequence)
        sequence += 1
        if later.log_append_time_ms - second.log_append_time_ms > 9 * 86_400_000:
            break
        assert time.monotonic() < deadline, "the clock was never set"
        time.sleep(0.1)
    time.sleep(1.0)
    again = send(cluster, sequence - 1)
    assert (again.error_code, again.base_offset) == (0, later.base_offset)
    assert again.log_start_offset == 0
    cluster.set_clock(1, -TEN_DAYS_S)
    time.sleep(clocks.NOTICED_S + 0.5)
    again = send(cluster, sequence - 1)
    assert (again.error_code, again.base_offset) == (0, later.base_offset)
    assert send(cluster, sequence).base_offset == later.base_offset + 1
    cluster.wait_healthy()


def test_a_clock_that_is_set_back_refuses_nothing(cluster: Cluster) -> None:
    # Or librdkafka takes a new epoch, and writes twice what it has under way elsewhere.
    settings = cluster.nodes[1].config.read_text()
    assert f"log.message.timestamp.after.max.ms={2**63 - 1}" in settings
    cluster.set_clock(1, -TEN_DAYS_S)
    time.sleep(clocks.NOTICED_S)
    assert send(cluster, 0, int(time.time() * 1000), "plain").error_code == 0
