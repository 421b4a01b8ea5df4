"""Rights on topics: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords,
DescribeProducers, CreateTopics, DeleteTopics, CreatePartitions.

Metadata and DescribeTopicPartitions look at rights themselves: of all topics they leave out those
that their client may not know of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from kraftpy.core.security.acls import CLUSTER_NAME, Operation, Resource
from kraftpy.core.security.principals import BROKER
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
)
from kraftpy.server.handlers.authorization.fetches import AUTHORIZED
from kraftpy.server.handlers.authorization.guards import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    TOPIC_DENIED,
    TRANSACTION_DENIED,
    Check,
    Then,
    adding,
    guards,
    leaves_open,
)
from kraftpy.server.handlers.cooperative_fetch import cooperation_of
from kraftpy.server.handlers.fetch import fetch_as
from kraftpy.server.handlers.produce import FIRST_VERSION_WITH_TOPIC_IDS

READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
DELETE, ALTER, DESCRIBE = Operation.DELETE, Operation.ALTER, Operation.DESCRIBE

NO_ID = bytes(16)
_WRITES = 1 << WRITE
_FIRST_DELETION_OF_IDS = 6

leaves_open(
    ApiKey.METADATA,
    "Topic DESCRIBE; of all topics those without it are left out. To create one: Cluster CREATE "
    "or Topic CREATE",
)
leaves_open(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    "Topic DESCRIBE; of all topics those without it are left out",
)


@guards(
    ApiKey.PRODUCE, rights="Topic WRITE; with a transactional id TransactionalId WRITE, else none"
)
def produce(check: Check, request: ProduceRequest) -> Generator[None, None, Any]:
    """Each topic by itself; without the transactional id nothing."""
    transactional_id = request.transactional_id
    if transactional_id is not None and not check.transaction(WRITE, transactional_id):
        return _produced(request, request.topic_data, TRANSACTION_DENIED)
    by_id = check.ctx.api_version >= FIRST_VERSION_WITH_TOPIC_IDS

    denied = []
    mask, topics = check.view.mask, Resource.TOPIC
    for topic in request.topic_data:
        name = check.name_of(topic.topic_id) if by_id else topic.name
        if name is not None and not mask(topics, name) & _WRITES:
            check.topic(WRITE, name)  # which tells of it
            denied.append(topic)
        yield
    if not denied:
        return None
    refused = {id(topic) for topic in denied}
    request.topic_data = [topic for topic in request.topic_data if id(topic) not in refused]
    response = _produced(request, denied, TOPIC_DENIED)
    if not request.topic_data:
        return response

    def work(answer: ProduceResponse | None) -> ProduceResponse:
        if answer is None or response is None:
            raise KafkaError(TOPIC_DENIED, "with acks=0")
        answer.responses = answer.responses + response.responses
        return answer

    return Then(work)


def _produced(
    request: ProduceRequest, topics: list[ProduceRequest.TopicProduceData], error: ErrorCode
) -> ProduceResponse:
    """Raises KafkaError for who waits for no answer: the connection is closed, as in Kafka."""
    if request.acks == 0:
        raise KafkaError(error, "with acks=0")
    kinds = ProduceResponse
    return kinds(
        responses=[
            kinds.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [
                    kinds.PartitionProduceResponse(data.index, error, error_message=error.message)
                    for data in topic.partition_data
                ],
            )
            for topic in topics
        ]
    )


@guards(
    ApiKey.FETCH,
    rights="Topic READ, cooperatively Group READ, too; as a replica Cluster CLUSTER_ACTION",
)
def fetch_guard(check: Check, request: FetchRequest) -> Generator[None, None, Any]:
    """Replicas; what a session has of a consumer's topics only the handler knows."""
    state = request.replica_state
    replica_id = request.replica_id if state is None else state.replica_id
    if replica_id < 0:
        sessions = check.broker.fetch_sessions
        if request.session_id and sessions.is_of_another(request.session_id, check.view.principal):
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        try:
            cooperation = cooperation_of(check.broker, request)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        if cooperation is not None and not check.group(Operation.READ, cooperation.group):
            return FetchResponse(error_code=GROUP_DENIED)
        return fetch_as(check.broker, check.ctx, request, AUTHORIZED)
    principal = check.view.principal
    is_another = principal.type == BROKER and principal.name != str(replica_id)
    if is_another or not check.cluster(Operation.CLUSTER_ACTION):
        return FetchResponse(error_code=CLUSTER_DENIED)
    return None
    yield


def _by_partition(
    check: Check,
    request: Any,
    operation: Operation,
    name_of: Callable[[Any], str],
    answer: Callable[[Any], Any],
) -> Generator[None, None, Any]:
    """Of requests with topics that have partitions, and answers of the same form."""
    allowed, denied = yield from check.split(operation, Resource.TOPIC, request.topics, name_of)
    if not denied:
        return None
    request.topics = allowed
    return adding("topics", elements(denied, answer))


@guards(ApiKey.LIST_OFFSETS, rights="Topic DESCRIBE")
def list_offsets(check: Check, request: ListOffsetsRequest) -> Generator[None, None, Any]:
    """Each topic by itself."""
    kinds = ListOffsetsResponse

    def deny(topic: ListOffsetsRequest.ListOffsetsTopic) -> Any:
        return kinds.ListOffsetsTopicResponse(
            topic.name,
            elements(
                topic.partitions,
                lambda each: kinds.ListOffsetsPartitionResponse(each.partition_index, TOPIC_DENIED),
            ),
        )

    return (yield from _by_partition(check, request, DESCRIBE, lambda each: each.name, deny))


@guards(ApiKey.OFFSET_FOR_LEADER_EPOCH, rights="Topic DESCRIBE, or Cluster CLUSTER_ACTION")
def offset_for_leader_epoch(
    check: Check, request: OffsetForLeaderEpochRequest
) -> Generator[None, None, Any]:
    """Each topic by itself, or all for a broker."""
    if check.view.may_cluster(Operation.CLUSTER_ACTION):
        return None
    kinds = OffsetForLeaderEpochResponse

    def deny(topic: OffsetForLeaderEpochRequest.OffsetForLeaderTopic) -> Any:
        return kinds.OffsetForLeaderTopicResult(
            topic.topic,
            elements(
                topic.partitions,
                lambda each: kinds.EpochEndOffset(
                    error_code=TOPIC_DENIED,
                    partition=each.partition,
                    leader_epoch=-1,
                    end_offset=-1,
                ),
            ),
        )

    return (yield from _by_partition(check, request, DESCRIBE, lambda each: each.topic, deny))


@guards(ApiKey.DELETE_RECORDS, rights="Topic DELETE")
def delete_records(check: Check, request: DeleteRecordsRequest) -> Generator[None, None, Any]:
    """Each topic by itself."""
    kinds = DeleteRecordsResponse

    def deny(topic: DeleteRecordsRequest.DeleteRecordsTopic) -> Any:
        return kinds.DeleteRecordsTopicResult(
            topic.name,
            elements(
                topic.partitions,
                lambda each: kinds.DeleteRecordsPartitionResult(
                    each.partition_index, -1, TOPIC_DENIED
                ),
            ),
        )

    return (yield from _by_partition(check, request, DELETE, lambda each: each.name, deny))


@guards(ApiKey.DESCRIBE_PRODUCERS, rights="Topic READ")
def describe_producers(
    check: Check, request: DescribeProducersRequest
) -> Generator[None, None, Any]:
    """Each topic by itself."""
    kinds = DescribeProducersResponse

    def deny(topic: DescribeProducersRequest.TopicRequest) -> Any:
        return kinds.TopicResponse(
            topic.name,
            elements(
                topic.partition_indexes,
                lambda index: kinds.PartitionResponse(index, TOPIC_DENIED, TOPIC_DENIED.message),
            ),
        )

    return (yield from _by_partition(check, request, READ, lambda each: each.name, deny))


@guards(
    ApiKey.CREATE_TOPICS,
    rights="Cluster CREATE or Topic CREATE; Topic DESCRIBE_CONFIGS to be told its configuration",
)
def create_topics(check: Check, request: CreateTopicsRequest) -> Generator[None, None, Any]:
    """Each topic by itself, and what is told of the new one."""
    denied: list[Any] = []
    if check.view.may_cluster(CREATE):
        check.need(CREATE, Resource.CLUSTER, CLUSTER_NAME)
    else:
        request.topics, denied = yield from check.split(
            CREATE, Resource.TOPIC, request.topics, lambda each: each.name, needed=True
        )
    kinds = CreateTopicsResponse
    once = {topic.name: None for topic in denied}
    refused = [
        kinds.CreatableTopicResult(
            name, error_code=TOPIC_DENIED, error_message=TOPIC_DENIED.message
        )
        for name in once
    ]

    def work(answer: CreateTopicsResponse) -> CreateTopicsResponse:
        for topic in answer.topics:
            if topic.error_code or check.view.may(
                Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name
            ):
                continue
            topic.topic_config_error_code = TOPIC_DENIED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = None
        answer.topics += refused
        return answer

    return Then(work)


@guards(
    ApiKey.DELETE_TOPICS,
    rights="Topic DESCRIBE, and Cluster DELETE or Topic DELETE",
)
def delete_topics(check: Check, request: DeleteTopicsRequest) -> Generator[None, None, Any]:
    """Each topic by itself; one that may not be known of is without its name if an id names it."""
    kinds = DeleteTopicsResponse
    refused: dict[tuple[str | None, bytes], DeleteTopicsResponse.DeletableTopicResult] = {}
    all_of_them = check.view.may_cluster(DELETE)
    if all_of_them:
        check.need(DELETE, Resource.CLUSTER, CLUSTER_NAME)

    def refuses(name: str | None, topic_id: bytes) -> bool:
        known = name if name is not None else check.name_of(topic_id)
        if known is None:
            return False
        shown = check.need(DESCRIBE, Resource.TOPIC, known)
        if shown and (all_of_them or check.need(DELETE, Resource.TOPIC, known)):
            return False
        told = name if name is not None or not shown else known
        refused[name, topic_id] = kinds.DeletableTopicResult(
            told, topic_id, TOPIC_DENIED, TOPIC_DENIED.message
        )
        return True

    if check.ctx.api_version < _FIRST_DELETION_OF_IDS:
        names = []
        for name in request.topic_names:
            yield
            if not refuses(name, NO_ID):
                names.append(name)
        request.topic_names = names
    else:
        topics = []
        for topic in request.topics:
            yield
            if not refuses(topic.name, topic.topic_id):
                topics.append(topic)
        request.topics = topics
    return adding("responses", list(refused.values())) if refused else None


@guards(ApiKey.CREATE_PARTITIONS, rights="Topic ALTER")
def create_partitions(check: Check, request: CreatePartitionsRequest) -> Generator[None, None, Any]:
    """Each topic by itself."""
    request.topics, denied = yield from check.split(
        ALTER, Resource.TOPIC, request.topics, lambda each: each.name, needed=True
    )
    if not denied:
        return None
    kinds = CreatePartitionsResponse
    return adding(
        "results",
        [
            kinds.CreatePartitionsTopicResult(name, TOPIC_DENIED, TOPIC_DENIED.message)
            for name in {topic.name: None for topic in denied}
        ],
    )
