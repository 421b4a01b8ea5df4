"""Who gets at metrics and the page, as the configuration has it: TLS, and users."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.listeners import metrics_tls_settings
from kraftpy.quorum.credentials import is_loopback

if TYPE_CHECKING:
    from kraftpy.metrics.door import Door

log = logging.getLogger(__name__)


def door_of(config: BrokerConfig) -> Door | None:
    """None where everybody comes in, in plain text. Raises TlsError, UsersError."""
    tls, users = metrics_tls_settings(config), config.kraftpy_metrics_users_file
    _warn_who_sees(config, has_tls=tls is not None)
    if tls is None and users is None:
        return None
    from kraftpy.metrics.door import Door, DoorTls  # for who has either alone
    from kraftpy.metrics.users import Users

    return Door(
        None if tls is None else DoorTls(tls), None if users is None else Users(Path(users))
    )


def _warn_who_sees(config: BrokerConfig, *, has_tls: bool) -> None:
    address = config.kraftpy_metrics_listener
    if address is None or is_loopback(address.host):
        return
    if config.kraftpy_metrics_users_file is None:
        log.warning(
            "anybody who reaches kraftpy.metrics.listener=%s sees the names of topics, groups and "
            "clients, and how they are: set kraftpy.metrics.users.file",
            address,
        )
    elif not has_tls:
        log.warning(
            "kraftpy.metrics.listener=%s takes passwords without TLS: who is on the network can "
            "read them. Set listener.name.metrics.ssl.keystore.location",
            address,
        )
