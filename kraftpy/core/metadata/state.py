"""The replicated state machine: brokers, topics, partitions and configuration.

Rules:

* State changes only in `apply`, one committed command at a time. Every node applies the same
  commands in the same order and must reach the same state, so nothing in here may depend on a
  clock, on randomness, on the node's own configuration or on the order of a set.
* `apply` is total: whatever the command holds, it answers with a Kafka error code and never raises,
  but for a command of a type that this release doesn't know: a later release has carried it out, so
  whoever goes on without it is wrong from there on (`UnknownCommandError`). None is let into the
  log by a controller that doesn't know it (`knows`).
* No table of a release is looked at in here: settings are judged before (`judgement`).
* A command that fails as a whole changed nothing; in a command on several items each item succeeds
  or fails by itself, as a whole.
* A command says what it was decided on (broker epochs), so that a decision of a replaced
  broker or controller is refused here, on all nodes alike.
* Retries of a command are kept away from here by the quorum's sessions.

A command is a map: `type` and the fields of that type, which the modules `broker_commands`,
`topic_commands`, `leader_commands`, `reassignment_commands` and `config_commands` describe.
The log index is the metadata offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from kraftpy import __version__
from kraftpy.core.metadata import (
    broker_commands,
    config_commands,
    leader_commands,
    reassignment_commands,
    snapshots,
    topic_commands,
)
from kraftpy.core.metadata.fields import Fields
from kraftpy.core.metadata.records import Change, Result
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.protocol.errors import ErrorCode, KafkaError

_Command = Callable[[MetadataTables, int, Fields, list[Change]], dict[str, Any]]


class UnknownCommandError(Exception):
    """A later release put a command into the log that this one doesn't know; says what to do."""


class MetadataState(MetadataTables):
    """The cluster's metadata as of `applied_index`. Read freely; change through `apply` only."""

    def apply(self, index: int, command: object) -> Result:
        """Carries out the committed command at `index` of the log.

        An index that is not above `applied_index` is refused and changes nothing. Raises
        UnknownCommandError, and nothing else; then nothing has changed either.
        """
        if index <= self.applied_index:
            return Result(
                ErrorCode.INVALID_REQUEST,
                f"index {index} is applied already; the last one was {self.applied_index}",
            )
        name = command.get("type") if isinstance(command, dict) else None
        if not self.knows(name):
            raise UnknownCommandError(
                f"the metadata has a command {name!r} at index {index} that kraftpy {__version__} "
                "doesn't know: the other nodes run a later release. Upgrade this node to theirs "
                "and start it again"
            )
        self.applied_index = index
        changes: list[Change] = []
        try:
            fields = Fields(command)
            value = _COMMANDS[fields.text("type", 64)](self, index, fields, changes)
        except KafkaError as error:
            assert not changes, "a command that fails must not have changed anything"
            return Result(error.code, error.message)
        return Result(value=value, changes=tuple(changes))

    @staticmethod
    def knows(name: object) -> bool:
        """Whether `apply` can tell what a command of the type `name` does; not if it's of any."""
        return not isinstance(name, str) or name in _COMMANDS

    def snapshot(self) -> dict[str, Any]:
        """The state as a map that can be packed as msgpack; equal states give equal bytes."""
        return snapshots.dump(self)

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> MetadataState:
        """The state that `snapshot` was taken of. Raises ValueError if it is damaged."""
        state = cls()
        snapshots.load(state, snapshot)
        return state


def _barrier(
    _state: MetadataTables, index: int, _fields: Fields, _changes: list[Change]
) -> dict[str, Any]:
    """`barrier`: changes nothing; who waited for its result has seen all earlier commands."""
    return {"index": index}


_COMMANDS: Mapping[str, _Command] = MappingProxyType(
    {
        "barrier": _barrier,
        "register_broker": broker_commands.register_broker,
        "unregister_broker": broker_commands.unregister_broker,
        "fence_broker": broker_commands.fence_broker,
        "unfence_broker": broker_commands.unfence_broker,
        "begin_shutdown": broker_commands.begin_shutdown,
        "allocate_producer_ids": broker_commands.allocate_producer_ids,
        "create_topics": topic_commands.create_topics,
        "delete_topics": topic_commands.delete_topics,
        "create_partitions": topic_commands.create_partitions,
        "alter_partition": leader_commands.alter_partition,
        "renew_replicas": leader_commands.renew_replicas,
        "elect_leaders": leader_commands.elect_leaders,
        "alter_reassignments": reassignment_commands.alter_reassignments,
        "alter_configs": config_commands.alter_configs,
    }
)
