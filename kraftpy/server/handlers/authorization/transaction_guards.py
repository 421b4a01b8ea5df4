"""Rights on transactional ids: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
TxnOffsetCommit, DescribeTransactions, WriteTxnMarkers.

ListTransactions leaves out by itself whose ids its client may not know.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kraftpy.core.groups.transactions import transactional_error_response
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kraftpy.server.handlers.authorization.guards import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    TOPIC_DENIED,
    TRANSACTION_DENIED,
    Check,
    adding,
    guards,
    leaves_open,
)

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE

_FIRST_BATCHED_ADD = 4

leaves_open(ApiKey.LIST_TRANSACTIONS, "TransactionalId DESCRIBE: those without it are left out")


@guards(
    ApiKey.INIT_PRODUCER_ID,
    rights="TransactionalId WRITE; without such an id Cluster IDEMPOTENT_WRITE, or WRITE of any "
    "Topic",
)
def init_producer_id(check: Check, request: InitProducerIdRequest) -> Generator[None, None, Any]:
    """The transactional id; without one it's enough to be able to write anything (KIP-679)."""
    error = TRANSACTION_DENIED
    if request.transactional_id is not None:
        if check.transaction(WRITE, request.transactional_id):
            return None
    else:
        if check.view.may_write_any_topic() or check.cluster(Operation.IDEMPOTENT_WRITE):
            return None
        error = CLUSTER_DENIED
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
    yield


@guards(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    rights="TransactionalId WRITE, Topic WRITE; from version 4 on Cluster CLUSTER_ACTION",
)
def add_partitions_to_txn(
    check: Check, request: AddPartitionsToTxnRequest
) -> Generator[None, None, Any]:
    """All partitions or none."""
    kinds = AddPartitionsToTxnResponse
    if check.ctx.api_version >= _FIRST_BATCHED_ADD:
        if check.cluster(Operation.CLUSTER_ACTION):
            return None
        return kinds(error_code=CLUSTER_DENIED)
    topics = request.v3_and_below_topics
    errors: dict[str, ErrorCode] = {}
    if not check.transaction(WRITE, request.v3_and_below_transactional_id):
        errors = {topic.name: TRANSACTION_DENIED for topic in topics}
    else:
        _, denied = yield from check.split(WRITE, Resource.TOPIC, topics, lambda each: each.name)
        if not denied:
            return None
        errors = {topic.name: TOPIC_DENIED for topic in denied}
    return kinds(
        results_by_topic_v3_and_below=elements(
            topics,
            lambda topic: kinds.AddPartitionsToTxnTopicResult(
                topic.name,
                elements(
                    topic.partitions,
                    lambda index: kinds.AddPartitionsToTxnPartitionResult(
                        index, errors.get(topic.name, ErrorCode.OPERATION_NOT_ATTEMPTED)
                    ),
                ),
            ),
        )
    )


@guards(ApiKey.ADD_OFFSETS_TO_TXN, rights="TransactionalId WRITE, Group READ")
def add_offsets_to_txn(check: Check, request: AddOffsetsToTxnRequest) -> Generator[None, None, Any]:
    """The transactional id, then the group."""
    if not check.transaction(WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=TRANSACTION_DENIED)
    if not check.group(READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=GROUP_DENIED)
    return None
    yield


@guards(ApiKey.END_TXN, rights="TransactionalId WRITE")
def end_txn(check: Check, request: EndTxnRequest) -> Generator[None, None, Any]:
    """The transactional id."""
    if check.transaction(WRITE, request.transactional_id):
        return None
    return EndTxnResponse(error_code=TRANSACTION_DENIED, producer_id=-1, producer_epoch=-1)
    yield


@guards(ApiKey.TXN_OFFSET_COMMIT, rights="TransactionalId WRITE, Group READ, Topic READ")
def txn_offset_commit(check: Check, request: TxnOffsetCommitRequest) -> Generator[None, None, Any]:
    """The transactional id, the group, then each topic by itself."""
    if not check.transaction(WRITE, request.transactional_id):
        return transactional_error_response(request, TRANSACTION_DENIED)
    if not check.group(READ, request.group_id):
        return transactional_error_response(request, GROUP_DENIED)
    allowed, denied = yield from check.split(
        READ, Resource.TOPIC, request.topics, lambda each: each.name
    )
    if not denied:
        return None
    request.topics = allowed
    kinds = TxnOffsetCommitResponse
    refused = elements(
        denied,
        lambda topic: kinds.TxnOffsetCommitResponseTopic(
            topic.name,
            elements(
                topic.partitions,
                lambda each: kinds.TxnOffsetCommitResponsePartition(
                    each.partition_index, TOPIC_DENIED
                ),
            ),
        ),
    )
    return adding("topics", refused) if allowed else kinds(topics=refused)


@guards(
    ApiKey.DESCRIBE_TRANSACTIONS,
    rights="TransactionalId DESCRIBE; topics without Topic DESCRIBE are left out",
)
def describe_transactions(
    check: Check, request: DescribeTransactionsRequest
) -> Generator[None, None, Any]:
    """Each id by itself."""
    request.transactional_ids, denied = yield from check.split(
        DESCRIBE, Resource.TRANSACTIONAL_ID, request.transactional_ids, lambda each: each
    )
    if not denied:
        return None
    kind = DescribeTransactionsResponse.TransactionState
    return adding(
        "transaction_states",
        elements(
            list(dict.fromkeys(denied)),
            lambda each: kind(error_code=TRANSACTION_DENIED, transactional_id=each),
        ),
    )


@guards(ApiKey.WRITE_TXN_MARKERS, rights="Cluster ALTER or CLUSTER_ACTION")
def write_txn_markers(check: Check, request: WriteTxnMarkersRequest) -> Generator[None, None, Any]:
    """All of them or none."""
    if check.cluster(Operation.CLUSTER_ACTION, Operation.ALTER):
        return None
    kinds = WriteTxnMarkersResponse

    def of_topic(topic: Any) -> Any:
        return kinds.WritableTxnMarkerTopicResult(
            topic.name,
            elements(
                topic.partition_indexes,
                lambda index: kinds.WritableTxnMarkerPartitionResult(index, CLUSTER_DENIED),
            ),
        )

    return kinds(
        markers=elements(
            request.markers,
            lambda marker: kinds.WritableTxnMarkerResult(
                marker.producer_id, elements(marker.topics, of_topic)
            ),
        )
    )
    yield
