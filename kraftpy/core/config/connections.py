"""The settings of who may connect: how many, and how fast (KIP-402, KIP-612).

A listener may have `max.connections` and `max.connection.creation.rate` for itself, too
(`listeners`).
"""

from __future__ import annotations

from kraftpy.core.config import addresses
from kraftpy.core.config.kinds import INT_MAX, ConfigError, int32, int64
from kraftpy.core.config.sasl import SaslSettings
from kraftpy.core.config.settings import setting
from kraftpy.frozen import dataclass

MAX_CONNECTIONS = "max.connections"
CREATION_RATE = "max.connection.creation.rate"
PER_IP = "max.connections.per.ip"
OVERRIDES = "max.connections.per.ip.overrides"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(SaslSettings):
    """What `BrokerConfig` has for connections."""

    max_connections: int = setting(
        int32(0),
        str(INT_MAX),
        "Connections to this broker at most; others wait. Those to the listener of other brokers "
        "don't: those of clients that have been idle for longest give way.",
        dynamic=True,
    )
    max_connections_per_ip: int = setting(
        int32(0),
        str(INT_MAX),
        "Connections from one address at most; others are closed. It may be 0 if others have more "
        f"by {OVERRIDES}.",
        dynamic=True,
    )
    max_connections_per_ip_overrides: tuple[tuple[str, int], ...] = setting(
        addresses.counts_by_host(),
        "",
        f"Instead of {PER_IP}, for some: as 192.0.2.1:100,host.example:200.",
        dynamic=True,
    )
    max_connection_creation_rate: int = setting(
        int32(0),
        str(INT_MAX),
        "Connections that are accepted in a second at most; others wait. Those to the listener of "
        "other brokers don't count.",
        dynamic=True,
    )
    connections_max_idle_ms: int = setting(
        int64(1), "600000", "Time without a request after which a connection is closed."
    )


ABOVE_ZERO = frozenset({MAX_CONNECTIONS, CREATION_RATE})
"""What can't be 0 for one listener, nor become it while a broker runs: nobody could undo it."""


def check_per_ip(most: int, overrides: tuple[tuple[str, int], ...]) -> None:
    """Raises ConfigError if nobody could connect at all."""
    if not most and not overrides:
        raise ConfigError(
            PER_IP,
            "0",
            "1 or more",
            f"{PER_IP}=0 lets nobody in: set {OVERRIDES} as well, to who may connect",
        )
