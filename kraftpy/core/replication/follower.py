"""A partition as its follower sees it, in one leader epoch.

Rules:

* It fetches from its log end offset and says which epoch wrote the record before that (KIP-320 and
  KIP-595), so a first fetch finds out by itself where the logs part. It never truncates to its high
  watermark, which may be behind (KIP-101; rule 1).
* An answer counts only for the leader epoch and the log end offset that were asked with (rule 3).
  Once an answer did not diverge, none of this epoch does: what says so is late. Cutting then would
  take records that a fetch has acknowledged.
* Its high watermark is the leader's, as far as its log goes, also downwards (rule 10).
* A fetch acknowledges everything below its offset: who has to flush (flush.messages) does so
  before.
* What the disk has damaged is begun anew, empty, when a leader epoch begins that counts with that:
  in it this replica is neither in sync nor eligible, and it has not fetched in it yet, so that no
  leader knows of what it had.
* Records below the leader's log start are given up; a log that ends below it starts anew there, and
  so does one that would be cut there or below: nobody can tell any more whether what is left of it
  is the leader's, and it would vouch for its producers' batches (rule 26).
"""

from __future__ import annotations

from kraftpy.core.metadata.records import NO_LEADER, PartitionState
from kraftpy.core.replication.epochs import ReplicaLog, truncation_offset
from kraftpy.frozen import NamedTuple


def may_begin_anew(state: PartitionState, node_id: int, leader_epoch: int) -> bool:
    """Whether nobody counts with the log of this replica, whose last role was in `leader_epoch`."""
    # In an older epoch the leader might still take it in, for a fetch that is on its way.
    return (
        state.leader_epoch > leader_epoch
        and state.leader not in (NO_LEADER, node_id)
        and node_id not in state.isr
        and node_id not in state.elr
    )


class Truncation(NamedTuple):
    """Cut the log to end at `offset`; with `fully` drop all of it, and start anew at `offset`."""

    offset: int
    fully: bool


class Following:
    """A follower's role; a new leader epoch gets a new one. Offsets as in Kafka, -1 for unknown.

    `high_watermark` is what the replica knew before, from its last role or its checkpoint.
    """

    __slots__ = ("_validated", "high_watermark", "leader", "leader_epoch")

    def __init__(self, state: PartitionState, log: ReplicaLog, high_watermark: int) -> None:
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self._validated = False
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)

    @property
    def validated(self) -> bool:
        """Whether the leader has answered in this epoch, and had what this log has."""
        return self._validated

    def fetch_position(self, log: ReplicaLog) -> tuple[int, int]:
        """(fetch offset, last fetched epoch) of the next Fetch."""
        return log.log_end_offset, log.leader_epochs.latest

    def accepts(self, log: ReplicaLog, leader_epoch: int, fetch_offset: int) -> bool:
        """Whether the answer to a fetch with this leader epoch and offset may still be used."""
        # Another leader's answer says nothing of this leader's log.
        return leader_epoch == self.leader_epoch and fetch_offset == log.log_end_offset

    def truncation(
        self, log: ReplicaLog, epoch: int, end_offset: int, leader_start_offset: int
    ) -> Truncation | None:
        """What to cut when the leader's answer has this diverging epoch; call `truncated` after.

        Cut even if the offset is the log's end: epochs without records go too. None for an answer
        that is too late to be true.
        """
        if self._validated:
            return None
        offset = truncation_offset(log, epoch, end_offset)
        if log.log_start_offset < leader_start_offset >= offset:
            return Truncation(leader_start_offset, fully=True)
        return Truncation(offset, offset < log.log_start_offset)

    def restart(
        self, log: ReplicaLog, leader_start_offset: int, leader_end_offset: int
    ) -> Truncation | None:
        """What to cut after OFFSET_OUT_OF_RANGE, given where the leader's log starts and ends.

        None when the fetch offset is in range (again): just ask once more.
        """
        if log.log_end_offset < leader_start_offset:
            return Truncation(leader_start_offset, fully=True)
        if log.log_end_offset > leader_end_offset:
            return Truncation(leader_end_offset, leader_end_offset < log.log_start_offset)
        return None

    def truncated(self, log: ReplicaLog) -> None:
        """The log was cut; nothing beyond its end is known to be committed any more.

        A watermark on disk has to be lowered as well: else, after a restart, it would vouch for
        what the log is given next.
        """
        self.high_watermark = max(
            min(self.high_watermark, log.log_end_offset), log.log_start_offset
        )

    def appended(self, log: ReplicaLog, leader_high_watermark: int) -> bool:
        """Takes the high watermark of an answer without error whose records are in the log now.

        Also if it had none. Returns whether the watermark changed.
        """
        self._validated = True
        high_watermark = max(min(leader_high_watermark, log.log_end_offset), log.log_start_offset)
        if high_watermark == self.high_watermark:
            return False
        self.high_watermark = high_watermark
        return True

    def log_start(self, log: ReplicaLog, leader_log_start_offset: int) -> int:
        """Where the log may start now, given where the leader's does (retention, DeleteRecords)."""
        return min(max(leader_log_start_offset, log.log_start_offset), self.high_watermark)
