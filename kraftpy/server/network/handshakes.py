"""Handshakes of TLS: in a queue, so that many clients that connect hold nobody up.

A step of a handshake takes up to half a millisecond of the event loop. What has come for one waits
in a queue, of which STEPS_A_TURN are done in each turn of the loop: others' requests come between.
What else a login has to compute waits there, too, and has a turn for itself (`compute`).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from kraftpy.server.network.tls_channel import TlsChannel
from kraftpy.server.network.unestablished import Place, Unestablished

STEPS_A_TURN = 4


Ended = Callable[["Handshake", str | None], None]


class Handshake:
    """One that goes on. `ended` is called once: with None if it's done, else with the reason."""

    __slots__ = ("channel", "ended", "fd", "over", "place")

    def __init__(self, sock: socket.socket, channel: TlsChannel, ended: Ended) -> None:
        self.fd = sock.fileno()
        self.channel = channel
        self.ended = ended
        self.place: Place | None = None
        self.over = False


class Handshakes:
    """All handshakes of a broker. Each has a place in `unestablished`, which it leaves at the end;
    one that succeeds keeps its place: `ended` hands it on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, unestablished: Unestablished) -> None:
        self._loop = loop
        self._unestablished = unestablished
        self._queue: deque[Handshake | Callable[[], None]] = deque()
        self._scheduled = False
        self.done = 0  # since the start, as is `failed`
        self.failed = 0

    def begin(self, shake: Handshake) -> None:
        """The peer speaks first."""
        shake.place = self._unestablished.enter(lambda reason: self._fail(shake, reason))
        self._loop.add_reader(shake.fd, self._readable, shake)

    def compute(self, work: Callable[[], None]) -> None:
        """Calls `work`, which takes milliseconds, when it's its turn."""
        self._queue.append(work)
        self._schedule()

    def _readable(self, shake: Handshake) -> None:
        self._loop.remove_reader(shake.fd)
        self._queue.append(shake)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        steps = 0
        while self._queue and steps < STEPS_A_TURN:
            shake = self._queue.popleft()
            if not isinstance(shake, Handshake):
                steps = STEPS_A_TURN
                shake()
            elif not shake.over:
                steps += 1
                self._step(shake)
        if self._queue:
            self._schedule()

    def _step(self, shake: Handshake) -> None:
        try:
            if shake.channel.shake_hands():
                self._succeed(shake)
                return
            unsent = not shake.channel.push()
        except OSError as error:
            self._fail(shake, str(error.strerror or error))
            return
        if unsent:
            self._loop.add_writer(shake.fd, self._writable, shake)
        if not shake.channel.established:
            self._loop.add_reader(shake.fd, self._readable, shake)

    def _writable(self, shake: Handshake) -> None:
        try:
            if not shake.channel.push():
                return
        except OSError as error:
            self._fail(shake, str(error.strerror or error))
            return
        self._loop.remove_writer(shake.fd)
        if shake.channel.established:
            self._succeed(shake)

    def _succeed(self, shake: Handshake) -> None:
        self._stop(shake)
        self.done += 1
        shake.ended(shake, None)

    def _fail(self, shake: Handshake, reason: str) -> None:
        if shake.over:
            return
        self._stop(shake)
        self.failed += 1
        assert shake.place is not None
        self._unestablished.leave(shake.place)
        shake.channel.close()
        shake.ended(shake, reason)

    def _stop(self, shake: Handshake) -> None:
        shake.over = True
        self._loop.remove_reader(shake.fd)
        self._loop.remove_writer(shake.fd)
