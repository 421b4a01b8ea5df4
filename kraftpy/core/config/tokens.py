"""The settings of delegation tokens (KIP-48), by Kafka's keys."""

from __future__ import annotations

from kraftpy.core.config import kinds
from kraftpy.core.config.connections import ConnectionSettings
from kraftpy.core.config.kinds import int64
from kraftpy.core.config.settings import setting
from kraftpy.frozen import dataclass
from kraftpy.secret import Secret

SECRET_KEY = "delegation.token.secret.key"  # noqa: S105 - the setting's name


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings(ConnectionSettings):
    """What `BrokerConfig` has for delegation tokens."""

    delegation_token_secret_key: Secret | None = setting(
        kinds.password("a secret"),
        None,
        "The key that makes delegation tokens, the same one on all brokers. Without it there are "
        "none; with another one those that there were are worth nothing.",
    )
    delegation_token_max_lifetime_ms: int = setting(
        int64(1), "604800000", "The longest that a delegation token can be renewed for."
    )
    delegation_token_expiry_time_ms: int = setting(
        int64(1), "86400000", "Time that a delegation token lasts unless it is renewed."
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        int64(1), "3600000", "Time between two removals of delegation tokens that are over."
    )
