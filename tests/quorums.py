"""Three nodes, each a command of its own: kraftpy's here, Apache Kafka's in `tests.apache_kafka`.

What `tests.processes` is for one node. The benchmarks and the race start, kill and restart single
nodes through it, with stock commands and stock settings.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from kraftpy.protocol.errors import DecodeError
from kraftpy.testing.process import BrokerError
from kraftpy.testing.view import ClusterView, PartitionView, ask_metadata, ask_quorum
from tests.processes import (
    Kraftpy,
    Process,
    brokers_named,
    descendants,
    kill,
    setting_options,
    split_address,
    tail,
)
from tests.waiting import wait_until

START_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 20.0
POLL_S = 0.005
ELECT_EVERY_S = 10.0

Partitions = Mapping[tuple[str, int], PartitionView]
Condition = Callable[[Partitions], bool]


class Quorum:
    """Nodes with the ids 1, 2 and 3 below `folder`, which the caller removes."""

    name: str
    addresses: dict[int, str]  # HOST:PORT for clients, by id
    log_dirs: dict[int, Path]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[int, Process] = {}

    def command(self, node: int) -> list[str]:
        """The command line that runs the node in the foreground."""
        raise NotImplementedError

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    @property
    def log_dir(self) -> Path:
        """One of the folders with partitions: all are on one disk."""
        return self.log_dirs[1]

    @property
    def running(self) -> list[int]:
        return list(self._processes)

    def pids(self, node: int | None = None) -> list[int]:
        """All processes of one node, or of all."""
        nodes = self.running if node is None else [node]
        return [pid for each in nodes for pid in descendants(self._processes[each].popen.pid)]

    def start(self) -> float:
        """Starts all nodes; seconds from the first command until the last one knows all three."""
        started_at = time.monotonic()
        for node in self.addresses:
            self.spawn(node)
        for node in self.addresses:
            self.wait_answering(node, len(self.addresses))
        return time.monotonic() - started_at

    def spawn(self, node: int) -> None:
        """Starts one node and doesn't wait for it."""
        self._processes[node] = Process(self.command(node), self._log(node))

    def wait_answering(self, node: int, brokers: int = 1) -> None:
        """Until the node answers Metadata and names this many brokers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while brokers_named(self.addresses[node]) < brokers:
            popen = self._processes[node].popen
            if popen.poll() is not None:
                raise BrokerError(f"node {node} ended with {popen.returncode}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"node {node} doesn't answer\n{self.log_tail()}")
            time.sleep(POLL_S)

    def view(self, node: int, timeout_s: float = ASK_TIMEOUT_S) -> ClusterView | None:
        """The cluster as this node sees it, None if it doesn't answer."""
        try:
            return ask_metadata(*split_address(self.addresses[node]), timeout_s)
        except (OSError, DecodeError):
            return None

    def partitions(self) -> Partitions:
        """All partitions, as the first node sees them that answers."""
        for node in self.running:
            view = self.view(node)
            if view is not None:
                return view.partitions
        raise BrokerError(f"no node answers\n{self.log_tail()}")

    def leader_of(self, topic: str, partition: int = 0) -> int:
        return self.partitions()[topic, partition].leader

    def controller(self) -> int:
        """The node that leads the metadata quorum, as the first node knows that answers."""
        for node in self.running:
            with contextlib.suppress(OSError, DecodeError):
                found = ask_quorum(*split_address(self.addresses[node]), ASK_TIMEOUT_S)
                if found.leader >= 0:
                    return found.leader
        raise BrokerError(f"nobody leads the metadata quorum\n{self.log_tail()}")

    def wait_balanced(self, topic: str) -> None:
        """Elects preferred leaders, until every running node leads a partition of the topic."""
        wanted = [TopicPartition(topic, i) for name, i in self.partitions() if name == topic]

        def is_balanced(found: Partitions) -> bool:
            leaders = {each.leader for (name, _), each in found.items() if name == topic}
            return leaders >= set(self.running)

        self._elect_until(is_balanced, "balanced", wanted)

    def prefer_leaders(self) -> None:
        """Elects preferred leaders, until all partitions are led by their first replicas."""

        def is_so(found: Partitions) -> bool:
            return all(each.leader == each.replicas[0] for each in found.values())

        self._elect_until(is_so, "led by first replicas", None)

    def _elect_until(
        self, is_so: Condition, what: str, wanted: list[TopicPartition] | None
    ) -> None:
        """Elects preferred leaders of these partitions, None: of all, until that is so."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            # An election passes over replicas that aren't in sync yet, and controllers may change.
            admin.elect_leaders(ElectionType.PREFERRED, wanted).result(START_TIMEOUT_S)
            try:
                self.wait_until(is_so, what, ELECT_EVERY_S)
            except BrokerError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def wait_until(self, condition: Condition, what: str, timeout_s: float = 120.0) -> float:
        """Until the condition has held at every running node; how many seconds that took."""
        nodes = self.running

        def holds() -> bool:
            while nodes:
                view = self.view(nodes[0])
                if view is None or not condition(view.partitions):
                    return False
                del nodes[0]
            return True

        try:
            return wait_until(holds, what, timeout_s)
        except BrokerError as error:
            raise BrokerError(f"{error}\n{self.log_tail()}") from None

    def wait_in_sync(self, timeout_s: float = 120.0) -> float:
        """Until all replicas of all partitions are in sync; returns the seconds."""
        return self.wait_until(_in_sync, "in sync", timeout_s)

    def kill(self, node: int) -> None:
        """kill -9 of all processes of a node; its folder stays."""
        kill(self.pids(node))
        self._processes.pop(node).stop()

    def end(self, node: int) -> None:
        """SIGTERM to a node, which leaves then; its folder stays."""
        self._processes.pop(node).stop()

    def restart(self, node: int) -> None:
        """Starts a node that was killed or ended, until it and the others know of one another."""
        self.spawn(node)
        for each in self.running:
            self.wait_answering(each, len(self.running))

    def stop(self) -> None:
        """Ends all nodes, by force if need be."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.popen.terminate()
        for process in self._processes.values():
            process.stop()
        self._processes.clear()

    def _log(self, node: int) -> Path:
        return self.folder / f"node{node}.log"

    def log_tail(self) -> str:
        return "\n".join(tail(self._log(node), 8) for node in self.addresses)


def _in_sync(partitions: Partitions) -> bool:
    return bool(partitions) and all(each.in_sync for each in partitions.values())


class KraftpyQuorum(Quorum):
    """The configuration is what `kraftpy dev --brokers 3` writes; then `kraftpy server` runs it.

    `settings` are every broker's, `_` standing for `.`.
    """

    name = "kraftpy"

    def __init__(self, folder: Path, **settings: object) -> None:
        super().__init__(folder)
        dev = Kraftpy.command("dev", "--brokers", "3", "-o", "json", "--port", "0")
        self._dev = [*dev, "--dir", str(folder / "data"), *setting_options(settings)]
        self.addresses, self.log_dirs = {}, {}
        self.configs: dict[int, Path] = {}
        self.dev_start_s = self._write_configuration()
        """Seconds from spawning `kraftpy dev --brokers 3` to its report that all answer."""

    def _write_configuration(self) -> float:
        process = Process(self._dev, self.folder / "dev.log", capture=True)
        try:
            ready = json.loads(process.first_line())
            seconds = time.monotonic() - process.spawned_at
        finally:
            process.stop()
        for broker in ready["brokers"]:
            self.addresses[broker["id"]] = broker["address"]
            self.log_dirs[broker["id"]] = Path(broker["dir"])
            self.configs[broker["id"]] = Path(broker["config"])
        return seconds

    def start_by_dev(self) -> float:
        """Seconds that `kraftpy dev --brokers 3` takes on the folder as it is; it is ended then."""
        return self._write_configuration()

    def command(self, node: int) -> list[str]:
        return Kraftpy.command("server", "--config", str(self.configs[node]))

    def setting(self, node: int, key: str) -> str:
        """A line of the node's server.properties."""
        for line in self.configs[node].read_text().splitlines():
            name, _, value = line.partition("=")
            if name == key:
                return value
        raise KeyError(key)


@contextlib.contextmanager
def running(quorum: Quorum) -> Iterator[Quorum]:
    """Starts three nodes, hands them over, and ends them whatever happens."""
    try:
        quorum.start()
        yield quorum
    finally:
        quorum.stop()
