"""Rights of members of share groups: ShareFetch, ShareAcknowledge.

Their handlers look at the topics themselves: a session has some that no request names.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kraftpy.server.handlers.authorization.guards import GROUP_DENIED, Check, guards


@guards(ApiKey.SHARE_FETCH, rights="Group READ, Topic READ")
def share_fetch(check: Check, request: ShareFetchRequest) -> Generator[None, None, Any]:
    """The group."""
    if not request.group_id or check.group(Operation.READ, request.group_id):
        return None
    return ShareFetchResponse(error_code=GROUP_DENIED, error_message=GROUP_DENIED.message)
    yield


@guards(ApiKey.SHARE_ACKNOWLEDGE, rights="Group READ, Topic READ")
def share_acknowledge(check: Check, request: ShareAcknowledgeRequest) -> Generator[None, None, Any]:
    """The group."""
    if not request.group_id or check.group(Operation.READ, request.group_id):
        return None
    return ShareAcknowledgeResponse(error_code=GROUP_DENIED, error_message=GROUP_DENIED.message)
    yield
