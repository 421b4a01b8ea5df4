"""Security from settings: those of Java's clients, and those of librdkafka, by their names.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=alice
    sasl.password=...
    ssl.ca.location=/etc/kafka/ca.pem

A delegation token's id and HMAC stand in place of name and password; that they are such is said by
the option `tokenauth=true` of Java's ScramLoginModule, or by `kraftpy.sasl.tokenauth=true`. Rules:

* Settings that have nothing to do with security are left alone; one that begins as those do, and
  isn't known, is refused. So is one that would have no effect, such as a password without SASL:
  who writes it believes that something is secured.
* What weakens security can't be asked for: certificates are verified.
* No value that may be secret is in an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from kraftpy.client import token_settings
from kraftpy.client.security import MECHANISMS, PLAINTEXT, PROTOCOLS, Login, Security, SecurityError
from kraftpy.client.tokens import TokenLogin
from kraftpy.protocol.sasl.jaas import JaasError, parse
from kraftpy.protocol.sasl.oauthbearer import OAUTHBEARER
from kraftpy.protocol.sasl.plain import PLAIN
from kraftpy.protocol.sasl.scram import HASHES
from kraftpy.secret import Secret
from kraftpy.tls.settings import StoreSettings, TlsSettings

SECRETS = frozenset(
    {
        *token_settings.SECRETS,
        "sasl.jaas.config",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
"""Settings whose values nobody may see."""

TOKEN_AUTH = "kraftpy.sasl.tokenauth"  # noqa: S105 - a setting's name
"""Where there is no JAAS line: whether name and password are those of a delegation token."""

_LIBRDKAFKA = frozenset(
    {
        *token_settings.LIBRDKAFKA,
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
    }
)
_SASL = frozenset(
    {
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        TOKEN_AUTH,
        *token_settings.KNOWN,
    }
)
_TRUST = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
)
_SHOWN = (
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.location",
)
KNOWN = frozenset(
    {
        *SECRETS,
        *_LIBRDKAFKA,
        *_SASL,
        *_TRUST,
        *_SHOWN,
        "enable.ssl.certificate.verification",
        "security.protocol",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.truststore.type",
    }
)
"""Settings that have an effect."""

# Known to Java's clients; of no effect with the mechanisms and the TLS that there are.
_NOTED = frozenset(
    {
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)
_NOTED_BEGINNINGS = ("sasl.kerberos.", "sasl.login.re", "sasl.oauthbearer.")
_HANDLER = "sasl.login.callback.handler.class"
_DONE_HERE = ".OAuthBearerLoginCallbackHandler"  # its work, that is
_BEGINNINGS = ("kraftpy.sasl.", "sasl.", "security.", "ssl.")
_STORE_TYPES = ("JKS", "PKCS12", "PEM")
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_FILE_MAX_BYTES = 1 << 20


def is_librdkafkas(keys: Iterable[str]) -> bool:
    """Whether one of the settings is librdkafka's alone."""
    return not _LIBRDKAFKA.isdisjoint(keys)


def is_security(key: str) -> bool:
    """Whether a setting is one of security, known or not."""
    return key in KNOWN or key.startswith(_BEGINNINGS)


def parse_security(settings: Mapping[str, str]) -> Security:
    """What the settings ask for. Raises SecurityError."""
    given = {key: value.strip() for key, value in settings.items()}
    _check_names(given)
    protocol = (given.get("security.protocol") or PLAINTEXT).upper()
    if protocol not in PROTOCOLS:
        raise SecurityError(
            f"security.protocol is one of {', '.join(PROTOCOLS)}, not {protocol!r:.40}"
        )
    logs_in, encrypts = protocol.startswith("SASL_"), protocol.endswith("SSL")
    if not logs_in:
        _refuse_idle(given, sorted(_SASL), protocol, "SASL_SSL")
    if not encrypts:
        wanted = "SASL_SSL" if logs_in else "SSL"
        _refuse_idle(given, (*_TRUST, *_SHOWN), protocol, wanted)
    return Security(tls=_tls(given) if encrypts else None, user=_login(given) if logs_in else None)


def _check_names(given: Mapping[str, str]) -> None:
    for key in given:
        if not is_security(key) or key in KNOWN | _NOTED or key.startswith(_NOTED_BEGINNINGS):
            continue
        if key == _HANDLER and given[key].endswith(_DONE_HERE):
            continue
        if key.endswith((".class", ".providers")):
            raise SecurityError(f"{key}: no class of Java's can be loaded here; leave it out")
        close = difflib.get_close_matches(key, KNOWN, 1)
        hint = f"did you mean {close[0]}?" if close else "leave it out"
        raise SecurityError(f"{key:.80} is no setting of security here; {hint}")
    if given.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise SecurityError(
            "enable.ssl.certificate.verification can't be switched off: name who signed the "
            "brokers' certificates with ssl.ca.location"
        )


def _refuse_idle(given: Mapping[str, str], keys: Iterable[str], protocol: str, wanted: str) -> None:
    for key in keys:
        if given.get(key):
            raise SecurityError(
                f"{key} has no effect with security.protocol={protocol}: set "
                f"security.protocol={wanted}, or leave {key} out"
            )


# -- the login


def _login(given: Mapping[str, str]) -> Login | TokenLogin:
    mechanism = _one_of(given, "sasl.mechanism", "sasl.mechanisms")
    if mechanism is None:
        raise SecurityError(
            f"set sasl.mechanism to one of {', '.join(MECHANISMS)}: Kafka's default, GSSAPI, isn't "
            "there"
        )
    mechanism = mechanism.upper()
    if mechanism not in MECHANISMS:
        raise SecurityError(
            f"sasl.mechanism is one of {', '.join(MECHANISMS)}, not {mechanism!r:.40}"
        )
    if mechanism == OAUTHBEARER:
        return token_settings.token_login(given)
    _refuse_idle_tokens(given, mechanism)
    jaas = given.get("sasl.jaas.config")
    if jaas:
        for key in ("sasl.username", "sasl.password"):
            if given.get(key):
                raise SecurityError(f"set {key} or sasl.jaas.config, not both")
        if given.get(TOKEN_AUTH):
            raise SecurityError(
                f"{TOKEN_AUTH} has no effect with sasl.jaas.config: write tokenauth=true there"
            )
        username, password, delegated = _from_jaas(jaas, mechanism)
    else:
        username, password = given.get("sasl.username", ""), given.get("sasl.password", "")
        delegated = _is_true(TOKEN_AUTH, given.get(TOKEN_AUTH, ""))
    if delegated and mechanism == PLAIN:
        raise SecurityError(
            f"a delegation token logs in by {' or '.join(HASHES)}, not by PLAIN: set sasl.mechanism"
        )
    for key, value in (("sasl.username", username), ("sasl.password", password)):
        if not value:
            raise SecurityError(f"{key} is missing: set it, or sasl.jaas.config as Java has it")
    return Login(
        mechanism=mechanism, username=username, password=Secret(password), delegated=delegated
    )


def _is_true(key: str, text: str) -> bool:
    if text.lower() not in ("", "true", "false"):
        raise SecurityError(f"{key} is true or false, not {text!r:.40}")
    return text.lower() == "true"


def _refuse_idle_tokens(given: Mapping[str, str], mechanism: str) -> None:
    for key in sorted(token_settings.KNOWN):
        if given.get(key):
            raise SecurityError(
                f"{key} has no effect with {mechanism}: set sasl.mechanism=OAUTHBEARER, or leave "
                f"{key} out"
            )


def _from_jaas(text: str, mechanism: str) -> tuple[str, str, bool]:
    """Name and password of the only login module, and whether they are a delegation token's."""
    try:
        modules = parse(text)
    except JaasError as error:
        raise SecurityError(f"sasl.jaas.config: {error}") from None
    wanted = "PlainLoginModule" if mechanism == PLAIN else "ScramLoginModule"
    if len(modules) != 1:
        raise SecurityError(f"sasl.jaas.config has {len(modules)} login modules, not one")
    module = modules[0]
    if module.kind != wanted:
        raise SecurityError(
            f"sasl.jaas.config has the login module {module.kind:.80}: {mechanism} takes {wanted}"
        )
    for option in ("username", "password"):
        if not module.options.get(option):
            raise SecurityError(f'sasl.jaas.config lacks {option}="..." for {module.kind}')
    delegated = module.options.get("tokenauth", "").lower() == "true"
    return module.options["username"], module.options["password"], delegated


# -- TLS


def _tls(given: Mapping[str, str]) -> TlsSettings:
    check = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if check not in ("https", "none", ""):
        raise SecurityError("ssl.endpoint.identification.algorithm is https, or empty")
    protocol = given.get("ssl.protocol") or "TLSv1.3"
    versions = _list(given.get("ssl.enabled.protocols") or ",".join(_TLS_VERSIONS), ",")
    if protocol not in ("TLS", *_TLS_VERSIONS) or not set(versions) <= set(_TLS_VERSIONS):
        raise SecurityError(
            f"ssl.protocol and ssl.enabled.protocols are of {', '.join(_TLS_VERSIONS)}"
        )
    keystore, key = _shown(given)
    return TlsSettings(
        keystore=keystore,
        key=key,
        key_password=_secret(given, "ssl.key.password"),
        truststore=_trusted(given),
        protocol=protocol,
        enabled_protocols=versions,
        cipher_suites=_list(given.get("ssl.cipher.suites", ""), ",:"),
        endpoint_identification_algorithm="" if check == "none" else check,
    )


def _trusted(given: Mapping[str, str]) -> StoreSettings:
    """Whom the client trusts, by one setting."""
    _only_one(given, _TRUST)
    pem = _secret(given, "ssl.ca.pem") or _secret(given, "ssl.truststore.certificates")
    file = given.get("ssl.ca.location")
    return StoreSettings(
        prefix="ssl.truststore",
        type="PEM" if file else _type(given, "ssl.truststore.type"),
        location=file or given.get("ssl.truststore.location") or None,
        password=_secret(given, "ssl.truststore.password"),
        pem=pem,
    )


def _shown(given: Mapping[str, str]) -> tuple[StoreSettings, Secret | None]:
    """The client's own certificate, and its key where that isn't in the same file."""
    _only_one(given, _SHOWN)
    chain = _in_place(given, "ssl.certificate") or _secret(given, "ssl.keystore.certificate.chain")
    key = _in_place(given, "ssl.key") or _secret(given, "ssl.keystore.key")
    if (chain is None) != (key is None):
        there, missing = ("certificate", "key") if key is None else ("key", "certificate")
        raise SecurityError(
            f"there is a client's {there} without its {missing}: set ssl.certificate.location and "
            "ssl.key.location, or ssl.keystore.location"
        )
    store = StoreSettings(
        prefix="ssl.keystore",
        type=_type(given, "ssl.keystore.type"),
        location=given.get("ssl.keystore.location") or None,
        password=_secret(given, "ssl.keystore.password"),
        pem=chain,
    )
    return store, key


def _in_place(given: Mapping[str, str], what: str) -> Secret | None:
    """PEM that stands in a setting, or in a file that one names."""
    _only_one(given, (f"{what}.location", f"{what}.pem"))
    name = given.get(f"{what}.location")
    if not name:
        return _secret(given, f"{what}.pem")
    try:
        with Path(name).open("rb") as file:
            data = file.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise SecurityError(f"{what}.location: {name}: {error.strerror}") from None
    if len(data) > _FILE_MAX_BYTES:
        raise SecurityError(f"{what}.location: {name} has more than {_FILE_MAX_BYTES} bytes")
    return Secret(data.decode("ascii", "replace"))


# -- values


def _only_one(given: Mapping[str, str], keys: Iterable[str]) -> None:
    found = [key for key in keys if given.get(key)]
    if len(found) > 1:
        raise SecurityError(f"set {found[0]} or {found[1]}, not both")


def _one_of(given: Mapping[str, str], *keys: str) -> str | None:
    _only_one(given, keys)
    return next((given[key] for key in keys if given.get(key)), None)


def _secret(given: Mapping[str, str], key: str) -> Secret | None:
    value = given.get(key)
    return Secret(value) if value else None


def _type(given: Mapping[str, str], key: str) -> str:
    value = (given.get(key) or "JKS").upper()
    if value not in _STORE_TYPES:
        raise SecurityError(f"{key} is one of {', '.join(_STORE_TYPES)}, not {value!r:.40}")
    return value


def _list(text: str, separators: str) -> tuple[str, ...]:
    for each in separators[1:]:
        text = text.replace(each, separators[0])
    return tuple(filter(None, (part.strip() for part in text.split(separators[0]))))
