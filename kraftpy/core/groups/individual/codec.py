"""How claims are kept in a log of `__individual_commit_offsets`.

Claims of many batches that follow each other are taken in together (`claim_runs`). A transactional
batch has claims that count when its producer's marker comes, if at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any

from kraftpy.core.coordination import Loaded, Write
from kraftpy.core.groups.individual.claim_runs import ClaimRuns
from kraftpy.core.groups.individual.pending import TransactionalClaims
from kraftpy.core.groups.individual.records import (
    CLAIM_VALUE,
    ClaimRecord,
    decode_record,
    encode_key_front,
    encode_record,
)
from kraftpy.core.groups.machine import GroupMachine
from kraftpy.protocol.records import (
    Buffer,
    batch_data,
    build_batch_of_data,
    read_end_txn_marker,
    read_records,
    split_batches,
)
from kraftpy.protocol.zigzag import encode_varint

# Of a record: attributes and the delta of its timestamp, which is its batch's.
_FRONT = b"\0\0"
_NO_HEADERS = b"\0"
_TOMBSTONE = encode_varint(-1) + _NO_HEADERS
# Of a key, behind its topic: partition, slice and first offset.
_KEY_END = "iqqq"
_KEY_END_BYTES = Struct(">" + _KEY_END).size
# Of a value: its length and version; tagged fields, of which there are none, and the headers.
_VALUE_START = encode_varint(CLAIM_VALUE.size + 1) + b"\0\0"
_VALUE_END = b"\0" + _NO_HEADERS
_VALUE = f"{len(_VALUE_START)}s16sqiq{len(_VALUE_END)}s"


class ClaimsCodec:
    """`core.coordination.Codec` of claims."""

    def encode(self, write: Write[Any], now_ms: int) -> bytes:
        records = write.records
        data = b"".join([_in_batch(delta, each) for delta, each in enumerate(records)])
        # A list first: it takes Python long to find that something is no TransactionalClaims.
        if isinstance(records, list) or not isinstance(records, TransactionalClaims):
            return build_batch_of_data(data, len(records), now_ms)
        producer_id, producer_epoch = records.transaction
        return build_batch_of_data(
            data,
            len(records),
            now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
        )

    def replay(self, batches: Buffer, machine: GroupMachine, loaded: Loaded) -> None:
        runs = ClaimRuns()
        for position, header in split_batches(batches):
            data = b"" if header.is_control else batch_data(header, batches, position)
            is_plain = not (header.is_control or header.is_transactional)
            if is_plain and runs.read(header, data):
                loaded.records += header.records_count
                continue
            machine.load_claim_runs(runs.take())
            if header.is_control:
                marker = read_end_txn_marker(batches, position)
                if marker is not None:
                    machine.load_claims_marker(header.producer_id, committed=marker.committed)
                    loaded.records += header.records_count
                continue
            records: list[ClaimRecord] = []
            for record in read_records(header, data):
                decoded: ClaimRecord | None = loaded.take(record, decode_record)
                if decoded is not None:
                    records.append(decoded)
            if header.is_transactional:
                machine.load_pending_claims(header.producer_id, records)
            else:
                machine.load_claims(records)
        machine.load_claim_runs(runs.take())


def _in_batch(delta: int, record: ClaimRecord) -> bytes:
    """The record as its batch has it, without what records have in general."""
    group_id, topic, partition, low, high, first, state, transaction = record
    if transaction is not None:
        key, value = encode_record(record)
        end = _TOMBSTONE if value is None else encode_varint(len(value)) + value + _NO_HEADERS
        body = _FRONT + encode_varint(delta) + encode_varint(len(key)) + key + end
        return encode_varint(len(body)) + body
    front = encode_varint(delta)
    if state is None:
        pack, head, start = _layout(group_id, topic, len(front), len(_TOMBSTONE), "")
        return pack(head, front, start, partition, low, high, first) + _TOMBSTONE
    pack, head, start = _layout(group_id, topic, len(front), 0, _VALUE)
    return pack(head, front, start, partition, low, high, first, _VALUE_START, *state, _VALUE_END)


@lru_cache(maxsize=1024)
def _layout(
    group_id: str, topic: str, delta_bytes: int, more_bytes: int, value: str
) -> tuple[Callable[..., bytes], bytes, bytes]:
    """What writes a record that `more_bytes` follow, what stands before its offset delta, and its
    key up to the partition. Raises ValueError.
    """
    front = encode_key_front(group_id, topic)
    key = encode_varint(len(front) + _KEY_END_BYTES) + front
    rest = Struct(f">{len(key)}s{_KEY_END}{value}")
    head = encode_varint(len(_FRONT) + delta_bytes + rest.size + more_bytes) + _FRONT
    layout = Struct(f">{len(head)}s{delta_bytes}s{len(key)}s{_KEY_END}{value}")
    return layout.pack, head, key
