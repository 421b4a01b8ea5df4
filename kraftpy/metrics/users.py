"""Who may see metrics and the page: the users of `kraftpy.metrics.users.file`, and their passwords.

A line is `NAME:HASH`; empty ones, and those that begin with `#`, are left out. HASH is scrypt's in
the form of PHC strings, `$scrypt$ln=14,r=8,p=1$SALT$KEY`, both in base64 without padding;
`kraftpy user hash` writes one. Rules:

* The file is looked at with each login. One that can't be read any more, or has a line that isn't
  one, changes nothing; that is told once.
* A password that was right is known again by a digest, under a key of this process: who scrapes
  every few seconds doesn't cost a hash each time. That ends when the user's line changes. A wrong
  one is remembered nowhere.
* A user that isn't there takes the same steps and the same time as a wrong password.
* All is bounded: the file, names, passwords, and what a line may have a hash cost. Hashes are one
  at a time: whoever calls sees to that.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kraftpy.frozen import NamedTuple

FILE_MAX_BYTES = 1 << 20
NAME_MAX_LENGTH = 255
PASSWORD_MAX_BYTES = 4096
SALT_BYTES = 16
KEY_BYTES = 32
WORK = 14
"""The logarithm of scrypt's cost: 16 MiB, and some 50 ms."""

_MEMORY_MAX_BYTES, _LANES_MAX = 64 << 20, 4
_LINE = re.compile(
    r"\$scrypt\$ln=([0-9]{1,2}),r=([0-9]{1,2}),p=([0-9])\$([A-Za-z0-9+/]{22})"
    r"\$([A-Za-z0-9+/]{43})",
    re.ASCII,
)

logger = logging.getLogger(__name__)


class UsersError(Exception):
    """A file of users can't be used; has no secret."""


class Hash(NamedTuple):
    """A password as scrypt has it."""

    work: int
    block: int
    lanes: int
    salt: bytes
    key: bytes

    def __str__(self) -> str:
        parameters = f"ln={self.work},r={self.block},p={self.lanes}"
        return f"$scrypt${parameters}${_text(self.salt)}${_text(self.key)}"

    def fits(self, password: bytes) -> bool:
        """Whether it is that of the password; takes as long as it takes."""
        made = _key(password, self.salt, self.work, self.block, self.lanes)
        return hmac.compare_digest(made, self.key)


def hashed(password: str, salt: bytes) -> Hash:
    """That of a new password."""
    return Hash(WORK, 8, 1, salt, _key(password.encode(), salt, WORK, 8, 1))


def is_name(name: str) -> bool:
    """Whether somebody of this name can log in by HTTP, and stand in a line."""
    return (
        0 < len(name) <= NAME_MAX_LENGTH
        and name.isprintable()
        and name[0] != "#"
        and (":" not in name and name == name.strip())
    )


def parse_users(text: str) -> Mapping[str, Hash]:
    """The users of a file. UsersError says which line isn't one, and nothing of what it has."""
    found: dict[str, Hash] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        name, _, hash_text = line.partition(":")
        match = _LINE.fullmatch(hash_text)
        if match is None or not is_name(name):
            raise UsersError(f"line {number} isn't NAME:HASH as `kraftpy user hash` writes it")
        if name in found:
            raise UsersError(f"line {number} has a user that is there already")
        work, block, lanes = (int(each) for each in match.groups()[:3])
        if (
            not (work and block and lanes)
            or lanes > _LANES_MAX
            or _memory(work, block) > (_MEMORY_MAX_BYTES)
        ):
            raise UsersError(
                f"line {number} has a hash that costs too much: ln=16, r=8 and p={_LANES_MAX} are "
                "the most"
            )
        found[name] = Hash(work, block, lanes, _bytes(match[4]), _bytes(match[5]))
    return MappingProxyType(found)


def _key(password: bytes, salt: bytes, work: int, block: int, lanes: int) -> bytes:
    most_bytes = _memory(work, block) + 128 * block * (lanes + 2) + (1 << 20)
    return hashlib.scrypt(
        password, salt=salt, n=1 << work, r=block, p=lanes, maxmem=most_bytes, dklen=KEY_BYTES
    )


def _memory(work: int, block: int) -> int:
    return 128 * block << work


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


class _Proven(NamedTuple):
    digest: bytes
    by: Hash


class Users:
    """Those of a file, as it is now. Thread-safe. Raises UsersError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._proven: dict[str, _Proven] = {}
        self._seen = _version(path)
        self._users = _read(path)

    def knows(self, name: str, password: bytes) -> bool:
        """Whether this was found right before, and still is. Costs nothing."""
        found = self._now().get(name)
        with self._lock:
            proven = self._proven.get(name)
        if found is None or proven is None or proven.by != found:
            return False
        return hmac.compare_digest(self._digest(name, password), proven.digest)

    def check(self, name: str, password: bytes) -> bool:
        """Whether this is right; takes a hash."""
        users = self._now()
        known = users.get(name)
        right = (known or self._nobody(users)).fits(password)
        if known is None or not right:
            return False
        with self._lock:
            if self._users.get(name) == known:
                self._proven[name] = _Proven(self._digest(name, password), known)
        return True

    def _nobody(self, users: Mapping[str, Hash]) -> Hash:
        """A hash that no password has, and that costs what those of the others do."""
        costs = max((each[:3] for each in users.values()), default=(WORK, 8, 1))
        return Hash(*costs, self._key[:SALT_BYTES], self._key)

    def _digest(self, name: str, password: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + password, "sha256")

    def _now(self) -> Mapping[str, Hash]:
        seen = _version(self._path)
        with self._lock:
            if seen != self._seen:
                self._seen = seen
                try:
                    self._users = _read(self._path)
                except UsersError as error:
                    logger.error("going on with the users of metrics as they were: %s", error)
                else:
                    logger.info("the users of metrics were read again from %s", self._path)
                    self._proven = {
                        name: proven
                        for name, proven in self._proven.items()
                        if self._users.get(name) == proven.by
                    }
            return self._users


def _read(path: Path) -> Mapping[str, Hash]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
        if len(data) > FILE_MAX_BYTES:
            raise UsersError(f"it has more than {FILE_MAX_BYTES} bytes")
        return parse_users(data.decode())
    except OSError as error:
        reason = error.strerror or "it can't be read"
    except UnicodeDecodeError:
        reason = "it isn't UTF-8"
    except UsersError as error:
        reason = str(error)
    raise UsersError(f"kraftpy.metrics.users.file: {path}: {reason}") from None


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
