"""Several kraftpy nodes for tests, with ways to break them and the links between them.

Rules:

* The nodes are started by `kraftpy dev --brokers N --ephemeral`: what a user starts, with its quick
  timeouts. They stop when this process is gone, however that ended, and with them goes a folder
  that `kraftpy dev` made.
* Faults are what a machine does to a process: SIGKILL, SIGSTOP, a network that is silent or resets.
  No node is asked to misbehave.
* Clients reach every node directly, unless the cluster is made with `faults=True`: then through
  `kraftpy.testing.requests`. What nodes say to one another goes through a network
  (`kraftpy.testing.networks`) that cuts links.
* Ports, folders and addresses stay the same over `kill`, `stop` and `restart`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from kraftpy.testing.clocks import Clocks, with_clocks
from kraftpy.testing.disks import Disks
from kraftpy.testing.networks import METRICS, Namespaces, Network, Proxied
from kraftpy.testing.node import Node
from kraftpy.testing.process import (
    BrokerError,
    LineProcess,
    is_alive,
    is_stopped,
    is_unlocked,
    log_tail,
    setting_text,
    wait_until,
)
from kraftpy.testing.requests import Requests, WithFaults
from kraftpy.testing.secured import PROXIED, Secured
from kraftpy.testing.state import ClusterError, ClusterState

__all__ = ["Cluster", "ClusterError"]

_START_ATTEMPTS = 5
_POLL_S = 0.02
_VOTERS = 3

_NETWORKS: dict[str, type[Network]] = {each.name: each for each in (Proxied, Namespaces)}

_FUTURE = "log.message.timestamp.after.max.ms"
_ANY_MS = 2**63 - 1

_Answer = TypeVar("_Answer")


class Cluster(ClusterState, WithFaults):
    """Kraftpy nodes with the ids 1, 2, ...; `with Cluster(3) as cluster` starts and stops them.

    Three or more have a metadata quorum of three. Topics have three replicas (as many as there are
    brokers, if those are fewer) and need all but one for acks=all, unless a setting says otherwise.

        with Cluster(3) as cluster:
            producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
            ...
            victim = cluster.leader_of("orders")
            cluster.kill(victim)
            ...
            cluster.restart(victim)
            cluster.wait_healthy()

    Args:
        brokers: how many
        dir: folder that is kept; by default one in memory, or else a temporary one, that is removed
        links: whether links can be cut; without, nodes talk to one another directly
        network: what cuts them: "proxy", or "namespaces" for a process that has entered one
            (`kraftpy.testing.networks.choice`)
        ephemeral: the quick timeouts of `kraftpy dev --ephemeral`; without, the defaults
        clocks: whether nodes' clocks can be set (`set_clock`); takes libfaketime
        secure: whether clients connect by TLS and log in, as with `kraftpy dev --secure`; `secured`
            has what they need (`kraftpy.testing.secured`)
        crashes: whether nodes can `crash`; they note what they fsync then
        small_disks: whether each has a disk of its own, which can be full (`kraftpy.testing.disks`)
        faults: whether requests of clients can be made to fail, and be observed: `fault`, `observe`
        start_timeout_s: how long the start may take
        settings: Kafka's, of every broker, `_` standing for `.`: `Cluster(3, num_partitions=6)`

    `bootstrap` names all brokers; `nodes` are the `Node`s by id; `program` is what starts kraftpy.
    Faults take ids, so
    `cluster.pause(cluster.controller())` does what it says. All methods raise `ClusterError`.
    """

    program: Sequence[str] = (sys.executable, "-m", "kraftpy")

    def __init__(
        self,
        brokers: int = 3,
        *,
        dir: str | Path | None = None,  # noqa: A002 - what the command line calls it
        links: bool = True,
        network: str = Proxied.name,
        ephemeral: bool = True,
        secure: bool = False,
        clocks: bool = False,
        crashes: bool = False,
        small_disks: bool = False,
        faults: bool = False,
        start_timeout_s: float = 30.0,
        **settings: object,
    ) -> None:
        super().__init__()
        self._count = self._ids = brokers
        self._dir = None if dir is None else Path(dir).absolute()
        self._temporary = dir is None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object lives
        self._make_network = _NETWORKS[network] if links else None
        if secure and links and network != Proxied.name:
            raise ValueError("a secured cluster has no certificates for a network of namespaces")
        if faults and self._make_network is not Proxied:
            raise ValueError("clients are kept apart from nodes by links=True, network='proxy'")
        self._faults = faults
        self._secure = secure
        self.secured: Secured | None = None
        self._ephemeral = ephemeral
        self._clocks = Clocks() if clocks else None
        self._notes = Path(_notes_file()) if crashes else None
        self._disks: Disks | None = None
        if small_disks:
            self._disks = Disks(f"node{each}" for each in range(1, brokers + 1))
            self._dir = self._disks.folder
        self._start_timeout_s = start_timeout_s
        self._settings = {key.replace("_", "."): setting_text(v) for key, v in settings.items()}
        if clocks:
            # A clock that is set back would have a node refuse what clients send as being of the
            # future, for good; librdkafka takes a new epoch then, and may write what it has under
            # way to other partitions once more (its issue 4953).
            self._settings.setdefault(_FUTURE, str(_ANY_MS))
        self._dev: LineProcess | None = None
        self._network: Network | None = None
        self.start_s = 0.0
        """Seconds that the start took: from spawning the command to its report that all answer."""

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        states = ", ".join(f"{node.id} {_state(node)}" for node in self.nodes.values())
        return f"<kraftpy cluster: {states or 'not started'}>"

    @property
    def bootstrap(self) -> str:
        """HOST:PORT,... of all brokers, for a client's bootstrap.servers."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def dir(self) -> Path:
        """The folder of all nodes; a temporary one is there from `start` to `close`."""
        if self._dir is None:
            raise ClusterError("the cluster has no folder yet: start() it")
        return self._dir

    # -- life

    def start(self) -> Cluster:
        """Starts all nodes and waits until they answer."""
        if self._dev is not None:
            raise ClusterError(f"{self!r} is started already")
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._start()
            except ClusterError:
                network = self._network
                self._end()
                # A port that was free when it was picked may be taken when a node binds it.
                if attempt == _START_ATTEMPTS or network is None or not network.collided:
                    raise
            else:
                return self
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Stops all nodes for good; a folder that was made for them is removed."""
        for node in self.nodes.values():
            if node.paused:
                self.resume(node.id)
        self._end()
        if self._clocks is not None:
            self._clocks.close()
        if self._notes is not None:
            self._notes.unlink(missing_ok=True)
        if self._disks is not None:
            self._disks.close()
        if self._temporary and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)  # there only if it had to be killed

    def kill(self, node: int) -> None:
        """Kills both processes of a node with -9, and waits until they are gone."""
        victim = self._running(node)
        pids = victim.pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        victim.running = victim.paused = False
        self._wait_for_end(victim, pids, "kill -9")

    def crash(self, node: int) -> str:
        """`kill`, and takes away what the node has not fsynced, as a power failure does.

        Returns in words what that was.
        """
        if self._notes is None:
            raise ClusterError("nodes can't crash: the cluster was made without crashes=True")
        from kraftpy.testing.synced import cut_unsynced

        self.kill(node)
        taken, files = cut_unsynced(self._node(node).log_dir, self._notes)
        return f"{taken} bytes of {files} files had not been synced and are gone"

    def stop(self, node: int) -> None:
        """Stops a node in order (SIGTERM): its leaderships move first."""
        victim = self._running(node)
        if victim.paused:
            self.resume(node)
        pids = victim.pids
        os.kill(victim.pid, signal.SIGTERM)
        victim.running = False
        self._wait_for_end(victim, pids, "SIGTERM")

    def restart(self, *nodes: int) -> None:
        """Starts nodes that were killed or stopped (running ones are stopped), until they answer.

        A broker answers once it has found a controller that leads, so when a majority of the voters
        is down they have to be restarted in one call.
        """
        for each in nodes:
            if self._node(each).running and not self._node(each).ended:
                self.stop(each)
        assert self._dev is not None
        for each in nodes:
            self._dev.write_line(f"start {each}")
        answers = [self._answer(self._dev) for _ in nodes]
        for answer in answers:
            if "pid" in answer:
                node = self._node(answer["id"])
                node.pid, node.running, node.paused = answer["pid"], True, False
        for answer in answers:
            if "error" in answer:
                raise ClusterError(f"broker {answer['id']} is not back: {answer['error']}")

    def pause(self, node: int) -> None:
        """Sends both processes of a node SIGSTOP: it is silent, and its connections stay open."""
        victim = self._running(node)
        victim.paused = True
        pids = victim.pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(map(is_stopped, pids)), f"broker {node} stands still after SIGSTOP")

    def resume(self, node: int) -> None:
        """Sends both processes of a paused node SIGCONT."""
        victim = self._running(node)
        for pid in victim.pids:
            with contextlib.suppress(ProcessLookupError):  # it has been killed meanwhile
                os.kill(pid, signal.SIGCONT)
        victim.paused = False

    # -- disks

    def fill_disk(self, node: int) -> None:
        """Leaves no room on a node's disk; the node may end by that (`Node.ended`)."""
        self._own_disks().fill(self._node(node).dir.name)

    def free_disk(self, node: int) -> None:
        """Gives a node's disk room again."""
        self._own_disks().free(self._node(node).dir.name)

    def _own_disks(self) -> Disks:
        if self._disks is None:
            raise ClusterError("disks can't be full: the cluster was made without small_disks=True")
        return self._disks

    # -- clocks

    def set_clock(self, node: int, offset_s: float) -> None:
        """Sets a node's wall clock that far from this machine's.

        It shows within `kraftpy.testing.clocks.NOTICED_S`, and stays so over restarts.
        """
        if self._clocks is None:
            raise ClusterError("clocks can't be set: the cluster was made without clocks=True")
        self._clocks.set(self._node(node).id, offset_s)

    # -- members

    def add(self) -> int:
        """Starts one more broker, with an id that none had before; the id. It has no replicas yet.

        It doesn't vote in the metadata quorum.
        """
        if self._network is None or self._dev is None:
            raise ClusterError("a cluster without links, or that isn't started, can't grow")
        from kraftpy.core.config import parse_properties  # every run of pytest loads this module

        self._ids += 1
        added = self._ids
        home = self.dir / f"node{added}"
        settings = parse_properties(next(iter(self.nodes.values())).config.read_text())
        settings |= {
            "node.id": str(added),
            "process.roles": "broker",
            "log.dirs": str(home / "data"),
        }
        settings |= self._placed(self._ask_network(lambda network: network.add(added)))
        home.mkdir(parents=True)
        lines = [f"{key}={value}" for key, value in settings.items()]
        (home / "server.properties").write_text("\n".join([*lines, ""]))
        if self._clocks is not None:
            self._clocks.set(added, 0.0)
        self._dev.write_line(f"start {added}")
        answer = self._answer(self._dev)
        if "error" in answer:
            raise ClusterError(f"broker {added} is not there: {answer['error']}")
        self._started(answer)
        return added

    def remove(self, node: int) -> None:
        """Stops a node for good and removes its folder; that it has no replicas is up to you."""
        victim = self._node(node)
        if victim.running:
            self.stop(node)
        del self.nodes[node]
        shutil.rmtree(victim.dir)

    # -- links

    def partition(self, a: int, b: int, *, one_way: bool = False, close: bool = False) -> None:
        """Cuts the link between two nodes, quorum and replication alike; clients reach both.

        By default the cut is silent: nothing arrives, nothing is refused, and it all arrives after
        `heal`. With `one_way` only what `a` sends to `b` is cut. With `close` the connections are
        reset instead, and new ones are too.
        """
        if a == b or (one_way and close):
            raise ValueError("a link has two ends, and only a silent cut has a direction")
        pairs = [(a, b)] if one_way or close else [(a, b), (b, a)]
        self._break({"close" if close else "stall": pairs})

    def isolate(self, node: int, *, close: bool = False) -> None:
        """Cuts a node's links to all others, as `partition` does."""
        for other in self.nodes:
            if other != node:
                self.partition(node, other, close=close)

    def slow(self, a: int, b: int, *, delay_ms: int) -> None:
        """Slows the link between two nodes: each piece takes that long before the next goes."""
        if a == b or delay_ms < 1:
            raise ValueError("a link has two ends, and a delay is a millisecond at least")
        self._break({"slow": [(a, b, delay_ms)]})

    def heal(self) -> None:
        """Mends all links. What was held back arrives."""
        self._break({"heal": True})

    # -- looking at it

    def wait_healthy(self, timeout_s: float = 30.0) -> None:
        """Waits until nothing is left of the faults.

        Every broker is unfenced and knows the same partitions, each of them with a leader and all
        of its replicas in sync; a controller leads, and no voter lacks committed metadata. At once
        `ClusterError` if a node is not running or is paused; cut links are only met as a timeout.
        """
        for node in self.nodes.values():
            if not node.running or node.paused:
                raise ClusterError(f"the cluster can't be healthy: broker {node.id} {_state(node)}")
        deadline = time.monotonic() + timeout_s
        while ills := self._ills():
            if time.monotonic() > deadline:
                text = "; ".join(ills[:5])
                raise ClusterError(f"not healthy after {timeout_s:g} s: {text}\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def log_tail(self) -> str:
        """What the command printed to stderr, and the last lines of each node's log."""
        size = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), size, 0).decode(errors="replace")
        logs = [] if self._dir is None else sorted(self._dir.glob("node*/log"))
        return said + log_tail(logs)

    # -- inside

    def _start(self) -> None:
        command = [*self._program(), "dev", "-o", "json", "--exit-on-eof"]
        command += ["--brokers", str(self._count)]
        command += ["--ephemeral"] * self._ephemeral + ["--secure"] * self._secure
        fresh = True
        if not self._temporary or self._disks is not None:
            command += ["--dir", str(self.dir)]
            fresh = not any(self.dir.glob("node*/server.properties"))
        settings = dict(self._settings)
        if self._faults:
            self._requests = Requests(self._errors, secure=self._secure)
        if self._make_network is not None:
            self._network = self._make_network(self._errors)
            settings |= self._linked()
            command += self._network.options()
        elif fresh:
            command += ["--port", "0"]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        environment = {}
        if self._clocks is not None:
            for each in range(1, self._count + 1):
                self._clocks.set(each, 0.0)
            environment = self._clocks.environment
            command += self._clocks.options
        started_at = time.monotonic()
        self._dev = LineProcess(command, self._errors, environment)
        if self._network is not None:
            self._network.started(self._dev.pid)
        ready = self._answer(self._dev)
        self.start_s = time.monotonic() - started_at
        if self._secure:
            self.secured = Secured(ready["secure"])
            self._security = self.secured.security()
            if self._requests is not None:
                self._requests.identify(self.secured.ca)
        for broker in ready["brokers"]:
            self._started(broker)
            self._dir = Path(broker["config"]).parent.parent

    def _started(self, broker: dict[str, Any]) -> None:
        """A node that wasn't there before answers: what `kraftpy dev` says of it."""
        host, _, port = broker["address"].rpartition(":")
        node_id, own = broker["id"], (host, int(port))
        place = own if self._requests is None else (host, self._requests.places[own[1]])
        folders = Path(broker["dir"]), Path(broker["config"])
        self.nodes[node_id] = Node(node_id, *place, broker["pid"], *folders, own)

    def _program(self) -> Sequence[str]:
        program = self.program
        if self._notes is not None:
            from kraftpy.testing.synced import tracked

            program = tracked(program, self._notes)
        return program if self._clocks is None else with_clocks(program)

    def _linked(self) -> dict[str, str]:
        """The settings that make the nodes use the network."""
        ids = range(1, self._count + 1)
        voters = ids[: _VOTERS if self._count >= _VOTERS else 1]
        layout = self._ask_network(lambda network: network.lay(ids, voters))
        settings = self._settings | layout.shared | (PROXIED if self._secure else {})
        for each, own in layout.nodes.items():
            if METRICS in self._settings:
                del own[METRICS]
            settings |= {f"{each}:{key}": value for key, value in self._placed(own).items()}
        return settings

    def _placed(self, settings: dict[str, str]) -> dict[str, str]:
        """A node's settings, so that clients find it where their requests can fail."""
        return settings if self._requests is None else self._requests.placed(settings)

    def _answer(self, process: LineProcess) -> dict[str, Any]:
        """The next line of a child, as JSON."""
        try:
            answer: dict[str, Any] = json.loads(process.read_line(self._start_timeout_s))
        except BrokerError as error:
            raise ClusterError(f"the cluster is not there: {error}\n{self.log_tail()}") from None
        return answer

    def _ask_network(self, ask: Callable[[Network], _Answer]) -> _Answer:
        if self._network is None:
            raise ClusterError("links can't be cut: the cluster was made with links=False")
        try:
            return ask(self._network)
        except BrokerError as error:
            raise ClusterError(f"the network is not there: {error}\n{self.log_tail()}") from None

    def _break(self, order: dict[str, Any]) -> None:
        """Has the network do something to links."""
        self._ask_network(lambda network: network.tell(order))

    def _end(self) -> None:
        if self._dev is not None:
            self._dev.end()
        for beside in (self._network, self._requests):
            if beside is not None:
                beside.end()
        self._dev = self._network = self._requests = None
        for node in self.nodes.values():
            node.running = node.paused = False

    def _node(self, node_id: int) -> Node:
        if node_id not in self.nodes:
            raise ClusterError(f"there is no broker {node_id!r} in {self!r}")
        return self.nodes[node_id]

    def _running(self, node_id: int) -> Node:
        node = self._node(node_id)
        if not node.running:
            raise ClusterError(f"broker {node_id} {_state(node)}; restart({node_id}) starts it")
        return node

    def _wait_for_end(self, node: Node, pids: Sequence[int], what: str) -> None:
        wait_until(
            lambda: not any(map(is_alive, pids)) and is_unlocked(node.log_dir / ".lock"),
            f"broker {node.id} is gone after {what}",
        )


def _state(node: Node) -> str:
    if not node.running:
        return "is not running"
    return "is paused" if node.paused else f"runs on {node.bootstrap} (pid {node.pid})"


def _notes_file() -> str:
    fd, path = tempfile.mkstemp(prefix="kraftpy-synced-")
    os.close(fd)
    return path
