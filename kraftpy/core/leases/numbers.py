"""What the tables of leases of a broker count, all together, for its metrics.

Records are counted when it's decided what becomes of them: of what couldn't be written, and is
decided again, twice.
"""

from __future__ import annotations

RELEASED, TIMED_OUT, SESSION_ENDED, NOT_SENT = RELEASE_REASONS = (
    "released", "timed_out", "session_ended", "not_sent",
)  # fmt: skip
"""Why a lease is over whose record is to be dealt again: its member has said so, or nothing in
time, or is gone, or wasn't told of it after all."""

REJECTED, GAP, DELIVERY_LIMIT, NOT_IN_LOG = ARCHIVE_REASONS = (
    "rejected", "gap", "delivery_limit", "not_in_log",
)  # fmt: skip
"""Why nobody gets a record that nobody has accepted: its member has said so, or that there is none,
or it was delivered as often as it may be, or the log has nothing there for members."""


class LeaseNumbers:
    """How many records were leased, weren't any more, and won't be again."""

    __slots__ = ("acquired", "archived", "released")

    def __init__(self) -> None:
        self.acquired = 0
        self.released = dict.fromkeys(RELEASE_REASONS, 0)
        self.archived = dict.fromkeys(ARCHIVE_REASONS, 0)
