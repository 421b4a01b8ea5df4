"""OAUTHBEARER (RFC 7628, KIP-255): a token in one message, `n,a=authzid,^A auth=Bearer TOKEN ^A^A`.

Behind the token there may be extensions, `key=value` each. A server that refuses a token says so in
JSON; the client has to answer with one byte, and only then the login fails. Rules:

* Parts are bounded: the token by TOKEN_MAX_BYTES, extensions by EXTENSIONS_MAX.
* `auth` is there once. Extensions are judged by their form and mean nothing here.
* No error and no `repr` has a token.
"""

from __future__ import annotations

import re

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.sasl import SaslError

OAUTHBEARER = "OAUTHBEARER"

TOKEN_MAX_BYTES = 128 * 1024
EXTENSIONS_MAX = 64

REFUSED = b'{"status":"invalid_token"}'
"""What a server says of any token that it doesn't take (RFC 7628)."""

ACKNOWLEDGED = b"\x01"
"""What a client has to say to that."""

_SEPARATOR = b"\x01"
_GS2 = re.compile(rb"n,(?:a=((?:[^\x00\x01=,]|=2C|=3D)+))?,")
_KEY = re.compile(rb"[A-Za-z]+")
_VALUE = re.compile(rb"[\x21-\x7e \t\r\n]+")
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([-_~+/.a-zA-Z0-9]+=*)")
_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*", re.ASCII)


class First(NamedTuple):
    """As whom a client wants to act, empty for the token's own, and the token."""

    authzid: str
    token: str

    def __repr__(self) -> str:
        return f"First({self.authzid!r}, [hidden])"


def read_first(message: bytes) -> First:
    """What a client says. Raises SaslError."""
    if message.count(_SEPARATOR) > EXTENSIONS_MAX + 3:
        raise SaslError(f"more than {EXTENSIONS_MAX} extensions")
    head, *pairs = message.split(_SEPARATOR)
    gs2 = _GS2.fullmatch(head)
    if gs2 is None or len(pairs) < 3 or pairs[-2:] != [b"", b""]:
        raise SaslError("the message isn't that of OAUTHBEARER")
    try:
        authzid = (gs2[1] or b"").replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError:
        raise SaslError("the name isn't UTF-8") from None
    values: dict[bytes, bytes] = {}
    for pair in pairs[:-2]:
        key, sign, value = pair.partition(b"=")
        if not sign or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or key in values:
            raise SaslError("what comes with the token is no list of key=value")
        values[key] = value
    bearer = _BEARER.fullmatch(values.get(b"auth", b""))
    if bearer is None:
        raise SaslError("there is no bearer token")
    if len(bearer[1]) > TOKEN_MAX_BYTES:
        raise SaslError(f"a token of more than {TOKEN_MAX_BYTES} bytes")
    return First(authzid, bearer[1].decode())


class OAuthBearerClient:
    """One login of a client."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str) -> None:
        if not _TOKEN.fullmatch(token) or len(token) > TOKEN_MAX_BYTES:
            raise SaslError(
                f"a token is at most {TOKEN_MAX_BYTES} letters, digits and -._~+/, without spaces"
            )
        self._token = token

    def first(self) -> bytes:
        """All that it says, if it's let in."""
        return b"n,,\x01auth=Bearer " + self._token.encode() + b"\x01\x01"

    def answer(self, challenge: bytes) -> bytes | None:
        """None: there is nothing more to say; or that it has heard that it isn't let in."""
        return ACKNOWLEDGED if challenge else None
