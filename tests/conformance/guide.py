"""The operations guide's chapters, carried out on nodes that run here.

A line `admin$ ...` is run by bash as it stands, `systemctl` starts and stops a process as the unit
does (ExecStart with the guide's node.env, SIGTERM to the first process). The files that it names
lie below a folder, and every address, as node2:9092, is a port of this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from kraftpy.testing.networks.ports import free_ports
from tests.test_deploy import DEPLOY, GUIDE

TIMEOUT_S = 60.0
NODES = (1, 2, 3, 4)


def chapter(title: str) -> list[tuple[str, str]]:
    """What a chapter of the guide tells to type: where, and what."""
    text = GUIDE.read_text()
    (body,) = re.findall(rf"^##+ {title}\n(.*?)(?=^##+ )", text, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```\n(.*?)^```$", body, re.DOTALL | re.MULTILINE)
    lines: list[tuple[str, str]] = re.findall(r"^(\w+)\$ (.*)$", "".join(blocks), re.MULTILINE)
    assert lines
    return lines


def node_options() -> str:
    """The guide's node.env of the first node."""
    (options,) = re.findall(r"^NODE_OPTIONS=(.*)$", GUIDE.read_text(), re.MULTILINE)
    return str(options)


def unit_command() -> list[str]:
    unit = (DEPLOY / "systemd" / "kraftpy.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    return shlex.split(command)


class Machines:
    """Four machines: folders and ports of this one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found = free_ports(2 * len(NODES))
        self._ports = {(node, port): found.pop() for node in NODES for port in (9092, 9093)}
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._background: list[subprocess.Popen[str]] = []
        etc = root / "etc"
        etc.mkdir()
        (etc / "quorum.secret").write_text("a secret that only this test has\n")
        (etc / "server.properties").write_text(
            (DEPLOY / "server.properties").read_text().replace("/etc/kraftpy", str(etc))
        )
        (root / "backup").mkdir()
        (root / "bin").mkdir()
        (root / "bin" / "kraftpy").symlink_to(Path(sys.executable).with_name("kraftpy"))

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._running.values(), *self._background]:
            process.kill()
            process.wait()

    def here(self, text: str, node: int) -> str:
        """What the guide says, with the addresses and folders of this machine."""
        for (other, port), real in self._ports.items():
            text = text.replace(f"node{other}:{port}", f"127.0.0.1:{real}")
        lib = self.root / f"node{node}" / "lib"
        lib.mkdir(parents=True, exist_ok=True)
        text = text.replace("/var/lib", str(lib)).replace("/etc/kraftpy", str(self.root / "etc"))
        return text.replace("/backup", str(self.root / "backup"))

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._ports[1, 9092]}"

    def run(self, where: str, line: str) -> str:
        """Carries out one line; what it printed."""
        words = shlex.split(line)
        node = int(where.removeprefix("node")) if where != "admin" else 0
        if words[:2] in (["systemctl", "start"], ["systemctl", "stop"]):
            self.start(node) if words[1] == "start" else self.stop(node)
            return ""
        if words[:2] == ["kraftpy", "server"]:
            self._start(node, shlex.split(self.here(line, node)))
            return ""
        command = self.here(line, node)
        assert "/var/" not in command
        if "decommission" in words and "--dry-run" not in words:
            self._decommission(command)
            return ""
        done = self._popen(command)
        output, _ = done.communicate(timeout=TIMEOUT_S)
        assert done.returncode == 0, (line, output)
        return output

    def _popen(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-ec", command],
            env={**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _decommission(self, command: str) -> None:
        """Goes on beside what follows, once it has said to stop the broker."""
        process = self._popen(command)
        self._background.append(process)
        assert process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        said = ""
        for line in process.stdout:
            said += line
            if re.search(r"\bstop\b", line):
                break
        watchdog.cancel()
        assert re.search(r"\bstop\b", said), said

    def finish(self) -> None:
        """Waits for what goes on beside."""
        for process in self._background:
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, output
        self._background.clear()

    def start(self, node: int) -> None:
        """As the unit does."""
        options = node_options().replace("node.id=1", f"node.id={node}")
        options = options.replace("PLAINTEXT://node1:", f"PLAINTEXT://node{node}:")
        words = []
        for word in unit_command():
            words += shlex.split(options) if word == "$NODE_OPTIONS" else [word]
        words = [self.here(word, node) for word in words]
        self._start(node, ["kraftpy", *words[1:]])

    def _start(self, node: int, words: list[str]) -> None:
        broker = f"PLAINTEXT://127.0.0.1:{self._ports[node, 9092]}"
        controller = f",CONTROLLER://127.0.0.1:{self._ports[node, 9093]}"
        votes = "process.roles=broker" not in words
        folder = self.root / f"node{node}" / "lib" / "kraftpy"
        own = {
            "listeners": broker + controller * votes,
            "log.dirs": str(folder),
            "kraftpy.metrics.listener": "127.0.0.1:0",
        }
        words = [str(self.root / "bin" / words[0]), *words[1:]]
        for key, value in own.items():
            words += ["-c", f"{key}={value}"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (self.root / f"log{node}").open("a") as log:
            process = subprocess.Popen(words, stderr=log, text=True, start_new_session=True)
        self._running[node] = process

    def stop(self, node: int) -> None:
        """SIGTERM to the first process; it has to end in order."""
        process = self._running.pop(node)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0, self.log(node)[-3000:]

    def log(self, node: int) -> str:
        return (self.root / f"log{node}").read_text()

    def until_healthy(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while subprocess.run(
            [self.root / "bin" / "kraftpy", "cluster", "health", "-b", self.bootstrap],
            capture_output=True,
            check=False,
        ).returncode:
            assert time.monotonic() < deadline, self.log(1)[-3000:]
            time.sleep(0.1)
