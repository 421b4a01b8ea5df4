"""How long a node may take to stop, and whether its supervisor waits for that."""

from __future__ import annotations

import subprocess
import sys

from kraftpy.cli.supervisor import STOP_TIMEOUT_S
from kraftpy.quorum.process import LOCK_TIMEOUT_S
from kraftpy.server.broker import DRAIN_TIMEOUT_S
from kraftpy.server.cluster.membership import (
    CONTROLLED_SHUTDOWN_TIMEOUT_S,
    FENCE_TIMEOUT_MS,
    SHUTDOWN_ANSWER_TIMEOUT_MS,
)

DISK_S = 5.0

STUBBORN = """
import os, signal, sys
from pathlib import Path
from kraftpy.cli.supervisor import Node, Supervisor, Surroundings

with Supervisor(Surroundings()) as supervisor:
    parent, (heard, ready) = os.getpid(), os.pipe()
    node = Node(1, *[Path(".")] * 3, pid=os.fork())
    if node.pid == 0:
        signal.alarm(60)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(parent, signal.SIGINT))
        os.write(ready, b"x")
        while True:
            signal.pause()
    os.read(heard, 1)
    supervisor.nodes.append(node)
    supervisor.stop()
    sys.exit(42 if node.exit_code == -signal.SIGKILL else 0)
"""


def test_a_node_is_given_the_time_that_its_parts_may_take() -> None:
    """The last question of the hand-over may be put just before its time is over."""
    hand_over_s = CONTROLLED_SHUTDOWN_TIMEOUT_S + SHUTDOWN_ANSWER_TIMEOUT_MS / 1000
    parts_s = [hand_over_s, DRAIN_TIMEOUT_S, DISK_S, FENCE_TIMEOUT_MS / 1000, LOCK_TIMEOUT_S]
    assert sum(parts_s) <= STOP_TIMEOUT_S


def test_another_ctrl_c_doesnt_wait_for_a_node_that_takes_its_time() -> None:
    done = subprocess.run([sys.executable, "-c", STUBBORN], timeout=STOP_TIMEOUT_S / 2, check=False)
    assert done.returncode == 42
