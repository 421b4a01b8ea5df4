"""TLS of a broker's listeners: each has a context, which follows its files and its settings.

Files are looked at every LOOK_INTERVAL_S, on SIGHUP and when a setting has changed (KIP-226). A
context that can't be used leaves the one before it, and an error in the log. Connections that are
there go on with what they began with. Who a certificate stands for is decided here, too, by
`ssl.principal.mapping.rules`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from typing import TYPE_CHECKING

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.listeners import WITH_TLS, security_protocol, tls_settings
from kraftpy.core.security.principals import ANONYMOUS, USER, Principal
from kraftpy.events import emit
from kraftpy.tls.mapping import apply_rules, parse_rules
from kraftpy.tls.settings import TlsError

if TYPE_CHECKING:
    from kraftpy.tls.certificates import Certificate

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 10.0


class ListenerTls:
    """That of one listener; of the brokers' one also what dials others. Raises TlsError."""

    def __init__(self, config: BrokerConfig, name: str) -> None:
        from kraftpy.tls.certificates import read_certificate  # for who has TLS alone
        from kraftpy.tls.contexts import both_contexts, server_context
        from kraftpy.tls.watching import Watched

        self.name = name
        self._read = read_certificate
        settings = tls_settings(config, name)
        self._rules = parse_rules(settings.principal_mapping_rules)
        try:
            is_brokers = name == config.inter_broker_listener.name
            self._watched = Watched(settings, both_contexts if is_brokers else server_context)
        except TlsError as error:
            raise TlsError(f"listener {name}: {error}") from None

    @property
    def context(self) -> ssl.SSLContext:
        """For who connects here."""
        return self._watched.loaded.context

    @property
    def dial_context(self) -> ssl.SSLContext | None:
        """For connections to other brokers."""
        return self._watched.loaded.dial_context

    @property
    def certificate(self) -> Certificate:
        """What is shown to peers."""
        certificate = self._watched.loaded.certificate
        assert certificate is not None
        return certificate

    def principal_of(self, tls: ssl.SSLObject) -> Principal:
        """Who has shown what certificate. Raises TlsError for who may have no name."""
        der = tls.getpeercert(binary_form=True)
        if der is None:
            return ANONYMOUS
        subject = self._read(der).subject
        name = apply_rules(self._rules, subject)
        if name is None:
            raise TlsError(f"no rule of ssl.principal.mapping.rules fits {subject[:200]!r}")
        return Principal(USER, name)

    def look(self, config: BrokerConfig, *, anyhow: bool = False) -> None:
        """Takes what has changed, if it can be used."""
        settings, now_s = tls_settings(config, self.name), time.time()
        former = self.certificate
        try:
            loaded = self._watched.look(settings, now_s, anyhow=anyhow)
        except TlsError as error:
            emit(log, logging.ERROR, "certificate-refused", listener=self.name, reason=str(error))
            return
        if loaded is not None:
            new = self.certificate
            emit(
                log,
                logging.INFO,
                "certificate-loaded",
                listener=self.name,
                subject=new.subject,
                former=former.subject,
                expires=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_shown_s(new))),
            )


def _shown_s(certificate: Certificate) -> float:
    """When it expires; of one that never does, what a clock of four digits can say."""
    return min(certificate.not_after_s, 253402300799.0)


class TlsListeners:
    """All listeners of a broker that speak TLS, by name. Raises TlsError."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, config: BrokerConfig) -> None:
        self._loop = loop
        self._config = config
        self._timer: asyncio.TimerHandle | None = None
        self.by_name = {
            each.name: ListenerTls(config, each.name)
            for each in config.broker_listeners
            if security_protocol(config, each.name) in WITH_TLS
        }

    def start(self) -> None:
        """Looks at the files from now on."""
        if self.by_name and self._timer is None and self._loop is not None:
            for each in self.by_name.values():
                if each.certificate.not_after_s <= time.time():
                    reason = f"the certificate of {each.certificate.subject} has expired"
                    emit(
                        log,
                        logging.ERROR,
                        "certificate-refused",
                        listener=each.name,
                        reason=f"{reason}; there is no other, so clients see it",
                    )
            self._timer = self._loop.call_later(LOOK_INTERVAL_S, self._look_again)

    def _look_again(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(LOOK_INTERVAL_S, self._look_again)
        self._look()

    def _look(self, *, anyhow: bool = False) -> None:
        for each in self.by_name.values():
            each.look(self._config, anyhow=anyhow)

    def reload(self) -> None:
        """Loads all of it again."""
        self._look(anyhow=True)

    def update_config(self, config: BrokerConfig) -> None:
        """Goes by changed settings."""
        self._config = config
        self._look()

    def dial_context(self) -> ssl.SSLContext | None:
        """For connections to other brokers, if their listener here speaks TLS."""
        listener = self.by_name.get(self._config.inter_broker_listener.name)
        return None if listener is None else listener.dial_context

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
