"""A replica's log in memory, and its disk: what was not synced is lost with the power.

Batches are shared between replicas, as their bytes are equal in the server: two logs have the same
batch at an offset if it is the same object. The epoch cache is the server's own.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from kraftpy.core.producers import ProducerStateManager
from kraftpy.protocol.record_batch import CONTROL_BIT, BatchHeader
from kraftpy.protocol.records import EndTxnMarker
from kraftpy.storage.epochs import LeaderEpochs

_base_offset_of = attrgetter("base_offset")


class Batch:
    """Records that were written together; `values` has one for each offset."""

    __slots__ = ("base_offset", "end_offset", "epoch", "header", "values")

    def __init__(self, header: BatchHeader, values: tuple[object, ...]) -> None:
        self.header = header
        self.values = values
        self.base_offset = header.base_offset
        self.end_offset = header.base_offset + len(values)
        self.epoch = header.partition_leader_epoch

    def __repr__(self) -> str:
        return f"{self.base_offset}..{self.end_offset - 1}@{self.epoch}"

    @property
    def marker(self) -> EndTxnMarker | None:
        """The one that it holds, if it is a coordinator's."""
        if self.header.attributes & CONTROL_BIT:
            (marker,) = self.values
            assert isinstance(marker, EndTxnMarker)
            return marker
        return None


def header_of(
    count: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        (0, 0, -1, 2, 0, attributes, count - 1, 0, 0, producer_id, producer_epoch, sequence, count)
    )


def stamped(header: BatchHeader, base_offset: int, epoch: int) -> BatchHeader:
    """A copy with the leader's offset and epoch."""
    copy = header_of(
        header.records_count,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.attributes,
    )
    copy.base_offset = base_offset
    copy.partition_leader_epoch = epoch
    return copy


class SimLog:
    """A `core.replication.ReplicaLog`. `durable_end`: up to where it is synced."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.durable_end = 0
        self.leader_epochs = LeaderEpochs()
        self.producers = ProducerStateManager()

    def append(self, batch: Batch) -> None:
        assert batch.base_offset == self.log_end_offset
        self.batches.append(batch)
        self.log_end_offset = batch.end_offset
        if batch.epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(batch.epoch, batch.base_offset)
        self.producers.update(batch.header, 0, batch.marker)

    def flush(self) -> None:
        self.durable_end = self.log_end_offset

    def read(self, offset: int, count: int, upper_offset: int) -> list[Batch]:
        """Whole batches from the one that has `offset`, below `upper_offset`."""
        batches = self.batches
        index = bisect_right(batches, offset, key=_base_offset_of) - 1
        if index < 0 or batches[index].end_offset <= offset:
            index += 1
        found = batches[index : index + count]
        while found and found[-1].end_offset > upper_offset:
            found.pop()
        return found

    def batch_before(self, offset: int) -> Batch | None:
        """The batch that ends at or around `offset`."""
        index = bisect_right(self.batches, offset - 1, key=_base_offset_of) - 1
        return self.batches[index] if index >= 0 else None

    def truncate_to(self, offset: int) -> None:
        batches = self.batches
        while batches and batches[-1].end_offset > offset:
            self.log_end_offset = batches.pop().base_offset
        self.durable_end = min(self.durable_end, self.log_end_offset)
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        if not self.producers.truncate(self.log_end_offset):
            self.rebuild_producers()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.batches.clear()
        self.log_start_offset = self.log_end_offset = self.durable_end = offset
        self.leader_epochs.clear()
        self.producers = ProducerStateManager()

    def advance_log_start(self, offset: int) -> None:
        """Batches below stay where they are, for the producers' state; nobody may read them."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)

    def rebuild_producers(self) -> None:
        self.producers = ProducerStateManager()
        for batch in self.batches:
            self.producers.update(batch.header, 0, batch.marker)

    def lose_unsynced(self) -> bool:
        """The power went; whether records went with it."""
        before = self.log_end_offset
        self.truncate_to(max(self.durable_end, self.log_start_offset))
        return self.log_end_offset < before

    def values(self) -> list[object]:
        """What a reader of the whole log would get."""
        found: list[object] = []
        for batch in self.batches:
            if batch.base_offset >= self.log_start_offset:
                found += batch.values
        return found
