"""Where a consumer goes on in its partitions: looked up, changed, and paused.

`Consumer` is the one class that has it; a position changes at once, and in the next `poll` the
records are those from there on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer_shares import ConsumerShares
from kraftpy.client.coordinator import Generation
from kraftpy.client.offsets import LATEST, Partition, list_offsets
from kraftpy.client.reading import Reading


class ConsumerPositions:
    """The part of `Consumer` that is about positions."""

    _cluster: Cluster
    _reading: Reading
    _shares: ConsumerShares
    _generation: Generation
    _isolation: int
    _wake: asyncio.Event

    def _check_assigned(self, name: Partition) -> None:
        if name not in self._reading.assigned:
            raise ValueError(f"{name[0]}-{name[1]} is not assigned to this consumer")

    def seek(self, partition: Partition, offset: int) -> None:
        """Goes on from an offset; `EARLIEST` and `LATEST` are for `seek_to`."""
        self._check_assigned(partition)
        self._shares.refuse_leasing("seek")
        if offset < 0:
            raise ValueError(f"{offset} is no offset")
        self._reading.seek(partition, offset)

    def rewind(self) -> None:
        """Goes on from what the group has committed: what a transaction that was aborted had read
        comes again.
        """
        self._reading.rewind()

    async def seek_to(self, when: int, partitions: Iterable[Partition] | None = None) -> None:
        """Goes on from `EARLIEST`, `LATEST` or the first record at or after a time (ms).

        Without a record that young a partition goes on from its end. All partitions by default.
        """
        names = sorted(self._reading.assigned if partitions is None else partitions)
        self._shares.refuse_leasing("seek_to")
        for name in names:
            self._check_assigned(name)
        offsets = await self.offsets_for_times(dict.fromkeys(names, when))
        late = [name for name, offset in offsets.items() if offset < 0]
        offsets |= await self.offsets_for_times(dict.fromkeys(late, LATEST))
        for name, offset in offsets.items():
            if name in self._reading.assigned:
                self._reading.seek(name, offset)

    async def position(self, partition: Partition) -> int:
        """The offset of the record that comes next of an assigned partition."""
        self._check_assigned(partition)
        return await self._reading.position(partition, self._generation)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hands out nothing of these partitions until they are resumed, but keeps them."""
        for name in partitions:
            self._check_assigned(name)
            self._reading.pause(name)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Takes paused partitions up again where they were left."""
        for name in partitions:
            self._check_assigned(name)
            self._reading.resume(name)
        self._wake.set()

    @property
    def paused(self) -> frozenset[Partition]:
        """The partitions that are paused."""
        return frozenset(self._reading.paused)

    async def offsets_for_times(self, times_ms: Mapping[Partition, int]) -> dict[Partition, int]:
        """The first offset at or after a time, or -1; `EARLIEST` and `LATEST` are times too."""
        return await list_offsets(self._cluster, times_ms, isolation=self._isolation)
