"""What the metadata consists of: brokers, topics, configuration, credentials, ACLs, quotas,
delegation tokens.

Only commands change it, each carried out by `state.MetadataState.apply`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kraftpy.core.metadata.records import (
    KAFKAS_RULES,
    Broker,
    DelegationToken,
    ScramCredential,
    ScramMechanism,
    Topic,
)
from kraftpy.core.metadata.replica_index import ReplicaIndex
from kraftpy.core.quotas import QuotaTable
from kraftpy.core.security.acl_table import AclTable

_NOTHING: Mapping[str, str] = MappingProxyType({})


class MetadataTables:
    """The cluster's metadata as of `applied_index`."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.level = 0
        self.features: dict[str, int] = {}  # none at level 0
        self.cluster_id: str | None = None
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[bytes, Topic] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.next_producer_id = 0
        self.common_rules = KAFKAS_RULES
        self.partition_count = 0
        self.names_in_metrics: dict[str, str] = {}
        self.twins: dict[str, str] = {}  # by the name of the topic that they follow
        self.replica_index = ReplicaIndex()
        self.acls = AclTable()
        self.quotas = QuotaTable()
        self.scram: dict[str, dict[ScramMechanism, ScramCredential]] = {}  # by user; none is empty
        self.tokens: dict[str, DelegationToken] = {}

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The configuration set on a resource: its overrides only, without defaults."""
        return self.configs.get((resource_type, name), _NOTHING)

    def active_brokers(self) -> list[Broker]:
        """The brokers that can lead: registered, not fenced, not shutting down; by id."""
        return [self.brokers[id_] for id_ in sorted(self.brokers) if self.brokers[id_].active]

    def sorted_topics(self) -> Iterator[Topic]:
        """The topics by name."""
        return (self.topics[name] for name in sorted(self.topics))
