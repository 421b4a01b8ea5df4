"""A Spark cluster out of the pip package: a master and workers, each a process group of its own.

Rules:

* A worker's executors are in its group: killing it is to the others what the end of a machine is.
* Whatever is started here ends with this process, however that ended: each group waits for the end
  of a pipe from here.
* The workers' Python is not the one that runs the tests: it has what README says, and no kraftpy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark

from kraftpy.testing.process import is_alive, log_tail
from tests.processes import free_port
from tests.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
ON_WORKERS = ("pyarrow", "numpy", "crc32c", "cramjam")
"""What README says has to be installed on workers, beside Spark."""
_TIMEOUT_S = 90.0
_ENDS_WITH_STDIN = '"$@" </dev/null & cat >/dev/null; kill -KILL 0'


def environment() -> dict[str, str]:
    """For all of Spark's processes: everything is on this machine."""
    return {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


def make_python(folder: Path, *more: str) -> Path:
    """A Python with `ON_WORKERS`, `more` and what they require, and nothing else."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    for found in _with_requirements(*ON_WORKERS, *more):
        for top in {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(str(found.locate_file(top)))
    return folder / "bin" / "python"


def _with_requirements(*names: str) -> list[Distribution]:
    left, found = [*names], {}
    while left:
        name = left.pop()
        if name not in found:
            found[name] = distribution(name)
            needed = [each for each in found[name].requires or () if ";" not in each]
            left += [re.split(r"[^\w.-]", each)[0] for each in needed]
    return list(found.values())


class Standalone:
    """`with Standalone(folder) as spark` starts it; `url` is what --master takes."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self._port, self._web_port = free_port(), free_port()
        self._groups: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Standalone:
        self._folder.mkdir(parents=True)
        try:
            master = ("--port", str(self._port), "--webui-port", str(self._web_port))
            self._start("master", "master.Master", *master)
            self._wait(lambda: self.state().get("status") == "ALIVE", "Spark's master lives")
            for number in range(self._count):
                name = f"worker{number}"
                work = ("--work-dir", str(self._folder / name), "--port", "0", "--webui-port", "0")
                self._start(
                    name, "worker.Worker", "--cores", "1", "--memory", "1g", *work, self.url
                )
            self._wait(lambda: self.alive() == self._count, "all of Spark's workers live")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def state(self) -> Any:
        """What the master tells of itself; nothing until it answers in JSON."""
        address = f"http://127.0.0.1:{self._web_port}/json/"
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(address, timeout=5) as answer,
        ):
            return json.load(answer)
        return {}

    def alive(self) -> int:
        """How many workers the master counts on."""
        return sum(each["state"] == "ALIVE" for each in self.state().get("workers", ()))

    def busy(self) -> int:
        """How many of them have an executor of a job."""
        return sum(each["coresused"] > 0 for each in self.state().get("workers", ()))

    def kill(self, number: int) -> None:
        """kill -9 for a worker with its executors."""
        self._kill(f"worker{number}")

    def close(self) -> None:
        """Ends all of it."""
        for name in reversed(list(self._groups)):
            self._kill(name)

    def _start(self, name: str, role: str, *arguments: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        command += ["--host", "127.0.0.1", *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._groups[name] = subprocess.Popen(
                ["bash", "-c", _ENDS_WITH_STDIN, "bash", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**environment(), "SPARK_DAEMON_MEMORY": "256m"},
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        group = self._groups.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group.pid, signal.SIGKILL)
        with group:
            group.wait(_TIMEOUT_S)
        assert not is_alive(group.pid)

    def _wait(self, condition: Any, what: str) -> None:
        logs = sorted(self._folder.glob("*.log"))
        tail = log_tail(logs)
        wait_until(condition, f"{what}\n{tail}", timeout_s=_TIMEOUT_S)
