"""The ceiling that stands beside a race's commits is that of a node which does nothing for them."""

from __future__ import annotations

from pathlib import Path

from tests.bench import builds, groups, measure
from tests.bench.ceiling import Answering
from tests.processes import running


def test_a_loop_that_repeats_answers_says_that_all_was_committed(tmp_path: Path) -> None:
    node = Answering(tmp_path, **groups.SETTINGS)
    with (
        running(node) as broker,
        groups.offset_work(
            broker.bootstrap,
            lambda count: measure.partitions_on(broker, count),
            lambda: None,
            "commits",
            2,
            1,
        ) as rate,
    ):
        done = 0.0
        while done < 2 * builds.REAL_COMMITS:
            done += 0.1 * rate(0.1)
        logs = sorted(node.log_dir.rglob("__consumer_offsets-*/*.log"))
        sizes = [path.stat().st_size for path in logs]
        assert sum(sizes) > 0
        assert rate(0.1) > 0
        assert sizes == [path.stat().st_size for path in logs]
