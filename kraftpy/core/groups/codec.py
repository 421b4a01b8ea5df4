"""How a `GroupMachine` is kept in a log of `__consumer_offsets`.

What belongs to a transaction is skipped: there are none yet.
"""

from __future__ import annotations

from kraftpy.core.coordination import Loaded
from kraftpy.core.groups.effects import Write
from kraftpy.core.groups.machine import GroupMachine
from kraftpy.core.groups.offset_runs import build_offset_batch, read_offset_runs
from kraftpy.core.groups.records import decode_record, encode_record
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import (
    Buffer,
    Record,
    RecordInput,
    batch_data,
    build_batch,
    read_records,
    split_batches,
)


class GroupCodec:
    """`core.coordination.Codec` of groups and offsets."""

    def encode(self, write: Write, now_ms: int) -> bytes:
        batch = build_offset_batch(write.records, now_ms)
        if batch is not None:
            return batch
        records: list[RecordInput] = [
            (now_ms, *encode_record(record), []) for record in write.records
        ]
        return build_batch(records)

    def replay(self, batches: Buffer, machine: GroupMachine, loaded: Loaded) -> None:
        for position, header in split_batches(batches):
            if header.is_control or header.is_transactional:
                loaded.skipped += header.records_count
                continue
            data = batch_data(header, batches, position)
            runs = read_offset_runs(data, header.records_count)
            if runs is None:
                for record in read_records(header, data):
                    _load(machine, record, loaded)
                continue
            for run in runs:
                machine.load_offsets(run)
            loaded.records += header.records_count


def _load(machine: GroupMachine, record: Record, loaded: Loaded) -> None:
    try:
        decoded = decode_record(record.key, record.value)
    except DecodeError as error:
        loaded.problem = loaded.problem or f"the record at offset {record.offset}: {error}"
        decoded = None
    if decoded is None:
        loaded.skipped += 1
    else:
        machine.load(decoded)
        loaded.records += 1
