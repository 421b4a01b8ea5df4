"""Compaction on the test's thread, and what a reader of a compacted log may see."""

from __future__ import annotations

import itertools
from dataclasses import replace

from kraftpy.protocol.records import (
    EndTxnMarker,
    Record,
    build_batch,
    build_end_txn_marker,
    iter_records,
    read_end_txn_marker,
    split_batches,
)
from kraftpy.storage.cleaning.cleaner import Cleaner, Uncleanable
from kraftpy.storage.cleaning.job import EXIT_FAILED, EXIT_UNCLEANABLE, CleaningJob
from kraftpy.storage.cleaning.schedule import LogCleaner
from kraftpy.storage.files import Files
from kraftpy.storage.log import Log

from .support import SMALL, Store, append, contents, with_config

COMPACT = with_config(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


class Inline:
    """A cleaning process that runs when somebody asks whether it has ended."""

    def __init__(self, job: CleaningJob, files: Files) -> None:
        self.job = job
        self.files = files
        self.text = ""
        self.killed = False

    def poll(self) -> int | None:
        try:
            self.text = Cleaner(self.job, self.files).run().to_text()
        except Uncleanable as error:
            self.text = str(error)
            return EXIT_UNCLEANABLE
        except OSError as error:
            self.text = str(error)
            return EXIT_FAILED
        return 0

    def output(self) -> str:
        return self.text

    def kill(self) -> None:
        self.killed = True


class Inlines:
    """Starts them; `jobs` has what was asked for."""

    def __init__(self, map_bytes: int | None = None) -> None:
        self.files: Files = Files()
        self.map_bytes = map_bytes
        self.jobs: list[CleaningJob] = []
        self.processes: list[Inline] = []

    def __call__(self, job: CleaningJob) -> Inline:
        self.jobs.append(job)
        if self.map_bytes is not None:
            job = replace(job, map_bytes=self.map_bytes)
        self.processes.append(Inline(job, self.files))
        return self.processes[-1]


def inline(store: Store, map_bytes: int | None = None) -> Inlines:
    """Has the store clean on this thread from now on (until it is reopened)."""
    starts = Inlines(map_bytes)
    store.manager._cleaner = LogCleaner(store.broker, store.files, starts)
    return starts


def begin(store: Store, high_watermark: int | None = None) -> None:
    """Has what is due begin; the next tick is the one that ends it."""
    for log in store.manager:
        log.flush()
    store.clock.now_ms += 15_000
    store.tick(high_watermark)


def clean(store: Store, high_watermark: int | None = None) -> None:
    begin(store, high_watermark)
    store.tick(high_watermark)


def put(log: Log, *pairs: tuple[bytes, bytes | None], timestamp: int = 1000, **options: object):  # type: ignore[no-untyped-def]
    """One batch of (key, value), None for a delete marker."""
    data = build_batch(
        [(timestamp + number, key, value, []) for number, (key, value) in enumerate(pairs)],
        **options,  # type: ignore[arg-type]
    )
    return append(log, bytearray(data))


def mark(log: Log, producer_id: int, *, committed: bool, epoch: int = 0) -> None:
    marker = build_end_txn_marker(
        EndTxnMarker(committed, 0), producer_id=producer_id, producer_epoch=epoch, timestamp_ms=1000
    )
    append(log, bytearray(marker))


def visible(log: Log) -> list[Record]:
    """What a consumer with read_committed sees; checks that offsets rise and batches are whole."""
    return visible_in(contents(log))


def visible_in(data: bytes) -> list[Record]:
    """The same in what was read one after the other, maybe from files that took turns."""
    batches = split_batches(data)
    aborted: set[int] = set()  # base offsets of batches
    open_: dict[int, list[int]] = {}
    for position, header in batches:
        if header.is_transactional and not header.is_control:
            open_.setdefault(header.producer_id, []).append(header.base_offset)
        elif header.is_control:
            marker = read_end_txn_marker(data, position)
            mine = open_.pop(header.producer_id, [])
            if marker is not None and not marker.committed:
                aborted.update(mine)
    records: list[Record] = []
    end = 0
    for position, header in batches:
        assert header.base_offset >= end
        end = header.last_offset + 1
        found = list(iter_records(data, position))
        if not header.is_control and header.base_offset not in aborted:
            records += found
    assert all(a.offset < b.offset for a, b in itertools.pairwise(records))
    return records


def latest(records: list[Record]) -> dict[bytes, bytes]:
    """What somebody who replays the records ends up with."""
    state: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state
