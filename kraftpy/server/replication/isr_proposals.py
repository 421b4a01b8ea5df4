"""How leaders change in-sync replicas: AlterPartition, many partitions in one command (KIP-497).

Rules: what is to be proposed is decided by `core.replication.Leadership`, one change of a partition
at a time; this module asks the partitions and carries the proposals to the quorum. A growing ISR is
proposed soon (BATCH_DELAY_S collects the partitions that catch up together), a shrinking one when
the clock shows it, twice in `replica.lag.time.max.ms`. One command is under way at a time, and what
comes meanwhile goes with the next. The new state comes back with the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.metadata.commands import (
    AlterPartition,
    InSync,
    ProposedIsr,
    ProposedIsrs,
    RenewedReplica,
    RenewedReplicas,
    RenewReplicas,
)
from kraftpy.core.replication import IsrProposal
from kraftpy.core.replication.leader import PROPOSAL_BACKOFF_MS
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.cluster.proposals import Proposer, answers_by_partition
from kraftpy.server.replication.partition import Partition

log = logging.getLogger(__name__)

BATCH_DELAY_S = 0.001
PARTITIONS_AT_ONCE = 500
"""To look at and to propose: about 5 ms of this loop's time, and of everybody's who applies it."""
TIMEOUT_MS = 5_000

Proposed = tuple[Partition, IsrProposal]


class IsrHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def controller(self) -> Proposer: ...


def renewal_of(partitions: Iterable[Partition], host: IsrHost) -> RenewReplicas:
    """The command `renew_replicas`: what this broker has of them is no replica in sync any more."""
    topics: dict[bytes, list[RenewedReplica]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic_id, []).append(
            RenewedReplica(partition.index, partition.leader_epoch)
        )
    return RenewReplicas(
        host.node_id,
        host.broker_epoch,
        tuple(RenewedReplicas(id_, tuple(each)) for id_, each in topics.items()),
    )


class IsrProposals:
    """Proposes the ISR changes of all partitions that this broker leads."""

    def __init__(self, host: IsrHost) -> None:
        self._host = host
        self._interested: dict[Partition, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._checked_s = 0.0

    def _now_ms(self) -> int:
        return int(self._host.loop.time() * 1000)

    def look_at(self, partition: Partition) -> None:
        """A replica of the partition may join its ISR."""
        self._interested[partition] = None
        self._start_in(BATCH_DELAY_S)

    def _start_in(self, delay_s: float) -> None:
        if self._timer is None and self._under_way is None:
            self._timer = self._host.loop.call_later(delay_s, self._start)

    def tick(self, led: Iterable[Partition]) -> None:
        """Looks for replicas that lag, as often as need be."""
        now_s = self._host.loop.time()
        if (now_s - self._checked_s) * 1000 >= self._host.config.replica_lag_time_max_ms / 2:
            self._checked_s = now_s
            self._interested.update(dict.fromkeys(led))
            self._start_in(0)

    def _start(self) -> None:
        self._timer = None
        proposed: list[Proposed] = []
        now_ms = self._now_ms()
        for _ in range(min(len(self._interested), PARTITIONS_AT_ONCE)):
            partition, _ = self._interested.popitem()
            proposal = partition.propose_isr(now_ms)
            if proposal is not None:
                proposed.append((partition, proposal))
        if proposed:
            self._under_way = self._host.loop.create_task(self._propose(proposed))
            self._under_way.add_done_callback(self._done)
        elif self._interested:
            self._start_in(0)

    def _done(self, _: asyncio.Task[None]) -> None:
        self._under_way = None
        if self._interested:
            self._start_in(BATCH_DELAY_S)

    async def _propose(self, proposed: list[Proposed]) -> None:
        command = AlterPartition(self._host.node_id, self._host.broker_epoch, _by_topic(proposed))
        try:
            _, result = await self._host.controller.propose(command, TIMEOUT_MS)
        except KafkaError as error:
            unknown = error.code is ErrorCode.REQUEST_TIMED_OUT
            log.warning("can't propose in-sync replicas: %s", error.message)
            self._failed(proposed, error.code, unknown=unknown)
            return
        if result.error is not ErrorCode.NONE:
            log.warning("the quorum refused in-sync replicas: %s", result.message)
            self._failed(proposed, result.error, unknown=False)
            return
        answers = answers_by_partition(result)
        now_ms = self._now_ms()
        for partition, proposal in proposed:
            verdict = answers[partition.topic_id, partition.index]
            partition.isr_answered(proposal, verdict, now_ms)
            if verdict not in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
                log.info("in-sync replicas of %s stay for now: %s", partition, verdict.name)
                self._again(partition)

    def _failed(self, proposed: list[Proposed], error: ErrorCode, *, unknown: bool) -> None:
        now_ms = self._now_ms()
        for partition, proposal in proposed:
            if unknown:
                partition.isr_unanswered(proposal, now_ms)
            else:
                partition.isr_answered(proposal, error, now_ms)
            self._again(partition)

    def _again(self, partition: Partition) -> None:
        """Looks at the partition once more when its proposal may be repeated."""
        self._host.loop.call_later(2 * PROPOSAL_BACKOFF_MS / 1000, self.look_at, partition)

    def close(self) -> None:
        """Proposes nothing more."""
        self._interested.clear()
        for waiting in (self._timer, self._under_way):
            if waiting is not None:
                waiting.cancel()


def _by_topic(proposed: list[Proposed]) -> tuple[ProposedIsrs, ...]:
    topics: dict[bytes, list[ProposedIsr]] = {}
    for partition, proposal in proposed:
        topics.setdefault(partition.topic_id, []).append(
            ProposedIsr(
                partition.index,
                proposal.leader_epoch,
                proposal.partition_epoch,
                tuple([InSync(*each) for each in proposal.isr]),
            )
        )
    return tuple(ProposedIsrs(id_, tuple(partitions)) for id_, partitions in topics.items())
