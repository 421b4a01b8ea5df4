"""Where partitions end that other brokers lead: the exporter asks their leaders, as any client.

A group's lag needs the high watermarks of what it reads; its coordinator knows those that it leads
itself. Rules:

* Asked lazily, by a thread with an event loop that begins with the first question, and with
  ListOffsets of at most `BATCH_MAX` partitions, one at a time for each leader: no broker is held up
  by it for longer than by one small request.
* An answer is good for `FRESH_S`, unless something was committed beyond it. A partition whose
  leader doesn't answer keeps its last one for `KEPT_S`, and has none afterwards: while nobody leads
  it, it doesn't grow.
* `ask` returns when its time is over, with what it has. Those that were asked longest ago come
  first, so that all get their turn where there are more than fit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from itertools import islice

from kraftpy.client.cluster import Cluster
from kraftpy.client.offsets import LATEST, Partition, list_offsets_request
from kraftpy.client.security import NO_SECURITY, Secures
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import KafkaError

BATCH_MAX = 50
TOPICS_MAX = 200
FRESH_S = 2.0
KEPT_S = 30.0
_CONNECT_TIMEOUT_MS = 1_000
_REQUEST_TIMEOUT_MS = 2_000
_ATTEMPTS = 2

logger = logging.getLogger(__name__)


class LogEnd(NamedTuple):
    """A high watermark that the leader named, and when it was asked (`time.monotonic()`)."""

    offset: int
    asked_at: float


class LogEnds:
    """Asks and remembers; for one thread at a time."""

    def __init__(self, security: Secures = NO_SECURITY) -> None:
        self._security = security
        self._known: dict[Partition, LogEnd] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: Cluster | None = None

    def ask(
        self, bootstrap: str, wanted: Mapping[Partition, int], timeout_s: float
    ) -> dict[Partition, LogEnd]:
        """The ends of partitions as far as they are known after `timeout_s` at most.

        `bootstrap` is where to begin, `wanted` has the highest offset that was committed for each
        partition: an end that was learned before that isn't good any more.
        """
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True, name="log-ends").start()
        asking = asyncio.run_coroutine_threadsafe(
            self._refresh(bootstrap, wanted, timeout_s), self._loop
        )
        asking.result()
        return {name: end for name in wanted if (end := self._known.get(name)) is not None}

    async def _refresh(
        self, bootstrap: str, wanted: Mapping[Partition, int], timeout_s: float
    ) -> None:
        now = time.monotonic()
        self._known = {
            name: end
            for name, end in self._known.items()
            if name in wanted and end.asked_at > now - KEPT_S
        }
        if self._cluster is None:
            self._cluster = Cluster(
                bootstrap,
                client_id="kraftpy-metrics",
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
                connect_timeout_ms=_CONNECT_TIMEOUT_MS,
                security=self._security,
            )
        missing = {
            name
            for name, committed in wanted.items()
            if (end := self._known.get(name)) is None
            or end.asked_at < now - FRESH_S
            or end.offset < committed
        }
        self._forget_topics({topic for topic, _ in wanted})
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(_ATTEMPTS):
                    missing = await self._ask_leaders(missing)
                    if not missing:
                        return
                    # A broker that failed may have lost the leadership, or the topic is gone.
                    for topic in {topic for topic, _ in missing}:
                        self._cluster.topics.pop(topic, None)
        except TimeoutError:
            logger.debug("the ends of %d partitions were not told in time", len(missing))

    def _forget_topics(self, wanted: set[str]) -> None:
        assert self._cluster is not None
        for topic in self._cluster.topics.keys() - wanted:
            del self._cluster.topics[topic]

    async def _ask_leaders(self, missing: Iterable[Partition]) -> set[Partition]:
        """Asks once; the partitions that nobody told of."""
        assert self._cluster is not None
        await self._learn_leaders({topic for topic, _ in missing} - self._cluster.topics.keys())
        by_leader: dict[int, list[Partition]] = {}
        failed: set[Partition] = set()
        for name in sorted(missing, key=self._asked_at):
            try:
                by_leader.setdefault(self._cluster.leader(*name), []).append(name)
            except KafkaError:
                failed.add(name)
        told = await asyncio.gather(
            *(self._ask_leader(leader, names) for leader, names in by_leader.items())
        )
        return failed.union(*told)

    def _asked_at(self, name: Partition) -> float:
        end = self._known.get(name)
        return 0.0 if end is None else end.asked_at

    async def _learn_leaders(self, topics: Iterable[str]) -> None:
        assert self._cluster is not None
        names = iter(sorted(topics))
        while piece := list(islice(names, TOPICS_MAX)):
            try:
                await self._cluster.refresh(piece)
            except (ConnectionError, KafkaError) as error:
                logger.debug("the leaders of %d topics can't be learned: %s", len(piece), error)
                return

    async def _ask_leader(self, leader: int, names: list[Partition]) -> set[Partition]:
        assert self._cluster is not None
        failed: set[Partition] = set()
        for start in range(0, len(names), BATCH_MAX):
            batch = names[start : start + BATCH_MAX]
            asked_at = time.monotonic()
            try:
                response = await self._cluster.request(
                    list_offsets_request(dict.fromkeys(batch, LATEST)), node_id=leader
                )
            except (ConnectionError, KafkaError) as error:
                logger.debug("broker %d doesn't tell where partitions end: %s", leader, error)
                return failed.union(names[start:])
            failed.update(batch)
            for topic in response.topics:
                for partition in topic.partitions:
                    name = (topic.name, partition.partition_index)
                    if not partition.error_code and name in failed:
                        failed.discard(name)
                        self._known[name] = LogEnd(partition.offset, asked_at)
        return failed
