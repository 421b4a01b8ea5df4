"""A process that is forked is as one that is started: what it is given, what it is, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing import Broker, Cluster
from kraftpy.testing.process import is_alive
from tests import warm
from tests.waiting import TIMEOUT_S, wait_until

Popen = Callable[..., "subprocess.Popen[bytes]"]
Process = subprocess.Popen[bytes]

PROXIES = ("kraftpy.testing.networks.proxies",)
WORKER = ("kraftpy.testing.consistency.worker_process",)
DEV = ("kraftpy", "dev", "-o", "json", "--port", "0", "--exit-on-eof")
ENDS: list[tuple[str, Callable[[Process], None], int]] = [
    ("EOF", lambda process: process.stdin.close(), 0),  # type: ignore[union-attr]
    ("SIGTERM", lambda process: process.terminate(), -signal.SIGTERM),
    ("SIGINT", lambda process: process.send_signal(signal.SIGINT), -signal.SIGINT),
    ("SIGKILL", lambda process: process.kill(), -signal.SIGKILL),
]


@pytest.fixture(params=[subprocess.Popen, warm.popen], ids=["started", "forked"])
def popen(request: pytest.FixtureRequest) -> Popen:
    found: Popen = request.param
    return found


@contextmanager
def running(
    popen: Popen, *words: str, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    command = [sys.executable, "-m", *words]
    pipe = subprocess.PIPE
    env = {**os.environ, **(environment or {})}
    with popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def errors(process: Process) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def ask(process: Process) -> None:
    """Until it answers it has only begun."""
    assert process.stdin is not None
    process.stdin.write(b'{"targets": []}\n')
    process.stdin.flush()
    assert line(process) == {"ports": []}


@pytest.mark.parametrize(("end", "code"), [each[1:] for each in ENDS], ids=[e[0] for e in ENDS])
def test_its_end(popen: Popen, end: Callable[[Process], None], code: int) -> None:
    with running(popen, *PROXIES) as process:
        ask(process)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        end(process)
        assert process.wait(TIMEOUT_S) == process.poll() == process.returncode == code
        process.terminate()  # says nothing to who has ended
        wait_until(lambda: not is_alive(process.pid), "it is gone")
        assert ("KeyboardInterrupt" in errors(process)) == (code == -signal.SIGINT)


def test_its_failure(popen: Popen) -> None:
    with running(popen, *WORKER, "no JSON") as process:
        assert process.wait(TIMEOUT_S) == 1
        assert errors(process).splitlines()[-1].startswith("json.decoder.JSONDecodeError")


def test_what_it_is_given_and_what_it_is(
    popen: Popen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = tmp_path / "temporary"
    folders.mkdir()
    with running(popen, *DEV, environment={"TMPDIR": str(folders)}) as process:
        (broker,) = line(process)["brokers"]
        assert Path(broker["dir"]).is_relative_to(folders)
        assert Path(f"/proc/{process.pid}/cwd").readlink() == tmp_path
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert [int(child) for child in children] == [broker["pid"]]
        os.kill(broker["pid"], signal.SIGKILL)
        assert process.stderr is not None
        assert b"was killed by SIGKILL" in process.stderr.readline()
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
        assert errors(process) == ""
    assert not list(folders.iterdir())


def test_its_nodes_die_with_it(popen: Popen) -> None:
    with running(popen, *DEV, "--brokers", "3") as process:
        pids = [broker["pid"] for broker in line(process)["brokers"]]
        process.kill()
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
        assert len(pids) == 3
        wait_until(lambda: not any(map(is_alive, pids)), "its nodes are gone")


def test_brokers_and_clusters_are_forked() -> None:
    with Broker() as broker:
        assert isinstance(broker._process._popen, warm.Forked)  # type: ignore[union-attr]
    with Cluster(1) as cluster:
        assert isinstance(cluster._dev._popen, warm.Forked)  # type: ignore[union-attr]
        network = cluster._network
        assert isinstance(network._process._popen, warm.Forked)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("-m", "kraftpy", "--version"), {"PYTHONHASHSEED": "1"}),
        (("-m", "kraftpy", "--version"), {"LD_PRELOAD": ""}),
        (("-m", "kraftpy.testing.synced", "notes", "kraftpy", "--version"), {}),
        (("-c", "import kraftpy; print(kraftpy.__version__)"), {}),
    ],
)
def test_what_python_has_to_be_started_for_is(
    words: tuple[str, ...], environment: dict[str, str]
) -> None:
    with warm.popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    ) as process:
        assert isinstance(process, subprocess.Popen)
        assert process.wait(TIMEOUT_S) == 0


def test_scripts_that_can_be_forked_are_there() -> None:
    assert [
        path for path in warm.PROGRAMS if path.endswith(".py") and not Path(path).exists()
    ] == []
