"""The command that moves replicas (KIP-455); `reassignment_commands` carries it out.

alter_reassignments  topics [{name, partitions [{index, replicas? [broker id]}]}],
                     keep_replication_factor?
                     -> {topics: [{name, partitions: [{index, error, message}]}]}
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.core.fields import AtMost, SignedInt32
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command
from kraftpy.core.metadata.commands.topics import TopicName
from kraftpy.core.metadata.limits import (
    PARTITIONS_MAX,
    REPLICATION_FACTOR_MAX,
    TOPICS_PER_COMMAND_MAX,
)
from kraftpy.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Where a partition's replicas are to be; None takes back what is under way."""

    index: SignedInt32
    replicas: Annotated[tuple[SignedInt32, ...], AtMost(REPLICATION_FACTOR_MAX)] | None = None


@dataclass(frozen=True, slots=True)
class Reassignments:
    """Those of a topic."""

    name: TopicName
    partitions: Annotated[tuple[Reassignment, ...], AtMost(PARTITIONS_MAX)]


@dataclass(frozen=True, slots=True)
class AlterReassignments(Command):
    """Starts, changes and cancels reassignments, each partition by itself."""

    NAME = "alter_reassignments"

    topics: Annotated[tuple[Reassignments, ...], AtMost(TOPICS_PER_COMMAND_MAX)]
    keep_replication_factor: bool = False
    allowed_under: AllowedUnder = None
