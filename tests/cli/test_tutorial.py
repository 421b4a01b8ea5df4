"""docs/tutorial.md as somebody goes through it: what it types prints what it says. And what README
shows of the command line, in its order.

Only the ports are others, and the process that is killed. What looks at the cluster's health is
typed again until it prints that: how long a broker takes to come back is the machine's.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftpy.testing import Broker

Factory = Callable[..., Broker]
DOCS = Path(__file__).parents[2] / "docs"
BIN = Path(sys.executable).parent
PAGE = DOCS / "tutorial.md"
DEADLINE_S = 60.0
ADDRESS = "127.0.0.1:9092"


class Terminal:
    """A shell in a folder, and what goes on running in others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "200"}
        self.environment.pop("KRAFTPY_BOOTSTRAP", None)
        self.running: list[subprocess.Popen[bytes]] = []

    def type(self, command: str) -> str:
        """What the command prints."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        return done.stdout

    def leave_running(self, command: str, wanted: str) -> str:
        """Types it, and returns what has been printed once that is what was wanted."""
        output = self.folder / f"output{len(self.running)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
            )
        self.running.append(process)
        deadline = time.monotonic() + DEADLINE_S
        while not fits(output.read_text(), wanted):
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        return output.read_text()

    def close(self) -> None:
        """Ctrl-C in all of them, the last first."""
        for process in reversed(self.running):
            process.send_signal(signal.SIGINT)
        for process in self.running:
            process.wait(DEADLINE_S)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


def fits(printed: str, wanted: str) -> bool:
    """Whether it's that; `...` is anything, a line of it any lines or none."""
    pattern = re.escape(wanted).replace("\\.\\.\\.\\\n", "(?s:.*)")
    pattern = pattern.replace(r"\.\.\.", "[^\n]*")
    return re.fullmatch(pattern, printed) is not None


def blocks(page: Path) -> list[tuple[str, str]]:
    """Its fenced blocks with what their fences say."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console with what it prints."""
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def test_the_tutorial(terminal: Terminal) -> None:
    greeting = ""
    for kind, block in blocks(PAGE):
        if kind == "python":
            run_program(terminal, block)
            continue
        assert kind in ("console", "console keeps-running"), kind
        for command, wanted in commands(block):
            if kind == "console keeps-running" and command.startswith("kraftpy dev"):
                greeting = terminal.leave_running(f"{command} --port 0", wanted)
                (bootstrap,) = re.findall(r"bootstrap +(\S+)", greeting)
                terminal.environment["KRAFTPY_BOOTSTRAP"] = bootstrap
            elif kind == "console keeps-running":
                terminal.leave_running(command, wanted)
            else:
                (pid,) = re.findall(r"kill -9 (\d+)", greeting)
                expect(terminal, command.replace("PID", pid), wanted)


def expect(terminal: Terminal, command: str, wanted: str) -> None:
    """Types it; what looks at the health, again until it's as wanted."""
    deadline = time.monotonic() + DEADLINE_S
    command = re.sub(r"^sleep \d+; ", "", command)
    while not fits(printed := terminal.type(command), wanted):
        assert "health" in command, f"$ {command}\n{printed}"
        assert time.monotonic() < deadline, f"$ {command}\n{printed}"


def run_program(terminal: Terminal, program: str) -> None:
    bootstrap = terminal.environment["KRAFTPY_BOOTSTRAP"]
    path = terminal.folder / ("test_it.py" if "def test_" in program else "program.py")
    path.write_text(program.replace(ADDRESS, bootstrap))
    if "def test_" in program:
        printed = terminal.type("python -m pytest -q -p no:cacheprovider test_it.py")
        assert "1 passed" in printed, printed
    else:
        printed = terminal.type("python -W error program.py")
        assert printed == "[(b'cake', 1), (b'coffee', 1), (b'milk', 1), (b'tea', 1)]\n", printed


def test_the_readme_on_the_command_line(kraftpy_factory: Factory, terminal: Terminal) -> None:
    """As it stands there, up to what takes long: a member reads what was written, and so on."""
    terminal.environment["KRAFTPY_BOOTSTRAP"] = kraftpy_factory().bootstrap
    text = (DOCS.parent / "README.md").read_text()
    (block,) = re.findall(r"^## On the command line\n\n```\n(.*?)^```$", text, re.DOTALL | re.M)
    lines = [re.split(r" {2,}", line)[0] for line in block.splitlines()]
    first = next(n for n, line in enumerate(lines) if line.startswith("kraftpy topic create"))
    last = next(n for n, line in enumerate(lines) if line.startswith("kraftpy cluster health"))
    printed = []
    for line in lines[first : last + 1]:
        if line.startswith("kraftpy consume"):
            printed.append(terminal.leave_running(line, "one coffee\n"))
            terminal.close()
            terminal.running.clear()
        else:
            printed.append(terminal.type(line))
    created, wrote, read, group, sought, healthy = printed
    assert created == "created topic orders\n"
    assert re.fullmatch(r"wrote 1 record to orders: partition \d at offset 0\n", wrote)
    assert read == "one coffee\n"
    assert group.startswith("kitchen: Empty, 0 members, lag 0\n")
    assert sought.endswith("nothing was changed: run it without --dry-run to seek\n")
    assert healthy.startswith("healthy: 1 broker, ")


@pytest.mark.parametrize(
    ("printed", "wanted", "found"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nc\n", "a\nb\n", False),
        ("ready after 0.2 s\nx\ny\n", "ready after ... s\n...\n", True),
        ("a\n", "a\n...\n", True),
        ("a.b\n", "a+b\n", False),
    ],
)
def test_what_fits(printed: str, wanted: str, found: bool) -> None:
    assert fits(printed, wanted) is found


def test_the_commands_of_a_block() -> None:
    assert commands("$ a\nx\ny\n$ b\n$ c\nz\n") == [("a", "x\ny\n"), ("b", ""), ("c", "z\n")]
