"""Commands on who leads and who is in sync; `leader_commands` carries them out and has their rules.

alter_partition  broker_id, broker_epoch, topics [{topic_id, partitions [{index, leader_epoch,
                 partition_epoch, isr [{broker_id, broker_epoch}]}]}]
                 -> {topics: [{topic_id, partitions: [{index, error, message, leader,
                               leader_epoch, partition_epoch, isr}]}]}
renew_replicas   broker_id, broker_epoch, topics [{topic_id, partitions [{index,
                 leader_epoch}]}]
                 -> {topics: [{topic_id, partitions: [{index, error, message}]}]}
elect_leaders    election_type (0 preferred, 1 unclean), topics? [{name, partitions [index]}]
                 -> {topics: [{name, partitions: [{index, error, message}]}]}
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.core.fields import LONG_MAX, AtMost, Int32, Range, SignedInt32, Uuid
from kraftpy.core.metadata.commands.brokers import OfBroker
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.commands.topics import TopicName
from kraftpy.core.metadata.limits import (
    PARTITIONS_MAX,
    REPLICATION_FACTOR_MAX,
    TOPICS_PER_COMMAND_MAX,
)
from kraftpy.frozen import dataclass

PREFERRED = 0
UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class InSync:
    """A replica in sync, in the life that the leader knows; -1 for "unchanged"."""

    broker_id: Int32
    broker_epoch: Annotated[int, Range(-1, LONG_MAX)]


@dataclass(frozen=True, slots=True)
class ProposedIsr:
    """A partition's ISR, proposed on the state that the epochs name."""

    index: Int32
    leader_epoch: Int32
    partition_epoch: Int32
    isr: Annotated[tuple[InSync, ...], AtMost(REPLICATION_FACTOR_MAX)]


@dataclass(frozen=True, slots=True)
class ProposedIsrs:
    """Those of a topic."""

    topic_id: Uuid
    partitions: Annotated[tuple[ProposedIsr, ...], AtMost(PARTITIONS_MAX)]


@dataclass(frozen=True, slots=True)
class AlterPartition(OfBroker):
    """Changes ISRs as their leader proposes (KIP-497)."""

    NAME = "alter_partition"

    topics: Annotated[tuple[ProposedIsrs, ...], AtMost(TOPICS_PER_COMMAND_MAX)]


@dataclass(frozen=True, slots=True)
class RenewedReplica:
    """A partition of which a broker gives up what it has, in this leader epoch."""

    index: Int32
    leader_epoch: Int32


@dataclass(frozen=True, slots=True)
class RenewedReplicas:
    """Those of a topic."""

    topic_id: Uuid
    partitions: Annotated[tuple[RenewedReplica, ...], AtMost(PARTITIONS_MAX)]


@dataclass(frozen=True, slots=True)
class RenewReplicas(OfBroker):
    """Has a broker begin replicas anew, if others have all that was acknowledged."""

    NAME = "renew_replicas"

    topics: Annotated[tuple[RenewedReplicas, ...], AtMost(TOPICS_PER_COMMAND_MAX)]


@dataclass(frozen=True, slots=True)
class Elections:
    """Partitions of a topic, which need not be there."""

    name: TopicName
    partitions: Annotated[tuple[SignedInt32, ...], AtMost(PARTITIONS_MAX)]


@dataclass(frozen=True, slots=True)
class ElectLeaders(Command):
    """Gives partitions their preferred leader, or any leader at all; without topics, all."""

    NAME = "elect_leaders"

    election_type: Annotated[int, Range(PREFERRED, UNCLEAN)]
    topics: Annotated[tuple[Elections, ...], AtMost(TOPICS_PER_COMMAND_MAX)] | None = None
    allowed_under: AllowedUnder = None
