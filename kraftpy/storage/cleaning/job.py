"""What the broker tells its cleaning process, and what that answers: small JSON texts."""

from __future__ import annotations

import json
from dataclasses import asdict

from kraftpy.frozen import dataclass

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

# Exit codes of the cleaning process; with both it has printed a sentence.
EXIT_FAILED = 1
EXIT_UNCLEANABLE = 3


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One pass over a partition's folder.

    The segments with base offsets below `end_base`, itself that of a segment, are rewritten;
    `dirty_offset` is where what was never cleaned begins. The markers that
    end the transactions in them lie below `high_watermark`, maybe behind the last stable offset.
    """

    folder: str
    dirty_offset: int
    end_base: int
    high_watermark: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    max_index_entries: int
    map_bytes: int
    max_uncompressed_bytes: int
    max_bytes_per_second: float

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> CleaningJob:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """Everything below `clean_offset` is clean now; segments below `end_base` were rewritten.

    Sizes in bytes, of those segments. `unreadable` batches were met for the first time and left as
    they are; of the first of them the base offset and what is wrong.
    """

    clean_offset: int
    end_base: int
    bytes_before: int
    bytes_after: int
    seconds: float
    unreadable: int = 0
    first_unreadable: tuple[int, str] | None = None

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> CleaningResult:
        return cls(**json.loads(text))
