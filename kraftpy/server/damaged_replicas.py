"""Replicas whose records the disk has damaged while the broker ran: given up, and fetched again.

A closed segment isn't checked when it is read (nor in Kafka), and after a crash not below the
recovery point. So damage is found by whoever needs the records: a follower that begins late, a
group coordinator that loads. It would find no end if the one who has the damage led for ever.

Rules that it keeps:

* Nobody is believed: what is suspected is read here, and has to fail its CRC-32C check.
* The log stays, and serves, until the quorum has let this replica begin anew (`renew_replicas`):
  enough others are in sync then, and nobody counts with this one (`may_begin_anew`). One that leads
  and is needed to make up min.insync.replicas hands over its lead, and stays in sync meanwhile.
* What is damaged is kept, under another name.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any, Final

from kraftpy.core.metadata import PartitionState
from kraftpy.core.replication import may_begin_anew
from kraftpy.events import emit
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.records import split_batches
from kraftpy.server.isr_proposals import IsrHost
from kraftpy.server.partition import Partition
from kraftpy.storage.log import Log

log = logging.getLogger(__name__)

LOOK_BYTES_MAX: Final = 16 << 20
LOOK_INTERVAL_S: Final = 0.05
"""A follower whose disk is full asks for everything again and again."""
RETRY_S: Final = 2.0
PARTITIONS_AT_ONCE: Final = 500
TIMEOUT_MS: Final = 5_000


class DamagedReplicas:
    """Those of one broker that are known."""

    def __init__(self, host: IsrHost) -> None:
        self._host = host
        self._found: dict[Partition, None] = {}
        self._looked_s = -LOOK_INTERVAL_S
        self._task: asyncio.Task[None] | None = None

    def refetched(self, partition: Partition, offset: int, size_bytes: int) -> None:
        """A follower asks once more for what it was sent; it may have a reason of its own."""
        now_s = self._host.loop.time()
        if now_s - self._looked_s >= LOOK_INTERVAL_S:
            self._looked_s = now_s
            self.suspect(partition, offset, size_bytes)

    def suspect(self, partition: Partition, offset: int, size_bytes: int) -> None:
        """Somebody can't use what the partition's log has from the offset on: looks why."""
        if partition in self._found:
            return
        reason = damage_at(partition.log, offset, min(size_bytes, LOOK_BYTES_MAX))
        if reason is None:
            return
        emit(log, logging.ERROR, "replica-damaged", partition=str(partition), reason=reason)
        self._found[partition] = None
        if self._task is None:
            self._task = self._host.loop.create_task(self._renew())

    def may_begin_anew(self, partition: Partition, state: PartitionState) -> bool:
        """Whether its log is damaged, and nobody counts with it in this state."""
        if partition not in self._found:
            return False
        return may_begin_anew(state, self._host.node_id, partition.leader_epoch)

    async def _renew(self) -> None:
        """Asks the quorum until all of them have been closed, as those are that began anew."""
        said: dict[Partition, ErrorCode] = {}
        try:
            while True:
                for partition in [each for each in self._found if each.closed]:
                    del self._found[partition]
                if not self._found:
                    return
                await self._propose(list(self._found)[:PARTITIONS_AT_ONCE], said)
                await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _propose(self, wanted: list[Partition], said: dict[Partition, ErrorCode]) -> None:
        topics: dict[bytes, list[dict[str, int]]] = {}
        for partition in wanted:
            topics.setdefault(partition.topic_id, []).append(
                {"index": partition.index, "leader_epoch": partition.leader_epoch}
            )
        command: dict[str, Any] = {
            "type": "renew_replicas",
            "broker_id": self._host.node_id,
            "broker_epoch": self._host.broker_epoch,
            "topics": [{"topic_id": id_, "partitions": each} for id_, each in topics.items()],
        }
        try:
            _, result = await self._host.controller.propose(command, TIMEOUT_MS)
        except KafkaError as error:
            log.warning("can't ask for damaged replicas to begin anew: %s", error.message)
            return
        if result.error is not ErrorCode.NONE:
            log.warning("damaged replicas can't begin anew: %s", result.message)
            return
        answers = {
            (topic["topic_id"], answer["index"]): ErrorCode(answer["error"])
            for topic in result.value["topics"]
            for answer in topic["partitions"]
        }
        for partition in wanted:
            error_code = answers[partition.topic_id, partition.index]
            if error_code is ErrorCode.NOT_ENOUGH_REPLICAS and said.get(partition) != error_code:
                log.error(
                    "%s is damaged here and not given up yet: it is needed for as many as "
                    "min.insync.replicas to be in sync; bring back the brokers of its other "
                    "replicas, or give it some",
                    partition,
                )
            said[partition] = error_code

    def close(self) -> None:
        """Asks no more."""
        if self._task is not None:
            self._task.cancel()


def damage_at(stored: Log, offset: int, size_bytes: int) -> str | None:
    """Why what the log has from the offset on is no good; None if it is, or can't be read now."""
    try:
        result = stored.read(offset, size_bytes, upper_offset=stored.log_end_offset)
        split_batches(memoryview(b"".join(piece.read() for piece in result.slices)))
    except DecodeError as error:
        return str(error)
    except KafkaError as error:
        return error.message if error.code is ErrorCode.CORRUPT_MESSAGE else None
    except OSError as error:
        return str(error) if error.errno == errno.EIO else None
    return None
