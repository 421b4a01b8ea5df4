"""Partitions that are fetched together, and what was fetched of them and isn't handed out yet.

A consumer has one intake, and with streams one for each: so a stream that is slow holds up no
other.
"""

from __future__ import annotations

import asyncio

from kraftpy.client.consumer_records import FetchedRecords
from kraftpy.client.fetcher import Fetched, Fetcher
from kraftpy.client.offsets import Partition


class Intake:
    """What `Reading` keeps of each."""

    def __init__(self, fetcher: Fetcher, fetched: FetchedRecords) -> None:
        self.fetcher = fetcher
        self.fetched = fetched
        self.partitions: set[Partition] = set()
        self.fetching: asyncio.Task[list[Fetched]] | None = None
        self.disregard: set[Partition] = set()
        """Partitions of which what is being fetched counts no more."""

    def take_in(self) -> list[Fetched]:
        """What has been fetched; raises what went wrong."""
        fetching = self.fetching
        if fetching is None or not fetching.done():
            return []
        self.fetching = None
        return fetching.result()

    def fetch_if_due(self) -> None:
        """Fetches more when all is handed out."""
        if not self.fetched and self.fetching is None and self.fetcher.positions:
            self.disregard.clear()
            self.fetching = asyncio.create_task(self.fetcher.poll())

    async def close(self) -> None:
        """Gives up what is under way."""
        fetching, self.fetching = self.fetching, None
        if fetching is not None:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        await self.fetcher.close()

    def drop(self, name: Partition) -> None:
        """Throws away what was fetched of a partition, here and under way."""
        self.disregard.add(name)
        self.fetched.drop(name)
