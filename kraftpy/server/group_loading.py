"""Reading a partition of `__consumer_offsets` into its machine, when this broker begins to lead it.

Rules that it keeps:

* A partition is loaded before it takes requests, and only after all that earlier leaders committed
  can be read here: a new leader's high watermark may be behind (consistency.md, rule 9).
* It is read in pieces, so that the broker answers others meanwhile. An empty one is loaded at once.
* A record that can't be read is skipped with one log line; a damaged batch keeps the partition from
  being loaded, since a committed offset might be lost behind it.
"""

from __future__ import annotations

import logging

from kraftpy.core.groups import GroupConfig, GroupMachine, decode_record
from kraftpy.protocol.errors import DecodeError, KafkaError
from kraftpy.protocol.records import iter_records, split_batches
from kraftpy.server.group_partition import OFFSETS_TOPIC, GroupPartition, PartitionHost

log = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024
_REPORT_INTERVAL_S = 5.0


class GroupLoading:
    """The load of one partition; `offset` is the next one to read."""

    def __init__(self, host: PartitionHost, partition: GroupPartition) -> None:
        self.partition = partition
        self.offset = 0
        self.records_count = 0
        # They vanished during the load, so what is committed for them is still to be forgotten.
        self.deleted_topics: list[str] = []
        self._host = host
        self._loop = host.loop
        self._machine = GroupMachine(GroupConfig.from_broker(host.config))
        self._skipped_count = 0
        self._reported_s = host.loop.time()

    def start(self) -> None:
        self._host.replicas.when_settled(OFFSETS_TOPIC, self.partition.index, self._settled)

    def _settled(self, is_leader: bool) -> None:
        if is_leader:
            self._go_on()

    def _go_on(self) -> None:
        """Replays the next piece of the log; comes back for more after others had their turn."""
        partition = self.partition
        if partition.closed:
            return
        try:
            data, next_offset = self._host.replicas.read_batches(
                OFFSETS_TOPIC, partition.index, self.offset, _CHUNK_BYTES
            )
            self._replay(data)
        except (DecodeError, KafkaError, OSError) as error:
            partition.fail()
            log.error(
                "%s can't be loaded from offset %d; its groups are not served here: %s",
                partition,
                self.offset,
                error,
            )
            return
        if next_offset > self.offset:
            self.offset = next_offset
            self._report()
            self._loop.call_soon(self._go_on)
            return
        self._finish()

    def _finish(self) -> None:
        partition, machine = self.partition, self._machine
        if self.records_count or self._skipped_count:
            log.info(
                "%s: loaded %d records, %d skipped: %d groups, %d committed offsets",
                partition,
                self.records_count,
                self._skipped_count,
                machine.groups_count,
                machine.offsets_count,
            )
        partition.take_on(machine, self.offset - 1)
        for topic in self.deleted_topics:
            partition.carry_out(machine.delete_topic(topic))

    def _report(self) -> None:
        """Says every few seconds how far a long load is."""
        now_s = self._loop.time()
        if now_s - self._reported_s < _REPORT_INTERVAL_S:
            return
        self._reported_s = now_s
        log.info(
            "%s: loading, at offset %d: %d records, %d committed offsets so far",
            self.partition,
            self.offset,
            self.records_count,
            self._machine.offsets_count,
        )

    def _replay(self, data: bytes) -> None:
        for position, header in split_batches(data):
            if header.is_control or header.is_transactional:
                self._skipped_count += header.records_count
                continue
            for record in iter_records(data, position):
                try:
                    decoded = decode_record(record.key, record.value)
                except DecodeError as error:
                    if not self._skipped_count:
                        log.error(
                            "%s: the record at offset %d is skipped: %s",
                            self.partition,
                            record.offset,
                            error,
                        )
                    self._skipped_count += 1
                    continue
                if decoded is None:
                    self._skipped_count += 1
                else:
                    self._machine.load(decoded)
                    self.records_count += 1
