"""The replicated state machine: brokers, topics, configuration, credentials, ACLs, quotas,
delegation tokens.

Rules:

* State changes only in `apply`, one committed command at a time. Every node applies the same
  commands in the same order and must reach the same state, so nothing in here may depend on a
  clock, on randomness, on the node's own configuration or on the order of a set.
* `apply` is total: whatever the command holds, it answers with a Kafka error code and never raises,
  but for what this release doesn't know: a later release has carried it out, so whoever goes on
  without it is wrong from there on (`LaterReleaseError`). That is a command of an unknown type, a
  level that isn't known or, from level 1 on (`levels`), a field. None is let into the log by a
  controller that doesn't know it (`why_not`).
* No table of a release is looked at in here: settings are judged before (`judgement`).
* A command that fails as a whole changed nothing; in a command on several items each item succeeds
  or fails by itself, as a whole.
* A command says what it was decided on (broker epochs), so that a decision of a replaced
  broker or controller is refused here, on all nodes alike.
* So does a command of a client: which ACLs allowed it. If there are others since, it is refused
  with RIGHTS_CHANGED, and the broker decides anew: one that lags behind uses no right that is gone.
* Retries of a command are kept away from here by the quorum's sessions.

`commands` has the commands, the modules `..._commands` what each of them does. The log index is the
metadata offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, cast

from kraftpy.core.fields import FieldError, Length, reader
from kraftpy.core.metadata import (
    acl_commands,
    broker_commands,
    config_commands,
    leader_commands,
    quota_commands,
    reassignment_commands,
    security_commands,
    snapshots,
    token_commands,
    topic_commands,
)
from kraftpy.core.metadata.commands import (
    COMMANDS,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    AlterPartition,
    AlterReassignments,
    AlterScram,
    Barrier,
    BeginShutdown,
    Command,
    CreateAcls,
    CreatePartitions,
    CreateToken,
    CreateTopics,
    DeleteAcls,
    DeleteTopics,
    ElectLeaders,
    ExpireToken,
    FenceBroker,
    RaiseLevel,
    RegisterBroker,
    RemoveExpiredTokens,
    RenewReplicas,
    RenewToken,
    UnfenceBroker,
    UnregisterBroker,
    UpdateFeatures,
    level_of,
)
from kraftpy.core.metadata.commands.codec import TYPE, has_newer_fields
from kraftpy.core.metadata.levels import (
    COOPERATIVE_BEGINS,
    COOPERATIVE_FETCH,
    COOPERATIVE_FETCH_BEGINS,
    LEVEL,
    SHARE_GROUPS,
    SHARE_VERSION,
    SHARE_VERSION_BEGINS,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_BEGINS,
    TRANSACTIONS,
    TWINS,
    UNKNOWN_FIELDS_STOP,
    LaterReleaseError,
)
from kraftpy.core.metadata.records import Change, FeatureChanged, LevelRaised, Result
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE

RIGHTS_CHANGED = ErrorCode.INVALID_UPDATE_VERSION
"""What `apply` answers to a command that was allowed under other ACLs; no client gets to see it."""

_CarryOut = Callable[[MetadataTables, int, Any, list[Change]], dict[str, Any]]


class MetadataState(MetadataTables):
    """The cluster's metadata as of `applied_index`. Read freely; change through `apply` only."""

    def apply(self, index: int, command: object) -> Result:
        """Carries out the committed command at `index` of the log.

        An index that is not above `applied_index` is refused and changes nothing. Raises
        LaterReleaseError, and nothing else; then nothing has changed either.
        """
        if index <= self.applied_index:
            return Result(
                ErrorCode.INVALID_REQUEST,
                f"index {index} is applied already; the last one was {self.applied_index}",
            )
        changes: list[Change] = []
        try:
            known = self._known(index, command)
            self.applied_index = index
            self._check_rights(known)
            value = _CARRY_OUT[type(known)](self, index, known, changes)
        except KafkaError as error:
            assert not changes, "a command that fails must not have changed anything"
            self.applied_index = index
            return Result(error.code, error.message)
        return Result(value=value, changes=tuple(changes))

    def _check_rights(self, command: Command) -> None:
        """Refuses what was allowed under other ACLs than there are. Raises KafkaError."""
        version = getattr(command, "allowed_under", None)
        if version is not None and version != self.acls.version:
            raise KafkaError(
                RIGHTS_CHANGED,
                f"it was allowed by version {version} of the ACLs, and they have "
                f"{self.acls.version} now",
            )

    def _known(self, index: int, data: object) -> Command:
        """The command in `data`. Raises KafkaError if it is none, and LaterReleaseError."""
        name = _name_of(data)
        if not COMMANDS.knows(name):
            raise LaterReleaseError.met(f"a command {name!r} at index {index}")
        assert isinstance(data, dict)
        command, unknown = COMMANDS.decode(data)
        if unknown and self.level >= UNKNOWN_FIELDS_STOP:
            raise LaterReleaseError.met(f"a field {unknown[0]} of {name} at index {index}")
        if isinstance(command, RaiseLevel) and command.level > LEVEL:
            raise LaterReleaseError.met_level(command.level)
        if level_of(command) > self.level:
            raise LaterReleaseError.met(
                f"a {name} of level {level_of(command)} at index {index}, before that level,"
            )
        return command

    def why_not(self, name: object, command: Callable[[], object]) -> str | None:
        """Why a command of the type `name` can't be let into the log yet; None if it can.

        `command` gives all of it, which only those pay for that need more than the name.
        """
        if not isinstance(name, str):
            return None  # `apply` says what is wrong
        if not COMMANDS.knows(name):
            return f"has no command {name!r}: upgrade the controllers first, all of them"
        kind = COMMANDS[name]
        needed = kind.LEVEL
        if needed <= self.level and has_newer_fields(kind):
            try:
                needed = level_of(COMMANDS.decode(cast("dict[str, Any]", command()))[0])
            except KafkaError:
                return None
        if needed <= self.level:
            return None
        return (
            f"can't carry out {name!r} at metadata level {self.level}, it takes {needed}: upgrade "
            "all nodes, then `kraftpy cluster raise-level`"
        )

    def snapshot(self) -> dict[str, Any]:
        """The state as a map that can be packed as msgpack; equal states give equal bytes."""
        return snapshots.dump(self)

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> MetadataState:
        """The state that `snapshot` was taken of. Raises ValueError if it is damaged."""
        state = cls()
        snapshots.load(state, snapshot)
        return state


_read_name = reader(Annotated[str, Length(64)], "command.type")


def _name_of(data: object) -> str:
    """Raises KafkaError if it has none."""
    try:
        if not isinstance(data, dict):
            raise FieldError("command must be a map")
        name: str = _read_name(data.get(TYPE), [])
    except FieldError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    return name


def _barrier(
    _state: MetadataTables, index: int, _command: Barrier, _changes: list[Change]
) -> dict[str, Any]:
    return {"index": index}


_FEATURES = (
    (TRANSACTIONS, TRANSACTION_VERSION, TRANSACTION_VERSION_BEGINS),
    (TWINS, COOPERATIVE_FEATURE, COOPERATIVE_BEGINS),
    (SHARE_GROUPS, SHARE_VERSION, SHARE_VERSION_BEGINS),
)
"""The metadata level at which a feature comes, its name, and its level in the beginning."""


def _raise_level(
    state: MetadataTables, _index: int, command: RaiseLevel, changes: list[Change]
) -> dict[str, Any]:
    if command.level > state.level:
        before, state.level = state.level, command.level
        changes.append(LevelRaised(command.level))
        for since, name, begins_with in _FEATURES:
            if before < since <= command.level:
                _set_feature(state, name, begins_with, changes)
        if before < COOPERATIVE_FETCH <= command.level and COOPERATIVE_FEATURE in state.features:
            _set_feature(state, COOPERATIVE_FEATURE, COOPERATIVE_FETCH_BEGINS, changes)
    return {"level": state.level}


def _update_features(
    state: MetadataTables, _index: int, command: UpdateFeatures, changes: list[Change]
) -> dict[str, Any]:
    for name, level in {each.name: each.level for each in command.features}.items():
        _set_feature(state, name, level, changes)
    return {}


def _set_feature(state: MetadataTables, name: str, level: int, changes: list[Change]) -> None:
    old = state.features.get(name, 0)
    if level == old:
        return
    if level:
        state.features[name] = level
    else:
        del state.features[name]
    changes.append(FeatureChanged(name, old, level))


_CARRY_OUT: Mapping[type[Command], _CarryOut] = MappingProxyType(
    {
        Barrier: _barrier,
        RaiseLevel: _raise_level,
        UpdateFeatures: _update_features,
        RegisterBroker: broker_commands.register_broker,
        UnregisterBroker: broker_commands.unregister_broker,
        FenceBroker: broker_commands.fence_broker,
        UnfenceBroker: broker_commands.unfence_broker,
        BeginShutdown: broker_commands.begin_shutdown,
        AllocateProducerIds: broker_commands.allocate_producer_ids,
        CreateTopics: topic_commands.create_topics,
        DeleteTopics: topic_commands.delete_topics,
        CreatePartitions: topic_commands.create_partitions,
        AlterPartition: leader_commands.alter_partition,
        RenewReplicas: leader_commands.renew_replicas,
        ElectLeaders: leader_commands.elect_leaders,
        AlterReassignments: reassignment_commands.alter_reassignments,
        AlterConfigs: config_commands.alter_configs,
        AlterScram: security_commands.alter_scram,
        CreateAcls: acl_commands.create_acls,
        DeleteAcls: acl_commands.delete_acls,
        AlterClientQuotas: quota_commands.alter_client_quotas,
        CreateToken: token_commands.create_token,
        RenewToken: token_commands.renew_token,
        ExpireToken: token_commands.expire_token,
        RemoveExpiredTokens: token_commands.remove_expired_tokens,
    }
)
