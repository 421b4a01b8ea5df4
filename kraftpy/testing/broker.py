"""A broker in a child process, on a free port, in a folder of its own.

Rules:

* The child is `kraftpy dev`, so a test meets exactly what a user starts.  It stops when this
  process is gone, however that ended: its stdin is a pipe from here.
* `start` returns when the broker answers; if it does not, `BrokerError` carries the end of its log.
* Port and folder stay the same from `kill` or `stop` to `restart`, so clients find it again.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_STOP_TIMEOUT_S = 20.0
_LOG_TAIL_LINES = 20
_POLL_S = 0.005


class BrokerError(Exception):
    """The broker did not start or did not end; the text says why, with the end of its log."""


class Broker:
    """One kraftpy node; `with Broker() as broker` starts and stops it.

    Settings are Kafka's, `_` standing for `.`: `Broker(log_retention_ms=1000)`.

    * `bootstrap`, `host`, `port`: its address; `pid`: the process to kill or to look at
    * `dir`: its folder; `log_dir`: the partitions, below it; `config`: its server.properties;
      `log_path`: what it logged
    """

    def __init__(
        self,
        *,
        dir: str | Path | None = None,  # noqa: A002 - what the command line calls it
        port: int = 0,
        start_timeout_s: float = 30.0,
        **settings: object,
    ) -> None:
        self._settings = {key.replace("_", "."): _text(value) for key, value in settings.items()}
        self._temporary = dir is None
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self.dir = Path(tempfile.mkdtemp(prefix="kraftpy-") if dir is None else dir).absolute()
        self.host = "127.0.0.1"
        self.port = port
        self.pid = 0
        self.log_dir = self.dir
        self.config = self.dir

    def __enter__(self) -> Broker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "not running"
        return f"<kraftpy broker at {self.bootstrap}, {state}>"

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, for a client's bootstrap.servers."""
        return f"{self.host}:{self.port}"

    @property
    def log_path(self) -> Path:
        """The file that the broker logs to."""
        return self.config.with_name("log")

    @property
    def running(self) -> bool:
        """Whether the broker's process lives."""
        return self._process is not None and _is_alive(self.pid)

    def start(self) -> Broker:
        """Start it and wait until it answers; `BrokerError` if it does not within the timeout."""
        if self._process is not None:
            raise BrokerError(f"{self!r} is started already; restart() starts it again")
        command = [sys.executable, "-m", "kraftpy", "dev", "-o", "json", "--exit-on-eof"]
        command += ["--dir", str(self.dir), "--port", str(self.port)]
        for key, value in self._settings.items():
            command += ["-c", f"{key}={value}"]
        self.dir.mkdir(parents=True, exist_ok=True)
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the tests; they stop the broker
            )
        try:
            ready = json.loads(self._first_line())
        except BaseException:
            self._end()
            raise
        (broker,) = ready["brokers"]
        self.host, _, port = broker["address"].rpartition(":")
        self.port = int(port)
        self.pid = broker["pid"]
        self.log_dir = Path(broker["dir"])
        self.config = Path(broker["config"])
        return self

    def kill(self) -> None:
        """kill -9, and wait until all of the node is gone; `restart` brings it back."""
        os.kill(self.pid, signal.SIGKILL)
        _wait(lambda: not _is_alive(self.pid), f"broker {self.pid} survived kill -9")
        _wait(self._is_unlocked, f"{self.log_dir} is still in use after kill -9 of {self.pid}")

    def stop(self) -> None:
        """Stop it in order (SIGTERM); data, port and configuration stay for `restart`."""
        self._end()

    def restart(self) -> None:
        """Stop it, if it has not been killed, and start it again at the same address."""
        self._end()
        self.start()

    def close(self) -> None:
        """Stop it for good; a folder that was made for it is removed."""
        self._end()
        if self._temporary:
            shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def _errors(self) -> Path:
        return self.dir / "stderr"

    def _first_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + self._start_timeout_s
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BrokerError(
                    f"the broker was not ready within {self._start_timeout_s} s\n{self._log_tail()}"
                )
            part = os.read(fd, 65536)
            if not part:
                code = self._process.wait()
                raise BrokerError(
                    f"the broker did not start (exit code {code})\n{self._log_tail()}"
                )
            line += part
        return line

    def _log_tail(self) -> str:
        """What it printed to stderr, and the last lines of its log."""
        lines: list[str] = []
        for path in (self._errors, self.dir / "node1" / "log"):
            if path.exists():
                lines += path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(lines)

    def _is_unlocked(self) -> bool:
        try:
            with (self.log_dir / ".lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            return True
        return True

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:  # closes the pipes, and so ends it even if it ignores the signal
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise BrokerError(failure)
        time.sleep(_POLL_S)
