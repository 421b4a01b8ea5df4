"""What the nodes of a test's cluster reach one another through, and how links are broken.

Rules:

* A network is a program beside the nodes that takes orders (`LineProcess`): `proxies` passes on
  what nodes say to one another, `hub` is a network of Linux namespaces. Both break links between
  nodes only: clients reach every node.
* Both take the same orders, so a fault doesn't know which it is. What a cut does differs as
  networks do: a proxy goes on to accept connections and holds bytes back, a namespace's packets
  vanish, and TCP tries again by its own timers.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from kraftpy.testing.networks.ports import HOST, free_ports, is_free
from kraftpy.testing.process import LineProcess

__all__ = ["METRICS", "Layout", "Namespaces", "Network", "Proxied"]

METRICS = "kraftpy.metrics.listener"
_TIMEOUT_S = 30.0
_CLIENT_PORT, _CONTROLLER_PORT, _METRICS_PORT = 9092, 9093, 9404

Settings = dict[str, str]


@dataclass(slots=True)
class Layout:
    """What nodes have to be told: Kafka's settings, of all of them and of each by its id."""

    shared: Settings = field(default_factory=dict)
    nodes: dict[int, Settings] = field(default_factory=dict)


class Network(ABC):
    """A network for one cluster, not yet started; `errors` is where its program complains."""

    name = ""
    program = ""

    def __init__(self, errors: IO[bytes]) -> None:
        command = [sys.executable, "-m", f"{__name__}.{self.program}"]
        self._process = LineProcess(command, errors)

    @abstractmethod
    def lay(self, ids: Sequence[int], voters: Sequence[int]) -> Layout:
        """Makes place for the first nodes. Raises BrokerError, as all of these."""

    @abstractmethod
    def add(self, node_id: int) -> Settings:
        """Makes place for one more broker."""

    def options(self) -> list[str]:
        """What `kraftpy dev` is told besides."""
        return []

    @abstractmethod
    def started(self, pid: int) -> None:
        """The nodes are the children of this process."""

    @property
    def collided(self) -> bool:
        """Whether a port that was picked is not free: somebody else has it, or a node."""
        return False

    def tell(self, order: dict[str, Any]) -> dict[str, Any]:
        """Gives the program an order: what to do with links, above all. Its answer."""
        self._process.write_line(json.dumps(order))
        answer: dict[str, Any] = json.loads(self._process.read_line(_TIMEOUT_S))
        return answer

    def end(self) -> None:
        """Stops it; to be called when the nodes are gone."""
        self._process.end()


class Proxied(Network):
    """All nodes on 127.0.0.1; what they say to one another goes through a TCP proxy.

    Each node has a listener for clients (PLAINTEXT) and one for brokers (INTERNAL), the latter
    advertised, like its controller, under the proxy's address.
    """

    name = "proxy"
    program = "proxies"

    def __init__(self, errors: IO[bytes]) -> None:
        super().__init__(errors)
        self._ports: list[int] = []

    def lay(self, ids: Sequence[int], voters: Sequence[int]) -> Layout:
        controllers = dict(zip(voters, self._pick(len(voters)), strict=True))
        proxied = self.tell({"targets": list(controllers.items())})["ports"]
        addresses = zip(voters, proxied, strict=True)
        shared = {
            "controller.quorum.voters": ",".join(f"{i}@{HOST}:{port}" for i, port in addresses),
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,"
            "CONTROLLER:PLAINTEXT",
        }
        nodes = {each: self.add(each) for each in ids}
        for each, port in controllers.items():
            nodes[each]["listeners"] += f",CONTROLLER://{HOST}:{port}"
        return Layout(shared, nodes)

    def add(self, node_id: int) -> Settings:
        client, internal, metrics = self._pick(3)
        (proxied,) = self.tell({"targets": [[node_id, internal]]})["ports"]
        own = f"PLAINTEXT://{HOST}:{client}"
        return {
            "listeners": f"{own},INTERNAL://{HOST}:{internal}",
            "advertised.listeners": f"{own},INTERNAL://{HOST}:{proxied}",
            METRICS: f"{HOST}:{metrics}",
        }

    def started(self, pid: int) -> None:
        self.tell({"family": pid})

    @property
    def collided(self) -> bool:
        return not all(map(is_free, self._ports))

    def _pick(self, count: int) -> list[int]:
        ports = free_ports(count)
        while not set(ports).isdisjoint(self._ports):
            ports = free_ports(count)
        self._ports += ports
        return ports


class Namespaces(Network):
    """Each node in a network namespace of its own. This process must have been `entered`."""

    name = "namespaces"
    program = "hub"

    def __init__(self, errors: IO[bytes]) -> None:
        super().__init__(errors)
        self._places = ""

    def lay(self, ids: Sequence[int], voters: Sequence[int]) -> Layout:
        answer = self.tell({"nodes": list(ids)})
        self._places = answer["namespaces"]
        addresses = {each: answer["addresses"][str(each)] for each in ids}
        quorum = ",".join(f"{each}@{addresses[each]}:{_CONTROLLER_PORT}" for each in voters)
        nodes = {each: _settings_at(address) for each, address in addresses.items()}
        for each in voters:
            nodes[each]["listeners"] += f",CONTROLLER://{addresses[each]}:{_CONTROLLER_PORT}"
        return Layout({"controller.quorum.voters": quorum}, nodes)

    def add(self, node_id: int) -> Settings:
        return _settings_at(self.tell({"nodes": [node_id]})["addresses"][str(node_id)])

    def options(self) -> list[str]:
        return ["--netns", self._places]

    def started(self, pid: int) -> None:
        """The namespaces tell which node is which."""


def _settings_at(address: str) -> Settings:
    return {
        "listeners": f"PLAINTEXT://{address}:{_CLIENT_PORT}",
        METRICS: f"{address}:{_METRICS_PORT}",
    }
