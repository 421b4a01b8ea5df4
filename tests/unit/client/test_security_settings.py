"""Settings of security, by Java's names and by librdkafka's."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from kraftpy.client.security import NO_SECURITY, Login, SecurityError
from kraftpy.client.security_settings import SECRETS, is_librdkafkas, is_security, parse_security
from tests.certificates import Authority

MARKER = "hunter2-marker"
JAAS = "org.apache.kafka.common.security.{} required username='alice' password=\"{}\";"
SCRAM_LINE = JAAS.format("scram.ScramLoginModule", MARKER)
PLAIN_LINE = JAAS.format("plain.PlainLoginModule", MARKER)


def refused(settings: dict[str, str]) -> str:
    """What a person reads; wherever that is shown, there is no password in it."""
    with pytest.raises(SecurityError) as caught:
        parse_security(settings)
    assert MARKER not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def test_without_settings_of_security_all_is_plain_text() -> None:
    assert parse_security({}) == NO_SECURITY
    assert parse_security({"bootstrap.servers": "a:1", "acks": "all"}) == NO_SECURITY
    assert parse_security({"security.protocol": "plaintext"}) == NO_SECURITY
    assert NO_SECURITY.protocol == "PLAINTEXT"
    assert NO_SECURITY.ssl_context is NO_SECURITY.login is None


def test_both_families_say_the_same(tmp_path: Path) -> None:
    authority = str(Authority().write(tmp_path / "ca.pem"))
    javas = parse_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": SCRAM_LINE,
            "ssl.truststore.location": authority,
            "ssl.truststore.type": "PEM",
        }
    )
    librdkafkas = parse_security(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": MARKER,
            "ssl.ca.location": authority,
        }
    )
    assert javas == librdkafkas
    assert javas.protocol == "SASL_SSL"
    assert javas.ssl_context is not None
    assert javas.ssl_context.check_hostname
    assert javas.user is not None
    assert javas.user.password.reveal() == MARKER


def test_a_certificate_of_the_client_by_either_family(tmp_path: Path) -> None:
    authority = Authority()
    own = authority.issue("CN=alice")
    (tmp_path / "alice.pem").write_text(own.certificate_pem)
    (tmp_path / "alice.key").write_text(own.key_pem)
    for settings in (
        {
            "ssl.certificate.location": str(tmp_path / "alice.pem"),
            "ssl.key.location": str(tmp_path / "alice.key"),
        },
        {"ssl.certificate.pem": own.certificate_pem, "ssl.key.pem": own.key_pem},
        {"ssl.keystore.certificate.chain": own.certificate_pem, "ssl.keystore.key": own.key_pem},
        {
            "ssl.keystore.location": str(own.write_pkcs12(tmp_path / "alice.p12", MARKER)),
            "ssl.keystore.password": MARKER,
        },
    ):
        security = parse_security({"security.protocol": "SSL", **settings})
        assert security.ssl_context is not None, settings.keys()
        assert security.user is None


def test_the_check_of_host_names_may_be_left_out_and_certificates_are_verified() -> None:
    for text in ("", "none", " None "):
        context = parse_security(
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": text}
        ).ssl_context
        assert context is not None
        assert not context.check_hostname
        assert context.verify_mode.name == "CERT_REQUIRED"
    said = refused({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"})
    assert "ssl.ca.location" in said


def test_what_would_have_no_effect_is_refused() -> None:
    said = refused({"sasl.username": "alice", "sasl.password": MARKER})
    assert "no effect with security.protocol=PLAINTEXT: set security.protocol=SASL_SSL" in said
    said = refused({"security.protocol": "SSL", "sasl.jaas.config": SCRAM_LINE})
    assert "set security.protocol=SASL_SSL" in said
    said = refused({"ssl.truststore.location": "ca.pem"})
    assert "set security.protocol=SSL" in said
    said = refused({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "ca.pem"})
    assert "set security.protocol=SASL_SSL" in said


def sasl(**settings: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }


def tokens(url: str, **more: str) -> dict[str, str]:
    given = {"sasl_mechanism": "OAUTHBEARER", **more}
    return sasl(**given) | {
        "sasl.oauthbearer.token.endpoint.url": url,
        **({"security.protocol": more["security_protocol"]} if "security_protocol" in more else {}),
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is one of PLAINTEXT, SSL, SASL"),
        (sasl(), "set sasl.mechanism to one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (sasl(sasl_mechanism="GSSAPI"), "SCRAM-SHA-512, OAUTHBEARER, not"),
        (sasl(sasl_mechanism="PLAIN", sasl_username="a"), "sasl.password is missing"),
        (sasl(sasl_mechanism="PLAIN", sasl_password=MARKER), "sasl.username is missing"),
        (
            sasl(sasl_mechanism="PLAIN", sasl_jaas_config=SCRAM_LINE),
            "login module ScramLoginModule: PLAIN takes PlainLoginModule",
        ),
        (sasl(sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN_LINE * 2), "has 2 login modules"),
        (sasl(sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN_LINE[:-1]), "a ; is missing"),
        (sasl(sasl_mechanism="PLAIN", sasl_jaas_config=f"{MARKER} {MARKER}"), "required"),
        (
            sasl(sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN_LINE, sasl_password=MARKER),
            "set sasl.password or sasl.jaas.config, not both",
        ),
        (
            sasl(sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN_LINE.replace("password", "pass")),
            'lacks password="..."',
        ),
        (
            sasl(
                sasl_mechanism="PLAIN",
                sasl_jaas_config=PLAIN_LINE.replace(";", " tokenauth=true;"),
            ),
            "logs in by SCRAM-SHA-256 or SCRAM-SHA-512, not by PLAIN",
        ),
        (
            sasl(
                sasl_mechanism="SCRAM-SHA-256",
                sasl_jaas_config=SCRAM_LINE,
                kraftpy_sasl_tokenauth="true",
            ),
            "no effect with sasl.jaas.config: write tokenauth=true there",
        ),
        (
            sasl(
                sasl_mechanism="SCRAM-SHA-256",
                sasl_username="id",
                sasl_password=MARKER,
                kraftpy_sasl_tokenauth="yes",
            ),
            "kraftpy.sasl.tokenauth is true or false",
        ),
        (
            {"security.protocol": "SSL", "kraftpy.sasl.tokenauth": "true"},
            "kraftpy.sasl.tokenauth has no effect with security.protocol=SSL",
        ),
        (
            sasl(sasl_mechanism="OAUTHBEARER", kraftpy_sasl_tokenauth="true"),
            "kraftpy.sasl.tokenauth has no effect with OAUTHBEARER",
        ),
        ({"kraftpy.sasl.tokenaut": "true"}, "did you mean kraftpy.sasl.tokenauth?"),
        (
            sasl(sasl_mechanism="SCRAM-SHA-256", sasl_username="é", sasl_password=MARKER),
            "SCRAM-SHA-256 can't log in as 'é'",
        ),
        (sasl(sasl_mechanism="OAUTHBEARER"), "set it to file:///PATH of a token"),
        (
            sasl(sasl_mechanism="OAUTHBEARER", sasl_username="alice"),
            "sasl.username has no effect with OAUTHBEARER",
        ),
        (tokens("http://issuer/token"), "or to https://"),
        (tokens("file://host/token"), "file:///PATH"),
        (tokens("https://alice:word@issuer/token"), "file:///PATH"),
        (tokens("https://issuer/token"), "set sasl.oauthbearer.client.id and"),
        (
            tokens("https://issuer/token", sasl_jaas_config=SCRAM_LINE),
            "OAUTHBEARER takes one OAuthBearerLoginModule",
        ),
        (
            tokens("file:///token", sasl_mechanism="PLAIN"),
            "no effect with PLAIN: set sasl.mechanism=OAUTHBEARER",
        ),
        (
            tokens("file:///token", security_protocol="SSL"),
            "no effect with security.protocol=SSL",
        ),
        (
            {"sasl.login.callback.handler.class": "com.acme.Handler"},
            "no class of Java's",
        ),
        ({"sasl.pasword": MARKER}, "did you mean sasl.password?"),
        ({"ssl.engine.factory.class": "com.acme.Factory"}, "no class of Java's"),
        ({"sasl.client.callback.handler.class": "com.acme.Handler"}, "no class of Java's"),
        ({"ssl.crl.location": "crl.pem"}, "is no setting of security here"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "a", "ssl.truststore.location": "b"},
            "set ssl.ca.location or ssl.truststore.location, not both",
        ),
        ({"security.protocol": "SSL", "ssl.key.pem": MARKER}, "key without its certificate"),
        (
            {"security.protocol": "SSL", "ssl.key.location": "/nowhere/alice.key"},
            "ssl.key.location: /nowhere/alice.key: No such file",
        ),
        ({"security.protocol": "SSL", "ssl.protocol": "SSLv3"}, "are of TLSv1.2, TLSv1.3"),
    ],
)
def test_says_what_is_wrong(settings: dict[str, str], said: str) -> None:
    assert said in refused(settings)


def test_a_delegation_token_is_told_in_java_s_line_or_beside_name_and_password() -> None:
    line = SCRAM_LINE.replace("alice", "an id").replace(";", " tokenauth='TRUE';")
    by_line = parse_security(sasl(sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=line))
    given = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "an id", "sasl_password": MARKER}
    beside = parse_security(sasl(**given, kraftpy_sasl_tokenauth="true"))
    assert by_line == beside
    assert MARKER not in repr(beside)
    assert isinstance(beside.user, Login)
    assert beside.user.begin().first().startswith(b"n,,n=an id,r=")
    assert beside.user.begin().first().endswith(b",tokenauth=true")
    for more in ({}, {"kraftpy_sasl_tokenauth": "false"}):
        user = parse_security(sasl(**given, **more)).user
        assert isinstance(user, Login)
        assert b"tokenauth" not in user.begin().first()


def test_files_that_do_not_serve_are_told_before_a_broker_is_met(tmp_path: Path) -> None:
    pem = str(Authority().write(tmp_path / "ca.pem"))
    (tmp_path / "ca.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    for settings, said in (
        ({"ssl.ca.location": str(tmp_path / "none.pem")}, "No such file"),
        ({"ssl.truststore.location": pem}, "set ssl.truststore.type=PEM"),
        ({"ssl.truststore.location": str(tmp_path / "ca.jks")}, "keytool"),
    ):
        security = parse_security({"security.protocol": "SSL", **settings})
        with pytest.raises(SecurityError, match=said):
            _ = security.ssl_context


def test_trap_23_no_repr_has_a_secret() -> None:
    own = Authority().issue("CN=alice")
    security = parse_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": SCRAM_LINE,
            "ssl.keystore.certificate.chain": own.certificate_pem,
            "ssl.keystore.key": own.key_pem_with(MARKER),
            "ssl.key.password": MARKER,
        }
    )
    assert MARKER not in repr(security)
    assert "PRIVATE" not in repr(security)
    assert "alice" in repr(security)


def test_what_is_a_secret_and_of_which_family() -> None:
    assert {"sasl.password", "sasl.jaas.config", "ssl.key.password"} <= SECRETS
    assert is_librdkafkas(["security.protocol", "ssl.ca.location"])
    assert not is_librdkafkas(["security.protocol", "sasl.mechanism", "ssl.keystore.location"])
    assert is_security("ssl.anything")
    assert not is_security("acks")
