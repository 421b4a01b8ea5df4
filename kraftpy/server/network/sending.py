"""The way out of a connection: what waits to be sent, and how it gets into the channel.

Rules:

* What one readable event queued leaves in one system call, up to SENDFILE_MIN_BYTES.
* File slices of at least SENDFILE_MIN_BYTES are handed to the channel as they are: on a plain one
  they go out by sendfile(2) and never enter this process.
* What the peer hasn't taken stays at the front, in its order.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kraftpy.storage.segment import FileSlice

if TYPE_CHECKING:
    import asyncio

Buffer = bytes | bytearray | memoryview
Part = Buffer | FileSlice

SENDFILE_MIN_BYTES = 64 * 1024


class Channel(Protocol):
    """What a connection reads from and writes to: a socket, or one with TLS around it.

    All three of the first are as the system calls are: they raise BlockingIOError where they'd
    wait, other errors are OSError, and what was sent in part is tried again from there.
    `sendfile` takes descriptor, position and size of what is to be sent. `read_when` calls back
    when there is something to receive until `stop_reading`; `write_when` and `stop_writing` alike.
    `expect` says how much is missing before anything can be done, 0 that nothing is: a channel to
    which turns are dear calls back when most of that has come.
    `kept_bytes` is what the channel itself keeps of what the peer hasn't taken.
    """

    @property
    def recv_into(self) -> Callable[[memoryview], int]: ...
    @property
    def send(self) -> Callable[[Buffer, int], int]: ...
    @property
    def sendfile(self) -> Callable[[int, int, int], int]: ...
    def expect(self, size_bytes: int) -> None: ...
    def read_when(self, readable: Callable[[], None]) -> None: ...
    def stop_reading(self) -> None: ...
    def write_when(self, writable: Callable[[], None]) -> None: ...
    def stop_writing(self) -> None: ...
    @property
    def kept_bytes(self) -> int: ...
    def close(self) -> None: ...


class PlainChannel:
    """A non-blocking socket; costs no more than the socket itself."""

    kept_bytes = 0

    __slots__ = ("_fd", "_loop", "_sock", "recv_into", "send", "sendfile")

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self.recv_into: Callable[[memoryview], int] = sock.recv_into
        self.send: Callable[[Buffer, int], int] = sock.send
        self.sendfile: Callable[[int, int, int], int] = partial(os.sendfile, self._fd)

    def expect(self, size_bytes: int) -> None:
        """Calls back for whatever comes: to receive it costs the same in one piece or in ten."""

    def read_when(self, readable: Callable[[], None]) -> None:
        self._loop.add_reader(self._fd, readable)

    def stop_reading(self) -> None:
        self._loop.remove_reader(self._fd)

    def write_when(self, writable: Callable[[], None]) -> None:
        self._loop.add_writer(self._fd, writable)

    def stop_writing(self) -> None:
        self._loop.remove_writer(self._fd)

    def close(self) -> None:
        self._sock.close()


class Outbox:
    """What a connection has still to send.

    `on_writable` is called when there is room again after `flush` left something, which it then
    does until all is sent. `fresh_bytes` have been queued since the last flush, `unsent_bytes` is
    what that left, slices of files aside, in the channel too.
    """

    __slots__ = (
        "_channel",
        "_on_writable",
        "_send",
        "blocked",
        "fresh_bytes",
        "parts",
        "unsent_bytes",
    )

    def __init__(self, channel: Channel, on_writable: Callable[[], None]) -> None:
        self._channel = channel
        self._send = channel.send
        self._on_writable = on_writable
        self.parts: deque[Part] = deque()
        self.fresh_bytes = 0
        self.unsent_bytes = 0
        self.blocked = False

    def put(self, parts: list[Part]) -> None:
        self.parts.extend(parts)
        for part in parts:
            self.fresh_bytes += len(part)

    def flush(self) -> bool:
        """Sends what it can; False if the peer doesn't take more now. Raises OSError."""
        self.fresh_bytes = 0
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is bytes and not self.blocked:
            # Most answers are that, and most fit.
            data = parts[0]
            try:
                sent = self._send(data, 0)
            except (BlockingIOError, InterruptedError):
                sent = 0
            if sent == len(data):
                parts.clear()
                return True
            if sent:
                parts[0] = memoryview(data)[sent:]
        while parts:
            if not self._send_some():
                if not self.blocked:
                    self.blocked = True
                    self._channel.write_when(self._on_writable)
                self.unsent_bytes = held_bytes(parts) + self._channel.kept_bytes
                return False
        if self.blocked:
            self.blocked = False
            self._channel.stop_writing()
        self.unsent_bytes = 0
        return True

    def _send_some(self) -> bool:
        """Sends from the front of the queue; False when the channel is full."""
        parts = self.parts
        first = parts[0]
        if isinstance(first, FileSlice):
            if first.size >= SENDFILE_MIN_BYTES:
                return self._send_file(first)
            parts[0] = first.read()
        data, more = self._gather()
        try:
            sent = self._send(data, socket.MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            parts.appendleft(data)
            return False
        if sent < len(data):
            parts.appendleft(memoryview(data)[sent:])
        return True

    def _gather(self) -> tuple[Buffer, bool]:
        """Small buffers at the front as one piece, or a large one; whether something follows."""
        queue = self.parts
        first = queue.popleft()
        assert not isinstance(first, FileSlice)
        if not queue or len(first) >= SENDFILE_MIN_BYTES:
            return first, bool(queue)
        parts, total = [first], len(first)
        while queue and total < SENDFILE_MIN_BYTES:
            part = queue[0]
            if isinstance(part, FileSlice):
                if part.size >= SENDFILE_MIN_BYTES:
                    return b"".join(parts), True
                part = part.read()
            elif len(part) >= SENDFILE_MIN_BYTES:
                break  # It needn't be copied.
            queue.popleft()
            parts.append(part)
            total += len(part)
        return b"".join(parts), bool(queue)

    def _send_file(self, part: FileSlice) -> bool:
        try:
            sent = self._channel.sendfile(part.fd, part.position, part.size)
        except (BlockingIOError, InterruptedError):
            return False
        if sent == 0:
            # The slice was promised in the response header; there is no way back but to hang up.
            raise ConnectionAbortedError("a segment got shorter while it was being sent")
        if sent == part.size:
            self.parts.popleft()
        else:
            self.parts[0] = part.skip(sent)
        return True

    def close(self) -> None:
        """Drops what wasn't sent."""
        if self.blocked:
            self.blocked = False
            self._channel.stop_writing()
        self.parts.clear()


def held_bytes(parts: Iterable[Part]) -> int:
    """What parts of answers take in memory: those in files take none."""
    return sum(len(part) for part in parts if not isinstance(part, FileSlice))
