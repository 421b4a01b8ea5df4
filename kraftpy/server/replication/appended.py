"""Where an append went."""

from __future__ import annotations


class Appended:
    """Where a batch went; `flush_pending`: the flush policy wants it on disk before the answer."""

    __slots__ = ("base_offset", "end_offset", "flush_pending", "log_append_time_ms")

    def __init__(
        self, base_offset: int, end_offset: int, log_append_time_ms: int, flush_pending: bool
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.log_append_time_ms = log_append_time_ms
        self.flush_pending = flush_pending
