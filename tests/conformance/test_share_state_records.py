"""Apache Kafka reads what a share coordinator writes down (kafka-dump-log
--share-group-state-decoder)."""

from __future__ import annotations

from pathlib import Path

from kraftpy.core.leases import StateBatch
from kraftpy.core.leases.state_records import (
    ShareKey,
    ShareRecord,
    Snapshot,
    Update,
    encode_record,
)
from tests.conformance.records_as_printed import as_printed

KEY = ShareKey("g", bytes(15) + b"\1", 3)
BATCHES = (StateBatch(5, 9, 2, 1), StateBatch(10, 10, 0, 3))
VALUES = (
    Snapshot(7, 1, 4, 5, 6, 100, 200, BATCHES),
    Update(7, 4, 5, -1, BATCHES[:1]),
    None,
)


def test_kafka_reads_our_records(tmp_path: Path) -> None:
    records = [encode_record(ShareRecord(KEY, value)) for value in VALUES]
    pairs = as_printed(tmp_path, "--share-group-state-decoder", records)
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    data = {"groupId": "g", "topicId": topic_id, "partition": 3}
    assert [key for key, _ in pairs] == [{"type": kind, "data": data} for kind in ("0", "1", "0")]
    batches = [
        {"firstOffset": 5, "lastOffset": 9, "deliveryState": 2, "deliveryCount": 1},
        {"firstOffset": 10, "lastOffset": 10, "deliveryState": 0, "deliveryCount": 3},
    ]
    common = {"snapshotEpoch": 7, "leaderEpoch": 4, "startOffset": 5}
    assert [value for _, value in pairs] == [
        {
            "version": "0",
            "data": {
                **common,
                "stateEpoch": 1,
                "deliveryCompleteCount": 6,
                "createTimestamp": 100,
                "writeTimestamp": 200,
                "stateBatches": batches,
            },
        },
        {"version": "0", "data": {**common, "stateBatches": batches[:1]}},
        None,
    ]
