"""Commands of clients name the ACLs that allowed them, where there is an authorizer.

A broker that lags behind decides by ACLs that there may be no more. So what a client changes says
under which version of the ACLs it was allowed; the controller's state machine refuses it under
another one, and then the broker, which has that one by then, decides anew on all that the request
was allowed for (rule 192).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from kraftpy.core.metadata import RIGHTS_CHANGED
from kraftpy.core.metadata.commands import Command
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.core.security.acls import Resource
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.port import CommandResult
from kraftpy.server.network.long_answers import in_parts

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker
    from kraftpy.server.cluster.proposals import Proposals
    from kraftpy.server.network.dispatch import RequestContext

DENIED = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""What a client is told who lacks a right on a resource of the type."""

TRIES_MAX = 10

Need = tuple[int, int, str]
"""An operation, the type and the name of the resource that it is done with."""


def note_need(ctx: RequestContext, need: Need) -> None:
    """Notes what a request was allowed for, for the commands that come of it."""
    needs: dict[Need, None] | None = getattr(ctx, "needs", None)
    if needs is None:
        needs = ctx.needs = {}
    needs[need] = None


def controller_of(
    broker: Broker, ctx: RequestContext, controller: Proposals | None = None
) -> Proposals:
    """The controller, or what stands for it, for what the request's client changes."""
    controller = controller or broker.controller
    if ctx.session.view is None:
        return controller
    return cast("Proposals", _AllowedProposals(broker, ctx, controller))


class _AllowedProposals:
    """Proposes what the client of a request may do, as long as it may."""

    def __init__(self, broker: Broker, ctx: RequestContext, controller: Proposals) -> None:
        self._controller = controller
        self._broker = broker
        self._ctx = ctx
        self._checked = -1, 0  # under which version of the ACLs, and how many needs

    async def propose(self, command: Command, timeout_ms: int) -> tuple[int, CommandResult]:
        """As `Proposals.propose`; raises KafkaError, too, if it isn't allowed any more."""
        broker = self._broker
        for _ in range(TRIES_MAX):
            allowed: Any = command
            version = await self._check()
            if broker.metadata.level >= SECURITY and hasattr(command, "allowed_under"):
                allowed = replace(allowed, allowed_under=version)
            index, result = await self._controller.propose(allowed, timeout_ms)
            if result.error is not RIGHTS_CHANGED:
                return index, result
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "the ACLs change all the time, and nothing was changed"
        )

    async def _check(self) -> int:
        """Decides once for each version of the ACLs; which one that was at first.

        A request of many topics may become as many commands. If the ACLs change meanwhile the
        controller has a later version than is named, and it's decided anew.
        """
        view, needs = self._ctx.session.view, getattr(self._ctx, "needs", ())
        assert view is not None
        version = self._broker.metadata.acls.version
        if self._checked == (version, len(needs)):
            return version
        async for some in in_parts(needs):
            for operation, resource_type, name in some:
                if not view.may(operation, resource_type, name):
                    self._broker.audit.denied(view, operation, resource_type, name)
                    raise KafkaError(DENIED[Resource(resource_type)])
        self._checked = version, len(needs)
        return version
