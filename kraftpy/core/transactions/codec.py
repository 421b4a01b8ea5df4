"""How a `TransactionMachine` is kept in a log of `__transaction_state`."""

from __future__ import annotations

from kraftpy.core.coordination import Loaded, Write
from kraftpy.core.transactions.machine import TransactionMachine
from kraftpy.core.transactions.records import TransactionRecord, decode_record, encode_record
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


class TransactionCodec:
    """`core.coordination.Codec` of transactional ids."""

    def encode(self, write: Write[TransactionRecord], now_ms: int) -> bytes:
        records: list[RecordInput] = [
            (now_ms, *encode_record(record), []) for record in write.records
        ]
        return build_batch(records)

    def replay(self, batches: Buffer, machine: TransactionMachine, loaded: Loaded) -> None:
        for position, header in split_batches(batches):
            if header.is_control:
                loaded.skipped += header.records_count
                continue
            for record in read_records(header, batch_data(header, batches, position)):
                _load(machine, record, loaded)


def _load(machine: TransactionMachine, record: Record, loaded: Loaded) -> None:
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
