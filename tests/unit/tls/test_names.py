"""What a certificate's subject is, as Java prints it, and what rules make of it."""

from __future__ import annotations

import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kraftpy.tls.certificates import der_of, read_certificate
from kraftpy.tls.mapping import apply_rules, parse_rules
from kraftpy.tls.settings import TlsError
from tests.certificates import ODD_SUBJECT, ODD_SUBJECT_AS_JAVA_PRINTS, Authority

AUTHORITY = Authority()


def subject_of(name: x509.Name) -> str:
    certificate = AUTHORITY.issue(name).certificate
    return read_certificate(certificate.public_bytes(Encoding.DER)).subject


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def test_a_subject_is_printed_as_java_prints_it() -> None:
    assert subject_of(ODD_SUBJECT) == ODD_SUBJECT_AS_JAVA_PRINTS


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("  lead", r"CN=\ \ lead"),
        ("   ", r"CN=\ \ \ "),
        ("\r\rcr\r", "CN=\\\r\\\rcr\\\r"),
        ("nul\0x", r"CN=nul\00x"),
        ("a#b", r"CN=a\#b"),
        ("a\\b", r"CN=a\\b"),
        ("日本", "CN=日本"),
    ],
)
def test_blanks_and_signs_are_escaped_as_java_does(text: str, printed: str) -> None:
    assert subject_of(common_name(text)) == printed


def test_parts_that_stand_together_keep_their_order() -> None:
    def attribute(oid: x509.ObjectIdentifier, text: str) -> x509.NameAttribute:
        return x509.NameAttribute(oid, text)

    parts = [
        attribute(NameOID.COMMON_NAME, "b"),
        attribute(NameOID.USER_ID, "u"),
        attribute(NameOID.ORGANIZATION_NAME, "o"),
    ]
    country = x509.RelativeDistinguishedName([attribute(NameOID.COUNTRY_NAME, "DE")])
    name = x509.Name([x509.RelativeDistinguishedName(parts), country])
    assert subject_of(name) == "C=DE,CN=b+O=o+UID=u"


def test_until_when_a_certificate_holds() -> None:
    issued = AUTHORITY.issue(days=20)
    read = read_certificate(der_of(issued.certificate_pem.encode()))
    assert read.not_after_s == pytest.approx(time.time() + 20 * 86400, abs=60)
    assert read.not_before_s == pytest.approx(time.time() - 30 * 86400, abs=60)


def test_damaged_certificates_are_refused_and_nothing_else_happens() -> None:
    der = AUTHORITY.issue("CN=x,O=y").certificate.public_bytes(Encoding.DER)
    with pytest.raises(TlsError):
        read_certificate(b"")
    refused = 0
    for position in range(len(der) - 1):
        for cut in (
            der[:position],
            der[:position] + bytes([der[position] ^ 0xFF]) + der[position + 1 :],
        ):
            try:
                read_certificate(cut)
            except TlsError:
                refused += 1
    assert refused > len(der)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=kafka,OU=SRE,C=SE", "CN=kafka,OU=SRE,C=SE"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka,OU=ServiceUsers,O=U", "kafka"),
        (
            "RULE:^CN=(.*?), OU=ServiceUsers.*$/$1/ , "
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/U, DEFAULT",
            "CN=adminUser,OU=Admin,O=Unknown",
            "ADMINUSER@ADMIN",
        ),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", "OU=x,CN=Duke", "duke"),
        (r"RULE:^CN=(.*)\/(.*)$/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:^CN=(.*)$/$1$12$9/", "CN=a", "aa2$9"),
        ("RULE:^CN=(.*)$/\\$1/", "CN=a", "$1"),
        ("RULE:^CN=x$/x/", "CN=y", None),
        ("RULE:CN=(.)/$1/,DEFAULT", "CN=ab", "CN=ab"),
    ],
)
def test_rules_make_names_as_kafkas_do(rules: str, subject: str, name: str | None) -> None:
    assert apply_rules(parse_rules(rules), subject) == name


@pytest.mark.parametrize(
    "rules", ["default", "RULE:", "RULE:a/b", "RULE:a/b/X", "RULE:(/x/", "DEFAULT DEFAULT"]
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rules(rules)


def test_a_rule_takes_time_in_proportion_to_the_subject() -> None:
    rules = parse_rules("RULE:^CN=(a+)+$/$1/")
    began_s = time.monotonic()
    assert apply_rules(rules, "CN=" + "a" * 5000 + "!") is None
    assert time.monotonic() - began_s < 2
