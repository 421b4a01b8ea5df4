"""Replicas whose disk takes no writes: others lead them, until it does again.

A leader that can't append refuses every producer, though others could serve them. Kafka takes the
whole log directory offline until a restart. Here a full disk may have room again, and what is in it
can be read: only the roles that need a disk are given up.

Rules that it keeps:

* Storage says which logs failed, and a directory is tried by writing to it. If that fails too, so
  will all replicas in it; else only the one.
* One that leads hands over to another in sync, if there is one that is up: else nothing would be
  gained. One that follows, and has heard the leader, leaves the ISR at once: whoever waits for all
  of them shouldn't wait for `replica.lag.time.max.ms`. Both go the way of damaged replicas
  (`renew_replicas`), which asks for as many others in sync as need be; but the log stays.
* Out of sync it fetches nothing, or an idle partition would take it in and give it the lead again.
* Nobody has to help: when the directory takes writes, it follows and catches up. A log that is
  offline stays out until a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from kraftpy.events import emit
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.cluster.proposals import answers_by_partition
from kraftpy.server.replication.isr_proposals import IsrHost, renewal_of
from kraftpy.server.replication.partition import Partition

if TYPE_CHECKING:
    from kraftpy.storage.directory import LogDir

log = logging.getLogger(__name__)

RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0
PARTITIONS_AT_ONCE = 500
TIMEOUT_MS = 5_000

_YIELDED = frozenset({ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED})


class Fetching(Protocol):
    """The replicas of this broker, and what fetches them."""

    active_brokers: dict[int, int]

    def replicas_in(self, directory: LogDir) -> Iterable[Partition]:
        """All that are in a log directory."""

    def stop_fetching(self, partition: Partition) -> None:
        """Asks its leader for nothing more."""

    def fetch_again(self, partition: Partition) -> None:
        """Asks its leader, if it follows one."""


class UnwritableReplicas:
    """Those of one broker that are known."""

    def __init__(self, host: IsrHost, replicas: Fetching) -> None:
        self._host = host
        self._replicas = replicas
        # Those that failed since the directories were last tried, and all that are known.
        self._fresh: set[Partition] = set()
        self._found: dict[Partition, None] = {}
        self._failing: set[LogDir] = set()
        self._task: asyncio.Task[None] | None = None

    def note(self, partition: Partition) -> None:
        """A write to its log has failed."""
        self._fresh.add(partition)
        self._found[partition] = None
        if self._task is None:
            self._task = self._host.loop.create_task(self._run())

    def holds_back(self, partition: Partition) -> bool:
        """Whether it is to fetch nothing now."""
        return partition in self._found and partition.leadership is None and not partition.in_sync

    async def _run(self) -> None:
        """Gives up roles, and tries the disks, until all of them can be written again."""
        delay_s = RETRY_MIN_S
        try:
            while True:
                if self._fresh:
                    delay_s = RETRY_MIN_S
                self._try_disks()
                if not self._found:
                    return
                wanted = [each for each in self._found if self._may_yield(each)]
                if wanted and await self._propose(wanted[:PARTITIONS_AT_ONCE]):
                    delay_s = RETRY_MIN_S
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
        finally:
            self._task = None

    def _try_disks(self) -> None:
        """Adds what is in a directory that fails, and lets go of what can be written again."""
        fresh, self._fresh = self._fresh, set()
        directories = {each.log.directory for each in self._found if not each.closed}
        self._failing.intersection_update(directories)
        for directory in directories:
            problem = directory.try_writing()
            if problem is None:
                if directory in self._failing:
                    log.info("%s can be written again", directory.path)
                self._failing.discard(directory)
                continue
            if directory not in self._failing:
                path = str(directory.path)
                emit(log, logging.ERROR, "disk-failing", path=path, reason=str(problem))
            self._failing.add(directory)
            self._found.update(dict.fromkeys(self._replicas.replicas_in(directory)))
        for partition in list(self._found):
            stored = partition.log
            if partition.closed:
                del self._found[partition]
            elif not (partition in fresh or stored.offline or stored.directory in self._failing):
                del self._found[partition]
                self._replicas.fetch_again(partition)
            elif self.holds_back(partition):
                self._replicas.stop_fetching(partition)

    def _may_yield(self, partition: Partition) -> bool:
        """Whether it has a role that another, as far as is known here, can do without it."""
        leadership, following = partition.leadership, partition.following
        if leadership is not None:
            others = self._replicas.active_brokers.keys() - {self._host.node_id}
            return not others.isdisjoint(leadership.state.isr)
        return partition.in_sync and following is not None and following.validated

    async def _propose(self, wanted: list[Partition]) -> bool:
        """Whether any role was given up."""
        command = renewal_of(wanted, self._host)
        try:
            _, result = await self._host.controller.propose(command, TIMEOUT_MS)
        except KafkaError as error:
            log.warning("can't hand over what can't be written: %s", error.message)
            return False
        if result.error is not ErrorCode.NONE:
            log.warning("what can't be written can't be handed over: %s", result.message)
            return False
        answers = answers_by_partition(result)
        return any(answers[each.topic_id, each.index] in _YIELDED for each in wanted)

    def close(self) -> None:
        """Asks no more."""
        if self._task is not None:
            self._task.cancel()
