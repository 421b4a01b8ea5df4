"""What the parts of a node's start hand to each other, and to who started it.

A leaf: the processes beside the broker are forked before anything of the broker is imported.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from kraftpy.frozen import NamedTuple
from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.process import ControllerHandle

if TYPE_CHECKING:
    from kraftpy.server.node.exporter_process import ExporterHandle


class StartupError(Exception):
    """The node can't start; the message is for the person who started it."""


class NodeInfo(NamedTuple):
    """A node that answers clients."""

    node_id: int
    pid: int
    host: str
    port: int
    metrics: str | None


Ready = Callable[[NodeInfo], None]


class Quorum(NamedTuple):
    """How this node's broker reaches the controllers."""

    voters: dict[int, tuple[str, int]]
    credentials: Credentials


class Processes(NamedTuple):
    """What there is beside the broker; `metrics` is its end of the channel to the exporter."""

    quorum: Quorum
    controller: ControllerHandle | None
    exporter: ExporterHandle | None
    metrics: socket.socket | None
