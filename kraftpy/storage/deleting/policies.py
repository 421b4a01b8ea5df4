"""Delete policies: each says of a segment whether it may go. Age, size and log start are built in.

Rules:

* Segments leave from the oldest on, up to the first that no policy lets go; each policy alone is
  enough. Whatever one says, none goes that isn't below the high watermark.
* Age and size are for topics whose cleanup.policy has delete, and so is a policy of a user's own
  (`process`); the log start is for all.

Source: the pluggable delete policies of Kafka's design page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kraftpy.frozen import NamedTuple


class LogFacts(NamedTuple):
    """What a policy is told of a log; the retention is the topic's, -1 without a limit."""

    topic: str
    partition: int
    log_start_offset: int
    size_bytes: int
    retention_ms: int
    retention_bytes: int


class SegmentFacts(Protocol):
    """What a policy is told of a segment, whose records lie below `end_offset`."""

    @property
    def base_offset(self) -> int:
        """The offset that it begins at."""

    @property
    def end_offset(self) -> int:
        """The offset that the next one begins at."""

    @property
    def size_bytes(self) -> int:
        """Its size."""

    @property
    def bytes_behind(self) -> int:
        """The size of all segments that are younger."""

    @property
    def newest_ms(self) -> int:
        """The largest timestamp of its records, or when it was made if none has one."""


class DeletePolicy:
    """Says which segments may go; a user's own is a subclass, made without arguments."""

    def is_deletable(self, log: LogFacts, segment: SegmentFacts, now_ms: int) -> bool:
        """Whether a segment may go. It's asked from the oldest on, up to the first that stays."""
        raise NotImplementedError


class LogStartPolicy(DeletePolicy):
    """What lies below the log start offset may go: DeleteRecords has moved it."""

    def is_deletable(self, log: LogFacts, segment: SegmentFacts, now_ms: int) -> bool:
        return segment.end_offset <= log.log_start_offset


class SizePolicy(DeletePolicy):
    """What isn't needed for retention.bytes may go."""

    def is_deletable(self, log: LogFacts, segment: SegmentFacts, now_ms: int) -> bool:
        return 0 <= log.retention_bytes <= segment.bytes_behind


class AgePolicy(DeletePolicy):
    """What is older than retention.ms may go."""

    def is_deletable(self, log: LogFacts, segment: SegmentFacts, now_ms: int) -> bool:
        return 0 <= log.retention_ms < now_ms - segment.newest_ms


ALWAYS: tuple[DeletePolicy, ...] = (LogStartPolicy(),)
# Age comes last: timestamps may have to be read from disk.
OF_DELETE: tuple[DeletePolicy, ...] = (*ALWAYS, SizePolicy(), AgePolicy())


def deletable(
    policies: Iterable[DeletePolicy], log: LogFacts, segments: Iterable[SegmentFacts], now_ms: int
) -> int:
    """How many of these segments may go."""
    policies = tuple(policies)
    count = 0
    for segment in segments:
        if not any(policy.is_deletable(log, segment, now_ms) for policy in policies):
            break
        count += 1
    return count
