"""How the exporter gets its numbers: it asks a process over a socket, which answers in slices.

A socket pair (SOCK_SEQPACKET, so that messages have edges) joins the exporter to the broker and to
the controller. A question is msgpack `[number, what]`, `what` one of "metrics", "health", "node",
"metadata" and "events"; the answer is messages `[number, frame]`, and `[number, None]` at last. A
frame is `[kind, payload]`; what kinds there are, `frames` and `events` say. Unasked, a process
tells once that it has started: until then it may be silent for as long as it recovers its data, and
is none the worse for that.

Rules:

* The answering side never blocks and never works longer than a slice at a time: it waits between
  slices, and while the exporter doesn't read. A new question ends the answer to an older one.
* If the other side is gone, that's the end of the channel and of nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import math
import mmap
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

SLICE_S = 0.0005
PAUSE_S = 0.002
MESSAGE_MAX_BYTES = 128 * 1024
ANSWER_TIMEOUT_S = 5.0
_STARTED = 0  # the number of no question

Frame = list[Any]
Collect = Callable[[], Iterator[Frame]]

logger = logging.getLogger(__name__)


class SourceUnavailable(Exception):
    """A process of the node doesn't answer."""


def channel() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new one."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class SourceBusy(SourceUnavailable):
    """It is answering another question, of which something has come just now."""


class Responder:
    """The side of a broker or controller, on its event loop.

    `answers` has what is asked for and who answers it: an iterator over frames that does little
    work for each. `on_gone` is called once if the exporter has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        answers: dict[str, Collect],
        on_gone: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._answers = answers
        self._on_gone = on_gone
        self._number = 0
        self._frames: Iterator[Frame] | None = None
        self._unsent: bytes | None = None
        self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._on_readable)

    def tell_started(self) -> None:
        """From now on it can answer, so a silence means that it hangs."""
        try:
            self._sock.send(msgpack.packb([_STARTED, None]))
        except (BlockingIOError, InterruptedError):
            self._loop.call_later(PAUSE_S, self.tell_started)
        except OSError as error:
            logger.warning("the metrics exporter can't be told of the start: %s", error)

    def close(self) -> None:
        """Answers nothing more."""
        if self._sock.fileno() < 0:
            return
        self._frames = None
        self._stop_writing()
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _on_readable(self) -> None:
        try:
            question = self._sock.recv(1024)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            question = b""
        if not question:
            self.close()
            self._on_gone()
            return
        self._number, what = msgpack.unpackb(question)
        self._frames = self._answers[what]()
        self._unsent = None
        if not self._writing:
            self._work()

    def _work(self) -> None:
        """One slice."""
        until = time.perf_counter() + SLICE_S
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            while self._unsent is not None or self._frames is not None:
                if self._unsent is None:
                    self._unsent = self._next()
                self._sock.send(self._unsent)
                self._unsent = None
                if self._frames is not None and time.perf_counter() >= until:
                    self._timer = self._loop.call_later(PAUSE_S, self._work)
                    return
        except (BlockingIOError, InterruptedError):
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._on_writable)
        except OSError as error:
            logger.warning("the metrics exporter can't be answered: %s", error)
            self._frames = self._unsent = None

    def _next(self) -> bytes:
        assert self._frames is not None
        frame = next(self._frames, None)
        if frame is None:
            self._frames = None
        packed: bytes = msgpack.packb([self._number, frame])
        return packed

    def _on_writable(self) -> None:
        self._stop_writing()
        self._work()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())


class Source:
    """The exporter's side; `name` is the process that answers, `pid` its id. Thread-safe.

    `ended` is whether the process was found to be gone.
    """

    def __init__(self, name: str, pid: int, sock: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self._sock = sock
        self.ended = False
        # Of all exporters that are forked one after the other: the next one isn't told again.
        self._started = mmap.mmap(-1, 1)
        self._number = 0
        self._lock = threading.Lock()
        self._heard_s = -math.inf

    @property
    def started(self) -> bool:
        """Whether the process had started by the time of the last question."""
        return self._started[0] != 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Gives it up: in the process that forked the exporter."""
        self._sock.close()

    def ask(self, what: str, timeout_s: float = ANSWER_TIMEOUT_S) -> list[Frame]:
        """The frames of the answer; SourceUnavailable if they don't all come in time.

        SourceBusy if the time went by while another question was being answered.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            is_heard = time.monotonic() - self._heard_s < timeout_s
            raise (SourceBusy if is_heard else SourceUnavailable)(
                f"the {self.name} is still answering another question"
            )
        try:
            # Not counted: a former exporter may have left an answer, which another number begins.
            self._number = time.monotonic_ns()
            self._sock.settimeout(timeout_s)
            self._sock.send(msgpack.packb([self._number, what]))
            return self._receive(deadline)
        except ConnectionError as error:
            self.ended = True
            raise SourceUnavailable(f"the {self.name} has ended: {error}") from error
        except OSError as error:
            raise SourceUnavailable(f"the {self.name} doesn't answer: {error}") from error
        finally:
            self._lock.release()

    def _receive(self, deadline: float) -> list[Frame]:
        frames: list[Frame] = []
        while True:
            self._sock.settimeout(max(deadline - time.monotonic(), 0.001))
            message = self._sock.recv(2 * MESSAGE_MAX_BYTES)
            if not message:
                raise ConnectionResetError("its end is closed")
            self._heard_s = time.monotonic()
            number, frame = msgpack.unpackb(message, strict_map_key=False)
            if number == _STARTED:
                self._started[0] = 1
            if number != self._number:
                continue  # the rest of an answer that came too late
            if frame is None:
                return frames
            frames.append(frame)
