"""What a topic's configuration demands of the batches that producers send.

The checks that need only the batch header come first and are all that most topics need. A batch is
opened (slow path) only for: a broker-side `compression.type`, a `message.timestamp.before.max.ms`
bound, the keys that a compacted topic requires, a header that speaks of bad timestamps (the records
to blame are named), a stream that may be a bomb. `kraftpy.protocol.record_rules` has the rules for
what is inside. A batch that may take over a few milliseconds isn't opened on the event loop.
"""

from __future__ import annotations

from typing import Final

from kraftpy.core.config import TopicConfig
from kraftpy.core.config.kinds import LONG_MAX
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    Buffer,
)
from kraftpy.protocol.record_rules import RecordRules, conform
from kraftpy.protocol.record_walk import (
    OversizedBatch,
    check_records_count,
    claims_too_much,
    max_uncompressed_bytes,
)
from kraftpy.protocol.records import (
    BatchHeader,
    check_producer_batch,
    read_batch_header,
    stamp_log_append_time,
)
from kraftpy.server.transaction_admission import admit

# What is opened on the event loop: each takes a millisecond or two.
QUICK_RECORDS: Final = 4000
QUICK_COMPRESSED_BYTES: Final = 128 << 10
QUICK_BYTES: Final = 1 << 20
# The same where the records are then compressed anew.
_QUICK_BYTES_TO_COMPRESS: Final = {"gzip": 64 << 10, "zstd": 256 << 10}
# The same at higher levels of the codec.
_EASY_LEVELS: Final = {"gzip": 6, "zstd": 3, "lz4": 9}
_QUICK_BYTES_TO_COMPRESS_WELL: Final = 32 << 10


class TakesLong(Exception):
    """A batch has to be opened, and that elsewhere; `rules` are what it is to conform to."""

    def __init__(self, rules: RecordRules) -> None:
        super().__init__("the batch can't be opened on the event loop")
        self.rules = rules


def check_limits(header: BatchHeader, config: TopicConfig, *, allow_zstd: bool) -> None:
    """From the header alone, as `append` of a partition says which errors."""
    check_size(header.size_bytes, config)
    check_producer_batch(header)
    check_records_count(header)
    if header.attributes & TRANSACTIONAL_BIT:
        admit(header)
    if not allow_zstd and header.compression == "zstd":
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this Produce version has no zstd")


def check_size(size_bytes: int, config: TopicConfig) -> None:
    """Raises MESSAGE_TOO_LARGE."""
    if size_bytes > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size_bytes} bytes, "
            f"the topic allows max.message.bytes={config.max_message_bytes}",
        )


def must_open(
    config: TopicConfig, header: BatchHeader, records: memoryview, now_ms: int
) -> RecordRules | None:
    """What the records inside of a batch have to be held against; None if it stays closed."""
    compressed = header.attributes & COMPRESSION_MASK
    create_time = config.message_timestamp_type == "CreateTime"
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    compacted = "compact" in config.cleanup_policy
    recompress = config.compression_type not in ("producer", header.compression)
    if not (
        compacted
        or recompress
        or (create_time and config.message_timestamp_before_max_ms != LONG_MAX)
        or (create_time and header.max_timestamp > newest_ms)
        or header.max_timestamp < NO_TIMESTAMP
        or header.base_timestamp < NO_TIMESTAMP
        or (
            compressed
            and claims_too_much(header, records, max_uncompressed_bytes(config.max_message_bytes))
        )
    ):
        return None
    oldest_ms = max(0, now_ms - config.message_timestamp_before_max_ms)
    return RecordRules(
        needs_keys=compacted,
        bounds_ms=(oldest_ms, newest_ms) if create_time else None,
        compression=config.compression_type if recompress else None,
        compression_level=config.compression_level if recompress else None,
        max_uncompressed_bytes=max_uncompressed_bytes(config.max_message_bytes),
    )


def opens_quickly(header: BatchHeader, batch: Buffer, max_bytes: int = QUICK_BYTES) -> bool:
    """Whether a batch is opened in no time, unless its gzip lies about its size."""
    return (
        header.records_count <= QUICK_RECORDS
        and header.size_bytes <= max_bytes
        and not (
            header.attributes & COMPRESSION_MASK
            and (
                header.size_bytes > QUICK_COMPRESSED_BYTES
                or claims_too_much(header, batch, max_bytes)
            )
        )
    )


def conform_quickly(
    header: BatchHeader, records: memoryview, rules: RecordRules
) -> tuple[memoryview, list[tuple[int, BatchHeader]]]:
    """`record_rules.conform` for a batch that takes no time; for another one raises TakesLong.

    Returns the batch, and its position and header as `split_batches` does.
    """
    max_bytes = _QUICK_BYTES_TO_COMPRESS.get(rules.compression or "", QUICK_BYTES)
    if (rules.compression_level or 0) > _EASY_LEVELS.get(rules.compression or "", 0):
        max_bytes = min(max_bytes, _QUICK_BYTES_TO_COMPRESS_WELL)
    if not opens_quickly(header, records, max_bytes):
        raise TakesLong(rules)
    try:
        made = memoryview(conform(records, rules._replace(max_uncompressed_bytes=max_bytes)))
    except OversizedBatch:
        raise TakesLong(rules) from None
    return made, [(0, read_batch_header(made))]


def set_time(records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Stamps the batch if the broker gives its records their time. Raises MESSAGE_TOO_LARGE."""
    check_size(header.size_bytes, config)  # again, as it may have been compressed otherwise
    if config.message_timestamp_type != "CreateTime":
        stamp_log_append_time(records, 0, header, now_ms)
