"""TLS on the connections of the quorum, as the configuration has it: `CONTROLLER:SSL`.

Rules:

* The listener of the controllers has its settings as any other has, by `listener.name.<its name>.`;
  a node without that listener connects by the same ones.
* Whoever dials knows the other end by the quorum's secret together with its certificate
  (`quorum.credentials`). So a certificate needn't be signed by anybody, nor name the host, unless
  there is a truststore: then it has to be.
"""

from __future__ import annotations

import logging
import ssl

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.listeners import SSL, tls_settings
from kraftpy.quorum.credentials import LinkTls, is_loopback

log = logging.getLogger(__name__)


def link_tls(config: BrokerConfig) -> LinkTls | None:
    """What the quorum's connections are encrypted with, if they are. Raises TlsError."""
    name = config.controller_listener_names[0].upper()
    if dict(config.listener_security_protocol_map).get(name) != SSL:
        _warn_who_is_readable(config, name)
        return None
    from kraftpy.tls.contexts import client_context, server_context  # for who has TLS alone

    settings = tls_settings(config, name)
    client = client_context(settings).context
    if not settings.truststore.is_set:
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
    if not config.controller_listeners:
        return LinkTls(client)
    shown = server_context(settings)
    assert shown.certificate is not None
    return LinkTls(client, shown.context, shown.certificate.der)


def _warn_who_is_readable(config: BrokerConfig, name: str) -> None:
    hosts = [each.host for each in config.controller_listeners]
    hosts += [voter.host for voter in config.voters]
    if not all(is_loopback(host) for host in hosts):
        log.warning(
            "what this node and the controllers say to each other can be read on the network, the "
            "keys of SCRAM users too: set listener.security.protocol.map=%s:SSL,... and "
            "ssl.keystore.location (deploy/operations.md)",
            name,
        )
