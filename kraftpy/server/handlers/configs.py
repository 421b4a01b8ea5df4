"""DescribeConfigs 1-4, AlterConfigs 0-2, IncrementalAlterConfigs 0-1, of topics and brokers.

Rules: what a request changes is decided by the controller's state machine
(`kraftpy.core.metadata.config_commands`) and in effect when the answer comes; each resource is
answered by itself. A broker describes its own configuration and, under the name "", the
cluster-wide dynamic one; a topic's is shown as it counts on this broker. IncrementalAlterConfigs
(KIP-339) changes the keys it names; AlterConfigs replaces everything that was set.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.core.config import (
    ConfigError,
    judge_dynamic_broker_configs,
    judge_topic_configs,
)
from kraftpy.core.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from kraftpy.core.metadata import ResourceType
from kraftpy.core.metadata.config_commands import OP_SET
from kraftpy.core.metadata.topic_commands import CONFIGS_MAX, NAME_LENGTH_MAX, topic_name_error
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kraftpy.server.dispatch import RequestContext, handles
from kraftpy.server.handlers.topics import propose_items, repeated
from kraftpy.server.long_answers import elements
from kraftpy.server.reserved_topics import refuse_configs

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

TIMEOUT_MS = 30_000

_Resource = tuple[int, str]
Described = DescribeConfigsResponse.DescribeConfigsResult


@handles(ApiKey.DESCRIBE_CONFIGS, long=True)
def describe_configs(
    broker: Broker, ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Settings with their values and, if asked for, synonyms and documentation.

    A resource that is named more than once is described once, with all keys it was asked for.
    """
    resources: dict[_Resource, set[str] | None] = {}
    for each in request.resources:
        resource = each.resource_type, each.resource_name
        keys = set(each.configuration_keys or ()) or None  # without any it's asked for all
        asked = resources.setdefault(resource, keys)
        resources[resource] = None if asked is None or keys is None else asked | keys
    described = partial(_described, broker, request)
    return DescribeConfigsResponse(
        results=elements(list(resources.items()), described, ctx, _refuse_description)
    )


def _described(
    broker: Broker, request: DescribeConfigsRequest, wanted: tuple[_Resource, set[str] | None]
) -> Described:
    (type_, name), keys = wanted
    result = Described(resource_type=type_, resource_name=name)
    try:
        entries = _describe(broker, type_, name)
        result.configs = [
            _shown(entry, request) for entry in entries if keys is None or entry.name in keys
        ]
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _refuse_description(wanted: tuple[_Resource, set[str] | None]) -> Described:
    (type_, name), _ = wanted
    return Described(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="the answer is too large: describe fewer resources at a time",
        resource_type=type_,
        resource_name=name,
    )


@handles(ApiKey.ALTER_CONFIGS)
async def alter_configs(
    broker: Broker, ctx: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replaces what is set on topics and brokers."""
    resources = [
        (
            (resource.resource_type, resource.resource_name),
            [config.name for config in resource.configs],
            {"configs": {config.name: config.value for config in resource.configs}},
        )
        for resource in request.resources
    ]
    answers = await _alter(broker, resources, request.validate_only)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(code, message, type_, name)
            for (type_, name), (code, message) in answers.items()
        ]
    )


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS)
async def incremental_alter_configs(
    broker: Broker, ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Sets, deletes, appends to and subtracts from single settings."""
    resources = [
        (
            (resource.resource_type, resource.resource_name),
            [each.name for each in resource.configs],
            {"ops": [[each.name, each.config_operation, each.value] for each in resource.configs]},
        )
        for resource in request.resources
    ]
    answers = await _alter(broker, resources, request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(code, message, type_, name)
            for (type_, name), (code, message) in answers.items()
        ]
    )


_Answer = tuple[ErrorCode, str | None]


async def _alter(
    broker: Broker,
    resources: list[tuple[_Resource, list[str], dict[str, Any]]],
    validate_only: bool,
) -> dict[_Resource, _Answer]:
    """The answer to each resource; `resources` are (resource, keys, what to change)."""
    twice = repeated(resource for resource, _, _ in resources)
    answers: dict[_Resource, _Answer] = {}
    items: dict[_Resource, dict[str, Any]] = {}
    for resource, keys, change in resources:
        type_, name = resource
        answers[resource] = (ErrorCode.NONE, None)
        if resource in twice:
            message = "the resource is in the request twice"
            answers[resource] = (ErrorCode.INVALID_REQUEST, message)
        elif len(name) > NAME_LENGTH_MAX:
            answers[resource] = (ErrorCode.INVALID_REQUEST, "the resource's name is too long")
        elif len(keys) > CONFIGS_MAX:
            message = f"a resource has at most {CONFIGS_MAX} settings"
            answers[resource] = (ErrorCode.INVALID_REQUEST, message)
        elif repeated(keys):
            answers[resource] = (ErrorCode.INVALID_REQUEST, "a key is in the request twice")
        elif refusal := refuse_configs(type_, name, change) or _judge(type_, change):
            answers[resource] = refusal
        else:
            items[resource] = {"type": type_, "name": name, **change}
    command = {
        "type": "alter_configs",
        "resources": list(items.values()),
        "validate_only": validate_only,
    }
    results = await propose_items(broker, command, "resources", TIMEOUT_MS)
    for resource, result in zip(items, results, strict=True):
        answers[resource] = (ErrorCode(result["error"]), result["message"])
    return answers


def _judge(type_: int, change: dict[str, Any]) -> _Answer | None:
    """What is wrong with the values that somebody wants to set.

    Judged here, where a value is new: what is committed is in force whatever a later release takes.
    """
    wanted = change.get("configs")
    if wanted is None:
        wanted = {key: value for key, op, value in change["ops"] if op == OP_SET}
    try:
        if type_ == ResourceType.TOPIC:
            judge_topic_configs(wanted)
        elif type_ == ResourceType.BROKER:
            judge_dynamic_broker_configs(wanted)
    except ConfigError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    return None


def _describe(broker: Broker, type_: int, name: str) -> list[ConfigEntry]:
    """The settings of a resource. Raises KafkaError."""
    if type_ == ResourceType.TOPIC:
        problem = topic_name_error(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in broker.metadata.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return describe_topic(broker.metadata.config(ResourceType.TOPIC, name), broker.config)
    if type_ != ResourceType.BROKER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"resources of type {type_} have no configuration here"
        )
    if not name:
        return describe_broker_defaults(broker.metadata.config(ResourceType.BROKER, ""))
    if name != str(broker.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker.node_id}: it knows its own configuration (name it "
            f"{broker.node_id}) and the cluster-wide one (name it '')",
        )
    return describe_broker(broker.config)


def _shown(
    entry: ConfigEntry, request: DescribeConfigsRequest
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsResponse.DescribeConfigsSynonym(each.name, each.value, each.source)
            for each in entry.synonyms
        ]
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
