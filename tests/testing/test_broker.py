"""`kraftpy.testing`: the broker object, the fixtures, and what they say when something fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftpy.testing import Broker, BrokerError
from tests import warm
from tests.waiting import TIMEOUT_S

pytest_plugins = ["pytester"]


def run(broker: Broker, *args: str, stdin: bytes = b"") -> bytes:
    done = warm.run([*args, "-b", broker.bootstrap], stdin, os.environ, TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_session_broker_answers(kraftpy: Broker) -> None:
    assert kraftpy.running
    assert run(kraftpy, "topic", "list", "-o", "json").startswith(b"[")
    assert kraftpy.log_dir.is_dir()
    assert kraftpy.config.is_file()
    assert kraftpy.log_path.is_file()


def test_kill_and_restart_keep_address_and_data(kraftpy_factory: Callable[..., Broker]) -> None:
    broker = kraftpy_factory()
    run(broker, "produce", "t", stdin=b"kept\n")
    bootstrap, pid = broker.bootstrap, broker.pid
    broker.kill()
    assert not broker.running
    broker.restart()
    assert broker.bootstrap == bootstrap
    assert broker.pid != pid
    assert run(broker, "consume", "t", "-o", ":end") == b"kept\n"
    broker.stop()
    assert not broker.running
    broker.start()
    assert run(broker, "consume", "t", "-o", ":end") == b"kept\n"


def test_only_a_broker_that_runs_can_be_killed(
    kraftpy_factory: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 is whoever kills, with all of its group; that of a dead one may be another's."""
    killed: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: killed.append(pid))
        with pytest.raises(BrokerError, match=r"not running.*start\(\)"):
            Broker(dir=tmp_path).kill()
    broker = kraftpy_factory()
    broker.kill()
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: killed.append(pid))
        with pytest.raises(BrokerError, match="not running"):
            broker.kill()
    assert killed == []
    broker.restart()


def test_settings(kraftpy_factory: Callable[..., Broker]) -> None:
    broker = kraftpy_factory(num_partitions=5, auto_create_topics_enable=True)
    run(broker, "produce", "t", stdin=b"x\n")
    assert run(broker, "topic", "describe", "t").startswith(b"t: 5 partitions")


def test_without_pytest_it_cleans_up_after_itself() -> None:
    with Broker() as broker:
        assert broker.dir.is_dir()
        assert "pid" in repr(broker)
    assert not broker.dir.exists()
    assert not broker.running


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    broker = Broker(dir=tmp_path, num_partitions="many")
    with pytest.raises(BrokerError, match=r"exit code 2[\s\S]*num.partitions=many: must be"):
        broker.start()
    assert not broker.running


def test_a_broker_that_does_not_start_leaves_no_folder() -> None:
    broker = Broker(num_partitions="many")
    with pytest.raises(BrokerError), broker:
        pass
    assert not broker.dir.exists()


def test_it_dies_with_its_parent() -> None:
    script = """
import sys
from kraftpy.testing import Broker
broker = Broker().start()
print(broker.pid, broker.dir, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the broker survived its parent"
        time.sleep(0.01)


def test_the_plugin_is_there_for_whoever_installs_kraftpy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket
        import sys

        def test_lazy():
            assert "kraftpy.server" not in sys.modules
            assert "kraftpy.protocol" not in sys.modules

        def test_same_broker(kraftpy, request):
            request.config.first = kraftpy.bootstrap
            socket.create_connection((kraftpy.host, kraftpy.port)).close()

        def test_for_all(kraftpy, request):
            assert kraftpy.bootstrap == request.config.first

        def test_own(kraftpy, kraftpy_factory):
            assert kraftpy_factory().bootstrap != kraftpy.bootstrap

        def test_cluster(kraftpy_cluster, tmp_path_factory, request):
            request.config.logs = tmp_path_factory.getbasetemp()
            assert list(kraftpy_cluster(1).nodes) == [1]
            assert list(kraftpy_cluster(brokers=2, num_partitions=3).nodes) == [1, 2]

        def test_logs_are_kept(request):
            logs = request.config.logs.glob("kraftpy[0-9]*/node*.log")
            names = sorted(path.name for path in logs)
            assert names == ["node1.log", "node1.log", "node2.log"]
        """
    )
    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=6)


def test_what_a_test_has_closed_itself_is_no_error_and_keeps_nothing_running(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from kraftpy.testing.process import is_alive

        pids = []

        def test_clusters(kraftpy_cluster):
            first, second = kraftpy_cluster(1), kraftpy_cluster(1)
            pids.extend(node.pid for node in second.nodes.values())
            first.close()

        def test_one_cannot_be_closed(kraftpy_cluster):
            kept, broken = kraftpy_cluster(1), kraftpy_cluster(1)
            pids.extend(node.pid for each in (kept, broken) for node in each.nodes.values())
            log = next(iter(broken.nodes.values())).log_path
            log.unlink()
            log.mkdir()

        def test_brokers(kraftpy_factory):
            kraftpy_factory().close()

        def test_all_have_ended():
            assert len(pids) == 3
            assert not any(map(is_alive, pids))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:xdist")
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["E *IsADirectoryError*"])
