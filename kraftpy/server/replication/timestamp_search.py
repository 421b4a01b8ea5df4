"""Searches of a partition by timestamp: batches that take long are opened in another process."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.record_walk import OversizedBatch, max_uncompressed_bytes
from kraftpy.server.network.long_answers import Pace
from kraftpy.server.replication.record_policy import QUICK_BYTES, opens_quickly
from kraftpy.storage.readable_log import BatchToOpen, TimestampOffset, TimestampSearch

if TYPE_CHECKING:
    from kraftpy.server.replication.opening import BatchOpener
    from kraftpy.server.replication.partition import Partition


async def finish_search(
    search: TimestampSearch, partition: Partition, opener: BatchOpener
) -> TimestampOffset | None:
    """What the search finds; others have the loop in between. Raises KafkaError."""
    pace = Pace()
    try:
        to_open = next(search)
        while True:
            here = None if to_open is None else await _open(to_open, partition, opener)
            await pace.keep()
            to_open = search.send(here)
    except StopIteration as end:
        found: TimestampOffset | None = end.value
        return found


async def _open(
    to_open: BatchToOpen, partition: Partition, opener: BatchOpener
) -> tuple[int, int] | None:
    if to_open.header.size_bytes <= QUICK_BYTES:
        batch = to_open.read()
        if opens_quickly(to_open.header, batch):
            with contextlib.suppress(OversizedBatch):
                return to_open.open(batch, QUICK_BYTES)
        del batch  # it's read again when there is a place for it
    limit = max_uncompressed_bytes(partition.config.max_message_bytes)
    return await opener.read_and_open(partial(_open_elsewhere, to_open, opener, limit))


async def _open_elsewhere(
    to_open: BatchToOpen, opener: BatchOpener, limit: int
) -> tuple[int, int] | None:
    batch = to_open.read()
    try:
        if to_open.timestamp is None:
            return await opener.max_timestamp_of(batch, limit)
        return await opener.find_timestamp(
            batch, to_open.timestamp, to_open.log_start_offset, limit
        )
    except KafkaError:
        return to_open.unopened
