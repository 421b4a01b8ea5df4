"""`kraftpy probe` beside the cluster, whose numbers have a board too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import free_port

PROBE_JOB = "kraftpy-probe"
SLA_S = 1
_TIMEOUT_S = 20


@contextmanager
def probe(bootstrap: str, folder: Path) -> Iterator[str]:
    """Runs one until the end of the block; its value is where the metrics are."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "kraftpy", "probe", "-b", bootstrap]
    command += ["--name", "dashboards", "--listen", address, "--sla", str(SLA_S)]
    with (folder / "probe.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(_TIMEOUT_S)
