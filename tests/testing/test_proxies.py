"""The proxies between nodes: who dials is recognized, and a cut link behaves as a network would.

The nodes are stand-ins, children of this process that carry a node's name and a socket.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.process import LineProcess

from .conftest import TIMEOUT_S

# One connection, to which a listening node accepts and a dialing node connects.
NODE = """
import json, socket, sys
open("/proc/self/comm", "w").write(sys.argv[1])
listening, connection = socket.create_server(("127.0.0.1", 0)), None
print(json.dumps(listening.getsockname()[1]), flush=True)
for line in sys.stdin:
    order, argument = json.loads(line)
    try:
        if order == "dial":
            connection = socket.create_connection(("127.0.0.1", argument))
            answer = None
        elif order == "accept":
            listening.settimeout(argument)
            connection = listening.accept()[0]
            answer = None
        elif order == "send":
            answer = connection.sendall(argument.encode())
        elif order == "close":
            answer = connection.close()
        else:
            connection.settimeout(argument)
            answer = connection.recv(100).decode()
    except TimeoutError:
        answer = "silence"
    except OSError as error:
        answer = "reset"
    print(json.dumps(answer), flush=True)
"""
SOON_S = 0.2  # long enough for what passes to arrive; what is cut must not


class StandIn:
    def __init__(self, name: str, errors: Path) -> None:
        with errors.open("wb") as stderr:
            self._process = LineProcess([sys.executable, "-c", NODE, name], stderr)
        self.port: int = json.loads(self._process.read_line(TIMEOUT_S))

    def do(self, order: str, argument: Any = None) -> Any:
        self._process.write_line(json.dumps([order, argument]))
        return json.loads(self._process.read_line(TIMEOUT_S))

    def end(self) -> None:
        self._process.end()


class Net:
    """Two nodes, one dialing the other through a proxy, and somebody who is no node."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        def started(name: str) -> StandIn:
            node = StandIn(name, folder / name)
            cleanup.callback(node.end)
            return node

        self.one, self.two = started("kraftpy-1"), started("kraftpy-2")
        self.stranger = started("stranger")
        command = [sys.executable, "-m", "kraftpy.testing.networks.proxies"]
        with (folder / "proxies").open("wb") as stderr:
            self._proxies = LineProcess(command, stderr)
        cleanup.callback(self._proxies.end)
        self.port: int = self.tell({"targets": [[2, self.two.port]]})["ports"][0]
        self.tell({"family": os.getpid()})

    def tell(self, order: dict[str, Any]) -> Any:
        self._proxies.write_line(json.dumps(order))
        return json.loads(self._proxies.read_line(TIMEOUT_S))

    def connect(self) -> None:
        self.one.do("dial", self.port)
        self.two.do("accept", TIMEOUT_S)

    def passes(self, sender: StandIn, receiver: StandIn, text: str = "hello") -> None:
        sender.do("send", text)
        assert receiver.do("receive", TIMEOUT_S) == text


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with ExitStack() as cleanup:
        yield Net(tmp_path, cleanup)


def test_bytes_and_the_end_pass(net: Net) -> None:
    net.connect()
    net.passes(net.one, net.two)
    net.passes(net.two, net.one)
    net.one.do("close")
    assert net.two.do("receive", TIMEOUT_S) == ""


def test_a_silent_cut_holds_everything_back_until_it_is_healed(net: Net) -> None:
    net.connect()
    net.tell({"stall": [[1, 2], [2, 1]]})
    net.one.do("send", "from 1")
    net.two.do("send", "from 2")
    net.one.do("close")
    assert net.two.do("receive", SOON_S) == "silence"
    net.tell({"heal": True})
    assert net.two.do("receive", TIMEOUT_S) == "from 1"
    assert net.two.do("receive", TIMEOUT_S) in ("", "reset")  # 1 closed without reading


def test_a_new_connection_meets_silence_too(net: Net) -> None:
    net.tell({"stall": [[1, 2], [2, 1]]})
    net.one.do("dial", net.port)
    net.one.do("send", "hello")
    assert net.two.do("accept", SOON_S) == "silence"
    net.tell({"heal": True})
    assert net.two.do("accept", TIMEOUT_S) is None
    assert net.two.do("receive", TIMEOUT_S) == "hello"


def test_one_direction_can_be_cut_alone(net: Net) -> None:
    net.connect()
    net.tell({"stall": [[2, 1]]})
    net.passes(net.one, net.two)
    net.two.do("send", "back")
    assert net.one.do("receive", SOON_S) == "silence"
    net.tell({"heal": True})
    assert net.one.do("receive", TIMEOUT_S) == "back"


def test_a_hard_cut_resets_both_ends_and_refuses_new_connections(net: Net) -> None:
    net.connect()
    net.tell({"close": [[1, 2]]})
    assert net.one.do("receive", TIMEOUT_S) == "reset"
    assert net.two.do("receive", TIMEOUT_S) == "reset"
    if net.one.do("dial", net.port) is None:  # the reset may come before or after the handshake
        assert net.one.do("receive", TIMEOUT_S) == "reset"
    assert net.two.do("accept", SOON_S) == "silence"
    net.tell({"heal": True})
    net.connect()
    net.passes(net.one, net.two)


def test_other_links_and_strangers_are_not_cut(net: Net) -> None:
    net.tell({"stall": [[1, 3], [3, 1], [1, 1]], "close": [[2, 3]]})
    net.connect()
    net.passes(net.one, net.two)
    net.tell({"stall": [[1, 2], [2, 1]]})
    net.stranger.do("dial", net.port)
    net.two.do("accept", TIMEOUT_S)
    net.passes(net.stranger, net.two)


def test_the_end_of_a_target_is_seen(net: Net) -> None:
    net.connect()
    net.two.end()
    assert net.one.do("receive", TIMEOUT_S) in ("", "reset")
    net.one.do("dial", net.port)
    assert net.one.do("receive", TIMEOUT_S) == "reset"


def test_it_ends_with_its_stdin(net: Net) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kraftpy.testing.networks.proxies"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"targets": [[1, 1]]}\n')
        process.stdin.flush()
        assert select.select([process.stdout], [], [], TIMEOUT_S)[0]
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0


def test_a_slow_link_is_late_until_it_is_healed(net: Net) -> None:
    net.connect()
    net.tell({"slow": [[1, 2, 1000 * int(TIMEOUT_S)]]})
    for sender, receiver in ((net.one, net.two), (net.two, net.one)):
        sender.do("send", "late")
        assert receiver.do("receive", SOON_S) == "silence"
    net.tell({"heal": True})
    assert net.two.do("receive", TIMEOUT_S) == "late"
    assert net.one.do("receive", TIMEOUT_S) == "late"
