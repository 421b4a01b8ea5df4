"""The tables of leases that a broker has, so many at most.

When there is no room for another one, one that nobody misses gives way; some are looked at each
time, and others the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError

TABLES_MAX: Final = 20_000
"""A table that does nothing takes 2 KB, a full one of 2,000 records 80."""

_LOOKED_AT_MAX: Final = 100


class TableKey(NamedTuple):
    """A group on a partition."""

    group: str
    topic_id: bytes
    partition: int


class Led(Protocol):
    """A table, as others see it that want its place."""

    @property
    def key(self) -> TableKey: ...
    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost, and nobody misses it, if it is given up."""

    def give_way(self) -> None:
        """Gives it up, and has it forgotten."""

    async def stop(self) -> None:
        """The broker stops: gives it up, too, and ends what is under way."""


T = TypeVar("T", bound=Led)


class LedTables(Generic[T]):
    """See the module. `stopped`: none is opened any more."""

    def __init__(self) -> None:
        self._tables: dict[TableKey, T] = {}
        self.stopped = False

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[T]:
        return iter(self._tables.values())

    def find(self, key: TableKey) -> T | None:
        """The table, if there is one."""
        return self._tables.get(key)

    def open(self, key: TableKey, make: Callable[[], T]) -> T:
        """A new one. Raises COORDINATOR_NOT_AVAILABLE if there's no room, or the broker stops."""
        if self.stopped or (len(self._tables) >= TABLES_MAX and not self._make_room()):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        table = self._tables[key] = make()
        return table

    def forget(self, table: T) -> None:
        """It is closed."""
        del self._tables[table.key]

    def _make_room(self) -> bool:
        for table in list(islice(self._tables.values(), _LOOKED_AT_MAX)):
            if table.is_idle:
                table.give_way()
                return True
            self._tables[table.key] = self._tables.pop(table.key)
        return False

    async def stop(self) -> None:
        """Gives all of them up, and opens none any more."""
        self.stopped = True
        await asyncio.gather(*(table.stop() for table in list(self)))
