"""Blocks that the file system finds ahead of the writes: for busy logs only, and given back."""

from __future__ import annotations

from pathlib import Path

from kraftpy.core.config import TopicConfig
from kraftpy.storage.segment import RESERVE_BYTES, RESERVE_FROM_BYTES

from .support import Store, append, batch

LARGE = TopicConfig(segment_bytes=1 << 30)


def allocated_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*.log"))


def fill(store: Store, size_bytes: int) -> None:
    log = store.log()
    while log.size_bytes < size_bytes:
        append(log, batch(value=bytes(100_000)))


def test_a_small_log_reserves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, LARGE)
    fill(store, RESERVE_FROM_BYTES // 2)
    assert allocated_bytes(tmp_path) < RESERVE_FROM_BYTES
    store.close()


def test_a_busy_log_is_ahead_and_its_size_is_the_truth(tmp_path: Path) -> None:
    store = Store(tmp_path, LARGE)
    fill(store, 2 * RESERVE_FROM_BYTES)
    assert allocated_bytes(tmp_path) >= RESERVE_BYTES
    (path,) = tmp_path.rglob("*.log")
    assert path.stat().st_size == store.log().size_bytes
    store.close()


def test_a_clean_shutdown_gives_the_rest_back(tmp_path: Path) -> None:
    store = Store(tmp_path, LARGE)
    fill(store, 2 * RESERVE_FROM_BYTES)
    size_bytes = store.log().size_bytes
    store.close()
    assert allocated_bytes(tmp_path) < size_bytes + RESERVE_BYTES // 2


def test_a_crash_leaves_a_log_that_opens_and_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path, LARGE)
    fill(store, 2 * RESERVE_FROM_BYTES)
    end_offset = store.log().log_end_offset
    store.crash()
    log = store.reopen(clean=False)
    assert log.log_end_offset == end_offset
    fill(store, 3 * RESERVE_FROM_BYTES)
    assert log.log_end_offset > end_offset
    store.close()
