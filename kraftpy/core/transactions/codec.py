"""How a `TransactionMachine` is kept in a log of `__transaction_state`."""

from __future__ import annotations

from kraftpy.core.coordination import Loaded, Write
from kraftpy.core.transactions.machine import TransactionMachine
from kraftpy.core.transactions.records import TransactionRecord, decode_record, encode_record
from kraftpy.protocol.records import (
    Buffer,
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
                decoded: TransactionRecord | None = loaded.take(record, decode_record)
                if decoded is not None:
                    machine.load(decoded)
