"""The rules of compaction: which log is cleaned next, up to where, and what of it stays.

Rules kept here (Kafka's LogCleaner, KIP-58, KIP-354, KIP-534; docs/rules.md, rule 27):

* Nothing at or above the high watermark, the last stable offset or the active segment is touched,
  and no segment with a record that is younger than `min.compaction.lag.ms`.
* A log is due when the share of its bytes that were never cleaned is above
  `min.cleanable.dirty.ratio`, or when its oldest such record is older than `max.compaction.lag.ms`.
* Of each key the newest record stays. A delete marker stays until its batch's delete horizon.
* Records of aborted transactions go. The marker that ended a transaction goes one delete horizon
  after a cleaning that met nothing of the transaction any more.
* The last batch of every producer that is still known stays, without records if need be; or, if its
  epoch is above that of the records, the marker that fences whoever wrote them (KIP-890).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from typing import TYPE_CHECKING

from kraftpy.frozen import NamedTuple

if TYPE_CHECKING:
    from kraftpy.core.config import TopicConfig
    from kraftpy.protocol.records import BatchHeader


class Cleanable(NamedTuple):
    """What a cleaning of one log would find.

    `clean_bytes` were cleaned before, `dirty_bytes` never; `first_dirty_timestamp` is the
    timestamp of the oldest of these, in ms, -1 when it isn't known.
    """

    clean_bytes: int
    dirty_bytes: int
    first_dirty_timestamp: int

    @property
    def dirty_ratio(self) -> float:
        """The share that was never cleaned: 0 for a log in which there is nothing to do."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def overdue(self, config: TopicConfig, now_ms: int) -> bool:
        """Whether `max.compaction.lag.ms` wants a cleaning whatever the share (KIP-354)."""
        return (
            self.dirty_bytes > 0
            and self.first_dirty_timestamp > 0
            and now_ms - self.first_dirty_timestamp > config.max_compaction_lag_ms
        )

    def is_due(self, config: TopicConfig, now_ms: int) -> bool:
        """Whether the log should be cleaned now."""
        return self.overdue(config, now_ms) or (
            self.dirty_bytes > 0 and self.dirty_ratio >= config.min_cleanable_dirty_ratio
        )


class Transactions:
    """Which batches belong to aborted transactions, and which markers have lost their data.

    `learn` is given every transactional batch in the log's order; then the other methods answer,
    for which the batches are met once more in the same order.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        self._met: set[int] = set()

    @property
    def undecided(self) -> bool:
        """Whether a transaction was met whose end wasn't."""
        return bool(self._open)

    def learn(self, header: BatchHeader, committed: bool | None = None) -> None:
        """A transactional batch; `committed` is what its marker says, None without one."""
        producer_id = header.producer_id
        if not header.is_control:
            self._open.setdefault(producer_id, header.base_offset)
        elif committed is not None:
            first = self._open.pop(producer_id, None)
            if first is not None and not committed:
                ranges = self._aborted.setdefault(producer_id, [])
                ranges.append((first, header.base_offset))

    def meet_records(self, header: BatchHeader) -> None:
        """A transactional batch of records is still in the log."""
        self._met.add(header.producer_id)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of a transactional batch were aborted."""
        ranges = self._aborted.get(header.producer_id)
        if ranges is None:
            return False
        index = bisect_left(ranges, header.base_offset, key=lambda ends: ends[1])
        return index < len(ranges) and ranges[index][0] <= header.base_offset

    def meet_marker(self, header: BatchHeader) -> bool:
        """Whether nothing is left of the transaction that this control batch ended."""
        if header.producer_id not in self._met:
            return True
        self._met.remove(header.producer_id)
        return False


class LastBatches:
    """Epoch and last offset of what the log has to keep of each producer.

    That is the last batch of records, for its sequence numbers. Where there is none, or the last
    marker is of a later epoch, it's the marker.
    """

    def __init__(self) -> None:
        self._data: dict[int, tuple[int, int]] = {}
        self._control: dict[int, tuple[int, int]] = {}

    def learn(self, header: BatchHeader) -> None:
        """A batch with a producer id, in the log's order."""
        last = self._control if header.is_control else self._data
        last[header.producer_id] = header.producer_epoch, header.last_offset

    def keep_only(self, producer_ids: Container[int]) -> None:
        """Forgets the producers that the partition has forgotten."""
        for last in (self._data, self._control):
            for producer_id in [known for known in last if known not in producer_ids]:
                del last[producer_id]

    def is_last(self, header: BatchHeader) -> bool:
        """Whether this batch is what the state of its producer is rebuilt from."""
        last = self._data.get(header.producer_id)
        control = self._control.get(header.producer_id)
        if last is None or (control is not None and control[0] > last[0]):
            last = control
        return last is not None and last[1] == header.last_offset
