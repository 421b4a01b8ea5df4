"""What the operating system knows of a node's processes and disks, for a scrape.

Whatever has ended or can't be read is left out.
"""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kraftpy.metrics.collector import Scrape

_IDLE = (
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
)


@functools.cache
def _booted_s() -> int:
    """When the machine was started; read once, so that what is counted from it stays the same."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return int(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))


class System:
    """Looks at the processes and folders of one node."""

    def __init__(self) -> None:
        self._busy: tuple[float, float] | None = None  # the broker's loop: when, and its CPU time

    def add_process(self, scrape: Scrape, name: str, pid: int, *, loop: bool) -> None:
        """One process; `loop`: its first thread runs an event loop."""
        proc = Path(f"/proc/{pid}")
        try:
            fields = _stat(proc)
            open_fds = len(os.listdir(proc / "fd"))  # noqa: PTH208 - counted, not used
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            loop_cpu_s = _cpu_s(_stat(proc / "task" / str(pid)))
        except OSError:
            return
        started_s = _booted_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        scrape.add("process_cpu_seconds_total", _cpu_s(fields), name)
        scrape.add("process_resident_memory_bytes", resident, name)
        scrape.add("process_open_fds", open_fds, name)
        scrape.add("process_max_fds", limits[0], name)
        scrape.add("process_start_time_seconds", started_s, name)
        if loop:
            scrape.add("kraftpy_event_loop_cpu_seconds_total", loop_cpu_s, name)
        if name == "broker":
            self._add_idle(scrape, loop_cpu_s)
        _add_disk_traffic(scrape, name, proc)

    def _add_idle(self, scrape: Scrape, cpu_s: float) -> None:
        """Kafka's shares of idle threads: here one loop does the work of both kinds."""
        now_s = time.monotonic()
        if self._busy is not None and now_s > self._busy[0] and cpu_s >= self._busy[1]:
            idle = max(0.0, 1 - (cpu_s - self._busy[1]) / (now_s - self._busy[0]))
            for name in _IDLE:
                scrape.add(name, idle)
        self._busy = now_s, cpu_s

    def add_folder(self, scrape: Scrape, folder: str) -> None:
        """The file system of one data folder."""
        try:
            disk = os.statvfs(folder)
        except OSError:
            return
        scrape.add("kraftpy_log_dir_size_bytes", disk.f_blocks * disk.f_frsize, folder)
        scrape.add("kraftpy_log_dir_free_bytes", disk.f_bavail * disk.f_frsize, folder)


def _stat(folder: Path) -> Sequence[str]:
    """The fields behind the name, of a process or a thread."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _cpu_s(fields: Sequence[str]) -> float:
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _add_disk_traffic(scrape: Scrape, name: str, proc: Path) -> None:
    try:
        pairs = [line.split(": ") for line in (proc / "io").read_text().splitlines()]
    except OSError:
        return
    values = {key: int(value) for key, value in pairs}
    scrape.add("kraftpy_disk_read_bytes_total", values["read_bytes"], name)
    scrape.add("kraftpy_disk_written_bytes_total", values["write_bytes"], name)
