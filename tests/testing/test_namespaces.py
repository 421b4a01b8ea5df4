"""Links between network namespaces: a cut is a cut, as sockets on both sides see it.

A process of its own makes the namespaces and says what it saw. It is run wherever a trial of them
works.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing import Cluster
from kraftpy.testing.consistency.faults import FAULTS, Ground
from kraftpy.testing.networks import choice
from kraftpy.testing.networks.hub import HUB, Hub, NetworkError, _ip
from tests.waiting import wait_until

from .conftest import TIMEOUT_S

PARTITIONS = [name for name in FAULTS if name.startswith("partition")]
PORT = 9092
SOON_S = 0.3  # the kernel delivers what passes at once; what is cut must not come
NODES = (1, 2, 3)
DELAY_MS = 120


class Links:
    """The part of a cluster that faults of links need, on a hub alone."""

    def __init__(self, hub: Hub) -> None:
        self.nodes = dict.fromkeys(NODES)
        self._hub = hub

    def partition(self, a: int, b: int, *, one_way: bool = False, close: bool = False) -> None:
        pairs = [(a, b)] if one_way or close else [(a, b), (b, a)]
        self._hub.answer({"close" if close else "stall": pairs})

    def isolate(self, node: int, *, close: bool = False) -> None:
        for other in NODES:
            if other != node:
                self.partition(node, other, close=close)

    def heal(self) -> None:
        self._hub.answer({"heal": True})


def address(node: int) -> tuple[str, int]:
    return f"10.77.0.{node}", PORT


class Site:
    """What runs inside: a listening TCP socket and a UDP socket on every node."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._asked = 0
        for node in NODES:
            hub.add(node)
        self.listening = {
            node: hub.within(node, partial(socket.create_server, address(node))) for node in NODES
        }
        self.datagrams = {node: hub.within(node, partial(udp, node)) for node in NODES}

    def dial(self, sender: int | None, receiver: int) -> tuple[socket.socket, socket.socket]:
        def connect() -> socket.socket:
            return socket.create_connection(address(receiver), timeout=SOON_S)

        dialing = connect() if sender is None else self.hub.within(sender, connect)
        self.listening[receiver].settimeout(SOON_S)
        accepted, (peer, _) = self.listening[receiver].accept()
        assert peer == (HUB if sender is None else address(sender)[0])
        accepted.settimeout(SOON_S)
        return dialing, accepted

    def heard(self) -> list[tuple[int, int]]:
        """Which node hears which: (sender, receiver)."""
        self._asked += 1
        for sender in NODES:
            for receiver in NODES:
                if sender != receiver:
                    said = bytes([sender, self._asked])
                    self.datagrams[sender].sendto(said, address(receiver))
        found = []
        deadline_s = time.monotonic() + SOON_S
        for receiver in NODES:
            with contextlib.suppress(TimeoutError):
                while True:
                    left_s = max(0.001, deadline_s - time.monotonic())
                    self.datagrams[receiver].settimeout(left_s)
                    sender, asked = self.datagrams[receiver].recv(10)
                    if asked == self._asked:  # and nothing that has come late
                        found.append((sender, receiver))
        return sorted(found)


def udp(node: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(address(node))
    return made


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except TimeoutError:
        return "silence"
    except OSError as error:
        return type(error).__name__


def exchange(sender: socket.socket, receiver: socket.socket, text: bytes) -> Any:
    """What arrives of a text that is sent."""

    def pass_on() -> str:
        sender.sendall(text)
        return receive(receiver)

    return outcome(pass_on)


def accepted(site: Site) -> str:
    site.dial(1, 2)
    return "accepted"


def receive(from_socket: socket.socket) -> str:
    return from_socket.recv(100).decode()


def look(site: Site) -> dict[str, Any]:
    """Everything that the tests want to know."""
    wait_until(lambda: pairs(site.heard()) == ALL, "the links are up")
    saw: dict[str, Any] = {"whole": site.heard()}
    links = Links(site.hub)
    for name in PARTITIONS:
        ground = Ground(links, {}, random.Random(5))  # type: ignore[arg-type]
        act = FAULTS[name].plan(ground)
        act.begin()
        saw[name] = {"targets": list(act.targets), "detail": act.detail, "heard": site.heard()}
        act.end()
    saw["healed"] = site.heard()
    for name, order in (
        ("silent", {"stall": [[1, 2], [2, 1]]}),
        ("one way", {"stall": [[1, 2]]}),
        ("reset", {"close": [[1, 2]]}),
    ):
        one, two = site.dial(1, 2)
        client, served = site.dial(None, 2)
        other, third = site.dial(1, 3)
        site.hub.answer(order)
        saw[name] = {
            "there": exchange(one, two, b"there"),
            "back": exchange(two, one, b"back"),
            "new": outcome(partial(accepted, site)),
            "client": exchange(client, served, b"client"),
            "other": exchange(other, third, b"other"),
        }
        site.hub.answer({"heal": True})
        for each in (one, two):
            each.settimeout(TIMEOUT_S)
        saw[name]["late"] = outcome(partial(receive, two))
        saw[name]["after"] = exchange(*site.dial(1, 2), b"after")
    return saw


async def slow(site: Site) -> dict[str, float]:
    one, two = site.dial(1, 2)
    client, served = site.dial(None, 2)
    loop = asyncio.get_running_loop()

    async def trip_ms(there: socket.socket, here: socket.socket) -> float:
        for each in (there, here):
            each.settimeout(TIMEOUT_S)
        began_s = loop.time()
        for sender, receiver in ((there, here), (here, there)):
            sender.sendall(b"x")
            await asyncio.to_thread(receiver.recv, 1)
        return (loop.time() - began_s) * 1000

    site.hub.answer({"slow": [[1, 2, DELAY_MS]]})
    saw = {"slow": await trip_ms(one, two), "client": await trip_ms(client, served)}
    data = bytes(300_000)  # many packets, all of them have to come
    one.setblocking(False)
    sending = loop.create_task(loop.sock_sendall(one, data))
    two.setblocking(False)
    received = 0
    while received < len(data):
        received += len(await asyncio.wait_for(loop.sock_recv(two, 1 << 16), TIMEOUT_S))
    await sending
    site.hub.answer({"heal": True})
    saw["healed"] = await trip_ms(one, two)
    return saw


def refusals(hub: Hub) -> list[str]:
    """Why there is no second hub, and none where there is another network."""

    def refusal() -> str:
        try:
            Hub()
        except NetworkError as error:
            return str(error)
        return "there is one"

    second = refusal()
    hub.close()
    _ip("link add other type veth peer name another", "link set other up")
    return [second, refusal()]


async def look_at_hub() -> dict[str, Any]:
    hub = Hub()
    hub.serve()
    site = Site(hub)
    saw = look(site)
    saw["slow"] = await slow(site)
    saw["refused"] = refusals(hub)
    return saw


def look_at_cluster() -> dict[str, Any]:
    """Where the processes of each node are, and of one that is added, and what is left of that."""

    def place(pid: int) -> str:
        return str(Path(f"/proc/{pid}/ns/net").readlink())

    with Cluster(3, network="namespaces") as cluster:
        cluster.add()
        cluster.wait_healthy()
        places = {i: [place(pid) for pid in node.pids] for i, node in cluster.nodes.items()}
        bootstrap = cluster.bootstrap
    left = [name for _, name in socket.if_nameindex()]
    return {"here": place(os.getpid()), "places": places, "bootstrap": bootstrap, "left": left}


def main(what: str) -> None:
    choice.enter(choice.Choice("namespaces", "this is a test of them"))
    saw = look_at_cluster() if what == "cluster" else asyncio.run(look_at_hub())
    print(json.dumps(saw), flush=True)


def seen(what: str) -> dict[str, Any]:
    if way := choice.in_the_way():
        pytest.skip(f"no network namespaces here: {way}")
    command = [sys.executable, "-m", "tests.testing.test_namespaces", what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def saw() -> dict[str, Any]:
    return seen("hub")


def pairs(found: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    return {(one, other) for one, other in found}


ALL = {(one, other) for one in NODES for other in NODES if one != other}


def test_nodes_hear_one_another_until_a_link_is_cut_and_after(saw: dict[str, Any]) -> None:
    assert pairs(saw["whole"]) == pairs(saw["healed"]) == ALL


def expected_cut(name: str, targets: Sequence[int], detail: str) -> set[tuple[int, int]]:
    """Who must not hear whom any more."""
    first, last = targets[0], targets[-1]
    touching = {pair for pair in ALL if first in pair}
    sends = {pair for pair in ALL if pair[0] == first}
    match name:
        case "partition" | "partition-reset" | "partition-majority":
            return touching
        case "partition-one-way":
            return sends if "of it" in detail else touching - sends
        case "partition-bridge":
            return {(first, last), (last, first)}
        case "partition-pair-one-way":
            return {(first, last)}
        case "partition-pair-reset":
            return {(first, last), (last, first)}
        case "partition-ring":
            return {(each, targets[place - 1]) for place, each in enumerate(targets)}
    raise AssertionError(f"what does {name} cut?")


@pytest.mark.parametrize("name", PARTITIONS)
def test_each_partition_cuts_what_it_says(saw: dict[str, Any], name: str) -> None:
    cut = ALL - pairs(saw[name]["heard"])
    assert cut == expected_cut(name, saw[name]["targets"], saw[name]["detail"])


def test_a_silent_cut_is_silent_for_old_and_new_connections(saw: dict[str, Any]) -> None:
    assert saw["silent"] == {
        "there": "silence",
        "back": "silence",
        "new": "silence",
        "client": "client",
        "other": "other",
        "late": "there",  # TCP sends it again
        "after": "after",
    }


def test_one_direction_is_cut_alone(saw: dict[str, Any]) -> None:
    # Without answers no handshake; what comes the other way arrives.
    assert saw["one way"] | {"back": "back", "there": "silence", "new": "silence"} == saw["one way"]
    assert saw["one way"]["late"] == "there"
    assert (saw["one way"]["client"], saw["one way"]["after"]) == ("client", "after")


def test_a_hard_cut_resets_and_refuses(saw: dict[str, Any]) -> None:
    found = saw["reset"]
    assert {found["there"], found["back"]} <= {"ConnectionResetError", "BrokenPipeError", "silence"}
    assert "ConnectionResetError" in (found["there"], found["back"], found["late"])
    assert found["new"] == "ConnectionRefusedError"
    assert (found["client"], found["other"], found["after"]) == ("client", "other", "after")


def test_a_slow_link_is_late_both_ways_and_loses_nothing(saw: dict[str, Any]) -> None:
    assert saw["slow"]["slow"] >= 2 * DELAY_MS
    assert saw["slow"]["client"] < 2 * DELAY_MS
    assert saw["slow"]["healed"] < 2 * DELAY_MS


def test_it_meddles_with_no_other_network(saw: dict[str, Any]) -> None:
    second, foreign = saw["refused"]
    assert "another cluster uses" in second
    assert "it has other" in foreign


def test_each_node_of_a_cluster_is_in_a_namespace_of_its_own() -> None:
    found = seen("cluster")
    places = [set(each) for each in found["places"].values()]
    assert [len(each) for each in places] == [1, 1, 1, 1]
    assert len(set.union(*places) | {found["here"]}) == 5
    assert found["bootstrap"] == ",".join(f"10.77.0.{node}:{PORT}" for node in (1, 2, 3, 4))
    assert found["left"] == ["lo"]


if __name__ == "__main__":
    main(sys.argv[1])
