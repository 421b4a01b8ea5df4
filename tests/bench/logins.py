"""Clients that do nothing but log in: `python -m tests.bench.logins ADDRESS CA USER PASSWORD OPEN`.

Each connects by TLS, without a session to resume, and logs in by SCRAM-SHA-256; the newest OPEN of
them stay connected, and the oldest of those leaves for the next. For every line, a number of
seconds, the process works as long, then prints how many logins that were and in how many seconds.

A password is salted once: that is a client's work, 1.6 ms of it, and would be what is measured.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from kraftpy.testing.process import BrokerError, LineProcess
from tests.bench.wire import check, frames_of
from tests.processes import split_address

MECHANISM = "SCRAM-SHA-256"
AT_ONCE = 8
TIMEOUT_S = 30.0
_ANSWERED_S = 60.0
_RECEIVED_BYTES = 1 << 16

# Encoded once: a client's work takes time from the broker's. The second ends with an empty token.
(_HANDSHAKE,) = frames_of(ApiKey.SASL_HANDSHAKE, 1, [SaslHandshakeRequest(MECHANISM)])
(_AUTHENTICATE,) = frames_of(ApiKey.SASL_AUTHENTICATE, 1, [SaslAuthenticateRequest(b"")])


@lru_cache
def _salted(password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password, salt, iterations)


def _ask(sock: socket.socket, frame: bytes) -> bytes:
    """The body of an answer whose header has a correlation id alone."""
    sock.sendall(frame)
    data = sock.recv(_RECEIVED_BYTES)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part = sock.recv(_RECEIVED_BYTES)
        if not part:
            raise BrokerError("the connection ended amid a login")
        data += part
    return data[8:]


def _authenticate(sock: socket.socket, token: bytes) -> bytes:
    size = len(_AUTHENTICATE) - 4 + len(token)
    sizes = struct.pack(">i", size), struct.pack(">i", len(token))
    body = _ask(sock, b"".join((sizes[0], _AUTHENTICATE[4:-4], sizes[1], token)))
    error, length = struct.unpack_from(">hh", body)
    check(error, "a login")
    position = 4 + max(0, length)
    (size,) = struct.unpack_from(">i", body, position)
    return body[position + 4 : position + 4 + size]


def log_in(sock: socket.socket, user: str, password: str) -> None:
    """The whole exchange; BrokerError if it fails."""
    check(struct.unpack_from(">h", _ask(sock, _HANDSHAKE))[0], "a mechanism")
    bare = f"n={user},r={os.urandom(16).hex()}".encode()
    first = _authenticate(sock, b"n,," + bare)
    nonce, salt, iterations = (part[2:] for part in first.split(b",", 2))
    salted = _salted(password.encode(), base64.b64decode(salt), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    unproven = b"c=biws,r=" + nonce
    signed = b",".join((bare, first, unproven))
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    last = _authenticate(sock, unproven + b",p=" + base64.b64encode(proof))
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    if last != b"v=" + base64.b64encode(hmac.digest(server_key, signed, "sha256")):
        raise BrokerError("the broker doesn't prove that it knows the user")


def _connected(address: str, context: ssl.SSLContext, user: str, password: str) -> ssl.SSLSocket:
    host, port = split_address(address)
    raw = socket.create_connection((host, port), TIMEOUT_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock = context.wrap_socket(raw, server_hostname=host)
    try:
        log_in(sock, user, password)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def clients(address: str, ca: str, user: str, password: str, stay: int) -> Iterator[LineProcess]:
    """The process; `worked` has it work."""
    command = [sys.executable, "-m", "tests.bench.logins", address, ca, user, password, str(stay)]
    process = LineProcess(command, None)
    try:
        yield process
    finally:
        process.end()


def worked(process: LineProcess, seconds: float) -> float:
    """Logins a second."""
    begin(process, seconds)
    return told(process, seconds)


def begin(process: LineProcess, seconds: float) -> None:
    process.write_line(str(seconds))


def told(process: LineProcess, seconds: float) -> float:
    """What came of what was begun."""
    count, taken = process.read_line(seconds + _ANSWERED_S).split()
    return int(count) / float(taken)


def main(address: str, ca: str, user: str, password: str, stay: int) -> None:
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    staying: deque[ssl.SSLSocket] = deque()

    def work(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            staying.append(_connected(address, context, user, password))
            done += 1
            while len(staying) > stay:
                staying.popleft().close()
        return done

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in sys.stdin:
            started_at = time.perf_counter()
            done = sum(pool.map(work, [started_at + float(line)] * AT_ONCE))
            print(done, time.perf_counter() - started_at, flush=True)


if __name__ == "__main__":
    _address, _ca, _user, _password, _stay = sys.argv[1:]
    main(_address, _ca, _user, _password, int(_stay))
