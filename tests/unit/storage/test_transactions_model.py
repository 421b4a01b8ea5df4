"""Transactions in a log against a list: what is stable, what was aborted, what a consumer sees.

Whatever happens to the log (segments, cuts, restarts, retention, compaction), all three are what a
scan of what was written says: a function of the log and of the high watermark.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kraftpy.core.producers import CompletedTransaction
from kraftpy.protocol.records import (
    EndTxnMarker,
    build_end_txn_marker,
    iter_records,
    read_end_txn_marker,
    split_batches,
)
from kraftpy.storage.files import Files
from kraftpy.storage.log import Log

from .cleaning import COMPACT, begin, inline, put
from .support import SMALL, DyingFiles, Stopped, Store, append, contents, with_config

PRODUCERS = st.integers(1, 3)
KEYS = [b"key-%d" % number for number in range(4)]
BEHIND = st.sampled_from([0, 0, 1, 3, 8, 20])  # offsets before the end
STEPS = st.tuples(
    st.sampled_from(["plain", "data", "data", "data", "commit", "abort", "abort"]),
    PRODUCERS,
    st.integers(1, 3),  # records; of a marker whether its epoch is the next one
    st.sampled_from(KEYS),
)
KEY = "t", 0


class Written(NamedTuple):
    """A batch of the model: `kind` is plain, data, commit or abort."""

    base: int
    last: int
    kind: str
    producer_id: int
    epoch: int
    key: bytes


class Transaction(NamedTuple):
    producer_id: int
    first: int
    last: int
    committed: bool


def transactions_of(
    batches: list[Written],
) -> tuple[list[Transaction], dict[int, int], set[int]]:
    """Those that ended, the first offsets of those that are open, base offsets of aborted data."""
    ended: list[Transaction] = []
    open_: dict[int, int] = {}
    data: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for each in batches:
        if each.kind == "data":
            open_.setdefault(each.producer_id, each.base)
            data.setdefault(each.producer_id, []).append(each.base)
        elif each.kind != "plain" and each.producer_id in open_:
            first = open_.pop(each.producer_id)
            mine = data.pop(each.producer_id)
            ended.append(Transaction(each.producer_id, first, each.base, each.kind == "commit"))
            aborted.update(mine if each.kind == "abort" else ())
    return ended, open_, aborted


def consumed(log: Log, start: int, max_bytes: int, stable_offset: int) -> list[int]:
    """The offsets that a consumer with read_committed delivers (KIP-98, the Java client's way)."""
    delivered: list[int] = []
    offset = start
    while offset < stable_offset:
        result = log.read(offset, max_bytes, upper_offset=stable_offset)
        aborted = sorted(
            log.aborted_transactions(offset, result.next_offset), key=lambda txn: -txn.first_offset
        )
        data = b"".join(piece.read() for piece in result.slices)
        if not data:
            break
        ignored: set[int] = set()
        for position, header in split_batches(data):
            while aborted and aborted[-1].first_offset <= header.last_offset:
                ignored.add(aborted.pop().producer_id)
            if header.is_control:
                marker = read_end_txn_marker(data, position)
                if marker is not None and not marker.committed:
                    ignored.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in ignored):
                delivered += [r.offset for r in iter_records(data, position) if r.offset >= offset]
        offset = result.next_offset
    return delivered


class TransactionsMachine(RuleBasedStateMachine):
    """`batches` is the model, `high_watermark` what the broker knows of it."""

    compacted = False

    @initialize(segment_bytes=st.sampled_from([300, 700, 1 << 20]))
    def open(self, segment_bytes: int) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        config = COMPACT if self.compacted else SMALL
        config = with_config(config, segment_bytes=segment_bytes, delete_retention_ms=20_000)
        self.store = Store(Path(self.temporary.name) / "data", config)
        self.log = self.store.log()
        self.starts = inline(self.store)
        self.batches: list[Written] = []
        self.epochs = {1: 0, 2: 0, 3: 0}
        self.sequences = {1: 0, 2: 0, 3: 0}
        self.high_watermark = 0
        self.cleaned = 0  # below, records may be gone
        self.decided = 0  # below lie the markers by which they were

    # -- writing

    @rule(steps=st.lists(STEPS, min_size=2, max_size=12))
    def write(self, steps: list[tuple[str, int, int, bytes]]) -> None:
        behind = self.log.log_end_offset - self.high_watermark
        for kind, producer, count, key in steps:
            if kind == "plain":
                self._put(kind, count, key)
            elif kind == "data":
                self._put(kind, count, key, producer)
            else:
                self._end(producer, kind == "commit", bumps=count == 3)
        self.replicate(behind)

    def _put(self, kind: str, count: int, key: bytes, producer: int = -1) -> None:
        base = self.log.log_end_offset
        options: dict[str, object] = {}
        if producer >= 0:
            options = {
                "producer_id": producer,
                "producer_epoch": self.epochs[producer],
                "base_sequence": self.sequences[producer],
                "transactional": True,
            }
            self.sequences[producer] += count
        put(self.log, *[(key, b"v" * 20)] * count, **options)
        epoch = self.epochs.get(producer, -1)
        self.batches.append(Written(base, base + count - 1, kind, producer, epoch, key))

    def _end(self, producer: int, committed: bool, *, bumps: bool) -> None:
        """With `bumps` as KIP-890 does: the marker has the epoch of the next transaction."""
        if bumps:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        base = self.log.log_end_offset
        marker = build_end_txn_marker(
            EndTxnMarker(committed, 0),
            producer_id=producer,
            producer_epoch=self.epochs[producer],
            timestamp_ms=1000,
        )
        append(self.log, bytearray(marker))
        kind = "commit" if committed else "abort"
        self.batches.append(Written(base, base, kind, producer, self.epochs[producer], b""))

    @rule(behind=BEHIND)
    def replicate(self, behind: int) -> None:
        self.high_watermark = max(self.high_watermark, self.log.log_end_offset - behind)
        self.log.producers.advance_high_watermark(self.high_watermark)

    # -- what happens to a log

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def files_run_short(self) -> None:
        for segment in self.log.segments:
            segment.close()

    @rule()
    def checkpoint(self) -> None:
        self.store.clock.now_ms += 6_000
        self.store.tick(self.high_watermark)
        self._look_for_swap()

    def _look_for_swap(self) -> None:
        self.cleaned = max([self.cleaned, *(job.end_base for job in self.starts.jobs)])
        self.decided = max([self.decided, *(job.high_watermark for job in self.starts.jobs)])

    @rule(behind=BEHIND)
    def truncate(self, behind: int) -> None:
        """An unclean leader may even cut what was committed; not what compaction went by."""
        self.log.truncate_to(self._target(behind))
        end = self.log.log_end_offset
        self._ends_at(end)

    def _ends_at(self, end: int) -> None:
        """One that was cut to its start may have begun anew, and know nobody any more."""
        self.high_watermark = min(self.high_watermark, end)
        self.batches = [each for each in self.batches if each.last < end]
        if not self.log.size_bytes:
            self.start_anew(0)

    def _target(self, behind: int) -> int:
        lowest = max(self.decided, self.log.log_start_offset)
        return max(lowest, self.log.log_end_offset - behind)

    @precondition(lambda self: len(self.batches) > 20)
    @rule(ahead=st.integers(0, 5))
    def start_anew(self, ahead: int) -> None:
        self.log.truncate_fully_and_start_at(self.log.log_end_offset + ahead)
        self.batches = []
        self.high_watermark = self.log.log_start_offset

    @rule(clean=st.booleans(), knows=st.sampled_from([True, True, False]))
    def restart(self, clean: bool, knows: bool) -> None:
        """With `knows` the checkpoint says where the high watermark was."""
        if knows:
            self.log.directory.begin_high_watermarks({KEY: self.high_watermark})()
        self._reopen(clean=clean, known={KEY: self.high_watermark} if knows else {})

    def _reopen(self, *, clean: bool, known: dict[tuple[str, int], int]) -> None:
        if clean:
            self.store.flusher.close()
            self.store.manager.close(high_watermarks=known)
        else:
            self.store.crash()
        self.store.files = Files()
        self.store.manager = self.store._open()
        self.log = self.store.log()
        self.starts = inline(self.store)
        self.high_watermark = self.log.directory.checkpointed_high_watermark(self.log)

    @rule(fail_at=st.integers(0, 30), behind=BEHIND)
    def crash_while_cutting(self, fail_at: int, behind: int) -> None:
        target = self._target(behind)
        self.log._files = self.log.directory.files = DyingFiles(fail_at)
        try:
            self.log.truncate_to(target)
        except Stopped:
            pass
        finally:
            self.log._files = self.log.directory.files = self.store.files
        self._reopen(clean=False, known={})
        end = self.log.log_end_offset
        assert end >= max((each.last + 1 for each in self.batches if each.last < target), default=0)
        self._ends_at(end)

    @rule(count=st.integers(1, 5))
    def delete_records(self, count: int) -> None:
        offset = self.log.log_start_offset + count
        if offset <= self.high_watermark:
            self.log.delete_records_before(offset)
            self.log.delete_old_segments(self.store.clock.now_ms, self.high_watermark)

    # -- what has to hold

    @property
    def _stable_offset(self) -> int:
        return self._stable_offset_of(self.batches)

    def _stable_offset_of(self, batches: list[Written]) -> int:
        ended, open_, _ = transactions_of(batches)
        unstable = [*open_.values(), *(t.first for t in ended if t.last >= self.high_watermark)]
        start = self.log.log_start_offset
        return min([self.high_watermark, *(max(first, start) for first in unstable)])

    @property
    def _written(self) -> list[Written]:
        return self.batches if hasattr(self, "batches") else []

    @invariant()
    def stable_offset_is_that_of_the_log(self) -> None:
        if self._written:
            found = self.log.producers.last_stable_offset(self.high_watermark)
            self._compare_stable(found, self._stable_offset)

    def _compare_stable(self, found: int, expected: int) -> None:
        assert found == expected

    @invariant()
    def aborted_transactions_are_those_of_the_log(self) -> None:
        if not self._written:
            return
        start, stable = self.log.log_start_offset, self._stable_offset
        for fetch, upper in [
            (start, stable),
            (start, (start + stable) // 2),
            (stable // 2, stable),
        ]:
            if start <= fetch < upper:
                expected = [
                    (t.producer_id, t.first, t.last)
                    for t in transactions_of(self.batches)[0]
                    if not t.committed and t.last >= fetch and t.first < upper
                ]
                self._compare(self.log.aborted_transactions(fetch, upper), expected)

    def _compare(
        self, found: list[CompletedTransaction], expected: list[tuple[int, int, int]]
    ) -> None:
        assert [txn[:3] for txn in found] == expected

    @rule(max_bytes=st.sampled_from([1, 200, 1 << 20]))
    def consume(self, max_bytes: int) -> None:
        start, stable = self.log.log_start_offset, self._stable_offset
        aborted = transactions_of(self.batches)[2]
        visible = [
            offset
            for each in self.batches
            if each.kind == "plain" or (each.kind == "data" and each.base not in aborted)
            for offset in range(each.base, each.last + 1)
            if start <= offset and each.last < stable
        ]
        self._compare_consumed(consumed(self.log, start, max_bytes, stable), visible)

    def _compare_consumed(self, found: list[int], visible: list[int]) -> None:
        assert found == visible

    @invariant()
    def epochs_are_known(self) -> None:
        """A leader fences with them."""
        epochs = {each.producer_id: each.epoch for each in self._written if each.producer_id >= 0}
        known = dict(self.log.producers.active()) if epochs else {}
        assert {producer: known[producer].epoch for producer in epochs} == epochs

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.crash()
            self.temporary.cleanup()


class CompactedTransactionsMachine(TransactionsMachine):
    """The same, and the cleaner is at work: what it takes away nobody misses."""

    compacted = True

    @precondition(lambda self: self._stable_offset)
    @rule(roll=st.booleans())
    def clean(self, roll: bool) -> None:
        self._begin(roll)
        self.store.tick(self.high_watermark)

    def _begin(self, roll: bool) -> None:
        if roll:
            self.log.roll()
        begin(self.store, self.high_watermark)
        self._look_for_swap()

    @rule(fail_at=st.integers(0, 40), roll=st.booleans())
    def crash_while_cleaning(self, fail_at: int, roll: bool) -> None:
        self._begin(roll)
        self.starts.files = self.log._files = DyingFiles(fail_at)
        try:
            self.store.manager._cleaner.poll(self.store.clock.now_ms)
        except Stopped:
            pass
        finally:
            self.log._files = self.store.files
        self._reopen(clean=False, known={})

    @rule()
    def copy_to_a_follower(self) -> None:
        """It learns of producers from what compaction has left, and has no snapshots."""
        folder = Path(self.temporary.name) / "follower"
        follower = Store(folder, self.store.config)
        log = follower.log()
        start = self.log.log_start_offset
        if start:
            log.truncate_fully_and_start_at(start)
        offset = start
        while offset < self.log.log_end_offset:
            result = self.log.read(offset, 1 << 20, upper_offset=self.log.log_end_offset)
            data = b"".join(piece.read() for piece in result.slices)
            if not data:
                break
            if (
                log.log_end_offset == start
                and (base := split_batches(data)[0][1].base_offset) < start
            ):
                log.truncate_fully_and_start_at(base)
            log.append_as_follower(data, 1)
            offset = result.next_offset
        log.advance_log_start(start)
        stable = self._stable_offset
        assert consumed(log, start, 300, stable) == consumed(self.log, start, 300, stable)
        copied = dict(log.producers.active())
        for producer, known in self.log.producers.active():
            mine = [each.last for each in self.batches if each.producer_id == producer]
            if mine and mine[-1] >= start:
                assert copied[producer].epoch == known.epoch
                if not 0 <= known.txn_first_offset < start:
                    assert copied[producer].txn_first_offset == known.txn_first_offset
        follower.manager.delete("t", 0)
        follower.close()

    def _compare_stable(self, found: int, expected: int) -> None:
        """Where it isn't known any more how far the cleaner knew what was committed, a transaction
        may begin with the first of its data that is left.
        """
        if self.high_watermark >= self.decided:
            assert found == expected
        else:
            first = self.log.segments[0].base_offset
            there = {h.base_offset for s in self.log.segments for _, h in s.batches(0)}
            left = [
                each
                for each in self.batches
                if each.kind != "data" or each.base < first or each.base in there
            ]
            assert expected <= found <= self._stable_offset_of(left)

    def _compare(
        self, found: list[CompletedTransaction], expected: list[tuple[int, int, int]]
    ) -> None:
        """What is missing has lost its data, or its marker; the others have theirs.

        One that was read anew begins with the first of its data that is left.
        """
        data = contents(self.log)
        markers = {h.base_offset for _, h in split_batches(data) if h.is_control}
        assert markers >= {txn.last_offset for txn in found}
        began = {(producer_id, last): first for producer_id, first, last in expected}
        for txn in found:
            assert txn.first_offset >= began.pop((txn.producer_id, txn.last_offset))
        assert all(first < self.cleaned for first in began.values())

    def _compare_consumed(self, found: list[int], visible: list[int]) -> None:
        assert set(found) <= set(visible)
        assert found == sorted(found)
        assert [o for o in found if o >= self.cleaned] == [o for o in visible if o >= self.cleaned]
        keys = {o: each.key for each in self.batches for o in range(each.base, each.last + 1)}
        newest = {keys[offset]: offset for offset in visible}
        assert {keys[offset]: offset for offset in found} == newest


SETTINGS = settings(
    max_examples=30, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestTransactionsMachine = TransactionsMachine.TestCase
TestTransactionsMachine.settings = SETTINGS
TestCompactedTransactionsMachine = CompactedTransactionsMachine.TestCase
TestCompactedTransactionsMachine.settings = SETTINGS
