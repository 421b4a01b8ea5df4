"""What the nodes of a quorum prove themselves with: a secret that all share, and TLS if it's set.

Rules:

* Off loopback there is no running without a secret (`load_secret`).
* Its file has one secret, or two, each on a line. A node dials with the first and accepts both, and
  looks at the file again whenever a connection is made. So a secret is replaced without a stop: on
  every node the new one becomes the second line, then on every node the first, then the only one.
* A file that can't be used any more doesn't stop a node that has read it: it goes on with what it
  knows, and says so once.
* With TLS the keys of a connection also come from the certificate of who accepts it
  (`transport`): a man in the middle shows another one, so a certificate that signs itself will do.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import os
import ssl
from pathlib import Path

from kraftpy.frozen import dataclass
from kraftpy.quorum.files import FileLayer

logger = logging.getLogger(__name__)

SECRET_NAME = "quorum.secret"  # noqa: S105 - a file's name
MIN_SECRET_SIZE_BYTES = 16
SECRETS_MAX = 2
SECRET_FILE_MAX_BYTES = 64 << 10


class SecretUnusable(Exception):
    """There is no shared secret to be had; says how to make one."""


class QuorumSecret:
    """The secret that a node dials with, and those that it accepts."""

    def __init__(self, *secrets: bytes) -> None:
        self._secrets = secrets
        self._path: Path | None = None
        self._seen: tuple[int, int, int] | None = None

    @classmethod
    def of_file(cls, path: Path) -> QuorumSecret:
        """What the file has, now and whenever it changes. Raises `SecretUnusable`."""
        seen = _version(path)
        secret = cls(*_read(path))
        secret._path, secret._seen = path, seen
        return secret

    @property
    def dialing(self) -> bytes:
        return self.accepted[0]

    @property
    def accepted(self) -> tuple[bytes, ...]:
        """All of them, that for dialing first; what the file has now."""
        if self._path is not None and (seen := _version(self._path)) != self._seen:
            self._seen = seen
            try:
                self._secrets = _read(self._path)
            except SecretUnusable as error:
                logger.error("going on with the quorum's secret as it was: %s", error)
            else:
                logger.info("the quorum's secret was read again from %s", self._path)
        return self._secrets


@dataclass(frozen=True, slots=True)
class LinkTls:
    """TLS on the quorum's connections: for who accepts them, with which certificate, and dials.

    `certificate` is what `server` shows, in DER. `server` is None in a node that accepts none.
    """

    client: ssl.SSLContext
    server: ssl.SSLContext | None = None
    certificate: bytes = b""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one node has; without `tls` its frames are authenticated, and readable."""

    secret: QuorumSecret
    tls: LinkTls | None = None

    @property
    def client_context(self) -> ssl.SSLContext | None:
        return self.tls.client if self.tls is not None else None

    @property
    def server_context(self) -> ssl.SSLContext | None:
        return self.tls.server if self.tls is not None else None


def load_secret(
    secret_file: Path | None, host: str, metadata_dir: Path, *, shared: bool = False
) -> QuorumSecret:
    """The quorum's secret.

    From `secret_file` if one is configured; else, if `host` (the listener's address) is loopback
    and no other node needs the secret (`shared`), from `quorum.secret` in `metadata_dir`, made on
    first use with mode 0600. Raises `SecretUnusable`.
    """
    if secret_file is not None:
        return QuorumSecret.of_file(secret_file)
    if shared or not is_loopback(host):
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
    path = metadata_dir / SECRET_NAME
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
    return QuorumSecret.of_file(path)


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_FILE_MAX_BYTES)
    except OSError as error:
        raise SecretUnusable(f"can't read the quorum's secret: {error}") from None
    secrets = tuple(filter(None, map(bytes.strip, data.split(b"\n"))))
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise SecretUnusable(
            f"{path} has {len(secrets)} lines; it should have the quorum's secret, and while that "
            f"is replaced a second one: openssl rand -base64 32 > {path}"
        )
    for secret in secrets:
        if len(secret) < MIN_SECRET_SIZE_BYTES:
            raise SecretUnusable(
                f"the quorum's secret in {path} has {len(secret)} bytes; at least "
                f"{MIN_SECRET_SIZE_BYTES} are needed: openssl rand -base64 32 > {path}"
            )
    return secrets


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine can connect to it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
