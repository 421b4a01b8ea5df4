"""kraftpy in two builds that benchmarks alone start: `python -m tests.bench.builds BUILD server`.

* `uncounted`: nothing is counted or timed for metrics, as if there were none;
* `sliced`: each process that answers the exporter notes, in the folder that SLICES names, the
  longest slice of work that it did for that, by the clock and in CPU time (`longest_slice_s` reads
  it): a busy machine stretches the former.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from kraftpy.metrics import loop_lag
from kraftpy.metrics.channel import Responder
from kraftpy.metrics.instruments import Histogram, TopicNumbers, Traffic
from kraftpy.server import partition
from kraftpy.server.dispatch import _Route

SLICES = "KRAFTPY_BENCH_SLICES"


def _nothing(*_: Any) -> None:
    pass


def uncounted() -> None:
    """Takes out what the hot path does for metrics."""
    _Route.answered = _nothing  # type: ignore[method-assign]
    TopicNumbers.appended = _nothing  # type: ignore[method-assign]
    Traffic.read = _nothing  # type: ignore[method-assign]
    Histogram.observe = _nothing  # type: ignore[method-assign]
    loop_lag.LoopLag._schedule = _nothing  # type: ignore[method-assign]
    partition.TIMED_EVERY = sys.maxsize  # type: ignore[attr-defined]


def sliced() -> None:
    """Notes the longest slice."""
    folder = Path(os.environ[SLICES])
    work = Responder._work
    longest_s = longest_cpu_s = 0.0

    def timed(self: Responder) -> None:
        nonlocal longest_s, longest_cpu_s
        started_at, cpu_s = time.perf_counter(), time.thread_time()
        work(self)
        took_s, cpu_s = time.perf_counter() - started_at, time.thread_time() - cpu_s
        if took_s > longest_s or cpu_s > longest_cpu_s:
            longest_s, longest_cpu_s = max(took_s, longest_s), max(cpu_s, longest_cpu_s)
            (folder / f"{os.getpid()}").write_text(f"{longest_s} {longest_cpu_s}")

    Responder._work = timed  # type: ignore[method-assign]


def longest_slice_s(folder: Path) -> tuple[float, float]:
    """Of all processes since their start: by the clock, and in CPU time."""
    noted = [tuple(map(float, path.read_text().split())) for path in folder.iterdir()]
    return max(seconds for seconds, _ in noted), max(cpu_s for _, cpu_s in noted)


BUILDS = {build.__name__: build for build in (uncounted, sliced)}

if __name__ == "__main__":
    from kraftpy.cli import main

    BUILDS[sys.argv.pop(1)]()
    main()
