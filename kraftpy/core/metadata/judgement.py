"""What is judged before a command is proposed, and not when it is applied.

What a topic or broker can have set depends on the release. If `apply` looked it up, two voters of
different releases could decide one command differently, and the next snapshot would make either the
truth. So the proposer judges by its own tables, against the metadata as far as it knows them, and
proposes only what passes; `apply` takes settings as they come. Rules:

* What is refused here is answered as `apply` would, item by item; the other items are proposed.
* An item is refused for its settings only if nothing else is wrong with it that shows already.
* What a list starts from that isn't set goes along with the command (`defaults`).
* A command that hasn't the shape of one passes: `apply` says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kraftpy.core.config import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    ConfigError,
    ConfigType,
    Setting,
    validate_client_metrics_configs,
    validate_dynamic_broker_configs,
    validate_group_configs,
    validate_topic_configs,
)
from kraftpy.core.metadata import config_commands, topic_commands
from kraftpy.core.metadata.fields import Fields
from kraftpy.core.metadata.records import ResourceType
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.core.metadata.state import MetadataState

__all__ = ["Judged", "judge"]


class Judged(NamedTuple):
    """What is left to propose of a command, and what has been refused.

    `command` is None if nothing is left. `refused` has the answers to items, by their places in
    the array called `field`.
    """

    command: dict[str, Any] | None
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


def judge(state: MetadataState, command: dict[str, Any]) -> Judged:
    """Refuses what this release can't let be set, going by the metadata in `state`."""
    match command:
        case {"type": "create_topics", "topics": list(items)}:
            field = "topics"
        case {"type": "alter_configs", "resources": list(items)}:
            field = "resources"
        case _:
            return Judged(command)
    refused: dict[int, dict[str, Any]] = {}
    passed: list[Any] = []
    for number, item in enumerate(items):
        try:
            if field == "topics":
                _judge_new_topic(state, item)
                passed.append(item)
            else:
                passed.append(_judged_change(state, item))
        except KafkaError as error:
            named = {key: item[key] for key in ("type", "name") if key in item}
            refused[number] = named | {"error": int(error.code), "message": error.message}
    return Judged({**command, field: passed} if passed or not items else None, field, refused)


def _judge_new_topic(state: MetadataState, item: Any) -> None:
    try:
        topic = topic_commands.read_new_topic(Fields(item))
    except KafkaError:
        return
    if None in topic.configs.values():
        return
    try:
        validate_topic_configs({k: v for k, v in topic.configs.items() if v is not None})
    except ConfigError as error:
        topic_commands.check_new_topic(state, topic)
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _judged_change(state: MetadataState, item: Any) -> Any:
    """The change to one resource, with what its lists start from."""
    try:
        change = config_commands.read_change(Fields(item))
        resource_type = ResourceType(change.type)
    except (KafkaError, ValueError):
        return item
    settings, validate = _TABLES[resource_type]
    try:
        defaults: dict[str, str | None] = {
            key: _list_default(settings, key)
            for key, op, _ in change.ops or ()
            if op in (config_commands.OP_APPEND, config_commands.OP_SUBTRACT)
        }
        old = state.config(resource_type, change.name)
        validate(config_commands.changed(change._replace(defaults=defaults), old))
    except (KafkaError, ConfigError) as error:
        config_commands.check_resource(state, change.type, change.name)
        if isinstance(error, KafkaError):
            raise
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return {**item, "defaults": defaults} if defaults else item


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
