"""Kafka's tools read what our partitions have of transactions, and end one that nobody ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Cluster
from kraftpy.testing.node import Node
from tests.apache_kafka import run_tool
from tests.server.test_produce import batch
from tests.server.wire import Wire, produce_request

# Producers of no coordinator write as they like.
UNVERIFIED = {"transaction_partition_verification_enable": False}
SMALL_SEGMENTS = {"internal.segment.bytes": "1024"}


@pytest.fixture
def node() -> Iterator[Node]:
    """A node that takes any transactional batch."""
    with Cluster(1, links=False, **UNVERIFIED) as cluster:
        yield cluster.nodes[1]


def create(node: Node, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, 1, config=configs)])[topic].result(30)


def write(wire: Wire, topic: str, producer_id: int, value: bytes, sequence: int = 0) -> int:
    """In a transaction; the offset that it got."""
    sent = batch(
        value,
        producer_id=producer_id,
        producer_epoch=1,
        base_sequence=sequence,
        transactional=True,
    )
    request = produce_request(topic, sent, acks=-1)
    request.transactional_id = f"tx-{producer_id}"
    answer = wire.call(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]
    assert answer.error_code == 0
    return int(answer.base_offset)


def end(wire: Wire, topic: str, producer_id: int, *, committed: bool) -> None:
    wanted = messages.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id,
        1,
        committed,
        [messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic(topic, [0])],
        coordinator_epoch=3,
    )
    asked = messages.WriteTxnMarkersRequest([wanted])
    answer = wire.call(ApiKey.WRITE_TXN_MARKERS, 1, asked)
    assert answer.markers[0].topics[0].partitions[0].error_code == 0


def committed_values(node: Node, topic: str, count: int) -> list[bytes]:
    """What librdkafka shows with read_committed."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.consume(count, timeout=20)
        found += consumer.consume(1, timeout=0.5)
        return [message.value() for message in found if not message.error()]
    finally:
        consumer.close()


def dumped(paths: list[Path], *args: str) -> str:
    return run_tool("kafka-dump-log", "--files", ",".join(map(str, sorted(paths))), *args)


def test_kafka_dump_log_of_aborted_transactions(tmp_path: Path) -> None:
    """Of our `.txnindex` and markers; and what consumers see, also after a crash and a stop."""
    with Cluster(1, links=False, **UNVERIFIED, ephemeral=False, dir=tmp_path / "c") as cluster:
        node = cluster.nodes[1]
        create(node, "t", **SMALL_SEGMENTS)
        expected = []
        with Wire(node.host, node.port) as wire:
            for number in range(12):
                for producer_id in (7, 8):
                    write(wire, "t", producer_id, b"%d" % number * 100, number)
                end(wire, "t", 7, committed=False)
                end(wire, "t", 8, committed=True)
                expected.append(b"%d" % number * 100)
        assert committed_values(node, "t", 12) == expected
        cluster.kill(1)
        cluster.restart(1)
        assert committed_values(node, "t", 12) == expected
        cluster.stop(1)
        folder = node.log_dir / "t-0"
        out = dumped(list(folder.glob("*.txnindex")))
        found = re.findall(
            r"version: 0 producerId: 7 firstOffset: (\d+) lastOffset: (\d+) "
            r"lastStableOffset: (\d+)",
            out,
        )
        # Each round: two records, the end of 7 while 8 is open, the end of 8.
        assert sorted(tuple(map(int, each)) for each in found) == [
            (4 * number, 4 * number + 2, 4 * number + 1) for number in range(12)
        ], out
        out = dumped(list(folder.glob("*.log")), "--print-data-log")
        assert out.count("endTxnMarker: ABORT coordinatorEpoch: 3") == 12
        assert out.count("endTxnMarker: COMMIT coordinatorEpoch: 3") == 12
        assert "isvalid: false" not in out


def test_kafka_transactions_ends_one_that_hangs(node: Node) -> None:
    create(node, "t")
    with Wire(node.host, node.port) as wire:
        write(wire, "t", 7, b"ended")
        end(wire, "t", 7, committed=True)
        first = write(wire, "t", 8, b"hanging")
        write(wire, "t", 7, b"behind", 1)
        end(wire, "t", 7, committed=True)
    assert committed_values(node, "t", 1) == [b"ended"]
    server = ("--bootstrap-server", node.bootstrap)
    partition = ("--topic", "t", "--partition", "0")
    out = run_tool("kafka-transactions", *server, "describe-producers", *partition)
    header, *rows = [line.split() for line in out.strip().splitlines()]
    described = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert described["8"]["CurrentTransactionStartOffset"] == str(first)
    assert described["7"]["CurrentTransactionStartOffset"] == "None"
    assert described["7"]["LatestCoordinatorEpoch"] == "3"
    run_tool("kafka-transactions", *server, "abort", *partition, "--start-offset", str(first))
    assert committed_values(node, "t", 2) == [b"ended", b"behind"]
