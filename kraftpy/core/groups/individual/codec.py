"""How claims are kept in a log of `__individual_commit_offsets`."""

from __future__ import annotations

from typing import Any

from kraftpy.core.coordination import Loaded, Write
from kraftpy.core.groups.individual.records import ClaimRecord, decode_record, encode_record
from kraftpy.core.groups.machine import GroupMachine
from kraftpy.protocol.records import Buffer, batch_data, build_batch, read_records, split_batches


class ClaimsCodec:
    """`core.coordination.Codec` of claims."""

    def encode(self, write: Write[Any], now_ms: int) -> bytes:
        return build_batch([(now_ms, *encode_record(each), []) for each in write.records])

    def replay(self, batches: Buffer, machine: GroupMachine, loaded: Loaded) -> None:
        for position, header in split_batches(batches):
            if header.is_control:
                continue
            records: list[ClaimRecord] = []
            for record in read_records(header, batch_data(header, batches, position)):
                decoded: ClaimRecord | None = loaded.take(record, decode_record)
                if decoded is not None:
                    records.append(decoded)
            machine.load_claims(records)
