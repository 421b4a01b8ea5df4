"""`make bench ARGS=amplification`: what a request of up to 1 MiB can do to a broker.

Each array of each advertised API, repeated to 1 MiB with one name and with others each time, and
null where that asks for everything (`tests.server.amplified`), on a broker that has a topic of
1,000 partitions and groups with as many offsets and with a large member. Beside it somebody asks
for metadata every 10 ms. Of each API are told: the longest slice on the broker's event loop, in CPU
time (by the clock a busy machine stretches it), how far memory rose above idle at its highest, the
p99 of the probe's questions beside the worst request, and the largest answer. What passes a limit
ends the bench with 1.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kraftpy.protocol.api import ADVERTISED, ApiKey, advertised
from kraftpy.protocol.messages import MetadataRequest
from kraftpy.server.handlers.table import HANDLERS
from tests.bench import builds, figures
from tests.bench.measure import KIB, Say
from tests.bench.probe import percentile
from tests.processes import Kraftpy, split_address
from tests.server.amplified import Case, Populated, cases, populate
from tests.server.wire import Closed, Wire

SIZE_BYTES = 1024 * KIB
SLICE_MAX_S = 0.050
MEMORY_MAX_MIB = 300
PROBE_MAX_S = 0.100
PROBE_EACH_S = 0.010
TIMEOUT_S = 120.0


class Lagging(Kraftpy):
    """A node that says how long its loop was away."""

    @classmethod
    def command(cls, *args: str) -> list[str]:
        return builds.command(builds.lagging, *args)


class Row(NamedTuple):
    """What one API's requests did."""

    slice_s: float
    clock_s: float
    memory_mib: float
    probe_s: float
    answer_bytes: int
    worst: str

    def holds(self) -> bool:
        return (
            self.slice_s <= SLICE_MAX_S
            and self.memory_mib <= MEMORY_MAX_MIB
            and self.probe_s <= PROBE_MAX_S
        )


class Probe:
    """Asks for the metadata of no topic, again and again, until it's left."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times_s: list[float] = []

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        with Wire(*self._address, timeout_s=TIMEOUT_S) as wire:
            while not self.times_s or not self._ending.wait(PROBE_EACH_S):
                began_at = time.perf_counter()
                wire.call(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
                took_s = time.perf_counter() - began_at
                # Somebody who asks each PROBE_EACH_S whatever happens would have waited, too.
                while took_s > 0:
                    self.times_s.append(took_s)
                    took_s -= PROBE_EACH_S


def run(say: Say, only: Sequence[str] = ()) -> tuple[str, bool]:
    """The table, and whether all limits hold; `only`: parts of the names of some APIs."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        lags = Path(folder) / "lags"
        os.environ[builds.LAGS] = str(lags)
        node = Lagging(Path(folder))
        try:
            node.start()
            host, port = split_address(node.bootstrap)
            with populate(host, port) as populated:
                rows = {
                    key.name: _measure(node, lags, key, populated, say)
                    for key in advertised(HANDLERS)
                    if not only or any(part.upper() in key.name for part in only)
                }
        finally:
            node.stop()
    header = [
        "API",
        "longest slice",
        "by the clock",
        "memory above idle",
        "probe p99",
        "answer",
        "",
    ]
    lines = [["", "ms of CPU", "ms", "MiB", "ms", "KiB", ""]]
    lines += [
        [
            name,
            figures.number(row.slice_s * 1000),
            figures.number(row.clock_s * 1000),
            figures.number(row.memory_mib),
            figures.number(row.probe_s * 1000),
            figures.number(row.answer_bytes / KIB),
            "" if row.holds() else f"OVER: {row.worst}",
        ]
        for name, row in rows.items()
    ]
    return figures.layout(header, lines), all(row.holds() for row in rows.values())


def _measure(node: Kraftpy, lags: Path, key: ApiKey, populated: Populated, say: Say) -> Row:
    host, port = split_address(node.bootstrap)
    low, high = ADVERTISED[key]
    rows = []
    for version in dict.fromkeys((low, high)):
        for case in cases(key, version, SIZE_BYTES, populated):
            rows.append(_row(node.pid, lags, host, port, case))
            if not rows[-1].holds():
                say(f"{key.name} {rows[-1]}")
    say(key.name)
    worst = max(rows, key=lambda row: (not row.holds(), row.slice_s))
    return Row(
        max(row.slice_s for row in rows),
        max(row.clock_s for row in rows),
        max(row.memory_mib for row in rows),
        max(row.probe_s for row in rows),
        max(row.answer_bytes for row in rows),
        worst.worst,
    )


def _row(pid: int, lags: Path, host: str, port: int, case: Case) -> Row:
    idle_mib = memory_mib(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest so far is forgotten
    builds.forget_lags(pid, lags)
    size = 0
    with Probe(host, port) as probe, Wire(host, port, timeout_s=TIMEOUT_S) as wire:
        try:
            wire.send(case.key, case.version, case.request)
            size = len(wire.receive_frame())
        except Closed:
            pass
    clock_s, cpu_s = builds.lags_s(lags)
    more_mib = memory_mib(pid, "VmHWM") - idle_mib
    return Row(
        cpu_s,
        clock_s,
        more_mib,
        percentile(probe.times_s, 99),
        size,
        f"v{case.version} {case.what}",
    )


def memory_mib(pid: int, what: str) -> float:
    """What /proc says of a process's memory: `VmRSS`, or `VmHWM` for the highest so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {what}")
