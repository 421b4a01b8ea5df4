"""The program that is the network of a test's cluster: a namespace for each node, routes between.

`python -m kraftpy.testing.networks.hub` is started by `kraftpy.testing.networks`. The namespace
that it runs in, with the clients, is the hub: each node's is linked to it by a veth pair, and what
nodes send to one another the hub forwards.

Rules:

* What a link does is a routing rule for packets that come in from one node for another, so clients
  reach every node, and one direction can be cut by itself. A cut is silent (`blackhole`): packets
  vanish, whatever TCP then makes of it.
* A reset sends the packets to the hub's own TCP, which has the address of every node but none of
  their sockets: it answers each with RST, in the name of the node that they were for.
* A slow link goes over a device that holds packets back (`slowness`).
* One of these in a network namespace at a time, and none in one that is used for anything else. It
  leaves nothing behind; what one that was killed left is removed first.
* It ends with its stdin, or with SIGTERM.

stdin and stdout are lines of JSON. First comes {"nodes": [id, ...]}, answered with {"addresses":
{id: address}, "namespaces": a format for paths, with `id`}; then, each answered with {}:
{"nodes": [id, ...]} for more, answered like the first, {"stall": [[sender, receiver], ...]},
{"slow": [[a, b, ms], ...]}, {"close": [[a, b], ...]}, {"heal": true}.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kraftpy.testing import isolation
from kraftpy.testing.networks.slowness import Slowness, make_plain

HUB = "10.77.255.1"
_NODES = "10.77.0.0/24"
_LOCK = "\0kraftpy-hub"  # names in this space belong to a network namespace
_FIRST_FD = 100
_OWN_DEVICE = "eth0"
_PREFIX = "kp-"
_SLOW = f"{_PREFIX}slow"
_SLOW_MAC = "02:00:00:00:00:77"
_SLOW_TABLE = 77
# Of two rules the lower preference counts: what is slow can be cut.
_PREFERENCES = (5, 10, 20, 30, 50, 100)
(
    _PREFER_HELD,
    _PREFER_CUT,
    _PREFER_RESET,
    _PREFER_SLOW,
    _PREFER_NODES,
    _PREFER_LOCAL,
) = _PREFERENCES

_Pair = tuple[int, int]
_Result = TypeVar("_Result")


class NetworkError(Exception):
    """The network could not be made or changed; the text says why."""


class Hub:
    """The links between nodes, in the network namespace of this process."""

    def __init__(self) -> None:
        self._lock = socket.socket(socket.AF_UNIX)
        try:
            self._lock.bind(_LOCK)
        except OSError:
            raise NetworkError("another cluster uses this network namespace") from None
        up = [each.get("ifname", "") for each in json.loads(_ip("link show up", options=["-j"]))]
        if others := [each for each in up if each not in ("", "lo") and _PREFIX not in each]:
            raise NetworkError(f"this is no network namespace for tests: it has {min(others)}")
        self._namespaces: dict[int, int] = {}
        self._stalled: set[_Pair] = set()
        self._closed: set[_Pair] = set()
        self._slow: set[_Pair] = set()
        self._rules: set[str] = set()
        self._clean()
        for name in ("all/rp_filter", "default/rp_filter", "all/send_redirects"):
            _set(f"conf/{name}", "0")
        _set("ip_forward", "1")
        hub = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._slowness = _in_thread(lambda: _make_slowness(hub))
        finally:
            os.close(hub)
        make_plain(_SLOW)
        _ip(
            "link set lo up",
            f"address replace {HUB}/32 dev lo",
            f"link set {_SLOW} up arp off",
            f"route replace default dev {_SLOW} table {_SLOW_TABLE}",
            f"rule add pref {_PREFER_HELD} iif {_SLOW} lookup main",
            # Every node's address counts as the hub's own, for `reset`; that comes last otherwise.
            f"route replace local {_NODES} dev lo table local",
            f"rule add pref {_PREFER_NODES} to {_NODES} lookup main",
            f"rule add pref {_PREFER_LOCAL} lookup local",
            "rule delete pref 0",
        )

    def serve(self) -> None:
        """Begins to forward what is slow."""
        self._slowness.serve()

    def close(self) -> None:
        """Leaves the namespace as it was, but for settings of the kernel."""
        self._slowness.close()
        self._clean()
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._lock.close()

    def add(self, node_id: int) -> str:
        """Makes the namespace of a node, if there is none; the node's address."""
        address = _address(node_id)
        if node_id in self._namespaces:
            return address
        hub = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            own = _in_thread(lambda: _make(node_id, hub))
        finally:
            os.close(hub)
        # Under a number that whoever starts the node can tell from its id.
        self._namespaces[node_id] = os.dup2(own, _FIRST_FD + node_id, inheritable=False)
        os.close(own)
        _ip(
            f"link set {_device(node_id)} up",
            f"route add {address}/32 dev {_device(node_id)} src {HUB}",
        )
        return address

    def within(self, node_id: int, work: Callable[[], _Result]) -> _Result:
        """Does something from where a node is: a socket stays there."""
        return _in_thread(lambda: _entered(self._namespaces[node_id], work))

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out a line of stdin."""
        if "nodes" in order:
            addresses = {each: self.add(each) for each in order["nodes"]}
            return {"addresses": addresses, "namespaces": f"/proc/{os.getpid()}/fd/1{{id:02d}}"}
        self._obey(order)
        return {}

    def _obey(self, order: dict[str, Any]) -> None:
        self._stalled.update((sender, receiver) for sender, receiver in order.get("stall", ()))
        for a, b in order.get("close", ()):
            self._closed.update(((a, b), (b, a)))
        for a, b, delay_ms in order.get("slow", ()):
            for pair in ((a, b), (b, a)):
                self._slow.add(pair)
                self._slowness.delays_s[_addresses(pair)] = delay_ms / 1000
        if "heal" in order:
            self._stalled.clear()
            self._closed.clear()
            self._slow.clear()
        rules = {_rule(_PREFER_CUT, pair, "blackhole") for pair in self._stalled}
        rules |= {_rule(_PREFER_RESET, pair, "lookup local") for pair in self._closed}
        rules |= {_rule(_PREFER_SLOW, pair, f"lookup {_SLOW_TABLE}") for pair in self._slow}
        changes = [f"rule delete {each}" for each in sorted(self._rules - rules)]
        changes += [f"rule add {each}" for each in sorted(rules - self._rules)]
        self._rules = rules
        if changes:
            _ip(*changes)
        if "heal" in order:
            self._slowness.forget()
        for pair in self._stalled | self._closed:
            self._slowness.drop(_addresses(pair))

    def _clean(self) -> None:
        devices = [name for _, name in socket.if_nameindex() if name.startswith(_PREFIX)]
        rules = json.loads(_ip("rule show", options=["-j"]))
        there = {rule["priority"] for rule in rules}
        commands = [f"link delete {name}" for name in devices]
        if 0 not in there:
            commands.append("rule add pref 0 lookup local")
            commands.append(f"route delete local {_NODES} dev lo table local")
        ours = [rule["priority"] for rule in rules if rule["priority"] in _PREFERENCES]
        commands += [f"rule delete pref {preference}" for preference in ours]
        # The kernel may just be removing some of these.
        _ip(*commands, options=["-force"])


def _make_slowness(hub: int) -> Slowness:
    """Makes the pair of devices between the hub and a namespace that only holds packets back."""
    os.close(isolation.own_network())  # the socket keeps it
    _ip(
        f"link add {_OWN_DEVICE} type veth peer name {_SLOW} address {_SLOW_MAC}"
        f" netns /proc/self/fd/{hub}",
        f"link set {_OWN_DEVICE} up arp off",
        fds=[hub],
    )
    return Slowness(_OWN_DEVICE, bytes.fromhex(_SLOW_MAC.replace(":", "")))


def _make(node_id: int, hub: int) -> int:
    """Makes a node's namespace and its link to the hub's, from a thread that is of no more use."""
    own = isolation.own_network()
    _ip(
        "link set lo up",
        f"link add {_OWN_DEVICE} type veth peer name {_device(node_id)} netns /proc/self/fd/{hub}",
        f"address add {_address(node_id)}/32 dev {_OWN_DEVICE}",
        f"link set {_OWN_DEVICE} up",
        f"route add {HUB} dev {_OWN_DEVICE}",
        f"route add default via {HUB}",
        fds=[hub],
    )
    return own


def _entered(namespace: int, work: Callable[[], _Result]) -> _Result:
    isolation.enter(namespace)
    return work()


def _in_thread(work: Callable[[], _Result]) -> _Result:
    """Does something in a thread of its own, which alone changes its namespace."""
    done: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def carry_out() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=carry_out)
    thread.start()
    thread.join()
    return done.result()


def _address(node_id: int) -> str:
    return f"10.77.0.{node_id}"


def _addresses(pair: _Pair) -> tuple[str, str]:
    return _address(pair[0]), _address(pair[1])


def _device(node_id: int) -> str:
    return f"{_PREFIX}{node_id}"


def _rule(preference: int, pair: _Pair, action: str) -> str:
    sender, receiver = _addresses(pair)
    return f"pref {preference} iif {_device(pair[0])} from {sender} to {receiver} {action}"


def _set(name: str, value: str) -> None:
    try:
        Path(f"/proc/sys/net/ipv4/{name}").write_text(value)
    except OSError as error:
        raise NetworkError(f"net.ipv4.{name} can't be set: {error.strerror}") from None


def _ip(*commands: str, options: Sequence[str] = (), fds: Sequence[int] = ()) -> str:
    """Has `ip` carry out commands, one after the other; what it printed."""
    try:
        done = subprocess.run(  # noqa: S603 - the commands are ours
            ["ip", *options, "-batch", "-"],  # noqa: S607 - where it lies differs
            input="\n".join(commands) + "\n",
            capture_output=True,
            text=True,
            pass_fds=fds,
            check=False,
        )
    except FileNotFoundError:
        raise NetworkError("there is no `ip`: apt-get install iproute2") from None
    if done.returncode and "-force" not in options:
        raise NetworkError(f"ip: {done.stderr.strip()} ({'; '.join(commands)})")
    return done.stdout


async def _main() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, reader.feed_eof)
    hub = Hub()
    hub.serve()
    try:
        while line := await reader.readline():
            sys.stdout.write(json.dumps(hub.answer(json.loads(line))) + "\n")
            sys.stdout.flush()
    finally:
        hub.close()


if __name__ == "__main__":
    try:
        asyncio.run(_main())
    except NetworkError as failure:
        sys.exit(str(failure))
