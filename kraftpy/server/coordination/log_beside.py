"""A log that a coordinator keeps beside its first one: read and lost while the machine works.

Rules:

* The machine takes requests as soon as the first log has been read. What needs the other one waits
  until that has been read, too: all that earlier leaders committed, and what a machine before this
  one has under way, in pieces.
* The two may be led by different brokers, and have epochs of their own. With another epoch of its
  own a log is read anew; with another one of the first log all is.
* A damaged batch keeps it closed: its leader is replaced then, as of any damaged log.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Generic

from kraftpy.core.coordination import Loaded
from kraftpy.events import emit
from kraftpy.protocol.errors import DecodeError, KafkaError
from kraftpy.server.coordination.partition import (
    PIECE_BYTES,
    CoordinatorPartition,
    CoordinatorPartitionHost,
    M,
    Owner,
)
from kraftpy.server.coordination.turns import Turns

log = logging.getLogger(__name__)


class LogBeside(Generic[M]):
    """The log of this number, of one partition."""

    def __init__(
        self,
        host: CoordinatorPartitionHost,
        owner: Owner[M],
        partition: CoordinatorPartition[M],
        number: int,
        turns: Turns,
    ) -> None:
        self.number = number
        self._replicas = host.replicas
        self._partition = partition
        self._topic, self._codec, _ = owner.logs[number]
        self._turns = turns
        self._epoch = -1
        self._exists = False
        self._begun = 0
        self._offset = 0
        self._counts = Loaded()

    def follow(self, epoch: int, *, exists: bool) -> None:
        """It's led here with this epoch, -1 if it isn't."""
        if (epoch, exists) == (self._epoch, self._exists):
            return
        self._epoch, self._exists = epoch, exists
        if self._partition.machine is not None:
            self.begin()

    def begin(self) -> None:
        """The machine takes requests, or the log is another one: reads it if it's led here."""
        self._begun += 1
        if self._partition.machine is None:
            return
        self._partition.close_log(self.number, exists=self._exists)
        if self._epoch >= 0:
            settled = partial(self._settled, self._begun)
            self._replicas.when_settled(self._topic, self._partition.index, settled)

    def _settled(self, begun: int, is_leader: bool) -> None:
        if is_leader:
            self._offset = 0
            self._counts = Loaded()
            self._go_on(begun)

    def _go_on(self, begun: int) -> None:
        """Replays the next piece; comes back for more after others had their turn."""
        partition, machine = self._partition, self._partition.machine
        if begun != self._begun or machine is None:
            return
        index, offset = partition.index, self._offset
        try:
            data, self._offset = self._replicas.read_batches(
                self._topic, index, offset, PIECE_BYTES
            )
            self._codec.replay(data, machine, self._counts)
        except (DecodeError, KafkaError, OSError) as error:
            self._begun += 1
            self._replicas.refused(self._topic, index, offset, PIECE_BYTES)
            name = f"{self._topic}-{index}"
            reason = str(error)
            emit(
                log,
                logging.ERROR,
                "coordinator-failed",
                partition=name,
                offset=offset,
                reason=reason,
            )
            return
        if self._offset > offset:
            self._turns.soon(partial(self._go_on, begun))
            return
        if self._counts.problem:
            log.error("%s-%d: skipped %s", self._topic, index, self._counts.problem)
        partition.open_log(self.number, offset - 1)
