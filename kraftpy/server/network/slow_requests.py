"""Requests that take longer than `kraftpy.log.slow.request.ms` are told of."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Protocol

from kraftpy.events import emit
from kraftpy.protocol.api import REQUEST_NAMES, ApiKey

if TYPE_CHECKING:
    from kraftpy.server.network.session import Session

log = logging.getLogger(__name__)


class _Route(Protocol):
    @property
    def key(self) -> ApiKey: ...
    @property
    def version(self) -> int: ...


class _Client(Protocol):
    client_id: str | None
    session: Session


class SlowRequests:
    """Tells of those that take longer than `limit_s`."""

    __slots__ = ("limit_s",)

    def __init__(self) -> None:
        self.limit_s = math.inf

    def set_limit(self, limit_ms: int) -> None:
        """What `kraftpy.log.slow.request.ms` says; 0: never tells."""
        self.limit_s = limit_ms / 1000 if limit_ms else math.inf

    def tell(self, route: _Route, client: _Client, took_s: float) -> None:
        """A request took that long."""
        emit(
            log,
            logging.WARNING,
            "slow-request",
            api=REQUEST_NAMES[route.key].removesuffix("Request"),
            version=route.version,
            milliseconds=round(took_s * 1000),
            client=client.client_id,
            peer=client.session.peer,
        )
