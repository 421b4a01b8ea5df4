"""What clients change counts for their `controller_mutation_rate` (KIP-599).

The controller that leads counts, and refuses (`quorum.mutations`). Rules:

* What counts are the partitions that are created or deleted, or would be (`validate_only`). Each
  topic is proposed by itself for a client that has such a quota, so that what there is of it is
  for the first ones.
* From a version of each request on what is too much is refused, with THROTTLING_QUOTA_EXCEEDED;
  earlier ones, and what a client's mention creates, go through. Either waits
  (`network.connection`).
* Once a topic was refused those behind it in the request are, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kraftpy.core.metadata.commands import Command, CreatePartitions, CreateTopics, DeleteTopics
from kraftpy.core.metadata.topic_commands import partition_count
from kraftpy.core.quotas import CONTROLLER_MUTATION_RATE, mutation_limit, shortened
from kraftpy.core.security.principals import USER
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.mutations import PARTITIONS_MAX, Charge
from kraftpy.quorum.port import CommandResult
from kraftpy.server.handlers.rights import controller_of

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState
    from kraftpy.server.broker import Broker
    from kraftpy.server.cluster.proposals import Proposals
    from kraftpy.server.network.dispatch import RequestContext

NEVER = 2**15


class Mutations:
    """Where a request's changes are proposed; `alone`: each topic by itself.

    It's `strict` from version `strict_from` on.
    """

    def __init__(self, broker: Broker, ctx: RequestContext, strict_from: int = NEVER) -> None:
        session, client_id = ctx.session, ctx.client_id
        self._broker = broker
        self._ctx = ctx
        self._charged: _Charged | None = None
        if session.principal.type == USER and session.connection is not None:
            user = session.principal.name
            if mutation_limit(broker.metadata.quotas, user, client_id) is not None:
                strict = ctx.api_version >= strict_from
                self._charged = _Charged(broker, user, client_id, strict=strict)
        self.alone = self._charged is not None
        self.controller = controller_of(broker, ctx, cast("Proposals | None", self._charged))

    def answered(self, response: Any) -> None:
        """Has the answer say how long to wait, which begins now."""
        wait_ms = 0 if self._charged is None else self._charged.wait_ms
        if wait_ms:
            connection = self._ctx.session.connection
            assert connection is not None
            use = self._broker.quotas.use
            wait_s = use.mute(connection, CONTROLLER_MUTATION_RATE, wait_ms / 1000)
            response.throttle_time_ms = round(wait_s * 1000)


class _Charged:
    """Proposes in the name of a client that has a quota."""

    def __init__(self, broker: Broker, user: str, client_id: str | None, *, strict: bool) -> None:
        self._broker = broker
        self._user, self._client_id = shortened(user, client_id)
        self._strict = strict
        self._refused: tuple[int, CommandResult] | None = None
        self.wait_ms = 0

    async def propose(self, command: Command, timeout_ms: int) -> tuple[int, CommandResult]:
        """As `Proposals.propose`."""
        if self._refused is not None:
            return self._refused
        partitions = min(_partitions_of(self._broker.metadata, command), PARTITIONS_MAX)
        charge = Charge(self._user, self._client_id, partitions, strict=self._strict)
        answer = await self._broker.controller.propose(command, timeout_ms, charge)
        self.wait_ms = max(self.wait_ms, charge.wait_ms)
        if answer[1].error is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            self._refused = answer
        return answer


def _partitions_of(metadata: MetadataState, command: Command) -> int:
    """How many partitions a command creates or deletes, as far as is known here."""
    match command:
        case CreateTopics(topics=created):
            return sum(map(partition_count, created))
        case CreatePartitions(topics=grown):
            return sum(
                max(0, each.count - len(topic.partitions))
                for each in grown
                if (topic := metadata.topics.get(each.name)) is not None
            )
        case DeleteTopics(topics=deleted):
            topics = (
                metadata.topics.get(each.name or "")
                or metadata.topics_by_id.get(each.topic_id or b"")
                for each in deleted
            )
            return sum(len(topic.partitions) for topic in topics if topic is not None)
    return 0
