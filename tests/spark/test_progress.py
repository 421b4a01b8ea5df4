"""The bar that shows how far a job is: on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

import pytest

from tests.spark.loading import Loading


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_only(loading: Loading, on_terminal: bool) -> None:
    loading.fill(60)
    reading, writing = pty.openpty() if on_terminal else os.pipe()
    shown = bytearray()

    def listen() -> None:
        try:
            while found := os.read(reading, 4096):
                shown.extend(found)
        except OSError:  # what a terminal gives when the last one who writes to it has gone
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    command = [sys.executable, "-m", "kraftpy", "pipeline", "load", loading.topic]
    # A bar is for what takes a second or so: many tasks, one after the other.
    command += [str(loading.folder / "lake"), "--task-records", "1", "--master", "local[1]"]
    command += ["-b", loading.bootstrap]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writing, timeout=240, check=False)
    os.close(writing)
    listener.join()
    os.close(reading)
    assert done.returncode == 0, shown.decode()
    assert b"60 rows" in done.stdout
    assert (b"[Stage " in shown) is on_terminal
