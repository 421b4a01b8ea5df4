"""What the active controller does beside keeping the log: it fences brokers, balances leaders, and
removes what is over (`token_expiry`).

Rules:

* Every voter keeps the brokers' sessions (`liveness.py`); only the one that leads, and has applied
  all that was committed before its term, decides anything.
* A decision is a proposal like any other, made on the broker epoch that it was decided on. What a
  deposed leader still decides is refused by the rules, on all nodes alike.
* Whom this voter suspects (`liveness.py`) all brokers hear at once, from the leader or not: a
  client that asks who leads is then told to ask again, instead of being sent to who is gone.
* The metadata level (`kraftpy.core.metadata.levels`) of a new cluster is the newest one, before
  anything else. Later an operator raises it, and the controller that leads judges: every voter is
  connected and has said that it knows the level, and so have all brokers that are registered and
  whoever else follows. What somebody has said counts for as long as its connection lasts.
* Balancing moves few leaders at a time, and waits for each step to be committed: it's never urgent,
  and clients have to look for every partition that moves.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kraftpy.core.metadata import levels
from kraftpy.core.metadata.commands import (
    PREFERRED,
    Command,
    Elections,
    ElectLeaders,
    FenceBroker,
    RaiseLevel,
    RemoveExpiredTokens,
    encode,
)
from kraftpy.events import emit
from kraftpy.frozen import dataclass
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.balancing import out_of_balance
from kraftpy.quorum.liveness import Fencing, Liveness
from kraftpy.quorum.messages import QuorumDescription, QuorumReplica
from kraftpy.quorum.mutations import Charge, MutationQuotas
from kraftpy.quorum.port import Applied, ProposalRefusedError, Quorum
from kraftpy.quorum.state import CLIENT_ID_SIZE_BYTES, command_of, pack_envelope, type_of
from kraftpy.quorum.token_expiry import TokenExpiry

if TYPE_CHECKING:
    from kraftpy.core.config import BrokerConfig
    from kraftpy.core.metadata import MetadataState

logger = logging.getLogger(__name__)

ELECTIONS_AT_ONCE = 100
ELECTIONS_PAUSE_S = 0.1
_NO_LONGER_THAT_LIFE = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The settings of these names; what they default to stands in `kraftpy.core.config`."""

    broker_session_timeout_ms: int
    broker_disconnect_grace_ms: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    delegation_token_expiry_check_interval_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> ControllerSettings:
        """Those of a node."""
        return cls(
            config.broker_session_timeout_ms,
            config.broker_disconnect_grace_ms,
            config.auto_leader_rebalance_enable,
            config.leader_imbalance_check_interval_seconds,
            config.leader_imbalance_per_broker_percentage,
            config.delegation_token_expiry_check_interval_ms,
        )


class ActiveController:
    """The duties of the voter that leads; see the module. All calls belong to the event loop."""

    def __init__(
        self,
        quorum: Quorum,
        settings: ControllerSettings,
        on_suspects: Callable[[frozenset[int]], None],
        connected_levels: Callable[[], Iterable[tuple[int, int]]],
    ) -> None:
        self._quorum = quorum
        self._on_suspects = on_suspects
        self._connected_levels = connected_levels
        self._raising = False
        self._suspects: frozenset[int] = frozenset()
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._liveness = Liveness(
            settings.broker_session_timeout_ms, settings.broker_disconnect_grace_ms
        )
        self._proposer = _Proposer(quorum)
        self._mutations = MutationQuotas(lambda: self._metadata().quotas, self._loop.time)
        self._leads = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        quorum.on_leader(self._leader_changed)

    def start(self) -> None:
        """Begins to look after the brokers."""
        self._tick()

    def close(self) -> None:
        """Decides nothing more."""
        self._resign(None)
        if self._timer is not None:
            self._timer.cancel()

    # -- what the listener reports

    def heard(self, connection: int, broker_id: int, broker_epoch: int) -> None:
        """A broker said something."""
        self._liveness.heard(connection, broker_id, broker_epoch, self._now_ms())
        self._tell_suspects()

    def disconnected(self, connection: int) -> None:
        """A broker's connection has ended."""
        self._liveness.disconnected(connection, self._now_ms())
        self._tell_suspects()
        if self._leads:
            self._tick()

    def propose(self, envelope: bytes) -> asyncio.Future[Applied]:
        """A broker's proposal, as `port.Quorum.propose`; a level is judged before."""
        if self._leads and type_of(envelope) == RaiseLevel.NAME:
            level = command_of(envelope).get("level")
            refusal = self.level_refusal(level) if isinstance(level, int) else None
            if refusal is not None:
                refused: asyncio.Future[Applied] = self._loop.create_future()
                error = ProposalRefusedError(ErrorCode.INVALID_UPDATE_VERSION, refusal)
                refused.set_exception(error)
                return refused
        return self._quorum.propose(envelope)

    def propose_for(self, charge: Charge, envelope: bytes) -> asyncio.Future[Applied]:
        """The same of a client that has a quota for that."""
        if not self._leads:
            return self.propose(envelope)
        try:
            self._mutations.take(charge)
        except ProposalRefusedError as refusal:
            refused: asyncio.Future[Applied] = self._loop.create_future()
            refused.set_exception(refusal)
            return refused
        future = self.propose(envelope)
        future.add_done_callback(partial(self._mutations.settle, charge))
        return future

    def describe(self, observers: Iterable[QuorumReplica]) -> QuorumDescription | None:
        """The quorum as its leader sees it; None if this voter is not the leader."""
        quorum = self._quorum
        if quorum.leader_id != quorum.voter_id:
            return None
        return QuorumDescription(
            leader_id=quorum.voter_id,
            leader_epoch=quorum.term,
            high_watermark=quorum.committed_index + 1,
            voters=tuple(QuorumReplica(*state) for state in quorum.voter_states()),
            observers=tuple(each for each in observers if each.replica_id not in quorum.voters),
            level_refusals=tuple(map(self.level_refusal, range(1, levels.LEVEL + 1))),
        )

    # -- leading

    def _leader_changed(self, leader_id: int | None, term: int) -> None:
        self._resign(leader_id)
        voter_id = self._quorum.voter_id
        if leader_id is None:
            emit(logger, logging.WARNING, "quorum-leaderless", voter=voter_id, term=term)
        else:
            emit(logger, logging.INFO, "quorum-leader", voter=voter_id, leader=leader_id, term=term)
        if leader_id != voter_id:
            return
        self._leads = True
        self._mutations.reset()
        self._liveness.lead(self._now_ms())
        if self._settings.auto_leader_rebalance_enable:
            self._begin(self._balance())
        interval_ms = self._settings.delegation_token_expiry_check_interval_ms
        self._begin(TokenExpiry(interval_ms, self._metadata, self._remove_expired).run())
        self._tick()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Something to do for as long as we lead."""
        task = self._loop.create_task(work)
        task.add_done_callback(_raise_unforeseen)
        self._tasks.append(task)

    def _resign(self, leader_id: int | None) -> None:
        self._leads = False
        self._liveness.leader_changed(leader_id is not None, self._now_ms())
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _metadata(self) -> MetadataState:
        return cast("MetadataState", self._quorum.machine)

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    # -- fencing

    def _tick(self) -> None:
        brokers = self._metadata().brokers.values()
        unfenced = {broker.id: broker.epoch for broker in brokers if not broker.fenced}
        for fencing in self._liveness.tick(unfenced, self._now_ms()):
            self._fence(fencing)
        self._raise_level_of_new_cluster()
        self._tell_suspects()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._liveness.wake_at_ms / 1000, self._tick)

    def _tell_suspects(self) -> None:
        if self._liveness.suspects != self._suspects:
            self._suspects = self._liveness.suspects
            self._on_suspects(self._suspects)

    def _fence(self, fencing: Fencing) -> None:
        emit(
            logger,
            logging.WARNING,
            "broker-session-lost",
            broker=fencing.broker_id,
            epoch=fencing.broker_epoch,
            reason=f"nothing was heard from it for {self._settings.broker_session_timeout_ms} ms"
            if fencing.is_connected
            else "its connection is gone",
        )
        self._proposer.propose(
            FenceBroker(fencing.broker_id, fencing.broker_epoch)
        ).add_done_callback(lambda future: self._fenced(fencing, future))

    def _fenced(self, fencing: Fencing, future: asyncio.Future[Applied]) -> None:
        problem = _problem(future)
        if problem is None or problem[0] in _NO_LONGER_THAT_LIFE:
            self._liveness.carried_out(fencing.broker_id, fencing.broker_epoch)
            return
        logger.warning("could not fence broker %d: %s", fencing.broker_id, problem[1])
        self._liveness.failed(fencing.broker_id, fencing.broker_epoch, self._now_ms())

    # -- the metadata level

    def level_refusal(self, level: int) -> str | None:
        """Why the metadata can't be raised to `level` now; None if it can, or is there already."""
        metadata = self._metadata()
        if level <= metadata.level:
            return None
        voters = {self._quorum.voter_id: levels.LEVEL, **self._quorum.voter_levels()}
        connected = list(self._connected_levels())
        here = {node_id for node_id, _ in connected}
        reasons = [
            f"voter {voter} is not connected" if voter not in voters else _behind("voter", voter)
            for voter in sorted(self._quorum.voters)
            if voters.get(voter, 0) < level
        ]
        # A broker that is registered and down may come back as the release that it was.
        reasons += [
            f"broker {broker} is registered and down: start it, or unregister it"
            for broker in sorted(metadata.brokers.keys() - here)
        ]
        reasons += [_behind("node", node) for node, known in sorted(connected) if known < level]
        if not reasons:
            return None
        return f"level {level} has to be known by all nodes: {'; '.join(reasons)}"

    def _raise_level_of_new_cluster(self) -> None:
        """There is nothing yet that an earlier release could have to go on with."""
        metadata = self._metadata()
        if not self._leads or self._raising or metadata.level >= levels.LEVEL:
            return
        if metadata.cluster_id is None and not metadata.brokers and not metadata.topics:
            self._raising = True
            self._proposer.propose(RaiseLevel(levels.LEVEL)).add_done_callback(self._level_raised)

    def _level_raised(self, future: asyncio.Future[Applied]) -> None:
        self._raising = False
        problem = _problem(future)
        if problem is not None:
            logger.warning("could not raise the metadata level: %s", problem[1])
        else:
            logger.info("the metadata has level %d", self._metadata().level)

    # -- balancing

    async def _balance(self) -> None:
        """Gives leaders back to the preferred replicas, now and then, for as long as we lead."""
        while True:
            await asyncio.sleep(self._settings.leader_imbalance_check_interval_seconds)
            partitions = await out_of_balance(
                self._metadata(), self._settings.leader_imbalance_per_broker_percentage
            )
            if partitions:
                emit(logger, logging.INFO, "leaders-rebalancing", partitions=len(partitions))
            for start in range(0, len(partitions), ELECTIONS_AT_ONCE):
                await asyncio.wait([self._elect(partitions[start : start + ELECTIONS_AT_ONCE])])
                await asyncio.sleep(ELECTIONS_PAUSE_S)

    def _elect(self, partitions: list[tuple[str, int]]) -> asyncio.Future[Applied]:
        topics: dict[str, list[int]] = {}
        for name, index in partitions:
            topics.setdefault(name, []).append(index)
        future = self._proposer.propose(
            ElectLeaders(
                PREFERRED, tuple(Elections(name, tuple(found)) for name, found in topics.items())
            )
        )
        future.add_done_callback(partial(_log_problem, "elect preferred leaders"))
        return future

    # -- what is over

    def _remove_expired(self, command: RemoveExpiredTokens) -> asyncio.Future[Applied]:
        future = self._proposer.propose(command)
        future.add_done_callback(partial(_log_problem, "remove expired delegation tokens"))
        return future


class _Proposer:
    """Proposals of this process, in a session of its own."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._sequences = itertools.count(1)
        self._outstanding: dict[int, None] = {}  # ascending
        self._open_session()

    def _open_session(self) -> None:
        self._client_id = os.urandom(CLIENT_ID_SIZE_BYTES)
        self._opened_at = self._quorum.applied_index

    def propose(self, command: Command) -> asyncio.Future[Applied]:
        """As `port.Quorum.propose`; a session that had expired is replaced for the next one."""
        sequence = next(self._sequences)
        self._outstanding[sequence] = None
        future = self._quorum.propose(
            pack_envelope(
                self._client_id,
                sequence,
                next(iter(self._outstanding)),
                self._opened_at,
                encode(command),
            )
        )
        future.add_done_callback(lambda future: self._done(sequence, future))
        return future

    def _done(self, sequence: int, future: asyncio.Future[Applied]) -> None:
        del self._outstanding[sequence]
        answered = not future.cancelled() and future.exception() is None
        if answered and future.result().result.value.get("session_expired"):
            self._open_session()


def _problem(future: asyncio.Future[Applied]) -> tuple[ErrorCode, str] | None:
    """Why a proposal was not carried out, or is not known to be; None if it was."""
    if future.cancelled():
        return ErrorCode.NOT_CONTROLLER, "this controller no longer leads"
    error = future.exception()
    if isinstance(error, ProposalRefusedError):
        return error.error, error.message
    if error is not None:
        raise error
    result = future.result().result
    return None if result.error is ErrorCode.NONE else (result.error, result.message or "")


def _behind(kind: str, node_id: int) -> str:
    return f"{kind} {node_id} runs a release that doesn't know it"


def _log_problem(what: str, future: asyncio.Future[Applied]) -> None:
    problem = _problem(future)
    if problem is not None:
        logger.warning("could not %s: %s", what, problem[1])


def _raise_unforeseen(task: asyncio.Task[None]) -> None:
    """A defect in a background task ends the process, as one in a callback does."""
    if not task.cancelled() and task.exception() is not None:
        error = cast("BaseException", task.exception())
        raise error
