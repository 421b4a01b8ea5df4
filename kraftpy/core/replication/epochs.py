"""Leader epochs: who is fenced, where two logs part, and where to cut (KIP-101, 279, 320).

Rules:

* A request names the leader epoch that its sender knows. A lower one than ours is fenced, a higher
  one is unknown here yet; both senders look at the metadata again.
* Two logs that both have epoch e agree up to the smaller end of e. So a fetch that says which epoch
  wrote the record before its offset is checked against our end of that epoch.
* After fast successive elections the two logs may share none of the newest epochs. The leader
  answers its largest epoch that isn't newer than the one asked for and that epoch's end; the
  follower cuts to the smaller of both ends and asks again, until they agree (KIP-279).
"""

from __future__ import annotations

from typing import Protocol

from kraftpy.protocol.errors import ErrorCode, KafkaError

NO_EPOCH = -1


class EpochCache(Protocol):
    """Which epoch wrote from which offset on; `storage.epochs.LeaderEpochs` is one."""

    @property
    def latest(self) -> int:
        """The newest epoch, -1 when there is none."""

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch <= asked, its end offset); (-1, -1) when there is none or asked is newer.

        For an epoch older than all of them, itself and the first start offset.
        """


class ReplicaLog(Protocol):
    """What the rules look at in a log; `storage.log.Log` is one."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def leader_epochs(self) -> EpochCache: ...


def check_leader_epoch(asked: int, current: int) -> ErrorCode:
    """KIP-320: FENCED_LEADER_EPOCH for an older epoch, UNKNOWN_LEADER_EPOCH for a newer one.

    `asked` is -1 when the client is too old to say.
    """
    if asked == current or asked < 0:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH


def divergence(
    log: ReplicaLog, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """Where the fetcher's log parts from `log`: (epoch, end offset), None if it doesn't.

    `last_fetched_epoch` is -1 when the fetcher has nothing or is too old to say. Raises KafkaError
    OFFSET_OUT_OF_RANGE when the epoch is newer than the log's, or the offset is below its start:
    then the epochs that would tell are gone.
    """
    if last_fetched_epoch < 0:
        return None
    # GUARD divergence: a log that ends where ours does may end with other records.
    epoch, end_offset = log.leader_epochs.end_offset_for(last_fetched_epoch, log.log_end_offset)
    if epoch == last_fetched_epoch and fetch_offset <= end_offset:
        if fetch_offset >= log.log_start_offset:
            return None
    elif epoch >= 0 and fetch_offset >= log.log_start_offset:
        return epoch, end_offset
    raise KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"offset {fetch_offset} after epoch {last_fetched_epoch} isn't in the log, which has "
        f"offsets {log.log_start_offset} to {log.log_end_offset} and ends with epoch "
        f"{log.leader_epochs.latest}",
    )


def truncation_offset(log: ReplicaLog, leader_epoch: int, leader_end_offset: int) -> int:
    """Where a follower cuts when its leader's log parts from its own at (epoch, end offset).

    May lie below the log's start: then all goes, and the log starts anew there.
    """
    own_epoch, own_end_offset = log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)
    if own_epoch == NO_EPOCH:
        return min(leader_end_offset, log.log_end_offset)
    if own_epoch != leader_epoch:
        # We never had the leader's epoch: all after our largest older one is ours alone (KIP-279).
        return min(own_end_offset, log.log_end_offset)
    return min(own_end_offset, leader_end_offset, log.log_end_offset)
