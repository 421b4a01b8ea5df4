"""A log of offsets that was compacted says what it said before, of transactions as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.protocol.records import split_batches
from tests.unit.core.test_groups.test_transactional_offsets import History

from .cleaning import COMPACT, clean, inline
from .support import Store, append, contents

DAY_MS = 86_400_000
STEPS = 40


@pytest.mark.parametrize("seed", range(10))
def test_a_compacted_log_gives_the_same_offsets(tmp_path: Path, seed: int) -> None:
    """Also while transactions are open, and when markers and tombstones have gone."""
    store = Store(tmp_path / "data", COMPACT)
    log = store.log()
    inline(store)
    history = History(seed)
    written = 0
    for _ in range(5):
        for _ in range(STEPS):
            history.step()
        fresh = history.driver.batches[written:]
        written += len(fresh)
        for position, header in split_batches(fresh):
            append(log, bytearray(fresh[position : position + header.size_bytes]))
        log.producers.advance_high_watermark(log.log_end_offset)
        clean(store)
        left = contents(log)
        history.check(history.driver.loaded(left))
        store.clock.now_ms += DAY_MS
    assert len(left) < written / 2
