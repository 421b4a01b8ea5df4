"""Contexts from keystores and truststores of all forms, by real handshakes in memory."""

from __future__ import annotations

import builtins
import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest

from kraftpy.secret import Secret
from kraftpy.tls.contexts import client_context, server_context
from kraftpy.tls.settings import StoreSettings, TlsError, TlsSettings
from tests.certificates import Authority, Issued

MARKER = "marker-password-7"
AUTHORITY = Authority()
SERVER = AUTHORITY.issue("CN=broker")


def keystore(**fields: Any) -> StoreSettings:
    return StoreSettings(prefix="ssl.keystore", **fields)


def truststore(**fields: Any) -> StoreSettings:
    return StoreSettings(prefix="ssl.truststore", **fields)


def inline(issued: Issued, **fields: Any) -> TlsSettings:
    return TlsSettings(
        keystore=keystore(type="PEM", pem=Secret(issued.certificate_pem)),
        key=Secret(issued.key_pem),
        **fields,
    )


TRUSTING = TlsSettings(truststore=truststore(type="PEM", pem=Secret(AUTHORITY.pem)))


def shake_hands(server: TlsSettings, client: TlsSettings = TRUSTING) -> ssl.SSLObject:
    """The server's end. Raises ssl.SSLError if one of them refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server_context(server).context.wrap_bio(to_server, to_client, server_side=True)
    dialing = client_context(client).context.wrap_bio(
        to_client, to_server, server_hostname="127.0.0.1"
    )
    for _ in range(4):
        for end in (dialing, accepting):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    dialing.write(b"x")
    assert accepting.read(1) == b"x"
    return accepting


def test_pem_inline_and_in_a_file_also_with_an_encrypted_key(tmp_path: Path) -> None:
    assert shake_hands(inline(SERVER)).version() == "TLSv1.3"
    for password in (None, MARKER):
        path = SERVER.write_pem(tmp_path / f"{password}.pem", password)
        store = keystore(type="PEM", location=str(path))
        secret = Secret(password) if password else None
        shake_hands(TlsSettings(keystore=store, key_password=secret))


def test_pkcs12_keystore_and_truststore(tmp_path: Path) -> None:
    path = SERVER.write_pkcs12(tmp_path / "own.p12", MARKER)
    for type_ in ("PKCS12", "JKS"):  # Java, too, opens PKCS12 under the name of JKS
        store = keystore(type=type_, location=str(path), password=Secret(MARKER))
        trusted = truststore(type="PKCS12", location=str(path), password=Secret(MARKER))
        shake_hands(TlsSettings(keystore=store), TlsSettings(truststore=trusted))


def test_without_the_extra_pkcs12_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SERVER.write_pkcs12(tmp_path / "own.p12", MARKER)
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TlsError, match=r"pip install 'kraftpy\[secure\]'"):
        server_context(TlsSettings(keystore=keystore(type="PKCS12", location=str(path))))


@pytest.mark.parametrize("magic", ["feedfeed", "cececece"])
def test_jks_is_refused_with_the_line_that_converts_it(tmp_path: Path, magic: str) -> None:
    path = tmp_path / "broker.jks"
    path.write_bytes(bytes.fromhex(magic) + bytes(100))
    with pytest.raises(TlsError) as caught:
        server_context(TlsSettings(keystore=keystore(location=str(path))))
    assert f"keytool -importkeystore -srckeystore {path}" in str(caught.value)
    assert "ssl.keystore.type=PKCS12" in str(caught.value)


def test_what_is_said_of_stores_that_cant_be_used_without_secrets(tmp_path: Path) -> None:
    other = AUTHORITY.issue()
    files = {
        "empty.pem": "",
        "key.pem": SERVER.key_pem,
        "certificate.pem": SERVER.certificate_pem,
        "mixed.pem": other.key_pem + SERVER.certificate_pem,
        "locked.pem": SERVER.key_pem_with(MARKER) + SERVER.certificate_pem,
        "cut.pem": SERVER.key_pem + SERVER.certificate_pem.replace("MII", "M!I", 1),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    SERVER.write_pkcs12(tmp_path / "own.p12", MARKER)
    said = {}
    for name, type_ in [*((each, "PEM") for each in files), ("own.p12", "PKCS12"),
                        ("key.pem", "JKS"), ("gone.pem", "PEM")]:  # fmt: skip
        store = keystore(
            type=type_, location=str(tmp_path / name), password=Secret(MARKER + "-wrong")
        )
        with pytest.raises(TlsError) as caught:
            server_context(TlsSettings(keystore=store, key_password=Secret("wrong-" + MARKER)))
        said[name, type_] = str(caught.value)
        assert MARKER not in repr(caught.value) + str(caught.value)
        assert caught.value.__cause__ is None
    assert "has no certificate" in said["empty.pem", "PEM"]
    assert "has no certificate" in said["key.pem", "PEM"]
    assert "one private key" in said["certificate.pem", "PEM"]
    assert "isn't that of the certificate" in said["mixed.pem", "PEM"]
    assert "is ssl.key.password right" in said["locked.pem", "PEM"]
    assert "damaged" in said["cut.pem", "PEM"]
    assert "is ssl.keystore.password right" in said["own.p12", "PKCS12"]
    assert "set ssl.keystore.type=PEM" in said["key.pem", "JKS"]
    assert "No such file" in said["gone.pem", "PEM"]


def test_who_isnt_an_authority_may_be_trusted_as_in_java() -> None:
    trusting = TlsSettings(truststore=truststore(pem=Secret(SERVER.certificate_pem)))
    shake_hands(inline(SERVER), trusting)


def test_a_stranger_is_not_trusted_on_either_side() -> None:
    stranger = Authority().issue("CN=stranger")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(inline(stranger))
    server = inline(SERVER, client_auth="required", truststore=TRUSTING.truststore)
    with pytest.raises(ssl.SSLError):
        shake_hands(server, inline(stranger, truststore=TRUSTING.truststore))
    with pytest.raises(ssl.SSLError):
        shake_hands(server, TRUSTING)
    client = AUTHORITY.issue("CN=alice")
    accepted = shake_hands(server, inline(client, truststore=TRUSTING.truststore))
    assert accepted.getpeercert(binary_form=True) is not None


def test_a_name_that_isnt_the_hosts_is_refused_unless_it_isnt_looked_at() -> None:
    elsewhere = AUTHORITY.issue(host="10.9.8.7")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(inline(elsewhere))
    careless = TlsSettings(truststore=TRUSTING.truststore, endpoint_identification_algorithm="")
    shake_hands(inline(elsewhere), careless)


@pytest.mark.parametrize(
    ("fields", "version", "cipher"),
    [
        ({"enabled_protocols": ("TLSv1.2",)}, "TLSv1.2", None),
        ({"protocol": "TLSv1.2"}, "TLSv1.2", None),
        (
            {"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)},
            "TLSv1.2",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        (
            {"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",)},
            "TLSv1.2",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
        ),
    ],
)
def test_protocols_and_ciphers_are_those_that_are_enabled(
    fields: dict[str, Any], version: str, cipher: str | None
) -> None:
    server = shake_hands(inline(SERVER, **fields))
    assert server.version() == version
    used = server.cipher()
    assert used is not None
    assert cipher in (None, used[0])


def test_ciphers_that_arent_there_are_refused() -> None:
    for suites, sentence in (
        (("TLS_RSA_WITH_NULL_MD4",), "OpenSSL has none of"),
        (("TLS_AES_128_GCM_SHA256",), "together or not at all"),
    ):
        with pytest.raises(TlsError, match=sentence):
            server_context(inline(SERVER, cipher_suites=suites))
    with pytest.raises(TlsError, match="leave no TLS"):
        server_context(inline(SERVER, protocol="TLSv1.2", enabled_protocols=("TLSv1.3",)))
