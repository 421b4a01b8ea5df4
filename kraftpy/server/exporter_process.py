"""The node's third process, that of the metrics exporter: how it begins and ends.

Rules:

* It is forked before the node has a loop or a thread, after the controller, and dies with the node
  (the kernel sees to that).
* It does nothing that the node needs. If it ends, the node says so once and goes on.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kraftpy.core.config import Address
from kraftpy.events import emit
from kraftpy.metrics.channel import Responder, Source
from kraftpy.metrics.events import EVENTS, event_frames
from kraftpy.metrics.exporter import Exporter
from kraftpy.metrics.loop_lag import LoopLag
from kraftpy.quorum.forking import become_child, log_fds
from kraftpy.server.broker import Broker
from kraftpy.server.listener import bind
from kraftpy.server.numbers import BrokerNumbers

if TYPE_CHECKING:
    from kraftpy.page.site import Site

log = logging.getLogger(__name__)


_BIND_TIMEOUT_S = 2.0
_RETRY_S = 0.01
_NICE = 5  # where there is too little CPU, records go before numbers


class ExporterHandle(NamedTuple):
    """The node's view of its exporter, which serves at `address`."""

    pid: int
    address: Address

    def stop(self) -> None:
        """Ends it; nothing that it does is worth waiting for."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def gone(self) -> None:
        """Says that it has ended."""
        emit(
            log,
            logging.ERROR,
            "exporter-ended",
            pid=self.pid,
            advice="the node goes on without metrics until its next start",
        )


class MetricsEndpoint:
    """What becomes the exporter: its listening socket, and the processes that it will ask."""

    def __init__(self, node_id: int, address: Address, dirs: Sequence[str]) -> None:
        """Raises OSError if the address can't be had."""
        self._node_id = node_id
        self._dirs = dirs
        self._listening = _bind(address)
        self._sources: list[Source] = []

    def add(self, name: str, pid: int, sock: socket.socket) -> None:
        """A process to ask over its `sock`, the exporter's end of a channel."""
        self._sources.append(Source(name, pid, sock))

    def spawn(self) -> ExporterHandle:
        """Forks the exporter, to which its sockets belong from then on."""
        address = Address(*self._listening.getsockname()[:2])
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run(parent)
        self._listening.close()
        for source in self._sources:
            source.close()
        return ExporterHandle(pid, address)

    def _open_site(self) -> Site:
        # Here, because it and the client that it stands on take memory.
        from kraftpy.page.site import Site

        return Site(self._node_id, self._sources)

    def _run(self, parent: int) -> NoReturn:
        try:
            sockets = [self._listening.fileno(), *(source.fileno() for source in self._sources)]
            become_child(parent, "kraftpy-metrics", [*sockets, *log_fds()])
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the node, which ends this
            os.nice(_NICE)
            exporter = Exporter(self._node_id, self._sources, self._dirs, self._open_site)
            exporter.serve(self._listening)
        except BaseException:
            log.critical("the metrics exporter failed", exc_info=True)
        finally:
            logging.shutdown()
            os._exit(1)


def _bind(address: Address) -> socket.socket:
    """A socket that listens; an exporter that is just dying gets a moment to let go of the port."""
    deadline = time.monotonic() + _BIND_TIMEOUT_S
    while True:
        try:
            return bind(address.host, address.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


def answer_metrics(sock: socket.socket, broker: Broker, on_gone: Callable[[], None]) -> None:
    """Answers the exporter at the other end of `sock` for as long as both live."""
    lag = LoopLag(broker.loop)
    numbers = BrokerNumbers(broker, lag)

    def gone() -> None:
        lag.close()
        on_gone()

    answers = {
        "metrics": numbers.metrics,
        "health": numbers.health,
        "node": numbers.node,
        "metadata": numbers.metadata,
        EVENTS: event_frames,
    }
    Responder(broker.loop, sock, answers, gone)
