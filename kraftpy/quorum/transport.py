"""Authenticated frames between the processes of a quorum, over TCP or TLS.

A frame is a 4-byte big-endian length and so many bytes. The first frame in each direction is a
fixed-size greeting `magic(4) | version(1) | nonce(32)`; from the two nonces, the shared secret and,
with TLS, the certificate of the acceptor both ends derive one HMAC-SHA256 key for each direction.
Every later frame is `MAC(16) | payload`, the MAC computed over the direction's frame counter and
the payload. The dialer sends the first such frame (its introduction), the acceptor answers with its
own: each has then proven that it knows the secret, to a fresh nonce of the other.

Rules:

* Before the peer has proven itself nothing of it is parsed beyond the fixed greeting, no frame is
  larger than `MAX_GREETING_SIZE_BYTES`, and it has `AUTHENTICATION_TIMEOUT_S`.
* A frame that is forged, replayed, reordered, dropped or reflected has the wrong MAC: key and
  counter differ. The connection is closed, with one log line.
* The frames are authenticated, not encrypted: TLS (`credentials`) does that. Each end derives its
  keys from the certificate that it has seen, so nobody can sit between two encrypted halves.
* While a secret is replaced the acceptor knows two; the dialer's first frame says which it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import struct
from typing import Any, cast

from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.packing import pack, unpack

logger = logging.getLogger(__name__)

MAX_GREETING_SIZE_BYTES = 1 << 10
MAX_FRAME_SIZE_BYTES = 32 << 20
"""Twice what the largest frame (a batch of committed commands) needs."""
AUTHENTICATION_TIMEOUT_S = 5.0

_LENGTH = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")
_MAGIC = b"kpQ1"
_VERSION = 1
_NONCE_SIZE_BYTES = 32
_MAC_SIZE_BYTES = 16
_GREETING_SIZE_BYTES = len(_MAGIC) + 1 + _NONCE_SIZE_BYTES


class _FrameError(ValueError):
    """What the peer sent breaks the rules; the message goes to the log."""


class FrameConnection(asyncio.Protocol):
    """One end of a connection; subclasses override the four hooks.

    `introduction(other)` is what this end says of itself in its first authenticated frame (`other`:
    what the peer has said, None where this end speaks first), `authenticated(introduction)` gets
    the peer's, `received(message)` every later message, and `disconnected(reason)` is called once
    at the end. Hooks raise `ValueError` to reject a message: the connection is closed with a log
    line.
    """

    def __init__(self, credentials: Credentials, *, dialer: bool) -> None:
        self._credentials = credentials
        self._dialer = dialer
        self._transport: asyncio.Transport | None = None
        self._nonce = os.urandom(_NONCE_SIZE_BYTES)
        self._buffer = bytearray()
        # Keys to send and to receive with: of each secret that the peer may have.
        self._keys: list[tuple[bytes, bytes]] = []
        self._sent = self._received = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._reason: str | None = None
        self.is_authenticated = False
        self.is_paused = False
        self.peer = "?"

    # -- hooks

    def introduction(self, other: Any) -> Any:
        raise NotImplementedError

    def authenticated(self, introduction: Any) -> None:
        raise NotImplementedError

    def received(self, message: Any) -> None:
        raise NotImplementedError

    def disconnected(self, reason: str | None) -> None:
        """`reason` is None if the peer closed, or closed by `close()` without one."""

    def drained(self) -> None:
        """The peer reads again: `is_paused` has become False."""

    # -- sending

    def send(self, message: Any) -> None:
        """Queues a message; ignored once closing. Look at `is_paused` before sending much."""
        self.send_packed(pack(message))

    def send_packed(self, payload: bytes) -> None:
        """As `send`, for a message that goes to many peers."""
        if self._transport is None or self._transport.is_closing():
            return
        mac = _mac(self._keys[0][0], self._sent, payload)
        self._sent += 1
        length = _LENGTH.pack(_MAC_SIZE_BYTES + len(payload))
        if len(payload) < 1 << 16:
            self._transport.write(length + mac + payload)
        else:
            self._transport.writelines((length, mac, payload))

    def unsent_bytes(self) -> int:
        """What waits in this process for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self, reason: str | None = None) -> None:
        """Closes at once; `reason`, if given, is what the log and `disconnected` say."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "?"
        self._deadline = asyncio.get_running_loop().call_later(
            AUTHENTICATION_TIMEOUT_S,
            self.close,
            f"it did not authenticate within {AUTHENTICATION_TIMEOUT_S:g} s",
        )
        if self._dialer:
            self._send_greeting()

    def data_received(self, data: bytes) -> None:
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        position = 0
        try:
            while self._transport is not None and not self._transport.is_closing():
                start = position + _LENGTH.size
                if start > len(source):
                    break
                (length,) = _LENGTH.unpack_from(source, position)
                limit = MAX_FRAME_SIZE_BYTES if self.is_authenticated else MAX_GREETING_SIZE_BYTES
                if length > limit:
                    raise _FrameError(
                        f"it announced a frame of {length} bytes; {limit} are allowed"
                    )
                if start + length > len(source):
                    break
                position = start + length
                self._frame(bytes(source[start:position]))
        except ValueError as error:
            self.close(str(error))
            return
        if source is self._buffer:
            del self._buffer[:position]
        elif position < len(source):
            self._buffer += source[position:]

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.drained()

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None
        self._buffer.clear()
        self.disconnected(self._reason or (str(error) if error else None))

    # -- the protocol above bytes

    def _send_greeting(self) -> None:
        assert self._transport is not None
        greeting = _MAGIC + bytes([_VERSION]) + self._nonce
        self._transport.write(_LENGTH.pack(len(greeting)) + greeting)

    def _frame(self, frame: bytes) -> None:
        if not self._keys:
            self._greeted(frame)
            return
        payload = frame[_MAC_SIZE_BYTES:]
        self._keys = [keys for keys in self._keys if self._is_of(keys[1], frame, payload)]
        if not self._keys:
            raise _FrameError(
                "a frame was altered on its way"
                if self.is_authenticated
                else "it has another secret than this node (compare the two secret files)"
                + (", or somebody between the two ends its TLS" if self._is_encrypted else "")
            )
        self._received += 1
        message = unpack(payload)
        if self.is_authenticated:
            self.received(message)
            return
        self.is_authenticated = True
        assert self._deadline is not None
        self._deadline.cancel()
        if not self._dialer:
            self.send(self.introduction(message))
        self.authenticated(message)

    def _greeted(self, frame: bytes) -> None:
        if len(frame) != _GREETING_SIZE_BYTES or not frame.startswith(_MAGIC):
            raise _FrameError("it does not speak the quorum's protocol")
        if frame[len(_MAGIC)] != _VERSION:
            raise _FrameError(
                f"it speaks version {frame[len(_MAGIC)]} of the quorum's protocol, this node "
                f"version {_VERSION}"
            )
        nonce = frame[len(_MAGIC) + 1 :]
        both = self._nonce + nonce if self._dialer else nonce + self._nonce
        told = b"kraftpy quorum" + bytes([_VERSION]) + both + self._acceptor_digest()
        secret = self._credentials.secret
        for each in (secret.dialing,) if self._dialer else secret.accepted:
            key = hmac.digest(each, told, "sha256")
            dialer = hmac.digest(key, b"dialer", "sha256")
            acceptor = hmac.digest(key, b"acceptor", "sha256")
            self._keys.append((dialer, acceptor) if self._dialer else (acceptor, dialer))
        if self._dialer:
            self.send(self.introduction(None))
        else:
            self._send_greeting()

    def _is_of(self, key: bytes, frame: bytes, payload: bytes) -> bool:
        expected = _mac(key, self._received, payload)
        return hmac.compare_digest(frame[:_MAC_SIZE_BYTES], expected)

    @property
    def _is_encrypted(self) -> bool:
        return self._credentials.tls is not None

    def _acceptor_digest(self) -> bytes:
        """What stands for the certificate of who accepts, as this end knows it; empty: no TLS."""
        assert self._transport is not None
        tls = self._credentials.tls
        if tls is None:
            return b""
        certificate = tls.certificate
        if self._dialer:
            certificate = self._transport.get_extra_info("ssl_object").getpeercert(True)
        return hashlib.sha256(certificate).digest()


def _mac(key: bytes, counter: int, payload: bytes) -> bytes:
    return hmac.digest(key, _COUNTER.pack(counter) + payload, "sha256")[:_MAC_SIZE_BYTES]
