"""`kraftpy offsets` without a ZooKeeper, or with what is none; conformance has a real one."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from .commands import TIMEOUT_S, failure

# The answer to ZooKeeper's ConnectRequest: a session of 1 s.
SESSION = struct.pack(">iiiq", 37, 0, 1000, 1) + struct.pack(">i16sb", 16, b"", 0)


@contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """What listens on a port and does `talk` with each connection; its address."""
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            try:
                talk(connection)
            except OSError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()
    thread.join(TIMEOUT_S)


def import_from(address: str, code: int, *args: str) -> str:
    return failure("offsets", "import", "--zookeeper", address, *args, code=code)


def test_nobody_listens() -> None:
    assert "no ZooKeeper answers: 127.0.0.1:1: connection refused" in import_from("127.0.0.1:1", 3)


def silent(connection: socket.socket) -> None:
    """Says nothing."""


def http(connection: socket.socket) -> None:
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def session_then_nonsense(connection: socket.socket) -> None:
    if len(connection.recv(1000)) >= 40:
        connection.sendall(SESSION)
        connection.recv(1000)
        connection.sendall(struct.pack(">iiqi", 16, 77, 0, 0))


def negative_size(connection: socket.socket) -> None:
    connection.recv(1)
    connection.sendall(struct.pack(">i", -5))


def ends(connection: socket.socket) -> None:
    connection.close()


@pytest.mark.parametrize("talk", [silent, http, session_then_nonsense, negative_size, ends])
def test_what_is_no_zookeeper(talk: Callable[[socket.socket], None]) -> None:
    with server(talk) as address:
        assert "no ZooKeeper answers" in import_from(address, 3, "--timeout", "0.5")


def test_an_answer_that_is_too_large_is_not_received() -> None:
    received = 0

    def talk(connection: socket.socket) -> None:
        nonlocal received
        if len(connection.recv(1000)) < 40:  # the look whether anybody listens
            return
        connection.sendall(SESSION)
        connection.recv(1000)
        connection.sendall(struct.pack(">i", 2**30))
        connection.setblocking(True)
        while True:
            received += connection.send(b"x" * 65536)

    with server(talk) as address:
        assert "no ZooKeeper answers" in import_from(address, 3, "--timeout", "1")
    assert received < 64 * 1024 * 1024


def test_without_kazoo() -> None:
    program = (
        "import sys; sys.modules['kazoo'] = None; sys.modules['kazoo.client'] = None; "
        "from kraftpy.cli import main; sys.argv[0] = 'kraftpy'; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "offsets", "import", "--zookeeper", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "kraftpy: ZooKeeper needs an extra of kraftpy: `pip install 'kraftpy[zookeeper]'`\n"
    )


@pytest.mark.parametrize("address", ["", "127.0.0.1:x", "127.0.0.1:99999", "/kafka"])
def test_addresses_that_make_no_sense(address: str) -> None:
    assert "HOST:PORT" in import_from(address, 2)
