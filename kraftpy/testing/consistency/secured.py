"""How all clients of a run get in: by the same settings, in the words of each library.

The settings are for this process and for the workers that it starts, which find them in their
environment: an argument would show a password to whoever lists processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kraftpy.client.security import NO_SECURITY, Login, Security, SecurityError
from kraftpy.client.security_settings import parse_security
from kraftpy.client.tokens import TokenLogin
from kraftpy.tls.stores import read_keystore, read_truststore

if TYPE_CHECKING:
    from kraftpy.tls.settings import TlsSettings

VARIABLE = "KRAFTPY_CONSISTENCY_SECURITY"
JAVA_VARIABLE = "KRAFTPY_CONSISTENCY_JAVA"
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def use(settings: Mapping[str, str]) -> None:
    """From now on clients get in by these, of Java's clients or librdkafka; by none if empty.

    Raises SecurityError for what can't work.
    """
    if settings:
        os.environ[VARIABLE] = json.dumps(dict(settings))
        _user()
    else:
        os.environ.pop(VARIABLE, None)


def own() -> Security:
    """For kraftpy's own client."""
    text = os.environ.get(VARIABLE)
    return NO_SECURITY if not text else _parsed(text)


@lru_cache(maxsize=1)
def _parsed(text: str) -> Security:
    return parse_security(json.loads(text))


def _user() -> Login | None:
    """Who logs in. Raises SecurityError for who does by tokens, which not every client here can."""
    user = own().user
    if isinstance(user, TokenLogin):
        raise SecurityError("these clients log in by PLAIN or SCRAM: set sasl.mechanism to one")
    if user is not None and user.delegated:
        raise SecurityError("not all of these clients log in by delegation tokens: name a user")
    return user


def librdkafkas() -> dict[str, str]:
    """As librdkafka has it."""
    security = own()
    found = {"security.protocol": security.protocol}
    if (user := _user()) is not None:
        found["sasl.mechanism"] = user.mechanism
        found["sasl.username"] = user.username
        found["sasl.password"] = user.password.reveal()
    if security.tls is not None:
        algorithm = security.tls.endpoint_identification_algorithm or "none"
        found["ssl.endpoint.identification.algorithm"] = algorithm
        if security.tls.truststore.is_set:
            found["ssl.ca.pem"] = _trusted(security.tls)
        if _shows(security.tls):
            key, chain = _shown(security.tls)
            found |= {"ssl.key.pem": key, "ssl.certificate.pem": chain}
            if security.tls.key_password is not None:
                found["ssl.key.password"] = security.tls.key_password.reveal()
    return found if security is not NO_SECURITY else {}


def keywords() -> dict[str, Any]:
    """As kafka-python and aiokafka have it."""
    security = own()
    if security is NO_SECURITY:
        return {}
    found: dict[str, Any] = {"security_protocol": security.protocol}
    if security.tls is not None:
        found["ssl_context"] = security.ssl_context
    if (user := _user()) is not None:
        found["sasl_mechanism"] = user.mechanism
        found["sasl_plain_username"] = user.username
        found["sasl_plain_password"] = user.password.reveal()
    return found


def javas() -> str:
    """As Java's clients have it, a properties file; for their environment."""
    security = own()
    found = {} if security is NO_SECURITY else {"security.protocol": security.protocol}
    if (user := _user()) is not None:
        name, password = (
            text.replace("\\", "\\\\").replace('"', '\\"')
            for text in (user.username, user.password.reveal())
        )
        module = _MODULES[user.mechanism]
        found["sasl.mechanism"] = user.mechanism
        found["sasl.jaas.config"] = f'{module} required username="{name}" password="{password}";'
    if security.tls is not None:
        found["ssl.endpoint.identification.algorithm"] = (
            security.tls.endpoint_identification_algorithm
        )
        if security.tls.truststore.is_set:
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.certificates"] = _trusted(security.tls)
        if _shows(security.tls):
            key, chain = _shown(security.tls)
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": key}
            found["ssl.keystore.certificate.chain"] = chain
            if security.tls.key_password is not None:
                found["ssl.key.password"] = security.tls.key_password.reveal()
    lines = (f"{key}={_escaped(value)}\n" for key, value in found.items())
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _trusted(tls: TlsSettings) -> str:
    return read_truststore(tls.truststore).decode()


def _shows(tls: TlsSettings) -> bool:
    return tls.keystore.is_set or tls.key is not None


def _shown(tls: TlsSettings) -> tuple[str, str]:
    """Key and certificates, as PEM."""
    pair = read_keystore(tls.keystore, tls.key, tls.key_password)
    return pair.key.reveal(), pair.chain.decode()
