"""The folder of a `kraftpy dev` cluster: `nodeN/server.properties`, `nodeN/data`, `nodeN/log`.

Rules:

* Three or more brokers have a quorum of three voters, the first three nodes. One or two brokers
  have one voter: a majority of two is two, so a second voter would only add a way to stop.
* The voters and brokers of a cluster share one secret, `quorum.secret` beside the nodes.
* Topics have min(3, N) replicas if nobody says otherwise, of which all but one must have a record
  before acks=all is answered: one node may die and everything goes on.
* A folder that has the files already is started again as it is, so edits to them count.
* Brokers that are added to a folder vote on nothing, and have what all others have in common. What
  follows from the number of brokers follows the new one, where nobody has set it otherwise.
* server.properties names the real ports, also when a free one was picked: `kraftpy server --config`
  starts the same node at the same address. A free port is picked below the range that the kernel
  gives to outgoing connections, so that none of those takes it while a node is down.
* What a secured cluster has beside that is `securing`'s to know.
* A folder that was moved or copied has its own data: what named the old one names this one then.
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
from functools import partial
from pathlib import Path

import click

from kraftpy.cli.common import EXIT_NOT_STARTED, EXIT_USAGE, Failure
from kraftpy.cli.securing import PROTOCOL, USERS, Secured, secure, secured
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

_DATA_MARK = "meta.properties"  # what every folder of data has
_FREE_PORTS = range(10_000, 24_000)  # behind them are those of kraftpy.testing
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
    """Nodes that can be started, the ports that were picked for them, and which ones are new."""

    nodes: list[tuple[Node, BrokerConfig]]
    picked: list[int]
    added: list[Node]

    def discard(self) -> None:
        """Undoes a first start, of all or of those that were added: the next one picks anew."""
        for node in self.added:
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
    more = (brokers or len(there) or 1) - len(there)
    if more < 0:
        raise Failure(
            f"{root} holds a cluster of {len(there)}, and a broker may be the only one that has "
            "some records: leave --brokers out, or choose another folder with --dir. `kraftpy "
            "cluster decommission ID` takes a broker out while it runs; then its folder can go.",
            EXIT_USAGE,
        )
    last_id = there[-1].id if there else 0
    if last_id + more > MAX_BROKERS:
        raise Failure(
            f"a broker after broker {last_id} of {root} would have an id above {MAX_BROKERS}: "
            "choose another folder with --dir",
            EXIT_USAGE,
        )
    added = [_node(root, last_id + number + 1) for number in range(more)]
    nodes = [*there, *added]
    _check_settings([node.id for node in nodes], settings)
    picked: list[int] = []

    def pick(wanted: int = 0) -> int:
        """The port if it is free, else any other."""
        picked.append(wanted if wanted and is_free(wanted) else _free_port(picked))
        return picked[-1]

    old = [_read(node) for node in there]
    here = _moved(root, there, old)
    if there:
        texts = _grown_texts(root, there, here, added, pick) if added else list(here)
        if port is not None:
            for place, text in enumerate(texts):
                texts[place] = _with_port(text, port + place if port else pick())
    else:
        security = secure(root) if with_security else None
        texts = _first_texts(root, nodes, port, pick, ephemeral=ephemeral, security=security)
    configs = []
    for place, node in enumerate(nodes):
        changes = {**settings.get(None, {}), **settings.get(node.id, {})}
        texts[place] = with_settings(texts[place], changes)
        configs.append(parse_config(texts[place], str(node.config_path), given=changes))
    prepared = Prepared(list(zip(nodes, configs, strict=True)), picked, added)
    try:
        if len(there) < 2 <= len(nodes):
            secret = base64.b64encode(os.urandom(32)).decode()
            _write(root / SECRET_FILE, f"{secret}\n", mode=0o600)
        for node, text in zip(added, texts[len(there) :], strict=True):
            _write(node.config_path, text)
        for node, text, before in zip(there, texts, old, strict=False):
            if text != before:
                _write(node.config_path, text)
        if here != old:
            _tell_clients(root)
            click.echo(f"{root} was moved or copied: its settings name it as it is now", err=True)
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


def _moved(root: Path, nodes: Sequence[Node], texts: Sequence[str]) -> list[str]:
    """The texts of properties files, with this folder where they name the one of before.

    Else nodes would look for their data there, and begin anew where there are none.
    """
    found: list[dict[str, str]] = []
    for text in texts:
        try:
            found.append(parse_properties(text))
        except ConfigError:
            return list(texts)  # parse_config will say what is wrong
    before = next(filter(None, map(partial(_root_before, root), nodes, found)), None)
    if before is None:
        return list(texts)
    return [
        with_settings(
            text,
            {
                key: str(root) + value.removeprefix(before)
                for key, value in settings.items()
                if value.startswith(f"{before}/")
            },
        )
        for text, settings in zip(texts, found, strict=True)
    ]


def _root_before(root: Path, node: Node, settings: Mapping[str, str]) -> str | None:
    """Where the folder was when it got the data that a node has here; None if that was here."""
    data = settings.get("log.dirs", "")
    before = data.removesuffix(f"/{node.log_dir.relative_to(root)}")
    if data in (before, str(node.log_dir)) or not (node.log_dir / _DATA_MARK).exists():
        return None
    with contextlib.suppress(OSError):
        if Path(before).samefile(root):  # by another name: a link, or a mount
            return None
    return before


def _tell_clients(root: Path) -> None:
    """Has the files for clients of a secured cluster name its authority where that is now."""
    there = secured(root)
    for user in USERS if there is not None else ():
        assert there is not None
        for path, key in (
            (there.client_conf(user), "ssl.ca.location"),
            (there.client_properties(user), "ssl.truststore.location"),
        ):
            if path.exists():
                text = path.read_text(encoding="utf-8")
                _write(path, with_settings(text, {key: str(there.authority)}))


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
    return {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{i}@{address}" for i, address in voters.items()),
        **_settings_by_size(root, brokers),
        # The first member of a group need not wait for others.
        "group.initial.rebalance.delay.ms": "0",
    }


def _settings_by_size(root: Path, brokers: int) -> dict[str, str]:
    """Those that follow from how many brokers there are."""
    replicas = min(_REPLICAS, brokers)
    settings = {}
    if brokers > 1:
        settings = {
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
    }


def _grown_texts(
    root: Path,
    there: Sequence[Node],
    texts: Sequence[str],
    added: Sequence[Node],
    pick: Callable[..., int],
) -> list[str]:
    """server.properties of every node of a cluster that gets more brokers. Raises `Failure`."""
    before = _settings_by_size(root, len(there))
    after = _settings_by_size(root, len(there) + len(added))
    grown: list[str] = []
    found: list[dict[str, str]] = []
    for node, text in zip(there, texts, strict=True):
        try:
            settings = parse_properties(text)
        except ConfigError as error:
            raise Failure(f"{node.config_path}: {error}", EXIT_USAGE) from None
        changes = {k: v for k, v in after.items() if settings.get(k) == before.get(k) != v}
        grown.append(with_settings(text, changes))
        found.append({**settings, **changes})
    last = found[-1]
    shared = {
        key: value
        for key, value in last.items()
        if key not in (*_ONE_NODE_ONLY, "process.roles")
        and all(each.get(key) == value for each in found)
    }
    client = _CLIENTS.search(last.get("listeners", ""))
    port = _port_of(client[0] if client else "")
    metrics = last.get("kraftpy.metrics.listener", "")
    metrics_port = _port_of(metrics)
    for node in added:
        port = pick(port and port + 1)
        protocol = PLAINTEXT if secured(root) is None else PROTOCOL
        settings = {
            "node.id": str(node.id),
            "process.roles": "broker",
            "listeners": f"{protocol}://{HOST}:{port}",
            "log.dirs": str(node.log_dir),
        }
        if metrics:
            metrics_port = pick(metrics_port and metrics_port + 1)
            settings["kraftpy.metrics.listener"] = f"{HOST}:{metrics_port}"
        lines = [_line(*setting) for setting in (settings | shared).items()]
        grown.append("\n".join([_HEADER, *lines, ""]))
    return grown


def _port_of(address: str) -> int:
    """The port at the end of an address, 0 if there is none, or none behind it."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() and int(port) < 65_535 else 0


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
