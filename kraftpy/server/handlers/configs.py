"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Rules: what a request changes is decided by the controller's state machine
(`kraftpy.core.metadata.config_commands`) and in effect when the answer comes; each resource is
answered by itself. A broker describes its own configuration and, under the name "", the
cluster-wide dynamic one; a topic's is shown as it counts on this broker. IncrementalAlterConfigs
(KIP-339) changes the keys it names; AlterConfigs replaces everything that was set.

Groups and subscriptions to clients' metrics needn't exist: their configuration is kept by their
name. The levels of loggers are those of the broker's process (`server.handlers.loggers`), and only
IncrementalAlterConfigs changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kraftpy.core.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_broker_defaults,
    describe_client_metrics,
    describe_group,
    describe_logger,
    describe_topic,
)
from kraftpy.core.metadata import ResourceType
from kraftpy.core.metadata.commands import AlterConfigs, ConfigChange, ConfigOp
from kraftpy.core.metadata.judgement import refuse_values
from kraftpy.core.metadata.limits import CONFIGS_MAX
from kraftpy.core.metadata.partition_changes import ELECTION_KEYS
from kraftpy.core.metadata.topic_commands import (
    NAME_LENGTH_MAX,
    topic_name_error,
)
from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kraftpy.server.cluster.proposals import propose_items
from kraftpy.server.handlers import loggers
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.reserved_topics import refuse_configs
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, counted

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

TIMEOUT_MS = 30_000
BROKER_LOGGER = 8
# What has a configuration is kept for good, whether there is such a group or not.
GROUP_NAME_LENGTH_MAX = 1024
# In the order of Kafka's own answer.
LISTED = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)

_Resource = tuple[int, str]
Described = DescribeConfigsResponse.DescribeConfigsResult


@handles(ApiKey.DESCRIBE_CONFIGS, long=True)
async def describe_configs(
    broker: Broker, ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Settings with their values and, if asked for, synonyms and documentation.

    A resource that is named more than once is described once, with all keys it was asked for.
    """
    resources: dict[_Resource, set[str] | None] = {}
    pace = Pace()
    for each in request.resources:
        await pace.keep()
        resource = each.resource_type, each.resource_name
        keys = set(each.configuration_keys or ()) or None  # without any it's asked for all
        asked = resources.setdefault(resource, keys)
        if asked is None or keys is None:
            resources[resource] = None
        elif asked is not keys:
            asked |= keys
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


@handles(ApiKey.ALTER_CONFIGS, long=True)
async def alter_configs(
    broker: Broker, ctx: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replaces what is set on topics and brokers."""

    def change(asked: AlterConfigsRequest.AlterConfigsResource) -> ConfigChange:
        configs = {config.name: config.value for config in asked.configs}
        return ConfigChange(asked.resource_type, asked.resource_name, configs=configs)

    answers = await _alter(broker, ctx, request.resources, change, request.validate_only)
    answer = AlterConfigsResponse.AlterConfigsResourceResponse
    return AlterConfigsResponse(
        responses=elements(list(answers), lambda each: answer(*answers[each], *each))
    )


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, long=True)
async def incremental_alter_configs(
    broker: Broker, ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Sets, deletes, appends to and subtracts from single settings."""

    def change(asked: IncrementalAlterConfigsRequest.AlterConfigsResource) -> ConfigChange:
        ops = [ConfigOp(each.name, each.config_operation, each.value) for each in asked.configs]
        return ConfigChange(asked.resource_type, asked.resource_name, ops=tuple(ops))

    answers = await _alter(broker, ctx, request.resources, change, request.validate_only)
    answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(
        responses=elements(list(answers), lambda each: answer(*answers[each], *each))
    )


_Answer = tuple[ErrorCode, str | None]
_Asked = TypeVar(
    "_Asked",
    AlterConfigsRequest.AlterConfigsResource,
    IncrementalAlterConfigsRequest.AlterConfigsResource,
)
_NAME_LENGTHS_MAX = {int(ResourceType.GROUP): GROUP_NAME_LENGTH_MAX}


async def _alter(
    broker: Broker,
    ctx: RequestContext,
    resources: Sequence[_Asked],
    change_of: Callable[[_Asked], ConfigChange],
    validate_only: bool,
) -> dict[_Resource, _Answer]:
    """The answer to each resource."""
    _, twice = await counted((each.resource_type, each.resource_name) for each in resources)
    pace = Pace()
    answers: dict[_Resource, _Answer] = {}
    items: dict[_Resource, ConfigChange] = {}
    weights: list[int] = []
    for asked in resources:
        await pace.keep()
        type_, name = resource = asked.resource_type, asked.resource_name
        answers[resource] = (ErrorCode.NONE, None)
        if resource in twice:
            message = "the resource is in the request twice"
            answers[resource] = (ErrorCode.INVALID_REQUEST, message)
        elif len(name) > _NAME_LENGTHS_MAX.get(type_, NAME_LENGTH_MAX):
            answers[resource] = (ErrorCode.INVALID_REQUEST, "the resource's name is too long")
        elif len(asked.configs) > CONFIGS_MAX:
            message = f"a resource has at most {CONFIGS_MAX} settings"
            answers[resource] = (ErrorCode.INVALID_REQUEST, message)
        elif len(keys := {each.name for each in asked.configs}) < len(asked.configs):
            answers[resource] = (ErrorCode.INVALID_REQUEST, "a key is in the request twice")
        elif type_ == BROKER_LOGGER:
            answers[resource] = _alter_loggers(broker, change_of(asked), validate_only)
        else:
            change = change_of(asked)
            refusal = refuse_configs(change) or refuse_values(change, broker.config)
            if refusal is not None:
                answers[resource] = refusal
            else:
                items[resource] = change
                weights.append(_weight(broker, resource, keys))
    results = await propose_items(
        controller_of(broker, ctx),
        lambda some, _: AlterConfigs(some, validate_only),
        items.values(),
        TIMEOUT_MS,
        weights,
    )
    for resource, result in zip(items, results, strict=True):
        await pace.keep()
        answers[resource] = (ErrorCode(result["error"]), result["message"])
    return answers


def _weight(broker: Broker, resource: _Resource, keys: set[str]) -> int:
    """How much a change of these keys is: of settings, and of partitions that it may bear upon."""
    type_, name = resource
    topic = broker.metadata.topics.get(name) if type_ == ResourceType.TOPIC else None
    weight = max(1, len(keys))
    if topic is not None:
        set_now = broker.metadata.config(ResourceType.TOPIC, name)
        if any(key in keys or key in set_now for key in ELECTION_KEYS):
            weight += len(topic.partitions)
    return weight


def _alter_loggers(broker: Broker, change: ConfigChange, validate_only: bool) -> _Answer:
    try:
        if change.name != str(broker.node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected node id. Expected {broker.node_id}, but received {change.name[:120]}",
            )
        if change.ops is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Unknown resource type 8: IncrementalAlterConfigs changes the levels of loggers",
            )
        loggers.alter(change.ops, validate_only=validate_only)
    except KafkaError as error:
        return error.code, error.message
    return ErrorCode.NONE, None


def _describe(broker: Broker, type_: int, name: str) -> list[ConfigEntry]:
    """The settings of a resource. Raises KafkaError."""
    if type_ == ResourceType.TOPIC:
        problem = topic_name_error(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in broker.metadata.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return describe_topic(broker.metadata.config(ResourceType.TOPIC, name), broker.config)
    if type_ == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(broker.metadata.config(type_, name), broker.config)
    if type_ == ResourceType.CLIENT_METRICS:
        if not name:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
            )
        return describe_client_metrics(broker.metadata.config(type_, name), broker.config)
    if type_ not in (ResourceType.BROKER, BROKER_LOGGER):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"resources of type {type_} have no configuration here"
        )
    return _describe_own(broker, type_, name)


def _describe_own(broker: Broker, type_: int, name: str) -> list[ConfigEntry]:
    """The settings of this broker or its loggers, or what is set for all brokers."""
    if not name and type_ == ResourceType.BROKER:
        return describe_broker_defaults(broker.metadata.config(ResourceType.BROKER, ""))
    if name != str(broker.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker.node_id}: it knows its own configuration (name it "
            f"{broker.node_id}) and the cluster-wide one (name it '')",
        )
    if type_ == BROKER_LOGGER:
        return [describe_logger(*each) for each in loggers.levels().items()]
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


@handles(ApiKey.LIST_CONFIG_RESOURCES, long=True, cluster=Operation.DESCRIBE_CONFIGS)
def list_config_resources(
    broker: Broker, ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """What there is that has or can have a configuration, of the types that are asked for."""
    types = set(request.resource_types) or set(LISTED)
    if ctx.api_version == 0:
        types = {ResourceType.CLIENT_METRICS}
    if not types <= set(LISTED):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources: list[_Resource] = [
        (type_, name) for type_ in LISTED if type_ in types for name in _names(broker, type_)
    ]
    return ListConfigResourcesResponse(config_resources=elements(resources, _listed))


def _names(broker: Broker, type_: int) -> list[str]:
    if type_ == ResourceType.TOPIC:
        return sorted(broker.metadata.topics)
    if type_ in (ResourceType.BROKER, BROKER_LOGGER):
        return [str(each.id) for each in broker.metadata.active_brokers()]
    return sorted(name for other, name in broker.metadata.configs if other == type_)


def _listed(resource: _Resource) -> ListConfigResourcesResponse.ConfigResource:
    type_, name = resource
    return ListConfigResourcesResponse.ConfigResource(name, type_)
