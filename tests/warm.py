"""Processes without the start of Python: each is forked from one that has imported what they run.

What runs is a process of its own that does what `python -m kraftpy` does, or another of `PROGRAMS`:
with its own arguments, environment, folder, pipes, session and exit code. Only the interpreter's
start and the imports, 0.15 to 0.6 s of CPU, were paid before. `test_warm.py` and
`cli/test_start.py` hold that a process started in either way does the same.

`run` is for commands that end by themselves. `popen` stands in for `subprocess.Popen` where
`kraftpy.testing` starts nodes and what is beside them, and for commands that run until they are
told to end; tests that measure memory or the start ask for `started_from_scratch`.

Rules: the process that forks has one thread and runs nothing of kraftpy but imports; it ends when
the process that asks does, and is waited for. Who sets what Python reads at its start gets a start.
A forked process has nothing of what the one that asks has changed of itself: limits, namespaces.
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
from typing import IO, Any, NamedTuple

from kraftpy.cli import app

_ROOT = Path(__file__).parents[1]
_MAX_REQUEST_SIZE_BYTES = 1 << 20
_STATUS = struct.Struct("=i")
_READ_ONCE = ("LANG", "LC_", "LD_", "PYTHON", "TZ")
_KRAFTPY = "kraftpy"
_COMMAND = str(Path(sys.executable).with_name(_KRAFTPY))
Stream = IO[bytes] | int | None
_OURS = (
    *app.COMMANDS.values(),
    # What commands import once they run.
    "kraftpy.core.config",
    "kraftpy.page.site",
    "kraftpy.probe.prober",
    "kraftpy.probe.serving",
    "kraftpy.probe.summary",
    "kraftpy.quorum.raft",
    "kraftpy.server.node.serving",
    "kraftpy.server.node.processes",
    "kraftpy.testing.consistency.report",
    "kraftpy.testing.networks",
    "kraftpy.testing.requests.program",
)
_CLIENTS = (
    "kraftpy.testing.consistency.clients.aio",
    "kraftpy.testing.consistency.clients.confluent",
    "kraftpy.testing.consistency.clients.kafka_python",
    "kraftpy.testing.consistency.clients.own",
    "kraftpy.testing.consistency.workloads",
)
_QUORUM = _ROOT / "tests" / "unit" / "quorum"
_EXAMPLES = _ROOT / "examples"
_SCRIPTS = [
    *(str(_QUORUM / name) for name in ("controller_main.py", "voter_main.py")),
    *(str(_EXAMPLES / name) for name in ("news_feed.py", "security_monitor.py")),
]
PROGRAMS = {
    **dict.fromkeys(_SCRIPTS, _OURS),
    _KRAFTPY: _OURS,
    "kraftpy.testing.networks.proxies": _OURS,
    "kraftpy.testing.requests.program": _OURS,
    "tests.bench.builds": _OURS,
    "kraftpy.testing.consistency.worker_process": _CLIENTS,
}
"""What can be forked, and what the process that forks it has imported."""


# -- the side that asks


class _Forker:
    """The process that forks."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.python_start = _python_start(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Pipes, as its children get: what Python looks up of them once is right for those too.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )

    def fork(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        fds: Sequence[int],
        start_new_session: bool,
    ) -> tuple[int, int, socket.socket]:
        """A child's id, its pidfd, and the socket that tells its exit code.

        `words` are a program and its arguments. Its stdin, stdout and stderr are these descriptors.
        """
        request = json.dumps([words, {**environment}, str(Path.cwd()), start_new_session])
        status, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [request.encode()], [*fds, theirs.fileno()])
        data, (pidfd,), _, _ = socket.recv_fds(status, _STATUS.size, 1)
        (pid,) = _STATUS.unpack(data)
        return pid, pidfd, status

    def close(self) -> None:
        self._socket.close()
        self._process.communicate()


@cache
def _forker(modules: tuple[str, ...]) -> _Forker:
    forker = _Forker(modules)
    atexit.register(forker.close)
    return forker


def _python_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python and its libraries read once, when they start."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_ONCE)}


def popen(
    command: Sequence[str | Path],
    *,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """As `subprocess.Popen`, but forked if it can be."""
    environment = os.environ if env is None else env
    python, *words = map(str, command)
    if words[:1] == ["-m"]:
        words = words[1:]
    if python == _COMMAND:
        python, words = sys.executable, [_KRAFTPY, *words]
    if python == sys.executable and words and words[0] in PROGRAMS:
        forker = _forker(PROGRAMS[words[0]])
        if forker.python_start == _python_start(environment):
            streams = stdin, stdout, stderr
            return Forked(  # type: ignore[return-value]
                forker, words, streams, environment, start_new_session
            )
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        start_new_session=start_new_session,
    )


class Forked:
    """A process that was forked, as `subprocess.Popen` has one that was started."""

    def __init__(
        self,
        forker: _Forker,
        words: Sequence[str],
        streams: tuple[Stream, Stream, Stream],
        environment: Mapping[str, str],
        start_new_session: bool,
    ) -> None:
        self.args = words
        self.returncode: int | None = None
        ends: list[IO[bytes] | None] = []
        passed: list[int] = []
        for number, stream in enumerate(streams):
            if stream == subprocess.PIPE:
                ours, theirs = os.pipe() if number else os.pipe()[::-1]
                ends.append(os.fdopen(ours, "rb" if number else "wb"))
                passed.append(theirs)
            elif stream == subprocess.DEVNULL:
                ends.append(None)
                passed.append(os.open(os.devnull, os.O_RDWR))
            else:
                assert not isinstance(stream, int)
                ends.append(None)
                passed.append(os.dup(number if stream is None else stream.fileno()))
        self.stdin, self.stdout, self.stderr = ends
        try:
            self.pid, self._pidfd, self._status = forker.fork(
                words, environment, passed, start_new_session
            )
        finally:
            for fd in passed:
                os.close(fd)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            (self.returncode,) = _STATUS.unpack(self._status.recv(_STATUS.size))
            self._status.close()
            os.close(self._pidfd)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    args: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` of `python -m kraftpy ARGS`, capturing what it prints."""
    words = [_KRAFTPY, *args]
    pipes = subprocess.PIPE, subprocess.PIPE, subprocess.PIPE
    process = Forked(_forker(_OURS), words, pipes, environment, start_new_session=False)
    deadline = time.monotonic() + timeout_s
    try:
        written = _communicate(process, stdin, deadline)
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        raise subprocess.TimeoutExpired(words, timeout_s) from None
    finally:
        with process:
            pass
    return subprocess.CompletedProcess(words, process.wait(), *written)


def _communicate(process: Forked, data: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Writes and reads until the other ends are closed; TimeoutExpired when that lasts."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    read = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        for stream in read:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, 0.0)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    try:
                        data = data[os.write(key.fd, data) :] if data else b""
                    except BrokenPipeError:
                        data = b""
                    more = bool(data)
                else:
                    part = os.read(key.fd, 65536)
                    read[key.fileobj] += part  # type: ignore[index]
                    more = bool(part)
                if not more:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    return bytes(read[process.stdout]), bytes(read[process.stderr])


# -- the side that forks


class _Request(NamedTuple):
    """A program with its arguments, its stdin, stdout, stderr and the socket for its status."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    starts_session: bool
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
                with status, contextlib.suppress(BrokenPipeError):  # nobody waits any more
                    status.sendall(_STATUS.pack(code))
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
                return _Request(*json.loads(data), fds)
            *passed, last = fds
            for fd in passed:
                os.close(fd)
            children[os.pidfd_open(pid)] = (pid, socket.socket(fileno=last))


def _become(request: _Request) -> None:
    """Goes on as `python -m PROGRAM ARGS`."""
    if request.starts_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    *passed, last = request.fds
    pidfd = os.pidfd_open(os.getpid())
    with socket.socket(fileno=last) as status, contextlib.suppress(BrokenPipeError):
        socket.send_fds(status, [_STATUS.pack(os.getpid())], [pidfd])
    os.close(pidfd)
    for number, fd in enumerate(passed):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    program, *sys.argv[1:] = request.words
    sys.path[0] = str(Path(program).parent) if program in _SCRIPTS else request.folder
    code: Any = 0
    try:
        if program in _SCRIPTS:
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    # As Python ends, but for taking each of its modules to pieces: that costs as much again.
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _main() -> None:
    fd, *modules = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is imported stays: no child looks through it
    with socket.socket(fileno=int(fd)) as asker:
        request = _serve(asker)
    if request is not None:
        _become(request)


if __name__ == "__main__":
    _main()
