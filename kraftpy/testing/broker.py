"""A broker in a child process, on a free port, in a folder of its own.

Rules:

* The child is `kraftpy dev`, so a test meets exactly what a user starts. It stops when this
  process is gone, however that ended: its stdin is a pipe from here.
* `start` returns when the broker answers; if it does not, `BrokerError` carries the end of its log.
* Port and folder stay the same from `kill` or `stop` to `restart`, so clients find it again.
* With `faults=True` clients reach it through `kraftpy.testing.requests`, and are told so by it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from kraftpy.testing.process import (
    BrokerError,
    LineProcess,
    is_alive,
    is_unlocked,
    log_tail,
    setting_text,
    wait_until,
)
from kraftpy.testing.requests import Requests, WithFaults
from kraftpy.testing.secured import Secured


class Broker(WithFaults):
    """One kraftpy node; `with Broker() as broker` starts and stops it.

    Settings are Kafka's, `_` standing for `.`: `Broker(log_retention_ms=1000)`.

    * `bootstrap`, `host`, `port`: its address; `pid`: the process to kill or to look at
    * `dir`: its folder; `log_dir`: the partitions, below it; `config`: its server.properties;
      `log_path`: what it logged

    With `secure=True` clients connect by TLS and log in, as with `kraftpy dev --secure`; `secured`
    has what they need: `Producer({"bootstrap.servers": ..., **broker.secured.settings()})`.

    With `faults=True` requests of clients can be made to fail, and be observed: `fault`, `observe`.
    """

    def __init__(
        self,
        *,
        dir: str | Path | None = None,  # noqa: A002 - what the command line calls it
        port: int = 0,
        secure: bool = False,
        faults: bool = False,
        start_timeout_s: float = 30.0,
        **settings: object,
    ) -> None:
        self._settings = {
            key.replace("_", "."): setting_text(value) for key, value in settings.items()
        }
        self._secure = secure
        self._faults = faults
        if faults and not self._settings.keys().isdisjoint(("listeners", "advertised.listeners")):
            raise ValueError("with faults=True clients are told where to go: leave listeners out")
        self.secured: Secured | None = None
        self._temporary = dir is None
        self._start_timeout_s = start_timeout_s
        self._process: LineProcess | None = None
        self.dir = Path(tempfile.mkdtemp(prefix="kraftpy-") if dir is None else dir).absolute()
        self.host = "127.0.0.1"
        self.port = port
        self._own_port = 0 if faults else port
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
        return self._process is not None and is_alive(self.pid)

    def start(self) -> Broker:
        """Starts it and waits until it answers; `BrokerError` if it does not within the timeout."""
        if self._process is not None:
            raise BrokerError(f"{self!r} is started already; restart() starts it again")
        command = [sys.executable, "-m", "kraftpy", "dev", "-o", "json", "--exit-on-eof"]
        command += ["--dir", str(self.dir), "--port", str(self._own_port)]
        command += ["--secure"] * self._secure
        self.dir.mkdir(parents=True, exist_ok=True)
        settings = self._settings | self._advertised()
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        with self._errors.open("wb") as errors:
            self._process = LineProcess(command, errors)
        try:
            ready = json.loads(self._process.read_line(self._start_timeout_s))
        except BrokerError as error:
            self._end()
            tail = log_tail([self._errors, self.dir / "node1" / "log"])
            raise BrokerError(f"the broker is not there: {error}\n{tail}") from None
        except BaseException:
            self._end()
            raise
        if self._secure:
            self.secured = Secured(ready["secure"])
        (broker,) = ready["brokers"]
        self.host, _, port = broker["address"].rpartition(":")
        self._own_port = int(port)
        if self._requests is None:
            self.port = self._own_port
        else:
            self._requests.target(self.port, self._own_port)
            if self.secured is not None:
                self._requests.identify(self.secured.ca)
        self.pid = broker["pid"]
        self.log_dir = Path(broker["dir"])
        self.config = Path(broker["config"])
        return self

    def kill(self) -> None:
        """kill -9, and wait until all of the node is gone; `restart` brings it back.

        `BrokerError` if it isn't running: its pid may be another process's by now.
        """
        if not self.running:
            raise BrokerError(f"{self!r}; start() or restart() starts it")
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(self.pid), f"broker {self.pid} is gone after kill -9")
        wait_until(
            lambda: is_unlocked(self.log_dir / ".lock"),
            f"{self.log_dir} is free after kill -9 of {self.pid}",
        )

    def stop(self) -> None:
        """Stops it in order (SIGTERM); data, port and configuration stay for `restart`."""
        self._end()

    def restart(self) -> None:
        """Stops it, if it has not been killed, and starts it again at the same address."""
        self._end()
        self.start()

    def close(self) -> None:
        """Stops it for good; a folder that was made for it is removed."""
        self._end()
        if self._requests is not None:
            self._requests.end()
            self._requests = None
            self._forget_place()
        if self._temporary:
            shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def _errors(self) -> Path:
        return self.dir / "stderr"

    def _advertised(self) -> dict[str, str]:
        """What has clients go where their requests can fail, if that was asked for."""
        if not self._faults:
            return {}
        if self._requests is None:
            with (self.dir / "requests").open("wb") as errors:
                self._requests = Requests(errors, secure=self._secure)
            self.port = self._requests.listen(self.port)
        protocol = "SASL_SSL" if self._secure else "PLAINTEXT"
        return {"advertised.listeners": f"{protocol}://{self.host}:{self.port}"}

    def _forget_place(self) -> None:
        """A broker that is started in this folder later is found where it listens."""
        if self.config.is_file():
            lines = self.config.read_text().splitlines(keepends=True)
            kept = [each for each in lines if not each.startswith("advertised.listeners=")]
            self.config.write_text("".join(kept))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()
