"""A crash takes exactly what was not fsynced, and a node comes back from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import confluent_kafka

from kraftpy.testing import Cluster
from kraftpy.testing.synced import cut_unsynced, tracked

PROGRAM = """
import os, subprocess, sys
from pathlib import Path

folder = Path(sys.argv[1])

def write(name, data, sync=True):
    fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, data)
    if sync:
        os.fdatasync(fd)
    os.close(fd)

if len(sys.argv) == 3:
    write("child", b"synced")
    sys.exit()
write("tail", b"synced")
write("tail", b" not", sync=False)
write("never", b"not", sync=False)
write("cut", b"0123456789")
os.truncate(folder / "cut", 4)
write("cut", b"new", sync=False)
write("moved.tmp", b"synced")
os.rename(folder / "moved.tmp", folder / "moved")
write("old", b"synced")
write("old.tmp", b"not", sync=False)
os.replace(folder / "old.tmp", folder / "old")
write("removed", b"synced")
(folder / "removed").unlink()
write("reborn", b"not", sync=False)  # maybe with the inode of the one that is gone
if os.fork() == 0:
    os.closerange(3, 100)
    write("forked", b"synced")
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-m", "program", sys.argv[1], "child"], check=True)
"""


def test_what_was_not_fsynced_is_taken(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    files, notes = tmp_path / "files", tmp_path / "notes"
    files.mkdir()
    command = tracked([sys.executable, "-m", "program", str(files)], notes)
    subprocess.run(command, check=True, cwd=tmp_path)
    assert cut_unsynced(files, notes) == (16, 5)
    assert {path.name: path.read_text() for path in files.iterdir()} == {
        "tail": "synced",
        "never": "",
        "cut": "0123",
        "moved": "synced",
        "old": "",
        "reborn": "",
        "forked": "synced",
        "child": "synced",
    }
    assert cut_unsynced(files, notes) == (0, 0)


def test_a_node_that_crashed_gets_what_it_lost_from_the_others() -> None:
    with Cluster(3, crashes=True) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("orders", b"1", partition=0)
        assert not producer.flush(20)
        cluster.wait_healthy()
        victim = cluster.leader_of("orders")
        assert victim is not None
        (log,) = cluster.nodes[victim].log_dir.glob("orders-0/*.log")
        written = log.read_bytes()
        assert written
        assert "had not been synced and are gone" in cluster.crash(victim)
        assert not log.read_bytes()
        cluster.restart(victim)
        cluster.wait_healthy()
        assert log.read_bytes() == written
        assert cluster.agreed_leader("orders") == cluster.leader_of("orders") != victim
        assert cluster.agreed_leader("orders", among=[victim]) == cluster.leader_of("orders")
