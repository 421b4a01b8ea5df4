"""The partitions of an internal topic on this broker, in memory: the test is the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import build_end_txn_marker, read_batch_header, stamp_batch
from kraftpy.server.replication.markers import Marker
from kraftpy.server.replication.reading_along import Place


class FakeLog:
    """One topic; with `holds` on, appends end when the test says so."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.led: dict[int, bytearray] = {}
        self.copies: dict[int, bytearray] = {}
        """Those that another broker leads."""
        self.is_other_log = False
        """Whether a copy isn't what was read of it any more."""
        self.reads: list[tuple[int, int]] = []
        """The partitions that were read, and from where."""
        self.ends: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.unsettled: list[Callable[[bool], None]] | None = None
        self.holds = False
        self.held: list[tuple[asyncio.Future[int], int]] = []
        self.read_error: KafkaError | None = None
        self.batch_max_bytes = 1 << 20
        self.refusals: list[tuple[int, int]] = []
        self.markers: list[tuple[int, Marker]] = []

    def led_epochs(self, topic: str) -> dict[int, int]:
        if topic != self.topic:
            return {}
        return {index: self.epochs.get(index, 0) for index in self.led}

    def when_settled(self, topic: str, partition: int, settled: Callable[[bool], None]) -> None:
        if self.unsettled is None:
            settled(partition in self.led)
        else:
            self.unsettled.append(settled)

    def put(self, index: int, batch: bytes) -> int:
        data = bytearray(batch)
        offset = self.ends.get(index, 0)
        stamp_batch(data, 0, offset, 0)
        self.ends[index] = offset + read_batch_header(data, 0).last_offset_delta + 1
        self.led[index] += data
        return offset

    def log_size_bytes(self, topic: str, partition: int) -> int:
        return len(self.led.get(partition, b""))

    def append_records(self, topic: str, partition: int, batch: bytes) -> asyncio.Future[int]:
        assert topic == self.topic
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if len(batch) > self.batch_max_bytes:
            future.set_exception(KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
            return future
        offset = self.put(partition, batch)
        if self.holds:
            self.held.append((future, offset))
        else:
            future.set_result(offset)
        return future

    def append_markers(
        self, topic: str, partition: int, markers: Sequence[Marker]
    ) -> tuple[list[ErrorCode], asyncio.Future[int]]:
        """One of a producer that is fenced isn't taken, a second one isn't written again."""
        assert topic == self.topic
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        errors = [
            ErrorCode.INVALID_PRODUCER_EPOCH if each.producer_epoch < 0 else ErrorCode.NONE
            for each in markers
        ]
        for marker, error in zip(markers, errors, strict=True):
            if error is ErrorCode.NONE and (partition, marker) not in self.markers:
                self.markers.append((partition, marker))
                batch = build_end_txn_marker(
                    marker.end,
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    timestamp_ms=0,
                )
                self.put(partition, batch)
        last = self.ends.get(partition, 0) - 1
        if self.holds:
            self.held.append((future, last))
        else:
            future.set_result(last)
        return errors, future

    def release(self, number: int) -> None:
        """The append of this number is committed."""
        future, offset = self.held[number]
        future.set_result(offset)

    def delete_records_before(self, topic: str, partition: int, offset: int) -> None:
        batches, position = self.led[partition], 0
        while position < len(batches):
            header = read_batch_header(batches, position)
            if header.last_offset >= offset:
                break
            position += header.size_bytes
        del batches[:position]

    def read_batches(
        self, topic: str, partition: int, start_offset: int, max_bytes: int
    ) -> tuple[bytes, int]:
        return self._read(self.led[partition], partition, start_offset)

    def _read(self, batches: bytearray, partition: int, start_offset: int) -> tuple[bytes, int]:
        self.reads.append((partition, start_offset))
        if self.read_error is not None:
            raise self.read_error
        data, position = bytes(batches), 0
        while position < len(data):
            header = read_batch_header(data, position)
            if header.last_offset >= start_offset:
                end = position + header.size_bytes
                return data[position:end], header.last_offset + 1
            position += header.size_bytes
        return b"", start_offset

    # -- what others lead

    def lose(self, index: int) -> None:
        """Another broker leads it, and this one has a copy."""
        self.copies[index] = self.led.pop(index)

    def regain(self, index: int) -> None:
        self.led[index] = self.copies.pop(index)
        self.epochs[index] = self.epochs.get(index, 0) + 1

    def put_copy(self, index: int, batch: bytes) -> None:
        """What the leader appended has come and is committed."""
        self.regain(index)
        self.put(index, batch)
        self.lose(index)

    def followed(self, topic: str) -> list[int]:
        return list(self.copies) if topic == self.topic else []

    def has_place(self, topic: str, partition: int, place: Place) -> bool:
        return not self.is_other_log

    def read_along(
        self, topic: str, partition: int, place: Place | None, max_bytes: int
    ) -> tuple[bytes, Place]:
        start = 0 if place is None else place.offset
        replica = self.copies.get(partition, self.led.get(partition))
        if replica is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        data, offset = self._read(replica, partition, start)
        self.is_other_log = False
        return data, Place(offset, 0, 0)

    def refused(self, topic: str, partition: int, start_offset: int, size_bytes: int) -> None:
        self.refusals.append((partition, start_offset))
