"""Keys that tokens are signed with, and signatures. Trap 22 of security has its tests here."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from kraftpy.client.https import ExchangeError
from kraftpy.core.security.tokens import TokenError, read_header
from kraftpy.server.network import token_keys
from kraftpy.server.network.token_keys import (
    KeysEndpoint,
    KeysError,
    TokenKeys,
    read_keys,
    read_url,
)
from kraftpy.tls.contexts import client_context
from kraftpy.tls.settings import StoreSettings, TlsSettings
from tests.certificates import Authority
from tests.tokens import Issuer, claims_of, key_set, unpadded, unsigned, write_keys
from tests.waiting import until

RSA = Issuer("rsa")
P256, P384 = Issuer("p256", ec.SECP256R1()), Issuer("p384", ec.SECP384R1())
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def keys_at(url: str, **more: int) -> TokenKeys:
    times = {"refresh_ms": 3_600_000, "backoff_ms": 10, "backoff_max_ms": 20} | more
    return TokenKeys(KeysEndpoint(url=url, **times), "SASL")


def having(*issuers: Issuer) -> TokenKeys:
    keys = keys_at("file:///nowhere")
    keys._keys = read_keys(key_set(*issuers))
    return keys


def opened(keys: TokenKeys, token: str) -> Any:
    return json.loads(keys.open(token, read_header(token)))


# -- signatures


@pytest.mark.parametrize("algorithm", RSA_ALGORITHMS)
def test_a_key_of_rsa(algorithm: str) -> None:
    assert opened(having(P256, RSA), RSA.token(by=algorithm))["sub"] == "alice"


@pytest.mark.parametrize("issuer", [P256, P384, Issuer("p521", ec.SECP521R1())])
def test_a_key_of_a_curve(issuer: Issuer) -> None:
    assert opened(having(RSA, issuer), issuer.token())["sub"] == "alice"


def test_trap_22_none() -> None:
    for kid in (None, "rsa"):
        head = {"alg": "none"} | ({} if kid is None else {"kid": kid})
        token = f"{unpadded(json.dumps(head).encode())}.{unsigned(claims_of()).split('.')[1]}."
        for keys in (having(RSA), having(RSA, P256)):
            with pytest.raises(TokenError, match="no key is good for it by 'none'"):
                opened(keys, token)


@pytest.mark.parametrize("form", ["pem", "der", "jwk", "n"])
def test_trap_22_hs256_by_the_rsa_key(form: str) -> None:
    """What is public is no secret that somebody could sign with."""
    public = RSA.key.public_key()
    secret = {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(RSA.jwk).encode(),
        "n": base64.urlsafe_b64decode(RSA.jwk["n"] + "=="),
    }[form]
    for algorithm in ("HS256", "RS256"):
        head = unpadded(json.dumps({"alg": algorithm, "kid": "rsa"}).encode())
        signed = f"{head}.{unpadded(json.dumps(claims_of()).encode())}"
        mac = hmac.digest(secret, signed.encode(), hashlib.sha256)
        with pytest.raises(TokenError, match=r"no key is good|signature is wrong"):
            opened(having(RSA), f"{signed}.{unpadded(mac)}")


def test_a_key_is_good_for_what_it_says() -> None:
    jwk = RSA.jwk | {"alg": "RS256"}
    keys = having(RSA)
    keys._keys = read_keys(json.dumps({"keys": [jwk]}).encode())
    opened(keys, RSA.token())
    for algorithm in RSA_ALGORITHMS[1:]:
        with pytest.raises(TokenError, match="no key is good"):
            opened(keys, RSA.token(by=algorithm))


def test_a_signature_is_of_this_key_and_of_these_words() -> None:
    keys = having(RSA)
    with pytest.raises(TokenError, match="signature is wrong"):
        opened(keys, Issuer("rsa").token())
    head, payload, signature = RSA.token().split(".")
    other = unpadded(json.dumps(claims_of("admin")).encode())
    for token in (
        f"{head}.{other}.{signature}",
        f"{head}.{payload}.",
        f"{head}.{payload}.{signature[:-8]}",
        f"{head}.{payload}.!",
    ):
        with pytest.raises(TokenError):
            opened(keys, token)
    with pytest.raises(TokenError, match="isn't known"):
        opened(keys, RSA.token(kid="another"))


def test_without_an_id_there_has_to_be_one_key_for_it() -> None:
    nameless = Issuer(None)
    assert opened(having(nameless, P256), nameless.token())["sub"] == "alice"
    with pytest.raises(TokenError, match="no key is good"):
        opened(having(nameless, RSA), nameless.token())


# -- sets of keys


def test_what_is_no_key_for_signatures_is_left_out() -> None:
    small = rsa.generate_private_key(65537, 1024).public_key()
    private = RSAAlgorithm.to_jwk(RSA.key, as_dict=True) | {"kid": "private"}
    listed = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        RSA.jwk | {"use": "enc", "kid": "enc"},
        RSA.jwk | {"alg": "HS256", "kid": "hmac"},
        RSA.jwk | {"n": "AQAB", "kid": "tiny"},
        RSA.jwk | {"n": 7, "kid": "number"},
        RSA.jwk | {"kid": 7},
        P256.jwk | {"crv": "secp256k1", "kid": "curve"},
        P256.jwk | {"x": "AAAA", "kid": "point"},
        RSAAlgorithm.to_jwk(small, as_dict=True) | {"kid": "small"},
        {},
        7,
        private,
        P256.jwk,
    ]
    keys = read_keys(json.dumps({"keys": listed}).encode())
    assert [each.kid for each in keys] == ["private", "p256"]
    assert all(hasattr(each.public, "verify") for each in keys)
    assert [each.algorithms for each in keys] == [RSA_ALGORITHMS, ("ES256",)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b"[" * 100_000,
        json.dumps({"keys": [RSA.jwk] * 201}).encode(),
    ],
)
def test_what_is_no_set(text: bytes) -> None:
    with pytest.raises(KeysError):
        read_keys(text)


async def started(keys: TokenKeys) -> TokenKeys:
    keys.start(asyncio.get_running_loop())
    await until(lambda: not keys._reading)
    return keys


async def test_trap_22_a_flood_of_unknown_keys_is_one_reading(tmp_path: Path) -> None:
    url = write_keys(tmp_path / "keys", RSA)
    keys = await started(keys_at(url))
    try:
        write_keys(tmp_path / "keys", P256)
        for number in range(200):
            with pytest.raises(TokenError, match="isn't known"):
                opened(keys, P256.token(kid=f"kid-{number}"))
        assert keys.readings == 1
        keys._begun_s -= token_keys.UNKNOWN_MIN_S
        for _ in range(200):
            with pytest.raises(TokenError, match="isn't known"):
                opened(keys, P256.token(kid="another"))
        assert keys.readings == 2
        await until(lambda: not keys._reading)
        assert opened(keys, P256.token())["sub"] == "alice"
        with pytest.raises(TokenError, match="isn't known"):
            opened(keys, RSA.token())
    finally:
        keys.close()


async def test_what_cannot_be_read_leaves_what_was_there_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    keys = await started(keys_at(write_keys(file, RSA), refresh_ms=10))
    try:
        file.write_text("half a fi")
        await until(lambda: "token-keys-refused" in caplog.text)
        assert opened(keys, RSA.token())["sub"] == "alice"
        write_keys(file, P256)
        await until(lambda: keys._keys[0].kid == "p256")
    finally:
        keys.close()
    readings = keys.readings
    await asyncio.sleep(0.05)
    assert keys.readings == readings


# -- by HTTPS

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Keys(http.server.ThreadingHTTPServer):
    """Serves `answers` by path, and notes what was asked for."""

    asked: list[str]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/keys?a=b")
            self.end_headers()
            return
        body = key_set(RSA)
        if self.path.startswith("/long"):
            body += b" " * ((1 << 20) + int(self.path[5:] or 0) - len(body))
        self.send_response(404 if self.path == "/missing" else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Keys, ssl.SSLContext]]:
    folder = tmp_path_factory.mktemp("https")
    authority = Authority()
    authority.write(folder / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("CN=keys").write_pem(folder / "keys.pem"))
    made = Keys(("127.0.0.1", 0), Handler)
    made.asked = []
    made.socket = context.wrap_socket(made.socket, server_side=True)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    truststore = StoreSettings(prefix="x", type="PEM", location=str(folder / "ca.pem"))
    trusting = TlsSettings(truststore=truststore, endpoint_identification_algorithm="https")
    yield made, client_context(trusting).context
    made.shutdown()
    made.server_close()


def test_a_set_is_read_by_https(server: tuple[Keys, ssl.SSLContext]) -> None:
    keys, context = server
    base = f"https://127.0.0.1:{keys.server_port}"
    assert read_url(f"{base}/keys?a=b", context) == key_set(RSA)
    assert len(read_url(f"{base}/long", context)) == 1 << 20
    with pytest.raises(ExchangeError, match="more than 1048576 bytes"):
        read_url(f"{base}/long1", context)
    with pytest.raises(ExchangeError, match="404"):
        read_url(f"{base}/missing", context)
    keys.asked.clear()
    with pytest.raises(ExchangeError, match="302"):
        read_url(f"{base}/elsewhere", context)
    assert keys.asked == ["/elsewhere"], "redirects aren't followed"
    with pytest.raises(ExchangeError, match="certificate verify failed"):
        read_url(f"{base}/keys", ssl.create_default_context())


def test_a_file_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "keys with blanks"
    file.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ExchangeError, match="more than 1048576 bytes"):
        read_url(file.as_uri(), None)
    with pytest.raises(FileNotFoundError):
        read_url((tmp_path / "none").as_uri(), None)
