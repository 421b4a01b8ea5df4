"""Free ports of this machine, for nodes that share it."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

from kraftpy.testing.process import BrokerError

HOST = "127.0.0.1"
_FREE_PORTS = range(10_000, 32_768)  # below those that the kernel gives to outgoing connections


def free_ports(count: int) -> list[int]:
    """Ports that could be bound now."""
    ports = list(_pick(count))
    if len(ports) < count:
        raise BrokerError(f"there are no {count} free ports on {HOST}")
    return ports


def _pick(count: int) -> Iterator[int]:
    for port in random.sample(_FREE_PORTS, 20 * count):
        if count and is_free(port):
            count -= 1
            yield port


def is_free(port: int) -> bool:
    """Whether a port could be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
