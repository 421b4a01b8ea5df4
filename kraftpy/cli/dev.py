"""`kraftpy dev`: a cluster for development, with no configuration.

Rules:

* Everything lies in one folder: `nodeN/server.properties`, `nodeN/data` (log.dirs), `nodeN/log`.
  A folder that has them already is started again as it is, so edits to server.properties count.
* server.properties names the real ports, also when a free one was picked: `kraftpy server --config`
  starts the same node at the same address.
* A free port is picked below the range that the kernel gives to outgoing connections, so that none
  of those takes it while a node is down.
* A temporary folder is removed at the end, unless another process uses it (somebody brought a
  killed node back with `kraftpy server`).
"""

from __future__ import annotations

import fcntl
import random
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from kraftpy.cli.common import (
    EXIT_NOT_STARTED,
    EXIT_USAGE,
    TEXT,
    Failure,
    echo_json,
    parse_key_values,
)
from kraftpy.cli.server import parse_config
from kraftpy.cli.supervisor import Node, Supervisor
from kraftpy.core.config import BrokerConfig, ConfigError, parse_properties

_HOST = "127.0.0.1"
_DEFAULT_PORT = 9092
_FREE_PORTS = range(10_000, 32_768)
_PICK_ATTEMPTS = 5
_UNLOCK_TIMEOUT_S = 1.0

_EXIT_CODES_HELP = """\b
Exit codes:
  0   stopped by SIGTERM or Ctrl-C
  2   an option or a setting cannot be used
  4   a node could not start: port taken, folder in use or not writable, ...
"""


@click.command(epilog=_EXIT_CODES_HELP)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep data and configuration here.  [default: a temporary folder, removed at the end]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Port of the broker, 0 for a free one.  [default: {_DEFAULT_PORT}, or what --dir has]",
)
@click.option(
    "-c",
    "--config",
    "settings",
    type=TEXT,
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting for server.properties. Repeatable.",
)
@click.option(
    "--exit-on-eof",
    is_flag=True,
    help="Stop when stdin is closed: for programs that must not leave a broker behind.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json prints one line once the broker is ready: bootstrap and brokers, each with id, "
    "pid, address, dir and config.",
)
def command(
    folder: Path | None,
    port: int | None,
    settings: Sequence[str],
    exit_on_eof: bool,
    output: str,
) -> None:
    """Start a broker with no configuration, until Ctrl-C.

    \b
    kraftpy dev                  on 127.0.0.1:9092, in a temporary folder
    kraftpy dev --dir ./kafka    keeps its data
    kraftpy dev --port 0         several side by side
    """
    started_at = time.monotonic()
    overrides = dict(parse_key_values(settings, "'-c' / '--config'"))
    root = folder.absolute() if folder else Path(tempfile.mkdtemp(prefix="kraftpy-"))
    nodes: list[Node] = []
    try:
        with Supervisor() as supervisor:
            nodes = _start(supervisor, root, port, overrides)
            if not nodes:
                return
            if output == "json":
                echo_json(_as_json(nodes))
            else:
                _greet(nodes, root, folder is None, time.monotonic() - started_at)

            def on_exit(node: Node, how: str) -> None:
                click.echo(
                    f"broker {node.id} (pid {node.pid}) {how}. To bring it back: "
                    f"kraftpy server --config {node.config_path}",
                    err=True,
                )

            supervisor.watch(on_exit, until_eof=exit_on_eof)
    finally:
        if folder is None:
            _remove(root, nodes)


def _start(
    supervisor: Supervisor, root: Path, port: int | None, overrides: Mapping[str, str]
) -> list[Node]:
    """Start the nodes; [] when told to stop before they were ready.

    A picked port may be gone when the node binds it; then another one is picked.
    """
    home = root / "node1"
    if not _unlocked(home / "data" / ".lock"):
        raise Failure(
            f"another process runs the broker in {home / 'data'}. Stop it, or choose another "
            "folder with --dir",
            EXIT_NOT_STARTED,
        )
    first_start = not (home / "server.properties").exists()
    for attempt in range(1, _PICK_ATTEMPTS + 1):
        node = Node(1, home / "server.properties", home / "data", home / "log")
        config, picked = _configure(node, port, overrides)
        supervisor.start(node, config)
        try:
            return [node] if supervisor.wait_ready([node]) else []
        except Failure:
            if attempt == _PICK_ATTEMPTS or all(_is_free(each) for each in picked):
                raise
            if first_start:
                node.config_path.unlink()
    raise AssertionError("the last attempt returns or raises")


def _configure(
    node: Node, port: int | None, overrides: Mapping[str, str]
) -> tuple[BrokerConfig, list[int]]:
    """Write the node's server.properties, or change what is asked for; and the ports picked.

    What cannot be used is not written: the folder starts again as it was.
    """
    picked: list[int] = []

    def pick() -> int:
        picked.append(_free_port(picked))
        return picked[-1]

    changes = dict(overrides)
    written = None
    try:
        node.config_path.parent.mkdir(parents=True, exist_ok=True)
        if node.config_path.exists():
            written = text = node.config_path.read_text(encoding="utf-8")
            listeners = parse_properties(text).get("listeners", "")
            if port is not None and "listeners" not in overrides:
                address = f"PLAINTEXT://{_HOST}:{port or pick()}"
                changes["listeners"] = re.sub(r"PLAINTEXT://[^,]*", address, listeners, count=1)
        else:
            broker_port = pick() if port == 0 else port or _DEFAULT_PORT
            text = _first_properties(node, broker_port, pick())
        text = _with_settings(text, changes)
        config = parse_config(text, str(node.config_path))
        if text != written:
            node.config_path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(
            f"cannot write {node.config_path}: {error.strerror}. Choose another folder with --dir",
            EXIT_NOT_STARTED,
        ) from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise Failure(f"{node.config_path}: {error}", EXIT_USAGE) from None
    return config, picked


def _first_properties(node: Node, port: int, controller_port: int) -> str:
    log_dir = str(node.log_dir)
    if "," in log_dir or not log_dir.isprintable():
        raise Failure(
            f"{log_dir!r} cannot be a data folder: log.dirs takes no commas in a name, and only "
            "printable characters",
            EXIT_USAGE,
        )
    escaped = log_dir.replace("\\", "\\\\")
    return f"""\
# Written by `kraftpy dev`.  To start this node by itself:
#   kraftpy server --config server.properties
node.id={node.id}
process.roles=broker,controller
listeners=PLAINTEXT://{_HOST}:{port},CONTROLLER://{_HOST}:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.voters={node.id}@{_HOST}:{controller_port}
log.dirs={escaped}

# One broker can hold one replica; and the first member of a group need not wait for others.
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
"""


def _with_settings(text: str, changes: Mapping[str, str]) -> str:
    """The text of a properties file with these settings changed or added."""
    for key, value in changes.items():
        line = f"{key}={value}".replace("\\", "\\\\").replace("\n", "\\n")
        pattern = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*[=:].*$", re.MULTILINE)
        if pattern.search(text):
            text = pattern.sub(line.replace("\\", r"\\"), text)
        else:
            text = f"{text.rstrip()}\n{line}\n"
    return text


def _free_port(but: Sequence[int]) -> int:
    for port in random.sample(_FREE_PORTS, 200):
        if port not in but and _is_free(port):
            return port
    raise Failure(f"no free port found on {_HOST}; give one with --port", EXIT_NOT_STARTED)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _as_json(nodes: Sequence[Node]) -> dict[str, object]:
    return {
        "bootstrap": ",".join(node.address for node in nodes),
        "brokers": [
            {
                "id": node.id,
                "pid": node.pid,
                "address": node.address,
                "dir": str(node.log_dir),
                "config": str(node.config_path),
            }
            for node in nodes
        ],
    }


def _greet(nodes: Sequence[Node], root: Path, temporary: bool, seconds: float) -> None:
    bootstrap = ",".join(node.address for node in nodes)
    option = "" if bootstrap == f"{_HOST}:{_DEFAULT_PORT}" else f" -b {bootstrap}"
    kept = "removed at the end; --dir DIR keeps one" if temporary else "kept"
    click.echo(
        f"""\
kraftpy is ready after {seconds:.2f} s

  bootstrap  {bootstrap}
  folder     {root} ({kept})

Try, in another terminal:
  echo hello | kraftpy produce greetings{option}
  kraftpy consume greetings{option}
  kcat -b {bootstrap} -L

Ctrl-C stops it."""
    )


def _remove(root: Path, nodes: Sequence[Node]) -> None:
    """Remove a temporary folder, unless a process uses one of its nodes."""
    in_use = [node for node in nodes if not _unlocked(node.log_dir / ".lock")]
    if in_use:
        click.echo(f"left {root} as it is: another process runs broker {in_use[0].id}", err=True)
        return
    shutil.rmtree(root, ignore_errors=True)


def _unlocked(lock: Path) -> bool:
    """Whether no process holds a lock file; one that is just dying gets a moment."""
    try:
        file = lock.open("rb")
    except OSError:  # there is none, or none that could be held
        return True
    deadline = time.monotonic() + _UNLOCK_TIMEOUT_S
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
            else:
                return True
