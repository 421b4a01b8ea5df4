"""Whoever reaches a port can't fill the log: a line for each peer and cause and second."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.testing import Broker
from tests.server.wire import Wire
from tests.waiting import wait_until

MANY = 500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def unknown_api(broker: Broker) -> None:
    """API 999, by a client whose name is 32 KB of what moves a terminal's cursor."""
    name = b"\x1b[2J\n" * 6000
    frame = struct.pack(">hhih", 999, 0, 1, len(name)) + name
    send(broker.port, struct.pack(">i", len(frame)) + frame)


def impossible_size(broker: Broker) -> None:
    send(broker.port, b"GET / HTTP/1.1\r\n\r\n")


def quorum_port(broker: Broker) -> None:
    voters = re.search(
        r"^controller.quorum.voters=\d+@[^:]+:(\d+)", broker.config.read_text(), re.M
    )
    assert voters is not None
    send(int(voters.group(1)), b"GET / HTTP/1.1\r\n\r\n")


def send(port: int, data: bytes) -> None:
    """Sends it and waits until the peer has hung up."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        try:
            sock.sendall(data)
            while sock.recv(4096):
                pass
        except ConnectionError:
            pass


@pytest.mark.parametrize("bother", [unknown_api, impossible_size, quorum_port])
def test_many_bad_connections(broker: Broker, bother: Callable[[Broker], None]) -> None:
    before = broker.log_path.stat().st_size

    def lines() -> list[str]:
        return broker.log_path.read_bytes()[before:].decode().splitlines()

    def told() -> int:
        """So many connections the log accounts for, in lines and in counts."""
        counts = [re.search(r"event=connection-closed .*count=(\d+)", line) for line in lines()]
        written = sum(" connection-closed peer=127.0.0.1:" in line for line in lines())
        return written + sum(int(each.group(1)) for each in counts if each is not None)

    began_s = time.monotonic()
    for _ in range(MANY):
        bother(broker)
    took_s = time.monotonic() - began_s
    wait_until(lambda: told() == MANY, "the log accounts for all of them")
    assert len(lines()) <= 2 * (took_s + 2)
    assert max(map(len, lines())) < 1000
    assert all(line.isprintable() for line in lines())


def test_topics_that_cant_be_made(broker: Broker) -> None:
    before = broker.log_path.read_text().count("\n")
    kinds = messages.MetadataRequest
    names = [f"{'x' * 200}-{number}" for number in range(200)]
    with Broker(default_replication_factor=3) as alone, Wire(alone.host, alone.port) as wire:
        request = kinds(topics=[kinds.MetadataRequestTopic(name=name) for name in names])
        wire.call(ApiKey.METADATA, 9, request)
        text = alone.log_path.read_text()
        assert 0 < text.count("topic-refused topic=") <= 20
    assert broker.log_path.read_text().count("\n") == before
