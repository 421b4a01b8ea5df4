"""What a topic demands of the records in a producer's batch, and the batch as the topic wants it.

Rules as in Kafka's LogValidator (KIP-32, KIP-467, KIP-937):

* A record without a key on a compacted topic, or with a timestamp that is neither -1 nor within
  the topic's bounds, is named in the answer, with its number in the batch. One such record has the
  whole batch refused: INVALID_TIMESTAMP if any of them has a bad timestamp, else INVALID_RECORD.
* The batch's largest timestamp is that of its records, whatever its header said.
* A topic's own compression changes nothing but the codec.

Pure functions, as a batch that takes long is opened in another process
(`kraftpy.server.replication.opening`).
"""

from __future__ import annotations

from typing import Final

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.compression import compress
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    NO_TIMESTAMP,
    BatchHeader,
    assemble_batch,
    check_batch,
    stamp_max_timestamp,
)
from kraftpy.protocol.record_walk import Summary, iter_times, open_batch, summarize

# So many records of one batch are named at most: a client sends the others again and hears then.
MAX_RECORD_ERRORS: Final = 100


class RecordRules(NamedTuple):
    """What is demanded; `compression` is the codec to change to, None for the batch's own. At the
    codec's usual level `compression_level` is None.

    Without `bounds_ms`, the oldest and the newest timestamp that are taken, the broker gives the
    records their time.
    """

    needs_keys: bool
    bounds_ms: tuple[int, int] | None
    compression: str | None
    compression_level: int | None
    max_uncompressed_bytes: int


class RecordError(NamedTuple):
    """Why a record has its batch refused; `batch_index` is its number in the batch, from 0."""

    batch_index: int
    message: str


class InvalidRecords(KafkaError):
    """Records of a batch break the topic's rules; `record_errors` has the first of them."""

    def __init__(self, code: ErrorCode, record_errors: list[RecordError]) -> None:
        shown = "; ".join(f"record {index}: {text}" for index, text in record_errors[:3])
        super().__init__(code, f"the batch has records that can't be taken ({shown})")
        self.record_errors = record_errors[:MAX_RECORD_ERRORS]


def conform(batch: bytearray | memoryview, rules: RecordRules) -> bytearray | memoryview:
    """The checked batch at the start of `batch` as `rules` want it; changed in place if possible.

    Raises InvalidRecords, KafkaError INVALID_TIMESTAMP, OversizedBatch, and other DecodeErrors for
    records that can't be read.
    """
    header = check_batch(batch)
    data = open_batch(header, batch, 0, rules.max_uncompressed_bytes)
    summary = summarize(header, data, MAX_RECORD_ERRORS if rules.needs_keys else 0)
    if summary.keyless or _is_out_of_bounds(header, summary, rules):
        _refuse(header, data, summary, rules)
    max_timestamp = header.base_timestamp + summary.max_timestamp_delta
    if rules.bounds_ms is None:
        max_timestamp = header.max_timestamp
    if rules.compression is not None:
        header.attributes &= ~COMPRESSION_MASK
        header.attributes |= COMPRESSION_NAMES.index(rules.compression)
        header.max_timestamp = max_timestamp
        if header.attributes & COMPRESSION_MASK:
            data = compress(rules.compression, data, rules.compression_level)
        return bytearray(assemble_batch(header, data))
    if max_timestamp != header.max_timestamp:
        stamp_max_timestamp(batch, 0, header, max_timestamp)
    return batch


def _is_out_of_bounds(header: BatchHeader, summary: Summary, rules: RecordRules) -> bool:
    if rules.bounds_ms is None:
        return False
    oldest, newest = rules.bounds_ms
    base = header.base_timestamp
    return (
        base < NO_TIMESTAMP
        or base + summary.min_timestamp_delta < oldest
        or base + summary.max_timestamp_delta > newest
    )


def _refuse(header: BatchHeader, data: bytes, summary: Summary, rules: RecordRules) -> None:
    """Raises unless all records that look too old have no timestamp, which is fine."""
    code = ErrorCode.INVALID_RECORD
    errors = dict.fromkeys(summary.keyless, "a compacted topic takes no record without a key")
    if rules.bounds_ms is not None:
        oldest, newest = rules.bounds_ms
        for number, (timestamp, _) in enumerate(iter_times(header, data)):
            if timestamp == NO_TIMESTAMP or oldest <= timestamp <= newest:
                continue
            code = ErrorCode.INVALID_TIMESTAMP
            errors.setdefault(number, f"timestamp {timestamp} is not within {oldest} to {newest}")
            if len(errors) >= 2 * MAX_RECORD_ERRORS:
                break
    if errors:
        raise InvalidRecords(code, [RecordError(*error) for error in sorted(errors.items())])
    if header.base_timestamp < NO_TIMESTAMP:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the batch's timestamps count from {header.base_timestamp}; that can't be negative",
        )
