"""The way in to the exporter's HTTP: TLS, and who may see what is served.

Rules:

* A handshake is made by the connection's own thread, within HANDSHAKE_MAX_S as a whole, however
  slowly it drips; who hasn't made it counts as silent to `admission`.
* Certificate and key follow their files, which are looked at every LOOK_INTERVAL_S; what can't be
  used leaves what was there before, and an error in the log.
* Names and passwords come by Basic (RFC 7617), in UTF-8. A wrong password, a name that isn't there
  and a header that isn't one get the same answer.
* Nothing that a client has said of itself is in the log but its name.
"""

from __future__ import annotations

import base64
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

from kraftpy.events import emit
from kraftpy.frozen import NamedTuple
from kraftpy.metrics.users import NAME_MAX_LENGTH, PASSWORD_MAX_BYTES, Users
from kraftpy.tls.contexts import server_context
from kraftpy.tls.settings import TlsError, TlsSettings
from kraftpy.tls.watching import Watched

HANDSHAKE_MAX_S = 10.0
LOOK_INTERVAL_S = 10.0
LISTENER = "METRICS"
"""What events and metrics call it, as the configuration does."""
CHALLENGE = 'Basic realm="kraftpy", charset="UTF-8"'

logger = logging.getLogger(__name__)


class Given(NamedTuple):
    """As whom a client comes."""

    name: str
    password: bytes


def read_basic(header: str) -> Given | None:
    """What an Authorization header says; None for one that says nothing here."""
    scheme, _, text = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        data = base64.b64decode(text.strip(), validate=True)
        name, colon, password = data.partition(b":")
        given = Given(name.decode(), password)
    except ValueError:
        return None
    if not colon or len(given.name) > NAME_MAX_LENGTH or len(password) > PASSWORD_MAX_BYTES:
        return None
    return given


class DoorTls:
    """TLS of the door, made anew when its files change. Raises TlsError."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._watched = Watched(settings, server_context)
        self._wanted = threading.Event()

    @property
    def context(self) -> ssl.SSLContext:
        """For a connection that begins now."""
        return self._watched.loaded.context

    @property
    def expires_s(self) -> float:
        """Until when the certificate holds, in seconds since 1970."""
        certificate = self._watched.loaded.certificate
        assert certificate is not None
        return certificate.not_after_s

    def watch(self) -> None:
        """Looks at the files from now on, in a thread of its own."""
        threading.Thread(target=self._watch, name="door", daemon=True).start()

    def reload(self) -> None:
        """Has all of it loaded again soon; what a handler of signals may call."""
        self._wanted.set()

    def _watch(self) -> None:
        self._tell_expired()
        self.look()  # whoever made this may have been forked long ago
        while True:
            anyhow = self._wanted.wait(LOOK_INTERVAL_S)
            self._wanted.clear()
            self.look(anyhow=anyhow)

    def look(self, *, anyhow: bool = False) -> None:
        """Takes what has changed, if it can be used."""
        former = self._watched.loaded.certificate
        try:
            loaded = self._watched.look(self._settings, time.time(), anyhow=anyhow)
        except TlsError as error:
            emit(logger, logging.ERROR, "certificate-refused", listener=LISTENER, reason=str(error))
            return
        if loaded is not None and loaded.certificate is not None and former is not None:
            expires_s = min(loaded.certificate.not_after_s, 253402300799.0)
            emit(
                logger,
                logging.INFO,
                "certificate-loaded",
                listener=LISTENER,
                subject=loaded.certificate.subject,
                former=former.subject,
                expires=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires_s)),
            )

    def _tell_expired(self) -> None:
        certificate = self._watched.loaded.certificate
        if certificate is not None and certificate.not_after_s <= time.time():
            reason = (
                f"the certificate of {certificate.subject} has expired; there is no other, so "
                "clients see it"
            )
            emit(logger, logging.ERROR, "certificate-refused", listener=LISTENER, reason=reason)


class Door(NamedTuple):
    """What there is of both; without either everybody comes in, in plain text."""

    tls: DoorTls | None = None
    users: Users | None = None


OPEN = Door()


def shake_hands(connection: ssl.SSLSocket) -> None:
    """The handshake of a connection that is let in. Raises OSError; TimeoutError after its time."""
    deadline_s = time.monotonic() + HANDSHAKE_MAX_S
    connection.settimeout(0.0)
    while True:
        try:
            connection.do_handshake()
            return
        except ssl.SSLWantReadError:
            wait: Callable[[float], bool] = _waiter(connection, select.POLLIN)
        except ssl.SSLWantWriteError:
            wait = _waiter(connection, select.POLLOUT)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not wait(left_s):
            raise TimeoutError(f"no handshake of TLS within {HANDSHAKE_MAX_S:g} s")


def _waiter(connection: socket.socket, what: int) -> Callable[[float], bool]:
    waiting = select.poll()
    waiting.register(connection, what)
    return lambda timeout_s: bool(waiting.poll(timeout_s * 1000))


def say_goodbye(connection: ssl.SSLSocket) -> None:
    """Tells the peer, if it takes it at once, that nothing was cut off."""
    try:
        connection.settimeout(0.0)
        connection.unwrap()
    except (OSError, ValueError):
        return
