"""What the exporter asks the operating system."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from kraftpy.metrics.collector import Scrape
from kraftpy.metrics.system import System


def look(system: System, pid: int) -> Scrape:
    scrape = Scrape([], node_id=1)
    system.add_process(scrape, "broker", pid, loop=True)
    return scrape


def test_a_start_time_is_the_same_in_every_scrape() -> None:
    """Else `changes(process_start_time_seconds[..])` would see a restart in each."""
    seen = {
        look(System(), os.getpid()).samples["process_start_time_seconds"][0][1] for _ in range(20)
    }
    assert len(seen) == 1
    assert abs(time.time() - seen.pop()) < 3 * 86_400


def test_a_busy_loop_is_not_idle() -> None:
    system = System()
    name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
    first = look(system, os.getpid())
    assert name not in first.samples
    until = time.process_time() + 0.1  # ten ticks of the kernel's count, however long they take
    while time.process_time() < until:
        pass
    second = look(system, os.getpid())
    ((_, idle),) = second.samples[name]
    assert 0 <= idle < 1
    ((labels, busy_s),) = second.samples["kraftpy_event_loop_cpu_seconds_total"]
    assert labels == ("broker",)
    assert busy_s > first.samples["kraftpy_event_loop_cpu_seconds_total"][0][1]


def test_a_process_that_has_ended_is_left_out() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert look(System(), ended.pid).samples == {}


def test_a_folder_that_is_gone_is_left_out(tmp_path: Path) -> None:
    scrape = Scrape([], node_id=1)
    System().add_folder(scrape, str(tmp_path / "gone"))
    assert scrape.samples == {}
    System().add_folder(scrape, str(tmp_path))
    assert scrape.samples["kraftpy_log_dir_size_bytes"][0][0] == (str(tmp_path),)
