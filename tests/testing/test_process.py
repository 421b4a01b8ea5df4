"""What is known of a process from outside, and waiting for it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kraftpy.testing.process import BrokerError, is_alive
from tests.waiting import wait_until

EXIT_OF_ONE_THREAD = {"x86_64": 60, "aarch64": 93}


@pytest.mark.skipif(
    platform.machine() not in EXIT_OF_ONE_THREAD, reason="the number of the system call exit"
)
def test_a_process_lives_as_long_as_one_of_its_threads() -> None:
    """Nobody can reap it before, though /proc calls it a zombie."""
    program = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        f"ctypes.CDLL(None).syscall({EXIT_OF_ONE_THREAD[platform.machine()]}, 0)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        pid = process.pid
        wait_until(lambda: " Z " in _stat(pid), "the first thread ended", timeout_s=20)
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        assert is_alive(pid)
        process.kill()
        wait_until(lambda: not is_alive(pid), "all threads ended", timeout_s=20)
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    assert not is_alive(pid)


def _stat(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text()


def test_what_does_not_come_in_time_is_named() -> None:
    answers = iter([0, "", "there"])
    assert wait_until(lambda: next(answers), "the third answer") < 20
    with pytest.raises(BrokerError, match=r"^not within 0\.01 s: the sky falls$"):
        wait_until(lambda: False, "the sky falls", 0.01)
