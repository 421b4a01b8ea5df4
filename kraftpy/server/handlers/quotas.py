"""DescribeClientQuotas and AlterClientQuotas (KIP-546).

What is changed is decided by the controller's state machine (`core.metadata.quota_commands`), and
this broker has it when the answer comes. Rules:

* Filters find entities as Kafka's `ClientQuotasImage` does: each component asks for an entity with
  this type, by this name, by default, or by either; a strict one for an entity with no other type.
* Each entity is answered by itself, once; one that comes twice is refused, and nothing of it done.
* An address is looked up as it's kept, however it was written; names aren't resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from kraftpy.core.metadata.commands import (
    AlterClientQuotas,
    EntityPart,
    EntityQuotas,
    QuotaValue,
)
from kraftpy.core.metadata.quota_commands import checked_alteration
from kraftpy.core.quotas import CLIENT_ID, IP, USER, Entity, Values, address_of
from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kraftpy.server.cluster.membership import METADATA_TIMEOUT_MS
from kraftpy.server.cluster.proposals import propose_items
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, in_parts

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

EXACT, DEFAULT, ANY = range(3)

_WEIGHT = 3
"""What an entity weighs in a command, beside a partition."""

# One more than any entity has parts or an alteration keys, so that too many are still too many.
_PARTS_MAX = 3
_OPS_MAX = 6

_Described = DescribeClientQuotasResponse.EntryData
_Asked = AlterClientQuotasRequest.EntryData
_Altered = AlterClientQuotasResponse.EntryData


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, long=True, cluster=Operation.DESCRIBE_CONFIGS)
async def describe_client_quotas(
    broker: Broker, ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """The entities that the filter finds, with all their quotas."""
    try:
        wanted = _Filter(request.components, strict=request.strict)
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    found: list[tuple[Entity, Values]] = []
    async for some in in_parts(list(broker.metadata.quotas.items())):
        found += [item for item in some if wanted.finds(item[0])]
    return DescribeClientQuotasResponse(entries=elements(found, _described))


def _described(item: tuple[Entity, Values]) -> _Described:
    entity, values = item
    return _Described(
        [DescribeClientQuotasResponse.EntityData(kind, name) for kind, name in entity],
        [DescribeClientQuotasResponse.ValueData(key, value) for key, value in values.items()],
    )


class _Filter:
    """Which entities are asked for."""

    def __init__(
        self, components: Sequence[DescribeClientQuotasRequest.ComponentData], *, strict: bool
    ) -> None:
        """Raises KafkaError as Kafka's `ClientQuotasImage.describe` refuses filters."""
        self._names: dict[str, str | None] = {}
        self._types: set[str] = set()
        self._strict = strict
        for component in components:
            kind = component.entity_type
            problem = None
            if not kind:
                problem = "an entity type is empty"
            elif kind in self._types:
                problem = f"entity type {kind} is in the filter twice"
            elif component.match_type not in (EXACT, DEFAULT, ANY):
                problem = f"there is no match type {component.match_type}"
            elif component.match_type == EXACT and component.match is None:
                problem = (
                    f"{kind[:120]} is to match exactly (type 0), but the filter doesn't say what"
                )
            elif component.match_type != EXACT and component.match is not None:
                problem = f"{kind[:120]} has something to match, which only match type 0 looks at"
            if problem is not None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
            if kind not in (USER, CLIENT_ID, IP):
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"there are quotas of {USER}, {CLIENT_ID} and {IP}, not of {kind[:120]}",
                )
            self._types.add(kind)
            if component.match_type != ANY:
                self._names[kind] = _as_kept(kind, component.match)
        if IP in self._types and len(self._types) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{IP} goes with no other entity type")

    def finds(self, entity: Entity) -> bool:
        if self._strict and len(entity) != len(self._types):
            return False
        parts = dict(entity)
        return parts.keys() >= self._types and all(
            parts[kind] == name for kind, name in self._names.items()
        )


def _as_kept(kind: str, name: str | None) -> str | None:
    if kind != IP or name is None:
        return name
    try:
        return address_of(name)
    except ValueError:
        return name  # which nothing is called


@handles(ApiKey.ALTER_CLIENT_QUOTAS, long=True, cluster=Operation.ALTER_CONFIGS)
async def alter_client_quotas(
    broker: Broker, ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """NONE or what is wrong, of each entity."""
    asked: dict[Entity, _Asked] = {}
    refused: dict[Entity, KafkaError] = {}
    to_propose: dict[Entity, EntityQuotas] = {}
    pace = Pace()
    for entry in request.entries:
        await pace.keep()
        parts = tuple(
            EntityPart(part.entity_type, part.entity_name)
            for part in islice(entry.entity, _PARTS_MAX)
        )
        if parts in asked:
            refused[parts] = KafkaError(
                ErrorCode.INVALID_REQUEST, "the entity is in the request twice"
            )
            to_propose.pop(parts, None)
            continue
        asked[parts] = entry
        alteration = EntityQuotas(
            parts,
            tuple(
                QuotaValue(op.key, None if op.remove else op.value)
                for op in islice(entry.ops, _OPS_MAX)
            ),
        )
        try:
            checked_alteration(alteration)
            to_propose[parts] = alteration
        except KafkaError as error:
            refused[parts] = error
    answers = await propose_items(
        controller_of(broker, ctx),
        lambda some, _: AlterClientQuotas(some, validate_only=request.validate_only),
        to_propose.values(),
        METADATA_TIMEOUT_MS,
        [_WEIGHT] * len(to_propose),
    )
    outcomes: dict[Entity, tuple[int, str | None]] = {}
    async for pairs in in_parts(zip(to_propose, answers, strict=True)):
        for entity, answer in pairs:
            outcomes[entity] = answer["error"], answer["message"]

    def result(parts: Entity) -> _Altered:
        why = refused.get(parts)
        error, message = outcomes[parts] if why is None else (why.code, why.message)
        return altered(asked[parts], error, message)

    return AlterClientQuotasResponse(entries=elements(list(asked), result))


def altered(asked: _Asked, error: int, message: str | None) -> _Altered:
    """The answer to one entity."""
    kind = AlterClientQuotasResponse.EntityData
    entity = elements(asked.entity, lambda part: kind(part.entity_type, part.entity_name))
    return _Altered(error, message, entity)
