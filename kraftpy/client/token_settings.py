"""Settings of a login by token: Kafka's (KIP-768), and librdkafka's where they are others.

    sasl.mechanism=OAUTHBEARER
    sasl.oauthbearer.token.endpoint.url=file:///run/secrets/token

By `https://` an authorization server is asked, as the client that `sasl.oauthbearer.client.id`,
Kafka's `sasl.oauthbearer.client.credentials.client.id`, or the options `clientId` and
`clientSecret` of an OAuthBearerLoginModule name.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from kraftpy.client.security import SecurityError
from kraftpy.client.tokens import ClientCredentials, TokenFile, TokenLogin
from kraftpy.protocol.sasl.jaas import JaasError, parse
from kraftpy.secret import Secret

URL = "sasl.oauthbearer.token.endpoint.url"
_ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
_SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
_SCOPE = "sasl.oauthbearer.scope"
SECRETS = frozenset(_SECRET)
LIBRDKAFKA = frozenset({_ID[0], _SECRET[0]})
KNOWN = frozenset({URL, *_ID, *_SECRET, _SCOPE})
_MODULE = "OAuthBearerLoginModule"


def token_login(given: Mapping[str, str]) -> TokenLogin:
    """What the settings ask for. Raises SecurityError."""
    for key in ("sasl.username", "sasl.password", "kraftpy.sasl.tokenauth"):
        if given.get(key):
            raise SecurityError(f"{key} has no effect with OAUTHBEARER; leave it out")
    url = given.get(URL, "")
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return TokenLogin(token=TokenFile(unquote(parts.path)))
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
        raise SecurityError(
            f"OAUTHBEARER takes its token from {URL}: set it to file:///PATH of a token, or to "
            "https://... of who issues them"
        )
    options = _options(given.get("sasl.jaas.config", ""))
    client_id = _first(given, _ID) or options.get("clientId", "")
    secret = _first(given, _SECRET) or options.get("clientSecret", "")
    if not client_id or not secret:
        raise SecurityError(
            f"{URL} by https asks who wants a token: set {_ID[0]} and {_SECRET[0]}, or "
            f'sasl.jaas.config as Java has it, with clientId="..." clientSecret="..."'
        )
    scope = given.get(_SCOPE) or options.get("scope", "")
    credentials = ClientCredentials(
        url=url, client_id=client_id, client_secret=Secret(secret), scope=scope
    )
    return TokenLogin(token=credentials)


def _first(given: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((given[key] for key in keys if given.get(key)), "")


def _options(text: str) -> Mapping[str, str]:
    if not text:
        return {}
    try:
        modules = parse(text)
    except JaasError as error:
        raise SecurityError(f"sasl.jaas.config: {error}") from None
    if len(modules) != 1 or modules[0].kind != _MODULE:
        raise SecurityError(f"sasl.jaas.config: OAUTHBEARER takes one {_MODULE}")
    return modules[0].options
