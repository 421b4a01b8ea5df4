"""A compacted log against a list: whatever happens, also a crash at any call that changes the disk.

A reader sees at every moment: offsets that rise, only records that were written, the newest of each
key, and everything that compaction may not touch yet. A replay of what is there gives the same
state as one of all that was ever written; so does one piece by piece while it is compacted, swapped
and crashes, if that takes no longer than delete.retention.ms.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kraftpy.protocol.records import Record, split_batches
from kraftpy.storage.files import Files

from .cleaning import COMPACT, begin, inline, latest, mark, put, visible, visible_in
from .support import DyingFiles, Stopped, Store, contents, with_config

KEYS = st.integers(0, 6).map(lambda number: b"key-%d" % number)
VALUES = st.one_of(st.none(), st.integers(0, 999).map(lambda n: b"%d" % n * 20))
PAIRS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)
CODECS = st.sampled_from(["none", "none", "gzip", "lz4"])


class CleaningMachine(RuleBasedStateMachine):
    """`written` are the records that a consumer with read_committed saw or could have seen."""

    @initialize(
        segment_bytes=st.sampled_from([300, 600, 2000]),
        map_bytes=st.sampled_from([24 * 4, 24 * 8, 1 << 20]),
        retention_ms=st.sampled_from([0, 50_000, 500_000]),
    )
    def open(self, segment_bytes: int, map_bytes: int, retention_ms: int) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        config = with_config(COMPACT, segment_bytes=segment_bytes, delete_retention_ms=retention_ms)
        self.store = Store(Path(self.temporary.name) / "data", config)
        self.map_bytes = map_bytes
        self.log = self.store.log()
        self.starts = inline(self.store, map_bytes)
        self.written: list[Record] = []
        self.pending: dict[int, list[Record]] = {}  # of open transactions
        self.sequences = {1: 0, 2: 0, 3: 0, 4: 0}
        self.producers: dict[int, list[int]] = {1: [], 2: []}  # where their batches end
        self.untouched = 0  # nothing at or above was ever below a bound of compaction
        self.retention_ms = retention_ms
        self._read_from_the_start()

    def _read_from_the_start(self) -> None:
        self.began_ms = self.store.clock.now_ms
        self.position = 0
        self.read = b""

    def _put(self, pairs: list[tuple[bytes, bytes | None]], **options: object) -> list[Record]:
        start = self.log.log_end_offset
        put(self.log, *pairs, **options)
        return [
            Record(start + number, 1000 + number, key, value, [])
            for number, (key, value) in enumerate(pairs)
        ]

    @rule(pairs=PAIRS, codec=CODECS)
    def write(self, pairs: list[tuple[bytes, bytes | None]], codec: str) -> None:
        self.written += self._put(pairs, compression=codec)

    @rule(pairs=PAIRS, producer=st.sampled_from([1, 2]))
    def write_as_producer(self, pairs: list[tuple[bytes, bytes | None]], producer: int) -> None:
        self.written += self._put(pairs, **self._sequence(producer, len(pairs)))
        self.producers[producer].append(self.log.log_end_offset)

    def _sequence(self, producer: int, count: int) -> dict[str, object]:
        base = self.sequences[producer]
        self.sequences[producer] = base + count
        return {"producer_id": producer, "producer_epoch": 0, "base_sequence": base}

    @rule(pairs=PAIRS, producer=st.sampled_from([3, 4]))
    def write_in_transaction(self, pairs: list[tuple[bytes, bytes | None]], producer: int) -> None:
        options = self._sequence(producer, len(pairs))
        records = self._put(pairs, transactional=True, **options)
        self.pending.setdefault(producer, []).extend(records)

    @rule(producer=st.sampled_from([3, 4]), committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        mark(self.log, producer, committed=committed)
        self._decided(producer, committed)

    def _decided(self, producer: int, committed: bool) -> None:
        records = self.pending.pop(producer, [])
        if committed:
            self.written = sorted(self.written + records, key=lambda record: record.offset)
        self.log.producers.advance_high_watermark(self.log.log_end_offset)

    @rule(roll=st.booleans())
    def clean(self, roll: bool) -> None:
        self._begin(roll)
        self.store.tick()

    def _begin(self, roll: bool) -> None:
        """Has a cleaning begin if there is anything to do: mostly there is after a roll."""
        if roll:
            self.log.roll()
        begin(self.store)
        bounds = [job.end_base for job in self.starts.jobs]
        self.untouched = max([self.untouched, *bounds])

    @rule(fail_at=st.integers(0, 40), clean=st.booleans(), roll=st.booleans())
    def crash_while_cleaning(self, fail_at: int, clean: bool, roll: bool) -> None:
        self._begin(roll)
        dying = DyingFiles(fail_at)
        self.starts.files = self.log._files = dying
        try:
            self.store.manager._cleaner.poll(self.store.clock.now_ms)
        except Stopped:
            clean = False
        finally:
            self.log._files = self.store.files
        self._reopen(clean=clean)

    @rule(fail_at=st.integers(0, 40))
    def cleaning_process_dies(self, fail_at: int) -> None:
        self._begin(roll=True)
        if self.log.cleaning is not None:
            self.starts.files = DyingFiles(fail_at)
            try:
                self.starts.processes[-1].poll()
            except Stopped:
                self.starts.processes[-1].poll = lambda: -9  # type: ignore[method-assign]
            else:
                self.starts.processes[-1].poll = lambda: 0  # type: ignore[method-assign]
            self.starts.files = Files()
            self.store.tick()
            self.store.clock.now_ms += 60_000

    @rule(fail_at=st.integers(0, 30))
    def crash_again_while_recovering(self, fail_at: int) -> None:
        self._begin(roll=True)
        if self.log.cleaning is None:
            return
        self.starts.processes[-1].poll()  # the new segments wait
        self.store.crash()
        try:
            self.store.files = DyingFiles(fail_at)
            self.store.manager = self.store._open()
        except Stopped:
            pass
        self._reopen(clean=False)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self._reopen(clean=clean)

    def _reopen(self, *, clean: bool) -> None:
        self.log = self.store.reopen(clean=clean, files=Files())
        self.starts = inline(self.store, self.map_bytes)

    @rule(max_bytes=st.integers(1, 2000))
    def read_on(self, max_bytes: int) -> None:
        """One that has begun long ago reads another piece; at the log's end it knows the state."""
        result = self.log.read(self.position, max_bytes, upper_offset=self.log.log_end_offset)
        self.read += b"".join(piece.read() for piece in result.slices)
        self.position = result.next_offset
        if self.position < self.log.log_end_offset:
            return
        seen = self._decided_of(visible_in(self.read))
        expected = latest(self.written)
        state = latest(seen)
        if self.store.clock.now_ms - self.began_ms < self.retention_ms:
            assert state == expected
        elif not self.sequences[3] and not self.sequences[4]:  # it may have missed delete markers
            assert {key: state[key] for key in expected} == expected
        self._read_from_the_start()

    def _decided_of(self, records: list[Record]) -> list[Record]:
        undecided = {r.offset for records in self.pending.values() for r in records}
        return [record for record in records if record.offset not in undecided]

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """As a follower does: not below what was compacted, which was committed."""
        lowest = max(self.untouched, self.log.log_start_offset)
        target = data.draw(st.integers(lowest, max(lowest, self.log.log_end_offset)))
        open_before = {number: records[0].offset for number, records in self.pending.items()}
        if any(first >= target for first in open_before.values()) or self._markers_from(target):
            return  # another history of transactions is the producers' tests' affair
        self.log.truncate_to(target)
        self._read_from_the_start()
        end = self.log.log_end_offset
        self.written = [record for record in self.written if record.offset < end]
        for ends in self.producers.values():
            ends[:] = [offset for offset in ends if offset <= end]
        for number, records in self.pending.items():
            self.pending[number] = [record for record in records if record.offset < end]
        self.pending = {number: records for number, records in self.pending.items() if records}

    def _markers_from(self, offset: int) -> bool:

        data = contents(self.log)
        return any(h.is_control and h.last_offset >= offset for _, h in split_batches(data))

    @invariant()
    def reads_right(self) -> None:
        if not hasattr(self, "log"):
            return
        seen = self._decided_of(visible(self.log))
        by_offset = {record.offset: record for record in self.written}
        for record in seen:
            assert record == by_offset[record.offset]
        assert latest(seen) == latest(self.written)
        above = [record for record in self.written if record.offset >= self.untouched]
        assert [record for record in seen if record.offset >= self.untouched] == above
        for producer, ends in self.producers.items():
            assert (producer in self.log.producers) == bool(ends)
        assert not self.log.offline
        assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.crash()
            self.temporary.cleanup()


TestCleaningMachine = CleaningMachine.TestCase
TestCleaningMachine.settings = settings(
    max_examples=12,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
