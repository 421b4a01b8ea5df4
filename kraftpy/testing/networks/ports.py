"""Free ports of this machine, for nodes that share it.

A node that was killed comes back on its ports, and until then nobody may be given them. So each
process picks from a slice of its own: it listens on the slice's first port for as long as it lives.
`kraftpy dev`, which knows no slices, picks below all of them.
"""

from __future__ import annotations

import os
import random
import socket

from kraftpy.testing.process import BrokerError

HOST = "127.0.0.1"
_SLICE = 128
_FIRST, _END = 24_000, 32_768  # below the ports that the kernel gives to outgoing connections
_SLICES = range(_FIRST, _END - _SLICE, _SLICE)


class _Own:
    """The slices that a process has taken."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._guards: list[socket.socket] = []
        self._ports: list[int] = []

    def take(self) -> bool:
        """Takes one more slice; False when all are taken."""
        for first in random.sample(_SLICES, len(_SLICES)):
            guard = socket.socket()
            try:
                guard.bind((HOST, first))
                guard.listen()
            except OSError:
                guard.close()
                continue
            self._guards.append(guard)
            self._ports += range(first + 1, first + _SLICE)
            return True
        return False

    def free(self) -> list[int]:
        return [port for port in random.sample(self._ports, len(self._ports)) if is_free(port)]


_own = _Own()


def free_ports(count: int) -> list[int]:
    """Ports that could be bound now, and that no other process is given while this one lives.

    Raises BrokerError when there are not so many.
    """
    global _own
    if _own.process_id != os.getpid():  # it was forked: its parent's slices aren't its own
        _own = _Own()
    while len(found := _own.free()) < count:
        if not _own.take():
            raise BrokerError(f"there are no {count} free ports on {HOST}")
    return found[:count]


def is_free(port: int) -> bool:
    """Whether a port could be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
