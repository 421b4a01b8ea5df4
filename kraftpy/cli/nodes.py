"""The folder of a `kraftpy dev` cluster: `nodeN/server.properties`, `nodeN/data`, `nodeN/log`.

Rules:

* Three or more brokers have a quorum of three voters, the first three nodes. One or two brokers
  have one voter: a majority of two is two, so a second voter would only add a way to stop.
* The voters and brokers of a cluster share one secret, `quorum.secret` beside the nodes.
* Topics have min(3, N) replicas if nobody says otherwise, of which all but one must have a record
  before acks=all is answered: one node may die and everything goes on.
* A folder that has the files already is started again as it is, so edits to them count.
* server.properties names the real ports, also when a free one was picked: `kraftpy server --config`
  starts the same node at the same address. A free port is picked below the range that the kernel
  gives to outgoing connections, so that none of those takes it while a node is down.
* What a secured cluster has beside that is `securing`'s to know.
* What cannot be used is not written: the folder starts again as it was.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kraftpy.cli.common import EXIT_NOT_STARTED, EXIT_USAGE, Failure
from kraftpy.cli.securing import PROTOCOL, Secured, secure, secured
from kraftpy.cli.server import parse_config
from kraftpy.cli.supervisor import Node
from kraftpy.core.config import BrokerConfig, ConfigError, parse_properties

HOST = "127.0.0.1"
PLAINTEXT = "PLAINTEXT"
DEFAULT_PORT = 9092
DEFAULT_METRICS_PORT = 9404  # where Prometheus's exporters for Kafka have theirs
MAX_BROKERS = 99
SECRET_FILE = "quorum.secret"  # noqa: S105 - a file's name

EPHEMERAL_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "5",
}
"""What `--ephemeral` writes: a stopped process is noticed in 3 s instead of 9 (broker) and 30
(replica), and the first group waits for 5 partitions instead of 50. Nothing about durability."""

_FREE_PORTS = range(10_000, 32_768)
_VOTERS = 3
_REPLICAS = 3
_CLIENTS = re.compile(rf"\b({PLAINTEXT}|{PROTOCOL})://[^,]*", re.ASCII)
_NODE_FOLDER = re.compile(r"node([1-9][0-9]?)", re.ASCII)
# What must differ between the nodes, so `-c KEY=VALUE` for all of them makes no sense.
_ONE_NODE_ONLY = (
    "node.id",
    "broker.id",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "kraftpy.metrics.listener",
)

_HEADER = """\
# Written by `kraftpy dev`.  To start this node by itself:
#   kraftpy server --config server.properties"""

Settings = Mapping[int | None, Mapping[str, str]]
"""Settings by the node that they're for, None for every node."""


@dataclass(slots=True)
class Prepared:
    """Nodes that can be started, and the ports that were picked for them."""

    nodes: list[tuple[Node, BrokerConfig]]
    picked: list[int]
    first_start: bool

    def discard(self) -> None:
        """Undoes a first start, so that the next one picks other ports, or is one."""
        if self.first_start:
            for node, _ in self.nodes:
                with contextlib.suppress(OSError):  # it was never written
                    node.config_path.unlink()


def existing_nodes(root: Path) -> list[Node]:
    """The nodes that the folder has, by id."""
    try:
        names = [path.parent.name for path in root.glob("node*/server.properties")]
    except OSError:
        return []
    ids = sorted(int(match[1]) for name in names if (match := _NODE_FOLDER.fullmatch(name)))
    return [_node(root, node_id) for node_id in ids]


def prepare(
    root: Path,
    brokers: int | None,
    port: int | None,
    settings: Settings,
    *,
    ephemeral: bool,
    with_security: bool = False,
) -> Prepared:
    """Writes what the nodes need, or changes what is asked for. Raises `Failure`."""
    there = existing_nodes(root)
    if there and with_security and secured(root) is None:
        raise Failure(
            f"{root} holds a cluster that isn't secured: leave --secure out, or choose another "
            "folder with --dir",
            EXIT_USAGE,
        )
    if there and brokers not in (None, len(there)):
        raise Failure(
            f"{root} holds a cluster of {len(there)}: leave --brokers out, or choose another "
            "folder with --dir",
            EXIT_USAGE,
        )
    nodes = there or [_node(root, number + 1) for number in range(brokers or 1)]
    _check_settings([node.id for node in nodes], settings)
    picked: list[int] = []

    def pick(wanted: int = 0) -> int:
        """The port if it is free, else any other."""
        picked.append(wanted if wanted and is_free(wanted) else _free_port(picked))
        return picked[-1]

    texts: list[str]
    written: list[str | None]
    if there:
        texts = [_read(node) for node in nodes]
        written = list(texts)
        if port is not None:
            for place, text in enumerate(texts):
                texts[place] = _with_port(text, port + place if port else pick())
    else:
        security = secure(root) if with_security else None
        texts = _first_texts(root, nodes, port, pick, ephemeral=ephemeral, security=security)
        written = [None for _ in nodes]
    configs = []
    for place, node in enumerate(nodes):
        changes = {**settings.get(None, {}), **settings.get(node.id, {})}
        texts[place] = with_settings(texts[place], changes)
        configs.append(parse_config(texts[place], str(node.config_path), given=changes))
    prepared = Prepared(list(zip(nodes, configs, strict=True)), picked, not there)
    try:
        if not there and len(nodes) > 1:
            secret = base64.b64encode(os.urandom(32)).decode()
            _write(root / SECRET_FILE, f"{secret}\n", mode=0o600)
        for node, text, old in zip(nodes, texts, written, strict=True):
            if text != old:
                _write(node.config_path, text)
    except Failure:
        prepared.discard()
        raise
    return prepared


def is_free(port: int) -> bool:
    """Whether the port could be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _node(root: Path, node_id: int) -> Node:
    home = root / f"node{node_id}"
    return Node(node_id, home / "server.properties", home / "data", home / "log")


def _check_settings(ids: Sequence[int], settings: Settings) -> None:
    for node_id in settings:
        if node_id is not None and node_id not in ids:
            raise Failure(
                f"there is no broker {node_id} for '-c {node_id}:...'; there are {ids}", EXIT_USAGE
            )
    shared = [key for key in _ONE_NODE_ONLY if settings.get(None, {}).get(key)]
    if shared and len(ids) > 1:
        raise Failure(
            f"{shared[0]} has to differ between the brokers: set it for each, as in "
            f"-c {ids[0]}:{shared[0]}=...",
            EXIT_USAGE,
        )


def _first_texts(
    root: Path,
    nodes: Sequence[Node],
    port: int | None,
    pick: Callable[..., int],
    *,
    ephemeral: bool,
    security: Secured | None,
) -> list[str]:
    """server.properties of every node of a new cluster."""
    if "," in str(root) or not str(root).isprintable():
        raise Failure(
            f"{str(root)!r} cannot be a data folder: log.dirs takes no commas in a name, and only "
            "printable characters",
            EXIT_USAGE,
        )
    first = DEFAULT_PORT if port is None else port
    if first + len(nodes) > 65536:
        raise Failure(f"{len(nodes)} ports from {first} on are too many; --port 0", EXIT_USAGE)
    ports = [first + place if first else pick() for place in range(len(nodes))]
    voting = nodes[: _VOTERS if len(nodes) >= _VOTERS else 1]
    voters = {node.id: f"{HOST}:{pick()}" for node in voting}
    metrics = DEFAULT_METRICS_PORT if first == DEFAULT_PORT else 0
    metrics_ports = {node.id: pick(metrics and metrics + n) for n, node in enumerate(nodes)}
    shared = _shared_settings(root, len(nodes), voters)
    if ephemeral:
        shared |= EPHEMERAL_SETTINGS
    if security is not None:
        shared |= security.settings()
    protocol = PLAINTEXT if security is None else PROTOCOL
    texts = []
    for node, own_port in zip(nodes, ports, strict=True):
        settings = {
            "node.id": str(node.id),
            "process.roles": "broker,controller" if node.id in voters else "broker",
            "listeners": f"{protocol}://{HOST}:{own_port}",
        }
        if node.id in voters:
            settings["listeners"] += f",CONTROLLER://{voters[node.id]}"
        settings["log.dirs"] = str(node.log_dir)
        settings["kraftpy.metrics.listener"] = f"{HOST}:{metrics_ports[node.id]}"
        lines = [_line(*setting) for setting in (settings | shared).items()]
        texts.append("\n".join([_HEADER, *lines, ""]))
    return texts


def _shared_settings(root: Path, brokers: int, voters: Mapping[int, str]) -> dict[str, str]:
    """What all nodes of a cluster have in common."""
    replicas = min(_REPLICAS, brokers)
    settings = {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{i}@{address}" for i, address in voters.items()),
    }
    if brokers > 1:
        settings |= {
            "kraftpy.quorum.secret.file": str(root / SECRET_FILE),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(max(1, replicas - 1)),
        }
    return settings | {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(max(1, replicas - 1)),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(max(1, replicas - 1)),
        # The first member of a group need not wait for others.
        "group.initial.rebalance.delay.ms": "0",
    }


def _read(node: Node) -> str:
    try:
        return node.config_path.read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot read {node.config_path}: {error.strerror}", EXIT_USAGE) from None
    except UnicodeDecodeError as error:
        raise Failure(f"{node.config_path}: {error}", EXIT_USAGE) from None


def _write(path: Path, text: str, mode: int = 0o666) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(path, flags, mode), "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
    except OSError as error:
        raise Failure(
            f"cannot write {path}: {error.strerror}. Choose another folder with --dir",
            EXIT_NOT_STARTED,
        ) from None


def _with_port(text: str, port: int) -> str:
    """The text of a properties file with another port for clients."""
    try:
        listeners = parse_properties(text).get("listeners", "")
    except ConfigError:
        return text  # parse_config will say what is wrong
    address = rf"\1://{HOST}:{port}"
    return with_settings(text, {"listeners": _CLIENTS.sub(address, listeners, count=1)})


def with_settings(text: str, changes: Mapping[str, str]) -> str:
    """The text of a properties file with these settings changed or added."""
    for key, value in changes.items():
        line = _line(key, value)
        pattern = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*[=:].*$", re.MULTILINE)
        if pattern.search(text):
            text = pattern.sub(line.replace("\\", r"\\"), text)
        else:
            text = f"{text.rstrip()}\n{line}\n"
    return text


def _line(key: str, value: str) -> str:
    return f"{key}={value}".replace("\\", "\\\\").replace("\n", "\\n")


def _free_port(but: Sequence[int]) -> int:
    for port in random.sample(_FREE_PORTS, 200):
        if port not in but and is_free(port):
            return port
    raise Failure(f"no free port found on {HOST}; give one with --port", EXIT_NOT_STARTED)
