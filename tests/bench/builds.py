"""kraftpy in two builds that benchmarks alone start: `python -m tests.bench.builds BUILD server`.

* `switched`: SIGUSR1 has it count and time nothing for metrics, as if there were none, and SIGUSR2
  as it is; which of the two holds is in the file that SWITCH names (`switch` waits for it);
* `sliced`: each process that answers the exporter notes, in the folder that SLICES names, the
  longest slice of work that it did for that, by the clock and in CPU time (`longest_slice_s` reads
  it): a busy machine stretches the former.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kraftpy.metrics.channel import Responder
from kraftpy.metrics.instruments import Histogram, TopicNumbers, Traffic
from kraftpy.server import partition
from kraftpy.server.dispatch import _Route

SLICES = "KRAFTPY_BENCH_SLICES"
SWITCH = "KRAFTPY_BENCH_SWITCH"
SWITCH_TIMEOUT_S = 10.0
_HOT = (
    (_Route, "answered"),
    (TopicNumbers, "appended"),
    (Traffic, "read"),
    (Histogram, "observe"),
)


def _nothing(*_: Any) -> None:
    pass


def switched() -> None:
    """Takes out what the hot path does for metrics, and puts it back."""
    stock = [(owner, name, getattr(owner, name)) for owner, name in _HOT]
    timed_every = partition.TIMED_EVERY  # type: ignore[attr-defined]
    state = Path(os.environ[SWITCH])

    def become(number: int, _: Any) -> None:
        counting = number == signal.SIGUSR2
        for owner, name, function in stock:
            setattr(owner, name, function if counting else _nothing)
        partition.TIMED_EVERY = timed_every if counting else sys.maxsize  # type: ignore[attr-defined]
        state.write_text(str(number))

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, become)


def switch(pid: int, state: Path, *, counting: bool) -> None:
    """Has a broker that is `switched` count or not; on return it does."""
    number = signal.SIGUSR2 if counting else signal.SIGUSR1
    os.kill(pid, number)
    deadline = time.monotonic() + SWITCH_TIMEOUT_S
    while not state.exists() or state.read_text() != str(number.value):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} doesn't heed {number.name}")
        time.sleep(0.001)


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


BUILDS = {build.__name__: build for build in (switched, sliced)}

if __name__ == "__main__":
    from kraftpy.cli import main

    BUILDS[sys.argv.pop(1)]()
    main()
