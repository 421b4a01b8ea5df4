"""Each command in a Python of its own does what the forked ones of the other tests do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kraftpy.cli.app import COMMANDS
from kraftpy.testing import Broker
from tests import warm

from .commands import TIMEOUT_S

NOBODY = ("-b", "127.0.0.1:1")
CALLS: list[tuple[int, tuple[str, ...]]] = [
    (0, ("--version",)),
    (2, ("no-such-command",)),
    (2, ("dev", "-c", "no.such.key=1", "--dir", "{folder}")),
    (2, ("server", "--config", "no-such-file")),
    (0, ("topic", "list")),
    (1, ("topic", "describe", "no-such-topic")),
    (3, ("topic", "list", *NOBODY)),
    (0, ("group", "list", "--state", "dead")),
    (1, ("group", "describe", "no-such-group")),
    (3, ("offsets", "import", "--zookeeper", "127.0.0.1:1")),
    (3, ("offsets", "sync", "--zookeeper", "127.0.0.1:1")),
    (1, ("produce", "no such topic")),
    (2, ("produce", "t\udcff")),
    (1, ("consume", "no-such-topic", "-o", ":end")),
    (0, ("cluster", "brokers")),
    (2, ("cluster", "reassign", "-")),
    (3, ("probe", "--once", *NOBODY)),
    (1, ("transaction", "producers", "-t", "no-such-topic")),
    (2, ("user", "add", "alice", "--node", "no-such-file")),
    (1, ("acl", "list")),
    (0, ("quota", "list")),
    (1, ("token", "list")),
    (0, ("completion", "bash")),
    (2, ("consistency", "check", "no-such-file")),
    (2, ("pipeline", "audit")),
]


def test_each_command_is_called() -> None:
    assert {arguments[0] for _, arguments in CALLS} >= COMMANDS.keys()


@pytest.mark.parametrize(("code", "arguments"), CALLS, ids=str)
def test_a_start_from_scratch_does_the_same(
    code: int, arguments: tuple[str, ...], kraftpy: Broker, tmp_path: Path
) -> None:
    arguments = tuple(each.format(folder=tmp_path) for each in arguments)
    environment = {**os.environ, "KRAFTPY_BOOTSTRAP": kraftpy.bootstrap}
    done = subprocess.run(
        [sys.executable, "-m", "kraftpy", *arguments],
        input=b"line\n",
        capture_output=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert done.stderr if code else done.stdout or done.stderr
    forked = warm.run(arguments, b"line\n", environment, TIMEOUT_S)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        done.returncode,
        done.stdout,
        done.stderr,
    )


def test_what_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run(["dev", "--port", "0"], b"", os.environ, 0.2)
    assert warm.run(["--version"], b"", os.environ, TIMEOUT_S).returncode == 0
