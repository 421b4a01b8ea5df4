"""The ceilings that stand beside a race's commits are those of nodes that do less for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import builds, groups, measure
from tests.bench.ceiling import Answering, Committing
from tests.processes import Kraftpy, running


@pytest.mark.parametrize("build", [Answering, Committing])
def test_what_bounds_commits_says_that_all_was_committed(
    build: type[Kraftpy], tmp_path: Path
) -> None:
    node = build(tmp_path, **groups.SETTINGS)
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
        assert (sum(sizes) > 0) == (build is Answering)
        assert rate(0.1) > 0
        assert sizes == [path.stat().st_size for path in logs]
