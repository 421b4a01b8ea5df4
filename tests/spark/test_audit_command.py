"""`kraftpy pipeline audit` on logs that were damaged on the disk, and on legal ones."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kraftpy.cli.common import EXIT_INCONSISTENT
from kraftpy.pipeline.audit import PartitionAudit, inspect, plan_audit
from kraftpy.pipeline.door import Door
from kraftpy.protocol.records import (
    EndTxnMarker,
    build_batch,
    build_end_txn_marker,
    read_batch_header,
    split_batches,
)
from kraftpy.testing import Broker, Cluster
from tests.apache_kafka import ApacheKafka
from tests.processes import running
from tests.server.compacted import DEADLINE_S, create_compacted, is_clean, overwrite
from tests.server.wire import Wire, produce
from tests.spark.planting import (
    KINDS,
    batches_of,
    closed_segments,
    command,
    findings_of,
    forget_shutdown,
    last_offset,
    plant,
    plant_at_random,
    write_segment,
)
from tests.spark.topics import START_MS, create_topic, delete_before, numbered
from tests.spark.topics import fill as fill_topic
from tests.unit.pipeline.damage import Told
from tests.waiting import wait_until

PARTITIONS = len(KINDS) + 1
BATCHES = 120
PER_BATCH = 3
SMALL = {"internal_segment_bytes": 4096, "index_interval_bytes": 256, "retention_ms": -1}


def fill(broker: Broker, topic: str, partitions: int, *, idempotent: bool) -> None:
    """Batches of three records each; every second partition's have a producer's sequence."""
    with Wire(broker.host, broker.port) as wire:
        for number in range(BATCHES):
            rows = [(START_MS + n, b"%d" % n, b"value", []) for n in range(PER_BATCH)]
            for partition in range(partitions):
                more: dict[str, Any] = {}
                if idempotent and partition % 2:
                    sequence = number * PER_BATCH
                    more = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
                answer = produce(wire, topic, build_batch(rows, **more), partition=partition)
                assert answer.error_code == 0


@pytest.fixture(scope="module")
def damaged() -> Iterator[Broker]:
    """A node that was stopped once; `plain` has several closed segments per partition."""
    with Broker() as broker:
        create_topic(broker.bootstrap, "plain", PARTITIONS, **SMALL)
        fill(broker, "plain", PARTITIONS, idempotent=True)
        broker.stop()
        for folder in sorted(broker.log_dir.glob("plain-*")):
            shutil.copytree(folder, broker.dir / "sound" / folder.name)
        yield broker


def restore(broker: Broker) -> None:
    forget_shutdown(broker.log_dir)
    for folder in (broker.dir / "sound").iterdir():
        for path in folder.iterdir():
            shutil.copy(path, broker.log_dir / folder.name / path.name)


def test_each_kind_of_damage_by_its_own_partition(damaged: Broker) -> None:
    planted: dict[int, Told] = {0: []}
    for partition, kind in enumerate(KINDS, 1):
        first, second, *_ = closed_segments(damaged.log_dir / f"plain-{partition}")
        planted[partition] = plant(first, {4: kind}) + plant(second, {2: kind, 6: kind})
    try:
        damaged.start()
        done = command("plain", bootstrap=damaged.bootstrap)
    finally:
        damaged.stop()
        restore(damaged)
    assert done.returncode == EXIT_INCONSISTENT, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert findings_of(found) == planted
    assert not found["clean"]


@pytest.mark.parametrize("seed", range(6))
def test_any_damage_at_any_places(damaged: Broker, seed: int) -> None:
    rng = random.Random(seed)
    planted = [
        plant_at_random(rng, damaged.log_dir / f"plain-{partition}")
        for partition in range(PARTITIONS)
    ]
    try:
        damaged.start()
        door = Door(damaged.bootstrap)
        plan = plan_audit(door, "plain")
        with door.brokers("plain") as brokers:
            settings = brokers.settings
        for one, told in zip(plan.ranges, planted, strict=True):
            assert (one.start, one.end) == (0, BATCHES * PER_BATCH)
            assert told_of(inspect(settings, one, plan.compacted)) == told
    finally:
        damaged.stop()
        restore(damaged)


def inspected(bootstrap: str, topic: str) -> PartitionAudit:
    """What the command's task finds in the topic's only partition."""
    door = Door(bootstrap)
    plan = plan_audit(door, topic)
    with door.brokers(topic) as brokers:
        settings = brokers.settings
    (one,) = plan.ranges
    return inspect(settings, one, plan.compacted)


def told_of(audit: PartitionAudit) -> Told:
    return [(each.kind, each.first, each.last) for each in audit.findings]


def test_what_the_cleaner_leaves_is_legal() -> None:
    with Broker(log_cleaner_backoff_ms=100) as broker:
        create_compacted(broker.bootstrap)
        overwrite(broker.bootstrap)
        wait_until(lambda: is_clean(broker.log_dir), "all is compacted", DEADLINE_S)
        done = command("t", bootstrap=broker.bootstrap)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["clean"]
    assert findings_of(found) == {0: []}
    (one,) = found["partitions"]
    assert one["counts"]["compacted"] > 0
    assert one["counts"]["records"] + one["counts"]["compacted"] == one["end"] - one["start"]


def test_a_log_whose_records_were_deleted_up_to_the_middle_of_a_batch_is_legal() -> None:
    with Broker() as broker:
        create_topic(broker.bootstrap, "cut", 1, **SMALL)
        fill(broker, "cut", 1, idempotent=False)
        delete_before(broker.bootstrap, "cut", 0, 100)
        found = inspected(broker.bootstrap, "cut")
    assert (found.start, found.end) == (100, BATCHES * PER_BATCH)
    assert (found.findings, found.counts.compacted) == ((), 0)


def test_leaders_that_changed_are_legal() -> None:
    with Cluster(3, default_replication_factor=3, min_insync_replicas=1) as cluster:
        create_topic(cluster.bootstrap, "moving", 1)
        fill_topic(cluster.bootstrap, "moving", numbered(300))
        for turn in range(2):
            leader = cluster.leader_of("moving")
            assert leader is not None
            cluster.kill(leader)
            fill_topic(cluster.bootstrap, "moving", numbered(300, first=300 * (turn + 1)))
            cluster.restart(leader)
            cluster.wait_healthy()
        leader = cluster.leader_of("moving")
        assert leader is not None
        (path,) = cluster.dir.glob(f"node{leader}/**/moving-0/*.log")
        data = path.read_bytes().rstrip(b"\0")
        epochs = {header.partition_leader_epoch for _, header in split_batches(data)}
        assert len(epochs) == 3
        found = inspected(cluster.bootstrap, "moving")
    assert (found.findings, found.counts.records) == ((), 900)


def transaction(first: int, count: int, producer: int, sequence: int) -> bytes:
    return build_batch(
        [(START_MS, b"k", b"v", [])] * count,
        base_offset=first,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        leader_epoch=0,
        transactional=True,
    )


def marker(offset: int, producer: int, *, committed: bool) -> bytes:
    return build_end_txn_marker(
        EndTxnMarker(committed, 0),
        producer_id=producer,
        producer_epoch=0,
        timestamp_ms=START_MS,
        base_offset=offset,
        leader_epoch=0,
    )


def test_transactions_in_a_log_are_counted_and_no_findings() -> None:
    """Planted: in the place of a closed segment's batches, transactions of as many offsets."""
    with Broker() as broker:
        create_topic(broker.bootstrap, "ledger", 1, **SMALL)
        fill(broker, "ledger", 1, idempotent=False)
        broker.stop()
        second = closed_segments(broker.log_dir / "ledger-0")[1]
        whole = batches_of(second)
        first, end = read_batch_header(whole[0]).base_offset, last_offset(second) + 1
        pieces, at, aborted, number = [], first, 0, 0
        while end - at > 12:
            # Two transactions side by side, whose ends are in turn; each third one is aborted.
            aborts = number % 3 == 0
            pieces += [transaction(at, 4, 1, number * 7), transaction(at + 4, 3, 2, number * 3)]
            pieces += [transaction(at + 7, 3, 1, number * 7 + 4)]
            pieces += [marker(at + 10, 2, committed=True), marker(at + 11, 1, committed=not aborts)]
            aborted += 7 * aborts
            at, number = at + 12, number + 1
        rest = [one for one in whole if read_batch_header(one).base_offset >= at]
        assert read_batch_header(rest[0]).base_offset == at
        write_segment(second, pieces + rest)
        broker.start()
        found = inspected(broker.bootstrap, "ledger")
    counts = found.counts
    assert found.findings == ()
    assert (counts.control, counts.aborted, counts.open) == (2 * number, aborted, 0)
    assert counts.records + counts.control == BATCHES * PER_BATCH


def test_a_log_of_apache_kafka_with_real_transactions_and_planted_damage(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with running(ApacheKafka(tmp_path / "kafka")) as kafka:
        create_topic(kafka.bootstrap, "ledger", 1, **{**SMALL, "internal_segment_bytes": 1 << 20})
        name = {"bootstrap.servers": kafka.bootstrap, "transactional.id": "one"}
        producer = Producer(name)
        producer.init_transactions(60)
        for number in range(60):
            producer.begin_transaction()
            for each in range(5):
                producer.produce("ledger", b"%d" % each * 8000, partition=0)
            producer.flush(30)
            if number % 4:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
        whole = inspected(kafka.bootstrap, "ledger")
        counts = whole.counts
        kafka.stop()
        first = closed_segments(kafka.log_dir / "ledger-0")[0]
        planted = plant(first, {5: "crc", 9: "order", 14: "epoch", 18: "offset", 23: "long"})
        kafka.start()
        damaged = inspected(kafka.bootstrap, "ledger")
    assert whole.findings == ()
    assert (counts.control, counts.aborted, counts.records) == (60, 75, 300)
    assert told_of(damaged) == sorted(planted, key=lambda one: one[1])
