"""ApiVersions (KIP-511): which APIs and versions this broker answers.

From version 3 on it also says which features the cluster has (KIP-584, `server.cluster.features`).
Version 3 leaves out those that may be at level 0: Java clients before 3.9 end upon them
(KAFKA-17492). A feature at level 0 is not among those in use. APIs that are for share groups alone
are left out while `share.version` is at 0.

From version 5 on a client may say which cluster and which node it believes to talk to, both or
neither: another one than this is answered with REBOOTSTRAP_REQUIRED, so that a client whose
broker's address was given to somebody else looks for its cluster again.

The response header is always v0, and a request of an unknown version is answered by the dispatcher
with UNSUPPORTED_VERSION in a v0 body, so that any client can read it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from kraftpy.server.cluster.features import hidden_apis, levels_in_use, supported
from kraftpy.server.handlers.registry import handles
from kraftpy.server.network.dispatch import RequestContext

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

FIRST_VERSION_WITH_SOFTWARE_NAME = 3
FIRST_VERSION_WITH_LEVEL_0 = 4
_NO_NODE = -1
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
    hidden = hidden_apis(broker.metadata)
    if hidden:
        response.api_keys = [each for each in response.api_keys if each.api_key not in hidden]
    response.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name, *known)
        for name, known in supported().items()
        if known.lowest or ctx.api_version >= FIRST_VERSION_WITH_LEVEL_0
    ]
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(name, level, level)
        for name, level in levels_in_use(broker.metadata).items()
        if level
    ]
    response.finalized_features_epoch = broker.metadata.applied_index
    return response
