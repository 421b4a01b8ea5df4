"""What a topic's configuration demands of the batches that producers send.

The checks that need only the batch header come first and are all that most topics need. A batch is
opened (slow path) only for: a broker-side `compression.type`, a `message.timestamp.before.max.ms`
bound, the keys that a compacted topic requires, a header that speaks of bad timestamps (the records
to blame are named), a stream that may be a bomb. `kraftpy.protocol.record_rules` has the rules for
what is inside. A batch that may take over a few milliseconds isn't opened on the event loop.

Message sets of magic 0 and 1 are made into a batch before (docs/rules.md, rule 300).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, TypeAlias

from kraftpy.core.config import TopicConfig
from kraftpy.core.config.kinds import LONG_MAX
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.legacy import upconvert
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    NO_TIMESTAMP,
    Buffer,
)
from kraftpy.protocol.record_rules import RecordRules, conform
from kraftpy.protocol.record_walk import (
    MAX_BATCH_RECORDS,
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

Batches: TypeAlias = list[tuple[int, BatchHeader]]

# What is opened on the event loop: each takes a millisecond or two.
QUICK_RECORDS: Final = 4000
QUICK_COMPRESSED_BYTES: Final = 128 << 10
QUICK_BYTES: Final = 1 << 20
# The same where the records are then compressed anew.
_QUICK_BYTES_TO_COMPRESS: Final = {"gzip": 64 << 10, "zstd": 256 << 10}
# The same at higher levels of the codec.
_EASY_LEVELS: Final = {"gzip": 6, "zstd": 3, "lz4": 9}
_QUICK_BYTES_TO_COMPRESS_WELL: Final = 32 << 10
# What of a message set is made into a batch on the event loop.
_QUICK_SET_BYTES: Final = 32 << 10
_QUICK_MESSAGES: Final = 200
# A message takes up to five times what the smallest record does.
_SET_TIMES: Final = 5


class UpconvertRules(NamedTuple):
    """What a message set of magic 0 or 1 is made into a batch by."""

    max_uncompressed_bytes: int


class TakesLong(Exception):
    """A batch has to be opened, and that elsewhere; `rules` are what it is to conform to."""

    def __init__(self, rules: RecordRules | UpconvertRules) -> None:
        super().__init__("the batch can't be opened on the event loop")
        self.rules = rules


class Door:
    """What a topic's configuration asks of clients' batches; a new one for each configuration.

    What can be known before there is a batch is known: nearly all batches pass by their header.
    """

    __slots__ = (
        "_after_max_ms",
        "_append_time",
        "_config",
        "_max_message_bytes",
        "_max_uncompressed_bytes",
        "_opens_all",
    )

    def __init__(self, config: TopicConfig) -> None:
        self._config = config
        self._append_time = config.message_timestamp_type != "CreateTime"
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._max_message_bytes = config.max_message_bytes
        self._max_uncompressed_bytes = _max_uncompressed_bytes(config)
        self._opens_all = (
            "compact" in config.cleanup_policy
            or config.compression_type != "producer"
            or (not self._append_time and config.message_timestamp_before_max_ms != LONG_MAX)
        )

    def check_size(self, header: BatchHeader) -> None:
        """Raises MESSAGE_TOO_LARGE."""
        if header.size_bytes > self._max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {header.size_bytes} bytes, "
                f"the topic allows max.message.bytes={self._max_message_bytes}",
            )

    def take(
        self,
        records: memoryview,
        batches: Batches,
        now_ms: int,
        *,
        conforms: bool,
        allow_zstd: bool,
    ) -> tuple[memoryview, Batches]:
        """The checked batch as the topic wants it; raises what `append` of a partition says."""
        header = batches[0][1]
        self.check_size(header)
        check_producer_batch(header)
        attributes = header.attributes
        if header.records_count > MAX_BATCH_RECORDS:
            check_records_count(header)
        if not (conforms or allow_zstd) and header.compression == "zstd":
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this Produce version has no zstd"
            )
        if not conforms and (
            self._opens_all
            or attributes & COMPRESSION_MASK
            or not NO_TIMESTAMP <= header.max_timestamp <= now_ms + self._after_max_ms
            or header.base_timestamp < NO_TIMESTAMP
        ):
            rules = self._rules(header, records, now_ms)
            if rules is not None:
                records, batches = conform_quickly(header, records, rules)
                header = batches[0][1]
                self.check_size(header)
        if self._append_time:
            stamp_log_append_time(records, 0, header, now_ms)
        return records, batches

    def _rules(self, header: BatchHeader, records: memoryview, now_ms: int) -> RecordRules | None:
        """What the records inside of a batch have to be held against; None if it stays closed."""
        config = self._config
        compacted = "compact" in config.cleanup_policy
        recompress = config.compression_type not in ("producer", header.compression)
        before_max_ms, newest_ms = (
            config.message_timestamp_before_max_ms,
            now_ms + self._after_max_ms,
        )
        if not (
            compacted
            or recompress
            or (
                not self._append_time
                and (before_max_ms != LONG_MAX or header.max_timestamp > newest_ms)
            )
            or header.max_timestamp < NO_TIMESTAMP
            or header.base_timestamp < NO_TIMESTAMP
            or (
                header.attributes & COMPRESSION_MASK
                and claims_too_much(header, records, self._max_uncompressed_bytes)
            )
        ):
            return None
        return RecordRules(
            needs_keys=compacted,
            bounds_ms=None if self._append_time else (max(0, now_ms - before_max_ms), newest_ms),
            compression=config.compression_type if recompress else None,
            compression_level=config.compression_level if recompress else None,
            max_uncompressed_bytes=self._max_uncompressed_bytes,
        )


def _max_uncompressed_bytes(config: TopicConfig) -> int:
    """What a producer's batch may have; what is in a log is opened to the limit of all topics."""
    return min(
        max_uncompressed_bytes(config.max_message_bytes), config.max_decompressed_message_bytes
    )


def upconvert_quickly(messages: memoryview, config: TopicConfig) -> memoryview:
    """The batch of a producer's message set, if that takes no time; else raises TakesLong.

    Raises MESSAGE_TOO_LARGE and what `legacy.upconvert` does.
    """
    if len(messages) > _SET_TIMES * config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a message set of {len(messages)} bytes makes a batch of more than "
            f"max.message.bytes={config.max_message_bytes}",
        )
    limit = _max_uncompressed_bytes(config)
    if len(messages) <= _QUICK_SET_BYTES:
        quick = min(limit, _QUICK_SET_BYTES)
        with suppress(OversizedBatch):
            batch = upconvert(messages, max_size_bytes=quick, max_records=_QUICK_MESSAGES)
            return memoryview(bytearray(batch))
    raise TakesLong(UpconvertRules(limit))


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
) -> tuple[memoryview, Batches]:
    """`record_rules.conform` for a batch that takes no time; for another one raises TakesLong.

    Returns the batch, and its position and header as `split_batches` does.
    """
    max_bytes = _QUICK_BYTES_TO_COMPRESS.get(rules.compression or "", QUICK_BYTES)
    if (rules.compression_level or 0) > _EASY_LEVELS.get(rules.compression or "", 0):
        max_bytes = min(max_bytes, _QUICK_BYTES_TO_COMPRESS_WELL)
    if not opens_quickly(header, records, max_bytes):
        raise TakesLong(rules)
    max_bytes = min(max_bytes, rules.max_uncompressed_bytes)
    try:
        made = memoryview(conform(records, rules._replace(max_uncompressed_bytes=max_bytes)))
    except OversizedBatch:
        raise TakesLong(rules) from None
    return made, [(0, read_batch_header(made))]
