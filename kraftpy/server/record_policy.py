"""What a topic's configuration demands of the batches that producers send.

The checks that need only the batch header come first and are all that most topics need. A batch is
opened (slow path) only for: a broker-side `compression.type`, a `message.timestamp.before.max.ms`
bound, or the keys that a compacted topic requires. Rules as in Kafka's LogValidator.
"""

from __future__ import annotations

from kraftpy.core.config import TopicConfig
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import TRANSACTIONAL_BIT
from kraftpy.protocol.records import (
    BatchHeader,
    Record,
    build_batch,
    check_producer_batch,
    iter_records,
    read_batch_header,
    stamp_log_append_time,
)
from kraftpy.server.transaction_admission import admit

LONG_MAX = 2**63 - 1
# What one batch may hold after decompression; Kafka has no such limit and can be made to swap.
MAX_BATCH_UNCOMPRESSED_BYTES = 256 * 1024 * 1024


def check_limits(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """From the header alone, as `append` of a partition says which errors."""
    check_size(header.size_bytes, config)
    check_producer_batch(header)
    if header.attributes & TRANSACTIONAL_BIT:
        admit(header)
    if (
        header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        and config.message_timestamp_type == "CreateTime"
    ):
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is more than "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} ahead of now",
        )


def check_size(size_bytes: int, config: TopicConfig) -> None:
    """Raises MESSAGE_TOO_LARGE."""
    if size_bytes > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size_bytes} bytes, "
            f"the topic allows max.message.bytes={config.max_message_bytes}",
        )


def needs_conform(config: TopicConfig, header: BatchHeader) -> bool:
    """Whether `conform` has something to check or change."""
    return (
        config.message_timestamp_type != "CreateTime"
        or "compact" in config.cleanup_policy
        or config.message_timestamp_before_max_ms != LONG_MAX
        or config.compression_type not in ("producer", header.compression)
    )


def conform(records: memoryview, config: TopicConfig, now_ms: int) -> memoryview:
    """The batch as the topic wants it: a writable view, the same one when nothing had to change.

    Raises INVALID_RECORD for a record without key on a compacted topic, INVALID_TIMESTAMP for one
    that is too old, MESSAGE_TOO_LARGE for a batch that is so with the topic's compression,
    CORRUPT_MESSAGE (DecodeError) for records that can't be read.
    """
    header = read_batch_header(records, 0)
    append_time = config.message_timestamp_type == "LogAppendTime"
    recompress = config.compression_type not in ("producer", header.compression)
    compacted = "compact" in config.cleanup_policy
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    check_age = not append_time and config.message_timestamp_before_max_ms != LONG_MAX
    if recompress or compacted or check_age:
        opened = list(iter_records(records, max_size_bytes=MAX_BATCH_UNCOMPRESSED_BYTES))
        for record in opened:
            if compacted and record.key is None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key"
                )
            if check_age and record.timestamp < oldest_ms:
                raise KafkaError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"timestamp {record.timestamp} is older than message.timestamp.before.max.ms="
                    f"{config.message_timestamp_before_max_ms}",
                )
        if recompress:
            records = _recompressed(header, opened, config)
    if append_time:
        stamp_log_append_time(records, 0, read_batch_header(records, 0), now_ms)
    return records


def _recompressed(header: BatchHeader, opened: list[Record], config: TopicConfig) -> memoryview:
    rebuilt = build_batch(
        opened,
        compression=config.compression_type,
        level=config.compression_level,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )
    check_size(len(rebuilt), config)
    return memoryview(bytearray(rebuilt))
