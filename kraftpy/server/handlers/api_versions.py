"""ApiVersions 0-4 (KIP-511): which APIs and versions this broker answers.

From version 3 on it also says which features the cluster has (KIP-584). There is one that clients
and tools look for: `group.version` 1, groups whose coordinator assigns partitions (KIP-848). It can
neither be raised nor lowered, so `kafka-features describe` shows one level.

The response header is always v0, and a request of an unknown version is answered by the dispatcher
with UNSUPPORTED_VERSION in a v0 body, so that any client can read it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from kraftpy.server.dispatch import RequestContext, handles

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

FIRST_VERSION_WITH_SOFTWARE_NAME = 3
_FEATURES = {"group.version": 1}
# KIP-511: what a software name or version may look like.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS)
def api_versions(
    broker: Broker, ctx: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """The advertised ranges; INVALID_REQUEST for a malformed software name."""
    if ctx.api_version >= FIRST_VERSION_WITH_SOFTWARE_NAME and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return broker.api_versions(ErrorCode.INVALID_REQUEST)
    response = broker.api_versions(ErrorCode.NONE)
    response.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name, level, level)
        for name, level in _FEATURES.items()
    ]
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(name, level, level)
        for name, level in _FEATURES.items()
    ]
    response.finalized_features_epoch = broker.metadata.applied_index
    return response
