"""A broker's place in the cluster: registered, fenced or not, shutting down.

    end the life before -> open the logs -> register (fenced) -> unfence -> let clients in
    -> begin_shutdown -> fence

Rules that it keeps:

* A life of the broker registers once; its epoch guards what it proposes (KIP-631). It gives the
  epoch of the last clean shutdown, so that one whose logs may have lost their end is not taken for
  in sync (KIP-966).
* A start may be broken off at any point. As long as nothing may have been written, the marker of
  the shutdown before stays as it is: the quorum takes the next life for clean exactly if that
  shutdown's epoch is still the last one it gave. If it has given this life one, the logs may have
  been written (the marker is gone), or are closed with this epoch in the marker. A life that dies,
  or is stopped, before it hears its epoch leaves the older one: the next life then counts as
  unclean although it lost nothing. That is the safe side, and it can't be told from a copy of the
  folders that is older than what this broker has acknowledged since.
* Unregistered while it lives, it registers again: who wants it gone stops it first, as in Kafka.
  Its node may vote in the quorum, so it is not for the broker to stop that. The answer may be lost
  when the quorum's leader dies: its own incarnation under a later epoch is its registration.
* Fenced while it lives (a pause, a cut link), it asks to be let in again once the quorum hears it
  and it has caught up with the metadata.
* A broker whose session with the quorum has lapsed leads nothing until it has caught up (rule 21).
* Before it stops it hands over what it leads, as long as somebody takes it, for at most
  CONTROLLED_SHUTDOWN_TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata.commands import (
    AllocateProducerIds,
    BeginShutdown,
    Command,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
)
from kraftpy.core.metadata.levels import REGISTRY
from kraftpy.events import emit
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.client import ControllerUnavailable
from kraftpy.server.cluster.proposals import Proposals
from kraftpy.storage.checkpoints import uuid_to_text

if TYPE_CHECKING:
    from kraftpy.core.metadata import Broker as BrokerRecord
    from kraftpy.core.metadata import Endpoint, MetadataState
    from kraftpy.quorum.client import ControllerClient

log = logging.getLogger(__name__)

METADATA_TIMEOUT_MS = 15_000
UNFENCE_TIMEOUT_MS = 5_000
CONTROLLED_SHUTDOWN_TIMEOUT_S = 10.0
SHUTDOWN_POLL_S = 0.02
SHUTDOWN_ANSWER_TIMEOUT_MS = 3_000
"""An election is over by then. Whoever stops the last nodes of a cluster need not wait for more."""
FENCE_TIMEOUT_MS = 300
"""The quorum notices by itself in `broker.disconnect.grace.ms`; of nodes that stop together the
last ones have no quorum to tell."""


class Membership:
    """This life of the broker in the quorum's eyes."""

    def __init__(
        self,
        node_id: int,
        client: ControllerClient,
        controller: Proposals,
        session_timeout_ms: int,
    ) -> None:
        self.epoch = -1
        self._session_timeout_s = session_timeout_ms / 1000
        self._node_id = node_id
        self._client = client
        self._controller = controller
        self._incarnation_id = uuid.uuid4().bytes
        self._registration: RegisterBroker | None = None
        self._metadata: Callable[[], MetadataState]
        self._unfencing: asyncio.Task[None] | None = None
        self._stopping = False

    async def propose(
        self, command: Command, timeout_ms: int = METADATA_TIMEOUT_MS
    ) -> Mapping[str, Any]:
        """The value of an accepted command; raises KafkaError for a refused one."""
        _, result = await self._controller.propose(command, timeout_ms)
        if result.error is not ErrorCode.NONE:
            raise KafkaError(result.error, result.message)
        return result.value

    async def allocate_producer_ids(self, *, cut_off: bool) -> tuple[int, int]:
        """A block of them: the first one, and how many. Raises KafkaError."""
        if cut_off:
            # What Kafka answers for want of a block: producers ask again, most of them elsewhere.
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "this broker is cut off from the quorum"
            )
        value = await self.propose(AllocateProducerIds(self._node_id, self.epoch))
        return value["first"], value["count"]

    # -- starting

    async def register(
        self,
        metadata: Callable[[], MetadataState],
        *,
        cluster_id: str | None,
        clean_shutdown_epoch: int | None,
        endpoints: tuple[Endpoint, ...],
        rack: str | None,
        directories: Sequence[bytes],
        min_insync_replicas: int,
        unclean_leader_election: bool,
        registered_ms: int,
        metrics: str | None,
    ) -> str:
        """Begins this life of the broker, fenced; returns the id of the cluster.

        `cluster_id` is None for a broker with new folders, which joins whatever cluster the quorum
        has. If it has none, the first broker to register names it. Raises KafkaError.
        """
        wanted = cluster_id or metadata().cluster_id or uuid_to_text(uuid.uuid4().bytes)
        command = RegisterBroker(
            self._node_id,
            self._incarnation_id,
            endpoints,
            tuple(directories),
            previous_broker_epoch=-1 if clean_shutdown_epoch is None else clean_shutdown_epoch,
            cluster_id=wanted,
            rack=rack,
            min_insync_replicas=min_insync_replicas,
            unclean_leader_election=unclean_leader_election,
            registered_ms=registered_ms,
            metrics=metrics,
        )
        self._metadata = metadata
        try:
            value = await self.propose(self._as_known(command))
        except KafkaError as error:
            named = metadata().cluster_id
            if error.code is not ErrorCode.INCONSISTENT_CLUSTER_ID or cluster_id or named is None:
                raise
            # Another new node was faster.
            wanted = named
            value = await self.propose(self._as_known(replace(command, cluster_id=wanted)))
        self._registration = replace(command, cluster_id=wanted, previous_broker_epoch=-1)
        self._registered(value["broker_epoch"])
        return wanted

    def _as_known(self, command: RegisterBroker) -> RegisterBroker:
        """Without what other releases of the cluster don't know yet."""
        if self._metadata().level >= REGISTRY:
            return command
        return replace(command, registered_ms=0, metrics=None)

    def _registered(self, epoch: int) -> None:
        self.epoch = epoch
        self._client.registered(epoch)

    async def fence_previous_life(self, metadata: MetadataState, directories: list[bytes]) -> None:
        """Ends the registration of a life that was killed before it could. Raises KafkaError.

        We hold the locks of the folders that it registered, so its process is gone. One that had
        other folders may be alive: the registration then is refused, as it must be.
        """
        previous = metadata.brokers.get(self._node_id)
        if previous is None or previous.fenced:
            return
        if set(previous.directories) <= set(directories):
            await self.propose(FenceBroker(self._node_id, previous.epoch))

    async def unfence(self) -> None:
        """Begins to serve: the logs are open, and clients are let in at once. Raises KafkaError."""
        await self.propose(UnfenceBroker(self._node_id, self.epoch))

    # -- being a member

    @property
    def leaving(self) -> bool:
        """Whether the controlled shutdown has begun."""
        return self._stopping

    @property
    def session_lapsed(self) -> bool:
        """Whether this broker may have been fenced without hearing of it."""
        return self._client.session_lapsed

    @property
    def session_left_s(self) -> float:
        """How long the session lasts if nothing more is heard of the quorum; below 0: it lapsed."""
        return self._session_timeout_s - self._client.session_age_ms / 1000

    def changed(self, broker: BrokerRecord | None) -> None:
        """What the metadata says of this broker; asks to be let in again if that is nothing good.

        Raises RuntimeError if another process is this broker now.
        """
        if broker is None:
            self._ask_back_in(self._register_again)
        elif broker.incarnation_id != self._incarnation_id:
            raise RuntimeError(f"another process has registered as broker {self._node_id}")
        else:
            if -1 < self.epoch < broker.epoch:
                self._registered(broker.epoch)
            if broker.epoch == self.epoch and broker.fenced:
                self._ask_back_in(self._unfence_again)
            elif self._is_short(broker):
                self._ask_back_in(self._complete)

    def _ask_back_in(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._stopping or self._unfencing is not None:
            return
        self._unfencing = asyncio.get_running_loop().create_task(ask())
        self._unfencing.add_done_callback(self._asked)

    def _is_short(self, broker: BrokerRecord) -> bool:
        """Whether the metadata has reached a level since at which there is more to say."""
        return (
            self._registration is not None
            and broker.registered_ms == 0
            and self._as_known(self._registration).registered_ms > 0
        )

    async def _complete(self) -> None:
        assert self._registration is not None
        try:
            await self.propose(self._registration, UNFENCE_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("the registration isn't complete yet: %s", error.message)

    async def _unfence_again(self) -> None:
        log.warning("the quorum has fenced this broker; asking to be let in again")
        try:
            await self._client.barrier(UNFENCE_TIMEOUT_MS)
            await self.propose(UnfenceBroker(self._node_id, self.epoch), UNFENCE_TIMEOUT_MS)
        except (KafkaError, ControllerUnavailable) as error:
            log.warning("still fenced: %s", error)

    async def _register_again(self) -> None:
        log.warning(
            "broker %d was unregistered while it runs; registering it again. To remove it, use "
            "kraftpy cluster decommission %d, which says when to stop it",
            self._node_id,
            self._node_id,
        )
        try:
            await self._client.barrier(UNFENCE_TIMEOUT_MS)
            assert self._registration is not None
            command = self._as_known(self._registration)
            value = await self.propose(command, UNFENCE_TIMEOUT_MS)
            self._registered(value["broker_epoch"])
            await self.propose(UnfenceBroker(self._node_id, self.epoch), UNFENCE_TIMEOUT_MS)
        except (KafkaError, ControllerUnavailable) as error:
            log.warning("still not registered, or fenced: %s", error)

    def _asked(self, _: asyncio.Task[None]) -> None:
        self._unfencing = None

    # -- stopping

    async def hand_over(self, is_possible: Callable[[], bool]) -> None:
        """Controlled shutdown: returns when others lead what this broker led.

        It waits for as long as `is_possible`, and at most for CONTROLLED_SHUTDOWN_TIMEOUT_S.
        """
        self._stopping = True
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadline_s = began_s + CONTROLLED_SHUTDOWN_TIMEOUT_S
        remaining = -1
        reason = None
        try:
            while loop.time() < deadline_s:
                value = await self.propose(
                    BeginShutdown(self._node_id, self.epoch), SHUTDOWN_ANSWER_TIMEOUT_MS
                )
                remaining = value["remaining"]
                if not remaining or not is_possible():
                    break
                await asyncio.sleep(SHUTDOWN_POLL_S)
        except KafkaError as error:
            reason = error.message
        emit(
            log,
            logging.WARNING if remaining else logging.INFO,
            "controlled-shutdown",
            node=self._node_id,
            seconds=loop.time() - began_s,
            left=remaining,
            reason=reason,
        )

    async def leave(self) -> None:
        """Fences itself: the quorum need not find out."""
        if self._unfencing is not None:
            self._unfencing.cancel()
        try:
            await self._controller.propose(FenceBroker(self._node_id, self.epoch), FENCE_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("left without telling the quorum: %s", error.message)
