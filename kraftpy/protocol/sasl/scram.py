"""SCRAM (RFC 5802, with SHA-256 as in RFC 7677): messages, proofs, and a client's side.

    client  n,,n=NAME,r=NONCE
    server  r=NONCE+MORE,s=SALT,i=ITERATIONS
    client  c=biws,r=NONCE+MORE,p=PROOF
    server  v=SIGNATURE

Rules:

* What is signed are the bytes as they came, not what was read out of them.
* The nonce of the last message is that of the exchange, whole, and its `c=` repeats the first
  message's beginning (some releases of Kafka look at the nonce's end only). One client has more in
  front, which `core.security.sasl_server` knows.
* There is no channel binding: a client that asks for it (`p=`) is refused. Extensions that are to
  be understood (`m=`) are none.
* Names are as they come: neither Kafka's brokers nor its clients prepare them (RFC 4013).
* A client refuses fewer iterations than 4096, which would have it give its password away cheaply,
  and more than it could compute in about a second.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping

from kraftpy.frozen import NamedTuple, dataclass
from kraftpy.protocol.sasl import SaslError

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
HASHES: Mapping[str, str] = {SHA_256: "sha256", SHA_512: "sha512"}
"""The mechanisms, by the names of their hashes in `hashlib`."""

ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 1_000_000
"""What a client computes."""

TOKEN_AUTH = "tokenauth"  # noqa: S105 - the extension's name (KIP-48)

_VALUE = rb"[\x01-\x2b\x2d-\x7f]+"
_NONCE = rb"[\x21-\x2b\x2d-\x7e]{1,1024}"
_EXTENSIONS = rb"((?:,[A-Za-z]+=" + _VALUE + rb")*)"
_CLIENT_FIRST = re.compile(
    rb"((?:n|y),(?:a=("
    + _VALUE
    + rb"))?,)(n=("
    + _VALUE
    + rb"),r=("
    + _NONCE
    + rb")"
    + _EXTENSIONS
    + rb")"
)
_SERVER_FIRST = re.compile(
    rb"r=(" + _NONCE + rb"),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})" + _EXTENSIONS
)
_CLIENT_FINAL = re.compile(
    rb"(c=([A-Za-z0-9+/=]+),r=(" + _NONCE + rb")" + _EXTENSIONS + rb"),p=([A-Za-z0-9+/=]+)"
)
_SERVER_FINAL = re.compile(rb"(?:v=([A-Za-z0-9+/=]+)|e=(" + _VALUE + rb"))" + _EXTENSIONS)
_ESCAPE = re.compile(r"=(?!2C|3D)")


class ClientFirst(NamedTuple):
    """What a client begins with. `bare` is the part that is signed, `gs2` what stands before it."""

    name: str
    nonce: bytes
    gs2: bytes
    bare: bytes
    extensions: Mapping[str, str]


class ClientFinal(NamedTuple):
    """What a client proves itself with. `signed` is all of it but the proof."""

    binding: bytes
    nonce: bytes
    signed: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Keys:
    """What a server keeps of a password: neither it nor what logs in can be had from that."""

    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "Keys([hidden])"


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi() of the RFC. It takes 0.4 (SHA-256) to 1 µs (SHA-512) an iteration."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def keys(mechanism: str, salted: bytes) -> Keys:
    """What is kept of a salted password."""
    return Keys(
        hashlib.new(HASHES[mechanism], _client_key(mechanism, salted)).digest(),
        hmac.digest(salted, b"Server Key", HASHES[mechanism]),
    )


def _client_key(mechanism: str, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", HASHES[mechanism])


# -- a server's side


def read_client_first(message: bytes) -> ClientFirst:
    """The first message of an exchange. Raises SaslError."""
    match = _CLIENT_FIRST.fullmatch(message)
    if match is None:
        raise SaslError("the first message isn't SCRAM's, or asks for what isn't there")
    gs2, authzid, bare, name, nonce, extensions = match.groups()
    user = decode_name(name)
    if authzid is not None and decode_name(authzid) != user:
        raise SaslError("nobody acts for another user here")
    return ClientFirst(user, nonce, gs2, bare, _extensions(extensions))


def server_first(nonce: bytes, salt: bytes, iterations: int) -> bytes:
    """The answer to it; `nonce` is the client's with the server's behind it."""
    return b"r=%b,s=%b,i=%d" % (nonce, base64.b64encode(salt), iterations)


def read_client_final(message: bytes) -> ClientFinal:
    """The second message of a client. Raises SaslError."""
    match = _CLIENT_FINAL.fullmatch(message)
    if match is None:
        raise SaslError("the last message isn't SCRAM's")
    signed, binding, nonce, _, proof = match.groups()
    return ClientFinal(_from_base64(binding), nonce, signed, _from_base64(proof))


def signed_text(first: ClientFirst, answer: bytes, final: ClientFinal) -> bytes:
    """AuthMessage of the RFC: what both sides have said."""
    return b"%b,%b,%b" % (first.bare, answer, final.signed)


def proves(mechanism: str, stored_key: bytes, signed: bytes, proof: bytes) -> bool:
    """Whether who made `proof` knows the password."""
    signature = hmac.digest(stored_key, signed, HASHES[mechanism])
    if len(proof) != len(signature):
        return False
    client_key = _xor(proof, signature)
    found = hashlib.new(HASHES[mechanism], client_key).digest()
    return hmac.compare_digest(found, stored_key)


def server_final(mechanism: str, server_key: bytes, signed: bytes) -> bytes:
    """The last message, which proves to the client that the server knows its keys."""
    return b"v=" + base64.b64encode(hmac.digest(server_key, signed, HASHES[mechanism]))


# -- a client's side


class ScramClient:
    """One login of a client. `nonce` is random, and printable ASCII without commas."""

    def __init__(
        self,
        mechanism: str,
        name: str,
        password: str,
        nonce: str,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        if mechanism not in HASHES:
            raise ValueError(f"{mechanism} isn't SCRAM")
        self.mechanism = mechanism
        self._password = password
        more = "".join(f",{key}={value}" for key, value in (extensions or {}).items())
        first = f"n,,n={encode_name(name)},r={nonce}{more}".encode()
        try:
            self._first = read_client_first(first)
        except SaslError:
            raise SaslError("a name, nonce or extension that SCRAM can't write") from None
        self._server_key: bytes | None = None
        self._signed = b""

    def first(self) -> bytes:
        """What it begins with."""
        return self._first.gs2 + self._first.bare

    def answer(self, challenge: bytes) -> bytes | None:
        """The next message; None when the server has proved itself. Raises SaslError."""
        if self._server_key is None:
            return self._final(challenge)
        self._check(challenge, self._server_key)
        return None

    def _final(self, challenge: bytes) -> bytes:
        match = _SERVER_FIRST.fullmatch(challenge)
        if match is None:
            raise SaslError("the server's first message isn't SCRAM's")
        nonce, salt, iterations = match[1], _from_base64(match[2]), int(match[3])
        if not nonce.startswith(self._first.nonce) or nonce == self._first.nonce:
            raise SaslError("the server's nonce doesn't go on from ours")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SaslError(
                f"the server asks for {iterations} iterations, not {ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX}"
            )
        salted = salted_password(self.mechanism, self._password, salt, iterations)
        known = keys(self.mechanism, salted)
        signed = b"c=%b,r=%b" % (base64.b64encode(self._first.gs2), nonce)
        self._signed = b"%b,%b,%b" % (self._first.bare, challenge, signed)
        signature = hmac.digest(known.stored_key, self._signed, HASHES[self.mechanism])
        proof = _xor(_client_key(self.mechanism, salted), signature)
        self._server_key = known.server_key
        return b"%b,p=%b" % (signed, base64.b64encode(proof))

    def _check(self, challenge: bytes, server_key: bytes) -> None:
        match = _SERVER_FINAL.fullmatch(challenge)
        if match is None:
            raise SaslError("the server's last message isn't SCRAM's")
        if match[2] is not None:
            raise SaslError(f"the server refuses the login: {match[2][:120].decode('latin-1')}")
        signature = hmac.digest(server_key, self._signed, HASHES[self.mechanism])
        if not hmac.compare_digest(_from_base64(match[1]), signature):
            raise SaslError("the server doesn't know this user's keys: it may be another one")


# -- their parts


def encode_name(name: str) -> str:
    """A name as messages have it."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_name(text: bytes) -> str:
    """The name in a message. Raises SaslError."""
    name = text.decode("ascii")
    if _ESCAPE.search(name):
        raise SaslError("a name has = that is neither =2C nor =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


def salt_of(random: bytes) -> bytes:
    """A salt of at least 17 random bytes, as Java's tools make them: 130 bits to the base of 36.

    So a salt doesn't tell who has made it, nor that it's one for nobody.
    """
    number = int.from_bytes(random[:17], "big") & ((1 << 130) - 1)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return (digits or "0").encode()


def _extensions(text: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.decode("ascii").split(",")[1:]:
        key, _, value = part.partition("=")
        if key in found or key == "m":
            raise SaslError("an extension twice, or one that has to be understood")
        found[key] = value
    return found


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslError("a part of the message isn't base64") from None


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
