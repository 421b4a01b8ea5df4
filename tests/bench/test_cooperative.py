"""What is told of sharing is of members that shared, and of logs that were read to their end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.bench import cooperative
from tests.bench.cooperative import CLAIM, LOAD, PLAIN, RANGE, RECORD
from tests.bench.figures import FIGURES
from tests.processes import Kraftpy, running

pytestmark = pytest.mark.usefixtures("started_from_scratch")  # memory and CPU time are measured


def test_every_figure_has_its_budget() -> None:
    names = [cooperative.against_one(members) for members in cooperative.MEMBERS]
    names += [
        cooperative.fetched(size, slices)
        for size in cooperative.SIZES
        for slices in cooperative.SLICES
    ]
    for name in [*names, CLAIM, RANGE, RECORD, LOAD]:
        assert FIGURES[name].floor is not None
    assert PLAIN in FIGURES


def test_a_node_says_what_sharing_costs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative, "COMMITS", 40)
    monkeypatch.setattr(cooperative, "LOG_BYTES", 1 << 20)
    monkeypatch.setattr(cooperative, "SLICES", (3,))
    with running(Kraftpy(tmp_path, group_initial_rebalance_delay_ms=0)) as node:
        plain_us, claim_us = asyncio.run(cooperative.commits(node))
        rates = asyncio.run(cooperative.range_fetches(node, 1024))
    assert min(plain_us, claim_us) > 0
    assert rates[3] > 0


@pytest.mark.parametrize("what", ["range", "record", "load"])
def test_memory_and_loading(what: str) -> None:
    assert cooperative.in_a_child(what, 20_000) > 0
