"""UpdateFeatures (KIP-584): which level a feature of the cluster is to have.

Those that have one level are what they are: the level in use is right and any other one wrong.
`transaction.version` and what else is adjustable may be raised and lowered, and the metadata level
raised, once the controller that leads finds that all nodes know it. Rules, as in Kafka 4:

* One feature that can't be updated refuses all of them: INVALID_UPDATE_VERSION, and who it was.
* A feature that is named twice gets what is said of it last.
* It takes the type of a downgrade to lower a level, and that of an upgrade to raise one. Version 0
  has no types, and its `allow_downgrade` nobody looks at: it can raise levels only.
* What is only to be validated is judged in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.core.metadata.commands import FeatureLevel, RaiseLevel, UpdateFeatures
from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import METADATA_LEVEL_FEATURE
from kraftpy.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from kraftpy.server.cluster.features import ADJUSTABLE, levels_in_use, metadata_level_for, supported
from kraftpy.server.cluster.proposals import TIMEOUT_MAX_MS
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import in_parts

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3

Update = UpdateFeaturesRequest.FeatureUpdateKey


@handles(ApiKey.UPDATE_FEATURES, cluster=Operation.ALTER)
async def update_features(
    broker: Broker, ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """NONE if all features have the wanted levels now, INVALID_UPDATE_VERSION if one can't."""
    levels = levels_in_use(broker.metadata)
    # What is asked for again and again is done once.
    updates: dict[str, Update] = {}
    async for some in in_parts(request.feature_updates):
        updates.update({update.feature: update for update in some})
    try:
        for update in updates.values():
            _check(update, levels, broker)
        to_change = {
            name: update.max_version_level
            for name, update in updates.items()
            if update.max_version_level != levels[name]
        }
        if METADATA_LEVEL_FEATURE in to_change:
            await _raise_level(broker, ctx, to_change[METADATA_LEVEL_FEATURE], request)
        adjusted = tuple(FeatureLevel(*each) for each in to_change.items() if each[0] in ADJUSTABLE)
        if adjusted and not request.validate_only:
            await _set_levels(broker, ctx, adjusted, request)
    except KafkaError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    return UpdateFeaturesResponse(
        error_message=None, results=[result(name, ErrorCode.NONE, None) for name in updates]
    )


def _refusal(feature: str, problem: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"no feature was changed, because of {feature[:120]!r}: {problem}",
    )


def _check(update: Update, levels: dict[str, int], broker: Broker) -> None:
    """Raises KafkaError if the feature can't have that level."""
    feature, wanted = update.feature, update.max_version_level
    if update.upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        raise _refusal(feature, f"there is no upgrade type {update.upgrade_type}")
    if feature not in levels:
        raise _refusal(feature, f"there is no such feature; there are {', '.join(levels)}")
    level, known = levels[feature], supported()[feature]
    if wanted == level:
        return
    if known.lowest == known.highest:
        raise _refusal(feature, f"it has level {level} and no other, so it can't become {wanted}")
    if feature == METADATA_LEVEL_FEATURE and wanted < level:
        raise _refusal(feature, f"it has level {level} and never falls")
    if not known.lowest <= wanted <= known.highest:
        raise _refusal(
            feature,
            f"it has level {level}, and node {broker.node_id} knows {known.lowest} to "
            f"{known.highest}",
        )
    takes = metadata_level_for(feature, wanted)
    if broker.metadata.level < takes:
        raise _refusal(
            feature,
            f"this takes metadata level {takes}, and the cluster has "
            f"{broker.metadata.level}: upgrade all nodes, then `kraftpy cluster raise-level`",
        )
    if wanted < level and update.upgrade_type == _UPGRADE:
        raise _refusal(feature, f"it has level {level}, and from there to {wanted} is a downgrade")
    if wanted > level and update.upgrade_type != _UPGRADE:
        raise _refusal(feature, f"it has level {level}, and from there to {wanted} is no downgrade")


async def _set_levels(
    broker: Broker,
    ctx: RequestContext,
    wanted: tuple[FeatureLevel, ...],
    request: UpdateFeaturesRequest,
) -> None:
    """Raises KafkaError if no controller could be asked."""
    command = UpdateFeatures(wanted)
    _, result = await controller_of(broker, ctx).propose(command, _timeout_ms(request))
    if result.error is not ErrorCode.NONE:
        raise KafkaError(result.error, result.message)


async def _raise_level(
    broker: Broker, ctx: RequestContext, wanted: int, request: UpdateFeaturesRequest
) -> None:
    """Raises KafkaError if it can't be; as the controller that leads judges."""
    if request.validate_only:
        described = await broker.controller.describe_quorum(_timeout_ms(request))
        if wanted > len(described.level_refusals):
            voter = described.leader_id
            raise _refusal(
                METADATA_LEVEL_FEATURE, f"voter {voter}, which leads, runs a release without it"
            )
        refusal = described.level_refusals[wanted - 1]
    else:
        _, result = await controller_of(broker, ctx).propose(
            RaiseLevel(wanted), _timeout_ms(request)
        )
        refusal = None
        if result.error is not ErrorCode.NONE:
            refusal = result.message or result.error.name
    if refusal is not None:
        raise _refusal(METADATA_LEVEL_FEATURE, refusal)


def _timeout_ms(request: UpdateFeaturesRequest) -> int:
    return max(1, min(request.timeout_ms, TIMEOUT_MAX_MS))
