"""A consumer's commits: when they are made, in which order, and as whom.

Rules:

* Commits leave one after the other in the order in which they were made, each with the generation
  of that moment.  So none goes back over another, and one of a former generation is refused.
* Auto commit has at most one commit under way; what failed is committed with the next one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from kraftpy.client.coordinator import Coordinator, Generation
from kraftpy.client.fetcher import Partition
from kraftpy.protocol.errors import KafkaError

_log = logging.getLogger(__name__)


class Committing(Protocol):
    """Tells as whom to commit now, and is told of an error that this member was answered."""

    def __call__(self, error: KafkaError | None = None) -> Generation: ...


class Commits:
    """The commits of one consumer; without `auto_interval_ms` only those that the user makes."""

    def __init__(
        self, coordinator: Coordinator, auto_interval_ms: int | None, committing: Committing
    ) -> None:
        self._coordinator = coordinator
        self._auto_interval_s = None if auto_interval_ms is None else auto_interval_ms / 1000
        self._committing = committing
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self._auto_committed: dict[Partition, int] = {}
        self._auto_due_at = time.monotonic() + (self._auto_interval_s or 0)

    async def commit(
        self, offsets: Mapping[Partition, int], *, timeout_ms: int | None = None
    ) -> None:
        """Commit when all earlier commits are done; see `Coordinator.commit`."""
        await self._commit(dict(offsets), self._committing(), timeout_ms)

    def soon(self, offsets: Mapping[Partition, int]) -> asyncio.Task[None]:
        """The same without waiting for it."""
        task = asyncio.create_task(self._commit(dict(offsets), self._committing(), None))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _commit(
        self, offsets: Mapping[Partition, int], generation: Generation, timeout_ms: int | None
    ) -> None:
        if not offsets:
            return
        async with self._turn:
            try:
                await self._coordinator.commit(offsets, generation, timeout_ms=timeout_ms)
            except KafkaError as error:
                if self._committing() == generation:
                    self._committing(error)
                raise

    async def finish(self) -> None:
        """Wait for the commits under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def auto_commit_if_due(self, positions: Mapping[Partition, int]) -> None:
        """With auto commit: commit what moved since, once the interval is over."""
        now = time.monotonic()
        if self._auto_interval_s is None or now < self._auto_due_at or self._under_way:
            return
        self._auto_due_at = now + self._auto_interval_s
        changed = {
            name: offset
            for name, offset in positions.items()
            if self._auto_committed.get(name) != offset
        }
        if changed:
            self._auto_committed = dict(positions)
            self.soon(changed).add_done_callback(self._auto_commit_done)

    def _auto_commit_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._auto_committed.clear()
            _log.warning("auto commit failed: %s", task.exception())

    async def before_giving_up(self, offsets: Mapping[Partition, int], timeout_ms: int) -> None:
        """With auto commit: commit what was processed; a failure is only logged."""
        if self._auto_interval_s is None:
            return
        try:
            await self.commit(offsets, timeout_ms=timeout_ms)
        except (ConnectionError, KafkaError) as error:
            _log.warning("could not commit before giving partitions up: %s", error)
