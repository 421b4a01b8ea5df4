"""Disks that are full: what a node refuses then it takes when there is room, and loses nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kraftpy.testing import disks

# In a process of its own: it takes a mount namespace for good.
PROGRAM = """
import confluent_kafka
from kraftpy.testing import Cluster

def send(value, timeout_s):
    problems = []
    producer.produce("orders", value, partition=0, on_delivery=lambda e, _: problems.append(e))
    return not producer.flush(timeout_s) and problems == [None]

with Cluster(1, small_disks=True) as cluster:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    assert send(b"before", 20)
    cluster.fill_disk(1)
    assert not send(bytes(50_000), 1)
    assert not cluster.nodes[1].ended
    cluster.free_disk(1)
    assert send(b"after", 20)  # and what was refused, before it
    (log,) = cluster.nodes[1].log_dir.glob("orders-0/*.log")
    assert 50_000 < log.stat().st_size < 60_000
    assert "No space left" in cluster.nodes[1].log_path.read_text() or "could be written" in (
        cluster.nodes[1].log_path.read_text()
    )
"""


def test_a_node_whose_disk_is_full_refuses_and_goes_on_later() -> None:
    if why := disks.missing():
        pytest.skip(f"no small disks here: {why}")
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
