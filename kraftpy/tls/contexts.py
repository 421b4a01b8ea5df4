"""Contexts of TLS, made from settings: what OpenSSL is told.

Rules:

* TLS 1.2 and 1.3, no renegotiation, no compression.
* Whom a truststore holds is trusted, be it no authority, as Java does: VERIFY_X509_PARTIAL_CHAIN.
* A private key never lies in a file because of us: OpenSSL reads it from memory.
* A context isn't changed once somebody has it. Its tickets are its own: what one context has
  resumed, the next one, which trusts others, verifies.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from kraftpy.frozen import NamedTuple
from kraftpy.tls.certificates import Certificate, der_of, pem_blocks, read_certificate
from kraftpy.tls.settings import NONE, REQUIRED, TlsError, TlsSettings
from kraftpy.tls.stores import KeyPair, read_keystore, read_truststore

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES_13 = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)


class Loaded(NamedTuple):
    """A context, and whose certificate it shows, if it shows one.

    `dial_context` is for connections to others who have the same settings, if that is wanted.
    """

    context: ssl.SSLContext
    certificate: Certificate | None
    dial_context: ssl.SSLContext | None = None


def server_context(settings: TlsSettings) -> Loaded:
    """For who accepts connections. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose_protocols(context, settings)
    certificate = _show(context, settings)
    if settings.client_auth != NONE:
        required = settings.client_auth == REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        _trust(context, settings)
    return Loaded(context, certificate)


def client_context(settings: TlsSettings) -> Loaded:
    """For who connects; with a certificate to show if there is a keystore. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(settings.endpoint_identification_algorithm)
    _choose_protocols(context, settings)
    _trust(context, settings)
    shown = settings.keystore.is_set or settings.key is not None
    return Loaded(context, _show(context, settings) if shown else None)


def both_contexts(settings: TlsSettings) -> Loaded:
    """For who accepts connections, and connects to others who do. Raises TlsError."""
    dial_context = client_context(settings).context
    return server_context(settings)._replace(dial_context=dial_context)


def _choose_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    names = set(settings.enabled_protocols)
    if settings.protocol == "TLSv1.2":
        names.discard("TLSv1.3")
    older = [each for each in settings.cipher_suites if each not in _SUITES_13]
    if settings.cipher_suites:
        newer = _SUITES_13.intersection(settings.cipher_suites)
        if newer and newer != _SUITES_13 and "TLSv1.3" in names:
            raise TlsError(
                "ssl.cipher.suites: those of TLS 1.3 are used together or not at all here: "
                f"{', '.join(sorted(_SUITES_13))}"
            )
        names -= {"TLSv1.2"} if not older else set()
        names -= {"TLSv1.3"} if not newer else set()
    if not names:
        raise TlsError("ssl.protocol, ssl.enabled.protocols and ssl.cipher.suites leave no TLS")
    versions = sorted(_VERSIONS[each] for each in names)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if older:
        try:
            context.set_ciphers(":".join(map(_openssl_name, older)))
        except ssl.SSLError:
            raise TlsError(
                f"ssl.cipher.suites: OpenSSL has none of {', '.join(older)[:200]}"
            ) from None


def _openssl_name(suite: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256 to OpenSSL."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, cipher = suite.removeprefix("TLS_").split("_WITH_", 1)
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    parts = [] if exchange == "RSA" else [exchange]
    return "_".join([*parts, cipher]).replace("_", "-")


def _show(context: ssl.SSLContext, settings: TlsSettings) -> Certificate:
    pair = read_keystore(settings.keystore, settings.key, settings.key_password)
    certificate = read_certificate(der_of(pem_blocks(pair.chain, b"CERTIFICATE")[0]))
    name = settings.keystore.location or "ssl.keystore.certificate.chain"
    with _in_memory(pair.chain) as chain, _in_memory(pair.key.reveal().encode()) as key:
        try:
            # The function is only called for a key that is encrypted; without one OpenSSL would
            # ask at the terminal.
            context.load_cert_chain(chain, key, password=lambda: _password(pair))
        except ssl.SSLError as error:
            raise TlsError(f"{name}: {_why(error, pair)}") from None
    return certificate


def _password(pair: KeyPair) -> str:
    return pair.password.reveal() if pair.password is not None else ""


def _why(error: ssl.SSLError, pair: KeyPair) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key isn't that of the certificate"
    if b"ENCRYPTED" in pair.key.reveal().encode()[:200]:
        return "the private key can't be opened: is ssl.key.password right?"
    return f"OpenSSL can't use it ({error.reason or 'no reason given'})"


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not settings.truststore.is_set:
        context.set_default_verify_paths()
        return
    pem = read_truststore(settings.truststore)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except ssl.SSLError as error:
        name = settings.truststore.location or "ssl.truststore.certificates"
        raise TlsError(f"{name}: a certificate that can't be read ({error.reason})") from None


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A file that only this process has, by its name."""
    fd = os.memfd_create("kraftpy", os.MFD_CLOEXEC)
    try:
        while data:
            data = data[os.write(fd, data) :]
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
