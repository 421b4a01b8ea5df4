"""Authenticated frames between the processes of a quorum, over TCP or TLS.

A frame is a 4-byte big-endian length and so many bytes. The first frame in each direction is a
fixed-size greeting `magic(4) | version(1) | nonce(32)`; from the two nonces and the shared secret
both ends derive one HMAC-SHA256 key for each direction. Every later frame is `MAC(16) | payload`,
the MAC computed over the direction's frame counter and the payload. The dialer sends the first
such frame (its introduction), the acceptor answers with its own: each has then proven that it
knows the secret, to a fresh nonce of the other.

Rules:

* Before the peer has proven itself nothing of it is parsed beyond the fixed greeting, no frame is
  larger than `MAX_GREETING_SIZE_BYTES`, and it has `AUTHENTICATION_TIMEOUT_S`.
* A frame that is forged, replayed, reordered, dropped or reflected has the wrong MAC: key and
  counter differ. The connection is closed, with one log line.
* The frames are authenticated, not encrypted: pass TLS contexts for secrecy.
* Off loopback there is no running without a secret (`load_secret`).
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import logging
import os
import struct
from pathlib import Path
from typing import Any, cast

from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.packing import pack, unpack

logger = logging.getLogger(__name__)

MAX_GREETING_SIZE_BYTES = 1 << 10
MAX_FRAME_SIZE_BYTES = 32 << 20
"""Twice what the largest frame (a batch of committed commands) needs."""
AUTHENTICATION_TIMEOUT_S = 5.0
MIN_SECRET_SIZE_BYTES = 16

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

    def __init__(self, secret: bytes, *, dialer: bool) -> None:
        self._secret = secret
        self._dialer = dialer
        self._transport: asyncio.Transport | None = None
        self._nonce = os.urandom(_NONCE_SIZE_BYTES)
        self._buffer = bytearray()
        self._send_key = self._receive_key = b""
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
        mac = _mac(self._send_key, self._sent, payload)
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
        if not self._receive_key:
            self._greeted(frame)
            return
        payload = frame[_MAC_SIZE_BYTES:]
        expected = _mac(self._receive_key, self._received, payload)
        if not hmac.compare_digest(frame[:_MAC_SIZE_BYTES], expected):
            raise _FrameError(
                "a frame was altered on its way"
                if self.is_authenticated
                else "it has another secret than this node (compare the two secret files)"
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
        key = hmac.digest(self._secret, b"kraftpy quorum" + bytes([_VERSION]) + both, "sha256")
        keys = [hmac.digest(key, side, "sha256") for side in (b"dialer", b"acceptor")]
        self._send_key, self._receive_key = keys if self._dialer else reversed(keys)
        if self._dialer:
            self.send(self.introduction(None))
        else:
            self._send_greeting()


def _mac(key: bytes, counter: int, payload: bytes) -> bytes:
    return hmac.digest(key, _COUNTER.pack(counter) + payload, "sha256")[:_MAC_SIZE_BYTES]


class SecretUnusable(Exception):
    """There is no shared secret to be had; says how to make one."""


def load_secret(
    secret_file: Path | None, host: str, metadata_dir: Path, *, shared: bool = False
) -> bytes:
    """The quorum's secret.

    From `secret_file` if one is configured; else, if `host` (the listener's address) is loopback
    and no other node needs the secret (`shared`), from `quorum.secret` in `metadata_dir`, made on
    first use with mode 0600. Raises `SecretUnusable`.
    """
    if secret_file is not None:
        return _read_secret(secret_file)
    if shared or not _is_loopback(host):
        why = (
            "the quorum has several nodes"
            if shared
            else f"the quorum listens on {host}, which other machines can reach"
        )
        raise SecretUnusable(
            f"{why}, so it needs a shared secret. Make one with\n"
            "    (umask 077; openssl rand -base64 32 > quorum.secret)\n"
            "copy the file to every node of the cluster, and name it in "
            "kraftpy.quorum.secret.file"
        )
    path = metadata_dir / "quorum.secret"
    if not path.exists():
        files = FileLayer()
        metadata_dir.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        fd = files.create(temporary)
        try:
            files.write(fd, base64.b64encode(os.urandom(32)) + b"\n", 0)
            files.datasync(fd)
        finally:
            os.close(fd)
        files.replace(temporary, path)
    return _read_secret(path)


def _read_secret(path: Path) -> bytes:
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SecretUnusable(f"can't read the quorum's secret: {error}") from None
    if len(secret) < MIN_SECRET_SIZE_BYTES:
        raise SecretUnusable(
            f"the quorum's secret in {path} has {len(secret)} bytes; at least "
            f"{MIN_SECRET_SIZE_BYTES} are needed: openssl rand -base64 32 > {path}"
        )
    return secret


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
