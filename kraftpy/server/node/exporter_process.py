"""The node's third process, that of the metrics exporter: how it begins, ends and begins again.

Rules:

* It is forked before the node has a loop or a thread, after the controller, and dies with the node
  (the kernel sees to that).
* It does nothing that the node needs. If it ends, the node says so, goes on, and forks another one:
  after `RESTART_MIN_S`, each time twice as long up to `RESTART_MAX_S`, from the beginning again
  after one that lived for `SOUND_S`. The node keeps the sockets, so that a scrape that comes
  meanwhile waits.
* One that is forked later shares the memory of a running broker instead of a fresh one. What either
  of them changes afterwards is in memory twice, until it ends: that is the price of having it back
  at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from kraftpy.core.config import Address
from kraftpy.events import emit
from kraftpy.metrics.channel import Source
from kraftpy.metrics.exporter import Exporter
from kraftpy.quorum.forking import become_child, ignore_group_signals, log_fds
from kraftpy.server.network.listener import bind
from kraftpy.server.node.page_login import PageSecurity

if TYPE_CHECKING:
    from kraftpy.metrics.door import Door
    from kraftpy.page.site import Site

log = logging.getLogger(__name__)


RESTART_MIN_S = 0.1
RESTART_MAX_S = 30.0
SOUND_S = 60.0
_BIND_TIMEOUT_S = 2.0
_RETRY_S = 0.01
_NICE = 5  # where there is too little CPU, records go before numbers


class ExporterHandle:
    """The node's view of its exporter, which serves at `address`; made by `spawn`."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self.address = endpoint.address
        self._endpoint = endpoint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._restarting: asyncio.TimerHandle | None = None
        self._pause_s = RESTART_MIN_S
        self._start()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on another one takes its place when it ends."""
        self._loop = loop
        loop.add_reader(self._pidfd, self._ended)

    @property
    def has_tls(self) -> bool:
        """Whether it has a certificate, which can be loaded again."""
        return self._endpoint.has_tls

    def reload(self) -> None:
        """Has it load its certificate again."""
        if self._pid and self.has_tls:
            os.kill(self._pid, signal.SIGHUP)

    def stop(self) -> None:
        """Ends it; nothing that it does is worth waiting for."""
        if self._restarting is not None:
            self._restarting.cancel()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()
        self._endpoint.close()

    def _start(self) -> None:
        pid = self._endpoint.fork()
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._pid = pid
        self._started_at = time.monotonic()

    def _reap(self) -> int:
        """The exit code of one that has ended or is about to."""
        if self._loop is not None:
            self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _ended(self) -> None:
        pid = self._pid
        code = self._reap()
        reason = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        if time.monotonic() - self._started_at >= SOUND_S:
            self._pause_s = RESTART_MIN_S
        self._restart_later(pid, reason)

    def _restart_later(self, pid: int, reason: str) -> None:
        assert self._loop is not None
        emit(log, logging.ERROR, "exporter-ended", pid=pid, reason=reason, restart_s=self._pause_s)
        self._restarting = self._loop.call_later(self._pause_s, self._restart)
        self._pause_s = min(2 * self._pause_s, RESTART_MAX_S)

    def _restart(self) -> None:
        assert self._loop is not None
        self._restarting = None
        try:
            self._start()
        except OSError as error:
            self._restart_later(0, f"no process can be had: {error.strerror}")
            return
        self._loop.add_reader(self._pidfd, self._ended)
        emit(log, logging.INFO, "exporter-restarted", pid=self._pid)


class MetricsEndpoint:
    """What becomes the exporter: its listening socket, and the processes that it will ask."""

    def __init__(
        self,
        node_id: int,
        address: Address,
        dirs: Sequence[str],
        door: Door | None,
        secure: Callable[[], PageSecurity],
    ) -> None:
        """Raises OSError if the address can't be had."""
        self._node_id = node_id
        self._dirs = dirs
        self._door = door
        self._secure = secure
        self._listening = _bind(address)
        self._sources: list[Source] = []

    def add(self, name: str, pid: int, sock: socket.socket) -> None:
        """A process to ask over its `sock`, the exporter's end of a channel."""
        self._sources.append(Source(name, pid, sock))

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(*self._listening.getsockname()[:2])

    @property
    def has_tls(self) -> bool:
        """Whether it has a certificate."""
        return self._door is not None and self._door.tls is not None

    def spawn(self) -> ExporterHandle:
        """Starts the exporter. Raises OSError if no process can be had."""
        return ExporterHandle(self)

    def fork(self) -> int:
        """The id of a new process that serves."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run(parent)
        return pid

    def close(self) -> None:
        """Lets go of the sockets."""
        self._listening.close()
        for source in self._sources:
            source.close()

    def _open_site(self) -> Site:
        # Here, because it and the client that it stands on take memory.
        from kraftpy.page.site import Site

        return Site(self._node_id, self._sources, self._secure())

    def _run(self, parent: int) -> NoReturn:
        try:
            sockets = [self._listening.fileno(), *(source.fileno() for source in self._sources)]
            become_child(parent, "kraftpy-metrics", [*sockets, *log_fds()])
            ignore_group_signals()
            os.nice(_NICE)
            door = self._door
            if door is not None and door.tls is not None:
                tls = door.tls
                signal.signal(signal.SIGHUP, lambda *_: tls.reload())
            exporter = Exporter(
                self._node_id, self._sources, self._dirs, self._open_site, door, self._secure
            )
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
