"""How a `TransactionMachine` is kept in a log of `__transaction_state`."""

from __future__ import annotations

from kraftpy.core.coordination import Loaded, Write, plain_batch, plain_records
from kraftpy.core.transactions.machine import TransactionMachine
from kraftpy.core.transactions.records import TransactionRecord, decode_record, encode_record
from kraftpy.protocol.records import Buffer


class TransactionCodec:
    """`core.coordination.Codec` of transactional ids."""

    def encode(self, write: Write[TransactionRecord], now_ms: int) -> bytes:
        return plain_batch(write, encode_record, now_ms)

    def replay(self, batches: Buffer, machine: TransactionMachine, loaded: Loaded) -> None:
        for _, record in plain_records(batches, decode_record, loaded):
            machine.load(record)
