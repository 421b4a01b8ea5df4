"""Reading a replica that another broker leads, in pieces, and telling whether it's still that log.

What was read is what the log has as long as the epoch is the same at its last record: two logs
that have the same epoch at an offset are the same up to there (KIP-101). Cleaning takes away
records that later ones replace, and in the end tombstones: who hasn't read past what was cleaned
since may have missed one.
"""

from __future__ import annotations

from kraftpy.frozen import NamedTuple
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
    first_dirty_offset = log.first_dirty_offset
    data, end = read_committed(partition, 0 if place is None else place.offset, max_bytes)
    return data, Place(end, log.leader_epochs.epoch_for(end - 1), first_dirty_offset)


def read_committed(partition: Partition, start_offset: int, max_bytes: int) -> tuple[bytes, int]:
    """Batches below the high watermark, and the offset to go on from (itself: at the end).

    Raises KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; OSError.
    """
    log = partition.log
    start = max(start_offset, log.log_start_offset)
    result = log.read(start, max_bytes, upper_offset=partition.high_watermark, min_one=True)
    return b"".join(piece.read() for piece in result.slices), result.next_offset
