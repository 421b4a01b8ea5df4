"""PLAIN (RFC 4616): name and password in one message, `[authzid] NUL name NUL password`.

Rules: name and password are not empty, none of the three has a NUL, and who authorizes is who
authenticates, as in Kafka.
"""

from __future__ import annotations

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.sasl import SaslError

PLAIN = "PLAIN"

USER_OPTION = "user_"
"""What the options of a JAAS line begin with that have users and their passwords."""


class Login(NamedTuple):
    """As whom somebody wants to log in, and the password."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.name!r}, [hidden])"


def read(message: bytes) -> Login:
    """What a client says. Raises SaslError."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise SaslError("the message isn't UTF-8") from None
    if len(parts) != 3:
        raise SaslError("the message doesn't have three parts")
    authzid, name, password = parts
    if not name or not password:
        raise SaslError("name or password is empty")
    if authzid not in ("", name):
        raise SaslError("nobody acts for another user here")
    return Login(name, password)


class PlainClient:
    """One login of a client."""

    mechanism = PLAIN

    def __init__(self, name: str, password: str) -> None:
        if not name or not password or "\0" in name + password:
            raise SaslError("PLAIN takes a name and a password, without NUL")
        self._message = f"\0{name}\0{password}".encode()

    def first(self) -> bytes:
        """All that it says."""
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """None: there is nothing more to say. Raises SaslError if the server has."""
        if challenge:
            raise SaslError("the server asks for more than PLAIN has")
        return None
