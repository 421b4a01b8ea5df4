"""ApiVersions (KIP-511): which APIs and versions this broker answers. UpdateFeatures.

From version 3 on it also says which features the cluster has (KIP-584, `server.cluster.features`).
From version 5 on a client may say which cluster and which node it believes to talk to, both or
neither: another one than this is answered with REBOOTSTRAP_REQUIRED, so that a client whose
broker's address was given to somebody else looks for its cluster again.

UpdateFeatures asks for levels of features. They are what they are here, so it finds the level in
use right and any other one wrong: INVALID_UPDATE_VERSION, and for all features of the request. Only
the metadata level can be raised, once the controller that leads finds that all nodes know it.

The response header is always v0, and a request of an unknown version is answered by the dispatcher
with UNSUPPORTED_VERSION in a v0 body, so that any client can read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kraftpy.core.metadata import LEVEL
from kraftpy.core.metadata.commands import RaiseLevel
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import METADATA_LEVEL_FEATURE
from kraftpy.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kraftpy.server.cluster.features import LEVELS
from kraftpy.server.cluster.proposals import TIMEOUT_MAX_MS
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

FIRST_VERSION_WITH_SOFTWARE_NAME = 3
_NO_NODE = -1
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
# KIP-511: what a software name or version may look like.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS)
def api_versions(
    broker: Broker, ctx: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """The advertised ranges.

    INVALID_REQUEST for a malformed software name, or a cluster without a node and the other way
    round; REBOOTSTRAP_REQUIRED if this isn't the node that the client looks for.
    """
    if ctx.api_version >= FIRST_VERSION_WITH_SOFTWARE_NAME and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return broker.dispatcher.api_versions(ErrorCode.INVALID_REQUEST)
    if (request.cluster_id is None) != (request.node_id == _NO_NODE):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.cluster_id is not None and (
        request.cluster_id != broker.cluster_id or request.node_id != broker.node_id
    ):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    response = broker.dispatcher.api_versions(ErrorCode.NONE)
    response.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name, level, level)
        for name, level in LEVELS.items()
    ]
    response.supported_features.append(
        ApiVersionsResponse.SupportedFeatureKey(METADATA_LEVEL_FEATURE, 1, LEVEL)
    )
    reached = broker.metadata.level  # 0 is no level in use
    finalized = {**LEVELS, METADATA_LEVEL_FEATURE: reached} if reached else LEVELS
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(name, level, level)
        for name, level in finalized.items()
    ]
    response.finalized_features_epoch = broker.metadata.applied_index
    return response


@handles(ApiKey.UPDATE_FEATURES)
async def update_features(
    broker: Broker, ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """NONE if all features have the wanted levels now, INVALID_UPDATE_VERSION if one can't."""
    try:
        levels = {**LEVELS, METADATA_LEVEL_FEATURE: broker.metadata.level}
        for update in request.feature_updates:
            _check(update, levels, broker.node_id)
        # What is asked for again and again is done once.
        for level in sorted(_to_raise(request, levels)):
            await _raise_level(broker, level, request)
    except KafkaError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    names = dict.fromkeys(update.feature for update in request.feature_updates)
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    return UpdateFeaturesResponse(
        error_message=None, results=[result(name, ErrorCode.NONE, None) for name in names]
    )


def _refusal(feature: str, problem: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"no feature was changed, because of {feature[:120]!r}: {problem}",
    )


def _to_raise(request: UpdateFeaturesRequest, levels: Mapping[str, int]) -> set[int]:
    """The metadata levels that checked updates ask for, except for the one in use."""
    return {
        update.max_version_level
        for update in request.feature_updates
        if update.max_version_level != levels[update.feature]
    }


def _check(
    update: UpdateFeaturesRequest.FeatureUpdateKey, levels: Mapping[str, int], node_id: int
) -> None:
    """Raises KafkaError for an update to another level, except for one that may be raised to it."""
    feature, wanted = update.feature, update.max_version_level
    level = levels.get(feature)
    if update.upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        raise _refusal(feature, f"there is no upgrade type {update.upgrade_type}")
    if level is None:
        raise _refusal(feature, f"there is no such feature; there are {', '.join(levels)}")
    if wanted == level:
        return
    if feature != METADATA_LEVEL_FEATURE:
        raise _refusal(feature, f"it has level {level} and no other, so it can't become {wanted}")
    if wanted < level:
        raise _refusal(feature, f"it has level {level} and never falls")
    if update.upgrade_type != _UPGRADE:
        raise _refusal(feature, f"it has level {level}, and from there to {wanted} is no downgrade")
    if wanted > LEVEL:
        raise _refusal(feature, f"it has level {level}, and node {node_id} knows {LEVEL}")


async def _raise_level(broker: Broker, wanted: int, request: UpdateFeaturesRequest) -> None:
    """Raises KafkaError if it can't be; as the controller that leads judges."""
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MAX_MS))
    if request.validate_only:
        described = await broker.controller.describe_quorum(timeout_ms)
        if wanted > len(described.level_refusals):
            voter = described.leader_id
            raise _refusal(
                METADATA_LEVEL_FEATURE, f"voter {voter}, which leads, runs a release without it"
            )
        refusal = described.level_refusals[wanted - 1]
    else:
        _, result = await broker.controller.propose(RaiseLevel(wanted), timeout_ms)
        refusal = None
        if result.error is not ErrorCode.NONE:
            refusal = result.message or result.error.name
    if refusal is not None:
        raise _refusal(METADATA_LEVEL_FEATURE, refusal)
