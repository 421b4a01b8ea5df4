"""Limits that decide what a committed command does.

All voters have to agree on them, whatever their release: they belong to the rules of the metadata
like the shape of a command, and don't follow the settings of a release.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.core.metadata.records import ResourceType

PARTITIONS_MAX = 10_000
"""The largest number of partitions that a topic may have."""

REPLICATION_FACTOR_MAX = 32_767
NAME_FIELD_LENGTH_MAX = 32_767
"""What the protocol's text can have; a topic's own name is shorter."""
CONFIGS_MAX = 256
"""The settings of one resource."""
TOPICS_PER_COMMAND_MAX = 10_000
RESOURCES_PER_COMMAND_MAX = 10_000
SCRAM_USERS_PER_COMMAND_MAX = 1_000
ACLS_PER_COMMAND_MAX = 10_000
QUOTAS_PER_COMMAND_MAX = 10_000

ACLS_MAX = 20_000
"""How many ACLs there can be."""
ACLS_DELETED_MAX = 5_000
"""How many ACLs one command can delete: its answer names them all."""

QUOTA_ENTITIES_MAX = 20_000
"""How many entities can have quotas, each with at most one for each key."""

SCRAM_USERS_MAX = 20_000
"""How many users can have SCRAM credentials."""
SCRAM_NAME_LENGTH_MAX = 255
SCRAM_ITERATIONS_MIN, SCRAM_ITERATIONS_MAX = 4_096, 16_384
"""As Kafka has it: RFC 7677 asks for 4096, and clients have to compute them."""
SCRAM_SALT_BYTES_MAX = 128
SCRAM_KEY_BYTES_MAX = 64

TOKENS_MAX = 10_000
"""How many delegation tokens there can be."""
TOKENS_PER_OWNER_MAX = 1_000
TOKEN_ID_LENGTH_MAX = 64
TOKEN_RENEWERS_MAX = 20
TOKEN_TEXT_LENGTH_MAX = 4_096
"""Characters of all principals that a token names, together."""

CONFIGURED_MAX: Mapping[int, int] = {ResourceType.CLIENT_METRICS: 1_000, ResourceType.GROUP: 10_000}
"""How many resources can have a configuration, of the types that anybody may invent names of."""
