"""CreateTopics, DeleteTopics, CreatePartitions.

The controller's state machine decides (`kraftpy.core.metadata.topic_commands`); here a request
becomes commands, and the answers become a response. Rules:

* Every item is answered by itself. An item that is named twice in a request is refused with
  INVALID_REQUEST and not done at all, as in Kafka.
* The answer comes when the change is committed and this broker has it too, or with
  REQUEST_TIMED_OUT after the request's timeout: then it may still happen.
* -1 partitions or replicas ask for the defaults of the broker that was asked (KIP-464).
* The brokers' own topics are theirs (`server.handlers.reserved_topics`).
* Versions: 5 adds the new topic's size and configuration to the answer (KIP-525), 6 of DeleteTopics
  and 7 of CreateTopics the topic ids (KIP-516).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kraftpy.core.config import PARTITIONS_MAX, ConfigError, judge_topic_configs
from kraftpy.core.config.describe import describe_topic
from kraftpy.core.metadata.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    GrownTopic,
    NewTopic,
    OldTopic,
)
from kraftpy.core.metadata.limits import CONFIGS_MAX
from kraftpy.core.metadata.topic_commands import (
    NAME_LENGTH_MAX,
    partition_count,
    topic_name_error,
)
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import FORCE_INTERNAL_TAG, is_set
from kraftpy.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kraftpy.server.cluster.proposals import new_topic_id, propose_growth, propose_items
from kraftpy.server.handlers.mutation_quotas import Mutations
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.reserved_topics import refuse_creation, refuse_deletion, refuse_growth
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, counted

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

NO_ID = bytes(16)
DEFAULT = -1
FIRST_VERSION_WITH_IDS = 6
FIRST_VERSION_WITH_DELETION_DISABLED = 3
# From these versions on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599).
CREATION_STRICT_FROM, DELETION_STRICT_FROM, GROWTH_STRICT_FROM = 6, 5, 3

Refusal = tuple[ErrorCode, str | None]

CreatedTopic = CreateTopicsResponse.CreatableTopicResult
DeletedTopic = DeleteTopicsResponse.DeletableTopicResult
GrowthAnswer = CreatePartitionsResponse.CreatePartitionsTopicResult
_Assignment = (
    CreateTopicsRequest.CreatableReplicaAssignment
    | CreatePartitionsRequest.CreatePartitionsAssignment
)

# To delete a topic is as much work as to delete so many partitions more: each partition of the
# offsets topic looks for what was committed for it.
_DELETION_WEIGHT = 20


@handles(ApiKey.CREATE_TOPICS)
async def create_topics(
    broker: Broker, ctx: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Creates topics, or with `validate_only` says whether that would work."""
    _, twice = await counted(topic.name for topic in request.topics)
    answers: dict[str, CreatedTopic] = {}
    wanted: dict[str, NewTopic] = {}
    sizes: list[int] = []
    pace = Pace()
    for topic in request.topics:
        await pace.keep()
        answers[topic.name] = CreatedTopic(topic.name)
        refusal = _refuse_new_topic(topic, topic.name in twice)
        if refusal is not None:
            _set_error(answers[topic.name], refusal)
        else:
            wanted[topic.name] = _creation(broker, topic)
            sizes.append(partition_count(wanted[topic.name]))
    seed = random.getrandbits(31)
    mutations = Mutations(broker, ctx, CREATION_STRICT_FROM)
    results = await propose_growth(
        mutations.controller,
        lambda some, before: CreateTopics(some, seed + before, request.validate_only),
        wanted.values(),
        sizes,
        request.timeout_ms,
        alone=mutations.alone,
    )
    for (name, item), result in zip(wanted.items(), results, strict=True):
        await pace.keep()
        answer = answers[name]
        _set_error(answer, (ErrorCode(result["error"]), result["message"]))
        if answer.error_code == ErrorCode.NONE:
            answer.topic_id = NO_ID if request.validate_only else item.topic_id
            answer.num_partitions = result["partitions"]
            answer.replication_factor = result["replication_factor"]
            answer.configs = _configs(broker, item.configs)
    response = CreateTopicsResponse(topics=list(answers.values()))
    mutations.answered(response)
    return response


@handles(ApiKey.DELETE_TOPICS)
async def delete_topics(
    broker: Broker, ctx: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Deletes topics by name, or from version 6 on by name or id."""
    force_internal = is_set(request, FORCE_INTERNAL_TAG)
    wanted: Iterable[tuple[str | None, bytes]]
    if ctx.api_version < FIRST_VERSION_WITH_IDS:
        wanted = ((name, NO_ID) for name in request.topic_names)
    else:
        wanted = ((topic.name, topic.topic_id) for topic in request.topics)
    once, twice = await counted(wanted)
    answers: dict[tuple[str | None, bytes], DeletedTopic] = {}
    items: dict[tuple[str | None, bytes], OldTopic] = {}
    sizes: list[int] = []
    pace = Pace()
    for key in once:
        await pace.keep()
        answer = answers[key] = DeletedTopic(*key)
        refusal = _refuse_deletion(broker, ctx, key, key in twice)
        if refusal is None and not force_internal:
            refusal = refuse_deletion(_name_of(broker, key))
        if refusal is not None:
            _set_error(answer, refusal)
        else:
            name, topic_id = key
            items[key] = OldTopic(topic_id=topic_id) if name is None else OldTopic(name)
            sizes.append(_topic_size(broker, key))
    mutations = Mutations(broker, ctx, DELETION_STRICT_FROM)
    results = await propose_items(
        mutations.controller,
        lambda some, _: DeleteTopics(some),
        items.values(),
        request.timeout_ms,
        sizes,
        alone=mutations.alone,
    )
    for key, result in zip(items, results, strict=True):
        await pace.keep()
        answer = answers[key]
        _set_error(answer, (ErrorCode(result["error"]), result["message"]))
        if answer.error_code == ErrorCode.NONE:
            answer.name, answer.topic_id = result["name"], result["topic_id"]
    response = DeleteTopicsResponse(responses=list(answers.values()))
    mutations.answered(response)
    return response


@handles(ApiKey.CREATE_PARTITIONS)
async def create_partitions(
    broker: Broker, ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Lets topics grow, or with `validate_only` says whether they could."""
    _, twice = await counted(topic.name for topic in request.topics)
    answers: dict[str, GrowthAnswer] = {}
    items: dict[str, GrownTopic] = {}
    growths: list[int] = []
    pace = Pace()
    for topic in request.topics:
        await pace.keep()
        answers[topic.name] = GrowthAnswer(topic.name)
        refusal = (
            _refuse_item(topic.name, topic.name in twice)
            or refuse_growth(topic.name)
            or _refuse_assignments(topic.assignments)
        )
        if refusal is not None:
            _set_error(answers[topic.name], refusal)
        else:
            assignments = None
            if topic.assignments is not None:
                assignments = tuple([tuple(each.broker_ids) for each in topic.assignments])
            items[topic.name] = GrownTopic(topic.name, topic.count, assignments)
            growths.append(_growth(broker, items[topic.name]))
    seed = random.getrandbits(31)
    mutations = Mutations(broker, ctx, GROWTH_STRICT_FROM)
    results = await propose_growth(
        mutations.controller,
        lambda some, before: CreatePartitions(some, seed + before, request.validate_only),
        items.values(),
        growths,
        request.timeout_ms,
        alone=mutations.alone,
    )
    for name, result in zip(items, results, strict=True):
        await pace.keep()
        _set_error(answers[name], (ErrorCode(result["error"]), result["message"]))
    response = CreatePartitionsResponse(results=list(answers.values()))
    mutations.answered(response)
    return response


def _growth(broker: Broker, item: GrownTopic) -> int:
    """How many partitions an item of create_partitions adds, as far as is known here."""
    topic = broker.metadata.topics.get(item.name)
    return 0 if topic is None else min(item.count, PARTITIONS_MAX) - len(topic.partitions)


def _set_error(answer: CreatedTopic | DeletedTopic | GrowthAnswer, refusal: Refusal) -> None:
    answer.error_code, answer.error_message = refusal


def _refuse_item(name: str, twice: bool) -> Refusal | None:
    """What is wrong with an item before one looks at the topic."""
    if twice:
        return ErrorCode.INVALID_REQUEST, "the topic is in the request twice"
    if len(name) > NAME_LENGTH_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, topic_name_error(name)
    return None


def _refuse_new_topic(topic: CreateTopicsRequest.CreatableTopic, twice: bool) -> Refusal | None:
    """What is wrong with the shape of a new topic; the rest is for the state machine."""
    refusal = _refuse_item(topic.name, twice) or refuse_creation(topic.name)
    if refusal is not None:
        return refusal
    if len(topic.configs) > CONFIGS_MAX:
        return ErrorCode.INVALID_CONFIG, f"a topic has at most {CONFIGS_MAX} settings"
    try:
        judge_topic_configs({config.name: config.value for config in topic.configs})
    except ConfigError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    if not topic.assignments:
        return None
    if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
        return (
            ErrorCode.INVALID_REQUEST,
            "give either an assignment or partitions and replication factor, not both",
        )
    refusal = _refuse_assignments(topic.assignments)
    if refusal is not None:
        return refusal
    indexes = sorted(each.partition_index for each in topic.assignments)
    if indexes != list(range(len(indexes))):
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "an assignment must have each partition from 0 on once",
        )
    return None


def _refuse_assignments(assignments: Sequence[_Assignment] | None) -> Refusal | None:
    if assignments is None:
        return None
    if len(assignments) > PARTITIONS_MAX:
        return (
            ErrorCode.INVALID_PARTITIONS,
            f"a topic has 1 to {PARTITIONS_MAX} partitions, not {len(assignments)}",
        )
    if any(broker_id < 0 for each in assignments for broker_id in each.broker_ids):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a broker id is 0 or more"
    return None


def _refuse_deletion(
    broker: Broker, ctx: RequestContext, key: tuple[str | None, bytes], twice: bool
) -> Refusal | None:
    name, topic_id = key
    if not broker.config.delete_topic_enable:
        if ctx.api_version < FIRST_VERSION_WITH_DELETION_DISABLED:
            return ErrorCode.INVALID_REQUEST, "delete.topic.enable is false"
        return ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false"
    if name is None and topic_id == NO_ID:
        return ErrorCode.INVALID_REQUEST, "a topic needs a name or an id"
    if name is not None and topic_id != NO_ID:
        return ErrorCode.INVALID_REQUEST, "give either a topic's name or its id, not both"
    if name is not None and len(name) > NAME_LENGTH_MAX:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic_name_error(name)
    if twice:
        return ErrorCode.INVALID_REQUEST, "the topic is in the request twice"
    return None


def _topic_size(broker: Broker, key: tuple[str | None, bytes]) -> int:
    """How much the topic's deletion is, in partitions, as far as is known here; 1 at least."""
    topic = broker.metadata.topics.get(_name_of(broker, key))
    return 1 if topic is None else _DELETION_WEIGHT + len(topic.partitions)


def _name_of(broker: Broker, key: tuple[str | None, bytes]) -> str:
    """The name of the topic to delete; "" for an id that isn't known here."""
    name, topic_id = key
    if name is not None:
        return name
    topic = broker.metadata.topics_by_id.get(topic_id)
    return "" if topic is None else topic.name


def _creation(broker: Broker, topic: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    """The item of create_topics for a request's topic, defaults filled in."""
    partitions, replication_factor = topic.num_partitions, topic.replication_factor
    ordered = sorted(topic.assignments, key=lambda each: each.partition_index)
    return NewTopic(
        topic.name,
        new_topic_id(),
        partitions=broker.config.num_partitions if partitions == DEFAULT else partitions,
        replication_factor=(
            broker.config.default_replication_factor
            if replication_factor == DEFAULT
            else replication_factor
        ),
        assignments=tuple([tuple(each.broker_ids) for each in ordered]) or None,
        configs={config.name: config.value for config in topic.configs},
    )


def _configs(
    broker: Broker, overrides: Mapping[str, str | None]
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    return [
        CreateTopicsResponse.CreatableTopicConfigs(
            entry.name, entry.value, entry.read_only, entry.source, entry.sensitive
        )
        for entry in describe_topic(
            {key: value for key, value in overrides.items() if value is not None}, broker.config
        )
    ]
