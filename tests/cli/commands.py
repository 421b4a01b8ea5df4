"""The command line as a user runs it: a process, its output and its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import warm

TIMEOUT_S = 30.0


def run_command(
    *args: str, stdin: bytes = b"", bootstrap: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Run `kraftpy ARGS` to its end; an exit code of 0 is for the test to check."""
    environment = {**os.environ, "KRAFTPY_BOOTSTRAP": bootstrap or "127.0.0.1:1"}
    done = warm.run(args, stdin, environment, TIMEOUT_S)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def output(*args: str, stdin: bytes = b"", bootstrap: str = "") -> str:
    """What `kraftpy ARGS` prints to stdout; it must succeed."""
    done = run_command(*args, stdin=stdin, bootstrap=bootstrap)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def failure(*args: str, code: int, stdin: bytes = b"", bootstrap: str = "") -> str:
    """What `kraftpy ARGS` prints to stderr; it must fail with this exit code."""
    done = run_command(*args, stdin=stdin, bootstrap=bootstrap)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr.decode())
    return done.stderr.decode()


class Running:
    """A `kraftpy` command in the background; what it prints is kept line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._pending = {process.stdout: b"", process.stderr: b""}

    def stdout_line(self) -> str:
        return self._line(self.process.stdout)

    def stderr_line(self) -> str:
        return self._line(self.process.stderr)

    def ready(self) -> dict[str, Any]:
        """The line of `dev -o json`."""
        answer: dict[str, Any] = json.loads(self.stdout_line())
        return answer

    def _line(self, stream: Any) -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\n" not in self._pending[stream]:
            left = deadline - time.monotonic()
            assert select.select([stream], [], [], max(0.0, left))[0], "no line in time"
            part = os.read(stream.fileno(), 65536)
            assert part, f"ended with {self.process.wait(TIMEOUT_S)}: {self.rest_of_stderr()}"
            self._pending[stream] += part
        line, _, self._pending[stream] = self._pending[stream].partition(b"\n")
        return line.decode()

    def has_output(self, timeout_s: float) -> bool:
        """Whether something stands on stdout, or comes within the timeout."""
        stream = self.process.stdout
        return bool(self._pending[stream] or select.select([stream], [], [], timeout_s)[0])

    def rest_of_stderr(self) -> str:
        assert self.process.stderr is not None
        rest = self._pending[self.process.stderr] + self.process.stderr.read()
        return rest.decode()

    def type(self, data: bytes) -> None:
        """Gives it this on stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


@contextmanager
def running(*args: str, bootstrap: str = "") -> Iterator[Running]:
    """`kraftpy ARGS` in the background, in a process group of its own; killed at the end."""
    process: subprocess.Popen[bytes] = warm.popen(
        [sys.executable, "-m", "kraftpy", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "KRAFTPY_BOOTSTRAP": bootstrap or "127.0.0.1:1"},
        start_new_session=True,
    )
    try:
        yield Running(process)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(TIMEOUT_S)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
