"""A child process that speaks in lines: what it says is read with a deadline, its errors are kept.

Rules: it gets a pipe as its stdin, so a child that ends with its stdin ends with this process,
however that ended. Ctrl-C is for the tests: the child is in a session of its own, unless it is to
stay in that of this process.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_STOP_TIMEOUT_S = 70.0
"""Longer than `kraftpy dev` gives its nodes, which it stops in two passes."""
_WAIT_TIMEOUT_S = 30.0
_POLL_S = 0.005

popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
"""What starts a process. The tests of kraftpy itself put in its place what forks one, which is as
good and quicker."""


class BrokerError(Exception):
    """What was asked of a broker or a cluster did not happen; the text says why."""


class LineProcess:
    """A started command; `errors` is the open file that its stderr goes to; None: ours.

    It finds `environment` besides what this process has in its own. Without `new_session` it stays
    in the process group of this one, and shares its fate: killed, frozen, interrupted.
    """

    def __init__(
        self,
        command: Sequence[str],
        errors: IO[bytes] | None,
        environment: Mapping[str, str] | None = None,
        *,
        new_session: bool = True,
    ) -> None:
        self._unread = b""
        self._popen = popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment} if environment else None,
            start_new_session=new_session,
        )
        self.pid = self._popen.pid

    def write_line(self, line: str) -> None:
        """Sends it a line; `BrokerError` if it has ended."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise BrokerError(f"process {self.pid} has ended") from None

    def read_line(self, timeout_s: float) -> bytes:
        """The next line that it prints; `BrokerError` when it ends or stays silent."""
        assert self._popen.stdout is not None
        fd = self._popen.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BrokerError(f"it was not ready within {timeout_s} s")
            part = os.read(fd, 65536)
            if not part:
                raise BrokerError(f"it did not start (exit code {self._popen.wait()})")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def kill(self) -> None:
        """Sends SIGKILL, and waits."""
        self._popen.kill()
        self._popen.wait()

    def end(self) -> None:
        """Sends SIGTERM, and SIGKILL if that takes too long."""
        with self._popen as process:  # closes the pipes, and so ends it even if it ignores signals
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def is_alive(pid: int) -> bool:
    """Whether there is a process with this id that hasn't ended, with all of its threads."""
    state, threads = _state(pid)
    # The first thread is a zombie for as long as another one is held up, by an fsync for instance.
    return state not in "ZX" or threads > 1


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect, or the process has ended."""
    return _state(pid)[0] in "TZX"


def _state(pid: int) -> tuple[str, int]:
    """The state of the first thread, and how many there are."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X", 0
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[17])


def log_tail(paths: Sequence[Path], lines: int = 20) -> str:
    """The last lines of these files, of those that exist."""
    found: list[str] = []
    for path in paths:
        if path.exists():
            found += path.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(found)


def is_unlocked(lock: Path) -> bool:
    """Whether no process holds this lock file."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def setting_text(value: object) -> str:
    """A setting's value as server.properties has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def wait_until(
    condition: Callable[[], object], what: str, timeout_s: float = _WAIT_TIMEOUT_S
) -> float:
    """Waits until the condition holds; how long that took, in seconds.

    `what` says what is awaited; `BrokerError` with it, if that doesn't come in time.
    """
    started_s = time.monotonic()
    while not condition():
        if time.monotonic() - started_s > timeout_s:
            raise BrokerError(f"not within {timeout_s:g} s: {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - started_s
