"""How the exporter's own client gets in, which asks the brokers for what page and scrapes show.

Rules:

* It asks at the listener of brokers, which is secured as this node's configuration says, and trusts
  whom brokers trust. Files are looked at for each connection; what can't be used leaves what was
  there before.
* Where one logs in there, it does so as `Page:metrics`, by the quorum's secret: neither as this
  broker nor as a user, since what faces the network may look and do nothing else. A node that is no
  broker has the secret, too.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.listeners import WITH_SASL, WITH_TLS, tls_settings
from kraftpy.core.security.broker_login import PAGE_USER, page_password
from kraftpy.protocol.sasl.clients import ClientLogin, login
from kraftpy.protocol.sasl.scram import SHA_256
from kraftpy.quorum.credentials import QuorumSecret, SecretUnusable
from kraftpy.server.cluster.logins import new_nonce
from kraftpy.tls.settings import TlsError
from kraftpy.tls.watching import Watched

log = logging.getLogger(__name__)


class PageSecurity:
    """What its connections have in common (`client.security.Secures`).

    `secret_file` has the quorum's secret. What can't be had is a ConnectionError for each of them.
    """

    def __init__(self, config: BrokerConfig, secret_file: Path) -> None:
        listener = _listener(config)
        speaks = dict(config.listener_security_protocol_map).get(listener)
        self._settings = tls_settings(config, listener) if speaks in WITH_TLS else None
        self._logs_in = speaks in WITH_SASL
        self._secret_file = secret_file
        self._watched: Watched | None = None
        self._secret: QuorumSecret | None = None

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """What is encrypted with, as the files are now."""
        if self._settings is None:
            return None
        from kraftpy.tls.contexts import client_context  # for who has TLS alone

        try:
            if self._watched is None:
                self._watched = Watched(self._settings, client_context)
            else:
                self._watched.look(self._settings, time.time())
        except TlsError as error:
            if self._watched is None:
                raise ConnectionAbortedError(str(error)) from None
            log.error("the page goes on with what it trusted before: %s", error)
        return self._watched.loaded.context

    @property
    def login(self) -> Callable[[], ClientLogin] | None:
        """Makes the login of one connection; None where nobody logs in."""
        if not self._logs_in:
            return None
        try:
            if self._secret is None:
                self._secret = QuorumSecret.of_file(self._secret_file)
        except SecretUnusable as error:
            raise ConnectionAbortedError(str(error)) from None
        password = page_password(self._secret.dialing)
        return lambda: login(SHA_256, PAGE_USER, password, new_nonce())


def _listener(config: BrokerConfig) -> str:
    """The name of the brokers' listener; of a node that is no broker, as far as it is set."""
    if config.broker_listeners:
        return config.inter_broker_listener.name
    name = config.inter_broker_listener_name or config.security_inter_broker_protocol
    return (name or "PLAINTEXT").upper()
