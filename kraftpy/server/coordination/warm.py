"""The machine of a partition that this broker follows, read along so that it can take over at once.

Rules that it keeps:

* Only what is below the high watermark is read. So nothing is taken in that an election takes back,
  unless the election is unclean. All is read anew where it's another log than what was read, or may
  have lost tombstones by cleaning that weren't read yet (`replication.reading_along`).
* It is a copy: it takes no requests, has no deadlines, and forgets nothing by itself. What expires
  it hears of as its leader writes it.
* It's read along once a second, in pieces, and what is new since then when it's taken over. What
  can't be read is left alone until somebody leads the partition, who has to do something about it.

Source: seed 000 ("All replicas will keep the in-memory lookup structure").
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic

from kraftpy.core.coordination import Loaded
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.server.coordination.partition import PIECE_BYTES, CoordinatorLog, M, PartitionLog
from kraftpy.server.coordination.turns import Turns
from kraftpy.server.replication.reading_along import Place

log = logging.getLogger(__name__)


class Warm(Generic[M]):
    """One partition's. `machine` has been told of all that is before `place`."""

    def __init__(
        self,
        replicas: PartitionLog,
        topic_log: CoordinatorLog[M],
        index: int,
        turns: Turns,
        new_machine: Callable[[int], M],
        now_ms: Callable[[], int],
    ) -> None:
        self.index = index
        self._replicas = replicas
        self._log = topic_log
        self._turns = turns
        self._new_machine = new_machine
        self._now_ms = now_ms
        self._is_reading = False
        self._is_over = False
        self._begin()

    def _begin(self) -> None:
        # The machines that are read along know no leader epoch.
        self.machine = self._new_machine(-1)
        self.counts = Loaded()
        self.place: Place | None = None

    def read_along(self) -> None:
        """Reads what is new, in pieces."""
        if not self._is_reading and not self._is_over:
            self._is_reading = True
            self._turns.soon(self._go_on)

    def _go_on(self) -> None:
        if self._is_over:
            return
        topic, codec, _ = self._log
        place = self.place
        if place is not None and not self._replicas.has_place(topic, self.index, place):
            self._forget()
            place = None
        try:
            data, self.place = self._replicas.read_along(topic, self.index, place, PIECE_BYTES)
            codec.replay(data, self.machine, self.counts)
        except (DecodeError, KafkaError, OSError) as error:
            log.warning("%s-%d isn't read along here: %s", topic, self.index, error)
            self.close()
            return
        if data:
            self._turns.soon(self._go_on)
        else:
            self._is_reading = False

    def take(self) -> tuple[M, Loaded, int] | None:
        """The machine, what it was told of, and the offset to go on from; None: read it all."""
        place, topic = self.place, self._log.topic
        if self._is_over or place is None:
            return None
        if not self._replicas.has_place(topic, self.index, place):
            self.close()
            return None
        self._is_over = True
        return self.machine, self.counts, place.offset

    def close(self) -> None:
        """Nobody will take it."""
        self._is_over = True
        self._forget()

    def _forget(self) -> None:
        self.machine.close(ErrorCode.NOT_COORDINATOR, self._now_ms())
        self._begin()
