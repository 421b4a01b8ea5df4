"""Certificates for tests: an authority, and whom it has signed; made anew each time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


def named(text: str) -> x509.Name:
    """A subject of RFC 4514, as `CN=alice,O=Acme`."""
    return x509.Name.from_rfc4514_string(text)


@dataclass
class Issued:
    """A key with its certificate, and what signed it."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate

    @cached_property
    def certificate_pem(self) -> str:
        text: str = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return text

    @cached_property
    def key_pem(self) -> str:
        return self.key_pem_with(None)

    def key_pem_with(self, password: str | None) -> str:
        how: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            how = serialization.BestAvailableEncryption(password.encode())
        text: str = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how
        ).decode()
        return text

    def write_pem(self, path: Path, password: str | None = None) -> Path:
        """A keystore as Kafka's type PEM has it."""
        path.write_text(self.key_pem_with(password) + self.certificate_pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        how = serialization.BestAvailableEncryption(password.encode())
        data = pkcs12.serialize_key_and_certificates(
            b"own", self.key, self.certificate, [self.authority], how
        )
        path.write_bytes(data)
        return path


class Authority:
    """What signs, and is trusted."""

    def __init__(self, name: str = "CN=Authority of tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named(name)
        self.certificate = self._signed(self._name, self._key, [], days=30, is_authority=True)

    @property
    def pem(self) -> str:
        text: str = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return text

    def write(self, path: Path) -> Path:
        path.write_text(self.pem)
        return path

    def issue(
        self,
        subject: str | x509.Name = "CN=localhost",
        *,
        days: float = 20,
        host: str = "127.0.0.1",
    ) -> Issued:
        """A certificate for this subject, which is reached at `host` and as localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = named(subject) if isinstance(subject, str) else subject
        hosts = [x509.IPAddress(ip_address(host)), x509.DNSName("localhost")]
        return Issued(key, self._signed(name, key, hosts, days=days), self.certificate)

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        hosts: list[x509.GeneralName],
        *,
        days: float,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            # What Python 3.13 and later want to find (X509_STRICT).
            .add_extension(x509.KeyUsage(True, *[False] * 4, is_authority, *[False] * 3), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return builder.sign(self._key, hashes.SHA256())


ODD_SUBJECT = x509.Name(
    [
        x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'Acme, "Inc" + <b>'),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, " Käse; #1 "),
        x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@example.org"),
        x509.NameAttribute(NameOID.USER_ID, "u=1"),
        x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "example"),
        x509.NameAttribute(NameOID.SERIAL_NUMBER, "7"),
        x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
    ]
)
# What `X500Principal.getName()` of Java 17 prints of it.
ODD_SUBJECT_AS_JAVA_PRINTS = (
    "CN=alice,2.5.4.5=#130137,DC=example,UID=u\\=1,"
    "1.2.840.113549.1.9.1=#160d61406578616d706c652e6f7267,OU=\\ Käse\\; \\#1\\ ,"
    'O=Acme\\, \\"Inc\\" \\+ \\<b\\>,C=DE'
)
