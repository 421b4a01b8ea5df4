"""Who may log in at this broker's listeners, and how this broker logs in at others.

`core.config.logins` has what the configuration says, `core.security` the rules of the mechanisms;
here they meet the metadata, the quorum's secret and randomness. Rules:

* Brokers log in at the inter-broker listener, and nowhere else, by SCRAM whether clients may or
  not.
* Who has logged in by a delegation token stays only while that is there, whatever becomes of its
  owner's credential.
* Who has logged in as a user of the metadata stays only while it has the credential
  (`still_known`), and a broker while it is registered. Kafka's sessions outlast a deleted user.
"""

from __future__ import annotations

import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.addresses import Listener
from kraftpy.core.config.listeners import SASL_PLAINTEXT, security_protocol
from kraftpy.core.config.logins import ListenerLogins, logins_of, own_login
from kraftpy.core.metadata import MetadataState, ScramMechanism
from kraftpy.core.security.broker_login import (
    BrokerLogins,
    broker_password,
    broker_user,
    decoy_key,
    either,
)
from kraftpy.core.security.principals import BROKER, PAGE
from kraftpy.core.security.sasl_server import (
    Lookup,
    Mechanism,
    PlainMechanism,
    ScramMechanismServer,
    user_lookup,
)
from kraftpy.core.security.token_logins import TokenLogins
from kraftpy.core.security.tokens import OAuthMechanism, TokenRules, open_unsigned
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.sasl.clients import ClientLogin, login
from kraftpy.protocol.sasl.oauthbearer import OAUTHBEARER
from kraftpy.protocol.sasl.plain import PLAIN
from kraftpy.protocol.sasl.scram import SHA_256
from kraftpy.quorum.credentials import QuorumSecret, is_loopback
from kraftpy.secret import Secret
from kraftpy.server.network.gate import GateRules
from kraftpy.server.network.session import Session
from kraftpy.server.network.token_keys import KeysEndpoint, TokenKeys
from kraftpy.tls.contexts import client_context
from kraftpy.tls.settings import StoreSettings, TlsError, TlsSettings

log = logging.getLogger(__name__)

_SCRAM = {each.wire_name: each for each in ScramMechanism}


def new_nonce() -> str:
    """What is new in each login."""
    return secrets.token_urlsafe(24)


def now_ms() -> int:
    """The wall clock."""
    return int(time.time() * 1000)


def token_logins(config: BrokerConfig, metadata: Callable[[], MetadataState]) -> TokenLogins | None:
    """How delegation tokens log in; None where there are none."""
    key = config.delegation_token_secret_key
    return None if key is None else TokenLogins(key, lambda: metadata().tokens, now_ms)


def gates(
    config: BrokerConfig,
    metadata: Callable[[], MetadataState],
    secret: QuorumSecret,
    delegated: TokenLogins | None = None,
) -> dict[str, GateRules]:
    """The rules of the listeners where clients have to log in, by their names."""
    users = user_lookup(lambda: metadata().scram)
    brokers = BrokerLogins(
        lambda: secret.accepted, lambda broker_id: broker_id in metadata().brokers
    ).lookup
    found = {}
    for listener in config.broker_listeners:
        logins = logins_of(config, config, listener.name)
        if logins is not None:
            _warn_of_readable_passwords(config, listener, logins)
            tokens = None if logins.tokens is None else _tokens(listener.name, logins)
            between = brokers if listener == config.inter_broker_listener else None
            found[listener.name] = GateRules(
                mechanisms=_mechanisms(
                    logins, users, between, decoy_key(secret.dialing), delegated, tokens
                ),
                offered=logins.mechanisms,
                max_receive_bytes=logins.max_receive_bytes,
                failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
                nonce=new_nonce,
                limits_ms=logins.limits_ms,
                now_ms=now_ms,
                token_keys=None if tokens is None else tokens.keys,
            )
    return found


def _warn_of_readable_passwords(
    config: BrokerConfig, listener: Listener, logins: ListenerLogins
) -> None:
    is_plain = security_protocol(config, listener.name) == SASL_PLAINTEXT
    if not is_plain or is_loopback(listener.host):
        return
    for mechanism, what in ((PLAIN, "passwords"), (OAUTHBEARER, "tokens")):
        if mechanism in logins.mechanisms:
            log.warning(
                "listener %s takes %s by %s without TLS: who is on the network can read "
                "them. Make it SASL_SSL, or leave %s out of sasl.enabled.mechanisms",
                listener.name,
                what,
                mechanism,
                mechanism,
            )


class _Tokens(NamedTuple):
    """How a listener judges tokens, and the keys for that; none where they aren't signed."""

    mechanism: OAuthMechanism
    keys: TokenKeys | None


def _tokens(listener: str, logins: ListenerLogins) -> _Tokens:
    assert logins.tokens is not None
    given = logins.tokens.settings
    rules = TokenRules(
        subject_claim=given.sasl_oauthbearer_sub_claim_name,
        scope_claim=given.sasl_oauthbearer_scope_claim_name,
        issuer=given.sasl_oauthbearer_expected_issuer,
        audiences=given.sasl_oauthbearer_expected_audience or (),
        skew_s=given.sasl_oauthbearer_clock_skew_seconds,
    )
    if logins.tokens.unsigned:
        log.warning("listener %s takes tokens without a signature: anybody can make them", listener)
        return _Tokens(OAuthMechanism(rules, open_unsigned, time.time), None)
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise TlsError("OAUTHBEARER needs the extra secure: pip install 'kraftpy[secure]'")
    url = given.sasl_oauthbearer_jwks_endpoint_url
    assert url is not None
    endpoint = KeysEndpoint(
        url=url,
        refresh_ms=given.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        backoff_ms=given.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        backoff_max_ms=given.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        context=_trusting(logins) if url.startswith("https:") else None,
    )
    keys = TokenKeys(endpoint, listener)
    return _Tokens(OAuthMechanism(rules, keys.open, time.time), keys)


def _trusting(logins: ListenerLogins) -> ssl.SSLContext:
    """Trusts whom the options of the JAAS line name, as Kafka does, else whom the system does."""
    module = logins.modules.get(OAUTHBEARER)
    options = {} if module is None else module.options
    password = options.get("ssl.truststore.password")
    truststore = StoreSettings(
        prefix="ssl.truststore",
        type=options.get("ssl.truststore.type", "JKS"),
        location=options.get("ssl.truststore.location"),
        password=None if password is None else Secret(password),
    )
    return client_context(
        TlsSettings(truststore=truststore, endpoint_identification_algorithm="https")
    ).context


def _mechanisms(
    logins: ListenerLogins,
    users: Lookup,
    brokers: Lookup | None,
    decoys: bytes,
    delegated: TokenLogins | None,
    tokens: _Tokens | None,
) -> Mapping[str, Mechanism]:
    found: dict[str, Mechanism] = {}
    if tokens is not None:
        found[OAUTHBEARER] = tokens.mechanism
    if PLAIN in logins.mechanisms:
        found[PLAIN] = PlainMechanism(logins.modules[PLAIN].options, os.urandom(32))
    for name, mechanism in _SCRAM.items():
        taken = [users] if name in logins.mechanisms else []
        if brokers is not None:
            taken.append(brokers)
        if taken:
            of_clients = delegated if name in logins.mechanisms else None
            found[name] = ScramMechanismServer(mechanism, either(*taken), decoys, of_clients)
    return found


def still_known(metadata: MetadataState, session: Session) -> bool:
    """Whether whoever has logged in could do so again."""
    if session.token_id is not None:
        return session.token_id in metadata.tokens
    principal = session.principal
    mechanism = _SCRAM.get(session.mechanism or "")
    if mechanism is None:
        return True
    if principal.type == PAGE:
        return True
    if principal.type == BROKER:
        return int(principal.name) in metadata.brokers
    return mechanism in metadata.scram.get(principal.name, {})


def login_of_broker(config: BrokerConfig, secret: QuorumSecret) -> Callable[[], ClientLogin]:
    """Makes this broker's login at another one that takes it."""
    own = own_login(config, config)
    mechanism = SHA_256 if own is None else own.mechanism

    def make() -> ClientLogin:
        if own is None or own.name is None or own.password is None:
            name = broker_user(config.node_id)
            password = broker_password(secret.dialing, config.node_id)
        else:
            name, password = own.name, own.password.reveal()
        return login(mechanism, name, password, new_nonce())

    return make
