"""Carries out the command on quotas of clients (KIP-546).

Rules:

* What an entity is, which quotas it can have and which values, `core.quotas` says.
* Each entity changes as a whole or not at all: one value that is wrong leaves the others as they
  are. To remove what isn't there is no error, and no change.
* An entity that is named twice is refused the second time, and a key twice with it.
* As many entities can have quotas as `limits` says.
"""

from __future__ import annotations

from typing import Any

from kraftpy.core.metadata.commands import AlterClientQuotas, EntityQuotas
from kraftpy.core.metadata.limits import QUOTA_ENTITIES_MAX
from kraftpy.core.metadata.records import Change, QuotasChanged
from kraftpy.core.metadata.tables import MetadataTables
from kraftpy.core.quotas import Entity, check_key, checked_value, entity_of
from kraftpy.protocol.errors import ErrorCode, KafkaError


def alter_client_quotas(
    state: MetadataTables, _index: int, command: AlterClientQuotas, changes: list[Change]
) -> dict[str, Any]:
    """Sets and removes quotas of entities."""
    answers: list[dict[str, Any]] = []
    seen: set[Entity] = set()
    wanted: dict[Entity, dict[str, float]] = {}
    added = 0
    for item in command.entities:
        error, message = ErrorCode.NONE, None
        try:
            entity, values = checked_alteration(item)
            if entity in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity is in the request twice")
            seen.add(entity)
            old = state.quotas.get(entity)
            merged: dict[str, float | None] = {**old, **values}
            new = {key: value for key, value in merged.items() if value is not None}
            more = bool(new) - bool(old)
            if more > 0 and len(state.quotas) + added >= QUOTA_ENTITIES_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{QUOTA_ENTITIES_MAX} entities have quotas, and no more can: remove others "
                    "first, or set those of the default",
                )
            added += more
            if new != old:
                wanted[entity] = new
        except KafkaError as problem:
            error, message = problem.code, problem.message
        answers.append({"error": int(error), "message": message})
    if wanted and not command.validate_only:
        for entity, new in wanted.items():
            state.quotas.set(entity, new)
        changes.append(QuotasChanged(tuple(wanted)))
    return {"entities": answers}


def checked_alteration(item: EntityQuotas) -> tuple[Entity, dict[str, float | None]]:
    """Whose quotas are altered, and what they are to be; None goes. Raises KafkaError."""
    try:
        entity = entity_of(item.parts)
        values = dict[str, float | None]()
        for key, value in item.values:
            check_key(entity, key)
            if key in values:
                raise ValueError(f"{key} is in the request twice")
            values[key] = None if value is None else checked_value(key, value)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    return entity, values
