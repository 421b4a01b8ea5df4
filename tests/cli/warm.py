"""Commands without the start of Python: each is forked from a process that has imported them all.

What runs is a process of its own that does what `python -m kraftpy` does, with its own arguments,
environment, folder, pipes and exit code; only the interpreter's start and the imports, 0.15 s of
CPU, were paid before. `test_start.py` holds that a command started in either way does the same.
What is at work longer and gets signals is started by `commands.running`, from scratch.

Rules: the process that forks has one thread and runs nothing of kraftpy but imports; it ends when
the process that asks does, and is waited for.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kraftpy.cli import app

_ROOT = Path(__file__).parents[2]
_MAX_REQUEST_SIZE_BYTES = 1 << 20
_STATUS = struct.Struct("=i")
# What commands import once they run.
_LATER = (
    "kraftpy.core.config",
    "kraftpy.probe.prober",
    "kraftpy.probe.serving",
    "kraftpy.probe.summary",
    "kraftpy.quorum.raft",
    "kraftpy.server.node.processes",
    "kraftpy.testing.consistency.report",
)


# -- the side that asks


class _Forker:
    """The process that forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Pipes, as its children get: what Python looks up of them once is right for those too.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )

    def start(self, request: bytes, fds: Sequence[int]) -> None:
        """Has a child made whose stdin, stdout, stderr and socket for its status these are."""
        socket.send_fds(self._socket, [request], fds)

    def close(self) -> None:
        self._socket.close()
        self._process.communicate()


@cache
def _forker() -> _Forker:
    forker = _Forker()
    atexit.register(forker.close)
    return forker


def run(
    args: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` of `python -m kraftpy ARGS`, capturing what it prints."""
    request = json.dumps(
        {"args": args, "environment": dict(environment), "folder": str(Path.cwd())}
    )
    status, theirs = socket.socketpair()
    pipes = [os.pipe() for _ in range(3)]
    (child_stdin, to_stdin), (stdout, child_stdout), (stderr, child_stderr) = pipes
    passed = [child_stdin, child_stdout, child_stderr]
    _forker().start(request.encode(), [*passed, theirs.fileno()])
    theirs.close()
    for fd in passed:
        os.close(fd)
    with status:
        deadline = time.monotonic() + timeout_s
        (pid,) = _STATUS.unpack(status.recv(_STATUS.size))
        written = _communicate(to_stdin, stdin, stdout, stderr, deadline)
        status.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            if written is None:
                raise TimeoutError
            (code,) = _STATUS.unpack(status.recv(_STATUS.size))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)  # it is a zombie at most: the forker hasn't told its end
            raise subprocess.TimeoutExpired(["kraftpy", *args], timeout_s) from None
    return subprocess.CompletedProcess(["kraftpy", *args], code, *written)


def _communicate(
    to_stdin: int, data: bytes, stdout: int, stderr: int, deadline: float
) -> tuple[bytes, bytes] | None:
    """Writes and reads until the other ends are closed, and closes these; None when that lasts."""
    read = {stdout: bytearray(), stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        os.set_blocking(to_stdin, False)
        selector.register(to_stdin, selectors.EVENT_WRITE)
        for fd in read:
            selector.register(fd, selectors.EVENT_READ)
        try:
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(deadline - time.monotonic()):
                    if key.fd == to_stdin:
                        try:
                            data = data[os.write(to_stdin, data) :] if data else b""
                        except BrokenPipeError:
                            data = b""
                        more = bool(data)
                    else:
                        part = os.read(key.fd, 65536)
                        read[key.fd] += part
                        more = bool(part)
                    if not more:
                        selector.unregister(key.fd)
                        os.close(key.fd)
            if not selector.get_map():
                return bytes(read[stdout]), bytes(read[stderr])
            return None
        finally:
            for key in list(selector.get_map().values()):
                os.close(key.fd)


# -- the side that forks


class _Request(NamedTuple):
    """A command, and its stdin, stdout, stderr and the socket for its status."""

    args: list[str]
    environment: dict[str, str]
    folder: str
    fds: list[int]


def _serve(asker: socket.socket) -> _Request | None:
    """Forks a child for each request; returns in the child with it, and at the end with None."""
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([asker.fileno(), *children], [], [])[0]:
            if ready != asker.fileno():
                pid, status = children.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(ready)
                with status:
                    _tell(status, code)
                continue
            data, fds, _, _ = socket.recv_fds(asker, _MAX_REQUEST_SIZE_BYTES, 4)
            if not data:
                return None
            pid = os.fork()
            if pid == 0:
                asker.close()
                for pidfd, (_, status) in children.items():
                    os.close(pidfd)
                    status.close()
                return _Request(**json.loads(data), fds=fds)
            *passed, last = fds
            for fd in passed:
                os.close(fd)
            status = socket.socket(fileno=last)
            _tell(status, pid)
            children[os.pidfd_open(pid)] = (pid, status)


def _tell(status: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        status.sendall(_STATUS.pack(number))


def _become(request: _Request) -> None:
    """Goes on as `python -m kraftpy ARGS`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(request.fds[:3]):
        os.dup2(fd, number)
    for fd in request.fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    sys.argv[1:] = request.args
    try:
        runpy.run_module("kraftpy", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        # As Python ends, but for taking each of its modules to pieces: that costs as much again.
        threading._shutdown()
        atexit._run_exitfuncs()
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    for module in (*app.COMMANDS.values(), *_LATER):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is imported stays: no child looks through it
    with socket.socket(fileno=int(sys.argv[1])) as asker:
        request = _serve(asker)
    if request is not None:
        _become(request)


if __name__ == "__main__":
    _main()
