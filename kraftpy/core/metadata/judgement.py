"""What is judged before a command is proposed, and not when it is applied.

What a topic or broker can have set depends on the release. If `apply` looked it up, two voters of
different releases could decide one command differently, and the next snapshot would make either the
truth. So the proposer judges by its own tables, against the metadata as far as it knows them, and
proposes only what passes; `apply` takes settings as they come. Rules:

* What is refused here is answered as `apply` would, item by item; the other items are proposed.
* An item is refused for its settings only if nothing else is wrong with it that shows already.
* What a list starts from that isn't set goes along with the command (`defaults`).
* A new value has to be one that may be set today (`refuse_values`); what is committed is in force
  whatever a later release takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kraftpy.core.config import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigError,
    ConfigType,
    Setting,
    SubscriptionError,
    judge_client_metrics_configs,
    judge_dynamic_broker_configs,
    judge_group_configs,
    judge_per_ip,
    judge_topic_configs,
    validate_client_metrics_configs,
    validate_dynamic_broker_configs,
    validate_group_configs,
    validate_topic_configs,
)
from kraftpy.core.metadata import config_commands, topic_commands
from kraftpy.core.metadata.commands import (
    OP_APPEND,
    OP_DELETE,
    OP_SET,
    OP_SUBTRACT,
    AlterConfigs,
    Command,
    ConfigChange,
    CreateTopics,
    NewTopic,
)
from kraftpy.core.metadata.records import ResourceType
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.core.metadata.state import MetadataState


class Judged(NamedTuple):
    """What is left to propose of a command, and what has been refused.

    `command` is None if nothing is left. `refused` has the answers to items, by their places in
    the array called `field`.
    """

    command: Command | None
    field: str = ""
    refused: Mapping[int, dict[str, Any]] = {}

    def answers(self, proposed: Mapping[str, Any]) -> Mapping[str, Any]:
        """The value of the command's result, given that of what was proposed of it."""
        if not self.refused:
            return proposed
        others = iter(proposed.get(self.field, ()))
        count = len(self.refused) + len(proposed.get(self.field, ()))
        items = [self.refused[n] if n in self.refused else next(others) for n in range(count)]
        return {**proposed, self.field: items}


def judge(state: MetadataState, command: Command) -> Judged:
    """Refuses what this release can't let be set, going by the metadata in `state`."""
    refused: dict[int, dict[str, Any]] = {}
    if isinstance(command, CreateTopics):
        topics = []
        for number, topic in enumerate(command.topics):
            try:
                _judge_new_topic(state, topic)
                topics.append(topic)
            except KafkaError as error:
                refused[number] = {"name": topic.name, **_answer(error)}
        left = replace(command, topics=tuple(topics)) if topics else None
        return Judged(left, "topics", refused) if refused else Judged(command)
    if isinstance(command, AlterConfigs):
        changes = []
        for number, change in enumerate(command.resources):
            try:
                changes.append(_judged_change(state, change))
            except KafkaError as error:
                refused[number] = {"type": change.type, "name": change.name, **_answer(error)}
        changed = replace(command, resources=tuple(changes))
        return Judged(changed if changes or not refused else None, "resources", refused)
    return Judged(command)


def _answer(error: KafkaError) -> dict[str, Any]:
    return {"error": int(error.code), "message": error.message}


def _judge_new_topic(state: MetadataState, topic: NewTopic) -> None:
    if None in topic.configs.values():
        return
    try:
        validate_topic_configs({k: v for k, v in topic.configs.items() if v is not None})
    except ConfigError as error:
        topic_commands.check_new_topic(state, topic)
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _judged_change(state: MetadataState, change: ConfigChange) -> ConfigChange:
    """The change to one resource, with what its lists start from."""
    try:
        resource_type = ResourceType(change.type)
    except ValueError:
        return change
    settings, validate = _TABLES[resource_type]
    try:
        defaults: dict[str, str | None] = {
            key: _list_default(settings, key)
            for key, op, _ in change.ops or ()
            if op in (OP_APPEND, OP_SUBTRACT)
        }
        judged = replace(change, defaults=defaults)
        validate(config_commands.changed(judged, state.config(resource_type, change.name)))
    except (KafkaError, ConfigError) as error:
        config_commands.check_resource(state, change.type, change.name)
        if isinstance(error, KafkaError):
            raise
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return judged if defaults else change


def refuse_values(
    change: ConfigChange, config: BrokerConfig
) -> tuple[ErrorCode, str | None] | None:
    """What is wrong with the values that somebody wants to set, None if nothing is."""
    type_, wanted = change.type, change.configs
    if change.ops is not None:
        wanted = {key: value for key, op, value in change.ops if op == OP_SET}
    try:
        if type_ == ResourceType.TOPIC:
            judge_topic_configs(wanted)
        elif type_ == ResourceType.BROKER:
            judge_dynamic_broker_configs(wanted)
            left: Mapping[str, str | None] = {
                key: None for key, op, _ in change.ops or () if op == OP_DELETE
            }
            judge_per_ip(config, {**left, **wanted}, whole=change.ops is None)
        elif type_ == ResourceType.GROUP:
            judge_group_configs(wanted, config)
        elif type_ == ResourceType.CLIENT_METRICS:
            judge_client_metrics_configs(wanted)
    except SubscriptionError as error:
        return ErrorCode.INVALID_REQUEST, str(error)
    except ConfigError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    return None


def _list_default(settings: Mapping[str, Setting], key: str) -> str:
    definition = settings.get(key)
    if definition is None or definition.kind.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{key[:120]} is not a list: it can be set or deleted, not appended to or subtracted "
            "from",
        )
    return definition.default or ""


_TABLES: Mapping[
    ResourceType, tuple[Mapping[str, Setting], Callable[[Mapping[str, str]], None]]
] = {
    ResourceType.TOPIC: (TOPIC_SETTINGS, validate_topic_configs),
    ResourceType.BROKER: (BROKER_SETTINGS, validate_dynamic_broker_configs),
    # Kafka's lists of subscriptions can be set only, too.
    ResourceType.CLIENT_METRICS: ({}, validate_client_metrics_configs),
    ResourceType.GROUP: (GROUP_SETTINGS, validate_group_configs),
}
