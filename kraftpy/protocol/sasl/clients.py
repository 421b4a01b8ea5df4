"""A client's side of any mechanism: what it says first, and what to each answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from kraftpy.protocol.sasl import SaslError
from kraftpy.protocol.sasl.plain import PLAIN, PlainClient
from kraftpy.protocol.sasl.scram import HASHES, ScramClient

MECHANISMS = (PLAIN, *HASHES)
"""Those with a name and a password."""


class ClientLogin(Protocol):
    """One login: made anew for each connection."""

    mechanism: str

    def first(self) -> bytes:
        """What the client begins with."""

    def answer(self, challenge: bytes) -> bytes | None:
        """What it says to the server's answer; None if that was the last. Raises SaslError."""


LoginMaker = Callable[[], ClientLogin | Awaitable[ClientLogin]]
"""Makes a login, for one connection and once. Raises SaslError if there is nothing to say."""


def login(
    mechanism: str,
    name: str,
    password: str,
    nonce: str,
    extensions: Mapping[str, str] | None = None,
) -> ClientLogin:
    """A login by name and password; `nonce` is random text for this login alone.

    `extensions` are of SCRAM alone. Raises SaslError if the mechanism can't write them.
    """
    if mechanism in HASHES:
        return ScramClient(mechanism, name, password, nonce, extensions)
    if mechanism == PLAIN and not extensions:
        return PlainClient(name, password)
    if mechanism == PLAIN:
        raise SaslError("PLAIN has no extensions")
    raise SaslError(f"{mechanism!r} is none of {', '.join(MECHANISMS)}")
