"""What a coordinator's machine is: it decides, and the runtime carries out (docs/architecture.md,
decision 8).

The contract, for one partition of an internal topic:

* Time and randomness are arguments. Every call gives `Effects`.
* A batch that committed comes back through `committed`, in the order of its log; it is replayed,
  which is the only way that committed state changes, and then its requests are answered.
* A batch that failed comes back through `failed`. One whose fate is unknown for too long comes back
  through `timed_out`, and later through `committed` or `failed` all the same: its requests have
  been answered, but its records count if they commit.
* Loading is replaying: the log's codec feeds the machine, then the runtime calls `finish_load`.
* `next_deadline` says when `handle_timers` is due at the latest.
* Nothing comes after `close`.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from kraftpy.core.coordination.effects import Effects, Write
from kraftpy.protocol.errors import ErrorCode

R = TypeVar("R")


class Machine(Protocol[R]):
    """The coordinator of one partition; its writes consist of `R`."""

    def finish_load(self, now_ms: int) -> Effects[R]:
        """The whole log has been read: the machine takes requests from here on."""

    def committed(self, write: Write[R], now_ms: int) -> Effects[R]:
        """The batch is below the high watermark."""

    def failed(self, write: Write[R], error: ErrorCode, now_ms: int) -> Effects[R]:
        """The batch is not in the log and never will be."""

    def timed_out(self, write: Write[R], now_ms: int) -> Effects[R]:
        """The batch is in the log but not committed yet: its requests stop waiting for it."""

    def next_deadline(self) -> int | None:
        """When `handle_timers` has something to do, None if there is nothing to wait for."""

    def handle_timers(self, now_ms: int) -> Effects[R]:
        """Carries out every deadline that has passed."""

    def shift_deadlines(self, delta_ms: int) -> None:
        """The clock that `now_ms` comes from was set by this much; waits last as long as before."""

    def close(self, error: ErrorCode, now_ms: int) -> Effects[R]:
        """This broker coordinates the partition no more: every parked request is answered."""
