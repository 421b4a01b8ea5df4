"""The exporter's HTTP: a thread for each connection, in a process that has nothing else to do.

Rules:

* Only GET and HEAD, so nothing can be changed; a request with a body is refused, and its
  connection closed.
* Bounded: a request's head, in bytes and in the time that it may take to arrive, however slowly it
  drips; the time that a connection may be silent between requests, and that an answer may take to
  be fetched; connections, and what answers take (`admission`).
* `/healthz` and `/readyz` are answered at once, whatever else is under way, and to everybody; all
  else to who may see it (`door`).
* A connection's own thread makes its handshake of TLS, and hashes its password. The one that
  accepts connections does neither.
"""

from __future__ import annotations

import gzip
import io
import logging
import math
import re
import socket
import ssl
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from urllib.parse import urlsplit

from kraftpy import __version__
from kraftpy.events import emit
from kraftpy.frozen import NamedTuple
from kraftpy.metrics.admission import Admission, Making, TooBusy
from kraftpy.metrics.door import (
    CHALLENGE,
    LISTENER,
    OPEN,
    Door,
    read_basic,
    say_goodbye,
    shake_hands,
)
from kraftpy.tls.failures import why

SILENCE_MAX_S = 15.0
HEAD_MAX_BYTES = 16 * 1024
HEAD_MAX_S = 10.0
LINGER_MAX_S = 1.0
COMPRESSED_FROM_BYTES = 1024
PIECE_BYTES = 64 * 1024
PLAIN = "text/plain; charset=utf-8"
_GZIP_LEVEL = 1
_WEIGHT_0 = re.compile(r"q=0(\.0{0,3})?")
_NOTHING: Mapping[str, str] = {}

logger = logging.getLogger(__name__)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the header names gzip, and not with a weight of 0 (RFC 9110 section 12.5.3)."""
    for coding in accept_encoding.split(","):
        name, *parameters = (part.strip().lower() for part in coding.split(";"))
        if name == "gzip":
            return not any(_WEIGHT_0.fullmatch(parameter) for parameter in parameters)
    return False


class Answer(NamedTuple):
    """What is sent; `headers` are those beyond the usual ones."""

    status: HTTPStatus
    body: bytes
    content_type: str
    headers: Mapping[str, str]


class Site(Protocol):
    """What is served beside metrics and checks. Any thread asks it."""

    def answer(self, path: str, query: str) -> Answer | None:
        """None if there is nothing at this path."""


class Served(Protocol):
    """What answers: a node's exporter, or the probe. Any thread asks it."""

    def metrics(self, accept: str, *, compress: bool, timeout_s: float) -> tuple[bytes, str]:
        """The answer to a scrape, and its content type; who asks gives up after `timeout_s`."""

    def healthz(self) -> dict[str, bool]:
        """What has to be true of what works at all."""

    def readyz(self) -> dict[str, bool]:
        """What has to be true of what does its work."""

    def site(self) -> Site:
        """What there is besides."""


class HttpServer(ThreadingMixIn, HTTPServer):
    """Serves an exporter on a socket that listens, to whom the door lets in."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, exporter: Served, door: Door = OPEN) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.exporter = exporter
        self.door = door
        self.admission = Admission()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection. Nothing of it is read here."""
        connection, address = super().get_request()
        if self.door.tls is None:
            return connection, address
        try:
            return self.door.tls.context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            ), address
        except (OSError, ValueError) as error:
            connection.close()
            raise ConnectionAbortedError("it had gone before TLS began") from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread of its own for each that is let in."""
        if self.admission.enter(request, client_address[0]):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket) and not self._has_shaken_hands(
                request, client_address[0]
            ):
                self.shutdown_request(request)
            else:
                super().process_request_thread(request, client_address)
        finally:
            self.admission.leave(request)

    def _has_shaken_hands(self, connection: ssl.SSLSocket, peer: str) -> bool:
        try:
            shake_hands(connection)
        except OSError as error:
            reason = why(error) if isinstance(error, ssl.SSLError) else str(error)
            if self.admission.holds(connection):
                emit(
                    logger,
                    logging.INFO,
                    "connection-closed",
                    peer=peer,
                    client=None,
                    reason=reason,
                )
            return False
        return True

    def shutdown_request(self, request: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            say_goodbye(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's trouble; anything else is a defect."""
        logger.debug("the connection of %s ended early", client_address, exc_info=True)


class _HeadTooLarge(Exception):
    """A request's head is longer than any that is meant."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"kraftpy/{__version__}"
    sys_version = ""
    timeout = SILENCE_MAX_S
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        if isinstance(self.connection, ssl.SSLSocket):
            self.wfile = _Writer(self.connection)
        self._unread = b""
        self._refused = False
        self.requestline = ""

    def handle_one_request(self) -> None:
        """Reads a whole head before any of it is looked at."""
        self.close_connection = True
        self.server.admission.listens(self.connection)
        try:
            head = self._read_head()
        except TimeoutError:
            return
        except _HeadTooLarge:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        if not head:
            return
        self.server.admission.answers(self.connection)
        self.rfile = io.BufferedReader(io.BytesIO(head))
        self.raw_requestline = self.rfile.readline(HEAD_MAX_BYTES)
        if not self.parse_request():
            return
        if self.command not in ("GET", "HEAD"):
            self.close_connection = self._refused = True
            self._answer(
                HTTPStatus.METHOD_NOT_ALLOWED,
                b"this only shows: GET and HEAD\n",
                headers={"Allow": "GET, HEAD"},
            )
        elif self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = self._refused = True
            self._answer(HTTPStatus.BAD_REQUEST, b"a request for something has no body\n")
        else:
            self._get()

    def finish(self) -> None:
        """Lets the client read why: closed with bytes unread, a socket forgets what it sent."""
        super().finish()
        if not self._refused:
            return
        deadline = time.monotonic() + LINGER_MAX_S
        if isinstance(self.connection, ssl.SSLSocket):
            say_goodbye(self.connection)
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(LINGER_MAX_S)
        while self.connection.recv(HEAD_MAX_BYTES) and time.monotonic() < deadline:
            pass

    def _read_head(self) -> bytes:
        """Up to the empty line; b"" if the client has gone."""
        deadline = 0.0
        self.connection.settimeout(SILENCE_MAX_S)
        while True:
            head, end, rest = self._unread.partition(b"\r\n\r\n")
            if len(head) > HEAD_MAX_BYTES:
                raise _HeadTooLarge
            if end:
                self._unread = rest
                return head + end
            received = self.connection.recv(HEAD_MAX_BYTES)
            if not received:
                return b""
            self._unread += received
            deadline = deadline or time.monotonic() + HEAD_MAX_S
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self.connection.settimeout(min(left_s, SILENCE_MAX_S))

    def _get(self) -> None:
        self.connection.settimeout(SILENCE_MAX_S)
        try:
            url = urlsplit(self.path)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        try:
            checks = {
                "/healthz": self.server.exporter.healthz,
                "/readyz": self.server.exporter.readyz,
            }.get(url.path)
            if checks is not None:
                self.server.admission.answers(self.connection, keeps=True)
                self._checks(checks())
            elif not self._may_see():
                self._answer(
                    HTTPStatus.UNAUTHORIZED,
                    b"only for the users of kraftpy.metrics.users.file\n",
                    headers={"WWW-Authenticate": CHALLENGE},
                )
            elif url.path == "/metrics":
                self._metrics()
            else:
                self._page(url.path, url.query)
        except TooBusy:
            self._answer(
                HTTPStatus.SERVICE_UNAVAILABLE,
                b"too many others are being answered; try again\n",
                headers={"Retry-After": "5"},
            )
        except OSError:
            raise
        except Exception:
            logger.exception("%s failed", url.path)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"a defect; the log has more\n")

    def _may_see(self) -> bool:
        """Whether whoever asks is one of the door's users, if it has such."""
        users = self.server.door.users
        if users is None:
            return True
        header = self.headers.get("Authorization")
        given = None if header is None else read_basic(header)
        if given is not None:
            if users.knows(*given):
                return True
            with self.server.admission.making(self.connection, Making.LOGIN):
                # It may have been in line behind itself.
                if users.knows(*given) or users.check(*given):
                    return True
        if header is not None:
            emit(
                logger,
                logging.INFO,
                "authentication-failed",
                peer=self.client_address[0],
                client=None,
                listener=LISTENER,
                mechanism="Basic",
                reason="no user with this password",
            )
        return False

    @property
    def _takes_gzip(self) -> bool:
        return accepts_gzip(self.headers.get("Accept-Encoding", ""))

    def _metrics(self) -> None:
        timeout_s = _seconds(self.headers.get("X-Prometheus-Scrape-Timeout-Seconds"))
        deadline_s = time.monotonic() + timeout_s
        with self.server.admission.making(self.connection, Making.METRICS):
            text, content_type = self.server.exporter.metrics(
                self.headers.get("Accept", ""),
                compress=self._takes_gzip,
                timeout_s=deadline_s - time.monotonic(),
            )
            self.server.admission.sends(self.connection, len(text))
        self._answer(HTTPStatus.OK, text, content_type, compressed=self._takes_gzip)

    def _page(self, path: str, query: str) -> None:
        with self.server.admission.making(self.connection, Making.PAGE):
            answer = self.server.exporter.site().answer(path, query)
            if answer is None:
                text = b"there are /, /status.json, /metrics, /healthz and /readyz\n"
                answer = Answer(HTTPStatus.NOT_FOUND, text, PLAIN, _NOTHING)
            status, body, content_type, headers = answer
            del answer
            compress = self._takes_gzip and len(body) >= COMPRESSED_FROM_BYTES
            if compress:
                body = gzip.compress(body, _GZIP_LEVEL)
            self.server.admission.sends(self.connection, len(body))
        self._answer(status, body, content_type, compressed=compress, headers=headers)

    def _checks(self, checks: dict[str, bool]) -> None:
        status = HTTPStatus.OK if all(checks.values()) else HTTPStatus.SERVICE_UNAVAILABLE
        lines = [f"{what}: {'yes' if is_so else 'NO'}\n" for what, is_so in checks.items()]
        self._answer(status, "".join(lines).encode())

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        content_type: str = PLAIN,
        *,
        compressed: bool = False,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """For a malformed request; http.server's own answer would be HTML."""
        self.command = getattr(self, "command", None) or "GET"
        self.request_version = self.protocol_version  # who asks nonsense gets a whole answer
        self.close_connection = self._refused = True
        self._answer(HTTPStatus(code), f"{HTTPStatus(code).phrase}\n".encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """One line for each scrape would say nothing."""


class _Writer(io.BufferedIOBase):
    """Writes to a connection with TLS, which gives each record its own time otherwise."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Raises TimeoutError if the reader takes longer than an answer may."""
        deadline_s = time.monotonic() + SILENCE_MAX_S
        left = memoryview(data)
        while left:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the answer wasn't fetched in time")
            self._connection.settimeout(left_s)
            left = left[self._connection.send(left[:PIECE_BYTES]) :]
        return len(data)


def _seconds(header: str | None) -> float:
    """The value of a header; infinite if there is none that makes sense."""
    try:
        seconds = float(header or "")
    except ValueError:
        return math.inf
    return seconds if seconds > 0 else math.inf
