"""What users are told of when partitions and parts of them come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kraftpy.client.offsets import Partition

Slices = Mapping[Partition, Sequence[tuple[int, int]]]
"""First and last hashes by partition; an empty sequence is the whole partition."""


class RebalanceListener:
    """What a user wants to do when partitions come and go; override what is needed.

    The methods are awaited inside `poll`; partitions are sorted. The group waits for `revoked`,
    but not longer than `max_poll_interval_ms`. Those of `shares` come first and tell of everything
    that changes; the others only of partitions that come or go altogether.
    """

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        """These are this consumer's from now on; no record of them was handed out yet."""

    async def revoked(self, partitions: Sequence[Partition]) -> None:
        """These are about to go to other members: the last moment to commit."""

    async def lost(self, partitions: Sequence[Partition]) -> None:
        """These may belong to others already: too late to commit. By default as `revoked`."""
        await self.revoked(partitions)

    async def shares_assigned(self, shares: Slices) -> None:
        """The records of these partitions with these hashes are this consumer's from now on."""

    async def shares_revoked(self, shares: Slices) -> None:
        """These are about to go to other members; what isn't done then, they do."""

    async def shares_lost(self, shares: Slices) -> None:
        """These may belong to others already. By default as `shares_revoked`."""
        await self.shares_revoked(shares)
