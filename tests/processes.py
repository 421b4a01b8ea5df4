"""Broker processes as the outside sees them: a command, watched through /proc and a socket.

The demo, the benchmarks, the race and the kill -9 rounds start brokers through this module, so that
they measure and kill the same thing: what a user's command line starts. It knows nothing of
kraftpy's code. Linux only (/proc).

Rules: a process is ended by the id that was started here, with its descendants; nothing sleeps for
a fixed time and hopes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from kraftpy.testing import process
from kraftpy.testing.process import BrokerError, is_alive

# A Metadata v1 request for no topic: the smallest question that only a working broker answers.
_METADATA = struct.pack(">hhih5si", 3, 1, 1, 5, b"probe", 0)
METADATA_PROBE = struct.pack(">i", len(_METADATA)) + _METADATA


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def receive_exactly(sock: socket.socket, size_bytes: int) -> bytes:
    """Read exactly this many bytes; raises ConnectionError when the peer closes first."""
    data = bytearray()
    while len(data) < size_bytes:
        part = sock.recv(size_bytes - len(data))
        if not part:
            raise ConnectionError(f"closed after {len(data)} of {size_bytes} bytes")
        data += part
    return bytes(data)


def brokers_named(address: str, timeout_s: float = 2.0) -> int:
    """How many brokers the one at this address names; 0 if it doesn't answer Metadata."""
    try:
        with socket.create_connection(split_address(address), timeout=timeout_s) as sock:
            sock.sendall(METADATA_PROBE)
            (size,) = struct.unpack(">i", receive_exactly(sock, 4))
            body = receive_exactly(sock, size)
    except OSError:
        return 0
    return max(0, int(struct.unpack_from(">ii", body)[1]))


def answers_metadata(address: str, timeout_s: float = 2.0) -> bool:
    """Whether a broker at this address answers Metadata and names at least one broker (itself)."""
    return brokers_named(address, timeout_s) > 0


def descendants(pid: int) -> list[int]:
    """This process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    family = [pid]
    for member in family:
        family.extend(children.get(member, []))
    return family


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of these processes to the nanosecond; of one that is gone nothing.

    /proc says it in ticks of 10 ms, and no better where the kernel has no scheduler statistics.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            # The number of a process's CPU clock, as clock_getcpuclockid(3) makes it on Linux.
            total += time.clock_gettime(~pid << 3 | 2)
    return total


def cpu_seconds_with_ended(pids: Iterable[int]) -> float:
    """CPU time of these processes and of children of theirs that have ended; of it, ticks of 10 ms.

    Of a family whose members come and go nothing is lost, if their parents are among these.
    """
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_bytes(pids: list[int]) -> int:
    """Proportional set size: a page shared by n processes counts 1/n in each: sums are honest."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


class Broker(Protocol):
    """What the benchmarks and the race need from a broker, whoever made it."""

    name: str
    bootstrap: str
    log_dir: Path  # where the partitions are; known once it was started

    def start(self) -> float:
        """Start it; returns the seconds from spawning the process to an answer to Metadata."""

    def pids(self) -> list[int]:
        """All processes of the node."""

    def kill(self) -> None:
        """kill -9; the folder stays as it is, so that `start` can go on with it."""

    def stop(self) -> None:
        """End all processes of the node, by force if need be."""

    def log_tail(self) -> str:
        """The last lines that it logged."""


def tail(file: Path, lines: int = 20) -> str:
    """The end of a text file; empty when there is none."""
    if not file.exists():
        return ""
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])


class Process:
    """One started command with a log file; ended together with its descendants."""

    def __init__(self, command: list[str], log: Path, *, capture: bool = False) -> None:
        self.log = log
        self.spawned_at = time.monotonic()
        with log.open("ab") as output:
            self.popen = process.popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is ours to handle, once
            )

    def first_line(self, timeout_s: float = 30.0) -> str:
        """The first line that the command prints; BrokerError when it ends or stays silent."""
        assert self.popen.stdout is not None
        stdout, deadline, data = self.popen.stdout.fileno(), time.monotonic() + timeout_s, b""
        os.set_blocking(stdout, False)
        while b"\n" not in data:
            if time.monotonic() > deadline:
                raise BrokerError(f"printed no line within {timeout_s:.0f} s\n{self.log_tail()}")
            part = _read_some(stdout)
            if part == b"":
                raise BrokerError(f"ended with {self.popen.wait()}\n{self.log_tail()}")
            data += part or b""
        return data.split(b"\n", 1)[0].decode()

    def wait_answering(self, address: str, timeout_s: float = 60.0) -> float:
        """Poll until `address` answers Metadata; returns seconds since the command was spawned."""
        while not answers_metadata(address):
            if self.popen.poll() is not None:
                raise BrokerError(f"ended with {self.popen.returncode}\n{self.log_tail()}")
            if time.monotonic() - self.spawned_at > timeout_s:
                raise BrokerError(f"no answer on {address} in {timeout_s:.0f} s\n{self.log_tail()}")
            time.sleep(0.002)  # the resolution of the start-time figure
        return time.monotonic() - self.spawned_at

    def log_tail(self) -> str:
        return tail(self.log)

    def stop(self, timeout_s: float = 20.0) -> None:
        """SIGTERM, then SIGKILL for whatever of the family is left."""
        family = descendants(self.popen.pid)
        if self.popen.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout_s)
        kill(family)
        self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


def _read_some(descriptor: int) -> bytes | None:
    """What a non-blocking descriptor has now; None for nothing yet, b"" for the end."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        time.sleep(0.002)
        return None


def kill(pids: list[int], timeout_s: float = 10.0) -> None:
    """kill -9 each of these processes and wait until all of them are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while any(map(is_alive, pids)):
        if time.monotonic() > deadline:
            raise BrokerError(f"processes {pids} survived kill -9")
        time.sleep(0.001)


def setting_options(settings: Mapping[str, object]) -> list[str]:
    """Options of `kraftpy dev`; `_` stands for `.`."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return [word for key, value in named.items() for word in ("-c", f"{key}={value}")]


class Kraftpy:
    """A kraftpy node, started as a user would. Lives below `folder`, which the caller removes.

    `settings` are the broker's, `_` standing for `.`, beside those of `kraftpy dev`.
    """

    name = "kraftpy"

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self._settings = setting_options(settings)
        self.bootstrap = ""
        self.log_dir = folder
        self.config: Path | None = None
        self.pid = 0
        self._process: Process | None = None

    @staticmethod
    def command(*args: str) -> list[str]:
        return [str(Path(sys.executable).with_name("kraftpy")), *args]

    def start(self) -> float:
        """The first time `kraftpy dev` on a free port, later `server` on what `dev` wrote."""
        if self.config is None:
            return self._dev()
        command = self.command("server", "--config", str(self.config))
        self._process = Process(command, self.folder / "broker.log")
        seconds = self._process.wait_answering(self.bootstrap)
        self.pid = self._process.popen.pid
        return seconds

    def _dev(self) -> float:
        data = str(self.folder / "data")
        command = self.command("dev", "-o", "json", "--port", "0", "--dir", data)
        command += self._settings
        self._process = Process(command, self.folder / "broker.log", capture=True)
        ready = json.loads(self._process.first_line())
        (broker,) = ready["brokers"]
        self.bootstrap, self.pid = ready["bootstrap"], broker["pid"]
        self.log_dir, self.config = Path(broker["dir"]), Path(broker["config"])
        return self._process.wait_answering(self.bootstrap)

    def pids(self) -> list[int]:
        assert self._process is not None
        return descendants(self._process.popen.pid)

    def kill(self) -> None:
        """kill -9 of the broker alone; all of its node has to go down with it."""
        assert self._process is not None
        launcher = self._process.popen.pid  # `kraftpy dev` outlives its node and says so
        node = [pid for pid in self.pids() if pid != launcher or pid == self.pid]
        kill([self.pid])
        deadline = time.monotonic() + 10
        while left := [pid for pid in node if is_alive(pid)]:
            if time.monotonic() > deadline:
                kill(left)
                raise BrokerError(f"kill -9 of broker {self.pid} left processes {left} behind")
            time.sleep(0.002)
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def log_tail(self) -> str:
        return tail(self.folder / "broker.log")


@contextlib.contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """Start a broker, hand it over, and end it whatever happens."""
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
