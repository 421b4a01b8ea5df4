"""Commands on topics; `topic_commands` carries them out and has their rules.

create_topics      topics [{name, topic_id (16 bytes), partitions, replication_factor,
                   assignments? [[broker id]], configs? {key: value}, twin_of?}], seed,
                   validate_only?
                   -> {topics: [{name, error, message, topic_id, partitions,
                                 replication_factor}]}
delete_topics      topics [{name} or {topic_id}]
                   -> {topics: [{name, topic_id, error, message}]}
create_partitions  topics [{name, count, assignments? [[broker id]]}], seed, validate_only?
                   -> {topics: [{name, error, message}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from kraftpy.core.fields import AtMost, FieldError, Int32, Int64, Length, SignedInt32, Uuid
from kraftpy.core.metadata.commands.codec import AllowedUnder, Command, Since
from kraftpy.core.metadata.levels import TWINS
from kraftpy.core.metadata.limits import (
    CONFIGS_MAX,
    NAME_FIELD_LENGTH_MAX,
    PARTITIONS_MAX,
    REPLICATION_FACTOR_MAX,
    TOPICS_PER_COMMAND_MAX,
)
from kraftpy.frozen import dataclass

TopicName = Annotated[str, Length(NAME_FIELD_LENGTH_MAX)]
"""What somebody calls a topic, which need not be a name that a topic can have."""

Assignment = tuple[tuple[int, ...], ...]
"""The replicas of each partition."""

_Assignment = Annotated[
    tuple[Annotated[tuple[Int32, ...], AtMost(REPLICATION_FACTOR_MAX)], ...],
    AtMost(PARTITIONS_MAX),
]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be; either `assignments` or the two numbers say where its replicas are.

    Those of a twin are where the replicas of `twin_of` are, so it has neither.
    """

    name: TopicName
    topic_id: Uuid
    partitions: SignedInt32 = -1
    replication_factor: SignedInt32 = -1
    assignments: _Assignment | None = None
    configs: Annotated[Mapping[str, str | None], AtMost(CONFIGS_MAX)] = field(default_factory=dict)
    twin_of: Annotated[TopicName | None, Since(TWINS)] = None


@dataclass(frozen=True, slots=True)
class CreateTopics(Command):
    """Creates topics; `seed` is the proposer's randomness for the placement."""

    NAME = "create_topics"

    topics: Annotated[tuple[NewTopic, ...], AtMost(TOPICS_PER_COMMAND_MAX)]
    seed: Int64
    validate_only: bool = False
    allowed_under: AllowedUnder = None


@dataclass(frozen=True, slots=True)
class OldTopic:
    """A topic to go, by its name or by its id."""

    name: TopicName | None = None
    topic_id: Uuid | None = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.topic_id is None):
            raise FieldError("command.topics must have either name or topic_id")


@dataclass(frozen=True, slots=True)
class DeleteTopics(Command):
    """Deletes topics and their configuration."""

    NAME = "delete_topics"

    topics: Annotated[tuple[OldTopic, ...], AtMost(TOPICS_PER_COMMAND_MAX)]
    allowed_under: AllowedUnder = None


@dataclass(frozen=True, slots=True)
class GrownTopic:
    """How many partitions a topic is to have."""

    name: TopicName
    count: SignedInt32
    assignments: _Assignment | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions(Command):
    """Adds partitions to topics."""

    NAME = "create_partitions"

    topics: Annotated[tuple[GrownTopic, ...], AtMost(TOPICS_PER_COMMAND_MAX)]
    seed: Int64
    validate_only: bool = False
    allowed_under: AllowedUnder = None
