"""Replicas whose records the disk has damaged while the broker ran: given up, and fetched again.

A closed segment isn't checked when it is read (nor in Kafka), and after a crash not below the
recovery point. So damage is found by whoever needs the records: a follower that begins late, a
group coordinator that loads, a consumer that checks what it gets. It would find no end if the one
who has the damage led for ever.

Rules that it keeps:

* Nobody is believed: what is suspected is read here, and has to fail its CRC-32C check.
* The log stays, and serves, until the quorum has let this replica begin anew (`renew_replicas`):
  enough others are in sync then, and nobody counts with this one (`may_begin_anew`). One that leads
  hands over its lead and stays in sync; it is given up when the new leader has answered it.
* What is damaged is kept, under another name.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import OrderedDict
from typing import Final

from kraftpy.core.metadata import PartitionState
from kraftpy.core.replication import may_begin_anew
from kraftpy.events import emit
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.key_index import KeyRanges
from kraftpy.protocol.records import split_batches
from kraftpy.server.cluster.proposals import answers_by_partition
from kraftpy.server.replication.isr_proposals import IsrHost, renewal_of
from kraftpy.server.replication.partition import Partition
from kraftpy.storage.log import Log

log = logging.getLogger(__name__)

LOOK_BYTES_MAX: Final = 16 << 20
LOOK_INTERVAL_S: Final = 0.05
"""A follower whose disk is full asks for everything again and again."""
REREADS: Final = 3
READERS_MAX: Final = 10_000
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
PARTITIONS_AT_ONCE: Final = 500
TIMEOUT_MS: Final = 5_000

Reader = tuple[str, str | bytes, int, KeyRanges | None]
"""A client's address, a topic by name or id, a partition, and the slices that are wanted of it:
members that share a partition may all be at one address.
"""


class Rereads:
    """Consumers that are sent the same records again and again: whatever is wrong, they are stuck.

    Nothing in the protocol says that a client can't use what it got; it just asks again.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[Reader, tuple[int, int]] = OrderedDict()

    def note(self, reader: Reader, offset: int) -> bool:
        """It is sent what is at the offset; whether it was so often that somebody should look."""
        last = self._last.get(reader)
        if last is None and len(self._last) >= READERS_MAX:
            self._last.popitem(last=False)
        times = last[1] + 1 if last is not None and last[0] == offset else 0
        self._last[reader] = offset, times
        return times > 0 and times % REREADS == 0


class DamagedReplicas:
    """Those of one broker that are known."""

    def __init__(self, host: IsrHost) -> None:
        self._host = host
        self._found: dict[Partition, None] = {}
        self._looked_s = -LOOK_INTERVAL_S
        self._task: asyncio.Task[None] | None = None

    def refetched(self, partition: Partition, offset: int, size_bytes: int) -> None:
        """Somebody asks once more for what it was sent; it may have a reason of its own."""
        now_s = self._host.loop.time()
        if partition not in self._found and now_s - self._looked_s >= LOOK_INTERVAL_S:
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
        said: set[Partition] = set()
        count, delay_s = 0, RETRY_MIN_S
        try:
            while True:
                for partition in [each for each in self._found if each.closed]:
                    del self._found[partition]
                if not self._found:
                    return
                delay_s = min(2 * delay_s, RETRY_MAX_S)
                if len(self._found) != count:
                    count, delay_s = len(self._found), RETRY_MIN_S
                wanted = [each for each in self._found if _may_ask(each)][:PARTITIONS_AT_ONCE]
                for partition in wanted:  # the others come first next time
                    self._found[partition] = self._found.pop(partition)
                if wanted:
                    await self._propose(wanted, said)
                await asyncio.sleep(delay_s)
        finally:
            self._task = None

    async def _propose(self, wanted: list[Partition], said: set[Partition]) -> None:
        command = renewal_of(wanted, self._host)
        try:
            _, result = await self._host.controller.propose(command, TIMEOUT_MS)
        except KafkaError as error:
            log.warning("can't ask for damaged replicas to begin anew: %s", error.message)
            return
        if result.error is not ErrorCode.NONE:
            log.warning("damaged replicas can't begin anew: %s", result.message)
            return
        answers = answers_by_partition(result)
        for partition in wanted:
            answer = answers[partition.topic_id, partition.index]
            if answer is ErrorCode.NOT_ENOUGH_REPLICAS and partition not in said:
                said.add(partition)
                log.error(
                    "%s is damaged here and not given up yet, because too few others are in sync: "
                    "bring back the brokers of its other replicas, or give it some",
                    partition,
                )

    def close(self) -> None:
        """Asks no more."""
        if self._task is not None:
            self._task.cancel()


def _may_ask(partition: Partition) -> bool:
    """Whether it leads, or follows one that is known to be there."""
    following = partition.following
    return partition.leadership is not None or (following is not None and following.validated)


def damage_at(stored: Log, offset: int, size_bytes: int) -> str | None:
    """Why what the log has from the offset on is no good; None if it is, or can't be read now."""
    try:
        result = stored.read(offset, size_bytes, upper_offset=stored.log_end_offset)
        data = memoryview(b"".join(piece.read() for piece in result.slices))
        headers = [header for _, header in split_batches(data)]
    except DecodeError as error:
        return str(error)
    except KafkaError as error:
        return error.message if error.code is ErrorCode.CORRUPT_MESSAGE else None
    except OSError as error:
        return str(error) if error.errno == errno.EIO else None
    # No checksum covers offsets and leader epochs. Compaction leaves gaps; DeleteRecords may cut.
    least_offset, epoch = 0, 0
    for header in headers:
        if not least_offset <= header.base_offset <= header.last_offset < stored.log_end_offset:
            return f"a batch behind offset {least_offset} begins at {header.base_offset}"
        if not epoch <= header.partition_leader_epoch <= stored.leader_epochs.latest:
            return f"a batch behind offset {least_offset} is of a wrong leader epoch"
        least_offset, epoch = header.last_offset + 1, header.partition_leader_epoch
    if headers and headers[0].last_offset < offset:
        return f"the batch of offset {offset} ends at {headers[0].last_offset}"
    return None
