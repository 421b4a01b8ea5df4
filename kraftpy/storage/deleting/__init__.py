"""Which of a log's oldest segments may go: the policies, and the process that asks a user's own."""

from __future__ import annotations

from kraftpy.storage.deleting.policies import DeletePolicy, LogFacts, SegmentFacts

__all__ = ["DeletePolicy", "LogFacts", "SegmentFacts"]
