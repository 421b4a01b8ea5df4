"""Keystores and truststores: what is in a file, or in a setting, as PEM.

PEM is read with the standard library (KIP-651), PKCS12 with `cryptography`, which the extra
`kraftpy[secure]` brings. A JKS keystore can be read by Java alone. What is read is bounded, and it
is read once: key and certificate of one context are those of one moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kraftpy.frozen import NamedTuple
from kraftpy.secret import Secret
from kraftpy.tls.certificates import pem_blocks
from kraftpy.tls.settings import StoreSettings, TlsError

STORE_MAX_BYTES = 4 * 1024 * 1024
_JKS = (bytes.fromhex("feedfeed"), bytes.fromhex("cececece"))


class KeyPair(NamedTuple):
    """A private key and the certificates that belong to it, as PEM."""

    key: Secret
    chain: bytes
    password: Secret | None


def read_keystore(
    settings: StoreSettings, key: Secret | None, key_password: Secret | None
) -> KeyPair:
    """The key and the certificates of a keystore. Raises TlsError."""
    if settings.pem is not None:
        if key is None or settings.location is not None:
            raise TlsError(
                "ssl.keystore.certificate.chain goes with ssl.keystore.key, and without "
                "ssl.keystore.location"
            )
        return _pair(
            settings.pem.reveal().encode(),
            key.reveal().encode(),
            key_password,
            "ssl.keystore.certificate.chain",
        )
    if settings.location is None or key is not None:
        raise TlsError(
            "there is no certificate: set ssl.keystore.location, or ssl.keystore.key together "
            "with ssl.keystore.certificate.chain"
        )
    data = _read(settings)
    if settings.type == "PEM":
        return _pair(data, data, key_password, settings.location)
    return _pair_of_pkcs12(settings, data)


def read_truststore(settings: StoreSettings) -> bytes:
    """The certificates of a truststore, as PEM. Raises TlsError."""
    if settings.pem is not None:
        data, name = settings.pem.reveal().encode(), "ssl.truststore.certificates"
    else:
        assert settings.location is not None
        data, name = _read(settings), settings.location
        if settings.type != "PEM":
            data = _certificates_of_pkcs12(settings, data)
    found = pem_blocks(data, b"CERTIFICATE")
    if not found:
        raise TlsError(f"{name} has no certificate")
    return b"".join(found)


def _pair(chain: bytes, key: bytes, password: Secret | None, name: str) -> KeyPair:
    certificates = pem_blocks(chain, b"CERTIFICATE")
    keys = pem_blocks(key, b"PRIVATE KEY")
    if not certificates:
        raise TlsError(f"{name} has no certificate")
    if len(keys) != 1:
        raise TlsError(f"{name} goes with one private key in PEM, and {len(keys)} are there")
    return KeyPair(Secret(keys[0].decode("ascii", "replace")), b"".join(certificates), password)


def _read(settings: StoreSettings) -> bytes:
    assert settings.location is not None
    path = Path(settings.location)
    try:
        with path.open("rb") as file:
            data = file.read(STORE_MAX_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{settings.prefix}.location: {path}: {error.strerror}") from None
    if len(data) > STORE_MAX_BYTES:
        raise TlsError(f"{path} has more than {STORE_MAX_BYTES} bytes")
    if data[:4] in _JKS:
        raise TlsError(
            f"{path} is a JKS keystore, which Java alone can read. Convert it: keytool "
            f"-importkeystore -srckeystore {path} -destkeystore {path.with_suffix('.p12')} "
            f"-deststoretype PKCS12; then set {settings.prefix}.type=PKCS12 and "
            f"{settings.prefix}.location"
        )
    if settings.type != "PEM" and data[:1] != b"\x30":
        hint = f": set {settings.prefix}.type=PEM" if b"-----BEGIN" in data else ""
        raise TlsError(f"{path} isn't a PKCS12 file{hint}")
    return data


def _pkcs12(settings: StoreSettings, data: bytes) -> tuple[Any, Any, list[Any]]:
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise TlsError(
            f"to read {settings.location}, which is PKCS12, takes the extra: pip install "
            f"'kraftpy[secure]'; or convert it to PEM: openssl pkcs12 -in {settings.location} "
            f"-nodes, and set {settings.prefix}.type=PEM"
        ) from None
    password = settings.password.reveal().encode() if settings.password is not None else None
    try:
        key, certificate, others = pkcs12.load_key_and_certificates(data, password)
    except ValueError:
        # Without what the library says: it may repeat what it was given.
        raise TlsError(
            f"{settings.location} can't be opened: is {settings.prefix}.password right, and the "
            "file whole?"
        ) from None
    return key, certificate, others


def _pair_of_pkcs12(settings: StoreSettings, data: bytes) -> KeyPair:
    key, certificate, others = _pkcs12(settings, data)
    if key is None or certificate is None:
        raise TlsError(f"{settings.location} has no private key with its certificate")
    from cryptography.hazmat.primitives import serialization as forms

    pem: bytes = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    return KeyPair(Secret(pem.decode()), _as_pem([certificate, *others]), None)


def _certificates_of_pkcs12(settings: StoreSettings, data: bytes) -> bytes:
    _, certificate, others = _pkcs12(settings, data)
    return _as_pem([*([certificate] if certificate is not None else []), *others])


def _as_pem(certificates: list[Any]) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)
