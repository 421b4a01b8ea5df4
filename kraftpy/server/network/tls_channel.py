"""A channel with TLS: a socket, and between it and a connection OpenSSL, on memory.

Rules:

* What has come is decrypted until OpenSSL wants more, or there is no more room: what lies decrypted
  here makes no socket readable, so the channel calls back by itself while there is such.
* Nothing is sealed before the last piece is in the socket, and then SEALED_BYTES at most: what a
  peer doesn't read stays with who sends it, where it's counted. Of files so much is read at a time,
  and counts from then on (`queued.max.response.bytes`).
* Within a request the kernel wakes us for AWAITED_BYTES at a time, not for each record: librdkafka
  makes one of each message, and a turn of the loop costs more than to decrypt it. Nothing waits for
  what isn't to come: less is asked for than is missing, by what OpenSSL may hold of a record.
* After TURN_BYTES others have their turn: encryption takes time that a socket alone doesn't.
* What isn't TLS gets no alert: plain clients of Java's take it for the size of an answer of 352 MB
  (KAFKA-4493).
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kraftpy.tls.failures import why

if TYPE_CHECKING:
    import asyncio

    from kraftpy.server.network.sending import Buffer

SEALED_BYTES = 128 * 1024
TURN_BYTES = 1024 * 1024
SCRATCH_BYTES = 256 * 1024
# What a record has besides its contents, and room for some small ones.
OVERHEAD_BYTES = 1024
RECORD_BYTES = 17 * 1024
AWAITED_BYTES = 64 * 1024
# An answer to what isn't data, a new key as it may be, that nobody takes.
UNTAKEN_MAX_BYTES = 256 * 1024
_HANDSHAKE = 0x16


class NotTlsError(OSError):
    """The first byte of a peer is none of TLS's."""


class TlsChannel:
    """An accepted socket with TLS; `shake_hands` comes first. Errors are OSError.

    `scratch` is shared by all channels of a process: ciphertext is received into it.
    """

    __slots__ = (
        "_again",
        "_awaited_bytes",
        "_began",
        "_ended",
        "_fd",
        "_incoming",
        "_loop",
        "_outgoing",
        "_readable",
        "_scratch",
        "_sealed",
        "_sealing_bytes",
        "_sock",
        "_starved",
        "_turn_bytes",
        "established",
        "tls",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        context: ssl.SSLContext,
        scratch: memoryview,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._awaited_bytes = 1
        self._scratch = scratch
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self._began = False
        self._ended = False
        self._starved = False
        self._sealed: memoryview | None = None
        self._sealing_bytes = 0
        self._turn_bytes = 0
        self._readable: Callable[[], None] | None = None
        self._again: asyncio.Handle | None = None

    # -- the handshake

    def shake_hands(self) -> bool:
        """Takes what has come; whether it's done, and all of it sent. OSError ends it."""
        try:
            if not self._receive(RECORD_BYTES):
                raise ConnectionResetError("the peer closed the connection within the handshake")
            self.tls.do_handshake()
            self.established = True
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except ssl.SSLError as error:
            with suppress(OSError):
                self.push()  # the alert
            raise ConnectionAbortedError(why(error)) from None
        return self.push() and self.established

    def _receive(self, most_bytes: int) -> int:
        received = self._sock.recv_into(self._scratch[:most_bytes])
        if received and not self._began:
            self._began = True
            if self._scratch[0] != _HANDSHAKE:
                raise NotTlsError(
                    f"its first byte, {self._scratch[0]:#04x}, isn't one of TLS: is its "
                    "security.protocol PLAINTEXT?"
                )
        self._incoming.write(self._scratch[:received])
        return received

    def push(self) -> bool:
        """Sends what is sealed; False if some of it is left."""
        if self._outgoing.pending:
            more = self._outgoing.read()
            if self._sealed is not None:
                more = bytes(self._sealed) + more
                if len(more) > UNTAKEN_MAX_BYTES:
                    raise ConnectionAbortedError("the peer asks for what it doesn't take")
            self._sealed = memoryview(more)
        return self._push(0)

    def _push(self, flags: int) -> bool:
        sealed = self._sealed
        while sealed is not None:
            try:
                sent = self._sock.send(sealed, flags)
            except (BlockingIOError, InterruptedError):
                return False
            sealed = self._sealed = sealed[sent:] if sent < len(sealed) else None
        return True

    @property
    def kept_bytes(self) -> int:
        """What is sealed and not sent: all of the piece, as it's let go of as a whole."""
        if self._sealed is None:
            return 0
        whole: Any = self._sealed.obj
        return len(whole)

    # -- receiving

    def recv_into(self, view: memoryview) -> int:
        """As the socket's, of what it means."""
        if self._starved and not self._ended:
            most = min(max(len(view) + OVERHEAD_BYTES, RECORD_BYTES), len(self._scratch))
            if not self._receive(most):
                self._ended = True
        try:
            filled = self._open_into(view)
        except ssl.SSLError as error:
            with suppress(OSError):
                self.push()
            raise ConnectionAbortedError(why(error)) from None
        if self._outgoing.pending:
            self.push()
        if not filled and not self._ended:
            raise BlockingIOError
        if (filled and not self._starved) or self._ended:
            self._call_again()
        return filled

    def _open_into(self, view: memoryview) -> int:
        filled, size = 0, len(view)
        read: Any = self.tls.read  # how many bytes, if there is a buffer
        try:
            while filled < size:
                count = read(size - filled, view[filled:])
                if not count:
                    self._ended = True
                    return filled
                filled += count
            self._starved = False
        except ssl.SSLWantReadError:
            self._starved = True
        except ssl.SSLZeroReturnError:
            self._ended = True
        return filled

    def expect(self, size_bytes: int) -> None:
        """Calls back when so much has come, or AWAITED_BYTES of it; at once for 0."""
        least = min(size_bytes - RECORD_BYTES - self._incoming.pending, AWAITED_BYTES)
        if (least := max(least, 1)) != self._awaited_bytes:
            self._awaited_bytes = least
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def read_when(self, readable: Callable[[], None]) -> None:
        self._readable = readable
        self._loop.add_reader(self._fd, readable)
        if not self._starved or self._ended:
            self._call_again()

    def stop_reading(self) -> None:
        self._readable = None
        self._loop.remove_reader(self._fd)

    def _call_again(self) -> None:
        if self._again is None and self._readable is not None:
            self._again = self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._again = None
        if self._readable is not None:
            self._readable()

    # -- sending

    def send(self, data: Buffer, flags: int) -> int:
        """How much of `data` has been sent. What was begun is finished before: as in SSL_write, who
        is told to wait comes again with the same data, or with more behind it."""
        if not self._sealing_bytes:
            self._take_turn()
            piece = memoryview(data)[:SEALED_BYTES]
            self._seal(piece)
        return self._finish(flags)

    def sendfile(self, fd: int, position: int, size: int) -> int:
        """The same, of a file; 0 if it ends before `position`."""
        if not self._sealing_bytes:
            self._take_turn()
            piece = os.pread(fd, min(size, SEALED_BYTES), position)
            if not piece:
                return 0
            self._seal(piece)
        return self._finish(socket.MSG_MORE if self._sealing_bytes < size else 0)

    def _take_turn(self) -> None:
        if self._turn_bytes >= TURN_BYTES:
            self._turn_bytes = 0
            raise BlockingIOError

    def _seal(self, piece: Buffer) -> None:
        try:
            self._sealing_bytes = self.tls.write(piece)
        except ssl.SSLError as error:
            raise ConnectionAbortedError(why(error)) from None
        self._turn_bytes += self._sealing_bytes
        sealed = self._outgoing.read()
        if self._sealed is not None:
            sealed = bytes(self._sealed) + sealed
        self._sealed = memoryview(sealed)

    def _finish(self, flags: int) -> int:
        if not self._push(flags):
            raise BlockingIOError
        sent, self._sealing_bytes = self._sealing_bytes, 0
        return sent

    def write_when(self, writable: Callable[[], None]) -> None:
        self._loop.add_writer(self._fd, writable)

    def stop_writing(self) -> None:
        self._loop.remove_writer(self._fd)

    # -- end

    def close(self) -> None:
        """Tells the peer, if it takes it at once, that nothing was cut off."""
        if self._again is not None:
            self._again.cancel()
        if self.established:
            with suppress(OSError):
                self.tls.unwrap()
            with suppress(OSError):
                self.push()
        self._sock.close()
