"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140, KIP-290).

What is changed is decided by the controller's state machine (`kraftpy.core.metadata.acl_commands`),
and this broker has it when the answer comes. Each ACL, and each filter, is answered by itself.
Without an authorizer all of them are answered with SECURITY_DISABLED, as Kafka does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata.commands import AclFilterItem, AclItem, CreateAcls, DeleteAcls
from kraftpy.core.security.acls import Acl, AclFilter, Operation, checked_filter, new_acl
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kraftpy.server.cluster.proposals import propose_items
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, in_parts

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

NO_AUTHORIZER = "this broker has no authorizer: everybody may do everything"
TIMEOUT_MS = 30_000
# A filter that finds anything looks at all ACLs.
_FILTER_WEIGHT = 100

audit = logging.getLogger("kafka.authorizer.logger")

Refusal = tuple[ErrorCode, str | None]


@handles(ApiKey.DESCRIBE_ACLS, long=True, cluster=Operation.DESCRIBE)
async def describe_acls(
    broker: Broker, ctx: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """The ACLs that the filter finds, by resource."""
    if broker.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
    try:
        wanted = checked_filter(
            AclFilter(
                request.resource_type_filter,
                request.resource_name_filter,
                request.pattern_type_filter,
                request.principal_filter,
                request.host_filter,
                request.operation,
                request.permission_type,
            )
        )
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    found: dict[tuple[int, str, int], list[Acl]] = {}
    async for some in in_parts(list(broker.metadata.acls)):
        for acl in some:
            if wanted.finds(acl):
                resource = acl.resource_type, acl.name, acl.pattern
                found.setdefault(resource, []).append(acl)
    return DescribeAclsResponse(resources=elements(sorted(found.items()), _described))


def _described(
    item: tuple[tuple[int, str, int], list[Acl]],
) -> DescribeAclsResponse.DescribeAclsResource:
    (resource_type, name, pattern), acls = item
    kinds = DescribeAclsResponse
    return kinds.DescribeAclsResource(
        resource_type,
        name,
        pattern,
        elements(
            sorted(acls),
            lambda acl: kinds.AclDescription(
                acl.principal, acl.host, acl.operation, acl.permission
            ),
        ),
    )


@handles(ApiKey.CREATE_ACLS, long=True, cluster=Operation.ALTER)
async def create_acls(
    broker: Broker, ctx: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse:
    """Adds ACLs; one that is there already is answered as one that is new."""
    result = CreateAclsResponse.AclCreationResult
    if broker.authorizer is None:
        refused = result(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return CreateAclsResponse(results=elements(request.creations, lambda _: refused))
    answers: list[Refusal | None] = []
    items: list[AclItem] = []
    pace = Pace()
    for each in request.creations:
        await pace.keep()
        try:
            acl = new_acl(
                Acl(
                    each.resource_type,
                    each.resource_name,
                    each.resource_pattern_type,
                    each.principal,
                    each.host,
                    each.operation,
                    each.permission_type,
                )
            )
        except KafkaError as error:
            answers.append((error.code, error.message))
        else:
            answers.append(None)
            items.append(AclItem(*acl))
    results = iter(
        await propose_items(
            controller_of(broker, ctx), lambda some, _: CreateAcls(some), items, TIMEOUT_MS
        )
    )
    told: list[Refusal] = []
    created = 0
    for answer in answers:
        await pace.keep()
        if answer is not None:
            told.append(answer)
            continue
        decided = next(results)
        told.append((ErrorCode(decided["error"]), decided["message"]))
        created += not decided["error"]
    _tell(ctx, "created", created)
    return CreateAclsResponse(results=elements(told, lambda each: result(*each)))


@handles(ApiKey.DELETE_ACLS, long=True, cluster=Operation.ALTER)
async def delete_acls(
    broker: Broker, ctx: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    """Deletes what each filter finds, and says what that was."""
    kinds = DeleteAclsResponse
    if broker.authorizer is None:
        refused = kinds.DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return kinds(filter_results=elements(request.filters, lambda _: refused))
    answers: list[Refusal | None] = []
    items: list[AclFilterItem] = []
    weights: list[int] = []
    pace = Pace()
    for each in request.filters:
        await pace.keep()
        try:
            wanted = checked_filter(
                AclFilter(
                    each.resource_type_filter,
                    each.resource_name_filter,
                    each.pattern_type_filter,
                    each.principal_filter,
                    each.host_filter,
                    each.operation,
                    each.permission_type,
                )
            )
        except KafkaError as error:
            answers.append((error.code, error.message))
        else:
            answers.append(None)
            items.append(AclFilterItem(*wanted))
            weights.append(1 if wanted.exact() is not None else _weight(broker))
    results = iter(
        await propose_items(
            controller_of(broker, ctx),
            lambda some, _: DeleteAcls(some),
            items,
            TIMEOUT_MS,
            weights,
        )
    )
    told: list[tuple[ErrorCode, str | None, list[Any]]] = []
    deleted = 0
    for answer in answers:
        await pace.keep()
        if answer is not None:
            told.append((*answer, []))
            continue
        decided = next(results)
        acls = decided.get("acls", [])
        told.append((ErrorCode(decided["error"]), decided["message"], acls))
        deleted += len(acls)
    _tell(ctx, "deleted", deleted)

    def result(item: tuple[ErrorCode, str | None, list[Any]]) -> Any:
        error, message, acls = item
        matching = elements(
            acls, lambda acl: kinds.DeleteAclsMatchingAcl(ErrorCode.NONE, None, *acl)
        )
        return kinds.DeleteAclsFilterResult(error, message, matching)

    return kinds(filter_results=elements(told, result))


def _weight(broker: Broker) -> int:
    """How much work a filter is that isn't exact: it looks at all ACLs."""
    return max(1, len(broker.metadata.acls) // _FILTER_WEIGHT)


def _tell(ctx: RequestContext, what: str, count: int) -> None:
    if count:
        principal, host = ctx.session.principal, ctx.session.host
        audit.info("%s from %s has %s %d ACLs", principal, host, what, count)
