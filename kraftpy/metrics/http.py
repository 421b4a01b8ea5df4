"""The exporter's HTTP: a thread for each connection, in a process that has nothing else to do."""

from __future__ import annotations

import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kraftpy import __version__

if TYPE_CHECKING:
    from kraftpy.metrics.exporter import Exporter

CONNECTIONS_MAX = 32
SILENCE_MAX_S = 15.0

logger = logging.getLogger(__name__)


class HttpServer(ThreadingMixIn, HTTPServer):
    """Serves an exporter on a socket that listens."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, exporter: Exporter) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.exporter = exporter
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Beyond the limit a connection is closed at once."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's trouble; anything else is a defect."""
        logger.debug("the connection of %s ended early", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"kraftpy/{__version__}"
    sys_version = ""
    timeout = SILENCE_MAX_S
    server: HttpServer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        try:
            if path == "/metrics":
                self._metrics()
            elif path == "/healthz":
                self._checks(self.server.exporter.healthz())
            elif path == "/readyz":
                self._checks(self.server.exporter.readyz())
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n")
        except OSError:
            raise
        except Exception:
            logger.exception("%s failed", path)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"a defect; the log has more\n")

    do_HEAD = do_GET  # noqa: N815

    def _metrics(self) -> None:
        compress = "gzip" in self.headers.get("Accept-Encoding", "")
        text, content_type = self.server.exporter.metrics(
            self.headers.get("Accept", ""), compress=compress
        )
        self._answer(HTTPStatus.OK, text, content_type, compressed=compress)

    def _checks(self, checks: dict[str, bool]) -> None:
        status = HTTPStatus.OK if all(checks.values()) else HTTPStatus.SERVICE_UNAVAILABLE
        lines = [f"{what}: {'yes' if is_so else 'NO'}\n" for what, is_so in checks.items()]
        self._answer(status, "".join(lines).encode())

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        *,
        compressed: bool = False,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """One line for each scrape would say nothing."""
