"""What a consumer's user commits, and what the group has committed.

`Consumer` is the one class that has it; what is done it says itself (`_done`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from kraftpy.client.claims import read_progress
from kraftpy.client.commits import Claiming, Commits, Done
from kraftpy.client.consumer_records import ConsumerRecord
from kraftpy.client.consumer_shares import ConsumerShares
from kraftpy.client.coordinator import Coordinator
from kraftpy.client.group import GroupTimes
from kraftpy.client.ledger import Claim
from kraftpy.client.offsets import Offset, OffsetAndMetadata, Partition
from kraftpy.client.reading import Reading


class ConsumerCommits:
    """The part of `Consumer` that is about commits."""

    _coordinator: Coordinator | None
    _commits: Commits | None
    _shares: ConsumerShares
    _reading: Reading
    _times: GroupTimes
    _explicit_done: bool
    _done_count: int
    _closed: bool

    def _done(self, offsets: Mapping[Partition, Offset] | None = None) -> Done:
        raise NotImplementedError

    async def commit(
        self, offsets: Mapping[Partition, Offset] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commits what is done (or these offsets: each that of the next record to process).

        That are the positions, and of slices and with `explicit_done` claims on what isn't claimed.
        `OffsetAndMetadata` keeps a text with an offset.

        All of them or none; what an error leaves open is said at `Coordinator.commit`.
        Raises KafkaError, and the last `ConnectionError` when the coordinator can't be reached.
        After UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION somebody else has the partitions, and
        processes the records again; poll to join again.
        """
        commits = self._group_commits()
        await commits.commit(self._done(offsets), timeout_ms=timeout_ms)

    def commit_async(self, offsets: Mapping[Partition, Offset] | None = None) -> asyncio.Task[None]:
        """Commits without waiting, in order with all other commits; the task has the result."""
        commits = self._group_commits()
        return commits.soon(self._done(offsets))

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The group's committed offsets; partitions without one are left out."""
        return await self._offsets_of().committed(partitions)

    async def committed_with_metadata(
        self, partitions: Iterable[Partition]
    ) -> dict[Partition, OffsetAndMetadata]:
        """The same with the texts that were committed with them."""
        return await self._offsets_of().committed_with_metadata(partitions)

    async def committed_ranges(
        self, partitions: Iterable[Partition]
    ) -> dict[Partition, list[Claim]]:
        """What the group has claimed of these partitions above its committed offsets."""
        found = await read_progress(self._offsets_of(), partitions)
        return {name: progress.claims for name, progress in found.items()}

    def _holes(self) -> Mapping[Partition, Claiming]:
        return self._shares.holes_of(self._reading.assigned)

    async def _commit_processed(self, partitions: Iterable[Partition]) -> None:
        if self._commits is not None:
            done = self._shares.done_of(self._reading.processed, partitions)
            await self._commits.before_giving_up(done, self._times.session_timeout_ms // 2)

    async def _commit_claims(self, partitions: Iterable[Partition]) -> None:
        """The same of what the user has done of slices when he was told that they go."""
        await self._commit_processed([p for p in partitions if p in self._shares.ledgers])

    def done(self, record: ConsumerRecord[Any, Any]) -> None:
        """With `explicit_done`: this record is processed, in whatever order.

        It is committed with the next commit. Of a record that went to another member in the
        meantime nothing is noted: that one processes it, too.
        """
        if not self._explicit_done:
            raise ValueError("done() is for consumers with explicit_done=True")
        ledger = self._shares.ledgers.get((record.topic, record.partition))
        if ledger is not None and ledger.done(record.offset):
            self._done_count += 1

    @property
    def coordinator_id(self) -> int | None:
        """The broker that coordinates the group; None while it isn't known, or without a group."""
        return None if self._coordinator is None else self._coordinator.node_id

    def _offsets_of(self) -> Coordinator:
        if self._coordinator is None:
            raise ValueError("committing needs a group_id")
        return self._coordinator

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the consumer is closed")

    def _group_commits(self) -> Commits:
        self._check_open()
        if self._commits is None:
            raise ValueError("committing needs a group_id")
        return self._commits
