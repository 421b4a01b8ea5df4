"""What a start takes, and an idle node in memory: `make bench ARGS=starts` (20 s).

Rules: each start is one process as a user's, with the bytecode there, and the best of `STARTS`
counts: what else a machine does only ever adds. Memory is of what `kraftpy server` starts, which is
the broker, the controller and the exporter of metrics: that nobody scrapes it makes the node idle.
A page that n processes share counts 1/n in each of them.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.figures import layout
from tests.bench.measure import IDLE_S, Say
from tests.processes import Kraftpy, memory_bytes

STARTS = 10


def _help_s() -> float:
    began_s = time.monotonic()
    subprocess.run(Kraftpy.command("--help"), capture_output=True, check=True)
    return time.monotonic() - began_s


def _dev_s() -> float:
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        broker = Kraftpy(Path(folder))
        try:
            return broker.start()
        finally:
            broker.stop()


def _idle_mib() -> dict[str, float]:
    """Of each process of a node by its name, and of all."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        broker = Kraftpy(Path(folder), kraftpy_metrics_listener="127.0.0.1:0")
        try:
            broker.start()
            broker.stop()
            broker.start()  # the second time it is `kraftpy server`
            time.sleep(IDLE_S)
            found = {
                Path(f"/proc/{pid}/comm").read_text().strip(): memory_bytes([pid]) / 2**20
                for pid in broker.pids()
            }
        finally:
            broker.stop()
    return {**found, "all": sum(found.values())}


def run(say: Say) -> str:
    """The table of all of it."""
    rows = []
    for name, measure, wanted_s in (
        ("kraftpy --help", _help_s, 0.25),
        ("kraftpy dev, answering Metadata", _dev_s, 0.3),
    ):
        say(name)
        measure()  # so that the bytecode is there
        best_s = min(measure() for _ in range(STARTS))
        rows.append([f"{name}, best of {STARTS}", f"{best_s:.2f}", "s", f"{wanted_s}"])
    say("memory of an idle node")
    for name, mib in _idle_mib().items():
        wanted = "45" if name == "all" else ""
        rows.append([f"idle node, PSS: {name}", f"{mib:.1f}", "MiB", wanted])
    return layout(["", "measured", "unit", "wanted"], rows)
