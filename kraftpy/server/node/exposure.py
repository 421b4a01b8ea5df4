"""What a broker's configuration lets anybody do who reaches it, told of when it starts.

None of it is refused, as Kafka refuses none of it. That passwords can be read is told of where
logins are made (`server.cluster.logins`, `metrics_door`), and what the controllers say in
`quorum_tls`.
"""

from __future__ import annotations

import logging

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.listeners import PLAINTEXT, security_protocol
from kraftpy.core.security.principals import ANONYMOUS
from kraftpy.events import emit
from kraftpy.quorum.credentials import is_loopback

log = logging.getLogger(__name__)


def tell_exposure(config: BrokerConfig) -> None:
    """Warns of listeners that others reach in plain text, and of rights that everybody has."""
    for listener in config.broker_listeners:
        is_plain = security_protocol(config, listener.name) == PLAINTEXT
        if is_plain and not is_loopback(listener.host):
            who = f"anybody who reaches it {_may(config)}, and what is said there can be read"
            advice = (
                f"map {listener.name} to SASL_SSL in listener.security.protocol.map, or listen on "
                "127.0.0.1 (docs/security.md)"
            )
            _warn(f"listeners={listener}", who, advice)
    if config.authorizer_class_name and ANONYMOUS in config.super_users:
        _warn(
            "super.users",
            f"{ANONYMOUS} is in it: who doesn't log in may do everything",
            f"take {ANONYMOUS} out when all clients and brokers log in (docs/security.md)",
        )


def _may(config: BrokerConfig) -> str:
    if not config.authorizer_class_name:
        return "may read, write and delete everything"
    if ANONYMOUS in config.super_users:
        return "may do everything"
    rest = " and whatever no ACL is about" if config.allow_everyone_if_no_acl_found else ""
    return f"may do what ACLs let {ANONYMOUS} do{rest}"


def _warn(setting: str, reason: str, advice: str) -> None:
    emit(log, logging.WARNING, "exposed", setting=setting, reason=reason, advice=advice)
