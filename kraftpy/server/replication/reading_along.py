"""Reading a replica that another broker leads, in pieces, and telling whether it's still that log.

What was read is what the log has as long as the epoch is the same at its last record: two logs
that have the same epoch at an offset are the same up to there (KIP-101). Cleaning takes away
records that later ones replace, and in the end tombstones: who hasn't read past what was cleaned
since may have missed one.
"""

from __future__ import annotations

from typing import NamedTuple

from kraftpy.server.replication.partition import Partition


class Place(NamedTuple):
    """How far a replica has been read: the next offset, the epoch of what lies before it, and the
    log's first dirty offset at that time."""

    offset: int
    epoch: int
    first_dirty_offset: int


def has_place(partition: Partition, place: Place) -> bool:
    """Whether all that the log has up to there was read, and nothing else."""
    log, offset = partition.log, place.offset
    return (
        log.log_start_offset <= offset <= log.log_end_offset
        and log.leader_epochs.epoch_for(offset - 1) == place.epoch
        and log.first_dirty_offset <= max(offset, place.first_dirty_offset)
    )


def read_along(partition: Partition, place: Place | None, max_bytes: int) -> tuple[bytes, Place]:
    """Batches below the high watermark from there, None: from the start, and the place behind them.

    No bytes at the end. Raises KafkaError KAFKA_STORAGE_ERROR, OSError.
    """
    log = partition.log
    start = log.log_start_offset if place is None else place.offset
    first_dirty_offset = log.first_dirty_offset
    upper_offset = max(start, partition.high_watermark)
    result = log.read(start, max_bytes, upper_offset=upper_offset, min_one=True)
    data = b"".join(piece.read() for piece in result.slices)
    epoch = log.leader_epochs.epoch_for(result.next_offset - 1)
    return data, Place(result.next_offset, epoch, first_dirty_offset)
