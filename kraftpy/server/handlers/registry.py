"""How a function becomes an API's handler: `handles` registers it, `table` gathers them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.server.network.dispatch import HandlerSpec, RequestContext

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

Handler = Callable[["Broker", RequestContext, Any], Any]

registered: dict[ApiKey, HandlerSpec] = {}

cluster_rights: dict[ApiKey, Operation] = {}
"""The operation on the cluster that an API takes, of those that take nothing else."""


def handles(
    key: ApiKey,
    *,
    concurrent: bool = False,
    long: bool = False,
    cluster: Operation | None = None,
) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of one API; the flags: see `HandlerSpec`.

    `cluster`: who asks for it needs this right on the cluster, and no other.
    """

    def register(function: Handler) -> Handler:
        if key in registered:
            raise RuntimeError(f"{key.name} has two handlers")
        registered[key] = HandlerSpec(function, concurrent, long)
        if cluster is not None:
            cluster_rights[key] = cluster
        return function

    return register
