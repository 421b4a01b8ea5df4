"""A log against a list: any order of appends, rolls, cuts and restarts gives what the list says."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import Record
from kraftpy.storage.checkpointing import Job

from .support import SMALL, NoRoomForEpochs, Store, append, batch, records_of, with_config

CONFIGS = [
    with_config(SMALL, segment_bytes=segment_bytes, index_interval_bytes=interval)
    for segment_bytes in (300, 1000, 1 << 20)
    for interval in (0, 150, 4096)
]


class LogMachine(RuleBasedStateMachine):
    """`batches` is the model: (base offset, last offset, bytes, epoch), oldest first."""

    @initialize(config=st.sampled_from(CONFIGS))
    def open(self, config: object) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.files = NoRoomForEpochs()
        folder = Path(self.temporary.name) / "data"
        self.store = Store(folder, config, self.files)  # type: ignore[arg-type]
        self.log = self.store.log()
        self.batches: list[tuple[int, int, bytes, int]] = []
        self.start = self.end = 0
        self.epoch = 0
        self.rounds: list[Job] = []
        self.sequence = itertools.count()

    @rule(
        count=st.integers(1, 5),
        timestamp=st.integers(0, 200),
        size=st.sampled_from([0, 10, 400]),
        producer=st.booleans(),
    )
    def append(self, count: int, timestamp: int, size: int, producer: bool) -> None:
        options = (
            {"producer_id": 5, "producer_epoch": 0, "base_sequence": next(self.sequence)}
            if producer
            else {}
        )
        data = batch(count, timestamp=timestamp, step=-1, value=b"x" * size, **options)
        stored = append(self.log, data, epoch=self.epoch)
        self.batches.append((self.end, self.end + count - 1, stored, self.epoch))
        self.end += count

    @rule()
    def lead(self) -> None:
        self.epoch += 1
        self.log.assign_leader_epoch(self.epoch)
        assert self.log.end_offset_for_epoch(self.epoch) == (self.epoch, self.end)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def files_run_short(self) -> None:
        self.log.segments[-1].close()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.store.clock.now_ms += 60_000
        self.files.full = full
        self.store.tick(high_watermark=0)
        self.files.full = False

    @rule()
    def begin_checkpoint(self) -> None:
        self.rounds.append(self.log.directory.begin_recovery_points())

    @precondition(lambda self: self.rounds)
    @rule(full=st.booleans())
    def complete_checkpoint(self, full: bool) -> None:
        self.files.full = full
        self.rounds.pop(0)()
        self.files.full = False

    @rule()
    def free_segments(self) -> None:
        self.store.clock.now_ms += 300_000
        self.store.tick()
        self.batches = [entry for entry in self.batches if entry[1] >= self.start]

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        target = data.draw(st.integers(self.start, self.end))
        self.log.truncate_to(target)
        self.batches = [entry for entry in self.batches if entry[1] < target]
        cut_end = self.batches[-1][1] + 1 if self.batches else self.log.log_end_offset
        assert cut_end <= self.log.log_end_offset <= target
        self.end = self.log.log_end_offset
        self.start = min(self.start, self.end)

    @precondition(lambda self: self.end)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))
        self.start = max(self.start, offset)
        assert self.log.delete_records_before(offset) == self.start

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.rounds.clear()
        snapshot = self.log.producers.snapshot()
        entries = self.log.leader_epochs.entries()
        self.log = self.store.reopen(clean=clean)
        assert self.log.producers.snapshot() == snapshot
        found = self.log.leader_epochs.entries()
        if clean and self.log.size_bytes:
            assert found == entries
        else:  # an epoch without records may be forgotten: nobody else has records of it
            assert [entry for entry in found if entry[1] < self.end] == [
                entry for entry in entries if entry[1] < self.end
            ]
            self.log.assign_leader_epoch(self.epoch)

    @rule(data=st.data(), max_bytes=st.sampled_from([0, 1, 150, 700, 1 << 20]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(0, self.end + 1))
        upper = data.draw(st.integers(0, self.end))
        if not self.start <= offset <= self.end:
            with pytest.raises(KafkaError) as error:
                self.log.read(offset, max_bytes, upper_offset=upper)
            assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            return
        result = self.log.read(offset, max_bytes, upper_offset=upper)
        expected: list[bytes] = []
        size = 0
        for _, last, stored, _ in self.batches:
            if last < offset:
                continue
            if offset >= upper or last >= upper or (expected and size + len(stored) > max_bytes):
                break
            expected.append(stored)
            size += len(stored)
            if size > max_bytes:
                break
        assert b"".join(piece.read() for piece in result.slices) == b"".join(expected)
        assert result.size_bytes == size

    @rule(timestamp=st.integers(0, 210))
    def find_timestamp(self, timestamp: int) -> None:
        records = self._records()
        expected = next((r for r in records if r.timestamp >= timestamp), None)
        found = self.log.offset_for_timestamp(timestamp)
        assert (found and (found.timestamp, found.offset)) == (
            expected and (expected.timestamp, expected.offset)
        )

    def _records(self) -> list[Record]:
        stored = b"".join(entry[2] for entry in self.batches)
        return [record for record in records_of(stored) if record.offset >= self.start]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end
        assert self.log.log_start_offset == self.start
        assert not self.log.offline
        assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)
        assert self.log.recovery_point <= self.end

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.crash()
            self.temporary.cleanup()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
