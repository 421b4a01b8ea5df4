"""How a `GroupMachine` is kept in a log of `__consumer_offsets`.

A transactional batch has offsets that count when its producer's marker comes, if at all. Only
offsets can: whatever else such a batch says counts at once, as in Kafka.
"""

from __future__ import annotations

from kraftpy.core.coordination import Loaded
from kraftpy.core.groups.effects import Write
from kraftpy.core.groups.machine import GroupMachine
from kraftpy.core.groups.offset_runs import OffsetRuns, build_offset_batch, read_offset_runs
from kraftpy.core.groups.pending_offsets import TransactionalOffsets
from kraftpy.core.groups.records import (
    CoordinatorRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kraftpy.protocol.records import (
    NO_PRODUCER_ID,
    Buffer,
    Record,
    RecordInput,
    batch_data,
    build_batch,
    read_end_txn_marker,
    read_records,
    split_batches,
)


class GroupCodec:
    """`core.coordination.Codec` of groups and offsets."""

    def encode(self, write: Write, now_ms: int) -> bytes:
        if isinstance(write.records, TransactionalOffsets):
            return build_batch(
                _inputs(write, now_ms),
                producer_id=write.records.producer_id,
                producer_epoch=write.records.producer_epoch,
                transactional=True,
            )
        batch = build_offset_batch(write.records, now_ms)
        return build_batch(_inputs(write, now_ms)) if batch is None else batch

    def replay(self, batches: Buffer, machine: GroupMachine, loaded: Loaded) -> None:
        for position, header in split_batches(batches):
            if header.is_control:
                marker = read_end_txn_marker(batches, position)
                if marker is not None:
                    machine.load_marker(header.producer_id, committed=marker.committed)
                    loaded.records += header.records_count
                continue
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
            data = batch_data(header, batches, position)
            runs = read_offset_runs(data, header.records_count)
            if runs is None:
                for record in read_records(header, data):
                    _load(machine, record, producer_id, loaded)
                continue
            if producer_id == NO_PRODUCER_ID:
                for run in runs:
                    machine.load_offsets(run)
            else:
                for offset in OffsetRuns(runs):
                    machine.load_pending(producer_id, offset)
            loaded.records += header.records_count


def _inputs(write: Write, now_ms: int) -> list[RecordInput]:
    return [(now_ms, *encode_record(record), []) for record in write.records]


def _load(machine: GroupMachine, record: Record, producer_id: int, loaded: Loaded) -> None:
    decoded: CoordinatorRecord | None = loaded.take(record, decode_record)
    if decoded is None:
        return
    if producer_id != NO_PRODUCER_ID and isinstance(decoded, OffsetRecord) and decoded.committed:
        machine.load_pending(producer_id, decoded)
    else:
        machine.load(decoded)
