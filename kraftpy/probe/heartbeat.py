"""The heartbeat topic: made on demand, and spread anew when brokers come and go.

Rules:

* A broker that is down is waited for (`GONE_AFTER_S`): restarts move nothing. One that is new gets
  a partition to lead at once.
* Only this topic is touched. Whatever goes wrong is tried again at the next look.
"""

from __future__ import annotations

import logging
import time

from kraftpy.client.cluster import Cluster
from kraftpy.client.cluster_admin import PREFERRED_ELECTION, ClusterAdmin, PartitionName
from kraftpy.probe.spread import REPLICAS_MAX, plan
from kraftpy.protocol.errors import ErrorCode, KafkaError

GONE_AFTER_S = 60.0
_TIMEOUT_MS = 10_000
_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "600000",
    "segment.ms": "600000",
    "segment.bytes": str(1024 * 1024),
}

logger = logging.getLogger(__name__)


class Heartbeat:
    """The topic `name`, through a `Cluster` that is the caller's to close."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.brokers: frozenset[int] = frozenset()
        """The brokers that are up, as of the last look."""
        self.leaders: dict[int, int] = {}
        """The leader of each partition as of the last look, -1 for none."""
        self._admin = ClusterAdmin(cluster, timeout_ms=_TIMEOUT_MS)
        self._last_up: dict[int, float] = {}

    @property
    def covered(self) -> int:
        """How many of the brokers lead a partition."""
        return len(self.brokers & set(self.leaders.values()))

    async def look(self) -> None:
        """Looks, and changes what isn't as it should be. Raises what the client does."""
        now = time.monotonic()
        info = await self._admin.describe_cluster()
        self.brokers = frozenset(id_ for id_, each in info.brokers.items() if not each.fenced)
        self._last_up |= dict.fromkeys(self.brokers, now)
        counted = [id_ for id_, at in self._last_up.items() if at > now - GONE_AFTER_S]
        self._last_up = {id_: self._last_up[id_] for id_ in counted}
        await self._create_if_missing()
        await self._spread(counted)

    async def _create_if_missing(self) -> None:
        try:
            await self._admin.describe_partitions([self.name])
            return
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        try:
            await self._admin.create_topic(
                self.name,
                partitions=len(self.brokers),
                replication_factor=min(REPLICAS_MAX, len(self.brokers)),
                configs=_CONFIGS,
            )
            logger.info("created the topic %s", self.name)
        except KafkaError as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def _spread(self, counted: list[int]) -> None:
        found = await self._admin.describe_partitions([self.name])
        self.leaders = {each.index: each.leader for each in found.values()}
        todo = plan(counted, {each.index: each.replicas for each in found.values()})
        if todo.partitions > len(found):
            await self._admin.create_partitions(self.name, todo.partitions)
            logger.info("the topic %s has %d partitions now", self.name, todo.partitions)
        under_way = await self._admin.list_reassignments()
        moves = {
            PartitionName(self.name, index): replicas
            for index, replicas in todo.moves.items()
            if PartitionName(self.name, index) not in under_way
        }
        if moves:
            for name, error in (await self._admin.alter_reassignments(moves)).items():
                logger.info("%s moves to brokers %s: %s", name, moves[name], error or "begun")
        to_elect = [
            name
            for name, each in found.items()
            if name not in under_way
            and each.index not in todo.moves
            and each.leader != each.replicas[0]
            and each.replicas[0] in self.brokers
            and each.replicas[0] in each.isr
        ]
        if to_elect:
            await self._admin.elect_leaders(PREFERRED_ELECTION, to_elect)
