"""What `kraftpy dev --secure` writes: an authority, the brokers' certificate, users, client files.

`secure/` of the cluster's folder has `ca.pem`, which clients trust; `broker.pem`, a key and its
certificate for 127.0.0.1 and localhost; `users.scram`, the first users for the brokers; and for
each of them a folder with `client.properties` for Java's tools and `client.conf` for librdkafka,
kcat and `kraftpy --command-config`. Rules:

* Nobody but who has started the cluster reads a key or a password.
* admin may do everything; alice may do nothing until an ACL lets her.
* The authority's own key isn't kept: it signs the one certificate, and no other one.
* What is there already is used as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from kraftpy.cli.common import EXIT_NOT_STARTED, EXIT_USAGE, Failure

PROTOCOL = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"
ADMIN, ALICE = "admin", "alice"
USERS = (ADMIN, ALICE)

_FOLDER = "secure"
_VALID = timedelta(days=3650)
_MECHANISMS = ("SCRAM-SHA-256", MECHANISM)
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class Secured:
    """The files of a cluster that is secured."""

    folder: Path

    @property
    def authority(self) -> Path:
        """Whom clients are to trust."""
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        """The brokers' key and certificate."""
        return self.folder / "broker.pem"

    @property
    def users(self) -> Path:
        """Who may log in at first."""
        return self.folder / "users.scram"

    def client_conf(self, user: str) -> Path:
        """As librdkafka reads it."""
        return self.folder / user / "client.conf"

    def client_properties(self, user: str) -> Path:
        """As Java's clients read it."""
        return self.folder / user / "client.properties"

    def as_json(self) -> dict[str, object]:
        """What `-o json` says of it."""
        return {
            "ca": str(self.authority),
            "users": {user: str(self.client_conf(user)) for user in USERS},
        }

    def settings(self) -> Mapping[str, str]:
        """What every broker is told."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
            "kraftpy.bootstrap.scram.file": str(self.users),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
        }


def secured(root: Path) -> Secured | None:
    """The files of the cluster in this folder; None if it isn't secured."""
    found = Secured(root / _FOLDER)
    return found if found.authority.exists() else None


def secure(root: Path) -> Secured:
    """Makes what isn't there. Raises `Failure`."""
    there = secured(root)
    if there is not None:
        return there
    made = Secured(root / _FOLDER)
    authority, certificate = _certificates()
    passwords = {user: secrets.token_urlsafe(_PASSWORD_BYTES) for user in USERS}
    try:
        made.folder.mkdir(parents=True, exist_ok=True)
        _write(made.certificate, certificate)
        _write(made.users, _first_users(passwords))
        for user in USERS:
            made.client_conf(user).parent.mkdir(mode=0o700, exist_ok=True)
            password = passwords[user]
            _write(made.client_conf(user), _lines(_librdkafkas(made, user, password)))
            _write(made.client_properties(user), _lines(_javas(made, user, password)))
        # The last one: where it is, all are.
        _write(made.authority, authority, mode=0o644)
    except OSError as error:
        raise Failure(
            f"cannot write {made.folder}: {error.strerror}. Choose another folder with --dir",
            EXIT_NOT_STARTED,
        ) from None
    return made


def _first_users(passwords: Mapping[str, str]) -> bytes:
    """Lines as `kafka-storage format --add-scram` takes them."""
    return "".join(
        f"{mechanism}=[name={user},password={password}]\n"
        for user, password in passwords.items()
        for mechanism in _MECHANISMS
    ).encode()


def _librdkafkas(made: Secured, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(made.authority),
    }


def _javas(made: Secured, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": (f'{_MODULE} required username="{user}" password="{password}";'),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made.authority).replace("\\", "\\\\"),
    }


def _lines(settings: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in settings.items()).encode()


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    path.touch(mode=mode)
    path.write_bytes(data)


# -- certificates


def _certificates() -> tuple[bytes, bytes]:
    """An authority's certificate, and a key with the certificate that it has signed; PEM."""
    try:
        from cryptography.hazmat.primitives import serialization as forms
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise Failure(
            "--secure makes certificates, which takes the extra: pip install 'kraftpy[secure]'",
            EXIT_USAGE,
        ) from None
    signing, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _signed("kraftpy dev", signing, "kraftpy dev", signing)
    certificate = _signed("localhost", own, "kraftpy dev", signing)
    key = own.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    pem = forms.Encoding.PEM
    return authority.public_bytes(pem), key + certificate.public_bytes(pem)


def _signed(name: str, key: Any, issuer: str, signing: Any) -> Any:
    """A certificate as strict clients want it, Python 3.13 and Go among them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    def named(text: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    is_authority = key is signing
    now = datetime.now(UTC)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "data_encipherment",
            "encipher_only",
            "decipher_only",
            "key_agreement",
            "key_encipherment",
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A clock that is somewhat behind, as those of virtual machines, finds it valid, too.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                **usage,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
    )
    if not is_authority:
        hosts = [x509.DNSName("localhost")]
        addresses = [x509.IPAddress(ip_address(each)) for each in ("127.0.0.1", "::1")]
        builder = builder.add_extension(
            x509.SubjectAlternativeName([*hosts, *addresses]), critical=False
        ).add_extension(
            x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(signing, hashes.SHA256())
