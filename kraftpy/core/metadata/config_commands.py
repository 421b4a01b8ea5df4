"""Carries out the command on configuration.

Rules: `ops` change single keys (IncrementalAlterConfigs, KIP-339): 0 sets, 1 deletes, 2 appends to
and 3 subtracts from a list; `configs` replaces all that is set (the older AlterConfigs). A list
that is not set starts from what `defaults` has for it. Each resource changes as a whole or not at
all. Which settings there are, and which values they take, has been judged by whoever proposed the
command (`judgement`). The name of a broker is its id, and "" is the default for all brokers. Only
that, and topics, can have min.insync.replicas (KIP-966). Groups and subscriptions to clients'
metrics are known by their configuration only, so as many can have one as `limits` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kraftpy.core.metadata.commands import (
    OP_APPEND,
    OP_DELETE,
    OP_SET,
    OP_SUBTRACT,
    AlterConfigs,
    ConfigChange,
    ConfigOp,
)
from kraftpy.core.metadata.limits import CONFIGURED_MAX
from kraftpy.core.metadata.partition_changes import (
    ELECTION_KEYS,
    MIN_ISR_KEY,
    review,
    with_min_isr_of,
)
from kraftpy.core.metadata.records import Change, ConfigChanged, ResourceType
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.core.metadata.topic_commands import topic_name_error
from kraftpy.protocol.errors import ErrorCode, KafkaError

_DEFAULTS = {"cleanup.policy": "delete"}
"""Of lists that aren't empty, for commands that an earlier release left in the log without."""


_NO_NAME: Mapping[int, str] = {
    ResourceType.CLIENT_METRICS: "Subscription name can't be empty",
    ResourceType.GROUP: "Default group resources are not allowed.",
}
"""What Kafka says to a resource without a name."""


def alter_configs(
    state: MetadataTables, _index: int, command: AlterConfigs, changes: list[Change]
) -> dict[str, Any]:
    """Changes the configuration of topics and brokers."""
    answers: list[dict[str, Any]] = []
    seen: set[tuple[int, str]] = set()
    ruled: set[tuple[ResourceType, str]] = set()
    counts = Counter(type_ for type_, _ in state.configs if type_ in CONFIGURED_MAX)
    for item in command.resources:
        type_, name = item.type, item.name
        answer: dict[str, Any] = {"type": type_, "name": name}
        try:
            if (type_, name) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource is in the request twice")
            seen.add((type_, name))
            resource_type = check_resource(state, type_, name)
            old = state.config(resource_type, name)
            new = changed(item, old)
            followed = state.topics[name].twin_of if resource_type is ResourceType.TOPIC else None
            if followed is not None:
                new = with_min_isr_of(new, state.config(resource_type, followed))
            if new and not old:
                _check_room(resource_type, counts)
            _check_min_isr(resource_type, name, new)
            if not command.validate_only and new != old:
                _set_configs(state, resource_type, name, new, changes)
                counts[resource_type] += bool(new) - bool(old)
                if any(old.get(key) != new.get(key) for key in ELECTION_KEYS):
                    ruled.add((resource_type, name))
                twin = state.twins.get(name) if resource_type is ResourceType.TOPIC else None
                if twin is not None and old.get(MIN_ISR_KEY) != new.get(MIN_ISR_KEY):
                    its = with_min_isr_of(state.config(resource_type, twin), new)
                    _set_configs(state, resource_type, twin, its, changes)
                    ruled.add((resource_type, twin))
            answers.append(answer | {"error": int(ErrorCode.NONE), "message": None})
        except KafkaError as error:
            answers.append(answer | {"error": int(error.code), "message": error.message})
    _review_elections(state, ruled, changes)
    return {"resources": answers}


def check_resource(state: MetadataTables, type_: int, name: str) -> ResourceType:
    """The type of an existing resource. Raises KafkaError."""
    if type_ == ResourceType.TOPIC:
        problem = topic_name_error(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in state.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return ResourceType.TOPIC
    if type_ in _NO_NAME:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, _NO_NAME[ResourceType(type_)])
        return ResourceType(type_)
    if type_ != ResourceType.BROKER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"resources of type {type_} have no configuration here"
        )
    if name and not (len(name) <= 10 and name.isascii() and name.isdigit()):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a broker is named by its id, not by {name[:120]!r}"
        )
    if name and (str(int(name)) != name or int(name) not in state.brokers):
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {name} is not registered")
    return ResourceType.BROKER


def _check_room(resource_type: ResourceType, counts: Mapping[int, int]) -> None:
    """Whether one more resource can have a configuration, of those that exist by that alone."""
    maximum = CONFIGURED_MAX.get(resource_type)
    if maximum is not None and counts[resource_type] >= maximum:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{maximum} resources of type {int(resource_type)} have a configuration, and no more "
            "can: delete that of others first",
        )


def changed(change: ConfigChange, old: Mapping[str, str]) -> dict[str, str]:
    """What is set after the change. Raises KafkaError, but looks at no value."""
    if change.ops is None:
        return _replaced(change.configs)
    return _altered(old, change.ops, change.defaults)


def _replaced(configs: Mapping[str, str | None]) -> dict[str, str]:
    new: dict[str, str] = {}
    for key, value in configs.items():
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key[:120]} has no value")
        new[key] = value
    return new


def _altered(
    old: Mapping[str, str], ops: Sequence[ConfigOp], defaults: Mapping[str, str | None]
) -> dict[str, str]:
    """The configuration after the operations."""
    if len({key for key, _, _ in ops}) < len(ops):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a key is in the request twice")
    new = dict(old)
    for key, op, value in ops:
        if op == OP_DELETE:
            new.pop(key, None)
            continue
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key[:120]} has no value")
        if op == OP_SET:
            new[key] = value
        elif op in (OP_APPEND, OP_SUBTRACT):
            current = new.get(key)
            if current is None:
                current = defaults.get(key) or _DEFAULTS.get(key, "")
            new[key] = _list_changed(current, op, value)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no config operation {op}")
    return new


def _list_changed(current: str, op: int, value: str) -> str:
    parts, changed = _parts(current), _parts(value)
    if op == OP_APPEND:
        parts += [each for each in changed if each not in parts]
    else:
        parts = [each for each in parts if each not in changed]
    return ",".join(parts)


def _parts(value: str) -> list[str]:
    return [part for part in (part.strip() for part in value.split(",")) if part]


def _check_min_isr(resource_type: ResourceType, name: str, configs: Mapping[str, str]) -> None:
    """One value for all brokers decides who is eligible, so no broker may have its own."""
    if resource_type is ResourceType.BROKER and name and MIN_ISR_KEY in configs:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{MIN_ISR_KEY} can't differ between brokers: set it for a topic, or for all brokers "
            "(the broker whose name is empty)",
        )


def _set_configs(
    state: MetadataTables,
    resource_type: ResourceType,
    name: str,
    configs: dict[str, str],
    changes: list[Change],
) -> None:
    if configs:
        state.configs[resource_type, name] = configs
    else:
        state.configs.pop((resource_type, name), None)
    changes.append(ConfigChanged(resource_type, name))


def _review_elections(
    state: MetadataTables, ruled: set[tuple[ResourceType, str]], changes: list[Change]
) -> None:
    """Applies the new rules of elections to the topics of the resources in `ruled`."""
    if (ResourceType.BROKER, "") in ruled:
        review(state, state.sorted_topics(), changes)
    else:
        names = sorted(name for type_, name in ruled if type_ is ResourceType.TOPIC)
        review(state, (state.topics[name] for name in names), changes)
