"""Tokens and the keys that they are signed with, made by tests."""

from __future__ import annotations

import base64
import json
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm


def unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unsigned(claims: dict[str, Any], alg: str = "none") -> str:
    head, payload = (json.dumps(each).encode() for each in ({"alg": alg}, claims))
    return f"{unpadded(head)}.{unpadded(payload)}."


def claims_of(name: str = "alice", **more: Any) -> dict[str, Any]:
    """Those of a token that counts for an hour; None takes one out."""
    now_s = int(time.time())
    claims = {"sub": name, "iat": now_s, "exp": now_s + 3600, **more}
    return {key: value for key, value in claims.items() if value is not None}


class Issuer:
    """An authorization server's key: of RSA, or of an elliptic curve."""

    def __init__(self, kid: str | None = "one", curve: ec.EllipticCurve | None = None) -> None:
        self.kid = kid
        self.key: Any
        if curve is None:
            self.key = rsa.generate_private_key(65537, 2048)
            self.algorithm = "RS256"
        else:
            self.key = ec.generate_private_key(curve)
            self.algorithm = {256: "ES256", 384: "ES384", 521: "ES512"}[curve.key_size]

    @cached_property
    def jwk(self) -> dict[str, Any]:
        kind = RSAAlgorithm if self.algorithm == "RS256" else ECAlgorithm
        found = kind.to_jwk(self.key.public_key(), as_dict=True)
        named = {} if self.kid is None else {"kid": self.kid}
        return {
            key: found[key] for key in ("kty", "n", "e", "crv", "x", "y") if key in found
        } | named

    def token(
        self, name: str = "alice", *, by: str | None = None, kid: str | None = None, **more: Any
    ) -> str:
        named = kid or self.kid
        headers = {} if named is None else {"kid": named}
        return jwt.encode(claims_of(name, **more), self.key, by or self.algorithm, headers)


def key_set(*issuers: Issuer) -> bytes:
    return json.dumps({"keys": [each.jwk for each in issuers]}).encode()


def write_keys(path: Path, *issuers: Issuer) -> str:
    """A file with their keys; its URL."""
    path.write_bytes(key_set(*issuers))
    return path.as_uri()
