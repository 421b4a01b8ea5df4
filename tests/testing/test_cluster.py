"""`kraftpy.testing.Cluster`: each fault does what it says, and is over when it is said to be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.testing import Cluster, ClusterError
from kraftpy.testing.process import is_alive
from tests import warm
from tests.waiting import TIMEOUT_S, wait_until

Factory = Callable[..., Cluster]


def kraftpy(bootstrap: str, *args: str, stdin: bytes = b"") -> bytes:
    done = warm.run([*args, "-b", bootstrap], stdin, os.environ, TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def write(cluster: Cluster, text: str) -> None:
    kraftpy(cluster.bootstrap, "produce", "t", stdin=text.encode() + b"\n")


def read(cluster: Cluster) -> list[str]:
    return kraftpy(cluster.bootstrap, "consume", "t", "-o", ":end").decode().split()


def leader(cluster: Cluster) -> int:
    found = cluster.leader_of("t")
    assert found is not None
    return found


def test_a_cluster_answers_and_is_healthy(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3, num_partitions=2)
    cluster.wait_healthy()
    assert sorted(cluster.nodes) == [1, 2, 3]
    assert cluster.controller() in cluster.nodes
    for node in cluster.nodes.values():
        assert node.running
        assert len(node.pids) == 3  # broker, controller, metrics exporter
        assert node.bootstrap in cluster.bootstrap.split(",")
        assert node.log_dir.is_dir()
        assert node.config.is_file()
        assert node.log_path.is_file()
    write(cluster, "one")
    cluster.wait_healthy()
    assert cluster.leader_of("t", 1) in cluster.nodes
    assert "3 runs on" in repr(cluster)
    with pytest.raises(ClusterError, match="knows partition 2 of 't'"):
        cluster.leader_of("t", 2)
    with pytest.raises(ClusterError, match="no broker 4"):
        cluster.kill(4)


def test_kill_and_restart(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3)
    write(cluster, "before")
    victim = leader(cluster)
    node = cluster.nodes[victim]
    pids, address = node.pids, node.bootstrap
    cluster.kill(victim)
    assert not any(map(is_alive, pids))
    write(cluster, "meanwhile")
    assert leader(cluster) != victim
    with pytest.raises(ClusterError, match=f"can't be healthy: broker {victim} is not running"):
        cluster.wait_healthy()
    with pytest.raises(ClusterError, match=f"restart\\({victim}\\)"):
        cluster.kill(victim)
    cluster.restart(victim)
    cluster.wait_healthy()
    assert cluster.nodes[victim].bootstrap == address
    assert cluster.nodes[victim].pid not in pids
    assert read(cluster) == ["before", "meanwhile"]


def test_all_nodes_can_die_at_once(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3)
    write(cluster, "kept")
    for node in (1, 2, 3):
        cluster.kill(node)
    assert cluster.controller() is None
    cluster.restart(1, 2, 3)
    cluster.wait_healthy()
    assert read(cluster) == ["kept"]


def test_stop_moves_leaderships_first(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3)
    write(cluster, "one")
    victim = leader(cluster)
    cluster.stop(victim)
    assert (cluster.nodes[victim].log_dir / ".kafka_cleanshutdown").exists()
    assert leader(cluster) != victim
    write(cluster, "two")
    cluster.restart(victim)
    cluster.restart(victim)  # a running one is stopped first
    cluster.wait_healthy()
    assert read(cluster) == ["one", "two"]


def test_the_controller_moves_when_its_node_dies(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3)
    first = cluster.controller()
    assert first is not None
    cluster.kill(first)
    wait_until(lambda: cluster.controller() not in (None, first), "another controller leads")


def test_pause_and_resume(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3)
    write(cluster, "before")
    victim = leader(cluster)
    cluster.pause(victim)
    for pid in cluster.nodes[victim].pids:
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    with pytest.raises(ClusterError, match=f"broker {victim} is paused"):
        cluster.wait_healthy()
    wait_until(
        lambda: cluster.leader_of("t") not in (None, victim), "another broker has taken over"
    )
    cluster.resume(victim)
    cluster.wait_healthy()
    write(cluster, "after")
    assert read(cluster) == ["before", "after"]


def test_an_isolated_leader_is_replaced_until_it_is_back(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3)
    write(cluster, "before")
    victim = leader(cluster)
    cluster.isolate(victim)
    wait_until(
        lambda: cluster.leader_of("t") not in (None, victim), "another broker has taken over"
    )
    others = [each for each in cluster.nodes.values() if each.id != victim]
    bootstrap = ",".join(each.bootstrap for each in others)
    kraftpy(bootstrap, "produce", "t", stdin=b"meanwhile\n")
    with pytest.raises(ClusterError, match=r"not healthy after 0\.5 s"):
        cluster.wait_healthy(0.5)
    cluster.heal()
    cluster.wait_healthy()
    assert read(cluster) == ["before", "meanwhile"]


@pytest.mark.parametrize("close", [False, True])
def test_two_nodes_that_lost_each_other(close: bool, kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3, replica_lag_time_max_ms=1000)
    write(cluster, "before")
    cluster.wait_healthy()
    victim = leader(cluster)
    cluster.partition(victim, victim % 3 + 1, close=close)

    def noticed() -> bool:
        try:
            cluster.wait_healthy(0)
        except ClusterError:
            return True
        return False

    write(cluster, "meanwhile")
    wait_until(noticed, "somebody has noticed")
    cluster.heal()
    cluster.wait_healthy()
    assert read(cluster) == ["before", "meanwhile"]


def test_without_links_there_is_nothing_to_cut(kraftpy_cluster: Factory) -> None:
    cluster = kraftpy_cluster(3, links=False)
    cluster.wait_healthy()
    with pytest.raises(ClusterError, match="links=False"):
        cluster.isolate(1)
    with pytest.raises(ValueError, match="two ends"):
        cluster.partition(1, 1)


def test_a_cluster_that_does_not_start_says_why(tmp_path: Path) -> None:
    cluster = Cluster(3, dir=tmp_path, num_partitions="many")
    with pytest.raises(ClusterError, match=r"exit code 2[\s\S]*num.partitions=many: must be"):
        cluster.start()
    cluster.close()


def test_a_folder_is_kept_for_the_next_start(tmp_path: Path) -> None:
    with Cluster(3, dir=tmp_path) as cluster:
        write(cluster, "kept")
    with Cluster(3, dir=tmp_path) as cluster:
        cluster.wait_healthy()
        assert read(cluster) == ["kept"]
    assert tmp_path.is_dir()


def test_it_leaves_nothing_behind() -> None:
    with Cluster(3) as cluster:
        pids = [pid for node in cluster.nodes.values() for pid in node.pids]
        cluster.pause(2)
        assert len(pids) == 9
    assert not any(map(is_alive, pids))
    assert not cluster.dir.exists()


def test_it_dies_with_its_parent() -> None:
    script = """
import sys
from kraftpy.testing import Cluster
cluster = Cluster(3).start()
print(*(pid for node in cluster.nodes.values() for pid in node.pids), flush=True)
print(cluster.dir, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(each) for each in parent.stdout.readline().split()]
        folder = Path(parent.stdout.readline().decode().strip())
        os.kill(parent.pid, 9)
    assert len(pids) == 9
    wait_until(lambda: not any(map(is_alive, pids)), "all nodes have ended with the parent")
    wait_until(lambda: not folder.exists(), "the temporary folder has gone with the parent")
