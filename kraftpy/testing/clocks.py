"""Wall clocks of a cluster's nodes that can be set, each by itself: libfaketime.

`python -m kraftpy.testing.clocks MODULE ARGUMENT...` runs a Python module, `kraftpy` say, with the
library loaded.

Rules:

* Only the wall clock is set. What measures how long something takes goes on as ever, as it does
  when somebody sets the clock of a machine; times of files are the kernel's and stay true.
* What a clock is to say lies in a file per node, which the library reads again each second. The
  nodes are forked, and each finds its file's name in its environment.
"""

from __future__ import annotations

import os
import runpy
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import SupportsIndex

INSTALL = "apt-get install faketime"
NOTICED_S = 1
"""The time that it takes at most until a clock shows what it was set to."""

_MODULE = "kraftpy.testing.clocks"
_LIBRARIES = (
    "usr/lib/*/faketime/libfaketime.so.1",  # Debian, Ubuntu
    "usr/lib*/faketime/libfaketime.so.1",  # Fedora, Arch
    "usr/local/lib*/faketime/libfaketime.so.1",
)
_FILE = "FAKETIME_TIMESTAMP_FILE"
# A thread has to get at the interpreter while another one never rests.
_TRIAL = """
import threading, time
heard = []
threading.Thread(target=heard.append, args=[1]).start()
while not heard:
    pass
print(time.time(), time.monotonic())
"""
_TRIAL_S = 1_000_000
_TRIAL_TIMEOUT_S = 10.0


class Clocks:
    """The clocks of one cluster, for a `Cluster`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kraftpy-clocks-")

    @property
    def environment(self) -> dict[str, str]:
        """What the process that forks the nodes has to be started with."""
        return _environment(library(), self._write("own", 0.0))

    @property
    def options(self) -> list[str]:
        """What `kraftpy dev` is told besides."""
        return ["--env", f"{_FILE}={self._folder.name}/{{id}}"]

    def set(self, node_id: int, offset_s: float) -> None:
        """Sets a node's clock that far from this machine's."""
        self._write(str(node_id), offset_s)

    def close(self) -> None:
        """Removes the files; the nodes are gone."""
        self._folder.cleanup()

    def _write(self, name: str, offset_s: float) -> Path:
        path = Path(self._folder.name, name)
        unfinished = path.with_name(f".{name}")
        unfinished.write_text(f"{offset_s:+.3f}\n")
        unfinished.replace(path)
        return path


def library() -> str:
    """Where libfaketime lies; empty if it isn't installed."""
    found = sorted(path for pattern in _LIBRARIES for path in Path("/").glob(pattern))
    return str(found[0]) if found else ""


def missing() -> str:
    """Why clocks can't be set here, and what to do; empty if they can. It takes a moment."""
    if not library():
        return f"libfaketime isn't installed: {INSTALL}"
    clocks = Clocks()
    try:
        environment = _environment(library(), clocks._write("trial", _TRIAL_S))
        done = subprocess.run(  # noqa: S603 - the command is ours
            [sys.executable, "-c", _TRIAL],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=True,
        )
        wall_s, monotonic_s = map(float, done.stdout.split())
        if abs(wall_s - time.time() - _TRIAL_S) > _TRIAL_TIMEOUT_S:
            return "a clock that was set with libfaketime doesn't show it"
        if abs(monotonic_s - time.monotonic()) > _TRIAL_TIMEOUT_S:
            return "libfaketime sets the monotonic clock, too"
    except (subprocess.SubprocessError, ValueError) as error:
        return f"a process with libfaketime doesn't run: {error}"
    finally:
        clocks.close()
    return ""


def with_clocks(command: Sequence[str]) -> Sequence[str]:
    """A command that runs a Python module (`python -m ...`), made fit for the library."""
    place = list(command).index("-m") + 1
    return [*command[:place], _MODULE, *command[place:]]


def _environment(path: str, file: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": path,
        _FILE: str(file),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # what it was called before 0.9.9
        # Else a thread that waits for the interpreter's lock, by the monotonic clock, takes a core
        # until it has it.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "FAKETIME_DONT_RESET": "1",
        "FAKETIME_CACHE_DURATION": "0",  # it reads again after more whole seconds than that
        "NO_FAKE_STAT": "1",
    }


def _sleep(seconds: SupportsIndex | float) -> None:
    """Python sleeps until a time of the monotonic clock, which fails up to libfaketime 0.9.10."""
    select.select([], [], [], float(seconds))


def main() -> None:
    time.sleep = _sleep
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
