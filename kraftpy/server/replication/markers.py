"""Markers that end transactions, as the leader of a partition appends them.

* What comes together is written together, but for two markers of one producer: each is judged by
  what the log says behind the one before.
* A marker that changes nothing isn't written again. Whoever sent it waits for all that the log has:
  what makes it superfluous may not be committed yet.
* It ends what the coordinator was asked of the transaction, also where it wrote nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import (
    BatchHeader,
    EndTxnMarker,
    build_end_txn_marker,
    read_batch_header,
)

if TYPE_CHECKING:
    from kraftpy.server.replication.partition import Partition


class Marker(NamedTuple):
    """The end of a producer's transaction; `transaction_version` is that of its coordinator."""

    producer_id: int
    producer_epoch: int
    end: EndTxnMarker
    transaction_version: int


def append_markers(
    partition: Partition, markers: Sequence[Marker], now_ms: int
) -> list[int | KafkaError]:
    """Up to which offset the log has to be committed for each, or why it isn't taken."""
    outcomes: dict[int, int | KafkaError] = {}
    left = list(enumerate(markers))
    while left:
        together: dict[int, tuple[int, Marker]] = {}
        later = []
        for number, marker in left:
            if marker.producer_id in together:
                later.append((number, marker))
            else:
                together[marker.producer_id] = number, marker
        outcomes |= _append(partition, together.values(), now_ms)
        left = later
    return [outcomes[number] for number in range(len(markers))]


def _append(
    partition: Partition, markers: Iterable[tuple[int, Marker]], now_ms: int
) -> dict[int, int | KafkaError]:
    outcomes: dict[int, int | KafkaError] = {}
    written: list[int] = []
    data = bytearray()
    batches: list[tuple[int, BatchHeader]] = []
    log = partition.log
    if partition.leadership is None:
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return dict.fromkeys((number for number, _ in markers), error)
    for number, marker in markers:
        producer_id, epoch, end, version = marker
        try:
            needed = log.producers.check_marker(producer_id, epoch, end, version)
        except KafkaError as error:
            outcomes[number] = error
            continue
        partition.admission.ended(producer_id, epoch, version)
        outcomes[number] = log.log_end_offset
        if needed:
            base_offset = log.log_end_offset + len(batches)
            batch = build_end_txn_marker(
                end,
                producer_id=producer_id,
                producer_epoch=epoch,
                timestamp_ms=now_ms,
                base_offset=base_offset,
                leader_epoch=partition.leader_epoch,
            )
            batches.append((len(data), read_batch_header(batch)))
            data += batch
            written.append(number)
            outcomes[number] = base_offset + 1
    if batches:
        try:
            partition.append_markers(memoryview(data), batches)
        except KafkaError as error:
            outcomes |= dict.fromkeys(written, error)
    return outcomes
